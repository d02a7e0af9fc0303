"""The edits reward: each image is compared with the picture that its own prompt brings."""

import random

import pytest
import torch

from mmrl.core.contracts import RewardBatch
from mmrl.core.data import Outputs
from mmrl.labs.edits import world
from mmrl.labs.edits.world import Edit, Scene, Shape
from mmrl.rewards.images.edits import Edits
from tests.rewards.example import Example
from tests.rewards.example import make_batch as batch_of

SCENE = Scene(
    (
        Shape("circle", "red", "small", "left", (0.0, 0.0, 0.0)),
        Shape("square", "blue", "large", "right", (0.0, 0.0, 0.0)),
    )
)
GREEN = Edit("circle", "colour", "green")


def batch(shown: list[Scene], asked: list[tuple[Edit, Scene]]) -> RewardBatch:
    """Pictures of scenes, each for an edit of a source."""
    media = [(world.SourcePicture(source),) for _, source in asked]
    return batch_of(Outputs(images=world.render(shown)), [edit.text for edit, _ in asked], media=media)


def random_batch(rng: random.Random) -> RewardBatch:
    """Right edits, copies of the source, other scenes, and an empty picture, of two prompts."""
    asked = [(edit, world.source(edit, rng)) for edit in rng.sample(world.all_edits(), k=2)]
    shown = [
        scene
        for edit, source in asked
        for scene in (source.edited(edit), source, world.source(edit, rng), world.source(edit, rng))
    ]
    made = batch(shown, [pair for pair in asked for _ in range(4)])
    assert made.outputs.images is not None
    made.outputs.images[-1] = 0.08
    return made


EXAMPLE = Example(
    random_batch=random_batch,
    best=lambda: batch([SCENE.edited(GREEN)] * 4, [(GREEN, SCENE)] * 4),
    settings={"measure": "correct"},
)


def test_each_image_is_compared_with_its_own_source() -> None:
    other = Scene((SCENE.shapes[0], Shape("square", "white", "small", "left", (0.0, 0.0, 0.0))))
    shown = [SCENE.edited(GREEN), SCENE, SCENE.edited(GREEN), other.edited(GREEN)]
    judged = batch(shown, [(GREEN, SCENE), (GREEN, SCENE), (GREEN, other), (GREEN, other)])
    assert Edits(measure="correct").score(judged).tolist() == [1.0, 0.0, 0.0, 1.0]
    done, kept, graded = (Edits(measure=measure).score(judged) for measure in ("done", "kept", "graded"))
    assert (done > 0.9).tolist() == [True, False, True, True]
    assert (kept > 0.8).tolist() == [True, True, False, True]
    torch.testing.assert_close(graded, (done + kept) / 2)


def test_a_prompt_without_its_picture_cannot_be_judged() -> None:
    judged = batch_of(Outputs(images=world.render([SCENE])), [GREEN.text])
    with pytest.raises(ValueError, match="prompt 'make the circle green' brings 0 pictures; an edit is of one"):
        Edits().score(judged)


def test_a_prompt_of_another_world_cannot_be_judged() -> None:
    judged = batch_of(Outputs(images=world.render([SCENE])), ["a dog"], media=[(world.SourcePicture(SCENE),)])
    with pytest.raises(ValueError, match="no such instruction"):
        Edits().score(judged)
