"""Batches for reward tests."""

from collections.abc import Callable, Sequence

import pytest
import torch

from mmrl.contracts import RewardBatch
from mmrl.data import Outputs, Prompt


@pytest.fixture(scope="session")
def make_batch() -> Callable[[Outputs, Sequence[str]], RewardBatch]:
    """Outputs and their prompts' texts to a batch of groups of two."""

    def make(outputs: Outputs, texts: Sequence[str]) -> RewardBatch:
        number = torch.arange(len(texts))
        return RewardBatch(
            prompts=tuple(Prompt(text) for text in texts),
            outputs=outputs,
            group=number // 2,
            episode=number,
            turn=number,
            seeds=tuple(range(len(texts))),
            iteration=0,
            generator=torch.Generator().manual_seed(0),
        )

    return make
