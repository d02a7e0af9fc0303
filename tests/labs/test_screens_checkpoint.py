from collections.abc import Sequence
from typing import Any, get_args

import pytest
import torch

from mmrl.labs.screens import grading, networks, world
from mmrl.labs.screens.drawing import COLOURS, KINDS

LAB = "screens"
NUM_QUESTIONS = 64


def mean_score(answers: list[str], asked: Sequence[world.Question], task: world.Task) -> float:
    scores = [world.score(text, q.target["box"], task) for text, q in zip(answers, asked, strict=True)]
    return sum(scores) / len(scores)


def test_a_word_or_a_number_is_one_token_and_any_text_comes_back(processor: Any) -> None:
    tokenizer = processor.tokenizer
    for word in (*(f" {word}" for word in ("the", "of", *COLOURS, *KINDS)), "click", "box", ", ", "<answer>"):
        assert len(tokenizer(word)["input_ids"]) == 1
    assert len({tuple(tokenizer(str(number))["input_ids"]) for number in range(113)}) == 113
    assert all(len(tokenizer(str(number))["input_ids"]) == 1 for number in range(113))
    for text in ("na\u00efve \u5b57 \U0001f600\n\t 12345", "<answer>[1, 22, 112, 9]</answer>", "  two  spaces"):
        assert tokenizer.decode(tokenizer(text)["input_ids"]) == text
    assert len(tokenizer(world.click_answer(34, 71))["input_ids"]) == 7
    assert len(tokenizer(world.box_answer((3, 14, 15, 92)))["input_ids"]) == 11


def test_a_screen_is_not_resized_and_stands_for_sixteen_tokens(processor: Any) -> None:
    question = world.question(5, "click")
    content = [{"type": "image", "image": question.media[0].load()}, {"type": "text", "text": question.text}]
    encoded = processor.apply_chat_template(
        [{"role": "user", "content": content}],
        tokenize=True,
        return_dict=True,
        add_generation_prompt=True,
        return_tensors="pt",
    )
    assert encoded["image_grid_thw"].tolist() == [[1, 8, 8]]
    assert int((encoded["input_ids"] == networks.new_model(processor).config.image_token_id).sum()) == 16
    assert encoded["input_ids"].shape[1] == 30 and "mm_token_type_ids" in encoded


@pytest.mark.slow  # most of a second each, or more
@pytest.mark.parametrize("task", get_args(world.Task))
def test_the_model_looks_at_its_picture(model: Any, processor: Any, task: world.Task) -> None:
    """With the picture of the next question its answers are no better than guesses."""
    asked = world.prompts(f"{task}_held_out")[:NUM_QUESTIONS]
    swapped = [
        world.Question(one.text, other.media, one.target)
        for one, other in zip(asked, [*asked[1:], asked[0]], strict=True)
    ]
    own = grading.answer(model, processor, asked, is_greedy=True)
    other = grading.answer(model, processor, swapped, is_greedy=True)
    assert sum(a != b for a, b in zip(own, other, strict=True)) > 0.9 * NUM_QUESTIONS
    assert mean_score(own, asked, task) > mean_score(other, asked, task) + 0.25
    assert mean_score(other, asked, task) < 0.2


@pytest.mark.slow
def test_the_model_obeys_the_words(model: Any, processor: Any) -> None:
    """Asked for each element of one screen it clicks in different places."""
    screen = world.screen(world.FIRST_SEED["held_out"])
    picture = (world.ScreenPicture(world.FIRST_SEED["held_out"]),)
    asked = [world.Question(world.ask(element, "click"), picture, {"box": element.box}) for element in screen.elements]
    assert len(set(grading.answer(model, processor, asked, is_greedy=True))) >= len(asked) - 1


@pytest.mark.slow  # trains
@pytest.mark.parametrize("task", get_args(world.Task))
def test_it_was_spoilt_but_not_beyond_repair(model: Any, processor: Any, task: world.Task) -> None:
    """Sampled answers are often wrong, and greedy ones better: that is what RL mends."""
    asked = world.prompts(f"{task}_held_out")[:NUM_QUESTIONS]
    torch.manual_seed(0)
    sampled = mean_score(grading.answer(model, processor, asked, is_greedy=False), asked, task)
    greedy = mean_score(grading.answer(model, processor, asked, is_greedy=True), asked, task)
    assert 0.15 < sampled < greedy < 0.9
