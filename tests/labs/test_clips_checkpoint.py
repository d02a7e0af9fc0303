from collections.abc import Sequence
from typing import Any

import pytest
import torch

from mmrl.labs.clips import grading, networks, world
from mmrl.labs.clips.drawing import COLOURS, SHAPES

LAB = "clips"
NUM_QUESTIONS = 64


def mean_score(answers: list[str], asked: Sequence[world.Question]) -> float:
    scores = [world.score(text, q.target["span"]) for text, q in zip(answers, asked, strict=True)]
    return sum(scores) / len(scores)


def test_a_word_or_a_time_is_one_token_and_any_text_comes_back(processor: Any) -> None:
    tokenizer = processor.tokenizer
    words = (f" {word}" for word in ("is", "the", *COLOURS, *SHAPES, *world.STATES))
    for word in (*words, "when", " to ", "<answer>", "</answer>"):
        assert len(tokenizer(word)["input_ids"]) == 1
    times = [f"{number / 2:.1f}" for number in range(25)]
    assert len({tuple(tokenizer(time)["input_ids"]) for time in times}) == 25
    assert all(len(tokenizer(time)["input_ids"]) == 1 for time in times)
    for text in ("na\u00efve \u5b57 \U0001f600\n\t 123.45", "<answer>2.5 to 11.0</answer>", "  two  spaces to  1.2.3 "):
        assert tokenizer.decode(tokenizer(text)["input_ids"]) == text
    assert len(tokenizer(world.answer((2.5, 11.0)))["input_ids"]) == 5


@pytest.mark.slow
def test_a_second_of_a_clip_is_not_resized_and_stands_for_four_tokens(processor: Any) -> None:
    frames = grading.frames(4)
    content = [{"type": "video", "video": frames.pixels}, {"type": "text", "text": world.question(4).text}]
    encoded = processor.apply_chat_template(
        [{"role": "user", "content": content}],
        tokenize=True,
        return_dict=True,
        add_generation_prompt=True,
        return_tensors="pt",
        processor_kwargs={"do_sample_frames": False, "video_metadata": [{"fps": 2, "total_num_frames": 24}]},
    )
    assert encoded["video_grid_thw"].tolist() == [[12, 4, 4]] and encoded["second_per_grid_ts"].tolist() == [1.0]
    assert int((encoded["input_ids"] == networks.new_model(processor).config.video_token_id).sum()) == 48


@pytest.mark.slow
def test_the_model_looks_at_its_clip(model: Any, processor: Any) -> None:
    """With another clip of the same length its answers are no better than guesses."""
    asked = world.prompts("held_out")[:NUM_QUESTIONS]
    lengths = len(world.DURATIONS)
    swapped = [
        world.Question(one.text, (world.ClipVideo(one.clips[0].seed + lengths * NUM_QUESTIONS),), one.target)
        for one in asked
    ]
    own = grading.answer(model, processor, asked, is_greedy=True)
    other = grading.answer(model, processor, swapped, is_greedy=True)
    assert mean_score(own, asked) > mean_score(other, asked) + 0.2
    assert mean_score(other, asked) < 0.3  # always "1.5 to 7.5" scores 0.26


@pytest.mark.slow  # answers many questions
def test_the_model_obeys_the_words(model: Any, processor: Any) -> None:
    """Asked for each event of a clip it answers with different spans."""
    different = 0
    for seed in range(world.FIRST_SEED["held_out"], world.FIRST_SEED["held_out"] + 8):
        asked = [
            world.Question(world.ask(lamp, event), (world.ClipVideo(seed),), {"span": list(event.span)})
            for lamp in world.clip(seed).lamps
            for event in lamp.events
        ]
        different += len(set(grading.answer(model, processor, asked, is_greedy=True)))
    assert different >= 3 * 8  # of 4


@pytest.mark.slow
def test_it_was_spoilt_but_not_beyond_repair(model: Any, processor: Any) -> None:
    """Sampled answers are often wrong, and greedy ones better: that is what RL mends."""
    asked = world.prompts("held_out")[:NUM_QUESTIONS]
    torch.manual_seed(0)
    sampled = mean_score(grading.answer(model, processor, asked, is_greedy=False), asked)
    greedy = mean_score(grading.answer(model, processor, asked, is_greedy=True), asked)
    assert 0.2 < sampled < greedy < 0.9
