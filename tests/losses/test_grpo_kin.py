"""GRPO's variants: the dual clip, and DAPO, Dr. GRPO and BNPO as settings."""

import math

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from mmrl.core.contracts import LossBatch
from mmrl.losses.grpo import Grpo
from tests.ratios import ADVANTAGES, LENGTHS, log_ratios, ragged, value


def _one_token(advantage: float, ratio: float) -> tuple[Tensor, LossBatch]:
    log_ratio = torch.tensor([[math.log(ratio)]], dtype=torch.float64, requires_grad=True)
    return log_ratio, ragged(torch.tensor([advantage], dtype=torch.float64), torch.ones(1, 1, dtype=torch.bool))


@pytest.mark.parametrize("advantage", [1.0, -1.0])
@pytest.mark.parametrize("ratio", [0.5, 1.0, 1.25, 2.9, 3.1, 40.0])
def test_the_dual_clip_is_verls_and_the_two_sided_cap_of_trl(advantage: float, ratio: float) -> None:
    """verl: A < 0 -> min(max(-r A, -clip(r) A), -c A). TRL: r is capped at delta before the minimum is taken."""
    loss, (log_ratio, batch) = Grpo(clip_low=0.2, clip_high=0.3, dual_clip=3.0), _one_token(advantage, ratio)
    terms = loss((log_ratio,), batch).terms
    slope = torch.autograd.grad(terms.sum(), log_ratio)[0].item()
    r, clipped = ratio, min(max(ratio, 0.8), 1.3)
    plain = max(-r * advantage, -clipped * advantage)
    verl = min(plain, -3.0 * advantage) if advantage < 0 else plain
    trl = -min(min(r, 3.0) * advantage, clipped * advantage)
    assert terms.item() == pytest.approx(verl) == pytest.approx(trl)
    is_held = r > 1.3 if advantage > 0 else (r < 0.8 or r > 3.0)
    assert slope == pytest.approx(0.0 if is_held else -advantage * r)


@pytest.mark.parametrize("ratio", [0.5, 1.25, 1e4])
def test_a_dual_clip_of_infinity_is_none(ratio: float) -> None:
    for advantage in (1.0, -1.0, 0.0):
        log_ratio, batch = _one_token(advantage, ratio)
        with_it, without = Grpo(dual_clip=math.inf), Grpo()
        terms = with_it((log_ratio,), batch).terms
        assert_close(terms, without((log_ratio,), batch).terms)
        assert torch.autograd.grad(terms.sum(), log_ratio)[0].isfinite()


def test_dapo_dr_grpo_and_bnpo_are_settings() -> None:
    """Each by its own formula, in a slow loop over ragged answers."""

    def answer_sums(high: float) -> list[float]:
        sums = []
        for row, (a, length) in enumerate(zip(ADVANTAGES.tolist(), LENGTHS, strict=True)):
            ratios = [math.exp(float(log_ratios()[row, t])) for t in range(length)]
            sums.append(-sum(min(r * a, min(max(r, 0.8), high) * a) for r in ratios))
        return sums

    def got(loss: Grpo) -> float:
        return float(value(loss, (log_ratios(),), ragged()))

    grpo = sum(total / length for total, length in zip(answer_sums(1.2), LENGTHS, strict=True)) / 4
    assert got(Grpo(clip_low=0.2, clip_high=0.2)) == pytest.approx(grpo)
    dapo = sum(answer_sums(1.28)) / sum(LENGTHS)
    assert got(Grpo(clip_low=0.2, clip_high=0.28, normalise="decision")) == pytest.approx(dapo)
    dr_grpo = sum(answer_sums(1.2)) / (4 * 16)
    assert got(Grpo(clip_low=0.2, clip_high=0.2, normalise="constant", constant=16.0)) == pytest.approx(dr_grpo)
    bnpo = sum(answer_sums(1.2)) / sum(LENGTHS)
    assert got(Grpo(clip_low=0.2, clip_high=0.2, normalise="decision")) == pytest.approx(bnpo)
