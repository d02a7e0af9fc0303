"""Clip-Cov and KL-Cov: which tokens are selected, by a slow loop, and what becomes of their terms."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from mmrl.losses.base.covariance import covariance
from mmrl.losses.clip_cov import ClipCov
from mmrl.losses.grpo import Grpo
from mmrl.losses.kl_cov import KlCov
from tests.ratios import ADVANTAGES, INSIDE, LENGTHS, gradient, log_ratios, normal, ragged

LOG_PROB = -2 * normal(4, 40).abs()
ADVANTAGE = normal(5, 40)
ONES = torch.ones(40, dtype=torch.float64)
SELECTED = INSIDE & (torch.arange(12).view(4, 3) % 2 == 0)


def _covariances() -> list[float]:
    """Returns (log_prob - mean)(A - mean) of each token, in a slow loop."""
    log_prob, advantage = LOG_PROB.tolist(), ADVANTAGE.tolist()
    means = [math.fsum(values) / len(values) for values in (log_prob, advantage)]
    return [(p - means[0]) * (a - means[1]) for p, a in zip(log_prob, advantage, strict=True)]


def _select(loss: Any, seed: int = 0) -> list[int]:
    chosen: Tensor = loss.select(LOG_PROB, ADVANTAGE, ONES, torch.Generator().manual_seed(seed))
    return [int(number) for number in chosen.nonzero()]


def test_kl_cov_penalises_the_tokens_of_largest_covariance() -> None:
    sizes = _covariances()
    order = sorted(range(40), key=lambda n: -sizes[n])
    assert _select(KlCov(share=0.1)) == sorted(order[:4])
    assert _select(KlCov(share=0.124)) == sorted(order[:4])  # 4.96 tokens
    assert _select(KlCov(share=1e-4)) == order[:1]
    assert _select(KlCov(share=0.0)) == []


def test_clip_cov_drops_some_of_the_tokens_between_its_bounds() -> None:
    sizes = _covariances()
    between = {n for n, size in enumerate(sizes) if 0.2 < size < 1.0}
    assert 6 < len(between) < 30
    every = {tuple(_select(ClipCov(share=0.1, cov_low=0.2, cov_high=1.0), seed)) for seed in range(8)}
    assert all(len(chosen) == 4 and set(chosen) <= between for chosen in every) and len(every) > 4
    assert set(_select(ClipCov(share=1.0, cov_low=0.2, cov_high=1.0))) == between
    assert len(_select(ClipCov(share=1e-4, cov_low=0.2, cov_high=1.0))) == 1
    assert _select(ClipCov(share=0.0, cov_low=0.2, cov_high=1.0)) == _select(ClipCov(cov_low=90, cov_high=99)) == []


def test_means_are_weighed_as_the_tokens_are() -> None:
    """A token of weight 3 counts as three tokens of weight 1."""
    times = torch.where(torch.arange(40) == 7, 3, 1)
    repeated = [values.repeat_interleave(times) for values in (LOG_PROB, ADVANTAGE, ONES)]
    want = covariance(*repeated)
    assert_close(covariance(LOG_PROB, ADVANTAGE, times.double()).repeat_interleave(times), want)


def test_a_dropped_token_has_no_gradient_and_the_others_that_of_grpo() -> None:
    batch = replace(ragged(), selected=SELECTED)
    got = gradient(ClipCov(clip_low=0.2, clip_high=0.3), log_ratios(), batch)
    want = gradient(Grpo(clip_low=0.2, clip_high=0.3), log_ratios(), ragged())
    assert_close(got, want.masked_fill(SELECTED, 0.0))
    assert (want[SELECTED] != 0).sum() >= 3
    metrics = ClipCov()((log_ratios(),), batch).metrics
    assert_close(metrics["selected_fraction"], SELECTED.double())


def test_without_a_selected_token_both_are_their_parent() -> None:
    """R-clip-cov."""
    batch = replace(ragged(), selected=torch.zeros_like(SELECTED))
    for loss in (ClipCov(), KlCov()):
        want = gradient(Grpo(clip_low=1.0, clip_high=1e9), log_ratios(), ragged())  # no clip
        assert_close(gradient(loss, log_ratios(), batch), want)


def test_a_penalised_token_is_drawn_back_to_its_old_likelihood() -> None:
    batch = replace(ragged(), selected=SELECTED)
    log_ratio = log_ratios()
    got = gradient(KlCov(cov_coef=0.7), log_ratio, batch)
    for row, length in enumerate(LENGTHS):
        for k in range(length):
            size = float(log_ratio[row, k])
            slope = -float(ADVANTAGES[row]) * math.exp(size) + 0.7 * bool(SELECTED[row, k]) * math.copysign(1, size)
            assert float(got[row, k]) == pytest.approx(slope / length / 4)


def test_settings_and_batches_that_cannot_work_are_refused() -> None:
    with pytest.raises(ValueError, match="cov_low must be below cov_high, got 2"):
        ClipCov(cov_low=2.0, cov_high=2.0)
    with pytest.raises(ValueError, match="needs the selected decisions"):
        KlCov()((log_ratios(),), ragged())
