"""Resuming a run that is done: its files say so, and no model is read."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from mmrl.commands import finished, train
from mmrl.core.config import RunConfig
from mmrl.run_directory import start
from mmrl.run_directory.lock import LOCK
from mmrl.run_directory.saved_state import Progress
from tests.parameters import in_one_test
from tests.tiny_cli import CommandLine, command_line
from tests.tiny_runs import SDE, SMALL


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of one iteration."""
    folder = tmp_path_factory.mktemp("finished") / "run"
    changes = [*SMALL, SDE, "loss={name: grpo}", "iterations=1", "evaluation=null"]
    train.train(*start.new_run("quickstart", changes, folder))
    return folder


@pytest.fixture
def folder(original: Path, tmp_path: Path) -> Path:
    return shutil.copytree(original, tmp_path / "run")


@pytest.fixture
def mmrl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> CommandLine:
    return command_line(tmp_path, monkeypatch, capsys)


def resumed(folder: Path, *overrides: str) -> RunConfig:
    config = start.resumed_run(folder, overrides)
    (folder / LOCK).unlink()
    return config


def edited(folder: Path, file: str, **changes: Any) -> None:
    path = folder / file
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


@pytest.mark.slow
def test_a_finished_run_is_told_before_a_model_is_read(
    folder: Path, mmrl: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(train, "build", lambda config: pytest.fail("its parts are built"))
    before = (folder / "metrics.jsonl").read_bytes(), (folder / "summary.json").read_bytes()
    (folder / "report.html").unlink()
    (folder / "checkpoints" / ".tmp-000001").mkdir()
    ended = mmrl("train", "--resume", str(folder), "checkpoint.keep=7")
    assert ended.code == 0
    assert ended.out.startswith(f"{folder} is done already: nothing is left to train\n1 iterations in ")
    assert yaml.safe_load((folder / "config.yaml").read_text())["checkpoint"]["keep"] == 7
    assert (folder / "report.html").exists()
    assert [path.name for path in (folder / "checkpoints").iterdir()] == ["000001"]
    assert before == ((folder / "metrics.jsonl").read_bytes(), (folder / "summary.json").read_bytes())
    assert not (folder / LOCK).exists()


@pytest.mark.slow
def test_a_run_whose_time_was_up_is_done(folder: Path) -> None:
    assert finished.finish(resumed(folder, "iterations=5", "max_seconds=1e-9"), folder) is not None


@in_one_test(("stalled", "is_done"), [(0, False), (1, False), (2, True), (3, True)])
def test_a_run_whose_score_has_not_risen_is_done(stalled: int, is_done: bool, folder: Path) -> None:
    evaluation = {"sampler": {"name": "ode", "num_steps": 2}, "every": 1, "stop_after": 2}
    settings = resumed(folder).model_dump(mode="json") | {"iterations": 5, "evaluation": evaluation}
    assert Progress(iteration=1, evaluated=1, stalled=stalled).is_over(RunConfig.model_validate(settings)) == is_done


@pytest.mark.slow
@pytest.mark.parametrize(
    "overrides",
    [["iterations=2"], ["iterations=2", "max_seconds=1e9"], ["trackers=[tensorboard]"], ["sharding=full"]],
    ids=lambda overrides: overrides[-1],
)
def test_what_only_the_run_itself_can_do_is_left_to_it(folder: Path, overrides: list[str]) -> None:
    before = (folder / "config.yaml").read_bytes()
    assert finished.finish(resumed(folder, *overrides), folder) is None
    assert (folder / "config.yaml").read_bytes() == before


@pytest.mark.slow
def test_an_evaluation_that_is_missing_is_left_to_the_run_itself(folder: Path) -> None:
    config = resumed(folder)
    evaluation = {"sampler": {"name": "ode", "num_steps": 2}}
    settings = config.model_dump(mode="json") | {"evaluation": evaluation}
    assert finished.finish(RunConfig.model_validate(settings), folder) is None


@pytest.mark.parametrize("file", ["summary.json", "metrics.jsonl", "checkpoints/000001/manifest.json"])
def test_a_run_without_one_of_its_files_is_left_to_the_run_itself(folder: Path, file: str) -> None:
    config = resumed(folder)
    (folder / file).unlink()
    assert finished.finish(config, folder) is None


def test_a_damaged_checkpoint_is_left_to_the_run_itself(folder: Path) -> None:
    config = resumed(folder)
    tensors = folder / "checkpoints" / "000001" / "trained.safetensors"
    tensors.write_bytes(tensors.read_bytes()[:-1] + b"x")
    assert finished.finish(config, folder) is None


@pytest.mark.parametrize("changes", [{"iterations": 0}, {"is_complete": False}])
def test_a_summary_of_another_end_is_left_to_the_run_itself(folder: Path, changes: dict[str, Any]) -> None:
    edited(folder, "summary.json", **changes)
    assert finished.finish(resumed(folder), folder) is None
