"""The verifier of the edits lab: what it reads, and what fools it not; expected values are worked out by hand."""

import math
import random

import pytest
import torch
from torch import Tensor

from mmrl.labs.edits import world
from mmrl.labs.edits.verifier import Verdict, read, verify
from mmrl.labs.edits.world import Edit, Scene, Shape
from mmrl.labs.shapes.world import BACKGROUND
from tests.parameters import in_one_test

CIRCLE = Shape("circle", "red", "small", "left", (0.0, 0.0, 0.0))
SQUARE = Shape("square", "blue", "large", "right", (0.0, 0.0, 0.0))
WHITE = (0.92, 0.92, 0.92)


def canvas() -> Tensor:
    return torch.full((3, 32, 32), BACKGROUND)


def painted(*blocks: tuple[int, int, tuple[float, float, float]]) -> Tensor:
    """A picture with blocks of 6 x 6 pixels: the top row, the left column and the colour of each."""
    picture = canvas()
    for top, left, colour in blocks:
        picture[:, top : top + 6, left : left + 6] = torch.tensor(colour)[:, None, None]
    return picture


def circle_below(picture: Tensor) -> Tensor:
    """The picture with a small red circle in the lower half."""
    drawn = world.render([Scene((SQUARE, CIRCLE))])[0]
    return torch.cat([picture[:, :16], drawn[:, 16:]], dim=1)


def many(count: int) -> tuple[list[Edit], list[Scene]]:
    rng = random.Random(3)
    edits = rng.choices(world.all_edits(), k=count)
    return edits, [world.source(edit, rng) for edit in edits]


def judge(pictures: Tensor, edits: list[Edit], scenes: list[Scene]) -> Verdict:
    return verify(pictures, world.render(scenes), [edit.text for edit in edits])


def test_a_block_is_read_by_hand() -> None:
    seen = read(painted((4, 10, WHITE))[None])
    torch.testing.assert_close(seen.colour[0, 0], torch.tensor(WHITE))
    assert seen.unevenness[0, 0] < 1e-3
    assert seen.x[0, 0].item() == pytest.approx(13.0) and seen.y[0, 0].item() == pytest.approx(7.0)
    assert seen.radius[0, 0].item() == pytest.approx(math.sqrt(36 / math.pi))
    # the square of area 36 has half a side of 3.0: its soft edge is 0.5 at no pixel's middle, so it is the block itself
    assert seen.overlap[0, 0, 1].item() == pytest.approx(1.0, abs=1e-4)
    assert seen.overlap[0, 0].argmax() == 1
    assert seen.has_shape.tolist() == [[True, False]]


def test_two_colours_in_a_shape_are_uneven() -> None:
    """Half of the pixels rise by (0.6, 0, 0), half by (0, 0.6, 0): each is 0.3 * sqrt(2) beside the mean's line."""
    picture = canvas()
    picture[0, 4:10, 10:13] += 0.6
    picture[1, 4:10, 13:16] += 0.6
    seen = read(picture[None])
    torch.testing.assert_close(seen.colour[0, 0], torch.tensor([0.38, 0.38, 0.08]))
    assert seen.unevenness[0, 0].item() == pytest.approx(0.3 * math.sqrt(2), abs=1e-5)


def test_an_edge_that_mixes_with_the_background_is_not_uneven() -> None:
    picture = painted((4, 10, (0.9, 0.15, 0.15)))
    picture[:, 4, 10:16] = (picture[:, 4, 10:16] + BACKGROUND) / 2
    assert read(picture[None]).unevenness[0, 0] < 1e-3


@pytest.mark.slow
def test_every_right_target_is_correct() -> None:
    edits, scenes = many(400)
    targets = world.render([scene.edited(edit) for edit, scene in zip(edits, scenes, strict=True)])
    verdict = judge(targets, edits, scenes)
    assert verdict.is_correct.all()
    assert verdict.done.min() > 0.8 and verdict.graded.mean() > 0.9


def test_a_copy_of_the_source_keeps_all_and_does_nothing() -> None:
    edits, scenes = many(200)
    verdict = judge(world.render(scenes), edits, scenes)
    assert verdict.is_kept.all() and not verdict.is_done.any()
    assert verdict.done.max() < 0.3 and verdict.graded.mean() < 0.5


def test_halfway_between_source_and_target_is_not_correct() -> None:
    edits, scenes = many(200)
    targets = world.render([scene.edited(edit) for edit, scene in zip(edits, scenes, strict=True)])
    assert not judge((world.render(scenes) + targets) / 2, edits, scenes).is_correct.any()


def test_a_right_edit_that_destroys_the_other_shape_is_not_kept() -> None:
    edits, scenes = many(200)
    targets = world.render([scene.edited(edit) for edit, scene in zip(edits, scenes, strict=True)])
    for row, (edit, scene) in enumerate(zip(edits, scenes, strict=True)):
        other = [shape.form != edit.form for shape in scene.shapes].index(True)
        targets[row, :, 16 * other : 16 * other + 16] = BACKGROUND
    verdict = judge(targets, edits, scenes)
    assert verdict.is_done.all() and verdict.kept.max() == 0 and not verdict.is_kept.any()
    assert verdict.graded.max() <= 0.5


def test_the_same_edit_of_the_other_shape_is_not_correct() -> None:
    scene = Scene((CIRCLE, SQUARE))
    changed = world.render([scene.edited(Edit("square", "colour", "green"))])
    verdict = judge(changed, [Edit("circle", "colour", "green")], [scene])
    assert not verdict.is_done and not verdict.is_kept and verdict.graded < 0.1


@in_one_test("level", [0.0, BACKGROUND, 0.5, 1.0])
def test_a_blank_picture_scores_nothing(level: float) -> None:
    verdict = judge(torch.full((1, 3, 32, 32), level), [Edit("circle", "colour", "green")], [Scene((CIRCLE, SQUARE))])
    assert verdict.graded == 0 and not verdict.is_correct


def test_scores_of_places_by_hand() -> None:
    """The square's centre is at x = 13, which is the column 16; left is 9 pixels to the left of it, at x = 4."""
    source = circle_below(painted((4, 10, WHITE)))
    right, off_by_one, off_by_two = (circle_below(painted((4, left, WHITE))) for left in (1, 2, 3))
    lower = circle_below(painted((6, 1, WHITE)))  # at the right x, two pixels too low
    pictures = torch.stack([source, right, off_by_one, off_by_two, lower])
    verdict = verify(pictures, source.expand(5, -1, -1, -1), ["move the square left"] * 5)
    expected = [math.exp(-((miss / 4) ** 2)) for miss in (9, 0, 1, 2, 0)]
    torch.testing.assert_close(verdict.done, torch.tensor(expected), atol=1e-4, rtol=1e-4)
    assert verdict.is_done.tolist() == [False, True, True, False, True]  # 1.5 pixels are allowed
    assert verdict.is_kept.tolist() == [True, True, True, True, False]
    torch.testing.assert_close(verdict.kept[:4], verdict.kept[:1].expand(4), atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(verdict.kept[4], verdict.kept[0] * math.exp(-((2 / 4) ** 2)), atol=1e-4, rtol=1e-4)


def test_scores_of_colours_by_hand() -> None:
    source = circle_below(painted((4, 10, WHITE)))
    near, far = (circle_below(painted((4, 10, (0.15 + off, 0.75, 0.20)))) for off in (0.1, 0.4))  # green is 0.15
    verdict = verify(torch.stack([near, far]), torch.stack([source] * 2), ["make the square green"] * 2)
    expected = [math.exp(-((off / 0.3) ** 2)) for off in (0.1, 0.4)]
    torch.testing.assert_close(verdict.done, torch.tensor(expected), atol=1e-4, rtol=1e-4)
    assert verdict.is_done.tolist() == [True, False]
    assert verdict.is_kept.all()


def test_a_jittered_shape_keeps_its_jitter() -> None:
    """Large is 1.4 pixels more than small, whatever the source's radius is within its size."""
    for jitter in (-1.0, 1.0):
        scene = Scene((Shape("circle", "red", "small", "left", (jitter, jitter, 0.0)), SQUARE))
        target, other = (
            Scene((Shape("circle", "red", "large", "left", (sign, jitter, 0.0)), SQUARE)) for sign in (jitter, -jitter)
        )
        verdict = judge(world.render([target, other]), [Edit("circle", "size", "large")] * 2, [scene] * 2)
        # the other's radius is off by twice 0.25, a graded score of exp(-(0.5 / 0.8)^2) = 0.68
        assert verdict.done[0] > 0.98 and verdict.done[1].item() == pytest.approx(0.68, abs=0.05)


def test_bad_inputs_are_refused() -> None:
    pictures = world.render([Scene((CIRCLE, SQUARE))])
    with pytest.raises(ValueError, match="no such instruction"):
        verify(pictures, pictures, ["a photo of a dog"])
    with pytest.raises(ValueError, match=r"source 0 shows 0 shapes of the form 'cross'.* has to show one"):
        verify(pictures, pictures, ["make the cross red"])
    with pytest.raises(ValueError, match=r"sources have shape \[1, 3, 16, 32\]; 1 instructions need \[1, 3, 32, 32\]"):
        verify(pictures, pictures[:, :, :16], ["make the circle green"])
    with pytest.raises(ValueError, match=r"pictures hold NaN or infinity"):
        verify(pictures * torch.nan, pictures, ["make the circle green"])


def test_every_prompt_can_be_judged() -> None:
    """Its source shows the form that it names once, as the verifier reads it."""
    held_out = world.prompts("held_out")
    sources = world.render([one.media[0].scene for one in held_out])
    assert not verify(sources, sources, [one.text for one in held_out]).is_done.any()


@pytest.mark.slow  # 1,856 pictures
def test_every_prompt_for_rl_can_be_judged() -> None:
    train = world.prompts("train")
    sources = world.render([one.media[0].scene for one in train])
    assert not verify(sources, sources, [one.text for one in train]).is_done.any()
