"""Shared maths against slow loops and torch.distributions."""

import math

import pytest
import torch
from torch import Tensor
from torch.distributions import Independent, Normal, kl_divergence
from torch.testing import assert_close

from mmrl.core.numerics import (
    Normalisation,
    Reduction,
    gaussian_kl,
    gaussian_log_prob,
    gaussian_log_ratio,
    group_index,
    group_max,
    group_mean,
    group_numbers,
    group_std,
    group_sum,
    kl_estimate,
    masked_mean,
    normalised_weights,
    reduce_elements,
)
from tests.parameters import in_one_test


def _normal(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_masked_mean_weighs_and_ignores_what_has_no_weight() -> None:
    values = torch.tensor([[1.0, math.nan], [4.0, 7.0]])
    weight = torch.tensor([[1.0, 0.0], [0.5, 0.5]])
    assert_close(masked_mean(values, weight), torch.tensor((1 + 2 + 3.5) / 2))


def test_masked_mean_of_nothing_is_zero() -> None:
    assert masked_mean(torch.tensor([math.nan]), torch.zeros(1)) == 0


@pytest.mark.parametrize(("reduction", "expected"), [("sum", 10.0), ("mean", 2.5), ("rms", 5.0)])
def test_reductions_of_four_elements_by_hand(reduction: Reduction, expected: float) -> None:
    assert reduce_elements(torch.tensor([[[1.0, 2.0], [3.0, 4.0]]]), reduction).tolist() == [expected]


def test_gaussian_log_prob_is_that_of_torch_normal() -> None:
    sample, mean, std = _normal(0, 3, 4), _normal(1, 3, 4), _normal(2, 3, 4).abs() + 0.1
    assert_close(gaussian_log_prob(sample, mean, std), Normal(mean, std).log_prob(sample))


def test_gaussian_log_ratio_is_a_difference_of_torch_normals() -> None:
    sample, mean, old, std = _normal(0, 3, 4), _normal(1, 3, 4), _normal(2, 3, 4), _normal(3, 3, 4).abs() + 0.1
    expected = Normal(mean, std).log_prob(sample) - Normal(old, std).log_prob(sample)
    assert_close(gaussian_log_ratio(sample, mean, old, std), expected)


def test_gaussian_log_ratio_keeps_its_digits_in_float32() -> None:
    """The two log-densities are near 1e5 and differ by about 1: subtracting them would leave two digits."""
    mean, std = _normal(0, 64), torch.full((64,), 1e-2, dtype=torch.float64)
    old, sample = mean + 1e-5 * _normal(1, 64), mean + 5 * _normal(2, 64)
    mean, old, sample, std = (x.float().double() for x in (mean, old, sample, std))
    expected = Normal(mean, std).log_prob(sample) - Normal(old, std).log_prob(sample)
    got = gaussian_log_ratio(sample.float(), mean.float(), old.float(), std.float())
    assert_close(got.double(), expected, rtol=1e-5, atol=1e-5)


def test_gaussian_kl_is_that_of_torch() -> None:
    mean, other, std = _normal(0, 3, 4), _normal(1, 3, 4), _normal(2, 3, 4).abs() + 0.1
    assert_close(gaussian_kl(mean, other, std), kl_divergence(Normal(mean, std), Normal(other, std)))


def test_kl_estimators_of_e_by_hand() -> None:
    log_ratio = torch.tensor([1.0], dtype=torch.float64)
    assert kl_estimate(log_ratio, "k1").item() == 1
    assert kl_estimate(log_ratio, "k2").item() == 0.5
    assert kl_estimate(log_ratio, "k3").item() == pytest.approx(1 / math.e)


def test_k3_neither_overflows_nor_loses_its_direction() -> None:
    """exp(95) is no float32; what is cut off instead would pull the weights further away."""
    log_ratio = torch.tensor([-95.0, -20.5, -19.5, 3.0], requires_grad=True)
    values = kl_estimate(log_ratio, "k3")
    (slopes,) = torch.autograd.grad(values.sum(), log_ratio)
    edge = math.exp(20)
    expected = [edge * 76 - 96, edge * 1.5 - 21.5, math.exp(19.5) - 20.5, math.exp(-3) + 2]  # tangent, tangent, k3, k3
    assert values.tolist() == pytest.approx(expected, rel=1e-6)
    assert slopes.tolist() == pytest.approx([1 - edge, 1 - edge, 1 - math.exp(19.5), 1 - math.exp(-3)], rel=1e-6)


def test_k1_and_k3_are_unbiased_and_k3_is_never_negative() -> None:
    p = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
    q = torch.tensor([0.2, 0.2, 0.6], dtype=torch.float64)
    kl = sum(a * math.log(a / b) for a, b in zip(p.tolist(), q.tolist(), strict=True))
    for estimator in ("k1", "k3"):
        assert (p * kl_estimate(p.log() - q.log(), estimator)).sum().item() == pytest.approx(kl)
    assert (kl_estimate(p.log() - q.log(), "k3") > 0).all()


def test_group_index_renumbers_in_ascending_order() -> None:
    index, count = group_index(torch.tensor([70, 5, 70, 9]))
    assert (index.tolist(), count) == ([2, 0, 2, 1], 3)


def test_group_numbers_are_those_of_unique_whatever_the_ids() -> None:
    for ids in ([], [3], [0, 0], [1 << 60, -4, 1 << 60, (1 << 60) + 1, 0, -4]):
        group = torch.tensor(ids, dtype=torch.int64)
        assert torch.equal(group_numbers(group), group.unique(return_inverse=True)[1])
        assert group_index(group)[1] == len(set(ids))


def test_group_sum_mean_and_std_by_hand() -> None:
    values = torch.tensor([1.0, 10.0, 3.0, math.nan, 8.0, 20.0])
    group = torch.tensor([7, 2, 7, 2, 7, 2])
    valid = torch.tensor([True, True, True, False, True, True])
    assert group_sum(torch.ones(6), group).tolist() == [3, 3, 3, 3, 3, 3]
    assert_close(group_mean(values, group, valid), torch.tensor([4.0, 15, 4, 15, 4, 15]))
    std_7, std_2 = math.sqrt((9 + 1 + 16) / 3), 5.0
    assert_close(group_std(values, group, valid), torch.tensor([std_7, std_2, std_7, std_2, std_7, std_2]))
    std_7, std_2 = math.sqrt(26 / 2), math.sqrt(50)
    unbiased = group_std(values, group, valid, unbiased=True)
    assert_close(unbiased, torch.tensor([std_7, std_2, std_7, std_2, std_7, std_2]))


def test_group_max_by_hand() -> None:
    group = torch.tensor([5, 2, 5, 2, 9])
    assert group_max(torch.tensor([1.0, -3.0, 4.0, -7.0, 0.0]), group).tolist() == [4, -3, 4, -3, 0]


def test_group_statistics_of_one_and_of_no_valid_member_are_zero() -> None:
    values, group = torch.tensor([3.0, math.nan]), torch.tensor([0, 1])
    valid = torch.tensor([True, False])
    assert group_mean(values, group, valid).tolist() == [3, 0]
    assert group_std(values, group, valid).tolist() == [0, 0]
    assert group_std(values, group, valid, unbiased=True).tolist() == [0, 0]


def test_equal_float32_values_have_spread_exactly_zero() -> None:
    """Summed in float32, half of such groups come out with a mean that is one bit off."""
    value = torch.rand(200, generator=torch.Generator().manual_seed(0))
    for size in (3, 7, 24):
        group = torch.arange(200).repeat_interleave(size)
        spread = group_std(value.repeat_interleave(size), group, torch.ones(200 * size, dtype=torch.bool))
        assert (spread == 0).all()


WEIGHT = torch.tensor([[1.0, 0.5, 0.0], [1.0, 0.0, 0.0], [0.0, 0.0, 0.0], [1.0, 0.5, 1.0], [0.0, 0.0, 0.0]])
GROUP = torch.tensor([3, 8, 3, 3, 5])  # groups of 2 samples with decisions, 1, and none
TERMS = torch.tensor([[1.0, 2.0, 9.0], [3.0, 9.0, 9.0], [9.0, 9.0, 9.0], [4.0, 5.0, 6.0], [9.0, 9.0, 9.0]])


def _slow_loss(by: Normalisation, constant: float) -> float:
    samples = [row for row in range(len(WEIGHT)) if WEIGHT[row].sum() > 0]
    total: dict[int, float] = {
        row: sum(w * t for w, t in zip(WEIGHT[row].tolist(), TERMS[row].tolist(), strict=True)) for row in samples
    }
    count = {row: float(WEIGHT[row].sum()) for row in samples}
    if by == "decision":
        return sum(total.values()) / sum(count.values())
    if by == "sample":
        return sum(total[row] / count[row] for row in samples) / len(samples)
    if by == "constant":
        return sum(total[row] for row in samples) / constant / len(samples)
    means = []
    for group in {int(GROUP[row]) for row in samples}:
        members = [row for row in samples if GROUP[row] == group]
        means.append(sum(total[row] for row in members) / sum(count[row] for row in members))
    return sum(means) / len(means)


@in_one_test("by", ["decision", "sample", "group", "constant"])
def test_normalisations_equal_a_slow_loop(by: Normalisation) -> None:
    coefficients, denominator = normalised_weights(WEIGHT, GROUP, by, constant=4.0)
    assert (coefficients * TERMS).sum().item() / denominator.item() == pytest.approx(_slow_loss(by, 4.0))


def test_answers_of_one_length_weigh_the_same_by_every_normalisation() -> None:
    """With the constant at that length, and groups of one size."""
    weight, group = torch.ones(4, 5), torch.tensor([0, 0, 1, 1])
    for by in ("decision", "sample", "group", "constant"):
        coefficients, denominator = normalised_weights(weight, group, by, constant=5.0)
        torch.testing.assert_close(coefficients / denominator, torch.full((4, 5), 1 / 20))


@in_one_test("by", ["decision", "sample", "group", "constant"])
def test_copying_every_sample_of_a_group_leaves_each_ones_share_halved(by: Normalisation) -> None:
    once, total = normalised_weights(WEIGHT, GROUP, by, constant=4.0)
    twice, total_of_two = normalised_weights(torch.cat([WEIGHT, WEIGHT]), torch.cat([GROUP, GROUP]), by, constant=4.0)
    torch.testing.assert_close(twice / total_of_two, torch.cat([once, once]) / total / 2)


@in_one_test("by", ["decision", "sample", "group", "constant"])
def test_nothing_to_train_has_denominator_zero_and_no_nan(by: Normalisation) -> None:
    coefficients, denominator = normalised_weights(torch.zeros(2, 3), torch.tensor([0, 1]), by)
    assert denominator == 0
    assert (coefficients == 0).all()


def _mean_ratio(reduction: Reduction) -> float:
    """Over 200,000 draws of d = 16 elements from the old policy, at D = |mean - old|^2 / std^2 = 1."""
    std = torch.tensor(0.5, dtype=torch.float64)
    shift = std * torch.arange(1, 17) / torch.arange(1, 17).double().norm()
    log_ratio = gaussian_log_ratio(std * _normal(0, 200_000, 16), shift, torch.zeros(16), std)
    return reduce_elements(log_ratio, reduction).exp().mean().item()


@pytest.mark.slow
def test_the_mean_ratio_is_one_for_the_sum_and_below_one_for_the_mean_over_elements() -> None:
    """E rho = exp(-(D / 2d)(1 - 1/d)) with the mean over d elements (GRPO-Guard's bias), 1 with the sum."""
    assert _mean_ratio("mean") == pytest.approx(math.exp(-(1 / 32) * (1 - 1 / 16)), abs=1e-3)
    assert _mean_ratio("sum") == pytest.approx(1.0, abs=0.02)


def test_sum_of_elementwise_log_probs_is_the_joint_density() -> None:
    sample, mean, std = _normal(0, 3, 2, 4), _normal(1, 3, 2, 4), torch.tensor(0.3, dtype=torch.float64)
    joint = Independent(Normal(mean, std), 2).log_prob(sample)
    assert_close(reduce_elements(gaussian_log_prob(sample, mean, std), "sum"), joint)
