"""GRPO's penalty: what its gradient reaches, and its estimators against closed forms and enumeration."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.distributions import Categorical, kl_divergence
from torch.testing import assert_close

from mmrl.core.contracts import OutputsByWeights
from mmrl.core.forward_outputs import GaussianDecisions, TokenDecisions
from mmrl.core.numerics import Reduction
from mmrl.core.schedules import Schedule
from mmrl.losses.base.divergence import KL
from mmrl.losses.gpg import Gpg
from mmrl.losses.grpo import Grpo
from mmrl.losses.gspo import Gspo
from mmrl.losses.reinforce import Reinforce
from mmrl.training.update import select_groups
from tests.losses.shared_states import (
    OLD_WEIGHT,
    STATE,
    STD,
    WEIGHT,
    D,
    batch_of,
    gradient_of,
    mean_terms,
    normals,
    shared_call,
)
from tests.parameters import in_one_test


@in_one_test("kl", ["exact", "k1", "k2", "k3"])
def test_the_penalty_reaches_the_trained_weights_and_not_the_reference(kl: KL) -> None:
    """A KL computed without a graph only moves a number in the log (docs/maths/traps.md#kl-without-a-gradient)."""
    loss = Grpo(kl_coef=0.5, kl=kl)
    weight, reference = WEIGHT.clone().requires_grad_(), OLD_WEIGHT.clone().requires_grad_()
    with torch.no_grad():
        frozen = shared_call(reference)

    def penalty(at: Tensor) -> Tensor:
        trained = shared_call(at)
        return mean_terms(
            loss, OutputsByWeights(trained, trained.detach(), frozen), torch.zeros(4, 1, dtype=torch.float64)
        )

    assert gradient_of(penalty(weight), weight).norm() > 1e-3
    if kl != "k1":  # k1 reports one function and differentiates another
        assert torch.autograd.gradcheck(penalty, (weight,))
    assert reference.grad is None


def test_the_exact_penalty_is_half_the_squared_shift_over_the_variance() -> None:
    loss = Grpo(kl_coef=0.5)
    trained = shared_call(WEIGHT)
    got = mean_terms(
        loss, OutputsByWeights(trained, trained, shared_call(OLD_WEIGHT)), torch.zeros(4, 1, dtype=torch.float64)
    )
    shift = STATE @ WEIGHT - STATE @ OLD_WEIGHT
    assert got.item() == pytest.approx(0.5 * (shift.square().mean() / (2 * STD**2)).item())


@pytest.mark.parametrize("kl", ["k1", "k2", "k3"])
def test_on_policy_mean_gradient_of_the_estimators(kl: KL) -> None:
    """Every token is tried and weighed by its probability; k1 and k2 follow KL(p||q), k3 follows KL(q||p)."""
    logits, other = normals(5, 6).requires_grad_(), normals(6, 6)
    vocabulary = torch.arange(6)
    trained = TokenDecisions(logits.log_softmax(-1)[vocabulary][:, None])
    reference = TokenDecisions(other.log_softmax(-1)[vocabulary][:, None])
    loss = Grpo(kl_coef=1.0, kl=kl)
    terms = loss(
        loss.measure(OutputsByWeights(trained, trained.detach(), reference)),
        batch_of(torch.zeros(6, 1, dtype=torch.float64)),
    ).terms
    probability = logits.detach().softmax(-1)
    got = gradient_of((probability * terms[:, 0]).sum(), logits)
    p, q = Categorical(logits=logits), Categorical(logits=other)
    assert_close(got, gradient_of(kl_divergence(q, p) if kl == "k3" else kl_divergence(p, q), logits))
    if kl != "k2":
        assert_close((probability * terms[:, 0]).sum(), kl_divergence(p, q))


@pytest.mark.parametrize("kl", ["k1", "k2"])
@pytest.mark.parametrize(("reduction", "weaker"), [("sum", 1.0), ("mean", D), ("rms", math.sqrt(D))])
def test_on_latents_an_estimator_squares_the_unit_of_the_reduction(kl: KL, reduction: Reduction, weaker: float) -> None:
    """Mean gradients by quadrature: 3 nodes in each of 3 dimensions are exact for what is quadratic in the noise."""
    nodes = torch.tensor([-math.sqrt(3), 0.0, math.sqrt(3)], dtype=torch.float64)
    share = torch.tensor([1 / 6, 2 / 3, 1 / 6], dtype=torch.float64)
    z, weight = torch.cartesian_prod(nodes, nodes, nodes), torch.cartesian_prod(share, share, share).prod(1)
    mean, reference = (STATE @ WEIGHT).requires_grad_(), STATE @ OLD_WEIGHT
    sample, calls = mean.detach() + STD * z, torch.zeros(27, dtype=torch.int64)
    std, entry = torch.tensor([STD], dtype=torch.float64), torch.arange(27)[:, None]

    def gradient(estimator: KL) -> Tensor:
        trained, frozen = (GaussianDecisions(m[None], std, sample, calls, entry, reduction) for m in (mean, reference))
        loss = Grpo(kl_coef=1.0, kl=estimator)
        divergence = loss.measure(OutputsByWeights(trained, trained.detach(), frozen))[1]
        return gradient_of((weight * divergence[:, 0]).sum(), mean)

    assert_close(gradient(kl) * weaker, gradient("exact"), rtol=1e-5, atol=1e-7)  # samples are read in float32


def test_the_exact_kl_of_tokens_is_refused() -> None:
    tokens = TokenDecisions(torch.zeros(1, 2))
    with pytest.raises(ValueError, match="k1, k2 or k3"):
        Grpo(kl_coef=0.1).measure(OutputsByWeights(tokens, tokens, tokens))


def test_the_reference_is_asked_for_only_with_a_penalty() -> None:
    assert Grpo().needs == {"old"}
    assert Grpo(kl_coef=0.1).needs == {"old", "reference"}
    assert Grpo().old_decay(3) is None
    trained = shared_call(WEIGHT)
    assert len(Grpo().measure(OutputsByWeights(trained, trained))) == 1


@in_one_test("make", [Grpo, Gpg, Gspo, Reinforce])
def test_a_schedule_of_the_penalty_is_the_constant_of_each_iteration(make: Callable[..., Any]) -> None:
    """Up to iteration 2 there is no penalty, from 6 on 0.4, half way the half; a step takes its own iteration."""
    going = make(kl_coef=Schedule(0.0, 0.4, last=6, first=2), kl="k3")
    fixed = make(kl_coef=0.4, kl="k3")
    assert going.needs == fixed.needs and going.declaration == fixed.declaration
    tokens, reference = TokenDecisions(normals(0, 2, 3)), TokenDecisions(normals(1, 2, 3))
    outputs = OutputsByWeights(tokens, tokens.detach(), reference)
    plain = make()
    free = plain(plain.measure(outputs), batch_of(torch.ones(2, 3, dtype=torch.float64))).terms
    gap = reference.values - tokens.values
    kl = gap.exp() - gap - 1
    for iteration, weight in ((0, 0.0), (2, 0.0), (3, 0.1), (4, 0.2), (6, 0.4), (99, 0.4)):
        batch = replace(batch_of(torch.ones(2, 3, dtype=torch.float64)), iteration=iteration)
        _, part = select_groups(batch, sorted(set(batch.group.tolist())))
        assert part is not None
        result = going(going.measure(outputs), part)
        assert_close(result.terms, free + weight * kl)
        assert_close(result.metrics["kl"], kl)
        assert_close(result.metrics["kl_coef"], torch.full_like(kl, weight))
    assert "kl_coef" not in fixed(fixed.measure(outputs), batch_of(torch.ones(2, 3, dtype=torch.float64))).metrics


def test_a_schedule_that_goes_below_0_is_refused_and_one_of_0_measures_nothing() -> None:
    with pytest.raises(ValueError, match=r"kl_coef must start and end at 0 or above, got 0\.1 and -0\.2"):
        Grpo(kl_coef=Schedule(0.1, -0.2, last=3))
    assert Grpo(kl_coef=Schedule(0.0, 0.0, last=3)).needs == {"old"}
    assert Grpo(kl_coef=Schedule(0.1, 0.0, last=3)).needs == {"old", "reference"}
