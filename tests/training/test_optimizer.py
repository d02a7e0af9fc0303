"""The optimizer of a run: which one, and which tensors learn how fast."""

import math
import sys
from typing import Any

import pytest
import torch
from torch import nn

from mmrl.core.config import OptimizerSettings
from mmrl.core.weights import Weights
from mmrl.system.errors import ConfigError
from mmrl.training.optimizer import learning_rate, optimizer_of
from tests.parameters import in_one_test


def weights(**rate_scale: float) -> Weights:
    return Weights({name: nn.Parameter(torch.ones(2)) for name in "abc"}, rate_scale=rate_scale)


@pytest.mark.parametrize(("name", "kind"), [("adamw", "AdamW"), ("adam", "Adam"), ("sgd", "SGD")])
def test_the_optimizer_is_torchs_with_the_settings(name: str, kind: str) -> None:
    settings = OptimizerSettings.model_validate({"name": name, "learning_rate": 0.5, "weight_decay": 0.25})
    optimizer = optimizer_of(settings, weights())
    assert type(optimizer).__name__ == kind
    assert [(group["lr"], group["weight_decay"]) for group in optimizer.param_groups] == [(0.5, 0.25)]


def test_tensors_of_one_rate_are_one_group_and_others_one_each_in_their_order() -> None:
    alike, apart = weights(a=0.5, b=0.5, c=0.5), weights(b=0.1)
    assert [len(group["params"]) for group in optimizer_of(OptimizerSettings(), alike).param_groups] == [3]
    groups = optimizer_of(OptimizerSettings(), apart).param_groups
    assert [group["rate_scale"] for group in groups] == [1.0, 0.1, 1.0]
    assert [group["params"][0] for group in groups] == list(apart.parameters.values())


def test_a_package_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "bitsandbytes.optim", None)
    with pytest.raises(ConfigError, match="needs bitsandbytes: pip install 'mmrl\\[quantise\\]'"):
        optimizer_of(OptimizerSettings(name="adamw8bit"), weights())


def rates(total: int, **settings: Any) -> list[float]:
    return [learning_rate(OptimizerSettings(learning_rate=8.0, **settings), n, total) for n in range(total)]


@in_one_test(
    "settings, expected",
    [
        ({}, [8, 8, 8, 8]),
        ({"warmup": 2}, [4, 8, 8, 8]),
        ({"warmup": 4}, [2, 4, 6, 8]),
        ({"schedule": "linear"}, [8, 6, 4, 2]),
        ({"schedule": "linear", "warmup": 2}, [4, 8, 8, 4]),
        ({"schedule": "cosine"}, [8, 4 + 4 * math.sqrt(0.5), 4, 4 - 4 * math.sqrt(0.5)]),
        ({"schedule": "cosine", "warmup": 9}, [8 / 9, 16 / 9, 24 / 9, 32 / 9]),
    ],
)
def test_the_learning_rate_warms_up_and_falls_to_zero_at_the_end(settings: Any, expected: list[float]) -> None:
    assert rates(4, **settings) == pytest.approx(expected, rel=1e-12)
