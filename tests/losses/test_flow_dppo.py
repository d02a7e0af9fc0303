"""Flow-DPPO: the truth table of its mask, and the loss without a mask."""

import math

import pytest
import torch
from torch.distributions import Normal, kl_divergence
from torch.testing import assert_close

from mmrl.core.contracts import OutputsByWeights
from mmrl.core.forward_outputs import GaussianDecisions
from mmrl.losses.flow_dppo import FlowDppo
from mmrl.losses.grpo import Grpo
from tests.parameters import in_one_test
from tests.ratios import INSIDE, gradient, log_ratios, normal, ragged


@in_one_test(
    ("advantage", "ratio", "kl", "is_masked"),
    [
        (1, 1.3, 2e-5, True),  # far away and moving on
        (-1, 0.8, 2e-5, True),
        (1, 0.8, 2e-5, False),  # far away and coming back
        (-1, 1.3, 2e-5, False),
        (1, 1.3, 9e-6, False),  # near, whatever the ratio
        (-1, 0.8, 9e-6, False),
        (1, 1.3, 1e-5, True),  # the threshold itself is too far
        (1, 1.0, 2e-5, False),  # a ratio of 1 moves nowhere
        (0, 1.3, 2e-5, False),
    ],
)
def test_mask_truth_table(advantage: float, ratio: float, kl: float, is_masked: bool) -> None:
    inside = torch.ones(1, 1, dtype=torch.bool)
    batch = ragged(torch.tensor([advantage], dtype=torch.float64), inside)
    log_ratio = torch.full((1, 1), math.log(ratio), dtype=torch.float64)
    distance = torch.full((1, 1), kl, dtype=torch.float64)
    got = gradient(FlowDppo(), log_ratio, batch, distance).item()
    assert got == pytest.approx(0.0 if is_masked else -advantage * ratio)
    assert FlowDppo()((log_ratio, distance), batch).metrics["mask_fraction"].item() == is_masked


def test_without_a_threshold_it_is_grpo_without_a_clip() -> None:
    """R-flow_dppo."""
    far = torch.full(INSIDE.shape, 1e6, dtype=torch.float64)
    plain = Grpo(clip_low=1.0, clip_high=math.inf)
    expected = gradient(plain, log_ratios(), ragged())
    assert_close(gradient(FlowDppo(threshold=math.inf), log_ratios(), ragged(), far), expected)
    assert_close(gradient(FlowDppo(), log_ratios(), ragged(), 0 * far), expected)


def test_the_distance_is_the_exact_kl_from_the_old_step_without_a_gradient() -> None:
    mean, old, std = normal(0, 2, 3).requires_grad_(), normal(1, 2, 3), torch.tensor([0.5, 2.0], dtype=torch.float64)
    number, sample = torch.arange(2), normal(2, 2, 3).float()
    new, before = (GaussianDecisions(m, std, sample, number, number[:, None], "mean") for m in (mean, old))
    log_ratio, kl = FlowDppo().measure(OutputsByWeights(new, before))
    expected = [kl_divergence(Normal(mean[n], std[n]), Normal(old[n], std[n])).mean() for n in range(2)]
    assert_close(kl, torch.stack(expected).detach()[:, None])
    assert log_ratio.requires_grad and not kl.requires_grad


def test_settings_and_what_it_reads() -> None:
    assert FlowDppo().threshold == 1e-5
    assert FlowDppo().declaration.requires == {"exact_kl"} and FlowDppo().needs == {"old"}
    with pytest.raises(ValueError, match="threshold must be above 0, got 0"):
        FlowDppo(threshold=0.0)
