"""Samples of several sizes: the update is that of policies of one size each, run apart."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from mmrl.core.config import CorrectionSettings
from mmrl.core.contracts import Loss, LossBatch, Placement
from mmrl.core.data import Outputs, Prompt, Rollout
from mmrl.core.keys import GroupKey
from mmrl.losses.adjoint_matching import AdjointMatching
from mmrl.losses.base.old_decay import OldDecay
from mmrl.losses.draft import Draft
from mmrl.losses.grpo import Grpo
from mmrl.losses.gspo import Gspo
from mmrl.losses.nft import Nft
from mmrl.modalities.diffusers_pipeline import DiffusersPipeline
from mmrl.modalities.sd3 import StableDiffusion3
from mmrl.plans.sizes import policy_for
from mmrl.samplers.flow_sde import FlowSDE
from mmrl.training.off_policy_correction import correct
from mmrl.training.processes import Processes
from mmrl.training.update import Updater, views_of

SIZES = ((32, 32), (48, 32), (32, 48))
PROMPTS = [
    Prompt("a cat"),
    Prompt("two red dogs", target={"width": 900, "height": 600}),
    Prompt("a bird", target={"width": 32, "height": 50}),
    Prompt("a blue fish on a table", target={"width": 48, "height": 32}),
]
SIZE_OF = [(32, 32), (48, 32), (32, 48), (48, 32)]
KEYS = [GroupKey(3, 0, n) for n in range(4)]
STEP = GroupKey(5, 0, 0)
GROUP, CONTROL = 2, 1.5


@dataclass
class Brightness:
    """The mean of the red of a picture, weighted from left to right: sizes matter."""

    def __call__(self, outputs: Outputs, rows: Tensor) -> Tensor:
        assert outputs.images is not None
        across = torch.linspace(0, 1, outputs.images.shape[3])
        return (outputs.images[:, 0] * across).mean((1, 2)) * (1 + 0 * rows)


def rolled_out(policy: Any, rows: Sequence[int], steps: int = 3) -> Rollout:
    prompts, keys = [PROMPTS[row] for row in rows], [KEYS[row] for row in rows]
    sampler = FlowSDE(num_steps=steps, guidance_scale=2.0)
    sized: list[Any] = [policy_for(policy, prompt) for prompt in prompts]
    plans = [sampler.plan(one, key, GROUP) for one, key in zip(sized, keys, strict=True)]
    policy.records_trajectories = True
    return policy.rollout(prompts, plans, keys)  # type: ignore[no-any-return]


def gradient(policy: Any, rollout: Rollout, loss: Loss, micro_batch: int) -> tuple[Tensor, float]:
    """The gradient of one step, and the denominator that it was divided by."""
    index = rollout.prompt_index.double()
    advantages = (torch.arange(rollout.num_samples) % GROUP * 2 - 1.3 + 0.1 * index).float()[:, None]
    batch = LossBatch(advantages, torch.ones_like(advantages), rollout.group, advantages[:, 0])
    for weight in policy.weights.parameters.values():
        weight.grad = None
    updater = Updater(
        policy, loss, Processes(), micro_batch, lambda rollout, outputs, rows: Brightness()(outputs, rows)
    )
    found = updater.differentiate(rollout, batch)
    assert found is not None
    views = views_of(loss, found, torch.arange(found.num_samples), batch, STEP)
    denominator = sum(float(loss.coefficients(updater._weighed(found, view, batch))[1]) for view in views)
    old: Any = "recorded" if loss.kind == "decisions" else "itself"
    assert updater.accumulate(found, views, batch, old) is not None
    return torch.cat([p.grad.flatten() for p in policy.weights.parameters.values() if p.grad is not None]), denominator


LOSSES: dict[str, Any] = {
    "decisions": Grpo(clip_low=0.2, clip_high=0.2, normalise="sample"),
    "paths": Gspo(clip_low=0.2, clip_high=0.2),
    "denoising": Nft(draws=2, sigmas="grid", sigma_range=(0.0, 0.99), decay=OldDecay()),
    "outputs": Draft(num_steps=2),
    "carried back": AdjointMatching(strength=CONTROL),
}


def make(folder: Path, kind: Any, **settings: Any) -> Any:
    torch.manual_seed(0)
    further: dict[str, Any] = {"arguments": {"max_sequence_length": 8}}
    if kind is StableDiffusion3:
        further = {"max_sequence_length": 8}
    policy = kind(model=str(folder), **further, **settings)
    policy.prepare(Placement(torch.device("cpu"), torch.float32))
    policy.weights.keep("reference")
    return policy


@pytest.mark.slow  # 3 s and 8 s: small models, and losses on all kinds of forward outputs
@pytest.mark.parametrize("kind", [StableDiffusion3, DiffusersPipeline])
def test_the_update_on_several_sizes_is_that_of_policies_of_one_size(kind: Any, twin_folder: Path) -> None:
    mixed = make(twin_folder, kind, sizes=SIZES)
    alone = {size: make(twin_folder, kind, width=size[0], height=size[1]) for size in SIZES}
    rollout = Rollout.join([rolled_out(mixed, [0, 1, 2]), rolled_out(mixed, [3])])
    own = [rolled_out(alone[size], [row]) for row, size in enumerate(SIZE_OF)]
    assert rollout.outputs.each is not None and rollout.outputs.images is None
    assert [one.images.shape[-2:] for one in rollout.outputs.each if one.images is not None] == [
        (height, width) for width, height in SIZE_OF for _ in range(GROUP)
    ]
    for row, (one, size) in enumerate(zip(own, SIZE_OF, strict=True)):
        at = (rollout.group == row).nonzero()[:, 0]
        torch.testing.assert_close(rollout.outputs.select(at).images, one.outputs.images, atol=0, rtol=0)
        assert rollout.levels[row] == one.levels[row] == tuple(alone[size].sigmas("pipeline", 3)[:-1])
    # what the other losses ask of a rollout, the first kind shows for both
    names = [*LOSSES] if kind is StableDiffusion3 else ["decisions", "denoising", "outputs"]
    for name, loss in ((name, LOSSES[name]) for name in names):
        found, total = gradient(mixed, rollout, loss, micro_batch=4)
        parts = [gradient(alone[size], one, loss, micro_batch=64) for one, size in zip(own, SIZE_OF, strict=True)]
        wanted = torch.stack([part * (count / total) for part, count in parts]).sum(0)
        assert total == pytest.approx(sum(count for _, count in parts)), name
        assert float(wanted.abs().max()) > 0, name
        torch.testing.assert_close(found, wanted, atol=2e-6 * float(wanted.abs().max()), rtol=1e-4, msg=name)
    for policy in (mixed, *alone.values()):
        if kind is DiffusersPipeline:
            policy.close()


@pytest.mark.slow
def test_the_correction_of_older_weights_on_several_sizes_is_that_of_policies_of_one_size(twin_folder: Path) -> None:
    settings = CorrectionSettings(kind="truncated", cap=1000)  # no weight is cut

    def weights_of(policy: Any, rollout: Rollout) -> Tensor:
        ones = torch.ones(rollout.num_samples, 1)
        batch = LossBatch(ones, ones, rollout.group, ones[:, 0])
        _, weighed, _ = correct(policy, rollout, batch, settings, Processes(), sampled_by="trained", micro_batch=3)
        assert weighed is not None
        return weighed.advantages

    mixed = make(twin_folder, StableDiffusion3, sizes=SIZES)
    alone = {size: make(twin_folder, StableDiffusion3, width=size[0], height=size[1]) for size in SIZES}
    rollout, own = rolled_out(mixed, range(4)), [rolled_out(alone[size], [row]) for row, size in enumerate(SIZE_OF)]
    for policy in (mixed, *alone.values()):
        noise = torch.Generator().manual_seed(1)
        for weight in policy.weights.parameters.values():
            weight.data += 0.02 * weight.data.std(correction=0) * torch.randn(weight.shape, generator=noise)
    found = weights_of(mixed, rollout)
    for row, (one, size) in enumerate(zip(own, SIZE_OF, strict=True)):
        wanted = weights_of(alone[size], one)
        assert (wanted - 1).abs().max() > 1e-4
        torch.testing.assert_close(found[rollout.group == row], wanted, atol=0, rtol=1e-4)
