"""A user's mistake ends with exit code 2 and words that help, never with a traceback or with something lost."""

import errno
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import mmrl
from mmrl.core.config import load_config, to_yaml
from mmrl.run_directory.start import new_run
from mmrl.system.errors import ConfigError
from mmrl.training import checkpoint
from tests.tiny_cli import CommandLine, command_line
from tests.tiny_runs import assert_same, numbers


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> CommandLine:
    return command_line(tmp_path, monkeypatch, capsys)


@pytest.mark.parametrize(
    "override, message",
    [
        ("optimzer.betas=[0.9, 0.99]", "config has no field 'optimzer' (did you mean 'optimizer'?)"),
        ("optimizer.lerning_rate=1", "config.optimizer has no field 'lerning_rate' (did you mean 'learning_rate'?)"),
        ("loss.betta=1", "losses.nft has no field 'betta' (did you mean 'beta'?)"),
        ("loss.decay.sloppe=1", "losses.nft.decay has no field 'sloppe' (did you mean 'slope'?)"),
        ("rewards.0.measur=graded", "rewards.shapes has no field 'measur' (did you mean 'measure'?)"),
        ("modality.lora={rnak: 3}", "modalities.sd3.lora has no field 'rnak' (did you mean 'rank'?)"),
        ("evaluation.sampler.num_stpes=3", "samplers.ode has no field 'num_stpes' (did you mean 'num_steps'?)"),
        ("loss.name=ntf", "unknown loss 'ntf' (did you mean 'nft'?)"),
        ("sampler.name=odee", "unknown sampler 'odee' (did you mean 'ode'?)"),
        ("rewards.0.name=shape", "unknown reward 'shape' (did you mean 'shapes'?)"),
        ("trackers=[tensorbord]", "tensorbord"),
        ("prompts.train=lab:shapes/trian", "trian"),
        ("modality.model=lab:shaeps", "did you mean 'shapes'?"),
        ("optimizer.learning_rate=abc", "config.optimizer.learning_rate: should be a valid number"),
        ("optimizer.learning_rate=-1e-4", "config.optimizer.learning_rate: should be greater than 0"),
        ("loss.beta=abc", "losses.nft.beta: should be a valid number"),
        ("iterations=true", "config.iterations: should be a number, got True"),
        ("iterations=2.5", "config.iterations: should be a valid integer"),
        ("iterations=", "config.iterations: should be a valid integer"),
        ("seed.x=1", "seed holds 0, which has no fields"),
        ("rewards.7.name=shapes", "rewards is a list of 1, got index '7'"),
        ("rewards=[]", "config.rewards: should have at least 1 item, not 0"),
        ("rewards=shapes", "config.rewards: should be a list, got 'shapes'"),
        ("loss=nft", "config.loss: should be a section such as {name: value}, got 'nft'"),
        ("rewards.0.wieght=2", "'wieght' (did you mean 'weight'?); its fields are measure, weight, label, device"),
        ("rewards.0.name=my_own", "unknown reward 'my_own'; known are adapter_score, aesthetic, anls, "),
        ("rewards.0.weight=heavy", "rewards.weight must be a number, or start, end and last, got 'heavy'"),
        ("iterations", "an override looks like key.sub=value, got 'iterations'"),
        ("loss={", "the value of 'loss={' is not YAML"),
        ("group_size=1", "group_size must be at least 2, got 1"),
        ("updates.minibatches=3", "updates.minibatches must be at most prompts_per_iteration"),
        ("evaluation.weights=reference", "config.evaluation.weights"),
        ("prompts.train=prompts.txt", "there is no file 'prompts.txt'"),
        ("prompts.train=empty.txt", "'empty.txt' holds no prompt"),
        ("prompts.train=bad.jsonl", "bad.jsonl, line 2 is not JSON"),
        ("prompts.train=textless.jsonl", "textless.jsonl, line 1 needs an object with the text field 'prompt'"),
        ("prompts.train=prompts.csv", "needs lab:NAME/SPLIT, or a .txt or .jsonl file, got 'prompts.csv'"),
        ("prompts.train=latin.txt", "cannot read 'latin.txt'"),
        ("prompts.train=[]", "prompts.train: needs at least one source"),
        ("prompts.held_out=null", "evaluation needs prompts.held_out"),
        ("evaluation.by=theme", "evaluation.by: a held-out prompt has no target.theme, its target has"),
        ("modality.model=./nothing", "there is no folder './nothing'"),
        ("modality.height=33", "height and width must be multiples of 16 pixels"),
        ("warm_start=nowhere", "warm_start: nowhere holds no checkpoint"),
        ("rewards.0.name=my_rewards:Nobody", "my_rewards has no dataclass 'Nobody'"),
        ("rewards.0.name=my_rewards:NoDataclass", ": NoDataclass lacks @dataclass"),
        ("rewards.0.name=no_such_file:Name", "cannot import 'no_such_file'"),
        ("rewards=[{name: my_rewards:Empty}]", "my_rewards:Empty is not a reward: it has no source, range"),
        ("rewards=[{name: my_rewards:WrongShape}]", "must return a torch.float32 tensor [8], got torch.float32 [8, 1]"),
        ("rewards=[{name: my_rewards:WrongType}]", "must return a torch.float32 tensor [8], got list"),
        ("rewards=[{name: my_rewards:NeedsAnswer}]", "needs 'answer' in the target of every prompt"),
    ],
)
def test_a_wrong_setting_is_named_with_what_is_right(cli: CommandLine, override: str, message: str) -> None:
    Path("empty.txt").write_text("\n  \n")
    Path("bad.jsonl").write_text('{"prompt": "a"}\n{"prompt": \n')
    Path("textless.jsonl").write_text('{"text": "a"}\n')
    Path("latin.txt").write_bytes(b"caf\xe9\n")
    ended = cli.train("evaluation=null" if "my_rewards" in override else "seed=0", override)
    assert ended.code == 2
    assert ended.out == "" or "must return" in message  # a reward is seen to be wrong once the run has begun
    assert message in ended.err
    assert not Path("run").exists() or [path.name for path in Path("run").iterdir()] != ["config.yaml"]


@pytest.mark.parametrize(
    "kind, overrides, message",
    [
        (
            "policy_gradient",
            ["sampler={name: ode, num_steps: 3}"],
            "loss 'grpo' learns from random steps, sampler 'ode' makes none",
        ),
        (
            "policy_gradient",
            ["sampler.window={mode: range, first: 2, last: 9}"],
            "the window needs 0 <= first < last <= 3 with 4 steps (the last step is never random, but on grids that "
            "end above sigma 0), got first 2, last 9",
        ),
        (
            "nft",
            ["averaging=null", "evaluation.weights=averaged"],
            "evaluation.weights is 'averaged', but there is no averaging; set averaging.decay",
        ),
        ("policy_gradient", ["evaluation.weights=old"], "loss 'grpo' keeps no old weights"),
        ("nft", ["evaluation.max_kl=0.1"], "evaluation.max_kl needs the KL to the reference"),
        (
            "policy_gradient",
            ["evaluation.max_kl=0.1"],
            "its kl_coef must be above 0 (got 0) and its kl_to reference (got",
        ),
        (
            "policy_gradient",
            ["evaluation.max_kl=0.1", "loss.kl_coef=0.1", "loss.kl_to=averaged", "averaging={decay: 0.9}"],
            "its kl_coef must be above 0 (got 0.1) and its kl_to reference (got averaged)",
        ),
        ("policy_gradient", ["advantage={name: rloo}", "group_size=1"], "group_size must be at least 2, got 1"),
        (
            "policy_gradient",
            ["advantage={name: reinforce_pp}", "loss={name: rebel}", "group_size=1"],
            "loss 'rebel' compares the samples of a group: group_size must be at least 2, got 1",
        ),
        ("nft", ["rewards.0.weight=.nan"], "must be a finite number"),
        ("nft", ["rewards=[{name: shapes}, {name: shapes}]"], "each with a name of its own"),
    ],
)
def test_parts_that_cannot_work_together_are_refused(
    cli: CommandLine, kind: str, overrides: list[str], message: str
) -> None:
    ended = cli.train(*overrides, kind=kind)
    assert ended.code == 2
    assert message in ended.err
    assert not Path("run").exists()


@pytest.mark.parametrize(
    "given, message",
    [
        (["train", "quikstart"], "there is no config 'quikstart': neither a file nor a shipped name (did you mean"),
        (["train", "text.yaml"], "text.yaml must hold a mapping of settings, got str"),
        (["train", "broken.yaml"], "broken.yaml is not YAML"),
        (["train", "latin.yaml"], "cannot read the config latin.yaml"),
        (["train"], "train needs a CONFIG or --resume RUN"),
        (["train", "--resume", "empty"], "there is no run to resume in empty"),
        (["train", "--resume", "nowhere"], "there is no run to resume in nowhere"),
        (["train", "--resume", "run", "quickstart"], "leave out 'quickstart'"),
        (["train", "--resume", "run", "--out", "other"], "leave out --out other"),
        (["check", "quickstart", "seed"], "an override looks like key.sub=value, got 'seed'"),
        (["list", "reward"], "there is nothing called 'reward' to list (did you mean 'rewards'?)"),
        (["report", "empty"], "empty"),
        (["report", "nowhere"], "no run directory at nowhere"),
        (["export", "empty"], "there is no run directory 'empty'"),
        (["evaluate", "empty"], "there is no run in empty"),
        (["evaluate", "nowhere"], "there is no run 'nowhere', and no config, neither a file nor a shipped name; `mmrl"),
        (["check", "nowhere"], "there is no config 'nowhere': neither a file nor a shipped name; `mmrl list configs`"),
        (["evaluate", "quickstart", "--weights", "nonsense"], "--weights must be trained, averaged, old or reference"),
        (["evaluate", "quickstart", "--checkpoint", "first"], "--checkpoint must be last or best, got 'first'"),
        (["evaluate", "unsaved"], "unsaved holds no checkpoint yet"),
    ],
)
def test_a_wrong_command_is_refused_with_what_is_right(cli: CommandLine, given: list[str], message: str) -> None:
    Path("text.yaml").write_text("just text\n")
    Path("broken.yaml").write_text("seed: [1, 2\n")
    Path("latin.yaml").write_bytes(b"prompts: caf\xe9\n")
    Path("empty").mkdir()
    Path("unsaved").mkdir()
    Path("unsaved/config.yaml").write_text(to_yaml(load_config("quickstart")))
    ended = cli(*given)
    assert (ended.code, ended.out) == (2, "")
    assert message in ended.err


def test_numbers_as_yaml_reads_them_wrongly_are_numbers(cli: CommandLine) -> None:
    ended = cli("check", "quickstart", "optimizer.learning_rate=1e-4", "loss.beta=1e-1", "loss.advantage_max=2")
    assert ended.code == 0


def test_a_run_directory_that_exists_is_left_as_it_is(cli: CommandLine) -> None:
    Path("run").mkdir()
    Path("run/mine.txt").write_text("mine")
    ended = cli.train()
    assert ended.code == 2
    assert "run exists already; give another --out" in ended.err and "--resume" not in ended.err
    assert [path.name for path in Path("run").iterdir()] == ["mine.txt"]


@pytest.mark.slow  # most of a second each, or more
def test_a_run_that_exists_is_left_as_it_is_and_can_be_resumed(cli: CommandLine) -> None:
    assert cli.train("iterations=1").code == 0
    before = {path: path.read_bytes() for path in Path("run").rglob("*") if path.is_file()}
    ended = cli.train("iterations=1", "seed=3")
    assert ended.code == 2
    assert "or go on with: mmrl train --resume run" in ended.err
    assert {path: path.read_bytes() for path in Path("run").rglob("*") if path.is_file()} == before


@pytest.mark.parametrize("out", ["file", "file/run"])
def test_a_run_directory_that_cannot_be_made_is_refused(cli: CommandLine, out: str) -> None:
    Path("file").write_text("mine")
    ended = cli.train(out=out)
    assert ended.code == 2
    assert ended.err.startswith("mmrl: ") and out in ended.err
    assert Path("file").read_text() == "mine"


def test_a_run_directory_that_cannot_be_written_is_refused(cli: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(path: Path, *given: Any, **settings: Any) -> int:
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr(Path, "write_bytes", denied)
    ended = cli.train()
    assert ended.code == 2
    assert "cannot write the run directory run: [Errno 13] Permission denied" in ended.err
    assert not any(Path("run").iterdir())


@pytest.mark.slow
def test_the_same_command_works_once_the_mistake_is_mended(cli: CommandLine) -> None:
    assert cli.train("loss.betta=1").code == 2
    assert cli.train("iterations=1").code == 0


def test_runs_that_start_in_the_same_second_have_directories_of_their_own(cli: CommandLine) -> None:
    folders = {new_run("quickstart", [], None)[1] for _ in range(3)}
    assert len(folders) == 3
    assert all((folder / "config.yaml").is_file() for folder in folders)


@pytest.mark.slow  # a run and its resumption
def test_a_disk_that_fills_up_keeps_what_was_saved_and_the_run_goes_on(cli: CommandLine, tmp_path: Path) -> None:
    run = tmp_path / "disk"
    run.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=50m", "tmpfs", str(run)], capture_output=True)
    if mounted.returncode:
        pytest.skip("mounting a small file system needs root")
    try:
        ended = cli.train("checkpoint.keep=9", out=str(run))
        assert ended.code == 1
        saved = checkpoint.saved(run / "checkpoints")
        assert "No space left on device" in ended.err
        assert f"Saved iterations, untouched: {', '.join(map(str, saved))}" in ended.err
        assert all(checkpoint.load(path).iteration == iteration for iteration, path in saved.items())
        assert 1 in saved and 6 not in saved
        subprocess.run(["mount", "-o", "remount,size=200m", str(run)], check=True)
        assert cli("train", "--resume", str(run)).code == 0
        assert cli.train(out="whole").code == 0
        assert_same(numbers(run), numbers(tmp_path / "whole"))
    finally:
        subprocess.run(["umount", str(run)], check=True)


@pytest.mark.slow  # most of a second each, or more
def test_export_does_not_write_over_other_files(cli: CommandLine) -> None:
    assert cli.train("iterations=1").code == 0
    Path("mine").mkdir()
    Path("mine/mine.txt").write_text("mine")
    Path("file").write_text("mine")
    for out in ("mine", "file"):
        ended = cli("export", "run", "--out", out)
        assert ended.code == 2
        assert f"{out} exists and is not an empty folder; give another with --out" in ended.err
    Path("loop").symlink_to("loop")
    ended = cli("export", "run", "--out", "loop")
    assert ended.code == 2 and "nothing can be written to loop" in ended.err
    assert [path.name for path in Path("mine").iterdir()] == ["mine.txt"]
    assert Path("file").read_text() == "mine"


@pytest.mark.slow  # most of a second each, or more
def test_weights_that_a_run_does_not_keep_are_refused(cli: CommandLine) -> None:
    assert cli.train("iterations=1", "averaging=null").code == 0
    ended = cli("evaluate", "run", "--weights", "averaged")
    assert ended.code == 2
    assert "run keeps no 'averaged' weights; it has trained, old" in ended.err


@pytest.mark.slow
def test_a_run_without_evaluation_has_no_best_checkpoint(cli: CommandLine) -> None:
    assert cli.train("iterations=1", "evaluation=null").code == 0
    ended = cli("export", "run", "--checkpoint", "best", "--out", "exported")
    assert ended.code == 2
    assert "run has no best checkpoint: it was not evaluated" in ended.err


@pytest.mark.slow  # most of a second each, or more
def test_a_start_from_weights_of_another_model_is_refused(cli: CommandLine) -> None:
    assert cli.train("iterations=1", kind="lora").code == 0
    ended = cli.train("warm_start=run", out="second")
    assert ended.code == 2
    assert "warm_start: run holds another model" in ended.err


def test_settings_that_yaml_cannot_hold_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="settings must be numbers, text, lists and mappings"):
        mmrl.train({"seed": object()}, out=tmp_path / "run")


@pytest.mark.slow
def test_a_debugged_mistake_shows_where_it_was_made() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "mmrl", "train", "quikstart", "--debug"], capture_output=True, text=True
    )
    assert done.returncode != 0
    assert "Traceback" in done.stderr and "there is no config 'quikstart'" in done.stderr
