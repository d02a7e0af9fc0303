"""Runs of a token policy with a reward of a user's own for every token, learned from by `process`."""

import json
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from mmrl.core.data import Paths, Scores
from mmrl.training.rollouts import Collected
from tests.tiny_cli import CommandLine, command_line
from tests.tiny_runs import assert_same, numbers
from tests.toys import toy_rollout

OWN = """
def letters(batch):
    return [[float(piece.isalpha()) for piece in pieces] for pieces in batch.outputs.pieces]

def length(text):
    return -len(text) / 100
"""
LETTERS = (
    "{name: python, function: 'my_dense:letters', mode: batch, granularity: token, needs: [pieces], range: [0, 1]}"
)
STEPS = LETTERS.replace("token", "step").replace("pieces", "images")
NORMALISED = f"rewards=[{{name: running_normalised, label: letters, reward: {LETTERS}}}]"
CREDITS = {
    "sum": (),
    "min": ("advantage={name: process, credit: min}",),
    "discounted, normalised": ("advantage={name: process, credit: discounted, gamma: 0.5}", NORMALISED),
}
RUN = (
    f"rewards=[{LETTERS}, {{name: python, label: length, function: 'my_dense:length', weight: 0.5}}]",
    "advantage={name: process}",
    "loss={name: grpo}",
    "iterations=2",
    "evaluation.every=2",
)


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> CommandLine:
    (tmp_path / "my_dense.py").write_text(OWN)
    return command_line(tmp_path, monkeypatch, capsys)


def lines(run: str) -> list[dict[str, float]]:
    return [json.loads(line) for line in (Path(run) / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.slow
@pytest.mark.parametrize("credit", CREDITS)
def test_a_run_learns_from_every_token_and_resumes_bit_for_bit(cli: CommandLine, credit: str) -> None:
    run = (*RUN, *CREDITS[credit])
    whole = cli.train(*run, kind="vision_language", out="whole")
    assert whole.code == 0, whole.err
    first = next(line for line in lines("whole") if "reward/letters/mean" in line)
    assert 0 < first["reward/letters/mean"] <= 8 and first["reward/failed"] == 0  # a sum over up to 8 tokens
    assert first["optimizer/grad_norm"] > 0
    assert any("held_out/letters/mean" in line for line in lines("whole"))
    assert cli.train(*run, "iterations=1", kind="vision_language", out="stopped").code == 0
    assert cli("train", "--resume", "stopped", "iterations=2").code == 0
    got, wanted = numbers(Path("stopped")), numbers(Path("whole"))
    for part in (got, wanted):  # the shorter run was evaluated at its end
        part["metrics"] = [line for line in part["metrics"] if "optimizer/learning_rate" in line]
        part["samples"] = {}
        part["state"]["state"]["progress"] = {}
    assert_same(got, wanted)


@pytest.mark.slow
@pytest.mark.parametrize("credit", CREDITS)
def test_two_chunks_are_one(cli: CommandLine, credit: str) -> None:
    for groups in (1, 2):
        given = (*RUN, *CREDITS[credit], "iterations=1", "evaluation=null", f"rollout_groups={groups}")
        ended = cli.train(*given, kind="vision_language", out=f"chunks {groups}")
        assert ended.code == 0, ended.err
    one, two = (numbers(Path(f"chunks {groups}")) for groups in (1, 2))
    for name, tensor in one["tensors"]["trained"].items():
        assert_close(tensor, two["tensors"]["trained"][name], atol=1e-5, rtol=1e-4)
    names = [name for name in two["metrics"][-1] if name.startswith(("reward/", "loss/"))]
    assert names
    for name in names:
        assert one["metrics"][-1][name] == pytest.approx(two["metrics"][-1][name], abs=1e-5), name


@pytest.mark.slow
@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["rewards=[{name: finished}]"], "advantage 'process' needs a reward that judges steps, segments or tokens"),
        ([f"rewards=[{{name: finished}}, {LETTERS[:-1]}, weight: 0}}]"], "(granularity), and that counts"),
        (["mix={name: product}"], "advantage 'process' adds up rewards inside of samples, which mix 'product' cannot"),
        ([f"rewards=[{LETTERS.replace('token', 'step')}]"], "judges each step, but samples made of tokens have seg"),
    ],
    ids=["samples", "watched", "mix", "step"],
)
def test_what_cannot_work_is_refused(cli: CommandLine, overrides: list[str], message: str) -> None:
    length = "{name: python, label: length, function: 'my_dense:length', range: [0, 1]}"
    ended = cli.train(*RUN, f"rewards=[{LETTERS}, {length}]", *overrides, kind="vision_language")
    assert ended.code == 2 and message in ended.err
    assert not Path("run").exists()


@pytest.mark.parametrize(
    ("kind", "overrides", "message"),
    [
        ("policy_gradient", [f"rewards=[{LETTERS}]"], "judges each token, but samples made of latents have steps"),
        ("nft", [f"rewards=[{STEPS}]", "loss={name: nft}"], "judges each random step, and sampler makes none"),
        (
            "policy_gradient",
            [f"rewards=[{STEPS}]", "evaluation.rewards=null"],
            "judges each random step, and evaluation.sampler makes none; give the evaluation rewards of its own",
        ),
        ("agent", ["rewards=[{name: episode_success}]"], "advantage 'process' is of single answers; for episodes"),
        ("nft", ["loss={name: nft}", "rewards=[{name: jpeg_size}]"], "and loss 'nft' learns from whole samples"),
    ],
    ids=["tokens of latents", "no random step", "evaluation", "episodes", "samples"],
)
def test_so_is_what_the_samples_do_not_have(cli: CommandLine, kind: str, overrides: list[str], message: str) -> None:
    ended = cli.train("advantage={name: process}", "loss={name: grpo}", *overrides, kind=kind)
    assert ended.code == 2 and message in ended.err


def test_advantages_are_as_wide_as_the_decisions_of_this_process() -> None:
    """Elsewhere an answer may be longer than any here."""
    _, rollout = toy_rollout(2, 2)
    place = torch.tensor([2, 3, 6, 7])
    none: Tensor = torch.zeros(8, dtype=torch.int64)
    scores = Scores(torch.zeros(8, 1), ("r",), (1.0,), none == 0, none, torch.arange(8), none)
    paths = Paths(torch.zeros(8, 9, dtype=torch.int64))
    collected = Collected(rollout, scores, place, [], paths, 0, {})
    wide = torch.arange(72.0).view(8, 9)
    assert torch.equal(collected.own(wide), wide[place, :4])
    assert torch.equal(collected.own(torch.arange(8.0)), place[:, None].float())
