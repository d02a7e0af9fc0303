"""What plug-ins, readers and kills may do to a run: its files stay whole, and it says in words how it ended."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from mmrl.modalities.sd3 import StableDiffusion3
from tests.tiny_cli import CommandLine, command_line
from tests.tiny_runs import arguments, assert_same, numbers

MORE_REWARDS = """

import os
import sys

@dataclass(frozen=True)
class Leaves(Constant):
    def score(self, batch):
        os.chdir("/")
        return torch.tensor([seed % 97 / 97 for seed in batch.seeds])

@dataclass(frozen=True)
class ClosesOutput(Constant):
    def score(self, batch):
        sys.stdout.close()
        return super().score(batch)

def sleep(there):
    import time

    there.send("awake")
    time.sleep(600)

@dataclass(frozen=True)
class EndsProcess(Constant):
    def score(self, batch):
        import multiprocessing

        here, there = multiprocessing.Pipe()
        asked = multiprocessing.get_context("fork").Process(target=sleep, args=(there,), daemon=True)
        asked.start()
        here.recv()  # Python forgets a signal of the first moment
        asked.terminate()
        asked.join(10)
        is_ended = asked.exitcode is not None
        asked.kill()
        assert is_ended
        return super().score(batch)

@dataclass
class KeepsSet:
    source, range, granularity = "here", (0.0, 1.0), "sample"
    needs, differentiable, batch_size = frozenset(), False, None
    kept = {1}

    def score(self, batch):
        return torch.zeros(len(batch))

    def update(self, scores):
        pass

    def state_dict(self):
        return {"mean": self.kept}

    def load_state_dict(self, state):
        self.kept = state["average"]

@dataclass
class KeepsOther(KeepsSet):
    kept = 1.0
"""


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> CommandLine:
    made = command_line(tmp_path, monkeypatch, capsys)
    with (tmp_path / "my_rewards.py").open("a") as file:
        file.write(MORE_REWARDS)
    return made


def by(reward: str) -> tuple[str, str]:
    return f"rewards=[{{name: my_rewards:{reward}}}]", "evaluation=null"


@pytest.mark.slow
def test_a_reward_that_changes_the_working_folder_changes_nothing_else(cli: CommandLine, tmp_path: Path) -> None:
    assert cli.train("iterations=1", *by("Leaves")).code == 0
    assert {path.name for path in (tmp_path / "run").iterdir()} >= {"checkpoints", "summary.json", "report.html"}


@pytest.mark.slow
def test_processes_that_a_reward_forks_end_where_they_are_told_to(cli: CommandLine) -> None:
    assert cli.train("iterations=1", *by("EndsProcess")).code == 0


@pytest.mark.slow
def test_a_state_that_cannot_be_saved_is_told_before_the_first_iteration(cli: CommandLine) -> None:
    ended = cli.train(*by("KeepsSet"))
    assert ended.code == 2 and not Path("run").exists()
    said = "state 'reward/KeepsSet' of a checkpoint cannot be written as JSON"
    assert said in ended.err and "it is what its state_dict() returns" in ended.err


@pytest.mark.slow
def test_a_state_that_a_plugin_cannot_read_is_told_by_its_name(cli: CommandLine) -> None:
    assert cli.train("iterations=1", *by("KeepsOther")).code == 0
    ended = cli("train", "--resume", "run", "iterations=2")
    assert ended.code == 2
    assert "reward/KeepsOther cannot read the state that the checkpoint holds of it (KeyError" in ended.err


@pytest.mark.parametrize("setting", ["learning_rate=3e38", "epsilon=1e39", "weight_decay=1e39"])
def test_a_number_that_overflows_inside_of_torch_is_refused(cli: CommandLine, setting: str) -> None:
    ended = cli.train(f"optimizer.{setting}")
    assert ended.code == 2
    assert f"config.optimizer.{setting.partition('=')[0]}: should be less than or equal to 1000000" in ended.err


@pytest.mark.slow  # most of a second each, or more
def test_what_a_kill_in_the_last_clean_up_left_goes_when_the_run_is_resumed(cli: CommandLine) -> None:
    assert cli.train("iterations=2").code == 0
    wanted, folder = numbers(Path("run")), Path("run/checkpoints")
    shutil.copytree(folder / "000001", folder / ".tmp-delete-000000")
    (folder / ".tmp-delete-000000" / "state.json").unlink()
    shutil.copytree(folder / "000002", folder / ".replaced-000002")
    assert cli("train", "--resume", "run").code == 0
    assert sorted(path.name for path in folder.iterdir()) == ["000001", "000002"]
    assert_same(numbers(Path("run")), wanted)


@pytest.mark.slow  # most of a second each, or more
def test_an_export_that_fails_leaves_nothing_and_can_be_made_again(
    cli: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert cli.train("iterations=1").code == 0
    export: Callable[[StableDiffusion3, Path], None] = StableDiffusion3.export

    def half(policy: StableDiffusion3, folder: Path) -> None:
        export(policy, folder)
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(StableDiffusion3, "export", half)
        ended = cli("export", "run")
    assert ended.code == 1 and "No space left on device" in ended.err
    assert not [path for path in Path("run").iterdir() if "export" in path.name]
    assert cli("export", "run").code == 0
    assert Path("run/export/model_index.json").is_file()


@pytest.mark.slow  # processes of their own, that import everything
def test_a_run_goes_on_where_nobody_reads_its_output_any_more_and_tells_who_closed_it(cli: CommandLine) -> None:
    with process("iterations=2") as read_once:
        assert read_once.stdout is not None and read_once.stderr is not None
        assert read_once.stdout.readline()
        read_once.stdout.close()
        said = read_once.stderr.read().decode()
        assert (read_once.wait(), said) == (0, "")
    assert Path("run/report.html").is_file()
    shutil.rmtree("run")
    with process("iterations=2", *by("ClosesOutput")) as closed:
        _, output = closed.communicate()
        assert closed.returncode == 1
        assert output.decode() == "mmrl: something closed standard output while the command ran, maybe a plug-in\n"


def process(*overrides: str) -> "subprocess.Popen[bytes]":
    code = f"import sys; sys.argv = {['mmrl', *arguments('nft', Path('run'), *overrides)]!r}; "
    root = str(Path(__file__).parents[2])
    return subprocess.Popen(
        [sys.executable, "-c", code + "from mmrl.cli import main; main()"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": root},
    )
