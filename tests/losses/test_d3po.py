"""D3PO against a slow loop over pairs and steps, and against DPO where both must agree."""

import math
from typing import Any

import pytest
import torch
from torch.testing import assert_close

from mmrl.losses.d3po import D3po
from mmrl.losses.dpo import Dpo
from tests.losses.path_batches import batch_of, column, normal, step_gradient, step_loss


def slow(loss: D3po, better: list[float], worse: list[float]) -> float:
    """Returns the loss by the code of D3PO, step by step: -log sigmoid(beta log clip(ratio) h + ...), h = +1 and -1."""
    total = 0.0
    for first, second in zip(better, worse, strict=True):
        ratios = [min(max(math.exp(value), 1 - loss.clip), 1 + loss.clip) for value in (first, second)]
        total -= math.log(1 / (1 + math.exp(-loss.beta * (math.log(ratios[0]) - math.log(ratios[1])))))
    return total / len(better)


def test_it_is_the_mean_over_steps_of_a_slow_loop() -> None:
    ratios, loss = 0.2 * normal(0, 2, 5), D3po(beta=2.0)
    assert (ratios.abs() > 0.12).any() and (ratios.abs() < 0.09).any()
    got = step_loss(loss, (ratios,), batch_of([1.0, 0.0], num_decisions=5))
    assert got.item() == pytest.approx(slow(loss, *ratios.tolist()))


def test_a_group_has_its_extremes_or_all_pairs() -> None:
    ratios, scores = 0.05 * normal(1, 3, 4), [0.5, 2.0, 1.0]
    batch = batch_of(scores, num_decisions=4)
    rows = ratios.tolist()
    assert step_loss(D3po(), (ratios,), batch).item() == pytest.approx(slow(D3po(), rows[1], rows[0]))
    every = [slow(D3po(), rows[i], rows[j]) for i, j in ((1, 0), (1, 2), (2, 0))]
    assert step_loss(D3po(pairs="all"), (ratios,), batch).item() == pytest.approx(sum(every) / 3)


def test_with_one_step_inside_of_the_clip_it_is_dpo() -> None:
    ratios, batch = (column([0.05, -0.08, 0.02]),), batch_of([1.0, 3.0, 2.0])
    for pairs in ("extremes", "all", "adjacent"):
        settings: dict[str, Any] = {"beta": 0.7, "pairs": pairs}
        assert_close(step_loss(D3po(**settings), ratios, batch), step_loss(Dpo(**settings), ratios, batch))
        assert_close(step_gradient(D3po(**settings), ratios, batch), step_gradient(Dpo(**settings), ratios, batch))


def test_a_clipped_ratio_has_no_gradient() -> None:
    ratios = torch.tensor([[0.2, 0.05], [-0.3, 0.01]], dtype=torch.float64, requires_grad=True)
    batch = batch_of([1.0, 0.0], num_decisions=2)
    gradient = step_gradient(D3po(), (ratios,), batch)
    assert (gradient[:, 0] == 0).all() and gradient[0, 1] < 0 < gradient[1, 1]
    assert D3po()((ratios,), batch).metrics["clip_fraction"][:, 0].tolist() == [0.5, 0.5]


def test_where_one_path_is_shorter_the_rest_has_no_term() -> None:
    weight = torch.tensor([[1.0, 1.0, 1.0], [1.0, 0.0, 0.0]])
    ratios = 0.05 * normal(2, 2, 3)
    got = step_loss(D3po(), (ratios,), batch_of([1.0, 0.0], weight=weight))
    assert got.item() == pytest.approx(slow(D3po(), ratios[0, :1].tolist(), ratios[1, :1].tolist()))


def test_it_is_log_2_at_the_reference() -> None:
    got = step_loss(D3po(), (torch.zeros(4, 3).double(),), batch_of([1.0, 0.0, 2.0, 2.0], num_decisions=3))
    assert got.item() == pytest.approx(math.log(2))


@pytest.mark.parametrize(
    ("settings", "message"),
    [({"beta": 0.0}, "beta must be above 0"), ({"clip": 1.0}, "clip must be above 0 and below 1")],
)
def test_settings_out_of_range_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        D3po(**settings)
