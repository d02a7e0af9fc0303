"""`mmrl doctor`: of a config, of a run, on twins; what it prints, and what it leaves behind."""

import json
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from mmrl.cli import app
from mmrl.commands.doctor import _whole_iterations, _with_answer, _with_names, doctor, said
from mmrl.core.config import load_config, read_yaml
from mmrl.core.contracts import ConfigError, DivergedError, RunError
from mmrl.reporting.findings import Finding
from mmrl.reporting.report import write_report
from mmrl.training.rollouts import Collector
from tests.diagnosis.faults import POLICIES
from tests.process_runs import mmrl
from tests.tiny_cli import CommandLine, command_line

SHORT = ("evaluation.num_prompts=8", "evaluation.samples_per_prompt=1", "prompts_per_iteration=4", "group_size=4")


@pytest.mark.slow
def test_weights_that_diverge_and_pictures_that_are_no_numbers_are_findings_and_not_errors() -> None:
    (clicks,) = [one for one in doctor("lab/grpo", [*SHORT, "optimizer.learning_rate=1e30"]) if one.severity == "fatal"]
    assert clicks.name == "learning_rate_too_high" and "diverged" in clicks.cause
    (images,) = [
        one for one in doctor("lab/mix_grpo", [*SHORT, "optimizer.learning_rate=1e6"]) if one.severity == "fatal"
    ]
    assert images.name == "rewards_fail" and "NaN" in images.cause


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> CommandLine:
    return command_line(tmp_path, monkeypatch, capsys)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("error", "kind", "reason"),
    [
        (RunError("the disk is full"), "RunError", "the disk is full"),
        (DivergedError("no token"), "DivergedWeightsError", "the weights diverged at iteration 1: no token"),
        (KeyError("gone"), "KeyError", "KeyError: 'gone'"),
    ],
)
def test_a_run_that_fails_leaves_its_reason_until_it_goes_on(
    error: Exception, kind: str, reason: str, cli: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    collect, calls = Collector.__call__, list[int]()

    def collected(*given: Any, **named: Any) -> Any:
        calls.append(1)
        if len(calls) == 2:
            raise error
        return collect(*given, **named)

    monkeypatch.setattr(Collector, "__call__", collected)
    with pytest.raises(KeyError) if isinstance(error, KeyError) else nullcontext():
        assert cli.train("iterations=2", "evaluation=null", "checkpoint.every=1").code == 1
    failure = json.loads(Path("run/failure.json").read_text())
    assert failure["kind"] == kind and failure["reason"].startswith(reason)
    found = {one.name: one for one in doctor("run")}
    has_diverged = kind == "DivergedWeightsError"
    what = "that of learning_rate_too_high" if has_diverged else reason
    assert f"the run has 1 of 2 iterations: an error ended it: {what}" in found["ended_early"].cause
    assert ("learning_rate_too_high" in found) is has_diverged
    assert "It ended with an error: " in write_report(Path("run")).read_text()
    assert cli("train", "--resume", "run").code == 0
    assert not Path("run/failure.json").exists() and "ended_early" not in {one.name for one in doctor("run")}


@pytest.mark.slow
def test_json_alone_stands_on_stdout_and_a_fatal_finding_exits_with_1() -> None:
    done = CliRunner().invoke(app, ["doctor", "lab/grpo", *SHORT, "optimizer.learning_rate=1e30", "--json"])
    found = json.loads(done.stdout)
    assert done.exit_code == 1 and {one["severity"] for one in found} >= {"fatal"}
    assert set(found[0]) == {"iteration", "name", "severity", "cause", "value", "remedy"}


def test_a_finding_on_answers_shows_one(tmp_path: Path) -> None:
    (tmp_path / "rollouts" / "000002").mkdir(parents=True)
    entry = {"prompt": "click OK", "seed": 0, "scores": {}, "text": "x" * 200}
    (tmp_path / "rollouts" / "000002" / "samples.json").write_text(json.dumps({"kind": "text", "samples": [entry]}))
    one = Finding(2, "answers_unreadable", "warning", "none can be read", 0.0, "remedy")
    shown = f"none can be read; an answer of iteration 2 to 'click OK' is '{'x' * 120}...'"
    assert _with_answer(one, tmp_path).cause == shown
    other = Finding(2, "reward_fell", "warning", "cause", 0.0, "remedy")
    assert _with_answer(other, tmp_path) is other and _with_answer(one, tmp_path / "none") is one
    (tmp_path / "rollouts" / "000002" / "samples.json").write_text("{")
    assert _with_answer(one, tmp_path) is one


@pytest.mark.slow
def test_no_checkpoint_is_written_and_the_warm_up_is_that_of_the_whole_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mmrl.training.checkpoint.save", lambda *given: pytest.fail("a run that is thrown away"))
    short = ("evaluation.num_prompts=1", "evaluation.samples_per_prompt=1", "prompts_per_iteration=4", "group_size=2")
    half = load_config("lab/grpo").iterations // 2
    for warmup, is_named in ((half, False), (half + 1, True)):
        found = doctor("lab/grpo", [*short, "iterations=1", f"optimizer.warmup={warmup}"])
        assert ("warmup_too_long" in {one.name for one in found}) is is_named


def test_the_iterations_of_the_whole_run_may_be_left_to_the_command_line(tmp_path: Path) -> None:
    settings = {name: value for name, value in read_yaml("lab/grpo").items() if name != "iterations"}
    own = tmp_path / "own.yaml"
    own.write_text(yaml.safe_dump(settings))
    config = load_config(own, ["iterations=2"])
    assert _whole_iterations(str(own), ["iterations=2"], config) == 2
    assert _whole_iterations("lab/grpo", ["iterations=2"], config) == load_config("lab/grpo").iterations


def test_a_run_takes_no_settings(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("")
    with pytest.raises(ConfigError, match="takes neither settings nor --tiny"):
        doctor(str(tmp_path), ["seed=1"])


def test_the_worst_is_said_first_and_nothing_is_said_in_a_sentence() -> None:
    one = Finding(3, "a_note", "note", "cause", 0.123456, "remedy")
    other = Finding(2, "worse", "fatal", "cause", "tensor", "remedy")
    later = Finding(5, "worse", "fatal", "cause", "tensor", "remedy")
    assert said([one, later, other]).splitlines()[::3] == [
        "fatal: worse (tensor), iteration 2",
        "fatal: worse (tensor), iteration 5",
        "note: a_note (0.1235), iteration 3",
    ]
    assert "no finding" in said([])


def test_tensors_without_gradient_are_named() -> None:
    one = Finding(2, "tensors_without_gradient", "warning", "6 tensors have none", 6.0, "remedy")
    assert _with_names(one, ["a", "b"]).cause == "6 tensors have none: a, b"
    assert _with_names(one, list("abcdef")).cause == "6 tensors have none: a, b, c, d, e, ..."
    other = Finding(2, "gradient_is_noise", "note", "cause", 1.0, "remedy")
    assert _with_names(other, ["a"]) is other


@pytest.mark.slow
def test_settings_are_judged_by_the_length_of_the_run_that_they_are_for() -> None:
    long = {one.name for one in doctor("lab/grpo", [*SHORT, "optimizer.warmup=10"])}
    assert "warmup_too_long" not in long and "learning_rate_too_high" not in long


@pytest.mark.slow
def test_twins_are_examined_too_and_what_is_off_is_a_note() -> None:
    healthy, dropping = doctor("lab/grpo", is_tiny=True), doctor("lab/grpo", [f"{POLICIES}:Dropping"], is_tiny=True)
    assert "ratio_off_at_start" not in {one.name for one in healthy}
    (off,) = [one for one in dropping if one.name == "ratio_off_at_start"]
    assert off.severity == "note" and "mostly randomness" in off.cause


@pytest.mark.slow
def test_two_processes_say_one_list(tmp_path: Path) -> None:
    main, other = mmrl(tmp_path, ["doctor", "lab/grpo", *SHORT, "modality.sharing=none", "--json"], 2)
    assert (main.code, other.code) == (0, 0), main.said + other.said
    assert '"name": "nothing_is_shared"' in main.said and '"name"' not in other.said


@pytest.mark.slow
def test_the_folder_of_the_run_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    doctor("lab/grpo", SHORT)
    assert not list(tmp_path.glob("mmrl*"))
