"""Sampling that a reward steers: plain where there is nothing to choose, and in the limit the tilted law."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

from mmrl.core.contracts import ConfigError, Granularity, RewardBatch, RunError
from mmrl.core.data import Prompt, Rollout
from mmrl.core.keys import GroupKey, normal
from mmrl.core.plugins import build
from mmrl.modalities.flow.tree_sampling import sample_trees
from mmrl.plans.flow import Plan
from mmrl.rewards.wrappers.latent_surrogate import LatentSurrogate
from mmrl.samplers.best_of_n import BestOfN
from mmrl.samplers.fk_steering import FKSteering
from mmrl.samplers.guided import Guided
from mmrl.samplers.svdd import SVDD
from tests.linear_flow import LinearFlow, Smooth, random_flow, smooth
from tests.parameters import in_one_test

KEYS = [GroupKey(5, 0, draw) for draw in range(3)]
TEXTS = ("0.3", "-0.7", "1.5")
PROPOSAL = build("samplers", {"name": "ddim", "num_steps": 4})
STEERED: dict[str, Any] = {
    "fk_steering": FKSteering(Smooth(), PROPOSAL, scale=2.0),
    "fk_steering, max": FKSteering(Smooth(), PROPOSAL, potential="max", last="best"),
    "fk_steering, sum": FKSteering(Smooth(), PROPOSAL, potential="sum", resample_at=(0, 2)),
    "svdd": SVDD(Smooth(), PROPOSAL),
    "svdd, alpha": SVDD(Smooth(), PROPOSAL, alpha=0.5),
    "guided": Guided(Smooth(), PROPOSAL, 2.0),
    "best_of_n": BestOfN(Smooth(), PROPOSAL),
    "best_of_n, unipc": BestOfN(Smooth(), build("samplers", {"name": "ode", "num_steps": 4, "solver": "unipc"})),
}


def roll(policy: LinearFlow, sampler: Any, rows: Sequence[int] = (0, 1, 2), size: int = 3) -> Rollout:
    keys = [KEYS[row] for row in rows]
    plans = [sampler.plan(policy, key, size) for key in keys]
    return policy.rollout([Prompt(TEXTS[row]) for row in rows], plans, keys)


def images_of(rollout: Rollout) -> Tensor:
    assert rollout.outputs.images is not None
    return rollout.outputs.images


@pytest.mark.parametrize("name", STEERED)
def test_calls_are_as_planned_and_groups_do_not_know_of_each_other(name: str) -> None:
    policy, sampler = random_flow(network_batch=7, decode_batch=5), STEERED[name]
    policy.num_calls = 0
    together = roll(policy, sampler)
    assert policy.num_calls == sum(sampler.plan(policy, key, 3).num_rollout_calls for key in KEYS)
    assert together.num_samples == 9 and together.group.tolist() == [0] * 3 + [1] * 3 + [2] * 3
    assert not (together.blocks[0].edge >= 0).any()
    policy.network_batch, policy.decode_batch = 256, 64
    for row in range(3):
        torch.testing.assert_close(images_of(roll(policy, sampler, [row])), images_of(together)[3 * row : 3 * row + 3])


@in_one_test(
    "sampler",
    [
        *(FKSteering(Smooth(), PROPOSAL, 1), SVDD(Smooth(), PROPOSAL, 1), BestOfN(Smooth(), PROPOSAL, 1)),
        Guided(Smooth(), PROPOSAL, 0.0),
    ],
)
def test_with_nothing_to_choose_from_it_is_the_proposal_bit_for_bit(sampler: Any) -> None:
    policy = random_flow()
    assert torch.equal(images_of(roll(policy, sampler)), images_of(roll(policy, PROPOSAL)))


def test_best_of_n_is_the_best_of_exactly_what_the_proposal_draws() -> None:
    policy = random_flow()
    plain = images_of(roll(policy, PROPOSAL, size=12)).view(3, 3, 4, 2)  # prompts, samples, n, elements
    told = torch.tensor([float(text) for text in TEXTS]).repeat_interleave(12)
    scores = smooth(plain.reshape(36, 2), told).view(3, 3, 4)
    best = plain.gather(2, scores.argmax(2)[..., None, None].expand(3, 3, 1, 2)).reshape(9, 2)
    assert torch.equal(images_of(roll(policy, STEERED["best_of_n"])), best)


def test_svdd_keeps_the_best_candidate_of_every_step() -> None:
    """A walk by hand: one sample, 3 candidates; the reward of what one Euler step to sigma 0 would give."""
    policy, sampler = random_flow(), SVDD(Smooth(), PROPOSAL, candidates=3)
    rollout = roll(policy, sampler, [0], size=1)
    plan, told = sampler.plan(policy, KEYS[0], 1), policy.conditioning([TEXTS[0]])
    states = normal(KEYS[0].seed_for("root"), (1, 2))
    for number, step in enumerate(plan.steps):
        sigma = torch.full((len(states),), step.sigma)
        velocity = policy.velocity(states, sigma, told[torch.zeros(len(states), dtype=torch.int64)]).detach()
        kept = smooth(states - step.sigma * velocity, torch.tensor(0.3)).argmax()[None]
        move = step.transition
        noise = normal(KEYS[0].seed_for("step", number), (3, 2)) if step.is_random else torch.zeros(1, 2)
        states = move.state * states[kept] + move.velocity * velocity[kept] + move.std * noise
    torch.testing.assert_close(images_of(rollout), states)


@pytest.mark.parametrize("steps", [(1, None), (2, 3)])
def test_guided_adds_the_force_of_the_reward_at_the_clean_estimate(steps: tuple[int, int | None]) -> None:
    """A walk by hand on latents that are their own images, the gradient by central differences in float64."""
    policy, first, last = random_flow(), steps[0], steps[1]
    sampler = Guided(Smooth(), PROPOSAL, 2.0, first, last)
    states = normal(KEYS[0].seed_for("root"), (1, 2))
    told = policy.conditioning([TEXTS[0]])
    for number, step in enumerate(sampler.plan(policy, KEYS[0], 1).steps):
        velocity = policy.velocity(states, torch.tensor([step.sigma]), told).detach()
        if first <= number < (last or 4):
            clean, force = (states - step.sigma * velocity).double(), torch.zeros(1, 2)
            for place in range(2):
                shift = torch.zeros(1, 2, dtype=torch.float64)
                shift[0, place] = 1e-5
                rise = smooth(clean + shift, torch.tensor(0.3)) - smooth(clean - shift, torch.tensor(0.3))
                force[0, place] = float(rise) / 2e-5
            velocity = velocity - 2.0 * step.sigma / (1 - step.sigma) * force
        noise = normal(KEYS[0].seed_for("step", number), (1, 2)) if step.is_random else torch.zeros(1, 2)
        move = step.transition
        states = move.state * states + move.velocity * velocity + move.std * noise
    torch.testing.assert_close(images_of(roll(policy, sampler, [0], size=1)), states, rtol=1e-4, atol=1e-4)


def test_guided_samples_score_better() -> None:
    policy, told = random_flow(), torch.tensor([float(text) for text in TEXTS]).repeat_interleave(32)
    scores = [
        float(smooth(images_of(roll(policy, sampler, size=32)), told).mean())
        for sampler in (PROPOSAL, Guided(Smooth(), PROPOSAL, 0.3), Guided(Smooth(), PROPOSAL, 1.0))
    ]
    assert scores[0] < scores[1] < scores[2]


def test_a_reward_without_a_gradient_and_steps_at_pure_noise_cannot_guide() -> None:
    with pytest.raises(ConfigError, match="has no gradient to guide by"):
        build(
            "samplers",
            {
                "name": "guided",
                "reward": {"name": "jpeg_size"},
                "proposal": {"name": "ode", "num_steps": 4},
                "scale": 1,
            },
        )
    policy = random_flow()
    with pytest.raises(ConfigError, match=r"guided steps must lie in \[1, 4\), behind pure noise, got first 0"):
        Guided(Smooth(), PROPOSAL, 1.0, 0).plan(policy, KEYS[0], 1)
    with pytest.raises(ConfigError, match="got first 4 and last None"):
        Guided(Smooth(), PROPOSAL, 1.0, 4).plan(policy, KEYS[0], 1)


MEAN, VARIANCE, STEPS = 0.5, 0.6, 20


def gaussian(latents: Tensor, sigma: Tensor, prompt: Tensor) -> Tensor:
    """The velocity where the data are N(MEAN, VARIANCE)."""
    level = sigma[:, None]
    spread = (1 - level) ** 2 * VARIANCE + level**2
    clean = MEAN + (1 - level) * VARIANCE / spread * (latents - (1 - level) * MEAN)
    return (latents - clean) / level


def toy(plans: Sequence[Plan], score: Any) -> Tensor:
    """[B] samples of the toy by some plans, where the reward is a function of the latent."""

    def judge(reward: Any, latents: Tensor, level: float, plan: Tensor, call: int) -> Tensor:
        found: Tensor = score(latents[:, 0].double())
        return found

    keys = [GroupKey(1, 0, draw) for draw in range(len(plans))]
    return sample_trees(plans, keys, gaussian, (1,), torch.empty(0), judge=judge).clean[:, 0].double()


class Grid:
    sample_kind = "latents"

    def sigmas(self, kind: str, num_steps: int) -> list[float]:
        return [1 - n / num_steps for n in range(num_steps + 1)]


def proposal() -> Any:
    return build("samplers", {"name": "ddim", "num_steps": STEPS})


@pytest.mark.slow
@pytest.mark.parametrize(
    ("potential", "resample_at"),
    [("diff", None), ("max", None), ("sum", (12, 16)), ("diff", ())],
)
@pytest.mark.parametrize("shape", ["linear", "quadratic"])
def test_many_particles_follow_the_tilted_law_whatever_the_potential(
    shape: str, potential: Any, resample_at: Any
) -> None:
    """exp(x) N(m, s) is N(m + s, s); exp(-x^2 / 2) N(m, s) is N(m / (1 + s), s / (1 + s)); s of the plain sampler."""
    grid, key = Grid(), GroupKey(1, 0, 0)
    plain = toy([proposal().plan(grid, key, 20000)], None)
    mean, variance = float(plain.mean()), float(plain.var())
    assert (mean, variance) == pytest.approx((MEAN, VARIANCE), abs=0.15)  # what 20 steps make of it
    steered = FKSteering(Smooth(), proposal(), 20000, resample_at, potential, scale=1.0)
    plan = steered.plan(grid, key, 1)
    *others, last = plan.choices
    everyone = replace(plan, choices=(*others, replace(last, keep=20000)))  # all particles, drawn by their weights
    found = toy([everyone], torch.Tensor.clone if shape == "linear" else lambda x: -x.square() / 2)
    expected = (mean + variance, variance) if shape == "linear" else (mean / (1 + variance), variance / (1 + variance))
    assert (float(found.mean()), float(found.var())) == pytest.approx(expected, abs=0.06)


@pytest.mark.slow  # most of a second each, or more
def test_svdd_with_many_candidates_follows_the_tilted_law_of_a_linear_reward() -> None:
    """There the soft value is the reward of the clean estimate but for a constant: N(m + s / alpha, s)."""
    grid, alpha = Grid(), 2.0
    plain = toy([proposal().plan(grid, GroupKey(1, 0, 0), 3000)], None)
    steered = SVDD(Smooth(), proposal(), candidates=30, alpha=alpha)
    found = toy([steered.plan(grid, GroupKey(1, 0, 0), 3000)], torch.Tensor.clone)
    assert float(found.mean() - plain.mean()) == pytest.approx(float(plain.var()) / alpha, abs=0.04)
    assert float(found.var()) == pytest.approx(float(plain.var()), abs=0.06)


@dataclass(frozen=True)
class Broken(Smooth):
    """Cannot judge what is above 0."""

    def score(self, batch: RewardBatch) -> Tensor:
        assert batch.outputs.images is not None
        return torch.where(batch.outputs.images.sum(1) > 0, math.nan, 1.0)


@dataclass(frozen=True)
class NeedingBoxes(Smooth):
    needs: ClassVar[frozenset[str]] = frozenset({"images", "target.box"})


@dataclass(frozen=True)
class OfGroups(Smooth):
    granularity: ClassVar[Granularity] = "group"


def test_a_reward_that_cannot_judge_ends_the_run() -> None:
    with pytest.raises(RunError, match="the reward that steers sampling cannot judge: Broken: returned nan"):
        roll(random_flow(), BestOfN(Broken(), PROPOSAL))


def test_a_reward_needs_the_targets_of_the_prompts() -> None:
    with pytest.raises(ConfigError, match="'NeedingBoxes' needs 'box' in the target of every prompt"):
        roll(random_flow(), BestOfN(NeedingBoxes(), PROPOSAL))


def test_what_cannot_be_steered_is_refused() -> None:
    with pytest.raises(ConfigError, match="judges each group, and steering needs one of samples"):
        BestOfN(OfGroups(), PROPOSAL)
    with pytest.raises(ConfigError, match="reward learns from the scores of a run, which a sampler does not see"):
        BestOfN(LatentSurrogate(reward=Smooth()), PROPOSAL)
    with pytest.raises(ConfigError, match="proposal samples tokens"):
        BestOfN(Smooth(), build("samplers", {"name": "autoregressive", "max_tokens": 4}))
    shared = build("samplers", {"name": "ddim", "num_steps": 4, "share_noise": True})
    fans = build("samplers", {"name": "tempflow", "num_steps": 4, "compare": "prompt"})
    for sampler in (BestOfN(Smooth(), shared), SVDD(Smooth(), fans)):
        with pytest.raises(ConfigError, match="proposal must sample each sample alone"):
            sampler.plan(random_flow(), KEYS[0], 4)
    still = build("samplers", {"name": "ode", "num_steps": 4})
    for unable in (FKSteering(Smooth(), still), SVDD(Smooth(), still)):
        with pytest.raises(ConfigError, match="proposal must make random steps, as flow_sde and ddim do"):
            unable.plan(random_flow(), KEYS[0], 4)
    with pytest.raises(ConfigError, match="resample_at must be at most 2, the proposal's last random step, got 3"):
        FKSteering(Smooth(), PROPOSAL, resample_at=(1, 3)).plan(random_flow(), KEYS[0], 4)


@in_one_test(
    ("cls", "settings", "message"),
    [
        (FKSteering, {"particles": 0}, "particles must be at least 1 and at most 1,000,000, got 0"),
        (FKSteering, {"resample_at": (2, 1)}, "resample_at must be ascending steps"),
        (FKSteering, {"scale": -1.0}, "scale must be at least 0"),
        (SVDD, {"candidates": 0}, "candidates must be at least 1 and at most 1,000,000, got 0"),
        (SVDD, {"alpha": -0.1}, "alpha must be at least 0"),
        (BestOfN, {"n": 0}, "n must be at least 1 and at most 1,000,000, got 0"),
        (BestOfN, {"n": 10**9}, "n must be at least 1 and at most 1,000,000, got 1000000000"),
    ],
)
def test_settings_out_of_range_are_refused(cls: Any, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        cls(Smooth(), PROPOSAL, **settings)
