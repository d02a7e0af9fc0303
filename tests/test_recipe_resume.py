"""Recipes of real size, run on twins: one that is stopped and resumed ends as if it had not been."""

from contextlib import ExitStack
from pathlib import Path

import pytest

from mmrl.assembly.build import build
from mmrl.assembly.compatibility import Parts
from mmrl.commands import train
from mmrl.commands.check import _twins
from mmrl.core.config import RunConfig, load_config
from mmrl.core.contracts import Shrinking
from mmrl.run_directory.start import new_run, resumed_run
from tests.tiny_runs import assert_same, numbers

RECIPES = (
    *("dance_grpo_flux", "dance_grpo_flux_binary", "dance_grpo_wan_t2v", "flow_dpo_wan", "flow_rwr_wan"),
    *("flow_nrg_wan", "instructvideo_wan21", "vader_wan"),
)
SMALL = ("threads=1", "checkpoint.every=1", "evaluation=null", "group_size=2")
FEW_STEPS = {
    "dance_sde": ("sampler.num_steps=4", "sampler.sigmas=pipeline"),
    "guided": ("sampler.proposal.num_steps=4",),
    "ode": ("sampler.num_steps=4",),
    "partial_chain": ("sampler.num_steps=4",),
}


@pytest.mark.slow  # two short runs of each
@pytest.mark.exhaustive
@pytest.mark.filterwarnings("ignore:Mismatch dtype:UserWarning")  # rms_norm of bfloat16 under float32 weights
@pytest.mark.parametrize("name", RECIPES)
def test_a_resumed_recipe_ends_as_one_that_was_not_stopped(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, parts, config = tmp_path / "whole", tmp_path / "parts", load_config(name)
    overrides = (
        *SMALL,
        *FEW_STEPS[config.sampler["name"]],
        f"prompts_per_iteration={max(2, config.updates.minibatches)}",
    )
    with ExitStack() as stack:

        def with_twins(config: RunConfig) -> Parts:
            built = build(config)
            if isinstance(built.policy, Shrinking):
                stack.enter_context(built.policy.shrunk())
            return _twins(built, config, tmp_path)

        monkeypatch.setattr(train, "build", with_twins)
        for folder, iterations in ((whole, 3), (parts, 1)):
            train.train(*new_run(name, [*overrides, f"iterations={iterations}"], folder))
        train.train(resumed_run(parts, ["iterations=3"]), parts, resume=True)
    assert_same(numbers(parts), numbers(whole))
