"""A driven family, FLUX with and without guidance, does all that the hand-written SD3 does."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from mmrl.core.contracts import LossBatch, Placement
from mmrl.core.data import Outputs, Prompt, Rollout
from mmrl.core.keys import GroupKey
from mmrl.core.plugins import build
from mmrl.core.views import DecisionView, OutputsView
from mmrl.modalities.diffusers_pipeline import DiffusersPipeline
from mmrl.modalities.loading.lora import Lora
from mmrl.modalities.tiny.pipelines.families import write_tiny_pipeline
from mmrl.samplers.base.window import Window
from mmrl.samplers.branch_grpo import BranchGRPO
from mmrl.samplers.flow_sde import FlowSDE
from mmrl.samplers.ode import ODE
from mmrl.training.processes import Processes
from mmrl.training.update import Updater

pytestmark = pytest.mark.slow  # about a second each: models, and paused calls of them

PROMPTS = [Prompt("a cat"), Prompt("two red dogs on a table and a second sentence")]
STEPS, GROUP = 4, 4
SCALES = [1.0, 3.0]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random tiny FLUX."""
    made = tmp_path_factory.mktemp("flux")
    write_tiny_pipeline("flux", made, 0)
    return made


@pytest.fixture
def make(folder: Path) -> Iterator[Any]:
    """Makes the tiny FLUX a driven policy; settings by keyword."""
    policies: list[DiffusersPipeline] = []

    def made(dtype: torch.dtype = torch.float32, **settings: Any) -> DiffusersPipeline:
        arguments = {"max_sequence_length": 48, "guidance_scale": 2.5}
        torch.manual_seed(0)
        given: dict[str, Any] = {"model": str(folder), "height": 32, "width": 32, "arguments": arguments}
        policy = DiffusersPipeline(**given | settings)
        policy.prepare(Placement(torch.device("cpu"), dtype))
        policies.append(policy)
        return policy

    yield made
    for policy in policies:
        policy.close()


def rolled(policy: Any, sampler: Any, prompts: list[Prompt] = PROMPTS, group: int = GROUP) -> Rollout:
    keys = [GroupKey(7, 0, n) for n in range(len(prompts))]
    rollout: Rollout = policy.rollout(prompts, [sampler.plan(policy, key, group) for key in keys], keys)
    return rollout


def all_calls(rollout: Rollout) -> DecisionView:
    calls = rollout.blocks[0].call
    return DecisionView(torch.unique(calls[calls >= 0]))


def elements(policy: Any) -> list[int]:
    """Batch elements of each call of the network from now on."""
    seen: list[int] = []
    network = policy.modules()["transformer"]
    network.register_forward_pre_hook(
        lambda module, args, kwargs: seen.append(len(kwargs["hidden_states"])), with_kwargs=True
    )
    return seen


@pytest.mark.parametrize("scale", SCALES)
def test_what_a_group_shares_is_computed_once(scale: float, make: Any) -> None:
    policy, branches = make(), 1 if scale == 1 else 2
    rolled(policy, ODE(num_steps=1, guidance_scale=scale), group=1)  # the first one compares with the stock pipeline
    seen, one = elements(policy), Window(mode="range", first=1, last=2)
    window = FlowSDE(num_steps=STEPS, share_noise=True, guidance_scale=scale, window=one)
    rollout = rolled(policy, window)
    assert sum(seen) == len(PROMPTS) * (2 + GROUP * (STEPS - 2)) * branches == rollout.num_calls
    seen.clear()
    policy.forward(rollout, all_calls(rollout))
    # one element for each group, prompts of different lengths and both branches of guidance in one call
    assert seen == [len(PROMPTS) * branches]
    seen.clear()
    tree = BranchGRPO(num_steps=STEPS, splits=(0, 2), guidance_scale=scale)
    plan = tree.plan(policy, GroupKey(7, 0, 0), GROUP)
    grown = rolled(policy, tree)
    assert sum(seen) == grown.num_calls == len(PROMPTS) * (1 + 2 + 2 + 4) * branches
    assert grown.num_calls == len(PROMPTS) * plan.num_rollout_calls * plan.forwards_per_call


@pytest.mark.parametrize("scale", SCALES)
def test_samples_do_not_depend_on_other_groups_nor_on_the_batch(scale: float, make: Any) -> None:
    sampler = FlowSDE(num_steps=STEPS, guidance_scale=scale)
    policy, small = make(), make(network_batch=3, decode_batch=1, paused_calls=1)
    together = rolled(policy, sampler)
    key = GroupKey(7, 0, 1)
    alone = small.rollout([PROMPTS[1]], [sampler.plan(small, key, GROUP)], [key])
    assert alone.outputs.images is not None and together.outputs.images is not None
    torch.testing.assert_close(alone.outputs.images, together.outputs.images[GROUP:], atol=1e-4, rtol=0)
    torch.testing.assert_close(alone.trace.clean, together.trace.clean[GROUP:], atol=1e-4, rtol=1e-4)


def redness(rollout: Rollout, outputs: Outputs, rows: Tensor) -> Tensor:
    assert outputs.images is not None
    return outputs.images[:, 0].mean((1, 2))


def gradient(policy: Any, settings: dict[str, Any], rollout: Rollout, micro_batch: int) -> dict[str, Tensor]:
    """The gradient of one optimizer step by name."""
    loss, rows = build("losses", settings), torch.arange(rollout.num_samples)
    scores = torch.linspace(0, 1, rollout.num_samples)
    batch = LossBatch((2 * scores - 1)[:, None], torch.ones(rollout.num_samples, 1), rollout.group, scores)
    for parameter in policy.weights.parameters.values():
        parameter.grad = None
    views = loss.views(rollout, rows, GroupKey(0, 0, 0))
    updater = Updater(policy, loss, Processes(), micro_batch, redness)
    assert updater.accumulate(rollout, views, batch, "kept" if loss.old_decay(0) is not None else "itself") is not None
    return {name: p.grad.clone() for name, p in policy.weights.parameters.items() if p.grad is not None}


def assert_same_gradient(got: dict[str, Tensor], wanted: dict[str, Tensor]) -> None:
    assert got.keys() == wanted.keys()
    one, other = (torch.cat([found[name].flatten() for name in wanted]) for found in (got, wanted))
    assert other.norm() > 1e-6
    assert (one - other).norm() <= 1e-4 * other.norm()


LOSSES: dict[str, tuple[dict[str, Any], Any]] = {
    "grpo": ({"name": "grpo", "clip_low": 0.01, "clip_high": 0.01, "kl_coef": 0.1}, FlowSDE),
    "nft": ({"name": "nft", "draws": 2, "reference_weight": 0.1}, ODE),
    "draft": ({"name": "draft", "num_steps": 2}, ODE),
}


@pytest.mark.parametrize(
    ("name", "scale"), [("grpo", 1.0), ("grpo", 3.0), ("nft", 3.0), ("draft", 1.0), ("draft", 3.0)]
)
def test_micro_batches_give_the_gradient_of_the_whole(name: str, scale: float, make: Any) -> None:
    settings, sampler = LOSSES[name]
    policy = make()
    policy.records_trajectories = name == "draft"
    rollout = rolled(policy, sampler(num_steps=3, guidance_scale=scale), group=2)
    for number, which in enumerate(("reference", "old")):
        policy.weights.keep(which)
        with torch.no_grad():
            for parameter in policy.weights.parameters.values():
                noise = torch.randn(parameter.shape, generator=torch.Generator().manual_seed(number))
                parameter.add_(0.01 * noise)
    if name == "grpo":
        rollout = policy.recompute(rollout, 3)
    whole = gradient(policy, settings, rollout, 100)
    assert set(whole) == set(policy.weights.parameters)
    assert_same_gradient(gradient(policy, settings, rollout, 3), whole)
    again = make(gradient_checkpointing=True, recompute_activations=False)
    with torch.no_grad():
        for mine, own in zip(policy.weights.parameters.values(), again.weights.parameters.values(), strict=True):
            own.copy_(mine)
    for which in ("reference", "old"):
        again.weights.keep(which)
        again.weights.load(which, policy.weights.tensors(which))
    assert_same_gradient(gradient(again, settings, rollout, 2), whole)


@pytest.mark.parametrize(("latent_dtype", "dtype"), [("bfloat16", torch.float32), ("bfloat16", torch.bfloat16)])
def test_decisions_are_replayed_as_they_were_recorded_also_after_rounding(
    latent_dtype: str, dtype: torch.dtype, make: Any
) -> None:
    policy = make(dtype, latent_dtype=latent_dtype, lora=Lora(rank=2))
    rollout = rolled(policy, FlowSDE(num_steps=STEPS, guidance_scale=3.0))
    view = all_calls(rollout)
    with torch.no_grad():
        again, recorded = policy.forward(rollout, view), policy.recorded(rollout, view)
    # half precision rounds sums of other batches in another way
    tolerance = 1e-5 if dtype == torch.float32 else 2e-2
    torch.testing.assert_close(again.log_ratio(recorded), torch.zeros(8, STEPS - 1), atol=tolerance, rtol=0)
    block, decided = rollout.blocks[0], rollout.trace.decided
    assert decided.child.dtype == torch.bfloat16
    assert torch.equal(decided.child[block.edge[:, :-1]], decided.state[block.call[:, 1:]])
    policy.forward(rollout, view).log_prob().sum().backward()
    gradients = [p.grad for p in policy.weights.parameters.values()]
    assert all(g is not None and g.dtype == torch.float32 for g in gradients)


@pytest.mark.parametrize("scale", SCALES)
def test_samples_are_rendered_again_with_a_gradient_to_all_that_is_trained(scale: float, make: Any) -> None:
    policy = make()
    policy.records_trajectories = True
    rollout = rolled(policy, ODE(num_steps=3, guidance_scale=scale), group=2)
    made = policy.forward(rollout, OutputsView(torch.arange(4), 3))
    torch.testing.assert_close(made.outputs.images, rollout.outputs.images, atol=2e-4, rtol=0)
    made.outputs.images.square().mean().backward()
    assert all(p.grad is not None and p.grad.abs().max() > 0 for p in policy.weights.parameters.values())
