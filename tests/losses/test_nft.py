"""DiffusionNFT: its identities, the authors' formula, its seeds (docs/maths/denoising-losses.md#diffusionnft)."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from mmrl.core.contracts import ConfigError, LossBatch, OutputsByWeights
from mmrl.core.data import Outputs, Prompt, Rollout
from mmrl.core.forward_outputs import Denoising
from mmrl.core.keys import GroupKey
from mmrl.core.plugins import build
from mmrl.losses.base.old_decay import OldDecay
from mmrl.losses.nft import Nft
from tests.parameters import in_one_test

SIGMA = torch.tensor([0.2, 0.9, 0.5, 0.7], dtype=torch.float64)
ENTRY = torch.tensor([[0, 1], [2, 3]])  # two samples, two draws each
PLAIN = Nft(is_adaptive=False, reference_weight=0.0, draws=2)


def _normal(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


CLEAN, NOISE = _normal(0, 4, 2, 3), _normal(1, 4, 2, 3)
TARGET = NOISE - CLEAN
NOISY = (1 - SIGMA).view(-1, 1, 1) * CLEAN + SIGMA.view(-1, 1, 1) * NOISE
OLD = _normal(2, 4, 2, 3)


def _denoising(velocity: Tensor) -> Denoising:
    return Denoising(velocity, TARGET, NOISY, SIGMA, ENTRY)


def _batch(advantages: Tensor) -> LossBatch:
    return LossBatch(advantages, torch.ones(2, 2), torch.tensor([0, 0]), torch.zeros(2))


def _advantages(goodness: float, loss: Nft) -> Tensor:
    """Returns the advantages of r = 1/2 + A / (2 advantage_max)."""
    return torch.full((2, 2), (2 * goodness - 1) * loss.advantage_max, dtype=torch.float64)


def _terms(loss: Nft, velocity: Tensor, advantages: Tensor, reference: Tensor | None = None) -> Tensor:
    forward_outputs = OutputsByWeights(
        _denoising(velocity), _denoising(OLD), None if reference is None else _denoising(reference)
    )
    return loss(loss.measure(forward_outputs), _batch(advantages)).terms


def _gradient(loss: Nft, velocity: Tensor, advantages: Tensor) -> Tensor:
    velocity = velocity.clone().requires_grad_()
    return torch.autograd.grad(_terms(loss, velocity, advantages).sum(), velocity)[0]


@pytest.mark.parametrize("is_adaptive", [False, True])
def test_an_average_sample_leaves_the_old_policy_where_it_is(is_adaptive: bool) -> None:
    loss = replace(PLAIN, is_adaptive=is_adaptive)
    assert_close(_gradient(loss, OLD, _advantages(0.5, loss)), torch.zeros_like(OLD), atol=1e-12, rtol=0)


@pytest.mark.parametrize("beta", [0.1, 1.0, 3.0])
@pytest.mark.parametrize("goodness", [0.0, 0.2, 0.9])
def test_the_slope_at_the_old_policy_grows_with_goodness_and_not_with_beta(goodness: float, beta: float) -> None:
    """advantage_max * 2 (2r - 1) (v_old - v*) sigma^2 / d for each element."""
    loss = replace(PLAIN, beta=beta)
    expected = 5.0 * 2 * (2 * goodness - 1) * (OLD - TARGET) * SIGMA.view(-1, 1, 1).square() / 6
    assert_close(_gradient(loss, OLD, _advantages(goodness, loss)), expected)


@pytest.mark.parametrize("beta", [0.5, 1.0, 2.0])
@pytest.mark.parametrize("goodness", [0.1, 0.5, 1.0])
def test_the_minimiser_lies_on_the_line_from_old_to_the_target(goodness: float, beta: float) -> None:
    """v_old + (2r - 1)(v* - v_old) / beta: no gradient there, and a higher loss all around."""
    loss = replace(PLAIN, beta=beta)
    advantages = _advantages(goodness, loss)
    minimiser = OLD + (2 * goodness - 1) * (TARGET - OLD) / beta
    assert_close(_gradient(loss, minimiser, advantages), torch.zeros_like(OLD), atol=1e-12, rtol=0)
    for seed in range(3):
        assert (
            _terms(loss, minimiser + 0.1 * _normal(seed, 4, 2, 3), advantages) > _terms(loss, minimiser, advantages)
        ).all()


def test_beta_one_contrasts_the_policy_with_its_reflection_in_old() -> None:
    """v+ = v and v- = 2 v_old - v, errors taken in clean latents one element at a time."""
    velocity = _normal(3, 4, 2, 3)
    positive, negative = PLAIN.measure(OutputsByWeights(_denoising(velocity), _denoising(OLD)))
    for row in range(2):
        for column in range(2):
            n = int(ENTRY[row, column])
            for got, v in ((positive, velocity[n]), (negative, 2 * OLD[n] - velocity[n])):
                error = NOISY[n] - SIGMA[n] * v - CLEAN[n]
                assert got[row, column].item() == pytest.approx(float((error**2).mean()))


@pytest.mark.parametrize("is_adaptive", [False, True])
def test_terms_equal_the_papers_code_one_entry_at_a_time(is_adaptive: bool) -> None:
    loss = Nft(beta=0.7, advantage_max=2.0, is_adaptive=is_adaptive, reference_weight=0.25, draws=2)
    velocity, reference = _normal(3, 4, 2, 3), _normal(4, 4, 2, 3)
    advantages = torch.tensor([[1.0, -0.5], [9.0, -9.0]], dtype=torch.float64)
    terms = _terms(loss, velocity, advantages, reference)

    def error(v: Tensor, n: int) -> float:
        difference = (NOISY[n] - SIGMA[n] * v) - CLEAN[n]
        scale = float(difference.abs().mean()) if is_adaptive else 1.0
        return float(difference.square().mean()) / scale

    for row, column in ((0, 0), (0, 1), (1, 0), (1, 1)):
        n, r = int(ENTRY[row, column]), min(max(0.5 + float(advantages[row, column]) / 4, 0.0), 1.0)
        contrast = r * error(0.7 * velocity[n] + 0.3 * OLD[n], n) + (1 - r) * error(1.7 * OLD[n] - 0.7 * velocity[n], n)
        expected = 2.0 * contrast / 0.7 + 0.25 * float((velocity[n] - reference[n]).square().mean())
        assert terms[row, column].item() == pytest.approx(expected)


def test_the_adaptive_scale_has_no_gradient_and_a_floor() -> None:
    loss = replace(PLAIN, is_adaptive=True)
    advantages = _advantages(1.0, loss)
    velocity = _normal(3, 4, 2, 3)
    scale = (SIGMA.view(-1, 1, 1) * (velocity - TARGET)).abs().mean((1, 2)).view(-1, 1, 1)
    assert_close(_gradient(loss, velocity, advantages), _gradient(PLAIN, velocity, advantages) / scale)
    assert (_terms(loss, TARGET, advantages) == 0).all()
    assert (_gradient(loss, TARGET, advantages) == 0).all()
    nearly = TARGET + 1e-7
    assert_close(_gradient(loss, nearly, advantages), _gradient(PLAIN, nearly, advantages) / 1e-5)


def test_gradients_equal_finite_differences() -> None:
    loss = Nft(beta=0.5, is_adaptive=False, reference_weight=0.1, draws=2)
    reference, advantages = _normal(4, 4, 2, 3), torch.tensor([[1.0, -2.0], [4.0, 0.0]], dtype=torch.float64)
    assert torch.autograd.gradcheck(
        lambda v: _terms(loss, v, advantages, reference), (_normal(3, 4, 2, 3).requires_grad_(),)
    )


def test_the_reference_is_asked_for_only_where_it_counts() -> None:
    assert Nft().needs == {"old", "reference"}
    assert PLAIN.needs == {"old"}
    assert len(PLAIN.measure(OutputsByWeights(_denoising(OLD), _denoising(OLD)))) == 2


def test_metrics_are_the_measures_without_a_graph() -> None:
    loss = replace(PLAIN, reference_weight=0.1)
    velocity = OLD.clone().requires_grad_()
    forward_outputs = OutputsByWeights(_denoising(velocity), _denoising(OLD), _denoising(TARGET))
    measures = loss.measure(forward_outputs)
    metrics = loss(measures, _batch(torch.zeros(2, 2))).metrics
    assert set(metrics) == {"positive_error", "negative_error", "reference_error"}
    for values, measure in zip(metrics.values(), measures, strict=True):
        assert not values.requires_grad
        assert_close(values, measure.detach())


def test_every_entry_counts_alike() -> None:
    weight = torch.tensor([[1.0, 1.0], [1.0, 0.0]])
    coefficients, denominator = PLAIN.coefficients(
        LossBatch(torch.zeros(2, 2), weight, torch.tensor([0, 1]), torch.zeros(2))
    )
    assert coefficients.tolist() == weight.tolist()
    assert denominator == 3


@in_one_test(
    ("decay", "expected"),
    [
        (OldDecay(), {0: 0.001, 99: 0.1, 498: 0.499, 499: 0.5, 5000: 0.5}),  # type 1 of the paper's code
        (
            OldDecay(slope=0.0075, maximum=0.999, delay=75),
            {0: 0.0, 73: 0.0, 74: 0.0, 75: 0.0075, 174: 0.75, 400: 0.999},
        ),
        (OldDecay(start=0.5, maximum=0.5), {0: 0.5, 1000: 0.5}),
        (OldDecay(slope=0.0), {0: 0.0, 1000: 0.0}),
    ],
)
def test_the_old_weights_follow_by_schedule(decay: OldDecay, expected: Mapping[int, float]) -> None:
    """The paper's code asks after the updates, with their count: n = iteration + 1."""
    for iteration, value in expected.items():
        assert Nft(decay=decay).old_decay(iteration) == pytest.approx(value)


def _rollout(draws: list[int], sizes: list[int]) -> Rollout:
    """Returns groups of these sizes, interleaved: sample by sample, not group by group."""
    prompt = torch.tensor([p for member in range(max(sizes)) for p, size in enumerate(sizes) if member < size])
    size, zeros = len(prompt), torch.zeros(len(prompt), dtype=torch.int64)
    keys = tuple(GroupKey(7, 3, draw) for draw in draws)
    prompts = tuple(Prompt(str(draw)) for draw in draws)
    outputs = Outputs(images=torch.zeros(size, 3, 1, 1))
    return Rollout(prompts, keys, prompt, torch.tensor(draws)[prompt], zeros, zeros, outputs, (), None, 0)


STEP = GroupKey(7, 3, 0)


def _noise_samples_of(
    loss: Nft, rollout: Rollout, rows: Tensor, step: GroupKey = STEP
) -> dict[tuple[int, int, int], tuple[float, int]]:
    """Returns (sigma, noise seed) by prompt index, member of the group and column."""
    (view,) = loss.views(rollout, rows, step)
    found = {}
    for sample, column, sigma, seed in zip(view.sample, view.noise_sample, view.sigma, view.noise_seed, strict=True):
        prompt = rollout.prompt[sample]
        member = int((rollout.prompt[:sample] == prompt).sum())
        found[rollout.keys[int(prompt)].prompt_index, member, int(column)] = (sigma.item(), seed)
    return found


@pytest.mark.parametrize("sigmas", ["uniform", "stratified"])
@pytest.mark.parametrize("noise", ["sample", "group"])
def test_draws_do_not_depend_on_what_else_is_in_the_rollout(sigmas: Any, noise: Any) -> None:
    """So one process with both groups and two processes with one each see the same noise."""
    loss = Nft(draws=3, sigmas=sigmas, noise=noise)
    both = _noise_samples_of(loss, _rollout([11, 4], [4, 2]), torch.arange(6))
    first = _noise_samples_of(loss, _rollout([11], [4]), torch.arange(4))
    second = _noise_samples_of(loss, _rollout([4], [2]), torch.arange(2))
    assert both == {**first, **second}
    some = _noise_samples_of(loss, _rollout([11, 4], [4, 2]), torch.tensor([5, 0]))
    assert some.items() <= both.items() and len(some) == 6


def test_each_optimizer_step_draws_anew() -> None:
    rollout, rows = _rollout([11], [2]), torch.arange(2)
    first, again = (_noise_samples_of(PLAIN, rollout, rows, step) for step in (STEP, STEP))
    other = _noise_samples_of(PLAIN, rollout, rows, replace(STEP, prompt_index=1))
    assert first == again
    assert all(first[name][0] != other[name][0] and first[name][1] != other[name][1] for name in first)


def test_noise_is_shared_by_the_sample_alone_or_by_its_group() -> None:
    rollout, rows = _rollout([11, 4], [3, 3]), torch.arange(6)
    (view,) = Nft(draws=2).views(rollout, rows, STEP)
    assert len(set(view.noise_seed)) == 12
    shared = _noise_samples_of(Nft(draws=2, noise="group"), rollout, rows)
    assert len({seed for _, seed in shared.values()}) == 4
    assert all(shared[group, member, k][1] == shared[group, 0, k][1] for group, member, k in shared)


def test_stratified_noise_levels_fall_one_into_each_stratum_of_the_group() -> None:
    rollout = _rollout([11, 4], [4, 4])
    drawn = _noise_samples_of(Nft(draws=3, sigmas="stratified", sigma_range=(0.2, 0.8)), rollout, torch.arange(8))
    for group in (11, 4):
        levels = [sigma for (draw, _, _), (sigma, _) in drawn.items() if draw == group]
        assert sorted(int((level - 0.2) / 0.6 * 12) for level in levels) == list(range(12))
        assert levels != sorted(levels)


def test_uniform_noise_levels_fill_their_range() -> None:
    (view,) = Nft(draws=50, sigma_range=(0.2, 0.8)).views(_rollout([1], [40]), torch.arange(40), STEP)
    assert 0.2 <= view.sigma.min() < 0.21 and 0.79 < view.sigma.max() <= 0.8
    assert view.sigma.mean().item() == pytest.approx(0.5, abs=0.02)


def test_no_rows_make_an_empty_view() -> None:
    (view,) = PLAIN.views(_rollout([1], [2]), torch.zeros(0, dtype=torch.int64), STEP)
    assert view.num_calls == 0


def test_a_config_gives_the_decay_as_a_mapping() -> None:
    loss = build("losses", {"name": "nft", "decay": {"start": "0.5"}, "sigma_range": [0, 0.9]})
    assert loss == Nft(decay=OldDecay(start=0.5), sigma_range=(0.0, 0.9))
    with pytest.raises(ConfigError, match=r"nft\.decay"):
        build("losses", {"name": "nft", "decay": {"stat": 0.5}})
    with pytest.raises(ConfigError, match=r"start must be at most maximum = 0\.5, got 0\.9"):
        build("losses", {"name": "nft", "decay": {"start": 0.9}})


@in_one_test(
    ("settings", "message"),
    [
        ({"beta": 0.0}, "beta must be above 0, got 0.0"),
        ({"advantage_max": -1.0}, "advantage_max must be above 0"),
        ({"draws": 0}, "draws must be at least 1"),
        ({"reference_weight": -1.0}, "reference_weight must be at least 0"),
        ({"sigma_range": (0.5, 0.5)}, "sigma_range must be two ascending noise levels"),
        ({"sigma_range": (0.0, 1.5)}, "sigma_range"),
        ({"sigmas": "logit"}, "sigmas must be one of uniform, stratified, logit_normal, grid, got 'logit'"),
        ({"noise": "batch"}, "noise must be one of sample, group"),
    ],
)
def test_settings_out_of_range_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Nft(**settings)


@in_one_test("settings", [{"slope": -1.0}, {"delay": -1}, {"maximum": 1.0}, {"start": -0.1}])
def test_decays_out_of_range_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="got"):
        OldDecay(**settings)
