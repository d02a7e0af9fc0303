"""Prompts by a number that is made of their content, so that stored numbers still lead to their prompts."""

import hashlib
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from mmrl.core.data import Prompt


@dataclass
class Registry:
    """Prompts by number; those that were not used for the longest time go first."""

    capacity: int
    _prompts: OrderedDict[int, Prompt] = field(default_factory=OrderedDict)
    _numbers: dict[object, int] = field(default_factory=dict)  # of a prompt's text, media and their roles

    def add(self, prompts: Sequence[Prompt]) -> Tensor:
        """Returns the numbers [P] int64 of prompts; more than `capacity` of them at once are kept, too."""
        numbers = [self._number(prompt) for prompt in prompts]
        for number, prompt in zip(numbers, prompts, strict=True):
            self._prompts[number] = prompt
            self._prompts.move_to_end(number)
        while len(self._prompts) > max(self.capacity, len(set(numbers))):
            _, oldest = self._prompts.popitem(last=False)
            self._numbers.pop((oldest.text, oldest.media, oldest.roles), None)
        return torch.tensor(numbers, dtype=torch.int64)

    def __getitem__(self, number: int) -> Prompt:
        return self._prompts[number]

    def _number(self, prompt: Prompt) -> int:
        key = (prompt.text, prompt.media, prompt.roles)
        if key not in self._numbers:
            digest = hashlib.sha256(prompt.text.encode() + repr(prompt.roles).encode() * bool(prompt.roles))
            for picture in prompt.media:
                image = picture.load()
                digest.update(repr(image.size).encode() + image.tobytes())
            self._numbers[key] = int.from_bytes(digest.digest()[:8], "big", signed=True)
        return self._numbers[key]
