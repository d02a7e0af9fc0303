"""A prompt with clips computed once for its answers gives what the plain batch gives, gradients included."""

from functools import cache
from typing import Any

import pytest
import torch

from mmrl.core.contracts import Placement
from mmrl.core.data import Prompt, Rollout
from mmrl.core.views import DecisionView
from mmrl.modalities.video import Video
from mmrl.plans.answers import AnswerPlan
from tests.clips import clip
from tests.modalities.test_vision_language_sharing import assert_equal, evaluated
from tests.vision_twins import keys, picture, twin

FAMILIES = ("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "internvl")


def policy(family: str, **settings: Any) -> Video:
    sizes = {} if family == "internvl" else {"frame_min_pixels": 28 * 28, "frame_max_pixels": 56 * 56}
    given: dict[str, Any] = {"model": str(twin(family)), "vision": "trained", "fps": 4.0} | sizes | settings
    made = Video(**given)
    made.prepare(Placement(torch.device("cpu"), torch.float32))
    return made


@cache
def plain(family: str) -> tuple[Rollout, dict[str, torch.Tensor]]:
    """Answers to a video, to text, and to an image with a video, and what a policy without sharing makes of them."""
    prompts = (
        Prompt("what is <video> red?", clips=(clip(10),)),
        Prompt("hello"),
        Prompt("<image> in <video>?", (picture(30, 30, 1),), clips=(clip(24),)),
    )
    made = policy(family, sharing="none")
    drawn = made.rollout(prompts, [AnswerPlan(count, 6) for count in (3, 1, 2)], keys(3))
    return drawn, evaluated(made, drawn, torch.arange(6))


@pytest.mark.slow
@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("way", ["cache", "packed"])
@pytest.mark.parametrize("family", FAMILIES)
def test_sharing_is_exact_with_video(family: str, way: Any, checkpointing: bool) -> None:
    drawn, expected = plain(family)
    assert_equal(
        evaluated(policy(family, sharing=way, gradient_checkpointing=checkpointing), drawn, torch.arange(6)), expected
    )


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_the_tower_gets_a_gradient_from_video_alone(family: str) -> None:
    drawn, _ = plain(family)
    made = policy(family)
    alone = made.forward(drawn, DecisionView(torch.arange(3)))  # the first calls are those of the shortest prompt
    assert alone.values.isfinite().all()
    video = made.rollout([drawn.prompts[0]], [AnswerPlan(2, 4)], keys(1))
    made.forward(video, DecisionView(torch.arange(2))).values.sum().backward()
    tower = "model.model.vision_tower" if family == "internvl" else "model.model.visual"
    reached = [
        n for n, p in made.weights.parameters.items() if n.startswith(tower) and p.grad is not None and p.grad.any()
    ]
    assert reached


@pytest.mark.slow  # most of a second each, or more
@pytest.mark.parametrize("way", ["cache", "packed"])
def test_the_tower_sees_each_clip_once(way: Any) -> None:
    drawn, _ = plain("qwen2_5_vl")
    made = policy("qwen2_5_vl", sharing=way)
    seen: list[int] = []
    made.modules()["model"].get_submodule("model.visual").register_forward_pre_hook(
        lambda _, given: seen.append(len(given[0]))
    )
    made.forward(drawn, DecisionView(torch.arange(6)))
    media = [prompt.media for prompt in drawn.trace.prompts]
    for name in ("pixel_values", "pixel_values_videos"):
        assert sum(len(one[name]) for one in media if name in one) in seen
    assert len(seen) == 2
