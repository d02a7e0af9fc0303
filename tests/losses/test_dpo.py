"""DPO and its variants against the formulas of TRL, by hand."""

import math
from typing import Any

import pytest
import torch
from torch.testing import assert_close

from mmrl.core.contracts import OutputsByWeights
from mmrl.core.forward_outputs import TokenDecisions
from mmrl.losses.dpo import Dpo
from tests.losses.path_batches import batch_of, column, normal, step_gradient, step_loss
from tests.parameters import in_one_test

SCORES, RATIOS = [1.0, 0.25], [0.7, -0.4]  # the first is the better one; log-ratios to the reference
MARGIN, GAP = 1.1, 0.75


def sigmoid(value: float) -> float:
    return 1 / (1 + math.exp(-value))


def values_and_slopes(loss: Dpo, ratios: list[float], scores: list[float]) -> tuple[float, list[float]]:
    measures, batch = (column(ratios),), batch_of(scores)
    return step_loss(loss, measures, batch).item(), step_gradient(loss, measures, batch)[:, 0].tolist()


@in_one_test(
    ("settings", "value", "slope"),
    [
        ({"beta": 0.5}, -math.log(sigmoid(0.55)), -0.5 * (1 - sigmoid(0.55))),
        (
            {"beta": 0.5, "label_smoothing": 0.1},
            -0.9 * math.log(sigmoid(0.55)) - 0.1 * math.log(sigmoid(-0.55)),
            -0.45 * (1 - sigmoid(0.55)) + 0.05 * sigmoid(0.55),
        ),
        (
            {"beta": 0.5, "label_smoothing": 0.1, "form": "robust"},
            (-0.9 * math.log(sigmoid(0.55)) + 0.1 * math.log(sigmoid(-0.55))) / 0.8,
            (-0.45 * (1 - sigmoid(0.55)) - 0.05 * sigmoid(0.55)) / 0.8,
        ),
        ({"beta": 0.5, "form": "ipo"}, (1.1 - 1) ** 2, 2 * 0.1),
        (
            {"beta": 0.5, "offset": "reward_gap", "offset_scale": 2.0},
            -math.log(sigmoid(0.55 - 1.5)),
            -0.5 * (1 - sigmoid(0.55 - 1.5)),
        ),
        (
            {"beta": 0.5, "offset": "log_reward_gap"},
            -math.log(sigmoid(0.55 - math.log(GAP))),
            -0.5 * (1 - sigmoid(0.55 - math.log(GAP))),
        ),
        (  # MM-DPO: beta is 0.5 (1 + 2 (1 - e^(-0.5 * 0.75)))
            {"beta": 0.5, "gap_weight": 2.0, "gap_rate": 0.5},
            -math.log(sigmoid(0.55 * (3 - 2 * math.exp(-0.375)))),
            -0.5 * (3 - 2 * math.exp(-0.375)) * (1 - sigmoid(0.55 * (3 - 2 * math.exp(-0.375)))),
        ),
        (
            {"beta": 0.5, "gap_weight": 1.0, "gap_rate": 2.0, "offset": "reward_gap"},
            -math.log(sigmoid(0.55 * (2 - math.exp(-1.5)) - 0.75)),
            -0.5 * (2 - math.exp(-1.5)) * (1 - sigmoid(0.55 * (2 - math.exp(-1.5)) - 0.75)),
        ),
    ],
)
def test_value_and_gradient_are_those_of_the_formula(settings: dict[str, Any], value: float, slope: float) -> None:
    """In TRL's words: logits = margin; loss types sigmoid, robust and ipo, with label_smoothing."""
    got, slopes = values_and_slopes(Dpo(**settings), RATIOS, SCORES)
    assert got == pytest.approx(value)
    assert slopes == pytest.approx([slope, -slope])


@in_one_test("settings", [{}, {"pairs": "all"}, {"path": "mean"}, {"label_smoothing": 0.2}, {"beta": 3.0}])
def test_it_is_log_2_at_the_reference(settings: dict[str, Any]) -> None:
    got, slopes = values_and_slopes(Dpo(**settings), [0.0, 0.0, 0.0], [0.3, 1.0, 0.7])
    assert got == pytest.approx(math.log(2))
    assert slopes[1] < 0 < slopes[0]


def test_swapping_better_and_worse_flips_the_sign_of_the_argument() -> None:
    loss = Dpo(beta=1.0)
    plain, _ = values_and_slopes(loss, RATIOS, SCORES)
    swapped, _ = values_and_slopes(loss, RATIOS, SCORES[::-1])
    assert plain == pytest.approx(-math.log(sigmoid(MARGIN))) and swapped == pytest.approx(-math.log(sigmoid(-MARGIN)))
    assert swapped - plain == pytest.approx(MARGIN)


@pytest.mark.parametrize(
    "settings", [{"offset": "reward_gap", "offset_scale": 0.0}, {"form": "robust"}, {"gap_weight": 0.0, "gap_rate": 3}]
)
def test_variants_fall_back_to_dpo(settings: dict[str, Any]) -> None:
    """ODPO without an offset, rDPO without noise, MM-DPO whose beta does not grow."""
    assert values_and_slopes(Dpo(**settings), RATIOS, SCORES) == values_and_slopes(Dpo(), RATIOS, SCORES)


def test_cdpo_is_the_mean_over_flipped_labels_and_rdpo_is_right_on_average() -> None:
    """A share e of labels flipped: the mean of rDPO over them is DPO with the true ones."""
    noise = 0.2
    true, flipped = (values_and_slopes(Dpo(beta=0.5), RATIOS, scores)[0] for scores in (SCORES, SCORES[::-1]))
    smoothed, _ = values_and_slopes(Dpo(beta=0.5, label_smoothing=noise), RATIOS, SCORES)
    assert smoothed == pytest.approx((1 - noise) * true + noise * flipped)
    robust = Dpo(beta=0.5, label_smoothing=noise, form="robust")
    seen, seen_flipped = (values_and_slopes(robust, RATIOS, scores)[0] for scores in (SCORES, SCORES[::-1]))
    assert (1 - noise) * seen + noise * seen_flipped == pytest.approx(true)


def test_the_length_normalised_form_divides_by_each_samples_decisions() -> None:
    weight = torch.tensor([[1.0, 1.0, 1.0], [1.0, 0.0, 0.0]])
    ratios = torch.tensor([[0.3, 0.6, 0.0], [-0.2, 5.0, 5.0]], dtype=torch.float64)
    got = step_loss(Dpo(beta=1.0, path="mean"), (ratios,), batch_of(SCORES, weight=weight))
    assert got.item() == pytest.approx(-math.log(sigmoid(0.3 + 0.2)))


def test_the_best_is_put_against_the_worst_and_all_pairs_are_a_mean() -> None:
    ratios, scores = [0.2, 0.5, -0.3], [0.0, 2.0, 1.0]
    assert values_and_slopes(Dpo(beta=1.0), ratios, scores)[0] == pytest.approx(-math.log(sigmoid(0.3)))
    everything = [-math.log(sigmoid(margin)) for margin in (0.5 - 0.2, 0.5 + 0.3, -0.3 - 0.2)]
    assert values_and_slopes(Dpo(beta=1.0, pairs="all"), ratios, scores)[0] == pytest.approx(sum(everything) / 3)


def test_sft_adds_the_mean_log_prob_of_the_better_sample() -> None:
    weight = torch.tensor([[1.0, 1.0, 0.0], [1.0, 0.0, 0.0]])
    log_prob = torch.tensor([[-0.5, -1.5, -9.0], [-3.0, 0.0, 0.0]], dtype=torch.float64, requires_grad=True)
    ratios, batch = torch.zeros(2, 3, dtype=torch.float64), batch_of(SCORES, weight=weight)
    loss = Dpo(sft_coef=0.2)
    got = step_loss(loss, (ratios, log_prob), batch)
    assert got.item() == pytest.approx(math.log(2) + 0.2 * 1.0)
    (slope,) = torch.autograd.grad(got, log_prob)
    assert_close(slope, torch.tensor([[-0.1, -0.1, 0.0], [0.0, 0.0, 0.0]], dtype=torch.float64))


def test_it_measures_the_log_ratio_to_the_reference_and_the_log_prob_where_it_counts() -> None:
    trained, reference = TokenDecisions(normal(0, 2, 3)), TokenDecisions(normal(1, 2, 3))
    forward_outputs = OutputsByWeights(trained, reference=reference)
    (ratio,) = Dpo().measure(forward_outputs)
    assert_close(ratio, trained.values - reference.values)
    _, log_prob = Dpo(sft_coef=0.1).measure(forward_outputs)
    assert_close(log_prob, trained.values)


def test_metrics_say_how_many_pairs_are_ranked_right() -> None:
    """Of three pairs two are right; a group without a pair counts as one half."""
    batch = batch_of([0.0, 2.0, 1.0, 4.0], [1, 1, 1, 5])
    metrics = Dpo(beta=0.5, pairs="all")((column([0.2, 0.5, -0.3, 0.9]),), batch).metrics
    assert metrics["accuracy"][:, 0].tolist() == pytest.approx([2 / 3, 2 / 3, 2 / 3, 0.5])
    assert metrics["margin"][:, 0].tolist() == pytest.approx([0.1, 0.1, 0.1, 0.0])


@in_one_test(
    ("settings", "message"),
    [
        ({"beta": 0.0}, "beta must be above 0, got 0.0"),
        ({"label_smoothing": 0.5}, "label_smoothing must be at least 0 and below 0.5, got 0.5"),
        ({"sft_coef": -1.0}, "sft_coef must be at least 0"),
        ({"form": "hinge"}, "form must be one of sigmoid, robust, ipo, got 'hinge'"),
        ({"offset": "gap"}, "offset must be one of none, reward_gap, log_reward_gap"),
        ({"form": "ipo", "label_smoothing": 0.1}, "form 'ipo' has neither"),
        ({"form": "ipo", "offset": "reward_gap"}, "form 'ipo' has neither"),
        ({"form": "ipo", "gap_weight": 0.5}, "form 'ipo' has no gap_weight"),
    ],
)
def test_settings_out_of_range_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Dpo(**settings)


def test_the_chosen_and_the_rejected_samples_have_metrics_of_their_own() -> None:
    """beta times their log-ratios: of the best and the worst of each group; here both fell, and the margin grew."""
    batch = batch_of([1.0, 0.0, 0.5])
    metrics = Dpo(beta=0.5)((column([-0.2, -1.4, 3.0]),), batch).metrics
    assert metrics["chosen"][:, 0].tolist() == pytest.approx([-0.1] * 3)
    assert metrics["rejected"][:, 0].tolist() == pytest.approx([-0.7] * 3)
    assert_close(metrics["chosen"] - metrics["rejected"], metrics["margin"])
