"""Compiled image networks give what the networks give as they are, by few programs; guidance is one network call."""

from pathlib import Path
from typing import Any

import pytest
import torch

from mmrl.core.contracts import Placement
from mmrl.core.data import Prompt, Rollout
from mmrl.core.keys import GroupKey
from mmrl.core.views import DecisionView
from mmrl.modalities.loading.lora import Lora
from mmrl.modalities.sd3 import StableDiffusion3
from mmrl.modalities.stable_diffusion import StableDiffusion
from mmrl.modalities.stable_diffusion_xl import StableDiffusionXL
from mmrl.modalities.tiny.sd3 import write_tiny_sd3
from mmrl.modalities.tiny.stable_diffusion import write_tiny_stable_diffusion, write_tiny_stable_diffusion_xl
from mmrl.samplers.flow_sde import FlowSDE

WRITERS: dict[type[Any], Any] = {
    StableDiffusion3: lambda folder: write_tiny_sd3(folder, 0),
    StableDiffusion: lambda folder: write_tiny_stable_diffusion(folder, 0),
    StableDiffusionXL: lambda folder: write_tiny_stable_diffusion_xl(folder, 0),
}


def sampled(policy: Any, count: int, scale: float = 2.0) -> Rollout:
    key = GroupKey(3, 0, 0)
    plan = FlowSDE(num_steps=2, guidance_scale=scale).plan(policy, key, count)
    rollout: Rollout = policy.rollout([Prompt("a cat")], [plan], [key])
    return rollout


@pytest.mark.slow
@pytest.mark.parametrize("kind", [StableDiffusion3, StableDiffusion, StableDiffusionXL])
def test_a_compiled_network_gives_the_same_images_and_updates_by_few_programs(
    kind: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    WRITERS[kind](tmp_path)
    programs, calls, found = list[int](), list[int](), list[Any]()

    def counting(graph: Any, _inputs: Any, **_given: Any) -> Any:
        programs.append(1)
        return graph.forward

    torch.compiler.reset()
    monkeypatch.setattr(kind, "compile_backend", staticmethod(counting))
    for is_compiled in (False, True):
        torch.manual_seed(0)
        given = {"height": 32, "width": 32, "lora": Lora(rank=2, alpha=4), "compile": is_compiled}
        policy = kind(model=str(tmp_path), **given)
        policy.prepare(Placement(torch.device("cpu"), torch.float32))
        (network,) = policy.networks()
        network.register_forward_pre_hook(
            lambda _network, _given, named: calls.append(len(named["timestep"])), with_kwargs=True
        )
        calls.clear()
        rollout = sampled(policy, 3)
        assert calls == [6, 6]  # both branches of guidance of three samples, in one call for each of two steps
        values = policy.forward(rollout, DecisionView(torch.arange(3))).mean
        gradient = torch.autograd.grad(values.square().sum(), [*policy.weights.parameters.values()], allow_unused=True)
        found.append((rollout.trace.decided.mean, values, *(one for one in gradient if one is not None)))
    assert programs
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-4)
    sampled(policy, 2)
    before = len(programs)
    for count in (5, 4, 7):
        sampled(policy, count)
    assert len(programs) == before  # batches of other sizes run the same programs
