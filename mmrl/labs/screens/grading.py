"""Answers of a model of the lab to questions on held-out screens, and their scores."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args

import torch
from PIL import Image
from transformers import AutoModelForImageTextToText, AutoProcessor

from mmrl.labs.screens import world
from mmrl.labs.screens.questions import prompt_text

BATCH_SIZE = 128


def answer(model: Any, processor: Any, asked: Sequence[world.Question], *, is_greedy: bool) -> list[str]:
    """Returns one answer to each question, greedy, or sampled at temperature 1 from torch's global generator."""
    images = [question.media[0].load() for question in asked]
    return answers(model, processor, [question.text for question in asked], images, is_greedy=is_greedy)


@torch.no_grad()
def answers(
    model: Any, processor: Any, asked: Sequence[str], images: Sequence[Image.Image], *, is_greedy: bool
) -> list[str]:
    """Returns one answer to each text and image, greedy, or sampled at temperature 1 from torch's global generator."""
    texts = [prompt_text(processor, text) for text in asked]
    encoded = processor(text=texts, images=images, padding=True, return_tensors="pt")
    how: dict[str, Any] = {"do_sample": False} if is_greedy else {"do_sample": True, "top_k": 0, "top_p": 1.0}
    output = model.generate(**encoded, max_new_tokens=16, **how)
    rows: list[str] = processor.tokenizer.batch_decode(output[:, encoded["input_ids"].shape[1] :])
    return [row.partition(processor.tokenizer.eos_token)[0] for row in rows]


def evaluate(model: Any, processor: Any, task: world.Task, *, is_greedy: bool, num_questions: int) -> float:
    """Returns the mean score of the first held-out questions: share of hits for clicks, mean IoU for boxes."""
    asked = world.prompts(f"{task}_held_out")[:num_questions]
    scores = []
    for start in range(0, len(asked), BATCH_SIZE):
        part = asked[start : start + BATCH_SIZE]
        texts = answer(model, processor, part, is_greedy=is_greedy)
        scores += [world.score(text, q.target["box"], task) for text, q in zip(texts, part, strict=True)]
    return sum(scores) / len(scores)


def report(folder: Path, num_questions: int) -> None:
    """Prints the scores of the checkpoint in a folder at both tasks, sampled and greedy."""
    model = AutoModelForImageTextToText.from_pretrained(folder).eval()
    processor = AutoProcessor.from_pretrained(folder)
    for task in get_args(world.Task):
        torch.manual_seed(0)
        sampled, greedy = (
            evaluate(model, processor, task, is_greedy=is_greedy, num_questions=num_questions)
            for is_greedy in (False, True)
        )
        print(f"{folder.name} {task}: sampled {sampled:.4f} greedy {greedy:.4f}", flush=True)
