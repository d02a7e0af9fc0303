"""GRPO-Guard against the authors' formula and its identities (docs/maths/group-relative-losses.md#grpo-guard)."""

import math
from itertools import pairwise

import pytest
import torch
from torch import Tensor
from torch.distributions import Normal
from torch.testing import assert_close

from mmrl.core.contracts import LossBatch, OutputsByWeights
from mmrl.core.forward_outputs import GaussianDecisions
from mmrl.losses.grpo import Grpo
from mmrl.losses.guard import Guard
from mmrl.samplers.base.kernels import euler_maruyama, flow_sde_diffusion
from tests.ratios import normal

NOISE_LEVEL, D = 0.7, 6
SIGMAS = [1.0, 0.9, 0.7, 0.4, 0.2]
STEPS = [
    (s - n, euler_maruyama(s, n, flow_sde_diffusion(s, SIGMAS[1], NOISE_LEVEL))) for s, n in pairwise(SIGMAS)
]  # four steps of Flow-GRPO's sampler
SIZES = torch.tensor([[h for h, _ in STEPS]], dtype=torch.float64)
STD = torch.tensor([step.std for _, step in STEPS], dtype=torch.float64)
LATENTS, VELOCITY, NOISE = normal(0, 4, D), normal(1, 4, D), normal(2, 4, D)


def _means(velocity: Tensor) -> Tensor:
    return torch.stack([step.mean(x, v) for (_, step), x, v in zip(STEPS, LATENTS, velocity, strict=True)])


SAMPLE = (_means(VELOCITY) + STD[:, None] * NOISE).float()  # drawn by the old weights


def _decisions(velocity: Tensor) -> GaussianDecisions:
    """One sample of four steps."""
    number = torch.arange(4)
    return GaussianDecisions(_means(velocity), STD, SAMPLE, number, number[None], "mean", step=SIZES)


def _batch(advantage: float) -> LossBatch:
    advantages = torch.full((1, 4), advantage, dtype=torch.float64)
    return LossBatch(advantages, torch.ones_like(advantages), torch.zeros(1, dtype=torch.int64), advantages[:, 0])


def _authors_terms(velocity: Tensor, advantage: float, clip: float) -> Tensor:
    """flow_grpo: log-probs are means over elements; the bias of their ratio is added, std multiplies, h divides."""
    terms = []
    for k, (h, _) in enumerate(STEPS):
        new, old = _means(velocity)[k], _means(VELOCITY)[k]
        log_ratio = (Normal(new, STD[k]).log_prob(SAMPLE[k]) - Normal(old, STD[k]).log_prob(SAMPLE[k])).mean()
        bias = (new - old).square().mean() / (2 * STD[k] ** 2)
        ratio = ((log_ratio + bias) * STD[k]).exp()
        terms.append(torch.maximum(-advantage * ratio, -advantage * ratio.clamp(1 - clip, 1 + clip)) / h)
    return torch.stack(terms)


@pytest.mark.parametrize("advantage", [1.0, -0.5])
def test_terms_and_gradient_are_those_of_the_authors_formula(advantage: float) -> None:
    loss = Guard(clip_low=3e-4, clip_high=3e-4)
    velocity = (VELOCITY + 0.02 * normal(5, 4, D)).requires_grad_()
    terms = loss(loss.measure(OutputsByWeights(_decisions(velocity), _decisions(VELOCITY))), _batch(advantage)).terms[0]
    expected = _authors_terms(velocity, advantage, 3e-4)
    assert_close(terms, expected, rtol=1e-6, atol=1e-9)  # samples are stored in float32
    got = torch.autograd.grad(terms.sum(), velocity)[0]
    assert_close(got, torch.autograd.grad(expected.sum(), velocity)[0], rtol=1e-6, atol=1e-9)
    held = (got == 0).all(1).sum()
    assert 0 < held < 4


def test_a_steps_gradient_by_the_velocity_is_one_constant_behind_the_first() -> None:
    """|d loss / d v| = A |z| c / (h d), and c / h = 1 + noise_level^2 / 2 where sigma < 1.

    docs/maths/group-relative-losses.md#what-a-step-weighs
    """
    velocity = VELOCITY.clone().requires_grad_()
    trained = _decisions(velocity)
    loss = Guard()
    terms = loss(loss.measure(OutputsByWeights(trained, trained.detach())), _batch(1.0)).terms[0]
    got = torch.autograd.grad(terms.sum(), velocity)[0]
    noise = (SAMPLE.double() - _means(VELOCITY)) / STD[:, None]
    weight = (got.norm(dim=1) * D / noise.norm(dim=1)).tolist()
    assert weight[1:] == pytest.approx([1 + NOISE_LEVEL**2 / 2] * 3)
    assert weight[0] == pytest.approx(1.0)


def test_the_plain_ratio_weighs_steps_by_another_measure() -> None:
    """What Guard mends: c / std instead of c / h."""
    velocity = VELOCITY.clone().requires_grad_()
    trained = _decisions(velocity)
    terms = Grpo()(Grpo().measure(OutputsByWeights(trained, trained.detach())), _batch(1.0)).terms[0]
    got = torch.autograd.grad(terms.sum(), velocity)[0]
    noise = (SAMPLE.double() - _means(VELOCITY)) / STD[:, None]
    expected = [-step.velocity / step.std for _, step in STEPS]
    assert (got.norm(dim=1) * D / noise.norm(dim=1)).tolist() == pytest.approx(expected)


def test_with_steps_of_size_one_it_is_grpo_on_the_shift() -> None:
    """R-guard: with the shift in place of the log-ratio, and h = 1."""
    shift = 0.3 * normal(7, 1, 4)
    guard, grpo = Guard(clip_low=0.2, clip_high=0.2), Grpo(clip_low=0.2, clip_high=0.2)
    expected = grpo((shift,), _batch(1.0))
    got = guard((shift, torch.ones(1, 4, dtype=torch.float64)), _batch(1.0))
    assert_close(got.terms, expected.terms)
    halved = guard((shift, torch.full((1, 4), 2.0, dtype=torch.float64)), _batch(1.0))
    assert_close(2 * halved.terms, expected.terms)


def test_a_penalty_is_not_divided_by_the_step() -> None:
    trained, reference = _decisions(VELOCITY), _decisions(VELOCITY + 1)
    loss = Guard(kl_coef=0.5)
    forward_outputs = OutputsByWeights(trained, trained.detach(), reference)
    terms = loss(loss.measure(forward_outputs), _batch(0.0)).terms
    assert_close(terms, 0.5 * trained.kl(reference))


def test_the_published_range_and_what_it_reads() -> None:
    assert (Guard().clip_low, Guard().clip_high) == (2e-6, 2e-6)
    assert Guard().declaration.requires == {"noise", "step"}
    assert Guard(kl_coef=1.0).declaration.requires == {"noise", "step", "exact_kl"}
    silent = GaussianDecisions(LATENTS, STD, SAMPLE, torch.arange(4), torch.arange(4)[None], "mean")
    with pytest.raises(ValueError, match="guard needs the size of each step"):
        Guard().measure(OutputsByWeights(silent, silent))
    assert math.isclose(STD[0], NOISE_LEVEL)  # the first std of Flow-GRPO's grid
