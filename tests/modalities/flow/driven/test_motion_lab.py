"""The clips of the motion lab: plans that fork make the network calls that they should, with and without guidance."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from mmrl import labs
from mmrl.core.contracts import Placement
from mmrl.core.data import Prompt
from mmrl.core.keys import GroupKey
from mmrl.modalities.diffusers_pipeline import DiffusersPipeline
from mmrl.samplers.base.window import Window
from mmrl.samplers.branch_grpo import BranchGRPO
from mmrl.samplers.flow_sde import FlowSDE
from mmrl.samplers.ode import ODE
from tests.modalities.flow.driven.test_flux import all_calls, elements, rolled

pytestmark = pytest.mark.slow  # a driven pipeline

PROMPTS = [Prompt("red circle moves up"), Prompt("blue cross moves left")]
STEPS, GROUP = 4, 4


@pytest.fixture(scope="module")
def policy() -> Iterator[DiffusersPipeline]:
    torch.manual_seed(0)
    policy = DiffusersPipeline(
        model=str(labs.checkpoint("motion")),
        height=32,
        width=32,
        num_frames=9,
        output="video",
        arguments={"frame_rate": 8, "max_sequence_length": 5},
    )
    policy.prepare(Placement(torch.device("cpu"), torch.float32))
    yield policy
    policy.close()


@pytest.mark.parametrize("scale", [1.0, 3.0])
def test_clips_share_what_plans_share(scale: float, policy: Any) -> None:
    branches = 1 if scale == 1 else 2
    first = rolled(policy, ODE(num_steps=1, guidance_scale=scale), PROMPTS, 1)  # compares with the stock pipeline
    assert first.outputs.videos is not None and first.outputs.videos.shape == (2, 9, 3, 32, 32)
    seen = elements(policy)
    for last, num_states in ((2, 1), (3, 1 + GROUP)):  # one random step behind a shared prefix, or two
        window = Window(mode="range", first=1, last=last)
        sampler = FlowSDE(num_steps=STEPS, share_noise=True, guidance_scale=scale, window=window)
        rollout = rolled(policy, sampler, PROMPTS, GROUP)
        assert sum(seen) == len(PROMPTS) * (2 + GROUP * (STEPS - 2)) * branches == rollout.num_calls
        seen.clear()
        policy.forward(rollout, all_calls(rollout))
        assert seen == [len(PROMPTS) * num_states * branches]
        seen.clear()
    tree = BranchGRPO(num_steps=STEPS, splits=(0, 2), guidance_scale=scale)
    plan = tree.plan(policy, GroupKey(7, 0, 0), GROUP)
    grown = rolled(policy, tree, PROMPTS, GROUP)
    assert sum(seen) == grown.num_calls == len(PROMPTS) * (1 + 2 + 2 + 4) * branches
    assert grown.num_calls == len(PROMPTS) * plan.num_rollout_calls * plan.forwards_per_call
