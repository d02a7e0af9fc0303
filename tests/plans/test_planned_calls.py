"""Planned is made: the network calls of plans that fork, under the losses that look back on states of the way."""

from typing import Any

import pytest

from mmrl.commands.check import check_tiny
from mmrl.core.config import check_config

FLOW: dict[str, Any] = {"num_steps": 4, "sigmas": "uniform"}
FORKING: list[dict[str, Any]] = [
    FLOW | {"name": "branch_grpo", "splits": [0, 1], "noise_level": 0.5},
    FLOW | {"name": "tempflow", "roots": 2},
    FLOW | {"name": "g2rpo", "window": {"mode": "range", "last": 2}},
    FLOW | {"name": "e_grpo", "merged": [1, 2]},
]
CASES = [  # of loss and epochs; those that share nothing new are for `make test-all`: each is a whole dry run
    pytest.param({"name": name} | settings, epochs, id=f"{name}-{epochs}", marks=[pytest.mark.slow] * is_slow)
    for name, settings in (("draft", {"num_steps": 3}), ("refl", {"left_out": 1}), ("adjoint_matching", {}))
    for epochs in (1, 2)
    for is_slow in [not (name == "adjoint_matching" and epochs == 2)]
]


@pytest.mark.slow
@pytest.mark.parametrize("sampler", FORKING, ids=lambda sampler: sampler["name"])
@pytest.mark.parametrize(("loss", "epochs"), CASES)
def test_forking_plans_make_the_calls_that_were_planned(
    sampler: dict[str, Any], loss: dict[str, Any], epochs: int
) -> None:
    """The states that gradients pass are shared as in the rollout; samples drawn again meet where they may, and the
    plan is a bound."""
    config = {
        "iterations": 2,
        "group_size": 4,
        "prompts_per_iteration": 2,
        "prompts": {"train": "lab:shapes/train", "held_out": "lab:shapes/held_out"},
        "modality": {"name": "sd3", "model": "lab:shapes", "height": 32, "width": 32, "max_sequence_length": 1},
        "sampler": sampler,
        "rewards": [{"name": "soft_shapes"}],
        "advantage": {"name": "grpo"},
        "loss": loss,
        "updates": {"epochs": epochs},
        "evaluation": None,
    }
    found = check_tiny(check_config(config))
    planned = {name: count for name, count in found.items() if name.startswith("network calls planned")}
    is_exact = loss["name"] == "adjoint_matching"
    assert list(planned) == ["network calls planned" if is_exact else "network calls planned at most"]
    assert found["is_good"] and (not is_exact or [found["network calls made"]] == list(planned.values())), found
