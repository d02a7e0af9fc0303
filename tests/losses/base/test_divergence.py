"""Divergences from other weights: each kind against a formula of its own, and as the penalty of a loss."""

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.distributions import Categorical
from torch.testing import assert_close

from mmrl.core.contracts import LossBatch, OutputsByWeights
from mmrl.core.forward_outputs import Denoising, GaussianDecisions, TokenDecisions
from mmrl.core.numerics import Reduction
from mmrl.losses.base.divergence import divergence
from mmrl.losses.grpo import Grpo
from mmrl.losses.reinforce import Reinforce
from mmrl.plans.flow import Transition
from mmrl.samplers.base.kernels import bridge, euler_maruyama
from tests.parameters import in_one_test
from tests.ratios import normal

STEPS = (bridge(0.8, 0.6, 0.5), euler_maruyama(0.6, 0.3, 0.7))
ENTRY = torch.tensor([[0, 1], [1, -1]])


def _decisions(velocity: Tensor, latents: Tensor, reduction: Reduction = "mean") -> GaussianDecisions:
    """Returns decisions of two calls, one step of each family."""
    mean = torch.stack([step.mean(x, v) for step, x, v in zip(STEPS, latents, velocity, strict=True)])
    std = torch.tensor([step.std for step in STEPS], dtype=torch.float64)
    slope = torch.tensor([step.velocity for step in STEPS], dtype=torch.float64)
    return GaussianDecisions(mean, std, latents, torch.arange(2), ENTRY, reduction, slope)


@pytest.mark.parametrize("reduction", ["mean", "sum", "rms"])
def test_the_velocity_form_is_the_mean_squared_distance_of_velocities_in_every_unit(reduction: Reduction) -> None:
    latents, velocity, other = normal(0, 2, 2, 3), normal(1, 2, 2, 3), normal(2, 2, 2, 3)
    got = divergence(_decisions(velocity, latents, reduction), _decisions(other, latents, reduction), "velocity")
    gap = [float((velocity[n] - other[n]).square().mean()) for n in range(2)]
    assert_close(got, torch.tensor([[gap[0], gap[1]], [gap[1], 0.0]], dtype=torch.float64))


def test_the_velocity_form_is_the_exact_kl_but_for_the_steps_own_factor() -> None:
    """KL = <(v - v_ref)^2> c^2 / (2 std^2) (docs/maths/sde-sampling.md#kl-between-steps)."""
    latents = normal(0, 2, 2, 3)
    trained, other = _decisions(normal(1, 2, 2, 3), latents), _decisions(normal(2, 2, 2, 3), latents)
    factor = torch.tensor([step.velocity**2 / (2 * step.std**2) for step in STEPS], dtype=torch.float64)
    exact, velocity = divergence(trained, other, "exact"), divergence(trained, other, "velocity")
    assert_close(exact[0], velocity[0] * factor)


def test_of_denoising_it_is_the_distance_of_the_predictions() -> None:
    prediction, other, fixed = normal(0, 2, 2, 3), normal(1, 2, 2, 3), torch.zeros(2, 2, 3)
    trained, frozen = (Denoising(p, fixed, fixed, torch.zeros(2), ENTRY) for p in (prediction, other))
    gap = [float((prediction[n] - other[n]).square().mean()) for n in range(2)]
    expected = torch.tensor([[gap[0], gap[1]], [gap[1], 0.0]], dtype=torch.float64)
    assert_close(divergence(trained, frozen, "velocity"), expected)


def test_decisions_that_do_not_tell_are_refused() -> None:
    one = torch.zeros(1, 2)
    silent = GaussianDecisions(one, torch.ones(1), one, torch.zeros(1, dtype=torch.int64), ENTRY[:1] * 0, "mean")
    with pytest.raises(ValueError, match="do not hold the derivative of their means with respect to the velocity"):
        divergence(silent, silent, "velocity")
    with pytest.raises(ValueError, match="entropy_coef needs the entropy of each decision"):
        Grpo(entropy_coef=0.1).measure(OutputsByWeights(TokenDecisions(one), TokenDecisions(one)))


@in_one_test("log_ratio", [-30.0, -2.7, -2.5, 0.0, 1.0, 10.9, 11.1, 30.0])
def test_low_var_is_verls_k3_between_its_two_clamps(log_ratio: float) -> None:
    """verl and EasyR1: d = ref - new within 20 of 0, then exp(d) - d - 1 within 10 of 0; flat beyond."""
    d = min(max(-log_ratio, -20.0), 20.0)
    inside = math.exp(d) - d - 1
    new = torch.tensor([[log_ratio]], dtype=torch.float64, requires_grad=True)
    got = divergence(TokenDecisions(new), TokenDecisions(torch.zeros(1, 1, dtype=torch.float64)), "low_var")
    assert got.item() == pytest.approx(min(inside, 10.0))
    slope = torch.autograd.grad(got.sum(), new)[0].item()
    assert slope == pytest.approx(1 - math.exp(d) if inside < 10 else 0.0)


@pytest.mark.parametrize("target", ["reference", "averaged"])
def test_the_penalty_is_for_leaving_the_weights_it_names(target: str) -> None:
    tokens = {
        name: TokenDecisions(normal(seed, 2, 2)) for seed, name in enumerate(("trained", "reference", "averaged"))
    }
    loss = Reinforce(kl_coef=0.5, kl="k2", kl_to=target)  # type: ignore[arg-type]
    assert loss.needs == {target}
    forward_outputs = OutputsByWeights(tokens["trained"], reference=tokens["reference"], averaged=tokens["averaged"])
    measures = loss.measure(forward_outputs)
    assert_close(measures[1], (tokens["trained"].values - tokens[target].values).square() / 2)


def test_the_velocity_penalty_and_its_weight() -> None:
    latents = normal(0, 2, 2, 3)
    trained, other = _decisions(normal(1, 2, 2, 3), latents), _decisions(normal(2, 2, 2, 3), latents)
    loss = Grpo(kl_coef=0.25, kl="velocity")
    assert loss.declaration.requires == {"velocity"} and Grpo(kl="velocity").declaration.requires == frozenset()
    nothing = torch.zeros(2, 2, dtype=torch.float64)
    batch = LossBatch(nothing, (ENTRY >= 0).double(), torch.zeros(2, dtype=torch.int64), nothing[:, 0])
    terms = loss(loss.measure(OutputsByWeights(trained, trained.detach(), other)), batch).terms
    assert_close(terms, 0.25 * divergence(trained, other, "velocity"))


def test_the_entropy_bonus_follows_the_entropy_of_a_categorical() -> None:
    logits = normal(0, 2, 2, 5).requires_grad_()
    of = Categorical(logits=logits)
    tokens = TokenDecisions(of.log_prob(torch.tensor([[0, 1], [2, 3]])), of.entropy())
    loss = Grpo(entropy_coef=0.3)
    assert loss.declaration.requires == {"entropy"} and loss.needs == {"old"}
    nothing = torch.zeros(2, 2, dtype=torch.float64)
    batch = LossBatch(nothing, nothing + 1, torch.zeros(2, dtype=torch.int64), nothing[:, 0])
    terms = loss(loss.measure(OutputsByWeights(tokens, tokens.detach())), batch).terms
    got = torch.autograd.grad(terms.sum(), logits)[0]
    p = logits.detach().softmax(-1)
    entropy = -(p * p.log()).sum(-1, keepdim=True)
    assert_close(got, 0.3 * p * (p.log() + entropy))  # - 0.3 dH / d logit


@pytest.mark.parametrize(("mean_entropy", "is_on"), [(0.69, 1.0), (0.7, 0.0), (0.71, 0.0)])
def test_below_its_floor_the_entropy_of_all_tokens_counts_and_else_of_none(mean_entropy: float, is_on: float) -> None:
    tokens = TokenDecisions(normal(0, 2, 2), normal(1, 2, 2).abs())
    loss = Grpo(entropy_coef=0.1, entropy_floor=0.7)
    assert loss.declaration.requires_mean_entropy and not Grpo(entropy_coef=0.1).declaration.requires_mean_entropy
    nothing = torch.zeros(2, 2, dtype=torch.float64)
    floor = torch.tensor(mean_entropy, dtype=torch.float64)
    batch = LossBatch(nothing, nothing + 1, torch.zeros(2, dtype=torch.int64), nothing[:, 0], floor)
    result = loss(loss.measure(OutputsByWeights(tokens, tokens.detach())), batch)
    assert tokens.entropy is not None
    assert_close(result.terms, -is_on * 0.1 * tokens.entropy)
    assert_close(result.metrics["entropy_bonus"], torch.full((2, 2), is_on))
    with pytest.raises(ValueError, match="entropy_floor needs the mean entropy of the step"):
        loss(loss.measure(OutputsByWeights(tokens, tokens.detach())), replace(batch, mean_entropy=None))


def test_a_floor_without_a_bonus_is_refused() -> None:
    with pytest.raises(ValueError, match="entropy_floor says when entropy_coef counts, which is 0"):
        Grpo(entropy_floor=0.5)
    with pytest.raises(ValueError, match="entropy_floor must be above 0, or null, got 0"):
        Grpo(entropy_coef=0.1, entropy_floor=0)


def test_both_penalties_and_what_is_compared_keep_apart() -> None:
    tokens = TokenDecisions(normal(0, 2, 2), normal(1, 2, 2).abs())
    loss = Grpo(kl_coef=0.5, kl="k2", entropy_coef=0.1)
    nothing = torch.zeros(2, 2, dtype=torch.float64)
    batch = LossBatch(nothing, nothing + 1, torch.zeros(2, dtype=torch.int64), nothing[:, 0])
    reference = TokenDecisions(normal(2, 2, 2))
    result = loss(loss.measure(OutputsByWeights(tokens, tokens.detach(), reference)), batch)
    kl = (tokens.values - reference.values).square() / 2
    assert tokens.entropy is not None
    assert_close(result.terms, 0.5 * kl - 0.1 * tokens.entropy)
    assert_close(result.metrics["kl"], kl)


def test_a_transition_without_a_velocity_does_not_exist() -> None:
    """The velocity form divides by c: every kernel from sigma to a smaller one moves along the velocity."""
    for sigma, sigma_next in ((1.0, 0.9), (0.5, 0.4), (0.1, 0.0)):
        steps: list[Transition] = [bridge(sigma, sigma_next, r) for r in (0.0, 0.5, 1.0)]
        steps += [euler_maruyama(sigma, sigma_next, g) for g in (0.0, 0.3)]
        assert all(step.velocity < 0 for step in steps)
