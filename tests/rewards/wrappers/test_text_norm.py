"""text_norm against softmax by hand."""

import math
import random
from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch
from torch import Tensor

from mmrl.core.contracts import ConfigError, Granularity, RewardBatch
from mmrl.core.data import Outputs, Prompt
from mmrl.core.plugins import build
from mmrl.core.reward_batches import Demands
from tests.rewards.example import Example, make_batch

HELD = {"name": "tests.rewards.wrappers.test_text_norm:Fit"}


@dataclass
class Fit:
    """How often the answer holds the prompt's text."""

    source: ClassVar[str] = "these tests"
    granularity: ClassVar[Granularity] = "sample"
    differentiable: ClassVar[bool] = False
    needs: ClassVar[frozenset[str]] = frozenset({"texts"})
    batch_size: ClassVar[int | None] = 2
    range: ClassVar[tuple[float, float]] = (0.0, 20.0)

    def score(self, batch: RewardBatch) -> Tensor:
        assert batch.outputs.texts is not None and len(batch) <= 2
        pairs = zip(batch.outputs.texts, batch.prompts, strict=True)
        return torch.tensor([float(min(20, text.count(prompt.text))) for text, prompt in pairs])


def batch_of(texts: list[str]) -> RewardBatch:
    return make_batch(Outputs(texts=tuple(texts)), ["a"] * len(texts), [{"contrasts": ["b", "c"]}] * len(texts))


def random_batch(source: random.Random) -> RewardBatch:
    return batch_of(["a" * source.randrange(9) + "b" * source.randrange(9) for _ in range(8)])


EXAMPLE = Example(
    random_batch=random_batch, best=lambda: batch_of(["a" * 20]), settings={"reward": HELD, "temperature": 0.5}
)


def test_it_is_the_share_of_the_prompt_among_its_contrasts() -> None:
    reward = build("rewards", {"name": "text_norm", "reward": HELD, "temperature": 2.0})
    scores = reward.score(batch_of(["aab", "bbbb", ""]))
    first = math.exp(2 / 2) / (math.exp(2 / 2) + math.exp(1 / 2) + 1)
    second = 1 / (1 + math.exp(4 / 2) + 1)
    assert scores.tolist() == pytest.approx([first, second, 1 / 3])


def test_contrasts_that_are_none_are_found_when_the_data_is_loaded() -> None:
    reward = build("rewards", {"name": "text_norm", "reward": HELD})
    fault = Demands((("r", reward),)).fault
    assert fault(Prompt("a", target={"contrasts": ["b"]})) is None
    for bad in ([], ["a"], "b", [1], None):
        assert "target.contrasts must be a list of texts that differ" in str(
            fault(Prompt("a", target={"contrasts": bad}))
        )
    with pytest.raises(ConfigError, match="temperature must be above 0"):
        build("rewards", {"name": "text_norm", "reward": HELD, "temperature": 0.0})
