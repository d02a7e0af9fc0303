"""Statistics without the worst samples against a slow loop."""

import statistics

import pytest
import torch
from torch.testing import assert_close

from mmrl.advantages.grpo import Grpo
from mmrl.advantages.trimmed import Trimmed
from tests.advantages.scored import NAN, scored
from tests.parameters import in_one_test

REWARD = [0.5, -40.0, 0.9, 0.7, 0.1, 8.0, 9.5, 0.3, 11.0]
GROUP = [5, 5, 5, 5, 5, 2, 2, 5, 2]


def slow(ratio: float, epsilon: float = 1e-8) -> list[float]:
    """Returns the advantages by sorted lists, as in Tencent-Hunyuan/MixGRPO."""
    found = []
    for reward, group in zip(REWARD, GROUP, strict=True):
        mates = sorted(other for other, name in zip(REWARD, GROUP, strict=True) if name == group)
        left = mates[int(len(mates) * ratio) :]
        value = (reward - statistics.fmean(left)) / (statistics.stdev(left) + epsilon)
        found.append(max(-5.0, min(5.0, value)))
    return found


@in_one_test(("ratio", "size"), [(0.0, 2), (0.1, 2), (0.5, 3), (0.75, 5), (0.9, 11)])
def test_two_samples_of_the_smallest_group_are_left(ratio: float, size: int) -> None:
    assert Trimmed(ratio=ratio).declaration.min_group_size == size
    assert Trimmed(ratio=ratio)(scored([float(n) for n in range(size)])).abs().min() > 0
    assert not Trimmed(ratio=ratio)(scored([float(n) for n in range(size - 1)])).any()


@in_one_test("ratio", [0.0, 0.2, 0.34, 0.5])
def test_it_equals_a_slow_loop(ratio: float) -> None:
    got = Trimmed(ratio=ratio)(scored(REWARD, GROUP))
    assert_close(got, torch.tensor(slow(ratio)))


def test_one_failed_sample_does_not_set_the_scale_and_gets_the_clip() -> None:
    plain, trimmed = Grpo()(scored(REWARD[:5])), Trimmed(ratio=0.2)(scored(REWARD[:5]))
    assert trimmed[1] == -5
    kept = [0, 2, 3, 4]
    assert (plain[kept] > 0).all() and (trimmed[kept].sum().abs() < 1e-5) and (trimmed[kept] < 0).any()


def test_a_ratio_of_zero_is_grpo() -> None:
    settings = {"is_unbiased": False, "epsilon": 1e-4}
    scores = scored([*REWARD, NAN, 4.0], [*GROUP, 2, 7])
    assert torch.equal(Trimmed(ratio=0.0, **settings)(scores), Grpo(**settings)(scores))  # type: ignore[arg-type]


def test_invalid_samples_are_not_among_the_worst() -> None:
    rows = torch.tensor([0, 2, 3, 4])
    made = scored([0.5, NAN, 0.9, 0.7, 0.1])
    assert_close(Trimmed(ratio=0.25)(made)[rows], Trimmed(ratio=0.25)(made.select(rows)))


def test_where_those_that_are_left_agree_the_group_gets_zero() -> None:
    assert not Trimmed(ratio=0.34)(scored([0.1, 0.7, 0.7])).any()
    assert not Trimmed(ratio=0.9)(scored([0.1, 0.7, 0.9])).any(), "one that is left has no spread"


def test_rounding_trims_no_sample_less() -> None:
    """0.29 * 100 is 28.999... in floating point."""
    rewards = [float(n) for n in range(100)]
    got = Trimmed(ratio=0.29, is_unbiased=False, std="none", clip=None)(scored(rewards))
    assert_close(got[0], torch.tensor(-statistics.fmean(rewards[29:])))


def test_rewards_may_be_shifted_and_stretched() -> None:
    made = Trimmed(ratio=0.2, epsilon=0.0)
    assert_close(made(scored([4 * reward + 64 for reward in REWARD], GROUP)), made(scored(REWARD, GROUP)))


@pytest.mark.parametrize("ratio", [-0.1, 1.0])
def test_a_ratio_out_of_range_is_refused(ratio: float) -> None:
    with pytest.raises(ValueError, match="ratio must be at least 0 and below 1"):
        Trimmed(ratio=ratio)


@in_one_test("ratio", [0.0, 0.1, 0.29, 0.5, 0.9, 0.99])
def test_the_smallest_group_is_the_first_of_which_two_samples_remain(ratio: float) -> None:
    size = next(n for n in range(2, 1000) if n - int(n * ratio + 1e-9) >= 2)
    assert Trimmed(ratio=ratio).declaration.min_group_size == size


def test_a_ratio_near_one_is_declared_at_once() -> None:
    assert Trimmed(ratio=0.99999999).declaration.min_group_size > 10**7
