"""`mmrl init` chooses the nearest recipe, reads the data's layout off its fields, fits the memory, and says why."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from PIL import Image
from typer.testing import CliRunner

from mmrl.cli import app
from mmrl.commands.check import check_tiny, plan_summary
from mmrl.commands.init import Start, Wishes, billions, layout_by_trial, layout_of, start_from
from mmrl.commands.init_text import blocks_of
from mmrl.core.config import load_config, read_yaml
from mmrl.system.errors import ConfigError
from tests.parameters import in_one_test

VLM, FLUX = "Qwen/Qwen2.5-VL-7B-Instruct", "black-forest-labs/FLUX.1-dev"


@pytest.fixture
def shots(tmp_path: Path) -> Path:
    """A folder of images with a jsonl, as a new user has it."""
    folder = tmp_path / "shots"
    (folder / "images").mkdir(parents=True)
    Image.new("RGB", (120, 80), "grey").save(folder / "images" / "0.png")
    row = {"prompt": "Where is the red button?", "images": ["images/0.png"], "box": [10, 10, 60, 50]}
    (folder / "train.jsonl").write_text(f"{json.dumps(row)}\n" * 4, encoding="utf-8")
    return folder


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    (tmp_path / "prompts.txt").write_text("a red cube\na blue ball\n", encoding="utf-8")
    return tmp_path / "prompts.txt"


def tree_of(start: Start) -> Any:
    return yaml.safe_load(start.text)


def test_the_recipe_with_the_same_reward_wins_then_the_same_model(shots: Path, prompts: Path) -> None:
    assert start_from(Wishes(VLM, str(shots), "box_iou", 80)).recipe == "grpo_qwen25vl_3b_refcoco"
    start = start_from(Wishes(FLUX, str(prompts), "pick_score", 80))
    assert load_config(start.recipe).modality["model"] == FLUX and "the same model and reward" in start.reasons[0]
    assert start_from(Wishes(FLUX, str(prompts), "pick_score", 80, like="nft_flux")).recipe == "nft_flux"


def test_what_the_config_has_is_what_was_wished_for(shots: Path) -> None:
    tree = tree_of(start := start_from(Wishes(VLM, str(shots), "box_iou", 80)))
    assert tree["modality"]["model"] == VLM and tree["rewards"][0]["name"] == "box_iou"
    train = tree["prompts"]["train"]
    assert (train["path"], train["layout"], train["images"]) == (str(shots / "train.jsonl"), "columns", str(shots))
    assert "evaluation" not in tree and "recipe" not in tree and "systems" not in tree
    assert start.text.startswith("# VLM-R1 on Qwen") and "# What judges the samples" in start.text
    unchanged = blocks_of((Path(__file__).parents[2] / f"configs/{start.recipe}.yaml").read_text(encoding="utf-8"))
    assert unchanged["loss"] in start.text, "what did not change stays as the recipe has it, with its comments"


def test_a_file_of_held_out_rows_is_evaluated_on(shots: Path) -> None:
    (shots / "test.jsonl").write_text((shots / "train.jsonl").read_text(encoding="utf-8"), encoding="utf-8")
    tree = tree_of(start_from(Wishes(VLM, str(shots), "box_iou", 80)))
    assert tree["prompts"]["train"]["path"].endswith("train.jsonl")
    assert tree["prompts"]["held_out"]["path"].endswith("test.jsonl")
    assert [one["name"] for one in tree["evaluation"]["rewards"]] == ["box_iou"]


def test_memory_decides_between_lora_four_bits_and_nothing(prompts: Path) -> None:
    """17 billion weights: 34 GB in bfloat16, 10 GB in 4 bits."""
    large = tree_of(start_from(Wishes(FLUX, str(prompts), "pick_score", 80)))["modality"]
    assert "quantise" not in large and large["lora"]
    small = tree_of(start := start_from(Wishes(FLUX, str(prompts), "pick_score", 24)))["modality"]
    assert small["quantise"] == {"bits": 4} and small["network_batch"] < large["network_batch"]
    assert any("4-bit weights" in reason for reason in start.reasons)
    with pytest.raises(ConfigError, match="needs about 13 GB in 4 bits with a LoRA, and --memory is 8"):
        start_from(Wishes(FLUX, str(prompts), "pick_score", 8))


def test_full_training_of_a_recipe_becomes_a_lora_where_it_does_not_fit(prompts: Path) -> None:
    start = start_from(Wishes(FLUX, str(prompts), "pick_score", 40, like="dance_grpo_flux"))
    tree = tree_of(start)
    assert tree["modality"]["lora"] and "sharding" not in tree and tree["optimizer"]["learning_rate"] == 1e-4
    assert read_yaml("dance_grpo_flux")["sharding"] == "full"


@in_one_test(
    ("fields", "recipe", "layout"),
    [
        ({"prompt", "images", "box"}, "grpo_qwen25vl_3b_refcoco", "columns"),
        ({"messages", "images"}, "grpo_qwen25vl_3b_refcoco", "columns"),
        ({"messages", "images", "objects", "solution"}, "grpo_qwen25vl_3b_refcoco", "ms_swift"),
        ({"image", "conversations"}, "grpo_qwen25vl_3b_refcoco", "vlm_r1"),
        ({"video", "timestamp", "sentence"}, "time_r1_qwen25vl_7b", "time_r1"),
        ({"prompt", "image"}, "families/flux_kontext", "edit"),
        ({"prompt"}, "nft_sd35", "columns"),
    ],
)
def test_the_layout_is_found_by_the_fields(fields: set[str], recipe: str, layout: str) -> None:
    assert layout_of(frozenset(fields), read_yaml(recipe)) == layout


@pytest.mark.slow
def test_the_layout_is_one_that_reads_the_rows_and_has_what_the_reward_needs(tmp_path: Path) -> None:
    Image.new("RGB", (80, 50)).save(tmp_path / "a.png")
    file = tmp_path / "rows.jsonl"
    file.write_text(json.dumps({"image": "a.png", "problem": "Where?", "solution": [1, 2, 3, 4]}) + "\n")
    fields = frozenset({"image", "problem", "solution"})
    assert layout_by_trial(file, {}, "box_iou", fields) == "gui_g1"
    with pytest.raises(ConfigError, match=r"no layout of docs/data\.md reads it with span for temporal_iou"):
        layout_by_trial(file, {}, "temporal_iou", fields)


@pytest.mark.slow
def test_init_says_whether_fields_or_a_trial_found_the_layout(tmp_path: Path, shots: Path) -> None:
    Image.new("RGB", (80, 50)).save(tmp_path / "a.png")
    file = tmp_path / "rows.jsonl"
    file.write_text(json.dumps({"image": "a.png", "problem": "Where?", "solution": [1, 2, 3, 4]}) + "\n")
    tried, found = (
        start_from(Wishes(model=VLM, data=str(data), reward="box_iou", memory=24)).reasons for data in (file, shots)
    )
    assert any("layout gui_g1, by trial: it reads the first rows" in reason for reason in tried)
    assert any("layout columns, by the fields box, images, prompt" in reason for reason in found)


@in_one_test(
    ("name", "size"),
    [("Qwen/Qwen2.5-VL-7B-Instruct", 7), ("a/wan2.1-t2v-1.3b-x", 1.3), ("a/stable-diffusion-v1-5", 1.1), ("a/b", 0)],
)
def test_names_say_how_many_weights_there_are(name: str, size: float) -> None:
    assert billions(name) == size


@in_one_test(
    ("change", "message"),
    [
        ({"reward": "box_iuo"}, r"unknown reward 'box_iuo' \(did you mean 'box_iou'"),
        ({"reward": "pick_score"}, "reward 'pick_score' judges images, and this model answers in text"),
        (
            {"reward": "exact_answer"},
            "judges by answer, which the rows do not have; their fields are box, images, prompt",
        ),
        ({"model": "soap/unknown"}, "cannot tell what kind of model 'soap/unknown' is"),
        ({"data": "nowhere"}, "--data nowhere: there is no such file or folder"),
        ({"memory": 0}, "--memory is the memory of one GPU in GB, above 0; got 0"),
        ({"like": "grpo_qwen25vl_3b_refcocoo"}, r"did you mean 'grpo_qwen25vl_3b_refcoco'"),
    ],
)
def test_what_cannot_become_a_config_is_named(shots: Path, change: dict[str, Any], message: str) -> None:
    wishes: dict[str, Any] = {"model": VLM, "data": str(shots), "reward": "box_iou", "memory": 80.0}
    with pytest.raises(ConfigError, match=message):
        start_from(Wishes(**{**wishes, **change}))


def test_without_a_terminal_nothing_is_asked(tmp_path: Path) -> None:
    ended = CliRunner().invoke(app, ["init", "--data", "x", "--out", str(tmp_path / "c.yaml")])
    assert isinstance(ended.exception, ConfigError)
    assert str(ended.exception) == "init needs --model, --reward, --memory; on a terminal it asks for them"


@pytest.mark.slow  # two dry runs
@pytest.mark.parametrize("kind", ["answers", "images"])
def test_a_written_config_runs_small(kind: str, shots: Path, prompts: Path, tmp_path: Path) -> None:
    given = (VLM, str(shots), "box_iou") if kind == "answers" else (FLUX, str(prompts), "pick_score")
    out = tmp_path / "mine.yaml"
    flags = ["--model", given[0], "--data", given[1], "--reward", given[2], "--memory", "80", "--out", str(out)]
    ended = CliRunner().invoke(app, ["init", *flags])
    assert ended.exit_code == 0 and ended.stdout.endswith(f"  mmrl check {out} --tiny\n  mmrl train {out}\n")
    config = load_config(out, ["threads=1"])
    plan_summary(config)
    assert check_tiny(config)["is_good"]
    assert isinstance(CliRunner().invoke(app, ["init", *flags]).exception, ConfigError), "never over a file"
