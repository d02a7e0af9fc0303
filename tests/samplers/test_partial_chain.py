"""Chains that begin at noised outputs of the data: which steps, from which latents, by which noise."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from mmrl.core.contracts import ConfigError
from mmrl.core.data import Prompt
from mmrl.core.keys import GroupKey
from mmrl.media.video import OutputFrames
from mmrl.plans.flow import Plan
from mmrl.plans.offline import best_given, check_offline
from mmrl.prompts.stream import load_prompts
from mmrl.samplers.ode import ODE
from mmrl.samplers.partial_chain import PartialChain
from tests.linear_flow import LinearFlow
from tests.parameters import in_one_test

KEY = GroupKey(3, 1, 4)


@in_one_test(("strength", "num_steps"), [(0.6, 12), (0.05, 1), (0.01, 1), (1.0, 20), (0.29, 5)])
def test_a_share_of_the_steps_is_made_to_the_end(strength: float, num_steps: int) -> None:
    whole = ODE(num_steps=20, sigmas="uniform").plan(LinearFlow(), KEY, 4)
    plan = PartialChain(num_steps=20, sigmas="uniform", strength=strength).plan(LinearFlow(), KEY, 4)
    assert plan.steps == whole.steps[20 - num_steps :] and plan.from_given and plan.roots == 4


def test_settings_out_of_range_are_refused() -> None:
    with pytest.raises(ValueError, match="strength"):
        PartialChain(num_steps=4, strength=0.0)


def test_one_step_goes_from_a_random_level_to_the_end() -> None:
    steps = PartialChain(num_steps=1000, sigmas="uniform", strength=(0.001, 0.2), is_one_step=True)
    grid = ODE(num_steps=1000, sigmas="uniform").grid(LinearFlow())
    plans = [steps.plan(LinearFlow(), GroupKey(3, 1, number), 2) for number in range(400)]
    assert all(len(plan.steps) == 1 and plan.from_given for plan in plans)
    firsts = [plan.steps[0].sigma for plan in plans]
    assert {plan.steps[0].sigma_next for plan in plans} == {0.0} and set(firsts) <= set(grid[800:1000])
    places = [1000 - grid.index(first) for first in firsts]  # uniform in 1 to 200: mean 100.5, deviation 57.7
    assert abs(sum(places) / 400 - 100.5) < 4 * 57.7 / 20 and min(places) < 10 and max(places) > 190
    assert steps.plan(LinearFlow(), KEY, 2) == steps.plan(LinearFlow(), KEY, 2)


def test_a_range_of_strengths_is_of_one_step_and_ascends() -> None:
    with pytest.raises(ValueError, match="a range of strengths needs is_one_step"):
        PartialChain(num_steps=4, strength=(0.1, 0.2))
    with pytest.raises(ValueError, match="two ascending ones"):
        PartialChain(num_steps=4, strength=(0.3, 0.2), is_one_step=True)


class Clips(LinearFlow):
    """A policy of clips of 3 frames at 2 frames per second, whose latents are all pixels less a half."""

    makes = frozenset({"videos"})
    height = width = 4
    num_frames, frames_per_second = 3, 2.0

    @property
    def latent_shape(self) -> tuple[int, ...]:
        return (3, 3, 4, 4)

    def encode_videos(self, videos: Tensor) -> Tensor:
        return videos - 0.5


def given(policy: Any, steps: PartialChain, prompts: list[Prompt]) -> Tensor:
    """The first latents [P * G, ...] that a policy makes from noise 1 at the first level of the plans."""
    plans = [steps.plan(policy, KEY, 2) for _ in prompts]
    first = policy._first_latents(prompts, plans)
    sigma = torch.full((2 * len(prompts),), plans[0].steps[0].sigma)
    made: Tensor = first(torch.ones(2 * len(prompts), *policy.latent_shape), sigma)
    return made


class Grey:
    """A clip of 9 grey frames at 8 per second, number n of value 10 n of 255."""

    name = "grey"

    def __init__(self, base: int) -> None:
        self.base = base

    def load(self, sampling: OutputFrames) -> Any:
        from mmrl.media.video import Frames

        indices = sampling.indices(0, 8, 8.0)
        pixels = (self.base + 10 * indices)[:, None, None, None].expand(-1, 3, 6, 8).to(torch.uint8)
        return Frames(pixels, indices / 8.0, indices, 8.0, 9)


def prompt_of(*clips: Any, scores: tuple[float, ...]) -> Prompt:
    return Prompt("a", target={"given": clips, "given_scores": scores})


def test_latents_begin_at_the_noised_clip_of_the_data() -> None:
    """By hand: the best clip of each prompt; frames 0, 4 and 8 are 0.5 s apart; (1 - sigma) clean + sigma noise."""
    steps = PartialChain(num_steps=4, sigmas=(1.0, 0.8, 0.6, 0.3, 0.0), strength=0.5)
    prompts = [prompt_of(Grey(100), Grey(0), scores=(0.0, 1.0)), prompt_of(Grey(50), scores=(1.0,))]
    found = given(Clips(), steps, prompts)
    shown = torch.tensor([[0.0, 40.0, 80.0], [50.0, 90.0, 130.0]]) / 255
    wanted = (0.4 * (shown - 0.5) + 0.6)[:, :, None, None, None].expand(2, 3, 3, 4, 4).repeat_interleave(2, 0)
    torch.testing.assert_close(found, wanted)


def test_the_middle_of_a_long_clip_is_taken_and_a_short_one_is_refused() -> None:
    assert OutputFrames(num_frames=3, rate=4.0).indices(0, 8, 8.0).tolist() == [2, 4, 6]
    assert OutputFrames(num_frames=3, rate=16.0).indices(10, 12, 8.0).tolist() == [10, 11, 12]  # 10.5 to 11.5, rounded
    assert OutputFrames(num_frames=9, rate=8.0).indices(0, 8, 8.01).tolist() == list(range(9))
    with pytest.raises(ValueError, match="has 9 frames at 8 per second, which is shorter than 5 frames at 2"):
        OutputFrames(num_frames=5, rate=2.0).indices(0, 8, 8.0)


def test_prompts_without_a_clip_are_refused() -> None:
    plan: Plan = PartialChain(num_steps=4, sigmas="uniform").plan(LinearFlow(), KEY, 2)
    with pytest.raises(ConfigError, match="brings 0 outputs with 0 scores, but the sampler takes 1 of each prompt"):
        check_offline(plan, [Prompt("a")], "latents", makes_videos=True)
    (pair, *_) = load_prompts("lab:shapes/pairs")
    with pytest.raises(ConfigError, match="brings outputs of type Drawing, but the policy makes videos"):
        check_offline(plan, [pair], "latents", makes_videos=True)
    with pytest.raises(ConfigError, match="but the policy makes images"):
        check_offline(plan, [replace(pair, target=prompt_of(Grey(0), scores=(1.0,)).target)], "latents")
    check_offline(ODE(num_steps=4, sigmas="uniform").plan(LinearFlow(), KEY, 2), [Prompt("a")], "latents")


def test_pairs_of_the_motion_lab_bring_the_right_clip_first() -> None:
    from mmrl.labs.motion import world

    prompts = load_prompts("lab:motion/pairs")[:6]
    policy = Clips()
    policy.height = policy.width = 32
    policy.num_frames, policy.frames_per_second = 9, 8.0
    plan = PartialChain(num_steps=4, sigmas="uniform").plan(policy, KEY, 2)
    found = best_given(policy, prompts, plan)
    assert found.videos is not None and found.fps == (8.0,) * 6
    assert world.verify(found.videos, [prompt.text for prompt in prompts]).is_correct.all()
