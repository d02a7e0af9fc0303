"""The shipped checkpoint of the lab of tasks: small, loaded by the Auto classes, and half able."""

import json
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForImageTextToText, AutoProcessor
from transformers.models.qwen2_5_vl import Qwen2_5_VLForConditionalGeneration, Qwen2_5_VLProcessor

from mmrl import labs
from mmrl.labs.screens.grading import answers
from mmrl.labs.screens.world import CLICK
from mmrl.labs.tasks import grading, networks, world
from mmrl.labs.tasks.pages import BACK

FOLDER = labs.checkpoint("tasks")
NUM_TASKS = 32


@pytest.fixture(scope="module")
def model() -> Any:
    return AutoModelForImageTextToText.from_pretrained(FOLDER).eval()


@pytest.fixture(scope="module")
def processor() -> Any:
    return AutoProcessor.from_pretrained(FOLDER)


def first_clicks(model: Any, processor: Any, looks: list[Any], goals: list[str]) -> list[tuple[int, int]]:
    """The likeliest clicks; (0, 0) for what is none."""
    texts = answers(model, processor, goals, [look.draw() for look in looks], is_greedy=True)
    found = [CLICK.fullmatch(text) for text in texts]
    return [(0, 0) if match is None else (int(match[1]), int(match[2])) for match in found]


def test_the_folder_is_small_half_precision_and_names_no_machine() -> None:
    files = [path for path in FOLDER.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) < 3_200_000
    assert {path.suffix for path in files} == {".json", ".jinja", ".safetensors"}
    for path in files:
        if path.suffix == ".safetensors":
            assert {tensor.dtype for tensor in load_file(path).values()} == {torch.float16}
        else:
            text = path.read_text()
            assert "_name_or_path" not in text and "/tmp" not in text and "/work" not in text
    assert json.loads((FOLDER / "config.json").read_text())["dtype"] == "float32"


def test_the_auto_classes_load_the_stock_classes_in_float32(model: Any, processor: Any) -> None:
    assert isinstance(model, Qwen2_5_VLForConditionalGeneration) and model.dtype == torch.float32
    assert isinstance(processor, Qwen2_5_VLProcessor)


def test_the_processor_is_the_one_that_the_script_makes(processor: Any) -> None:
    made = networks.new_processor()
    assert processor.tokenizer.get_vocab() == made.tokenizer.get_vocab()
    assert processor.chat_template == made.chat_template
    assert processor.image_processor.size == made.image_processor.size


def test_it_was_spoilt_but_not_beyond_repair(model: Any, processor: Any) -> None:
    """Sampled episodes mostly fail, and greedy ones do better: that is what RL mends."""
    torch.manual_seed(0)
    sampled = grading.success(model, processor, is_greedy=False, num_tasks=24)
    greedy = grading.success(model, processor, is_greedy=True, num_tasks=24)
    assert 0.1 < sampled < greedy < 0.95


def test_it_looks_at_the_page_and_reads_the_goal(model: Any, processor: Any) -> None:
    """On the page of another task, or with another goal, it clicks elsewhere."""
    tasks = [world.task(world.FIRST_SEED["held_out"] + number) for number in range(NUM_TASKS)]
    looks, goals = [task.look(world.State()) for task in tasks], [task.goal for task in tasks]
    own = first_clicks(model, processor, looks, goals)
    other_page = first_clicks(model, processor, [*looks[1:], looks[0]], goals)
    other_goal = first_clicks(model, processor, looks, [*goals[1:], goals[0]])
    for other in (other_page, other_goal):
        assert sum(a != b for a, b in zip(own, other, strict=True)) > 0.6 * NUM_TASKS


def test_it_goes_back_where_nothing_that_is_named_is_there(model: Any, processor: Any) -> None:
    looks, goals = [], []
    for number in range(NUM_TASKS):
        task = world.task(world.FIRST_SEED["held_out"] + number)
        looks.append(task.look(world.State(page=len(task.pages) - 1)))  # the last page of every task is astray
        goals.append(task.goal)
    x1, y1, x2, y2 = BACK.box
    clicks = first_clicks(model, processor, looks, goals)
    assert sum(x1 <= x <= x2 and y1 <= y <= y2 for x, y in clicks) > 0.6 * NUM_TASKS
