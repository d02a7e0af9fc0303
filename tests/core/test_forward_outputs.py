"""Evaluations against torch.distributions, slow loops and finite differences."""

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.distributions import Categorical, Independent, Normal, kl_divergence
from torch.testing import assert_close

from mmrl.core.forward_outputs import PROVIDED, Denoising, GaussianDecisions, TokenDecisions
from mmrl.core.numerics import Reduction
from mmrl.plans.flow import Transition

REDUCTIONS: tuple[Reduction, ...] = ("mean", "sum", "rms")
STD = torch.tensor([0.7, 0.05], dtype=torch.float64)
CALL = torch.tensor([0, 1, 0])  # the first call was drawn from twice
ENTRY = torch.tensor([[0, 1], [2, 1], [-1, -1], [-1, 0]])


def _normal(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def _decisions(reduction: Reduction, seed: int = 0) -> GaussianDecisions:
    """Two calls, three edges, latents of 2 x 3 elements; the samples are the same for every seed."""
    sample = _normal(99, 3, 2, 3).float()  # as stored
    return GaussianDecisions(_normal(seed, 2, 2, 3), STD, sample, CALL, ENTRY, reduction)


def _per_edge(decisions: GaussianDecisions, edge: int) -> Normal:
    call = int(CALL[edge])
    return Normal(decisions.mean[call], STD[call])


def _table(per_edge: list[Tensor]) -> Tensor:
    """[B, K] by ENTRY, one entry at a time."""
    table = torch.zeros(ENTRY.shape, dtype=torch.float64)
    for row in range(len(ENTRY)):
        for column in range(ENTRY.shape[1]):
            if ENTRY[row, column] >= 0:
                table[row, column] = per_edge[int(ENTRY[row, column])]
    return table


def test_gaussian_log_prob_in_mean_mode_is_the_mean_of_torch_normal() -> None:
    decisions = _decisions("mean")
    per_edge = [_per_edge(decisions, edge).log_prob(decisions.sample[edge].double()).mean() for edge in range(3)]
    assert_close(decisions.log_prob(), _table(per_edge))


def test_gaussian_log_prob_in_sum_mode_is_torch_independent() -> None:
    decisions = _decisions("sum")
    per_edge = [
        Independent(_per_edge(decisions, edge), 2).log_prob(decisions.sample[edge].double()) for edge in range(3)
    ]
    assert_close(decisions.log_prob(), _table(per_edge))


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_gaussian_log_ratio_is_the_difference_of_log_probs(reduction: Reduction) -> None:
    trained, old = _decisions(reduction, 1), _decisions(reduction, 2)
    assert_close(trained.log_ratio(old), trained.log_prob() - old.log_prob())


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_the_ratio_to_the_detached_self_is_one_bit_for_bit(reduction: Reduction) -> None:
    trained = _decisions(reduction)
    trained = replace(trained, mean=trained.mean.float().requires_grad_(), std=STD.float())
    assert (trained.log_ratio(trained.detach()).exp() == 1).all()


def test_reductions_are_only_units() -> None:
    """d = 6: sum = 6 mean = sqrt(6) rms."""
    of = {reduction: _decisions(reduction, 1).log_ratio(_decisions(reduction, 2)) for reduction in REDUCTIONS}
    assert_close(of["sum"], 6 * of["mean"])
    assert_close(of["sum"], math.sqrt(6) * of["rms"])


def test_gaussian_kl_is_torch_kl_divergence() -> None:
    trained, reference = _decisions("sum", 1), _decisions("sum", 2)
    per_edge = [
        kl_divergence(Independent(_per_edge(trained, edge), 2), Independent(_per_edge(reference, edge), 2))
        for edge in range(3)
    ]
    assert_close(trained.kl(reference), _table(per_edge))
    assert (trained.kl(reference) >= 0).all()
    assert (trained.kl(trained) == 0).all()


def test_gaussian_kl_has_its_gradient_in_the_trained_weights_and_none_in_the_reference() -> None:
    trained, reference = _decisions("mean", 1), _decisions("mean", 2)
    with torch.no_grad():
        frozen = replace(reference, mean=reference.mean * 1.0)
    assert torch.autograd.gradcheck(
        lambda mean: replace(trained, mean=mean).kl(frozen), (trained.mean.requires_grad_(),), fast_mode=False
    )
    gradient = torch.autograd.grad(trained.kl(frozen).sum(), trained.mean)[0]
    assert gradient.norm() > 0
    assert frozen.mean.grad is None and not frozen.mean.requires_grad


@pytest.mark.parametrize("noise_level", [0.3, 0.7])
def test_kl_in_velocity_form_and_h_scaled_form(noise_level: float) -> None:
    """KL = <(v - v_ref)^2> c^2 / (2 std^2), and <(mean - mean_ref)^2> / (2 g^2) = KL h.

    docs/maths/sde-sampling.md#kl-between-steps
    """
    sigma, sigma_next = 0.6, 0.5
    h, g = sigma - sigma_next, noise_level * math.sqrt(sigma / (1 - sigma))
    c = h + g**2 * (1 - sigma) * h / (2 * sigma)
    step = Transition(state=1 - g**2 * h / (2 * sigma), velocity=-c, std=g * math.sqrt(h))
    latents, velocity, other = _normal(0, 1, 5), _normal(1, 1, 5), _normal(2, 1, 5)
    std = torch.tensor([step.std], dtype=torch.float64)
    entry, call = torch.tensor([[0]]), torch.tensor([0])
    trained, reference = (
        GaussianDecisions(step.mean(latents, v), std, latents, call, entry, "mean") for v in (velocity, other)
    )
    kl = trained.kl(reference).item()
    assert kl == pytest.approx(((velocity - other).square().mean() * c**2 / (2 * step.std**2)).item())
    scaled = (trained.mean - reference.mean).square().mean() / (2 * g**2)
    assert scaled.item() == pytest.approx(kl * h)


def test_guard_exponent_is_the_projection_on_the_noise() -> None:
    """log ratio + <(mean - old)^2> / (2 std^2) = <z (mean - old)> / std, z = (sample - old) / std.

    docs/maths/group-relative-losses.md#grpo-guard
    """
    trained, old = _decisions("mean", 1), _decisions("mean", 2)
    per_edge = []
    for edge in range(3):
        call = int(CALL[edge])
        z = (trained.sample[edge].double() - old.mean[call]) / STD[call]
        per_edge.append((z * (trained.mean[call] - old.mean[call])).mean() / STD[call])
    assert_close(trained.log_ratio(old) + trained.kl(old), _table(per_edge))


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_gaussian_gradients_equal_finite_differences(reduction: Reduction) -> None:
    decisions, old = _decisions(reduction, 1), _decisions(reduction, 2)
    mean = decisions.mean.requires_grad_()
    assert torch.autograd.gradcheck(lambda m: replace(decisions, mean=m).log_prob(), (mean,))
    assert torch.autograd.gradcheck(lambda m: replace(decisions, mean=m).log_ratio(old), (mean,))


def test_a_batch_of_mixed_stds_equals_a_loop_over_its_calls() -> None:
    """A std [N] against latents [N, ...] must not broadcast over the wrong axis (here N = d = 3).

    docs/maths/traps.md#std-broadcast-over-the-wrong-axis
    """
    std = torch.tensor([0.1, 0.5, 2.0], dtype=torch.float64)
    mean, old, sample = _normal(0, 3, 3, 3), _normal(1, 3, 3, 3), _normal(2, 3, 3, 3).float()
    whole = [
        GaussianDecisions(m, std, sample, torch.arange(3), torch.tensor([[0], [1], [2]]), "mean") for m in (mean, old)
    ]
    for n in range(3):
        alone = [
            GaussianDecisions(
                m[n : n + 1], std[n : n + 1], sample[n : n + 1], torch.tensor([0]), torch.tensor([[0]]), "mean"
            )
            for m in (mean, old)
        ]
        assert_close(whole[0].log_prob()[n], alone[0].log_prob()[0])
        assert_close(whole[0].log_ratio(whole[1])[n], alone[0].log_ratio(alone[1])[0])
        assert_close(whole[0].kl(whole[1])[n], alone[0].kl(alone[1])[0])


def test_what_is_scored_is_the_latent_as_stored() -> None:
    decisions = _decisions("mean")
    stored = decisions.sample.bfloat16()
    expected = [_per_edge(decisions, edge).log_prob(stored[edge].double()).mean() for edge in range(3)]
    assert_close(replace(decisions, sample=stored).log_prob(), _table(expected))


def test_a_view_without_entries_gives_zeros() -> None:
    empty = GaussianDecisions(
        torch.zeros(1, 2, 3),
        torch.ones(1),
        torch.zeros(0, 2, 3),
        torch.zeros(0, dtype=torch.int64),
        ENTRY * 0 - 1,
        "sum",
    )
    for values in (empty.log_prob(), empty.log_ratio(empty), empty.kl(empty)):
        assert values.shape == ENTRY.shape
        assert (values == 0).all()


def test_token_log_ratio_and_gradient_are_those_of_a_categorical() -> None:
    """A policy of a few logits: values gathered from log_softmax, the oracle is Categorical."""
    logits, old_logits = _normal(0, 2, 3, 5).requires_grad_(), _normal(1, 2, 3, 5)
    token = torch.tensor([[0, 4, 2], [1, 1, 3]])

    def decisions(of: Tensor) -> TokenDecisions:
        return TokenDecisions(of.log_softmax(-1).gather(-1, token[..., None])[..., 0])

    expected = Categorical(logits=logits).log_prob(token)
    trained = decisions(logits)
    assert_close(trained.log_prob(), expected)
    assert_close(trained.log_ratio(decisions(old_logits)), expected - Categorical(logits=old_logits).log_prob(token))
    one_hot = torch.nn.functional.one_hot(token, 5).double()
    gradient = torch.autograd.grad(trained.log_ratio(trained.detach()).sum(), logits)[0]
    assert_close(gradient, one_hot - logits.detach().softmax(-1))


def test_tokens_have_no_exact_kl() -> None:
    tokens = TokenDecisions(torch.zeros(1, 2))
    assert "exact_kl" not in PROVIDED["tokens"] and "exact_kl" in PROVIDED["latents"]
    with pytest.raises(ValueError, match="k1, k2 or k3"):
        tokens.kl(tokens)


def test_detached_decisions_have_no_graph() -> None:
    values = torch.zeros(1, 2, requires_grad=True)
    tokens = TokenDecisions(values * 1, entropy=values * 2).detach()
    assert tokens.entropy is not None
    assert not tokens.values.requires_grad and not tokens.entropy.requires_grad
    assert not replace(_decisions("sum"), mean=torch.zeros(2, 2, 3, requires_grad=True)).detach().mean.requires_grad


def test_denoising_spreads_entries_by_number() -> None:
    latents = torch.zeros(2, 3)
    denoising = Denoising(latents, latents, latents, torch.zeros(2), torch.tensor([[1, -1], [-1, 0]]))
    assert denoising.spread(torch.tensor([5.0, 7.0])).tolist() == [[7, 0], [0, 5]]
