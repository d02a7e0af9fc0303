"""Every family of pipelines draws its samples again with a graph: same images, gradients to all that is trained."""

from pathlib import Path
from typing import Any

import pytest
import torch

from mmrl.core.data import Prompt
from mmrl.core.plugins import build
from mmrl.core.views import OutputsView
from tests.diffusion_twins import KEY, KINDS, policy_of, twin


def check(policy: Any, text: str, sampler: Any) -> None:
    policy.records_trajectories = True
    with torch.no_grad():  # a fresh LoRA is 0 behind its first half, which would then get no gradient
        for parameter in policy.weights.parameters.values():
            parameter.add_(0.01)
    rollout = policy.rollout([Prompt(text)], [sampler.plan(policy, KEY, 2)], [KEY])
    for num_steps in (1, 3):
        rendered = policy.forward(rollout, OutputsView(torch.arange(2), num_steps))
        torch.testing.assert_close(rendered.outputs.images, rollout.outputs.images, atol=2e-4, rtol=0)
    rendered.outputs.images.square().mean().backward()
    assert all(p.grad is not None and p.grad.abs().max() > 0 for p in policy.weights.parameters.values())


@pytest.mark.slow
@pytest.mark.parametrize("sampler", [{"name": "ode"}, {"name": "ddim", "eta": 1.0, "guidance_scale": 2.0}])
def test_stable_diffusion_3(lab_policy: Any, sampler: dict[str, Any]) -> None:
    check(lab_policy(), "red circle top left", build("samplers", {"num_steps": 3, "sigmas": "uniform"} | sampler))


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("sampler", [{"name": "ode"}, {"name": "ddim", "eta": 1.0, "guidance_scale": 2.0}])
def test_stable_diffusion(kind: str, sampler: dict[str, Any], tmp_path: Path) -> None:
    check(policy_of(twin(kind, tmp_path)), "a cat", build("samplers", {"num_steps": 3} | sampler))
