"""An inner reward for tests of wrappers: the number that an answer writes."""

import random
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor

from mmrl.core.contracts import Granularity, RewardBatch
from mmrl.core.data import Prompt
from mmrl.core.plugins import build
from tests.rewards.example import answers

WRITTEN: dict[str, Any] = {"name": "tests.rewards.inner:Written"}
SECOND: dict[str, Any] = {"name": "tests.rewards.inner:Written", "place": 1}


@dataclass
class Written:
    """The word `place` of each text as a number in [0, 1]; the object remembers the texts that it judged."""

    place: int = 0
    high: float = 1.0
    scored: list[str] = field(default_factory=list, init=False)

    source: ClassVar[str] = "these tests"
    granularity: ClassVar[Granularity] = "sample"
    differentiable: ClassVar[bool] = False
    needs: ClassVar[frozenset[str]] = frozenset({"texts"})
    batch_size: ClassVar[int | None] = None
    range: ClassVar[tuple[float, float]] = (0.0, 1.0)

    def __post_init__(self) -> None:
        self.range = (0.0, self.high)  # type: ignore[misc]  # of this one

    def check(self, prompt: Prompt) -> None:
        if "unfit" in prompt.target:
            raise ValueError("this prompt is unfit")

    def score(self, batch: RewardBatch) -> Tensor:
        assert batch.outputs.texts is not None
        self.scored += batch.outputs.texts
        return torch.tensor([float(text.split()[self.place]) for text in batch.outputs.texts])


def wrapped(name: str, **settings: Any) -> Any:
    """The wrapper, by default around the first number of each text."""
    return build("rewards", {"name": name, "reward": WRITTEN} | settings)


def numbers(source: random.Random) -> RewardBatch:
    """Twelve texts of two random numbers in [0, 1], the ends among them."""
    firsts = [0, 1, *(source.random() for _ in range(10))]
    return answers([f"{first} {source.choice([0, 1, source.random()])}" for first in firsts])


def said(*texts: str, **other: Any) -> RewardBatch:
    return answers(texts, **other)
