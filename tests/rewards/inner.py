"""An inner reward for tests of wrappers: the number that an answer writes."""

import random
from dataclasses import dataclass, field, replace
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


STEPS: dict[str, Any] = {"name": "tests.rewards.inner:Steps"}
LAST: dict[str, Any] = {"name": "tests.rewards.inner:Written", "place": -1}


@dataclass
class Steps:
    """Dense: the words of each text as numbers in [0, 1], one for each decision; a segment goes on at the word `-`."""

    granularity: Granularity = "segment"
    batch_size: int | None = None
    ends_everywhere: bool = False  # each word ends a segment

    source: ClassVar[str] = "these tests"
    differentiable: ClassVar[bool] = False
    needs: ClassVar[frozenset[str]] = frozenset({"texts"})
    range: ClassVar[tuple[float, float]] = (0.0, 1.0)

    def ends(self, batch: RewardBatch) -> Tensor:
        mask = batch.is_decision.clone()
        for row, text in enumerate(batch.outputs.texts or ()):
            for place, word in enumerate(text.split()):
                mask[row, place] = self.ends_everywhere or word != "-"
        return mask

    def score(self, batch: RewardBatch) -> Tensor:
        numbers = torch.zeros(batch.is_decision.shape)
        for row, text in enumerate(batch.outputs.texts or ()):
            for place, word in enumerate(text.split()):
                numbers[row, place] = 0.0 if word == "-" else float(word)
        return numbers


def of_steps(*texts: str) -> RewardBatch:
    """Texts whose words are their decisions."""
    return replace(said(*texts), num_decisions=torch.tensor([len(text.split()) for text in texts]))


def steps(source: random.Random) -> RewardBatch:
    """Twelve texts of one to six words: random numbers in [0, 1], the ends among them, or `-`."""
    texts = []
    for _ in range(12):
        words = [source.choice(["-", "0", "1", str(source.random())]) for _ in range(source.randrange(6))]
        texts.append(" ".join([*words, source.choice(["0", "1", str(source.random())])]))
    return of_steps(*texts)
