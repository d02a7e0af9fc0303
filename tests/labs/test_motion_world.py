"""The renderer and the verifier of the motion lab, against clips that are drawn by hand."""

import itertools
import math
from typing import Any, cast

import pytest
import torch
from torch import Tensor

from mmrl.labs.motion import world

RED, BLUE = (0.90, 0.15, 0.15), (0.20, 0.35, 0.95)
PLACES = [0, 1, 3, 4, 6, 7, 9, 10, 12]  # pixels: 1.5 a frame, rounded down; the straight line through them rises by 12
Corner = tuple[int, int]  # top, left


def square(corners: list[Corner], colour: tuple[float, float, float] = RED) -> Tensor:
    """A clip [1, 9, 3, 32, 32] of a square of 8 x 8 pixels."""
    clip = torch.full((1, 9, 3, 32, 32), 0.08)
    for frame, (top, left) in zip(clip[0], corners, strict=True):
        frame[:, top : top + 8, left : left + 8] = torch.tensor(colour)[:, None, None]
    return clip


RIGHT: list[Corner] = [(12, 6 + place) for place in PLACES]


def rendered(repeats: int) -> tuple[Tensor, list[str]]:
    prompts = world.all_prompts() * repeats
    return world.render(prompts, torch.Generator().manual_seed(3)), prompts


def centroids(clips: Tensor) -> Tensor:
    """x and y [B, F, 2] of what is brighter than the canvas."""
    lift = (clips - 0.08).abs().amax(2)
    grid = torch.arange(32) + 0.5
    x, y = (lift.sum(2) * grid).sum(-1), (lift.sum(3) * grid).sum(-1)
    return torch.stack([x, y], -1) / lift.sum((2, 3))[..., None]


def test_the_world_has_96_prompts_of_four_words_in_two_splits() -> None:
    prompts = world.all_prompts()
    assert len(prompts) == len(set(prompts)) == world.NUM_PROMPTS == 6 * 4 * 4
    assert prompts[0] == "red circle moves right" and prompts[-1] == "white cross moves down"
    train, held_out = world.prompts("train"), world.prompts("held_out")
    assert (len(train), len(held_out)) == (64, 32) and sorted(train + held_out) == sorted(prompts)
    seen = {pair for prompt in train for pair in itertools.combinations(prompt.split(), 2)}
    assert all(pair in seen for prompt in held_out for pair in itertools.combinations(prompt.split(), 2))


def test_another_split_and_a_prompt_outside_the_grammar_are_refused_with_what_is_allowed() -> None:
    with pytest.raises(ValueError, match=r"'test' \(did you mean .*the splits are train, held_out"):
        world.prompts(cast(Any, "test"))
    with pytest.raises(
        ValueError, match=r"did you mean 'red circle moves up'.*shape one of circle.*one of right, left"
    ):
        world.attributes(["red circel moves up"])


def test_attributes_are_the_indices_of_the_words() -> None:
    wanted = world.attributes(["blue cross moves left", "white triangle moves down"])
    assert [index.tolist() for index in (wanted.colour, wanted.shape, wanted.direction)] == [[2, 5], [3, 2], [1, 3]]
    assert world.attributes(world.all_prompts()).prompt_index.tolist() == list(range(96))


def test_a_square_that_moves_twelve_pixels_is_what_it_is() -> None:
    verdict = world.verify(square(RIGHT), ["red square moves right"])
    assert verdict.is_correct.item()
    torch.testing.assert_close(torch.stack([verdict.colour, verdict.motion]), torch.ones(2, 1), atol=1e-5, rtol=0)
    assert verdict.shape.item() > 0.9
    torch.testing.assert_close(verdict.graded, (verdict.colour + verdict.shape + verdict.motion) / 3)


@pytest.mark.parametrize(
    ("corners", "direction", "squared_miss"),
    [
        (RIGHT, "left", 24**2),
        (RIGHT, "up", 12**2 + 12**2),
        ([(12, 12)] * 9, "down", 12**2),
        ([(18 - place, 12) for place in PLACES], "up", 0),
        ([(12, 8 + k) for k in range(9)], "right", 4**2),  # 8 pixels in place of 12
    ],
    ids=["opposite", "across", "still", "up", "slow"],
)
def test_motion_falls_with_the_distance_between_travels(
    corners: list[Corner], direction: str, squared_miss: float
) -> None:
    verdict = world.verify(square(corners), [f"red square moves {direction}"])
    expected = torch.tensor([math.exp(-squared_miss / 64)])
    torch.testing.assert_close(verdict.motion, expected, atol=1e-5, rtol=0)
    assert bool(verdict.is_correct) == (squared_miss == 0)


@pytest.mark.parametrize(("jump", "is_correct"), [(1, True), (3, False)])
def test_a_path_that_is_not_straight_is_not_correct(jump: int, is_correct: bool) -> None:
    """In the middle frame alone: the travel stays, and that frame is 8/9 of the jump beside the line."""
    corners = [(top + jump * (number == 4), left) for number, (top, left) in enumerate(RIGHT)]
    verdict = world.verify(square(corners), ["red square moves right"])
    torch.testing.assert_close(verdict.motion, torch.ones(1), atol=1e-5, rtol=0)
    assert verdict.is_correct.item() == is_correct


def test_colour_falls_with_the_distance_in_rgb_and_is_the_mean_over_frames() -> None:
    squared_distance = 0.7**2 + 0.2**2 + 0.8**2
    wrong = math.exp(-squared_distance / 0.09)
    verdict = world.verify(square(RIGHT, BLUE), ["red square moves right"])
    torch.testing.assert_close(verdict.colour, torch.tensor([wrong]), atol=1e-5, rtol=0)
    turning = square(RIGHT)
    turning[:, 6:] = square(RIGHT, BLUE)[:, 6:]
    verdict = world.verify(turning, ["red square moves right"])
    torch.testing.assert_close(verdict.colour, torch.tensor([(6 + 3 * wrong) / 9]), atol=1e-5, rtol=0)
    assert not verdict.is_correct.item()


def test_a_frame_without_a_shape_scores_nothing_and_spoils_the_clip() -> None:
    clip = square(RIGHT)
    clip[:, 4] = 0.08
    verdict = world.verify(clip, ["red square moves right"])
    torch.testing.assert_close(verdict.colour, torch.tensor([8 / 9]), atol=1e-5, rtol=0)
    assert verdict.shape.item() < 8 / 9 and not verdict.is_correct.item()


def test_one_frame_with_a_shape_that_is_too_large_spoils_the_clip() -> None:
    """256 pixels of the right colour around the right place."""
    clip = square(RIGHT)
    clip[0, 4, :, 8:24, 8:24] = torch.tensor(RED)[:, None, None]
    verdict = world.verify(clip, ["red square moves right"])
    torch.testing.assert_close(verdict.colour, torch.tensor([8 / 9]), atol=1e-5, rtol=0)
    assert not verdict.is_correct.item()


@pytest.mark.parametrize("level", [0.08, 1.0])
def test_a_clip_without_a_shape_scores_nothing(level: float) -> None:
    verdict = world.verify(torch.full((1, 9, 3, 32, 32), level), ["white square moves up"])
    assert verdict.graded.item() == 0 and not verdict.is_correct.item()


def test_every_other_prompt_is_rejected_for_one_clip() -> None:
    prompts = world.all_prompts()
    clip = world.render(["green triangle moves up"], torch.Generator().manual_seed(2))
    verdict = world.verify(clip.expand(96, -1, -1, -1, -1), prompts)
    assert [prompts[index] for index in verdict.is_correct.nonzero().flatten()] == ["green triangle moves up"]


@pytest.mark.slow
def test_the_verifier_accepts_what_the_renderer_draws() -> None:
    clips, prompts = rendered(5)
    verdict = world.verify(clips, prompts)
    assert verdict.is_correct.float().mean() >= 0.99
    assert verdict.graded.min() > 0.8


def test_rendered_shapes_move_as_they_are_told() -> None:
    """Jitter: 1 pixel along, 3.5 across, 1 of the travel. Soft edges move a centroid by less than 0.2."""
    clips, prompts = rendered(1)
    assert clips.shape == (96, 9, 3, 32, 32) and clips.min() >= 0 and clips.max() <= 1
    direction, place = world.attributes(prompts).direction, centroids(clips)
    heading = torch.tensor([[1.0, 0.0], [-1.0, 0.0], [0.0, -1.0], [0.0, 1.0]])[direction]  # [96, 2]
    travel = place[:, -1] - place[:, 0]
    along, across = (travel * heading).sum(1), (travel * heading.flip(1)).sum(1)
    assert (along - 12).abs().max() < 1.2 < 12 and across.abs().max() < 0.2
    assert (along - 12).abs().max() > 0.5  # speeds differ
    middle = place[:, 4] - 16
    assert ((middle * heading).sum(1)).abs().max() < 1.2 and ((middle * heading.flip(1)).sum(1)).abs().max() < 3.7


@pytest.mark.slow
def test_the_same_seed_renders_the_same_clips_and_stills_are_moments_of_them() -> None:
    clips, prompts = rendered(1)
    assert torch.equal(clips, world.render(prompts, torch.Generator().manual_seed(3)))
    stills = world.render_stills(prompts, torch.Generator().manual_seed(3))
    assert stills.shape == (96, 1, 3, 32, 32)
    place, still = centroids(clips), centroids(stills)  # of the same size, path and speed
    low, high = place.amin(1, keepdim=True) - 0.2, place.amax(1, keepdim=True) + 0.2
    assert ((still >= low) & (still <= high)).all()


@pytest.mark.slow
def test_a_verdict_does_not_depend_on_the_batch() -> None:
    clips, prompts = rendered(1)
    clips = (clips + 0.1 * torch.randn(clips.shape, generator=torch.Generator().manual_seed(4))).clamp(0, 1)
    order = torch.randperm(96, generator=torch.Generator().manual_seed(5))
    together = world.verify(clips, prompts)
    shuffled = world.verify(clips[order], [prompts[index] for index in order])
    for name in ("colour", "shape", "motion", "is_correct"):
        torch.testing.assert_close(getattr(shuffled, name), getattr(together, name)[order], atol=1e-6, rtol=0)
    assert world.verify(torch.empty(0, 9, 3, 32, 32), []).graded.shape == (0,)


def test_clips_that_cannot_be_judged_raise() -> None:
    with pytest.raises(ValueError, match=r"clips have shape \[1, 9, 3, 32, 32\]; 2 prompts need \[2, 9, 3, 32, 32\]"):
        world.verify(square(RIGHT), ["red square moves right"] * 2)
    with pytest.raises(ValueError, match="NaN"):
        world.verify(square(RIGHT) * float("nan"), ["red square moves right"])
