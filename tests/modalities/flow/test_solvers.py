"""Tails of paths against the same solvers written by hand in float64, and against closed forms."""

import math
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor

from mmrl.core.keys import GroupKey, normal
from mmrl.modalities.flow.solvers import Solver
from mmrl.modalities.flow.tree_sampling import sample_trees
from mmrl.plans.flow import Fork, Plan, SolverName, Step, Tail, Transition

NAMES: list[SolverName] = ["dpmpp_2m", "unipc", "heun"]
SHAPE = (2, 3)


def noise_like(count: int = 5) -> Tensor:
    return normal(3, (count, *SHAPE))


def gaussian(latents: Tensor, sigma: float) -> Tensor:
    """The velocity where data are N(0, 1): x_sigma is then x_1 sqrt((1 - sigma)^2 + sigma^2) along the ODE."""
    return (2 * sigma - 1) / (sigma**2 + (1 - sigma) ** 2) * latents


def curved(latents: Tensor, sigma: float) -> Tensor:
    return (latents * (1 - 0.3 * sigma)).sin() + 0.5 * sigma


def run(tail: Tail, latents: Tensor, velocity: Callable[[Tensor, float], Tensor]) -> Tensor:
    solver = Solver(tail)
    for level in tail.calls:
        latents = solver(latents, velocity(latents, level))
    return latents


def falling(num_steps: int, first: float = 0.95, last: float = 0.05) -> tuple[float, ...]:
    """Levels evenly spaced in log-SNR."""
    ends = [math.log((1 - sigma) / sigma) for sigma in (first, last)]
    places = [ends[0] + (ends[1] - ends[0]) * n / num_steps for n in range(num_steps + 1)]
    return tuple(1 / (1 + math.exp(place)) for place in places)


@pytest.mark.parametrize("name", NAMES)
def test_the_error_falls_with_the_square_of_the_step(name: SolverName) -> None:
    start = noise_like() * math.sqrt(0.95**2 + 0.05**2)
    exact = start.double()  # sigma 0.05 has the variance of 0.95
    errors = [float((run(Tail(name, falling(n)), start, gaussian) - exact).abs().max()) for n in (16, 64)]
    assert errors[0] / errors[1] > 10  # 4 with a first order


def by_hand(name: SolverName, sigmas: tuple[float, ...], start: Tensor) -> Tensor:
    """DPM-Solver++(2M) (arXiv 2211.01095, algorithm 2) and Heun's method (arXiv 2206.00364, algorithm 1), float64.

    The limit at sigma 1: exp(-h) = 0 in the first step, and 1 / ratio = 0 in the second.
    """
    x, levels = start.double(), list(sigmas)
    log_snr = [math.inf if s == 0 else -math.inf if s == 1 else math.log((1 - s) / s) for s in levels]
    before: Tensor | None = None
    for n, (sigma, sigma_next) in enumerate(pairwise(levels)):
        v = curved(x, sigmas[n])
        is_last = n == len(levels) - 2
        if name == "heun":
            euler = x + (sigma_next - sigma) * v
            x = euler if is_last else x + (sigma_next - sigma) * (v + curved(euler, sigma_next)) / 2
            continue
        clean, h = x - sigma * v, log_snr[n + 1] - log_snr[n]
        mixed = clean
        if before is not None and not is_last and levels[n - 1] < 1:
            ratio = (log_snr[n] - log_snr[n - 1]) / h
            mixed = (1 + 1 / (2 * ratio)) * clean - before / (2 * ratio)
        x = sigma_next / sigma * x - (1 - sigma_next) * math.expm1(-h) * mixed
        before = clean
    return x


@pytest.mark.parametrize("sigmas", [(1.0, 0.0), (0.9, 0.6, 0.0), (1.0, 0.85, 0.7, 0.4, 0.15, 0.0)])
@pytest.mark.parametrize("name", ["dpmpp_2m", "heun"])
def test_a_solver_is_its_algorithm(name: SolverName, sigmas: tuple[float, ...]) -> None:
    found = run(Tail(name, sigmas), noise_like(), curved)
    torch.testing.assert_close(found.double(), by_hand(name, sigmas, noise_like()), rtol=1e-5, atol=2e-6)


def test_the_first_steps_from_pure_noise_are_the_limit_of_those_from_near_it() -> None:
    """What the second step makes of the first one falls as 1 / (the log-SNR between the two levels)."""
    rest, start = (0.9, 0.8, 0.5, 0.0), noise_like()
    exact = run(Tail("dpmpp_2m", (1.0, *rest)), start, curved).double()
    nears = [10.0**-n for n in (6, 9, 12)]
    gaps = [(by_hand("dpmpp_2m", (1 - near, *rest), start) - exact).abs().max().item() for near in nears]
    between = [math.log(0.1 / 0.9) - math.log(near / (1 - near)) for near in nears]
    products = [gap * log_snr for gap, log_snr in zip(gaps, between, strict=True)]
    assert products == pytest.approx([products[0]] * 3, rel=0.02) and gaps[0] > 1e-4


@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # of diffusers' own grids
@pytest.mark.parametrize("name", NAMES)
def test_on_the_grid_of_diffusers_it_is_diffusers(name: SolverName) -> None:
    import diffusers

    kinds: dict[str, Any] = {
        "dpmpp_2m": diffusers.DPMSolverMultistepScheduler,
        "unipc": diffusers.UniPCMultistepScheduler,
    }
    if name == "heun":
        theirs: Any = diffusers.FlowMatchHeunDiscreteScheduler(shift=3.0)
        theirs.set_timesteps(6)
        grid = theirs.sigmas[[0, *range(1, len(theirs.sigmas) - 1, 2), -1]]
    else:
        theirs = kinds[name](prediction_type="flow_prediction", use_flow_sigmas=True, flow_shift=3.0)
        theirs.set_timesteps(6)
        grid = theirs.sigmas
    latents, tail = noise_like(), Tail(name, tuple(grid.tolist()))
    for time, level in zip(theirs.timesteps, tail.calls, strict=True):
        latents = theirs.step(curved(latents, level), time, latents, return_dict=False)[0]
    torch.testing.assert_close(run(tail, noise_like(), curved), latents, rtol=1e-5, atol=1e-5)


def calling(calls: list[int], first: int = 0) -> Any:
    """A velocity that notes its calls; prompts are numbered from `first`."""

    def velocity(latents: Tensor, sigma: Tensor, prompt: Tensor) -> Tensor:
        calls.append(len(latents))
        level = sigma.view(-1, 1, 1)
        return (latents.float() * (1 - 0.3 * level)).sin() + 0.5 * (prompt.view(-1, 1, 1) + first)

    return velocity


def random_step(sigma: float, sigma_next: float, branch: int = 1) -> Step:
    return Step(sigma, sigma_next, Transition(0.9, sigma_next - sigma, 0.3), branch)


SIDE_BY_SIDE = [
    Plan(2, (), tail=Tail("dpmpp_2m", (1.0, 0.7, 0.4, 0.0))),
    Plan(3, (), tail=Tail("dpmpp_2m", (1.0, 0.7, 0.4, 0.0))),
    Plan(1, (random_step(1.0, 0.8, 4),), tail=Tail("heun", (0.8, 0.5, 0.0))),
    Plan(2, (random_step(1.0, 0.8), random_step(0.8, 0.6)), tail=Tail("unipc", (0.6, 0.3, 0.1, 0.0))),
    Plan(
        2,
        (random_step(1.0, 0.8), random_step(0.8, 0.6)),
        forks=(Fork(1, (Step(0.8, 0.5, Transition(1.0, -0.3, 0.0)),), group=1, tail=Tail("heun", (0.5, 0.2, 0.0))),),
        tail=Tail("dpmpp_2m", (0.6, 0.2, 0.0)),
    ),
    # the tail of the third one, a call later
    Plan(2, (random_step(1.0, 0.9), random_step(0.9, 0.8)), tail=Tail("heun", (0.8, 0.5, 0.0))),
]


def test_groups_with_different_tails_side_by_side_are_what_they_are_alone() -> None:
    keys = [GroupKey(1, 2, draw) for draw in range(len(SIDE_BY_SIDE))]
    calls: list[int] = []
    together = sample_trees(SIDE_BY_SIDE, keys, calling(calls), SHAPE, torch.empty(0))
    assert sum(calls) == sum(plan.num_rollout_calls for plan in SIDE_BY_SIDE)
    assert len(calls) == max(plan.num_tree_steps for plan in SIDE_BY_SIDE)
    for number, (plan, key) in enumerate(zip(SIDE_BY_SIDE, keys, strict=True)):
        calls.clear()
        alone = sample_trees([plan], [key], calling(calls, number), SHAPE, torch.empty(0))
        assert torch.equal(alone.clean, together.clean[together.prompt == number])
        assert sum(calls) == plan.num_rollout_calls and len(alone.clean) == plan.num_samples
        assert not alone.sigma.any()


def test_a_tail_goes_on_from_the_last_random_state() -> None:
    plan, key = SIDE_BY_SIDE[2], GroupKey(0, 0, 0)
    tree = sample_trees([plan], [key], calling([]), SHAPE, torch.empty(0))
    states = tree.decided.child
    velocity = calling([])
    ends = run(plan.tail, states, lambda x, s: velocity(x, torch.full((4,), s), torch.zeros(4)))  # type: ignore[arg-type]
    assert torch.equal(tree.clean, ends)
    assert plan.num_update_calls == len(tree.decided.state) == 1


def test_nothing_in_a_tail_is_a_decision_and_heun_calls_twice() -> None:
    counts = {name: Plan(3, (), tail=Tail(name, (1.0, 0.6, 0.3, 0.0))).num_rollout_calls for name in NAMES}
    assert counts == {"dpmpp_2m": 9, "unipc": 9, "heun": 15}
    assert Plan(3, (), tail=Tail("heun", (1.0, 0.0))).num_rollout_calls == 3


def test_tails_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match="at least two levels that fall"):
        Tail("heun", (0.5, 0.5))
    with pytest.raises(ValueError, match=r"a tail must begin where the steps end, at 0\.8, got 0\.7"):
        Plan(1, (random_step(1.0, 0.8),), tail=Tail("heun", (0.7, 0.0)))
