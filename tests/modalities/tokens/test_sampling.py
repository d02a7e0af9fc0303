"""Shaped distributions against transformers' warpers, draws against their distribution, supports against lists."""

import math
from typing import Any

import pytest
import torch
from scipy.stats import chisquare
from torch import Tensor
from transformers.generation.logits_process import (
    MinPLogitsWarper,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from mmrl.core.contracts import DivergedError
from mmrl.modalities.tokens.sampling import SamplingDistribution, Support, sample_tokens, sampling_log_probs
from tests.parameters import in_one_test

BELOW_ONE = math.nextafter(1.0, 0.0)
DISTRIBUTIONS = [
    SamplingDistribution(1.0),
    SamplingDistribution(0.6, top_k=5),
    SamplingDistribution(1.3, top_p=0.7),
    SamplingDistribution(0.9, min_p=0.2),
    SamplingDistribution(0.8, top_p=0.8, top_k=9, min_p=0.1, banned=(0, 7, 29)),
    SamplingDistribution(2.0, top_k=1, banned=(3,)),
    SamplingDistribution(1.0, top_k=1000, banned=(3,)),
]


def some_logits(rows: int = 40, vocabulary: int = 30, seed: int = 0) -> Tensor:
    return 3 * torch.randn(rows, vocabulary, generator=torch.Generator().manual_seed(seed))


def log_of(*probabilities: float) -> Tensor:
    return torch.tensor([probabilities]).log()


def possible(log_probs: Tensor) -> list[list[int]]:
    return [row.nonzero().flatten().tolist() for row in log_probs > -math.inf]


def warped(logits: Tensor, distribution: SamplingDistribution) -> Tensor:
    """By transformers, in float64."""
    scores: Any = logits.double()
    scores[:, list(distribution.banned)] = -math.inf
    nothing: Any = None
    scores = TemperatureLogitsWarper(distribution.temperature)(nothing, scores)
    if distribution.top_k is not None:
        scores = TopKLogitsWarper(distribution.top_k)(nothing, scores)
    if distribution.top_p < 1:
        scores = TopPLogitsWarper(distribution.top_p)(nothing, scores)
    if distribution.min_p > 0:
        scores = MinPLogitsWarper(distribution.min_p)(nothing, scores)
    log_probs: Tensor = scores.log_softmax(-1)
    return log_probs


@in_one_test("distribution", DISTRIBUTIONS)
def test_shaping_is_that_of_transformers(distribution: SamplingDistribution) -> None:
    logits = some_logits()
    log_probs = sampling_log_probs(logits, distribution)
    assert log_probs.dtype == torch.float32
    torch.testing.assert_close(log_probs.double(), warped(logits, distribution), rtol=0, atol=3e-6)
    torch.testing.assert_close(log_probs.double().exp().sum(1), torch.ones(40).double(), rtol=0, atol=1e-6)
    torch.testing.assert_close(logits, some_logits())  # left as it was


@in_one_test("distribution", DISTRIBUTIONS)
def test_a_row_does_not_depend_on_its_neighbours(distribution: SamplingDistribution) -> None:
    logits = some_logits()
    alone = torch.cat([sampling_log_probs(row[None], distribution) for row in logits])
    assert torch.equal(sampling_log_probs(logits, distribution), alone)


def test_of_equally_likely_tokens_the_lower_id_is_kept() -> None:
    level, two_best = torch.zeros(1, 4), torch.tensor([[0.0, 1.0, 0.0, 1.0, 0.0]])
    assert possible(sampling_log_probs(level, SamplingDistribution(1.0, top_k=3))) == [[0, 1, 2]]
    assert possible(sampling_log_probs(level, SamplingDistribution(1.0, top_p=0.5))) == [[0, 1]]
    assert possible(sampling_log_probs(level, SamplingDistribution(1.0, top_p=0.5, top_k=3))) == [[0, 1]]
    assert possible(sampling_log_probs(level, SamplingDistribution(0.0))) == [[0]]
    assert possible(sampling_log_probs(two_best, SamplingDistribution(1.0, top_k=3))) == [[0, 1, 3]]
    assert possible(sampling_log_probs(two_best, SamplingDistribution(1.0, top_k=1))) == [[1]]
    assert possible(sampling_log_probs(two_best, SamplingDistribution(1.0, min_p=1.0))) == [[1, 3]]


@in_one_test(
    ("distribution", "expected"),
    [
        (SamplingDistribution(1.0, top_p=0.39), [0.0, 1.0, 0.0, 0.0]),
        (SamplingDistribution(1.0, top_p=0.69), [0.0, 4 / 7, 3 / 7, 0.0]),
        (SamplingDistribution(1.0, top_p=0.71), [0.0, 4 / 9, 3 / 9, 2 / 9]),
        (
            SamplingDistribution(1.0, top_p=0.56, top_k=2),
            [0.0, 1.0, 0.0, 0.0],
        ),  # of the two that are left, 4/7 are the first's
        (SamplingDistribution(1.0, min_p=0.51), [0.0, 4 / 7, 3 / 7, 0.0]),
        (SamplingDistribution(1.0, banned=(1,)), [1 / 6, 0.0, 3 / 6, 2 / 6]),
        (SamplingDistribution(0.5), [1 / 30, 16 / 30, 9 / 30, 4 / 30]),
        (SamplingDistribution(0.0, banned=(1,)), [0.0, 0.0, 1.0, 0.0]),
    ],
)
def test_shaping_by_hand(distribution: SamplingDistribution, expected: list[float]) -> None:
    shaped = sampling_log_probs(log_of(0.1, 0.4, 0.3, 0.2), distribution)
    torch.testing.assert_close(shaped.exp(), torch.tensor([expected]))


def test_only_what_depends_on_the_weights_is_a_truncation() -> None:
    assert [SamplingDistribution(1.0).is_truncated, SamplingDistribution(0.5, banned=(3,)).is_truncated] == [
        False,
        False,
    ]
    for settings in ({"top_p": 0.9}, {"top_k": 3}, {"min_p": 0.1}, {"temperature": 0.0}):
        assert SamplingDistribution(**({"temperature": 1.0} | settings)).is_truncated


def test_a_small_temperature_does_not_overflow() -> None:
    shaped = sampling_log_probs(torch.tensor([[3e4, 2e4, 3e4]]), SamplingDistribution(1e-36))
    torch.testing.assert_close(shaped.exp(), torch.tensor([[0.5, 0.0, 0.5]]))


def test_a_vocabulary_of_one_token_has_nothing_to_choose() -> None:
    logits = torch.tensor([[2.0], [-5.0]])
    for distribution in (
        SamplingDistribution(1.0),
        SamplingDistribution(0.7, top_p=0.1, top_k=1, min_p=1.0),
        SamplingDistribution(0.0),
    ):
        log_probs = sampling_log_probs(logits, distribution)
        assert log_probs.tolist() == [[0.0], [0.0]]
        assert sample_tokens(log_probs, torch.tensor([0.0, BELOW_ONE], dtype=torch.float64)).tolist() == [0, 0]


@in_one_test(
    ("logits", "banned", "value"),
    [([[1.0, 2.0], [0.0, -math.inf]], (0,), "-inf"), ([[1.0, 2.0]], (0, 1), "-inf")]
    + [([[1.0, value]], (), str(value)) for value in (math.nan, math.inf)],
)
def test_a_row_without_a_token_to_draw_is_refused(logits: Any, banned: tuple[int, ...], value: str) -> None:
    message = rf"in row {len(logits) - 1}: the largest of its 2 logits, without {len(banned)} banned ones, is {value};"
    with pytest.raises(DivergedError, match=message):
        sampling_log_probs(torch.tensor(logits), SamplingDistribution(1.0, banned=banned))


@in_one_test("distribution", DISTRIBUTIONS)
@in_one_test("uniform", [0.0, 1e-300, 0.5, BELOW_ONE])
def test_a_drawn_token_is_in_the_support(distribution: SamplingDistribution, uniform: float) -> None:
    log_probs = sampling_log_probs(some_logits(), distribution)
    tokens = sample_tokens(log_probs, torch.full((40,), uniform, dtype=torch.float64))
    assert (log_probs.gather(1, tokens[:, None]) > -math.inf).all()
    ends = {0.0: 0, BELOW_ONE: -1}
    if uniform in ends:
        assert tokens.tolist() == [row[ends[uniform]] for row in possible(log_probs)]


def test_a_draw_inverts_the_distribution_in_the_order_of_the_ids() -> None:
    log_probs = log_of(0.25, 0.0, 0.5, 0.25).expand(6, 4)
    uniform = torch.tensor([0.0, 0.24, 0.26, 0.74, 0.76, BELOW_ONE], dtype=torch.float64)
    assert sample_tokens(log_probs, uniform).tolist() == [0, 0, 2, 2, 3, 3]


def test_a_draw_takes_the_slow_loops_token() -> None:
    log_probs = sampling_log_probs(some_logits(200), DISTRIBUTIONS[4])
    uniform = torch.rand(200, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    expected = []
    for row, place in zip(log_probs.tolist(), uniform.tolist(), strict=True):
        masses = [math.exp(value) for value in row]
        reached = [sum(masses[: n + 1]) for n in range(30)]
        expected.append(next(n for n, mass in enumerate(reached) if mass > place * reached[-1]))
    assert sample_tokens(log_probs, uniform).tolist() == expected
    alone = [int(sample_tokens(log_probs[[n]], uniform[[n]])) for n in range(200)]
    assert alone == expected


def test_the_last_number_below_one_never_falls_behind_the_last_token() -> None:
    """Totals for which uniform * total rounds to the total, and possible tokens followed by impossible ones."""
    log_probs = some_logits(2000, 7, seed=3)  # not normalised: any total
    log_probs[:, 4:] = -math.inf
    for uniform in (torch.full((2000,), BELOW_ONE, dtype=torch.float64), torch.full((2000,), BELOW_ONE)):
        assert set(sample_tokens(log_probs, uniform).tolist()) == {3}  # in float32 the same number is 1


@pytest.mark.parametrize("distribution", [DISTRIBUTIONS[0], DISTRIBUTIONS[4]])
def test_tokens_are_drawn_as_often_as_they_are_likely(distribution: SamplingDistribution) -> None:
    log_probs = sampling_log_probs(some_logits(1), distribution)
    uniform = torch.rand(20_000, dtype=torch.float64, generator=torch.Generator().manual_seed(5))
    counts = sample_tokens(log_probs.expand(20_000, 30), uniform).bincount(minlength=30).double()
    expected = log_probs[0].double().softmax(0) * 20_000
    often = expected > 5
    share = counts[often].sum() / expected[often].sum()
    assert counts[~often].sum() <= 30
    assert chisquare(counts[often], expected[often] * share).pvalue > 0.01


def test_a_support_lists_what_could_be_drawn() -> None:
    log_probs = sampling_log_probs(some_logits(6), DISTRIBUTIONS[4])
    support = Support.of(log_probs)
    lists = possible(log_probs)
    assert (support.ids.dtype, len(support)) == (torch.int32, 6)
    assert [part.tolist() for part in support.ids.split(support.sizes.tolist())] == lists
    chosen = support.select(torch.tensor([4, 0, 4]))
    assert [part.tolist() for part in chosen.ids.split(chosen.sizes.tolist())] == [lists[4], lists[0], lists[4]]
    joined = Support.join([chosen, support.select(torch.tensor([], dtype=torch.int64)), support])
    order = (4, 0, 4, *range(6))
    assert [part.tolist() for part in joined.ids.split(joined.sizes.tolist())] == [lists[n] for n in order]
