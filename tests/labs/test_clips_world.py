import math
import random
from collections import Counter
from io import BytesIO
from itertools import combinations
from typing import Any

import av
import numpy as np
import pytest
import torch

from mmrl.core.contracts import ConfigError
from mmrl.labs.clips import world
from mmrl.labs.clips.drawing import CELL, COLOURS, RATE, RISE, SHAPES, SIZE
from mmrl.labs.clips.questions import Noise, noisy_span
from mmrl.media.video import FrameSampling
from mmrl.prompts.stream import load_prompts
from tests.parameters import in_one_test

MANY = range(5_000_000, 5_000_200)
TWO_A_SECOND = FrameSampling(fps=2)


def events(clip: world.Clip) -> list[tuple[world.Lamp, world.Event]]:
    return [(lamp, event) for lamp in clip.lamps for event in lamp.events]


@pytest.mark.slow
def test_every_split_has_its_clips_and_asks_for_one_event_of_each() -> None:
    for split in world.SPLITS:
        asked = world.prompts(split)
        assert len(asked) == (4096 if split == "train" else 512)
        for question in asked[:100]:
            found = [
                list(event.span)
                for lamp, event in events(world.clip(question.clips[0].seed))
                if question.text == f"when is the {lamp.name} {event.state}"
            ]
            assert found == [question.target["span"]]


@pytest.mark.slow
def test_no_held_out_clip_is_trained_on() -> None:
    held_out = {world.clip(question.clips[0].seed) for question in world.prompts("held_out")}
    train = {world.clip(question.clips[0].seed) for question in world.prompts("train")}
    assert len(held_out) == 512 and len(train) == 4096
    assert held_out.isdisjoint(train)
    assert world.FIRST_SEED["held_out"] + 512 <= world.FIRST_SEED["pretrain"]


@pytest.mark.slow
def test_every_pair_and_every_state_is_asked_for_in_every_split() -> None:
    for split in world.SPLITS:
        words = [question.text.split()[-3:] for question in world.prompts(split)]
        pairs, states = Counter((colour, shape) for colour, shape, _ in words), Counter(state for *_, state in words)
        assert len(pairs) == len(COLOURS) * len(SHAPES) == 20 and min(pairs.values()) > 0.4 * len(words) / 20
        assert set(states) == set(world.STATES) and min(states.values()) > 0.15 * len(words)


def test_an_unknown_split_is_named_with_the_nearest() -> None:
    with pytest.raises(ValueError, match=r"no split 'heldout' \(did you mean 'held_out'\?\); the splits are"):
        world.prompts("heldout")


def test_prompts_of_the_lab_hold_clips_and_spans() -> None:
    first = load_prompts("lab:clips/held_out")[0]
    assert first.text.startswith("when is the ") and not first.media
    assert first.clips == (world.ClipVideo(1_000_000),) and len(first.target["span"]) == 2
    with pytest.raises(ConfigError, match=r"'lab:clips/box': no split 'box' \(did you mean"):
        load_prompts("lab:clips/box")


def test_a_seed_writes_the_same_file_again_and_another_seed_another() -> None:
    assert world.clip(7) == world.clip(7) != world.clip(12)
    first, again, other = (world.clip(seed).encode() for seed in (7, 7, 12))
    assert first == again != other
    assert hash(world.ClipVideo(7)) == hash(world.ClipVideo(7)) and world.ClipVideo(7) != world.ClipVideo(12)


def test_the_file_is_an_mp4_of_four_frames_a_second() -> None:
    for seed in range(5):
        opened: Any = av.open(BytesIO(world.clip(seed).encode()))
        with opened as file:
            (stream,) = file.streams
            assert file.format.name.split(",")[1] == "mp4" and stream.codec_context.name == "h264"
            assert stream.average_rate == RATE
            times = [frame.time for frame in file.decode(stream)]
        assert times == [number / 4 for number in range(4 * (8 + seed))]


def test_the_reader_takes_two_frames_a_second_and_the_last() -> None:
    frames = world.ClipVideo(4).load(TWO_A_SECOND)  # 12 seconds
    assert frames.pixels.shape == (24, 3, SIZE, SIZE) and frames.sampled_fps == 2
    expected = [round(number * 47 / 23) / 4 for number in range(24)]
    torch.testing.assert_close(frames.seconds, torch.tensor(expected, dtype=torch.float64))


def seen(pixels: np.ndarray, lamp: world.Lamp) -> set[str]:
    """The states that the pixels of a lamp's quarter show, without a look at its events."""
    colour = np.array(COLOURS[lamp.colour])
    top, left = lamp.box[1] // CELL * CELL, lamp.box[0] // CELL * CELL
    quarter = pixels[top : top + CELL, left : left + CELL].astype(int)
    is_colour = np.abs(quarter - colour).sum(axis=2) < 90
    if is_colour.sum() < 30:
        return set()
    is_white = (quarter > 200).all(axis=2)
    is_up = is_colour.any(axis=1).nonzero()[0][0] + top < lamp.box[1] - RISE / 2
    return {"there"} | ({"lit"} if is_white.sum() > 12 else set()) | ({"up"} if is_up else set())


@pytest.mark.slow
def test_the_decoded_frames_show_every_event_within_its_span_and_at_no_other_time() -> None:
    for seed in range(10):
        clip, frames = world.clip(seed), world.ClipVideo(seed).load(TWO_A_SECOND)
        shown = frames.pixels.permute(0, 2, 3, 1).numpy()
        for lamp in clip.lamps:
            states = [seen(pixels, lamp) for pixels in shown]
            for event in lamp.events:
                expected = [event.span[0] <= seconds < event.span[1] for seconds in frames.seconds.tolist()]
                assert [event.state in found for found in states] == expected, (seed, lamp, event)
            for other in set(world.STATES) - {event.state for event in lamp.events}:
                assert {other in found for found in states} <= {other == "there"} | {False}


@pytest.mark.slow
def test_half_a_second_of_the_clip_is_one_frame_that_the_model_sees() -> None:
    """The frames lie a little late, yet each in its half second: no event begins or ends between two unseen."""
    for seed in range(5):
        seconds = world.ClipVideo(seed).load(TWO_A_SECOND).seconds
        assert (seconds / world.TIME_STEP).floor().tolist() == list(range(2 * world.clip(seed).duration))


def test_in_every_clip_two_lamps_share_a_colour_two_a_shape_and_one_has_two_events() -> None:
    for seed in MANY:
        lamps = world.clip(seed).lamps
        assert len({lamp.name for lamp in lamps}) == len({lamp.cell for lamp in lamps}) == 3
        assert len({lamp.colour for lamp in lamps}) == len({lamp.shape for lamp in lamps}) == 2
        assert sorted(len(lamp.events) for lamp in lamps) == [1, 1, 2]


def test_events_lie_within_the_clip_on_half_seconds_and_are_not_alike() -> None:
    for seed in MANY:
        clip = world.clip(seed)
        spans = [event.span for _, event in events(clip)]
        for start, end in spans:
            assert 0 <= start < end <= clip.duration and 1 <= end - start <= 4
            assert start % 0.5 == end % 0.5 == 0
        assert all(world.iou(a, b) <= 0.4 for a, b in combinations(spans, 2))


def test_lamps_stay_in_their_quarter_also_when_they_are_up() -> None:
    for seed in MANY:
        for lamp in world.clip(seed).lamps:
            x1, y1, x2, y2 = lamp.box
            left, top = lamp.cell % 2 * CELL, lamp.cell // 2 * CELL
            assert left < x1 < x2 < left + CELL and top < y1 - RISE < y2 < top + CELL


@in_one_test(
    ("answer", "score"),
    [
        ("<answer>2.0 to 5.0</answer>", 1.0),
        ("<answer>2.0 to 3.5</answer>", 0.5),
        ("<answer>0.5 to 6.5</answer>", 0.5),
        ("<answer>4.0 to 6.0</answer>", 0.25),
        ("<answer>5.0 to 7.0</answer>", 0.0),
        ("<answer>5.0 to 2.0</answer>", 0.0),
        ("<answer>3.0 to 3.0</answer>", 0.0),
        ("<answer>2 to 5</answer>", 0.0),
        ("<answer>2.0 to 5.0</answer>\n", 0.0),
        (" <answer>2.0 to 5.0</answer>", 0.0),
        ("<answer>\u0662.0 to 5.0</answer>", 0.0),  # an Arabic digit
        ("", 0.0),
    ],
)
def test_the_score_of_an_answer_is_its_overlap_if_it_is_wholly_an_answer(answer: str, score: float) -> None:
    assert math.isclose(world.score(answer, (2.0, 5.0)), score)


def test_the_overlap_is_counted_in_half_seconds() -> None:
    rng = random.Random(0)
    for _ in range(50):
        (a, c), (b, d) = (sorted(rng.sample(range(25), 2)) for _ in range(2))
        first, second = set(range(a, c)), set(range(b, d))
        assert math.isclose(world.iou((a / 2, c / 2), (b / 2, d / 2)), len(first & second) / len(first | second))


def test_answers_are_written_in_half_seconds() -> None:
    assert world.answer((2.3, 6.0)) == "<answer>2.5 to 6.0</answer>"
    assert world.answer((0.2, 11.8)) == "<answer>0.0 to 12.0</answer>"
    for _, event in events(world.clip(3)):
        assert world.score(world.answer(event.span), event.span) == 1


@pytest.mark.slow
def test_labels_are_as_wrong_as_they_are_told_to_be() -> None:
    """Of 4,000 labels; the standard errors are about 0.008 for the share and 0.01 seconds for the others."""
    rng, is_other, errors = random.Random(1), [], []
    for seed in range(6_000_000, 6_001_000):
        clip = world.clip(seed)
        for _, event in events(clip):
            is_other.append(noisy_span(clip, event, Noise(wrong=0.4), rng) != event.span)
            if 2 < event.span[0] < 5:  # where the ends of the clip cut nothing off
                start, _ = noisy_span(clip, event, Noise(jitter=0.3, shift=0.4), rng)
                errors.append(start - event.span[0])
    assert abs(np.mean(is_other) - 0.4) < 0.03
    assert abs(np.mean(errors) - 0.4) < 0.05 and abs(np.std(errors) - 0.3) < 0.05
