"""Batches for reward tests, and a module of a user."""

import importlib
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from mmrl.core.contracts import RewardBatch
from mmrl.core.data import Outputs, Prompt
from tests.rewards.own_rewards import OWN


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


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The module my_rewards of a user, in the working folder; another test's module of that name is put aside."""
    (tmp_path / "my_rewards.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "my_rewards", raising=False)
    importlib.invalidate_caches()
    yield importlib.import_module("my_rewards")
    sys.modules.pop("my_rewards", None)
