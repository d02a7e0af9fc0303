"""What a reward's own test file says about it, for the properties that `test_every_reward.py` asks of all rewards.

`tests/rewards/<folder>/test_<name>.py` holds `EXAMPLE = Example(random_batch=..., best=...)`.
"""

import importlib
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from mmrl.core.contracts import RewardBatch
from mmrl.core.data import Outputs, Prompt
from mmrl.media.pictures import Picture

GROUP = 4  # samples of each prompt in the batches made here


@dataclass(frozen=True)
class Example:
    """How to ask one reward, with exactly the media and the target fields that it says it needs."""

    # Wide random answers, drawn with the given generator of random numbers: B >= 8 samples in groups of GROUP, from
    # nonsense to nearly right. All draws of a test together must come near both ends of a finite range.
    random_batch: Callable[[random.Random], RewardBatch]
    # Samples that are the ground truth: each scores the upper end of the range (or, where that is infinite or the
    # formula cannot reach it, at least as much as all that `draw` gives). None where there is no truth: diversity,
    # models of taste; say why in a comment.
    best: Callable[[], RewardBatch] | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)  # beside the defaults: of a reward that has none for some


def example_of(name: str) -> Example:
    """Returns the example in the test file of a shipped reward."""
    (file,) = Path(__file__).parent.glob(f"*/test_{name}.py")
    found = importlib.import_module(f"tests.rewards.{file.parent.name}.{file.stem}").EXAMPLE
    assert isinstance(found, Example)
    return found


def make_batch(
    outputs: Outputs,
    texts: Sequence[str],
    targets: Sequence[Mapping[str, Any]] = (),
    *,
    group_size: int = GROUP,
    media: Sequence[Sequence[Picture]] = (),
    iteration: int = 0,
) -> RewardBatch:
    """A batch of B samples whose prompts have these texts, targets (one for each, or none) and media.

    Samples 0 .. group_size - 1 are one group, and so on.
    """
    number = torch.arange(len(texts))
    every = zip(texts, targets or [{}] * len(texts), media or [()] * len(texts), strict=True)
    return RewardBatch(
        prompts=tuple(Prompt(text, tuple(pictures), target) for text, target, pictures in every),
        outputs=outputs,
        group=number // group_size,
        episode=number,
        turn=torch.zeros_like(number),
        seeds=tuple(range(len(texts))),
        iteration=iteration,
        generator=torch.Generator().manual_seed(0),
    )


def answers(texts: Sequence[str], target: Mapping[str, Any] | None = None, **other: Any) -> RewardBatch:
    """Texts that answer one question with one target, as a batch; `other` are further outputs, such as canvases."""
    asked = ["What is it?"] * len(texts)
    return make_batch(Outputs(texts=tuple(texts), **other), asked, [target or {}] * len(texts))
