"""A run of an algorithm on a lab that is stopped and resumed ends as if it had not been."""

from pathlib import Path

import pytest

from mmrl.commands.train import train
from mmrl.core.config import load_config, shipped_names
from mmrl.core.contracts import Fitted
from mmrl.core.plugins import find
from mmrl.run_directory.start import new_run, resumed_run
from tests.tiny_runs import assert_same, numbers

LAB = [name for name in shipped_names() if name.startswith("lab/")]
# One of each model, sampler and averaging, with a state of its own, a replay, further rounds and several updates.
RESUMED = {
    f"lab/{name}"
    for name in (
        *("adjoint_matching", "asymre", "awm", "best_of_n", "branch_grpo", "consistency", "cps", "d3po", "dance_grpo"),
        *("dgpo", "diffusion_dpo_offline", "e_grpo", "fk_steering", "flow_dppo", "flow_grpo_fast_edits", "g2rpo"),
        *("motion_flow_grpo_fast", "motion_partial_chain", "neighbor", "nft", "precise", "spin", "spo", "ssr", "svdd"),
        *("tempflow", "tree_rl", "generate_then_score", "grpo_care", "latent_surrogate"),
        *("one_shot_clips", "turns_rloo", "xrpo"),
    )
}
SMALL = ("threads=1", "checkpoint.every=1", "evaluation=null", "optimizer.schedule=constant")


def test_every_kind_of_algorithm_has_its_configs() -> None:
    assert len(LAB) > 10


def kinds_of(name: str) -> set[str]:
    """What may make a run hard to resume: the parts that hold a state, and how an iteration is divided."""
    config = load_config(name)
    parts = {"model": config.modality.get("model"), "sampler": config.sampler["name"], "averaging": config.averaging}
    whether = {
        "replay": config.replay is not None,
        "further rounds": config.groups.more is not None,
        "several updates": config.updates.minibatches > 1,
        "decay": "decay" in config.loss,
        "spo": config.advantage["name"] == "spo",
        "fitted": any(issubclass(find("rewards", reward["name"]), Fitted) for reward in config.rewards),
    }
    return {f"{key}: {value}" for key, value in (parts | whether).items()}


@pytest.mark.slow
def test_each_kind_of_run_is_resumed() -> None:
    missing = set[str]().union(*map(kinds_of, LAB)) - set[str]().union(*map(kinds_of, RESUMED))
    assert not missing, f"RESUMED holds no config with {missing}"


@pytest.mark.slow  # two short runs of each
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in RESUMED else pytest.mark.exhaustive) for name in LAB]
)
def test_a_resumed_run_ends_as_one_that_was_not_stopped(name: str, tmp_path: Path) -> None:
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    config = load_config(name)
    groups = max(2, config.updates.minibatches)
    few = ["group_size=4"] if config.modality["name"] == "diffusers_pipeline" else []  # its calls take longest
    for folder, iterations in ((whole, 3), (parts, 1)):
        train(*new_run(name, [*SMALL, *few, f"prompts_per_iteration={groups}", f"iterations={iterations}"], folder))
    train(resumed_run(parts, ["iterations=3"]), parts, resume=True)
    assert_same(numbers(parts), numbers(whole))


@pytest.mark.slow
def test_a_config_has_the_budget_of_the_others() -> None:
    """What is compared trains on the same prompts, is evaluated alike, and is short enough to look at."""
    for name in LAB:
        config = load_config(name)
        assert config.evaluation is not None and config.prompts.held_out is not None, name
        assert str(config.modality.get("model", "")).startswith("lab:") and config.threads == 1, name
