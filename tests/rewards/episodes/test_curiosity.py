"""curiosity: the distance to what was expected, by hand and in a world that can be learned."""

import io
import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from mmrl.core.contracts import ConfigError, RewardBatch
from mmrl.core.data import Outputs, Scores
from mmrl.core.plugins import build
from mmrl.media.pictures import Picture, StoredPicture
from mmrl.parsing.actions.action import Action
from mmrl.rewards.episodes.curiosity import Curiosity, _places, _words
from tests.rewards.example import Example, make_batch
from tests.rewards.pictures import CPU

ACTIONS = (Action("click", point=(8.0, 4.0)), Action("type", text="tea"), None, Action("scroll", direction="down"))


def screen(values: Any) -> Picture:
    content = io.BytesIO()
    Image.fromarray(np.asarray(values, dtype=np.uint8)).save(content, "PNG")
    return StoredPicture("screen", content=content.getvalue())


def noise(rng: random.Random) -> Picture:
    return screen(np.frombuffer(rng.randbytes(16 * 16 * 3), np.uint8).reshape(16, 16, 3))


def batch_of(before: list[Picture], actions: list[Action | None], after: list[Any]) -> RewardBatch:
    outputs = Outputs(actions=tuple(actions), screens=tuple(after))
    return make_batch(outputs, ["go"] * len(before), media=[(one,) for one in before])


def random_batch(rng: random.Random) -> RewardBatch:
    return batch_of([noise(rng) for _ in range(8)], list(ACTIONS * 2), [noise(rng) for _ in range(8)])


EXAMPLE = Example(random_batch=random_batch)  # no truth: what surprises depends on what was seen


def ready(**settings: Any) -> Curiosity:
    reward: Curiosity = build("rewards", {"name": "curiosity", "encoder": "pixels", "side": 4, **settings})
    reward.prepare(CPU)
    return reward


def scores_of(reward: Curiosity, batch: RewardBatch) -> Scores:
    values, examples = reward.score_with_examples(batch)
    number = torch.arange(len(batch))
    return Scores(
        *(values[:, None], ("r",), (1.0,), number >= 0, batch.group, number, number * 0), examples={"r": examples}
    )


def test_before_it_is_ready_the_score_is_how_far_the_screen_changed() -> None:
    rng = random.Random(0)
    before, after = noise(rng), noise(rng)
    found = ready().score(batch_of([before, before], [None, None], [after, before]))

    def embedded(picture: Picture) -> Any:  # the mean of each 4 x 4 block of the grey image
        grey = np.asarray(picture.load().convert("RGB"), dtype=np.float64).mean(2) / 255
        small = grey.reshape(4, 4, 4, 4).mean((1, 3)).ravel()
        return small - small.mean()

    one, other = embedded(before), embedded(after)
    expected = 1 - one @ other / np.linalg.norm(one) / np.linalg.norm(other)
    assert found.tolist() == pytest.approx([expected, 0.0], abs=1e-5)


def test_screens_without_a_picture_are_alike() -> None:
    flat = [screen(np.full((16, 16, 3), level)) for level in (0, 77, 179, 237, 255)]
    same = ready(side=24).score(batch_of(flat, [None] * 5, flat))
    other = ready(side=24).score(batch_of(flat, [None] * 5, flat[1:] + flat[:1]))
    assert same.tolist() == other.tolist() == pytest.approx([0.0] * 5, abs=1e-5)
    assert ready().score(batch_of(flat[:1], [None], [noise(random.Random(0))])).tolist() == pytest.approx([1.0])


def test_an_action_is_its_words_and_its_place() -> None:
    assert [_words(action) for action in ACTIONS] == ["click", "type tea", "none", "scroll down"]
    assert _places(ACTIONS[0], (16, 8)).tolist() == [1.0, 0.5, 0.5, 0.0, 0.0, 0.0]
    drag = Action("drag", point=(0.0, 8.0), end=(16.0, 2.0))
    assert _places(drag, (16, 8)).tolist() == [1.0, 0.0, 1.0, 1.0, 1.0, 0.25]
    assert _places(None, (16, 8)).tolist() == [0.0] * 6


def test_what_was_seen_often_no_longer_surprises() -> None:
    rng = random.Random(1)
    start, here, there, elsewhere = (noise(rng) for _ in range(4))
    left, right = Action("click", point=(2.0, 8.0)), Action("click", point=(14.0, 8.0))
    seen = batch_of([start] * 8, [left, right] * 4, [here, there] * 4)  # where one clicks decides what comes
    reward = ready(warm_up=2, fit_steps=100)
    at_first = reward.score(seen)
    for _ in range(3):
        reward.update(scores_of(reward, seen))
    assert (reward.score(seen) < 0.05).all() and (at_first > 0.5).all()
    surprising = batch_of([start, start], [left, right], [elsewhere, here])
    assert (reward.score(surprising) > 0.5).all()


def test_screens_may_differ_in_size_and_a_broken_world_is_not_judged() -> None:
    wide = screen(np.zeros((8, 32, 3)) + np.arange(32)[None, :, None])
    rng = random.Random(2)
    assert ready().score(batch_of([noise(rng), wide], [None, None], [wide, wide])).isfinite().all()
    with pytest.raises(ValueError, match="the environment broke in this turn"):
        ready().score(batch_of([wide], [None], [None]))


def test_without_a_screen_before_nothing_is_expected() -> None:
    rng = random.Random(3)
    batch = batch_of([noise(rng)], [ACTIONS[0]], [noise(rng)])
    assert ready().score(replace(batch, prompts=(replace(batch.prompts[0], media=()),))).tolist() == [1.0]


def test_pixels_need_no_model() -> None:
    assert "model" not in ready().needs and "model" in Curiosity().needs
    with pytest.raises(ConfigError, match="pixels are embedded without a model, got 'x'"):
        ready(model="x")
