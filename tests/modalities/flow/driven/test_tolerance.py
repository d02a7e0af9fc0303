"""What counts as equal when a pipeline is probed."""

import math

import pytest
import torch

from mmrl.modalities.flow.driven.probing import Tolerance


def test_by_the_largest_value() -> None:
    wanted = torch.tensor([[3.0, 4.0], [0.0, 10.0]])
    got = torch.tensor([[3.0, 4.5], [0.0, 10.0]])
    assert Tolerance(0.06).difference(got, wanted) == pytest.approx(0.05)
    assert Tolerance(0.06).holds(got, wanted) and not Tolerance(0.04).holds(got, wanted)


def test_by_the_norm_of_the_worst_sample() -> None:
    wanted = torch.tensor([[3.0, 4.0], [0.0, 10.0]])  # norms 5 and 10
    got = torch.tensor([[3.0, 4.5], [0.0, 9.5]])
    assert Tolerance(1.0, by_norm=True).difference(got, wanted) == pytest.approx(0.1)


def test_few_values_that_differ_by_much_pass_and_samples_in_another_order_do_not() -> None:
    wanted = torch.randn(4, 64, 64, generator=torch.Generator().manual_seed(0))
    got = wanted.clone()
    got[0, 0, :8] += 0.4  # as of one token that went to another expert
    assert not Tolerance(0.05).holds(got, wanted) and Tolerance(0.05, by_norm=True).holds(got, wanted)
    assert Tolerance(0.05, by_norm=True).difference(wanted.roll(1, 0), wanted) == pytest.approx(math.sqrt(2), rel=0.05)


@pytest.mark.parametrize("by_norm", [False, True])
def test_what_is_not_finite_or_of_another_shape_never_counts_as_equal(by_norm: bool) -> None:
    wanted, tolerance = torch.ones(2, 3), Tolerance(1e9, by_norm)
    assert not tolerance.holds(torch.full((2, 3), math.nan), wanted)
    assert not tolerance.holds(torch.ones(2, 4), wanted)
