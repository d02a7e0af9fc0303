"""Properties of every loss in the folder, with its default settings."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from mmrl.core.contracts import LossBatch, OutputsByWeights
from mmrl.core.data import Outputs
from mmrl.core.forward_outputs import PROVIDED, Denoising, GaussianDecisions, RenderedOutputs, TokenDecisions
from mmrl.core.plugins import build, names
from tests.parameters import in_one_test

B, K = 4, 3
ADVANTAGES = torch.tensor([1.0, -0.5, 2.0, 0.0])[:, None].expand(B, K)
WEIGHT = torch.tensor([[1.0, 1.0, 0.0], [1.0, 0.5, 0.5], [1.0, 0.0, 0.0], [1.0, 1.0, 1.0]])
GROUP = torch.tensor([6, 2, 6, 2])
FACTS = {"Guard": 1, "FlowDppo": 1}  # losses that compare something without a gradient: a step, a distance


def _normal(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def _gaussian(seed: int, entry: Tensor) -> GaussianDecisions:
    """Returns the decisions of the weights of one seed, through a view with these entries."""
    sample, std, calls = _normal(99, B * K, 2, 2), torch.linspace(0.2, 0.8, B * K), torch.arange(B * K)
    mean, velocity = _normal(seed, B * K, 2, 2).requires_grad_(), torch.linspace(-0.3, -0.1, B * K)
    step = torch.cat([torch.linspace(0.3, 0.1, B * K), torch.zeros(1)])[entry]
    gradient = _normal(96, B * K, 2, 2)
    return GaussianDecisions(mean, std, sample, calls, entry, "mean", velocity, step, gradient)


def _tokens(seed: int, entry: Tensor) -> TokenDecisions:
    values = _normal(seed, B * K, 5).requires_grad_().log_softmax(-1)[:, 0]
    return TokenDecisions(torch.cat([values, torch.zeros(1)])[entry])


def _denoising(seed: int, entry: Tensor) -> Denoising:
    fixed = (_normal(97, B * K, 2, 2), _normal(98, B * K, 2, 2), torch.linspace(0.1, 0.9, B * K))
    return Denoising(_normal(seed, B * K, 2, 2).requires_grad_(), *fixed, entry)


def _rendered(seed: int, entry: Tensor) -> RenderedOutputs:
    sample, column = (entry >= 0).nonzero().unbind(1)
    media = _normal(seed, B * K, 3, 2, 2).requires_grad_()[entry[sample, column]]
    return RenderedOutputs(Outputs(images=media), sample, column, (B, K))


def _score(outputs: Outputs, rows: Tensor) -> Tensor:
    assert outputs.images is not None
    return outputs.images.sin().mean((1, 2, 3))


CASES: dict[str, dict[str, Any]] = {
    "decisions": {"latents": _gaussian, "tokens": _tokens},
    "denoising": {"latents": _denoising},
    "outputs": {"latents": _rendered},
}


def _cases() -> list[Any]:
    losses = [(name, build("losses", {"name": name})) for name in names("losses")]
    return [
        pytest.param(loss, evaluation, id=f"{name}{evaluation.__name__}")
        for name, loss in losses
        for draws, evaluation in CASES.get(loss.kind, {}).items()
        if loss.kind != "decisions" or loss.declaration.requires <= PROVIDED[draws]
    ]


def _entry(keep: Tensor | None = None) -> Tensor:
    everything = torch.where(WEIGHT > 0, torch.arange(B * K).view(B, K), -1)
    return everything if keep is None else torch.where(keep, everything, -1)


def _forward_outputs(evaluation: Any, entry: Tensor) -> OutputsByWeights:
    trained, old, reference = (evaluation(seed, entry) for seed in (1, 2, 3))
    return OutputsByWeights(trained, old, reference, score=_score)


def _batch(order: Tensor | None = None, weight: Tensor = WEIGHT) -> LossBatch:
    rows = torch.arange(B) if order is None else order
    selected = torch.arange(B * K).view(B, K)[rows] % 5 == 0
    batch = LossBatch(ADVANTAGES[rows], weight[rows], GROUP[rows], ADVANTAGES[rows, 0], selected=selected)
    return replace(batch, step_mean=torch.tensor(0.01))


def test_every_loss_is_tried() -> None:
    assert {"grpo", "reinforce", "nft"} <= set(names("losses"))
    for name in names("losses"):
        loss = build("losses", {"name": name})
        assert loss.scope in ("decision", "path", "group")
        assert loss.kind in ("decisions", "denoising", "outputs")
        assert loss.needs <= {"old", "reference", "averaged"}


@pytest.mark.parametrize(("loss", "evaluation"), _cases())
def test_terms_and_metrics_are_finite_and_have_the_batchs_shape(loss: Any, evaluation: Any) -> None:
    result = loss(loss.measure(_forward_outputs(evaluation, _entry())), _batch())
    assert result.terms.shape == (B, K) and result.terms.dtype == torch.float32 and result.terms.isfinite().all()
    for values in result.metrics.values():
        assert values.shape == (B, K) and not values.requires_grad and values.isfinite().all()


@pytest.mark.parametrize(("loss", "evaluation"), _cases())
def test_measures_are_zero_outside_the_view_and_reach_the_trained_weights_inside(loss: Any, evaluation: Any) -> None:
    measures = loss.measure(_forward_outputs(evaluation, _entry()))
    for measure in measures:
        assert (measure[WEIGHT == 0] == 0).all()
    assert measures[0].requires_grad
    assert sum(not measure.requires_grad for measure in measures) == FACTS.get(type(loss).__name__, 0)


@pytest.mark.parametrize(("loss", "evaluation"), _cases())
def test_the_order_of_the_samples_does_not_matter(loss: Any, evaluation: Any) -> None:
    order = torch.tensor([2, 0, 3, 1])
    plain = loss(loss.measure(_forward_outputs(evaluation, _entry())), _batch())
    moved = loss(loss.measure(_forward_outputs(evaluation, _entry()[order])), _batch(order))
    assert_close(moved.terms, plain.terms[order])
    for name, values in plain.metrics.items():
        assert_close(moved.metrics[name], values[order])
    (weights, total), (moved_weights, moved_total) = loss.coefficients(_batch()), loss.coefficients(_batch(order))
    assert_close(moved_weights, weights[order])
    assert_close(moved_total, total)


@pytest.mark.parametrize(("loss", "evaluation"), _cases())
def test_parts_of_a_view_add_up_to_the_whole(loss: Any, evaluation: Any) -> None:
    """As micro-batches: coefficients of the whole step, terms of one part at a time."""
    if loss.scope != "decision":
        pytest.skip("the core replays losses of larger scope")
    coefficients, _ = loss.coefficients(_batch())
    whole = (coefficients * loss(loss.measure(_forward_outputs(evaluation, _entry())), _batch()).terms).sum()
    total = torch.zeros(())
    for part in range(3):
        keep = torch.arange(B * K).view(B, K) % 3 == part
        batch = _batch(weight=WEIGHT * keep)
        terms = loss(loss.measure(_forward_outputs(evaluation, _entry(keep))), batch).terms
        total = total + (coefficients * keep * terms).sum()
    assert_close(total, whole)


@in_one_test("name", names("losses"))
def test_samples_without_decisions_count_nothing(name: str) -> None:
    loss = build("losses", {"name": name})
    weight = WEIGHT * torch.tensor([1.0, 0.0, 1.0, 1.0])[:, None]
    coefficients, denominator = loss.coefficients(_batch(weight=weight))
    assert (coefficients[1] == 0).all() and denominator > 0
    nothing, denominator = loss.coefficients(_batch(weight=WEIGHT * 0))
    assert (nothing == 0).all() and denominator == 0
