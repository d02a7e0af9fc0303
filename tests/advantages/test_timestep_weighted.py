"""Weights of denoising steps by hand, and TempFlow's on the grid of SD3.5."""

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch.testing import assert_close

from mmrl.advantages.grpo import Grpo
from mmrl.advantages.rloo import Rloo
from mmrl.advantages.timestep_weighted import TimestepWeighted
from mmrl.core.contracts import ConfigError
from mmrl.core.data import Paths, Scores
from mmrl.core.plugins import build
from mmrl.samplers.base.kernels import euler_maruyama, flow_sde_diffusion
from tests.parameters import in_one_test

REWARD = torch.tensor([0.0, 1.0, 3.0])
EDGES = torch.tensor([[0, 1, 2], [3, 4, -1], [5, 6, 7]])
FACTS = {
    "step": torch.tensor([[0.0, 1, 2], [1, 3, 0], [0, 1, 2]]),
    "sigma": torch.tensor([[1.0, 0.9, 0.7], [0.9, 0.4, 0], [1, 0.9, 0.7]]),
    "sigma_next": torch.tensor([[0.9, 0.7, 0.4], [0.7, 0.0, 0], [0.9, 0.7, 0.4]]),
    "std": torch.tensor([[0.7, 0.5, 0.3], [0.5, 0.2, 0], [0.7, 0.5, 0.3]]),
    "jacobian": torch.tensor([[0.1, 0.25, 0.35], [0.25, 0.5, 0], [0.1, 0.25, 0.35]]),
}
INNER = Rloo()  # -2, -0.5, 2.5


def scores() -> Scores:
    numbers, zeros = torch.arange(3), torch.zeros(3, dtype=torch.int64)
    return Scores(REWARD[:, None], ("r",), (1.0,), torch.ones(3, dtype=torch.bool), zeros, numbers, zeros)


def weigh(**settings: Any) -> torch.Tensor:
    return TimestepWeighted(**{"inner": INNER, "scale": 1.0, **settings})(scores(), Paths(EDGES, FACTS))


@in_one_test(
    ("settings", "expected"),
    [
        ({}, [[-1.4, -1.0, -0.6], [-0.25, -0.1, 0], [1.75, 1.25, 0.75]]),
        ({"scale": 2.25}, [[-3.15, -2.25, -1.35], [-0.5625, -0.225, 0], [3.9375, 2.8125, 1.6875]]),
        ({"by": "step_size"}, [[-0.2, -0.4, -0.6], [-0.1, -0.2, 0], [0.25, 0.5, 0.75]]),
        ({"by": "jacobian"}, [[-0.2, -0.5, -0.7], [-0.125, -0.25, 0], [0.25, 0.625, 0.875]]),
        ({"by": "listed", "weights": (1, 0, 2, 4)}, [[-2, 0, -4], [0, -2, 0], [2.5, 0, 5]]),
        ({"by": "discount", "discount": 0.5}, [[-0.5, -1, -2], [-0.25, -0.5, 0], [0.625, 1.25, 2.5]]),
        ({"by": "listed", "weights": (1, 0, 2, 1), "scale": None}, [[-2, 0, -4], [0, -0.5, 0], [2.5, 0, 5]]),
    ],
)
def test_weights_by_hand(settings: dict[str, Any], expected: list[list[float]]) -> None:
    """The weights of the last case are 1, 0, 2, 0, 1, 1, 0, 2: their mean is 7 / 8."""
    scale = 8 / 7 if settings.get("scale", 1) is None else 1
    assert_close(weigh(**settings), scale * torch.tensor(expected))


def test_decisions_of_samples_that_could_not_be_judged_do_not_count_in_the_mean_weight() -> None:
    valid = torch.tensor([True, True, False])
    advantage = TimestepWeighted(inner=INNER, scale=None)
    got = advantage(replace(scores(), valid=valid), Paths(EDGES, FACTS))
    alone = Paths(EDGES[:2], {name: fact[:2] for name, fact in FACTS.items()})
    assert_close(got[:2], advantage(scores().select(torch.arange(2)), alone))
    assert not got[2].any()
    assert not advantage(replace(scores(), valid=torch.zeros_like(valid)), Paths(EDGES, FACTS)).any()


@pytest.mark.parametrize("settings", [{"by": "listed", "weights": (3.0,) * 4}, {"by": "discount"}])
def test_equal_weights_of_mean_one_leave_the_inner_advantage(settings: dict[str, Any]) -> None:
    plain = INNER(scores())[:, None].expand(3, 3) * (EDGES >= 0)
    assert_close(weigh(**settings, scale=None), plain)


SHIFTED = [3 * (1 - n / 10) / (1 + 2 * (1 - n / 10)) for n in range(11)]


@pytest.mark.parametrize("is_schedulers", [True, False])
def test_the_weights_of_tempflow_have_mean_one_on_the_grid_of_sd35(is_schedulers: bool) -> None:
    """10 steps of which 9 are random, noise level 0.7: 0.999 on the scheduler's own grid, which shifts its lowest level
    twice, and 1.004 on a plain one of shift 3."""
    from diffusers import FlowMatchEulerDiscreteScheduler

    scheduler: Any = FlowMatchEulerDiscreteScheduler(shift=3.0)
    scheduler.set_timesteps(10)
    levels = scheduler.sigmas.tolist() if is_schedulers else SHIFTED
    moves = [euler_maruyama(s, t, flow_sde_diffusion(s, levels[1], 0.7)) for s, t in pairwise(levels[:-1])]
    facts = {"std": torch.tensor([[move.std for move in moves]] * 3)}
    edges = torch.arange(27).view(3, 9)
    got = TimestepWeighted(inner=INNER)(scores(), Paths(edges, facts))
    assert float(got[0].mean() / -2) == pytest.approx(0.999 if is_schedulers else 1.004, abs=2e-4)


def test_the_defaults_are_tempflows_around_grpo() -> None:
    default = build("advantages", {"name": "timestep_weighted"})
    assert (default.by, default.scale, default.inner) == ("std", 2.25, Grpo())
    assert default.declaration.requires == {"std"}
    assert build("advantages", {"name": "timestep_weighted", "by": "discount"}).declaration.requires == frozenset()


def test_without_decisions_it_is_the_inner_advantage() -> None:
    assert_close(TimestepWeighted(inner=INNER)(scores()), INNER(scores()))


@in_one_test(
    ("settings", "message"),
    [
        ({"scale": 0}, "scale must be above 0, or null, got 0"),
        ({"by": "listed"}, "weights are for by 'listed', got .. with 'listed'"),
        ({"weights": [1]}, "weights are for by 'listed'"),
        ({"by": "listed", "weights": [-1]}, r"weights\.0 must be at least 0, got -1"),
        ({"by": "discount", "discount": 0}, "above 0 and at most 1, got 0"),
        ({"discount": 0.5}, "discount is for by 'discount'"),
        ({"by": "noise"}, "by"),
    ],
)
def test_settings_out_of_range_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build("advantages", {"name": "timestep_weighted", **settings})


def test_too_few_listed_weights_are_refused() -> None:
    with pytest.raises(ConfigError, match="weights has 3 numbers, but step 3 is trained"):
        weigh(by="listed", weights=(1, 1, 1))
