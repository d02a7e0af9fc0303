"""Prompts that are cut are told by the commands that draw from them."""

from pathlib import Path

import pytest

from mmrl.commands import train
from mmrl.run_directory import start
from tests.tiny_cli import CommandLine, command_line
from tests.tiny_runs import SDE, SMALL

LONG = "red circle " * 60
PROVIDED = "prompts: the model reads only the beginning of 1 of"


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> CommandLine:
    return command_line(tmp_path, monkeypatch, capsys)


@pytest.mark.slow  # a run, an evaluation and a sample
def test_train_evaluate_and_sample_say_which_of_their_prompts_are_cut(
    cli: CommandLine, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "train.txt").write_text(f"red circle\n{LONG}\n")
    (tmp_path / "held_out.txt").write_text(f"{LONG}\nred circle\nblue circle\n")
    changes = [*SMALL, SDE, "loss={name: grpo}", "iterations=1", "rewards=[{name: jpeg_size}]"]
    changes += [
        "prompts={train: train.txt, held_out: held_out.txt}",
        "evaluation.num_prompts=null",
        "evaluation.rewards=null",
    ]
    train.train(*start.new_run("quickstart", changes, tmp_path / "run"))
    first, second = caplog.messages
    assert first.startswith(f"{PROVIDED} 2 of train.txt; the first, train.txt, line 2: 'red circle red")
    assert second.startswith(f"{PROVIDED} 3 of held_out.txt; the first, held_out.txt, line 1: 'red circle red")
    caplog.clear()
    assert cli("evaluate", "run", "--json").code == 0
    assert [message for message in caplog.messages if message.startswith(PROVIDED)] == [second]
    caplog.clear()
    assert cli("sample", "run", "--prompt", "red circle", "--prompt", LONG, "--count", "1").code == 0
    assert [f"{PROVIDED} 2; the first: 'red circle red" in message for message in caplog.messages].count(True) == 1
