"""The world of the edits lab: edits, sources and the renderer; expected values are worked out by hand."""

import random

import pytest
import torch

from mmrl.labs.edits import world
from mmrl.labs.edits.world import Edit, Scene, Shape
from mmrl.media.pictures import as_tensor

CIRCLE = Shape("circle", "red", "small", "left", (0.0, 0.0, 0.0))
SQUARE = Shape("square", "blue", "large", "right", (0.0, 0.0, 0.0))


def test_44_instructions_name_a_form_and_a_value() -> None:
    texts = [edit.text for edit in world.all_edits()]
    assert len(set(texts)) == 4 * (6 + 2 + 3)
    assert texts[:2] == ["make the circle red", "make the circle green"]
    assert texts[-5:] == [
        "make the cross small",
        "make the cross large",
        "move the cross left",
        "move the cross centre",
        "move the cross right",
    ]
    assert {len(text.split()) for text in texts} == {4}


def test_an_instruction_is_parsed_again() -> None:
    assert all(world.parse(edit.text) == edit for edit in world.all_edits())
    assert world.parse("move the triangle centre") == Edit("triangle", "column", "centre")


def test_an_unknown_instruction_is_answered_with_the_nearest() -> None:
    with pytest.raises(ValueError, match=r"did you mean 'make the circle red'.*a size of small, large"):
        world.parse("make the circel red")


def test_every_form_and_every_value_is_in_both_splits() -> None:
    train, held_out = world.edits("train"), world.edits("held_out")
    assert (len(train), len(held_out)) == (29, 15)
    assert {*train, *held_out} == set(world.all_edits())
    for split in (train, held_out):
        assert {edit.form for edit in split} == set(world.FORMS)
        assert {edit.value for edit in split} == {value for values in world.VALUES.values() for value in values}


def test_an_unknown_split_is_answered_with_the_nearest() -> None:
    with pytest.raises(ValueError, match="did you mean 'held_out'"):
        world.prompts("heldout")


def test_a_source_shows_the_named_form_once_and_has_something_to_change() -> None:
    rng = random.Random(0)
    places = set()
    for edit in world.all_edits() * 5:
        scene = world.source(edit, rng)
        named = [shape for shape in scene.shapes if shape.form == edit.form]
        assert len(named) == 1 and named[0].value(edit.kind) != edit.value
        assert scene.edited(edit) != scene
        places.add(scene.shapes.index(named[0]))
    assert places == {0, 1}  # in both halves


def test_an_edit_changes_one_value_of_the_named_shape() -> None:
    scene = Scene((CIRCLE, SQUARE))
    moved = Shape("square", "blue", "large", "centre", (0.0, 0.0, 0.0))
    assert scene.edited(Edit("square", "column", "centre")) == Scene((CIRCLE, moved))
    small = Shape("square", "blue", "small", "right", (0.0, 0.0, 0.0))
    assert scene.edited(Edit("square", "size", "small")) == Scene((CIRCLE, small))
    green = Shape("circle", "green", "small", "left", (0.0, 0.0, 0.0))
    assert scene.edited(Edit("circle", "colour", "green")) == Scene((green, SQUARE))


def test_a_scene_is_drawn_half_by_half() -> None:
    picture = world.render([Scene((CIRCLE, SQUARE))])[0]
    assert picture.shape == (3, 32, 32)
    background = torch.full((3,), 0.08)
    torch.testing.assert_close(picture[:, 7, 6], torch.tensor([0.90, 0.15, 0.15]))  # the circle's centre is (7, 8)
    torch.testing.assert_close(picture[:, 24, 24], torch.tensor([0.20, 0.35, 0.95]))  # the square's is (25, 24)
    torch.testing.assert_close(picture[:, 7, 24], background)
    torch.testing.assert_close(picture[:, 24, 6], background)
    # the circle ends at x = 7 + 3.4 = 10.4: the middle of pixel 10 is 0.1 outside, which covers 0.4 of it
    distance = (3.5**2 + 0.5**2) ** 0.5 - 3.4
    assert picture[0, 7, 10].item() == pytest.approx(0.08 + (0.5 - distance) * 0.82, abs=1e-6)
    # half the square's side is 4.8 * sqrt(pi) / 2 = 4.2539: it ends 0.2461 before the middle of pixel 29
    assert picture[2, 24, 29].item() == pytest.approx(0.08 + (0.5 - 0.2461) * 0.87, abs=1e-4)


def test_the_jitter_moves_and_scales() -> None:
    still, moved = world.render(
        [Scene((CIRCLE, SQUARE)), Scene((Shape("circle", "red", "small", "left", (1.0, 1.0, -1.0)), SQUARE))]
    )
    weight, moved_weight = (picture[0, :16] - 0.08 for picture in (still, moved))
    grid = torch.arange(32) + 0.5
    for w, x, y, radius in ((weight, 7.0, 8.0, 3.4), (moved_weight, 7.8, 7.5, 3.65)):
        assert ((w * grid).sum() / w.sum()).item() == pytest.approx(x, abs=0.02)
        assert ((w * grid[:16, None]).sum() / w.sum()).item() == pytest.approx(y, abs=0.02)
        assert (w.sum() / 0.82).item() == pytest.approx(
            3.14159 * (radius**2 + 1 / 12), rel=0.02
        )  # the edge is a pixel wide
    assert torch.equal(still[:, 16:], moved[:, 16:])


def test_a_source_picture_has_the_pixels_of_its_scene() -> None:
    picture = world.SourcePicture(Scene((CIRCLE, SQUARE)))
    assert picture.load().size == picture.size == (32, 32)
    expected = world.render([picture.scene])[0]
    torch.testing.assert_close(as_tensor(picture.load()), expected, atol=0.5 / 255 + 1e-6, rtol=0)


def test_the_prompts_of_a_split_are_the_same_again_and_no_two_alike() -> None:
    held_out = world.prompts("held_out")
    assert held_out == world.prompts("held_out")
    assert len(held_out) == len(set((one.text, one.media) for one in held_out)) == 15 * 20
    assert [one.text for one in held_out[:15]] == [edit.text for edit in world.edits("held_out")]


@pytest.mark.slow  # 1,856 scenes: a fifth of a second
def test_no_source_is_in_both_splits() -> None:
    train, held_out = ({one.media for one in world.prompts(split)} for split in world.SPLITS)
    assert len(train) == 29 * 64 and not train & held_out
