"""CISPO against its gradient by hand."""

import math

import pytest
import torch
from torch.testing import assert_close

from mmrl.losses.cispo import Cispo
from mmrl.losses.grpo import Grpo
from mmrl.losses.reinforce import Reinforce
from tests.ratios import ADVANTAGES, LENGTHS, gradient, log_ratios, ragged


@pytest.mark.parametrize("outside", ["truncated", "masked"])
def test_the_gradient_is_the_bounded_ratio_times_that_of_reinforce(outside: str) -> None:
    log_ratio = log_ratios(1.0)
    loss = Cispo(floor=0.5, cap=1.5, outside=outside)  # type: ignore[arg-type]
    got, cut = gradient(loss, log_ratio, ragged()), 0
    for row, length in enumerate(LENGTHS):
        for t in range(length):
            ratio = math.exp(float(log_ratio[row, t]))
            is_outside = not 0.5 <= ratio <= 1.5
            cut += is_outside
            weight = (0.0 if outside == "masked" else min(max(ratio, 0.5), 1.5)) if is_outside else ratio
            assert got[row, t].item() == pytest.approx(-weight * float(ADVANTAGES[row]) / sum(LENGTHS))
    assert 0 < cut < sum(LENGTHS)
    assert (loss((log_ratio,), ragged()).metrics["clip_fraction"] * ragged().weight).sum() == cut


def test_a_clipped_decision_keeps_its_gradient_where_grpo_takes_it() -> None:
    """A > 0 and a ratio above the range: what the paper is about."""
    log_ratio = torch.full((4, 3), math.log(2), dtype=torch.float64)
    assert (gradient(Grpo(clip_low=0.2, clip_high=0.2), log_ratio, ragged())[0] == 0).all()
    assert (gradient(Cispo(cap=1.2), log_ratio, ragged())[0] < 0).all()


def test_a_cap_of_one_without_ratios_below_is_reinforce() -> None:
    """R-cispo."""
    log_ratio = log_ratios().abs()
    expected = gradient(Reinforce(normalise="decision"), log_ratio, ragged())
    assert_close(gradient(Cispo(cap=1.0), log_ratio, ragged()), expected)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"cap": 0.2}, "cap must be at least 1, got 0.2"),  # what TRL's default would be
        ({"floor": 1.5}, "floor must be at least 0 and at most 1, got 1.5"),
        ({"outside": "dropped"}, "outside must be one of truncated, masked, got 'dropped'"),
    ],
)
def test_settings_out_of_range_are_refused(settings: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Cispo(**settings)  # type: ignore[arg-type]
