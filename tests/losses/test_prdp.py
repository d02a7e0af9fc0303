"""PRDP against a slow loop, and against REBEL where nothing is clipped."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from mmrl.core.contracts import OutputsByWeights
from mmrl.core.forward_outputs import GaussianDecisions, TokenDecisions
from mmrl.losses.base.paths import Path
from mmrl.losses.prdp import Prdp
from mmrl.losses.rebel import Rebel
from tests.losses.path_batches import batch_of, normal, step_gradient, step_loss

SCORES = [1.0, 0.2, 0.2, -0.5]
STEP, START = 0.3 * normal(0, 4, 3), normal(1, 4, 3)  # trained against old, old against reference
BATCH = batch_of(SCORES, num_decisions=3)


def slow(loss: Prdp, step: Tensor, start: Tensor) -> float:
    """Algorithm 1 and eqs. 17 to 21, as a mean over pairs; with `path: mean` as in the listing of appendix G."""
    count = step.shape[1] if loss.path == "mean" else 1
    values = []
    for i in range(len(SCORES)):
        for j in range(i + 1, len(SCORES)):
            target = (SCORES[i] - SCORES[j]) / loss.beta
            plain = clipped = 0.0
            for k in range(step.shape[1]):
                for row, sign in ((i, 1), (j, -1)):
                    old, new = float(start[row, k]), float(start[row, k] + step[row, k])
                    plain += sign * new
                    clipped += sign * min(max(new, old - loss.clip), old + loss.clip)
            values.append(max((plain / count - target) ** 2, (clipped / count - target) ** 2))
    return sum(values) / len(values)


@pytest.mark.parametrize("path", ["sum", "mean"])
@pytest.mark.parametrize("clip", [0.01, 0.1, 0.3])
def test_it_is_the_greater_of_both_squares_of_a_slow_loop(clip: float, path: Path) -> None:
    loss = Prdp(beta=0.7, clip=clip, path=path)
    assert step_loss(loss, (STEP, START), BATCH).item() == pytest.approx(slow(loss, STEP, START))


def test_by_default_it_averages_steps_as_the_papers_listing_does() -> None:
    """Appendix G, which the numbers of table 4 are for: means over steps, and over the pairs of different rewards."""
    rewards = torch.tensor([1.0, 0.2, 0.6, -0.5], dtype=torch.float64)
    new, kept = (START + STEP).mean(1), (START + STEP.clamp(-0.1, 0.1)).mean(1)
    target = (rewards[:, None] - rewards) / 0.7
    squares = [(of[:, None] - of - target).square() for of in (new, kept)]
    expected = torch.maximum(*squares)[target > 0].mean()
    got = step_loss(Prdp(beta=0.7, clip=0.1), (STEP, START), batch_of(rewards.tolist(), num_decisions=3))
    assert_close(got, expected)


def test_its_gradient_is_that_of_finite_differences() -> None:
    loss, step = Prdp(beta=0.7, clip=0.1), STEP.clone().requires_grad_()
    got, nudge = step_gradient(loss, (step, START), BATCH), 1e-6
    for row in range(4):
        for k in range(3):
            change = torch.zeros_like(STEP)
            change[row, k] = nudge
            slope = (slow(loss, STEP + change, START) - slow(loss, STEP - change, START)) / (2 * nudge)
            assert got[row, k].item() == pytest.approx(slope, abs=1e-6)


def test_without_a_clip_it_is_rebel_against_the_reference() -> None:
    step = STEP.clone().requires_grad_()
    prdp, rebel = Prdp(beta=0.7, clip=100.0, path="sum"), Rebel(eta=1 / 0.7, anchor="reference")
    got, expected = step_loss(prdp, (step, START), BATCH), step_loss(rebel, (step + START,), BATCH) / 0.7**2
    assert_close(got, expected)
    assert_close(torch.autograd.grad(got, step), torch.autograd.grad(expected, step))


def test_a_step_beyond_the_clip_is_held_only_where_it_went_the_right_way() -> None:
    """The better sample's log-ratio is past the clip: held where it rose, free to come back where it fell."""
    start = torch.zeros(2, 1, dtype=torch.float64)
    batch = batch_of([1.0, 0.0])
    for value, is_held in ((0.5, True), (-0.5, False)):
        step = torch.tensor([[value], [0.0]], dtype=torch.float64, requires_grad=True)
        gradient = step_gradient(Prdp(beta=0.01, clip=0.1), (step, start), batch)
        assert (gradient[0, 0] == 0) == is_held


def test_the_clip_is_seen_in_float32_though_targets_are_a_million_times_larger() -> None:
    """0.002 beyond targets of 3e5: the squares of both agree in float32."""
    step = torch.tensor([[0.002], [0.0]], requires_grad=True)
    batch = batch_of([1.0, 0.0])
    gradient = step_gradient(Prdp(), (step, torch.zeros(2, 1)), batch)
    assert gradient[0, 0] == 0 and gradient[1, 0] > 0


def test_it_measures_both_parts_of_the_log_ratio_to_the_reference() -> None:
    tokens = [TokenDecisions(normal(seed, 2, 3)) for seed in range(3)]
    step, start = Prdp().measure(OutputsByWeights(tokens[0], tokens[1], tokens[2]))
    assert_close(step, tokens[0].values - tokens[1].values)
    assert_close(start, tokens[1].values - tokens[2].values)
    call, entry, std = torch.arange(2), torch.tensor([[0], [1]]), torch.tensor([0.3, 0.6]).double()
    steps = [GaussianDecisions(normal(seed, 2, 5), std, normal(9, 2, 5), call, entry, "mean") for seed in range(3)]
    step, start = Prdp().measure(OutputsByWeights(steps[0], steps[1], steps[2]))
    assert_close(step + start, steps[0].log_ratio(steps[2]), rtol=1e-5, atol=1e-5)
    assert Prdp().needs == {"old", "reference"} and Prdp(anchor="old").needs == {"old"}


@pytest.mark.parametrize("name", ["beta", "clip"])
def test_settings_out_of_range_are_refused(name: str) -> None:
    settings: dict[str, Any] = {name: 0.0}
    with pytest.raises(ValueError, match=f"{name} must be above 0, got 0.0"):
        Prdp(**settings)
