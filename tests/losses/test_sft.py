"""Supervised fine-tuning, RAFT and RWR: the weight of each sample, and the cases in which the latter are the first."""

import math
from typing import Any

import pytest
import torch
from torch.testing import assert_close

from mmrl.core.contracts import OutputsByWeights
from mmrl.core.forward_outputs import TokenDecisions
from mmrl.core.keys import GroupKey
from mmrl.core.views import DecisionView, DenoisingView
from mmrl.losses.raft import Raft
from mmrl.losses.rwr import Rwr
from mmrl.losses.sft import Sft
from tests.losses.denoisings import GROUP, TARGET, VELOCITY, batch, gradient, matching, rollout, total
from tests.parameters import in_one_test
from tests.toys import toy_rollout

SCORES = torch.tensor([0.3, 1.2, -0.4, 0.9], dtype=torch.float64)
OF = batch(torch.zeros(4), SCORES)


def test_the_loss_is_the_flow_matching_loss_whatever_the_scores() -> None:
    assert_close(total(Sft(draws=2), VELOCITY, OF), matching(VELOCITY).mean())
    assert_close(gradient(Sft(draws=2), VELOCITY, OF), 2 * (VELOCITY - TARGET) / 6 / 8)


def test_of_decisions_the_loss_is_the_cross_entropy_of_the_tokens() -> None:
    logits = torch.randn(4, 2, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    tokens = torch.tensor([[0, 3], [1, 1], [4, 2], [2, 0]])
    log_prob = logits.log_softmax(-1).gather(2, tokens[:, :, None])[:, :, 0]
    loss, weight = Sft(of="decisions"), torch.tensor([[1.0, 1.0], [1.0, 0.0], [1.0, 1.0], [1.0, 1.0]])
    of = batch(torch.zeros(4), SCORES, weight)
    coefficients, denominator = loss.coefficients(of)
    terms = loss(loss.measure(OutputsByWeights(TokenDecisions(log_prob))), of).terms
    kept = weight.bool()
    expected = torch.nn.functional.cross_entropy(logits[kept], tokens[kept])
    assert_close((coefficients * terms).sum() / denominator, expected)


def test_it_evaluates_noised_copies_or_network_calls() -> None:
    assert Sft().kind == "denoising" and Sft(of="decisions").kind == "decisions"
    (view,) = Sft(draws=3).views(rollout([4], [2]), torch.arange(2), GroupKey(0, 0, 0))
    assert isinstance(view, DenoisingView) and view.num_calls == 6
    _, answers = toy_rollout()
    (view,) = Sft(of="decisions").views(answers, torch.tensor([0, 5]), GroupKey(0, 0, 0))
    assert isinstance(view, DecisionView) and view.calls.tolist() == [0, 5]


def test_raft_with_the_whole_group_and_rwr_without_a_beta_are_sft() -> None:
    plain = gradient(Sft(draws=2), VELOCITY, OF)
    variants = [Raft(draws=2, top_share=1.0), Rwr(draws=2, beta=math.inf), Rwr(draws=2, beta=math.inf, among="all")]
    for loss in variants:
        assert_close(gradient(loss, VELOCITY, OF), plain)
        assert_close(total(loss, VELOCITY, OF), total(Sft(draws=2), VELOCITY, OF))


def test_raft_is_sft_on_the_best_of_each_group() -> None:
    best = torch.tensor([[0.0, 0.0], [1.0, 1.0], [0.0, 0.0], [1.0, 1.0]])
    expected = total(Sft(draws=2), VELOCITY, batch(torch.zeros(4), SCORES, best))
    assert_close(total(Raft(draws=2), VELOCITY, OF), expected)
    assert_close(expected, matching(VELOCITY)[torch.tensor([1, 3])].mean())


@in_one_test(("share", "count"), [(0.125, 1), (0.49, 1), (0.5, 2), (0.75, 3), (0.99, 3), (1.0, 4)])
def test_the_share_of_a_group_is_rounded_down_to_at_least_one(share: float, count: int) -> None:
    of = type(OF)(OF.advantages, OF.weight, torch.zeros_like(GROUP), OF.scores)
    coefficients, _ = Raft(draws=2, top_share=share).coefficients(of)
    order = [1, 3, 0, 2]
    assert coefficients[:, 0].nonzero().squeeze(1).tolist() == sorted(order[:count])


def test_of_equal_scores_raft_takes_the_first_and_below_the_least_none() -> None:
    coefficients, _ = Raft(draws=2).coefficients(batch(torch.zeros(4), torch.tensor([0.5, 0.5, 0.1, 0.2])))
    assert coefficients[:, 0].tolist() == [1, 0, 0, 1]
    coefficients, denominator = Raft(draws=2, least=0.4).coefficients(
        batch(torch.zeros(4), torch.tensor([0.5, 0.5, 0.1, 0.2]))
    )
    assert coefficients[:, 0].tolist() == [1, 0, 0, 0] and denominator == 2


def test_a_sample_that_takes_no_part_is_not_the_best_of_its_group() -> None:
    weight = torch.tensor([[1.0, 1.0], [0.0, 0.0], [1.0, 1.0], [1.0, 1.0]])
    coefficients, _ = Raft(draws=2).coefficients(batch(torch.zeros(4), SCORES, weight))
    assert coefficients[:, 0].tolist() == [1, 0, 0, 1]


def test_rwr_weighs_by_the_exponential_of_the_score() -> None:
    loss = Rwr(draws=2, beta=0.5, among="all", weight_max=5.0)
    worth = [min(math.exp(float(score) / 0.5), 5.0) for score in SCORES]
    expected = sum(w * float(error) for w, error in zip(worth, matching(VELOCITY).mean(1), strict=True)) / 4
    assert total(loss, VELOCITY, OF).item() == pytest.approx(expected)
    assert 5.0 in worth


def test_rwr_within_groups_is_a_softmax_that_an_offset_does_not_change() -> None:
    loss = Rwr(draws=2, beta=0.5, weight_max=1e9)
    worth = torch.cat([2 * (SCORES[:2] / 0.5).softmax(0), 2 * (SCORES[2:] / 0.5).softmax(0)])
    assert_close(loss.coefficients(OF)[0], worth[:, None].expand(4, 2))
    moved = batch(torch.zeros(4), SCORES + torch.tensor([1e3, 1e3, -50.0, -50.0]))
    assert_close(loss.coefficients(moved)[0], worth[:, None].expand(4, 2))
    weight = torch.tensor([[1.0, 1.0], [0.0, 0.0], [1.0, 1.0], [1.0, 1.0]])
    alone = loss.coefficients(batch(torch.zeros(4), SCORES, weight))[0]
    assert alone[0].tolist() == [1.0, 1.0] and alone[1].tolist() == [0.0, 0.0]


@in_one_test(
    ("cls", "settings", "message"),
    [
        (Sft, {"of": "outputs"}, "of must be one of denoising, decisions"),
        (Sft, {"normalise": "constant"}, "normalise must be one of"),
        (Sft, {"of": "decisions", "reference_weight": 0.1}, "which `of: decisions` does not have"),
        (Raft, {"top_share": 0.0}, "top_share must be above 0"),
        (Rwr, {"beta": 0.0}, "beta must be above 0"),
        (Rwr, {"among": "batch"}, "among must be one of all, group"),
    ],
)
def test_settings_out_of_range_are_refused(cls: Any, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        cls(**settings)
