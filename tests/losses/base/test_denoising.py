"""The base of losses on the forward process: noise levels and their sharing, errors and penalties."""

from typing import Any

import pytest
import torch
from torch.testing import assert_close

from mmrl.core.contracts import ConfigError
from mmrl.core.keys import GroupKey
from mmrl.losses.base.denoising import clean_error, noise_error, velocity_error
from mmrl.losses.sft import Sft
from tests.losses.denoisings import (
    AVERAGED,
    CLEAN,
    NOISY,
    REFERENCE,
    SIGMA,
    VELOCITY,
    batch,
    denoising,
    forward_outputs,
    gradient,
    matching,
    noise_matching,
    rollout,
)
from tests.parameters import in_one_test

STEP = GroupKey(7, 3, 0)
GRID = (1.0, 0.9, 0.75, 0.6, 0.4, 0.2)
RIGHT = torch.zeros(4)


def levels_of(loss: Sft, sizes: list[int], grid: tuple[float, ...] = ()) -> Any:
    """Returns the noise levels and seeds [B, K] of the samples of prompt indices 11, 12 ..., group by group."""
    drawn = rollout(list(range(11, 11 + len(sizes))), sizes, grid)
    order = drawn.prompt.argsort(stable=True)
    (view,) = loss.views(drawn, torch.arange(sum(sizes)), STEP)
    seeds = torch.tensor(view.noise_seed).view(-1, loss.draws)  # type: ignore[attr-defined]
    return view.sigma.view(-1, loss.draws)[order], seeds[order]  # type: ignore[attr-defined]


def test_errors_are_those_of_velocity_noise_and_clean_latents() -> None:
    at = denoising(VELOCITY)
    assert_close(velocity_error(at), matching(VELOCITY))
    assert_close(noise_error(at), noise_matching(VELOCITY))
    wrong = (NOISY - SIGMA.view(-1, 1, 1) * VELOCITY) - CLEAN
    assert_close(clean_error(at, VELOCITY, is_adaptive=False), (wrong**2).mean((1, 2)).view(4, 2))
    scaled = (wrong**2).mean((1, 2)) / wrong.abs().mean((1, 2))
    assert_close(clean_error(at, VELOCITY, is_adaptive=True), scaled.view(4, 2))


def test_penalties_pull_the_velocity_to_the_reference_and_to_the_average() -> None:
    loss = Sft(reference_weight=0.3, averaged_weight=0.5)
    assert loss.needs == {"reference", "averaged"} and Sft().needs == frozenset()
    plain = gradient(Sft(), VELOCITY, batch(RIGHT))
    pulled = 0.3 * 2 * (VELOCITY - REFERENCE) + 0.5 * 2 * (VELOCITY - AVERAGED)
    assert_close(gradient(loss, VELOCITY, batch(RIGHT)) - plain, pulled / 6 / 8)
    metrics = loss(loss.measure(forward_outputs(VELOCITY)), batch(RIGHT)).metrics
    assert_close(metrics["averaged_error"], (VELOCITY - AVERAGED).square().mean((1, 2)).view(4, 2))


def test_a_group_may_share_its_noise_levels_and_its_noise() -> None:
    sigma, seeds = levels_of(Sft(draws=3, levels="group", noise="group"), [3, 2])
    assert_close(sigma[:3], sigma[:1].expand(3, 3))
    assert (seeds[:3] == seeds[0]).all() and (sigma[0] != sigma[3]).all() and (seeds[0] != seeds[3]).all()
    sigma, seeds = levels_of(Sft(draws=3), [3, 2])
    assert sigma.unique().numel() == 15 and seeds.unique().numel() == 15


def test_logit_normal_levels_are_the_logistic_of_normal_numbers() -> None:
    sigma, _ = levels_of(Sft(draws=500, sigmas="logit_normal"), [4])
    normal = torch.logit(sigma.double())
    assert normal.mean().item() == pytest.approx(0, abs=0.06) and normal.std().item() == pytest.approx(1, abs=0.05)


def test_a_shift_moves_levels_towards_noise() -> None:
    plain, _ = levels_of(Sft(draws=50), [4])
    shifted, _ = levels_of(Sft(draws=50, shift=3.0), [4])
    assert_close(shifted, 3 * plain / (1 + 2 * plain))


@pytest.mark.parametrize("draws", [1, 2, 5])
def test_levels_of_the_samplers_grid_come_one_from_each_part(draws: int) -> None:
    """Without the first step, pure noise: 5 levels are left, each sample takes one of each of `draws` parts."""
    loss, rest = Sft(draws=draws, sigmas="grid", sigma_range=(0.0, 0.999)), GRID[1:]
    sigma, _ = levels_of(loss, [200], GRID)
    for column in range(draws):
        first, last = int(column * 5 / draws), -int(-(column + 1) * 5 // draws)
        part = {round(level, 3) for level in rest[first:last]}
        assert {round(level, 3) for level in sigma[:, column].tolist()} == part


def test_every_level_of_the_grid_is_as_likely() -> None:
    sigma, _ = levels_of(Sft(sigmas="grid"), [6000], GRID)
    counts = torch.tensor([float((sigma - level).abs().lt(1e-6).sum()) for level in GRID])
    assert_close(counts / 6000, torch.full((6,), 1 / 6), atol=0.02, rtol=0)


@pytest.mark.parametrize(
    ("grid", "found"), [(GRID, r"1.000, 0.900"), ((), "outputs that the data brings have no sampler")]
)
def test_a_grid_without_a_level_in_the_range_is_refused(grid: tuple[float, ...], found: str) -> None:
    with pytest.raises(ConfigError, match=found):
        levels_of(Sft(sigmas="grid", sigma_range=(0.0, 0.1)), [2], grid)


def test_samples_of_one_draw_have_noise_of_their_own_however_many_prompts_name_it() -> None:
    """Given outputs come as one prompt each, all of one draw."""
    drawn = rollout([5], [3])
    given = rollout([5, 5, 5], [1, 1, 1])
    (one,), (other,) = (Sft().views(each, torch.arange(3), STEP) for each in (drawn, given))
    assert one.noise_seed == other.noise_seed and torch.equal(one.sigma, other.sigma)  # type: ignore[attr-defined]
    assert len(set(one.noise_seed)) == 3  # type: ignore[attr-defined]


@in_one_test(
    ("settings", "message"),
    [
        ({"draws": 0}, "draws must be at least 1 and at most 10,000, got 0"),
        ({"draws": 10_001}, "draws must be at least 1 and at most 10,000, got 10001"),
        ({"shift": 0.0}, "shift must be above 0"),
        ({"averaged_weight": -1.0}, "averaged_weight must be at least 0"),
        ({"levels": "pair"}, "levels must be one of sample, group"),
        ({"sigmas": "pipeline"}, "sigmas must be one of uniform, stratified, logit_normal, grid"),
        ({"sigma_range": (0.9, 0.1)}, "sigma_range must be two ascending noise levels"),
    ],
)
def test_settings_out_of_range_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Sft(**settings)
