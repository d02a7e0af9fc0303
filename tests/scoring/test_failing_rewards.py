"""Rewards that raise, return nonsense, or like everything the same."""

import json
import os
import re
import sys
import traceback
from pathlib import Path
from typing import Any

import pytest
import torch

from mmrl.cli import main
from mmrl.system.errors import ConfigError, RunError
from tests.tiny_cli import CommandLine, command_line
from tests.tiny_runs import arguments, tensors


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> CommandLine:
    return command_line(tmp_path, monkeypatch, capsys)


def lines_of(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.slow  # most of a second each, or more
@pytest.mark.parametrize("kind", ["nft", "vision_language"])
def test_a_reward_that_always_raises_ends_the_run_with_its_words(cli: CommandLine, kind: str) -> None:
    ended = cli.train("rewards=[{name: my_rewards:Raises}]", "evaluation=null", kind=kind)
    assert ended.code == 1
    assert "8 of 8 samples could not be judged, which is 100%; scoring.max_failed_share allows 10%" in ended.err
    assert re.search(r"Raises: RuntimeError: the judge is away \(at my_rewards\.py:\d+\)", ended.err)
    assert not Path("run").exists()


@pytest.mark.slow
def test_a_reward_that_always_returns_nan_ends_the_run(cli: CommandLine) -> None:
    ended = cli.train("rewards=[{name: my_rewards:AlwaysNan}]", "evaluation=null", "scoring.max_failed_share=0.5")
    assert ended.code == 1
    assert "8 of 8 samples could not be judged" in ended.err and "returned nan" in ended.err


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["nft", "policy_gradient", "vision_language"])
@pytest.mark.parametrize("reward", ["RaisesForSome", "NanForSome"])
def test_samples_that_a_reward_cannot_judge_are_counted_and_left_out(cli: CommandLine, kind: str, reward: str) -> None:
    share = ["scoring.max_failed_share=1", "evaluation=null", "iterations=3", "checkpoint.keep=9"]
    ended = cli.train(f"rewards=[{{name: my_rewards:{reward}}}]", *share, kind=kind)
    assert ended.code == 0
    failed = [line["reward/failed"] for line in lines_of(Path("run"))]
    assert sum(failed) > 0
    assert all(0 <= count <= 8 for count in failed)
    for iteration in (1, 2, 3):
        trained = tensors(Path(f"run/checkpoints/{iteration:06d}"))["trained"]
        assert all(tensor.isfinite().all() for tensor in trained.values())


@pytest.mark.slow
def test_samples_that_no_reward_could_judge_teach_nothing(cli: CommandLine) -> None:
    share = ["scoring.max_failed_share=1", "evaluation=null", "iterations=2", "checkpoint.keep=9"]
    ended = cli.train("rewards=[{name: my_rewards:AlwaysNan}]", *share, kind="policy_gradient")
    assert ended.code == 0
    assert [line["reward/failed"] for line in lines_of(Path("run"))] == [8, 8]
    assert [line["optimizer/steps"] for line in lines_of(Path("run"))] == [0, 0]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "degenerate"),
    [*(("policy_gradient", how) for how in ("keep", "drop", "refill")), ("vision_language", "keep")],
)
def test_equal_rewards_are_counted_and_leave_the_weights_alone(cli: CommandLine, kind: str, degenerate: str) -> None:
    settings = [f"groups.degenerate={degenerate}", "evaluation=null", "iterations=2", "checkpoint.keep=9"]
    ended = cli.train("rewards=[{name: my_rewards:Constant}]", *settings, kind=kind)
    assert ended.code == 0 and "nothing could be learned in 2 of 2 iterations" in ended.out
    for line in lines_of(Path("run")):
        assert line["groups/degenerate"] == 1.0
        assert (line["groups/kept"], line["groups/missing"]) == ((2, 0) if degenerate == "keep" else (0, 2))
    first, last = (tensors(Path(f"run/checkpoints/{n:06d}"))["trained"] for n in (1, 2))
    torch.testing.assert_close(last, first, rtol=0, atol=0)


@pytest.mark.slow
@pytest.mark.parametrize("old", ["recorded", "recomputed"])
def test_answers_that_were_all_cut_and_masked_teach_nothing(cli: CommandLine, old: str) -> None:
    """An answer of one token ends by itself only where that is an end token; this seed draws none."""
    cut = ["sampler={name: autoregressive, max_tokens: 1, truncated: mask}", f"updates={{minibatches: 2, old: {old}}}"]
    ended = cli.train(*cut, "seed=1", "evaluation=null", "iterations=2", "checkpoint.keep=9", kind="vision_language")
    assert ended.code == 0
    assert [line["optimizer/steps"] for line in lines_of(Path("run"))] == [0, 0]
    first, last = (tensors(Path(f"run/checkpoints/{n:06d}"))["trained"] for n in (1, 2))
    torch.testing.assert_close(last, first, rtol=0, atol=0)


@pytest.mark.slow  # most of a second each, or more
def test_a_reward_may_change_the_working_folder(cli: CommandLine, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "my_moves.py").write_text(MOVES)
    cli.patch.delitem(sys.modules, "my_moves", raising=False)
    few = ["evaluation=null", "iterations=2"]
    ended = cli.train("rewards=[{name: my_moves:Moves}]", *few)
    assert ended.code == 0 and Path.cwd() == tmp_path / "elsewhere"
    assert not list((tmp_path / "elsewhere").iterdir()) and (tmp_path / "run/report.html").is_file()
    assert len(lines_of(tmp_path / "run")) == 2 and (tmp_path / "run/checkpoints/000002").is_dir()
    os.chdir(tmp_path)
    ended = cli.train("rewards=[{name: my_moves:MovesAndRaises}]", *few, out="other")
    assert ended.code == 1 and not (tmp_path / "other").exists(), "it can be used again"
    os.chdir(tmp_path)
    ended = cli.train("rewards=[{name: my_moves:MovesAndStops}]", *few, out="third")
    assert ended.code == 130 and "; go on from the last checkpoint with: mmrl train --resume third" in ended.err


MOVES = """
import os
from my_rewards import Constant

class Moves(Constant):
    def score(self, batch):
        os.chdir("/")
        os.chdir(FOLDER)
        return super().score(batch)

class MovesAndRaises(Moves):
    def score(self, batch):
        super().score(batch)
        raise ValueError("moved")

class MovesAndStops(Moves):
    def score(self, batch):
        if batch.iteration == 1:
            raise KeyboardInterrupt
        return super().score(batch)

FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "elsewhere")
"""


def debugged(cli: CommandLine, *given: str) -> BaseException:
    """What `--debug` lets through, for Python to print with its causes."""
    cli.patch.setattr(sys, "argv", ["mmrl", *given, "--debug"])
    with pytest.raises((ConfigError, RunError)) as raised:
        main()
    assert raised.value.__cause__ is not None
    return raised.value.__cause__


@pytest.mark.slow
def test_debug_shows_what_a_reward_raised_and_where(cli: CommandLine) -> None:
    reward = "rewards=[{name: my_rewards:Raises}]"
    cause = debugged(cli, *arguments("nft", Path("run"), reward, "evaluation=null"))
    assert (type(cause), str(cause)) == (RuntimeError, "the judge is away")
    assert traceback.extract_tb(cause.__traceback__)[-1].filename.endswith("my_rewards.py")


@pytest.mark.parametrize(
    "setting", ["iterations=many", "loss={name: grpo, kl_coef: much}", "rewards=[{name: jpeg_size, weight: much}]"]
)
def test_debug_shows_what_is_behind_a_wrong_setting(cli: CommandLine, setting: str) -> None:
    assert isinstance(debugged(cli, "check", "quickstart", setting), ValueError)
