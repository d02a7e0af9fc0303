import math
import random
from typing import Any

import pytest
import torch

from mmrl.labs.clips import grading, pretrain, world
from mmrl.labs.clips.drawing import COLOURS, SHAPES
from mmrl.labs.clips.questions import Noise, prompt_positions, prompt_text, questions, soft_labels
from mmrl.labs.clips.targets import PointerHeads, TimeHeads, seen_in
from mmrl.modalities.encoding.positions import rope_positions
from tests.labs.checks import assert_learns

LAB = "clips"


def shown(teacher: pretrain.Teacher, seeds: range) -> pretrain.Shown:
    """Clips of one length, looked at by the tower as it is."""
    pixels = teacher.processor.video_processor([grading.frames(seed).pixels for seed in seeds], return_tensors="pt")
    clips = [world.clip(seed) for seed in seeds]
    patches = pixels["pixel_values_videos"].view(len(clips), clips[0].duration, 16, -1)
    with torch.no_grad():
        return pretrain.Shown(clips, None, teacher.look(patches))


def test_tower_targets_are_what_the_frames_of_a_token_show() -> None:
    names = [*COLOURS, *SHAPES, *(f"{c} {s}" for c in COLOURS for s in SHAPES), *world.STATES]
    for seed in range(5):
        clip = world.clip(seed)
        seen = seen_in(clip)
        assert seen.shape == (clip.duration, 4, 2, len(names))
        for second in range(clip.duration):
            for cell in range(4):
                for frame in range(2):
                    expected = set()
                    for lamp in clip.lamps:
                        states = {state for state in world.STATES if lamp.is_in(state, second + frame / 2)}
                        if lamp.cell == cell and "there" in states:
                            expected = {lamp.colour, lamp.shape, lamp.name, *states}
                    found = {names[index] for index in seen[second, cell, frame].nonzero().flatten().tolist()}
                    assert found == expected


def test_the_time_of_a_token_is_its_second() -> None:
    heads = TimeHeads(12)
    with torch.no_grad():
        heads.second.weight.copy_(1000 * torch.eye(12))
        heads.second.bias.zero_()
    hidden = torch.eye(12)[:9, None].expand(9, 4, 12)[None]  # a token of second 3 says 3
    with torch.no_grad():
        assert float(heads.loss(hidden)) < 1e-6 < float(heads.loss(hidden.flip(1)))


def test_a_pointer_that_knows_nothing_loses_what_chance_does() -> None:
    heads = PointerHeads(8)
    for parameter in heads.parameters():
        torch.nn.init.zeros_(parameter)
    lamp = world.Lamp("red", "circle", (30, 9, 46, 25), (world.Event("lit", (1.5, 3.0)),))
    asked = [(lamp, lamp.events[0])]
    torch.testing.assert_close(heads.when_loss(torch.randn(1, 8), asked), torch.tensor(math.log(25)))
    # 3 of the 64 frames of tokens show it; each is believed in by sigmoid(-2)
    expected = (3 * math.log(1 + math.exp(2)) + 61 * math.log(1 + math.exp(-2))) / 64
    loss = heads.where_loss(torch.randn(1, 8), torch.randn(1, 8, 4, 8), asked)
    torch.testing.assert_close(loss, torch.tensor(expected))


def test_a_time_is_labelled_by_a_bell_and_any_other_token_by_itself(new_processor: Any) -> None:
    labels = soft_labels(400, new_processor)
    number = new_processor.tokenizer.convert_tokens_to_ids
    torch.testing.assert_close(labels.sum(1), torch.ones(400))
    weights = {ticks: math.exp(-(ticks**2) / (2 * 0.5**2)) for ticks in range(-10, 15)}
    for ticks in (-2, -1, 0, 1):
        found = float(labels[number("5.0"), number(f"{5 + ticks / 2:.1f}")])
        assert math.isclose(found, weights[ticks] / sum(weights.values()), rel_tol=1e-4)
    assert labels[number("<answer>"), number("<answer>")] == 1
    assert labels[number("0.0"), number("12.0")] < 1e-6  # the bell is cut off at the edge, not wrapped around


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 4])
def test_positions_are_those_that_a_policy_gives_to_the_prompt(teacher: pretrain.Teacher, seed: int) -> None:
    frames = grading.frames(seed)
    encoded = teacher.processor(
        text=[prompt_text(teacher.processor, world.question(seed).text)], videos=[frames.pixels], return_tensors="pt"
    )
    found = rope_positions(
        teacher.model.model, encoded["input_ids"][0], encoded["mm_token_type_ids"][0], encoded, torch.tensor([1.0])
    )
    assert torch.equal(found, prompt_positions(found.shape[1], len(frames.indices) // 2))


@pytest.mark.slow  # most of a second each, or more
def test_sharing_a_clip_among_its_questions_changes_no_loss(teacher: pretrain.Teacher) -> None:
    """Against whole chats, one by one, encoded by the processor."""
    seeds = range(2, 8, 5)
    clips = shown(teacher, seeds)
    batch = questions(teacher.processor, clips.clips, Noise(), random.Random(0))
    with torch.no_grad():
        ours = teacher.losses(clips, batch)[0]
    total, count = 0.0, 0
    for row, tokens in enumerate(batch.tokens):
        text = "<|im_start|>user\n<|vision_start|><|video_pad|><|vision_end|>" + teacher.processor.tokenizer.decode(
            tokens
        )
        encoded = teacher.processor(text=[text], videos=[grading.frames(seeds[row // 6]).pixels], return_tensors="pt")
        length, num_labels = encoded["input_ids"].shape[1], len(tokens) - batch.num_before
        with torch.no_grad():
            positions = prompt_positions(length, clips.clips[0].duration)[:, None]
            log_prob = teacher.model(**encoded, position_ids=positions).logits[0, -num_labels - 1 : -1].log_softmax(-1)
        label = teacher.labels[encoded["input_ids"][0, -num_labels:]]
        total, count = total - float((label * log_prob).sum()), count + num_labels
    assert count == 12 * 6  # <answer>, start, to, end, </answer>, and the end token
    assert math.isclose(float(ours), total / count, rel_tol=1e-5)


@pytest.mark.slow
def test_a_step_on_the_same_questions_lowers_their_loss(teacher: pretrain.Teacher) -> None:
    clips = shown(teacher, range(0, 10, 5))
    batch = questions(teacher.processor, clips.clips, Noise(), random.Random(0))
    assert_learns(teacher.model, lambda: teacher.losses(clips, batch)[0])
