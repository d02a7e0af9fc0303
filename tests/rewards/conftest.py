"""Batches for reward tests."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
import torch

from mmrl.contracts import RewardBatch
from mmrl.data import Outputs, Prompt


@pytest.fixture(scope="session")
def make_batch() -> Callable[..., RewardBatch]:
    """Outputs, their prompts' texts and targets (one for each, or none) to a batch of groups of two."""

    def make(outputs: Outputs, texts: Sequence[str], targets: Sequence[Mapping[str, Any]] = ()) -> RewardBatch:
        number = torch.arange(len(texts))
        return RewardBatch(
            prompts=tuple(
                Prompt(text, target=target) for text, target in zip(texts, targets or [{}] * len(texts), strict=True)
            ),
            outputs=outputs,
            group=number // 2,
            episode=number,
            turn=number,
            seeds=tuple(range(len(texts))),
            iteration=0,
            generator=torch.Generator().manual_seed(0),
        )

    return make
