"""What the scripts share that make the labs' checkpoints, and what holds for each of these scripts."""

import json
import math
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForImageTextToText, AutoProcessor

from mmrl.labs.clips import pretrain as of_clips
from mmrl.labs.clips.world import DURATIONS
from mmrl.labs.screens import networks
from mmrl.labs.screens.pretrain import TOWER_SCREENS
from mmrl.labs.teaching import Course, Stage, command_line, cosine, make_checkpoint, warm

SEEDS_OF_A_STEP = {
    "clips": of_clips.CLIPS * len(DURATIONS),
    "screens": TOWER_SCREENS,
    "tasks": TOWER_SCREENS,
}
of_each_lab = pytest.mark.parametrize("lab", sorted(SEEDS_OF_A_STEP), scope="module")


def test_the_learning_rate_falls_from_1_to_a_tenth() -> None:
    assert cosine(0) == 1 and math.isclose(cosine(1), 0.1) and math.isclose(cosine(0.5), 0.55)


def test_the_learning_rate_of_a_stage_rises_over_thirty_steps_and_falls_only_if_told_to() -> None:
    steady, falling = Stage("steady", 100, 3e-3, None), Stage("falling", 100, 3e-3, None, is_falling=True)
    assert math.isclose(warm(3e-3, 0), 1e-4) and math.isclose(warm(3e-3, 14), 1.5e-3)
    assert warm(3e-3, 29) == warm(3e-3, 30) == 3e-3
    assert [steady.rate(step, 100) for step in (0, 50, 99)] == [1e-4, 3e-3, 3e-3]
    assert math.isclose(falling.rate(0, 100), 1e-4) and math.isclose(falling.rate(50, 100), 3e-3 * 0.55)


class Listed:
    """A teacher that only writes down what it is asked for; each stage adds 1 to a weight."""

    def __init__(self) -> None:
        self.processor: Any = networks.new_processor()
        self.model: Any = networks.new_model(self.processor)
        self.asked: list[tuple[str, int]] = []

    def train_tower(self, num_steps: int) -> None:
        self.asked.append(("tower", num_steps))

    def train_language(self, stage: Stage[Any], num_steps: int) -> None:
        self.asked.append((stage.name, num_steps))
        with torch.no_grad():
            self.model.model.language_model.norm.weight += 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("scale", "steps", "graded"), [(1.0, [100, 40, 30, 3], 512), (0.1, [10, 4, 3, 1], 51), (0.001, [1] * 4, 8)]
)
def test_a_checkpoint_is_written_before_spoiling_and_after_it(
    tmp_path: Path, scale: float, steps: list[int], graded: int
) -> None:
    reports: list[tuple[Path, int, float]] = []

    def report(folder: Path, num_questions: int) -> None:
        weights = load_file(folder / "model.safetensors")
        assert {value.dtype for value in weights.values()} == {torch.float16}
        reports.append((folder, num_questions, float(weights["model.norm.weight"][0])))

    teacher = Listed()
    stages = [Stage(name, num_steps, 1e-3, None) for name, num_steps in (("one", 40), ("two", 30), ("spoil", 3))]
    course = Course(100, stages[:2], stages[2], num_graded=512)
    make_checkpoint(tmp_path / "made", teacher, course, report, scale)
    assert teacher.asked == list(zip(("tower", "one", "two", "spoil"), steps, strict=True))
    assert reports == [(tmp_path / "made_unspoilt", graded, 3.0), (tmp_path / "made", graded, 4.0)]
    assert teacher.model.dtype == torch.float32  # saving turns a copy to half precision


@pytest.mark.slow
@of_each_lab
def test_training_the_tower_changes_the_tower_alone_and_freezes_it(
    teacher: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(of_clips, "CLIPS", 2)
    before = {name: value.clone() for name, value in teacher.model.state_dict().items()}
    teacher.train_tower(1)
    moved = {name for name, value in teacher.model.state_dict().items() if not torch.equal(value, before[name])}
    assert moved and all(name.startswith("model.visual.") for name in moved)
    assert not any(parameter.requires_grad for parameter in teacher.model.model.visual.parameters())
    assert all(parameter.requires_grad for parameter in teacher.model.model.language_model.parameters())


@of_each_lab
def test_no_seed_of_pretraining_is_in_a_split(lab: str) -> None:
    """Seeds are counted up, a million for each training seed."""
    pretrain, world = (import_module(f"mmrl.labs.{lab}.{name}") for name in ("pretrain", "world"))
    steps = pretrain.TOWER_STEPS + sum(stage.num_steps for stage in (*pretrain.STAGES, pretrain.SPOIL))
    assert steps * SEEDS_OF_A_STEP[lab] < 1_000_000
    assert max(world.FIRST_SEED["train"] + 4096, world.FIRST_SEED["held_out"] + 512) < world.FIRST_SEED["pretrain"]


@pytest.mark.slow  # two short trainings
@pytest.mark.parametrize(
    ("lab", "scale", "printed"),
    [
        pytest.param("clips", 0.01, "a: sampled 0.0", marks=pytest.mark.exhaustive),
        ("screens", 0.002, "a click: sampled 0.0"),
        pytest.param("tasks", 0.002, "a: sampled 0.0", marks=pytest.mark.exhaustive),
    ],
    ids=["clips", "screens", "tasks"],
)
def test_a_seed_trains_the_same_checkpoint_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], lab: str, scale: float, printed: str
) -> None:
    for name in ("a", "b"):
        import_module(f"mmrl.labs.{lab}.pretrain").pretrain(tmp_path / name, seed=3, scale=scale)
    first, again = (load_file(tmp_path / name / "model.safetensors") for name in ("a", "b"))
    unspoilt = load_file(tmp_path / "a_unspoilt" / "model.safetensors")
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert any(not torch.equal(first[name], unspoilt[name]) for name in first)
    assert {value.dtype for value in first.values()} == {torch.float16}
    assert json.loads((tmp_path / "a" / "config.json").read_text())["dtype"] == "float32"
    assert AutoModelForImageTextToText.from_pretrained(tmp_path / "a").dtype == torch.float32
    assert type(AutoProcessor.from_pretrained(tmp_path / "a")).__name__ == "Qwen2_5_VLProcessor"
    assert printed in capsys.readouterr().out


def test_the_command_line_trains_into_a_folder_from_a_seed_in_any_length(monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[tuple[Path, int, float]] = []

    def pretrain(folder: Path, *, seed: int, scale: float = 1.0) -> None:
        called.append((folder, seed, scale))

    for words in (["--out", "here"], ["--out", "there", "--seed", "4", "--scale", "0.5"]):
        monkeypatch.setattr("sys.argv", ["pretrain", *words])
        command_line("Makes a checkpoint.", pretrain)
    assert called == [(Path("here"), 0, 1.0), (Path("there"), 4, 0.5)]
