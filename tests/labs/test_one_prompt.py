"""1-shot RLVR (arXiv 2504.20571): configs that learn from one prompt, which is the smoke test of training.

A run that does not learn a single prompt, given fifty steps of nothing else, is broken somewhere.
"""

import json
from pathlib import Path
from statistics import mean

import pytest

from mmrl.commands.systems import named_by
from mmrl.commands.train import train
from mmrl.core.config import load_config
from mmrl.prompts.stream import load_prompts
from mmrl.run_directory.start import new_run
from tests.parameters import in_one_test

CONFIGS = named_by()["1-shot RLVR"]
ANSWERS = ("vision_language", "video", "gui")
LABS = [name for name in CONFIGS if name.startswith("lab/")]


def test_there_is_a_config_for_images_videos_and_clicks() -> None:
    assert {load_config(name).modality["name"] for name in CONFIGS} >= {"sd3", "video", "gui", "vision_language"}


@in_one_test("name", CONFIGS)
def test_answers_have_a_bonus_for_entropy_and_the_seed_is_fixed(name: str) -> None:
    config = load_config(name)
    assert config.seed is not None
    assert config.loss.get("entropy_coef", 0) == (0.001 if config.modality["name"] in ANSWERS else 0)


@pytest.mark.slow  # each lab makes its pictures: a second
@pytest.mark.parametrize("name", LABS)
def test_there_is_one_prompt_to_learn_from(name: str) -> None:
    train_prompts = load_config(name).prompts.train
    assert isinstance(train_prompts, str) and len(load_prompts(train_prompts)) == 1


@pytest.mark.slow  # ten iterations of a small model take 12 s
def test_ten_steps_learn_one_click(tmp_path: Path) -> None:
    train(*new_run("lab/one_shot_clicks", ["iterations=10", "evaluation=null"], tmp_path / "run"))
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    rewards = [row["reward/point_in_box/mean"] for row in rows if "reward/point_in_box/mean" in row]
    assert len(rewards) == 10
    assert mean(rewards[:2]) < 0.6 and mean(rewards[-3:]) > 0.75
