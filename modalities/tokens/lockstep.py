"""The lockstep of token policies with sharded weights: every network call is one of all processes."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from PIL import Image
from torch import Tensor

from mmrl.core.data import Prompt

from ..encoding.inputs import EncodedPrompt
from .backbone import Answers


@dataclass(frozen=True)
class _Grey:
    """A small image without a file."""

    size: tuple[int, int] = (56, 56)

    def load(self) -> Image.Image:
        return Image.new("RGB", self.size, "grey")


FILLER = Prompt("", (_Grey(),))


@dataclass(frozen=True)
class Lockstep:
    """The means by which processes make the same network calls: the vision tower and each layer run on all or on none.

    Processes with fewer calls to make add dummy calls, of weight 0.
    """

    maximum: Callable[[int], int]  # the maximum of a count over processes
    filler: EncodedPrompt  # a prompt with an image
    end_token: int

    def with_media(self, prompts: Sequence[EncodedPrompt]) -> list[EncodedPrompt]:
        """Returns the prompts, and the filler behind them where no prompt has media."""
        return [*prompts, *([] if any(prompt.media for prompt in prompts) else [self.filler])]

    def with_dummy_row(self, prompt: Tensor, uniform: Tensor, num_prompts: int) -> tuple[Tensor, Tensor]:
        """Returns `prompt` [n] and `uniform` [n, T] with a row for a dummy answer to the last prompt behind them."""
        last = prompt.new_tensor([num_prompts - 1])
        return torch.cat([prompt, last]), torch.cat([uniform, uniform.new_zeros(1, uniform.shape[1])])

    def filled(self, prompts: Sequence[EncodedPrompt], answers: Answers) -> tuple[list[EncodedPrompt], Answers]:
        """Returns prompts and answers with at least two tokens a row, and with the filler where no prompt has media.

        Two tokens make the network continue from a cache. The filler's answer stands behind the others.
        """
        missing = max(0, 2 - answers.tokens.shape[1])
        tokens = torch.nn.functional.pad(answers.tokens, (0, missing), value=self.end_token)
        filled, prompt, length = self.with_media(prompts), answers.prompt, answers.length
        if len(filled) > len(prompts):
            prompt = torch.cat([prompt, prompt.new_tensor([len(prompts)])])
            tokens = torch.cat([tokens, tokens.new_full((1, tokens.shape[1]), self.end_token)])
            length = torch.cat([length, length.new_tensor([2])])
        return filled, Answers(prompt, tokens, length)

    def dummy(self, device: torch.device) -> tuple[list[EncodedPrompt], Answers]:
        """Returns the filler and its answer alone."""
        none = torch.zeros(0, dtype=torch.int64, device=device)
        return self.filled([], Answers(none, none.view(0, 0), none))
