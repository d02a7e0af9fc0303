"""Rollouts of denoising steps whose latents are in the CPU's memory, on a device that is elsewhere."""

from dataclasses import dataclass

import torch

from mmrl.core.data import Rollout
from mmrl.core.views import DecisionView, DenoisingView
from mmrl.modalities.flow.decisions import Conditioning
from mmrl.plans.flow import Plan, Step, Transition
from tests.linear_flow import LinearFlow, random_flow
from tests.linear_flow import sample_rollout as rollout_of
from tests.pretend_accelerator import DEVICE, Remote, pretended

LEVELS = (1.0, 0.75, 0.5, 0.25)
PLAN = Plan(3, tuple(Step(level, level - 0.25, Transition(0.9, -0.25, 0.3)) for level in LEVELS))


@dataclass(kw_only=True)
class RemoteFlow(LinearFlow):
    """The same flow on the pretend accelerator."""

    @property
    def device(self) -> torch.device:
        return DEVICE

    def encode_prompts(self, texts: list[str]) -> Conditioning:
        return Conditioning(tuple(tensor.to(DEVICE) for tensor in super().encode_prompts(texts).tensors))


def seen(policy: LinearFlow, rollout: Rollout) -> list[torch.Tensor]:
    """What a policy says of a rollout: log-ratios after a change of the weights, recorded and recomputed, and
    denoising."""
    view = DecisionView(torch.tensor([0, 3, 5, 6]))
    count = rollout.num_samples
    noisy = DenoisingView(
        torch.arange(count), torch.zeros(count, dtype=torch.int64), torch.full((count,), 0.5), tuple(range(count)), 1
    )
    old = policy.recorded(rollout, view)
    trained = policy.forward(rollout, view)
    again = policy.recorded(policy.recompute(rollout, 2), view)
    denoised = policy.forward(rollout, noisy)
    return [
        trained.log_ratio(old),  # type: ignore[union-attr, arg-type]
        trained.log_ratio(again),  # type: ignore[union-attr, arg-type]
        denoised.prediction,  # type: ignore[union-attr]
        denoised.target,  # type: ignore[union-attr]
    ]


def test_a_rollout_on_the_host_says_what_it_says_on_the_device() -> None:
    here = random_flow()
    here.records_trajectories = False
    rollout = rollout_of(here, PLAN)
    with torch.no_grad():
        here.network.shift.add_(0.1)
    expected = [tensor.detach() for tensor in seen(here, rollout)]
    assert expected[0].abs().max() > 1e-3 and expected[1].abs().max() < 1e-6

    with pretended() as notes:
        there = RemoteFlow()
        there.network.load_state_dict({name: value.clone() for name, value in here.network.state_dict().items()})
        with torch.no_grad():
            there.network.shift.sub_(0.1)
        there.network.to(DEVICE)
        moved = rollout_of(there, PLAN).on_host()
        for held in (moved.outputs.images, moved.trace.clean, moved.trace.decided.mean, moved.trace.decided.child):
            assert held is not None and not isinstance(held, Remote)
        with torch.no_grad():
            there.network.shift.add_(0.1)
        found = seen(there, moved)
        assert all(isinstance(tensor, Remote) for tensor in found) and not notes.mixes
        whole = Rollout.join([moved, moved])
        assert not isinstance(whole.trace.decided.state, Remote)
        got = [tensor.detach().cpu() for tensor in found]
    for ours, wanted in zip(got, expected, strict=True):
        torch.testing.assert_close(ours, wanted)


def test_a_single_rollout_is_joined_without_a_copy_and_a_trajectory_stays_where_it_is() -> None:
    rollout = rollout_of(random_flow(), PLAN)
    assert Rollout.join([rollout]) is rollout
    assert rollout.trace.trajectory is not None and rollout.on_host().trace is rollout.trace
