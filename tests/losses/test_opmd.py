"""OPMD and REC against their gradients by hand, and what they reduce to."""

import math
from typing import Any

import pytest
import torch
from torch.testing import assert_close

from mmrl.losses.grpo import Grpo
from mmrl.losses.opmd import Opmd
from mmrl.losses.rec import Rec
from mmrl.losses.reinforce import Reinforce
from tests.ratios import ADVANTAGES, LENGTHS, gradient, log_ratios, normal, ragged, value

FAR = 1.5 * normal(8, 4, 3) * (torch.arange(3) < torch.tensor(LENGTHS)[:, None])


def test_the_square_is_that_of_a_whole_answer() -> None:
    """-A S + tau / 2 S^2 of each answer, S the sum of its log-ratios."""
    log_ratio = log_ratios()
    sums = [math.fsum(log_ratio[row, :length].tolist()) for row, length in enumerate(LENGTHS)]
    want = [-float(a) * s + 0.7 / 2 * s * s for a, s in zip(ADVANTAGES, sums, strict=True)]
    assert value(Opmd(tau=0.7), (log_ratio,), ragged()).item() == pytest.approx(sum(want) / 4)
    got = gradient(Opmd(tau=0.7), log_ratio, ragged())
    for row, length in enumerate(LENGTHS):
        slope = (-float(ADVANTAGES[row]) + 0.7 * sums[row]) / 4
        assert got[row, :length].tolist() == pytest.approx([slope] * length)


def test_by_tokens_each_log_ratio_is_squared() -> None:
    log_ratio = log_ratios()
    got = gradient(Opmd(tau=0.7, level="token"), log_ratio, ragged())
    for row, length in enumerate(LENGTHS):
        slopes = [(-float(ADVANTAGES[row]) + 0.7 * float(log_ratio[row, k])) / 4 for k in range(length)]
        assert got[row, :length].tolist() == pytest.approx(slopes)


def test_without_tau_it_is_reinforce() -> None:
    """R-opmd."""
    expected = gradient(Reinforce(normalise="constant"), log_ratios(), ragged())
    assert_close(gradient(Opmd(tau=0.0), log_ratios(), ragged()), expected)


def test_its_minimum_is_the_policy_that_is_best_under_the_kl() -> None:
    """log-ratio = A / tau, for answers of one token, whoever made them."""
    batch = ragged(inside=torch.ones(4, 1, dtype=torch.bool))
    best = (ADVANTAGES / 0.5)[:, None]
    assert_close(gradient(Opmd(tau=0.5), best, batch), torch.zeros(4, 1, dtype=torch.float64))


def _kept(clip: str, ratio: float, a: float) -> bool:
    near = 0.8 <= ratio <= 1.3
    if clip == "one_side":
        return ratio <= 1.3 if a > 0 else ratio >= 0.8
    if clip == "ring":
        return near or (ratio <= 0.5 if a > 0 else ratio >= 2.0)
    return near if clip == "two_side" else True


@pytest.mark.parametrize("clip", ["none", "one_side", "two_side", "ring"])
def test_weight_and_clip_are_switches_of_their_own(clip: Any) -> None:
    for weight in ("none", "ratio", "truncated"):
        loss = Rec(weight=weight, clip=clip, clip_low=0.2, clip_high=0.3, far_low=0.5, far_high=1.0)
        got = gradient(loss, FAR, ragged())
        for row, length in enumerate(LENGTHS):
            a = float(ADVANTAGES[row])
            for k in range(length):
                ratio = math.exp(float(FAR[row, k]))
                w = {"none": 1.0, "ratio": ratio, "truncated": min(max(ratio, 0.5), 2.0)}[weight]
                assert float(got[row, k]) == pytest.approx(-w * a * _kept(clip, ratio, a) / length / 4)
        kept = [
            _kept(clip, math.exp(float(FAR[r, k])), float(ADVANTAGES[r]))
            for r, n in enumerate(LENGTHS)
            for k in range(n)
        ]
        assert clip == "none" or 0 < sum(kept) < len(kept)
        fractions = loss((FAR,), ragged()).metrics["clip_fraction"]
        assert float(fractions[ragged().weight > 0].sum()) == len(kept) - sum(kept)


def test_with_the_ratio_and_one_side_the_gradient_is_that_of_grpo() -> None:
    """R-rec."""
    got = gradient(Rec(weight="ratio", clip="one_side", clip_low=0.2, clip_high=0.3), FAR, ragged())
    assert_close(got, gradient(Grpo(clip_low=0.2, clip_high=0.3), FAR, ragged()))
    plain = gradient(Rec(weight="none", clip="none"), FAR, ragged())
    assert_close(plain, gradient(Reinforce(), FAR, ragged()))


def test_a_ring_inside_of_its_clip_is_refused() -> None:
    with pytest.raises(ValueError, match=r"far_low and far_high must be at least clip_low and clip_high, 0.2 and 0.3"):
        Rec(clip="ring", clip_low=0.2, clip_high=0.3, far_low=0.1)
