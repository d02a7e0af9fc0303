"""What holds for the shipped checkpoint of every lab, whatever it has learnt."""

import json
import math
from importlib import import_module
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers.models.qwen2_5_vl import Qwen2_5_VLForConditionalGeneration, Qwen2_5_VLProcessor

from mmrl import labs
from tests.parameters import in_one_test

MOST_BYTES = {
    **{"clips": 2_400_000, "edits": 3_000_000, "motion": 3_300_000, "screens": 3_200_000, "shapes": 4_000_000},
    "rewriting": 1_800_000,
    "tasks": 3_200_000,
}
NUM_WEIGHTS = {"clips": 1_107_808, "rewriting": 825_792, "screens": 1_485_280, "tasks": 1_486_304}  # the Qwen2.5-VL
of_each_qwen = pytest.mark.parametrize("lab", sorted(NUM_WEIGHTS), scope="module")


@pytest.mark.slow
@in_one_test("lab", sorted(MOST_BYTES))
def test_the_folder_is_small_half_precision_and_names_no_machine(lab: str) -> None:
    folder = labs.checkpoint(lab)
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) < MOST_BYTES[lab]
    template = {".jinja"} if lab in NUM_WEIGHTS else set()
    assert {path.suffix for path in files} == {".json", ".safetensors"} | template
    for path in files:
        if path.suffix == ".safetensors":
            assert {tensor.dtype for tensor in load_file(path).values()} == {torch.float16}
        else:
            text = path.read_text()
            assert "_name_or_path" not in text and "/tmp" not in text and "/work" not in text


def test_the_checkpoints_of_all_labs_stay_below_20_megabytes() -> None:
    folders = {name: labs.folder(name) / "checkpoint" for name in labs.names()}
    assert {name for name, folder in folders.items() if folder.is_dir()} == set(MOST_BYTES)
    files = [path for folder in folders.values() for path in folder.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) < 20_000_000


@pytest.mark.slow
@of_each_qwen
def test_the_auto_classes_load_the_stock_classes_in_float32(lab: str, model: Any, processor: Any) -> None:
    assert json.loads((labs.checkpoint(lab) / "config.json").read_text())["dtype"] == "float32"
    assert isinstance(model, Qwen2_5_VLForConditionalGeneration) and model.dtype == torch.float32
    assert isinstance(processor, Qwen2_5_VLProcessor) and processor.video_processor is not None
    assert sum(parameter.numel() for parameter in model.parameters()) == NUM_WEIGHTS[lab]
    assert model.get_output_embeddings().weight is model.get_input_embeddings().weight


@of_each_qwen
def test_the_processor_is_the_one_that_the_script_makes(processor: Any, new_processor: Any) -> None:
    assert processor.tokenizer.get_vocab() == new_processor.tokenizer.get_vocab()
    assert processor.chat_template == new_processor.chat_template
    assert processor.image_processor.size == new_processor.image_processor.size
    assert processor.video_processor.size == new_processor.video_processor.size


@of_each_qwen
def test_a_model_that_the_script_makes_has_the_shipped_ones_settings(lab: str, model: Any, new_processor: Any) -> None:
    made = import_module(f"mmrl.labs.{lab}.networks").new_model(new_processor)
    assert made.config.text_config.to_dict() == model.config.text_config.to_dict() | {"dtype": None}
    assert made.config.vision_config.to_dict() == model.config.vision_config.to_dict() | {"dtype": None}


@pytest.mark.parametrize(
    ("lab", "words", "period", "width"),
    [
        ("screens", [str(number) for number in range(113)], 224, 4.0),
        ("clips", [f"{number / 2:.1f}" for number in range(25)], 50, 1.5),
    ],
    ids=["screens", "clips"],
    scope="module",
)
def test_embeddings_of_numbers_begin_as_alike_as_their_distance_says(
    lab: str, new_processor: Any, words: list[str], period: int, width: float
) -> None:
    """A bell of the distance over the width, in 64 Fourier features; others are as long, and in no order."""
    made = import_module(f"mmrl.labs.{lab}.networks").new_model(new_processor)
    embeddings = made.get_input_embeddings().weight.detach()
    numbers = embeddings[new_processor.tokenizer.convert_tokens_to_ids(words)]
    torch.testing.assert_close(numbers.norm(dim=1).mean(), embeddings.norm(dim=1).mean(), rtol=0.02, atol=0)
    waves = [math.pi * number / period for number in range(1, 65)]
    heights = [math.exp(-((wave * width) ** 2) / 2) for wave in waves]
    for first, second in ((0, 1), (3, 5), (10, 10), (20, 4), (7, 24)):
        expected = sum(h * math.cos(w * (first - second)) for h, w in zip(heights, waves, strict=True)) / sum(heights)
        found = torch.cosine_similarity(numbers[first], numbers[second], dim=0)
        torch.testing.assert_close(found, torch.tensor(expected), atol=1e-5, rtol=1e-4)
