"""The prompts of the next iteration are encoded during the update: the right ones, and without another number."""

import threading
from pathlib import Path
from typing import Any

import pytest
import torch

from mmrl.core.config import GroupSettings
from mmrl.core.data import Prompt
from mmrl.prompts.curriculum import Curriculum
from mmrl.prompts.stream import PromptStream
from tests.tiny_cli import CommandLine, command_line
from tests.tiny_runs import assert_same, numbers
from tests.toy_runs import collector, stream

TEXTS = ("bright 1", "dull 1", "bright 2", "dull 2", "bright 3")


def sets() -> list[tuple[Prompt, ...]]:
    return [tuple(Prompt(f"{name} {n}") for n in range(size)) for name, size in (("a", 3), ("b", 5))]


@pytest.mark.parametrize("has_curriculum", [False, True])
def test_what_comes_next_is_what_is_taken_next(has_curriculum: bool) -> None:
    curriculum = Curriculum(2) if has_curriculum else None
    taken = PromptStream(sets(), [1.0, 2.0], 4, curriculum)
    for count in (1, 4, 7, 2, 9):  # over the ends of both sets
        before, noted = taken.state_dict(), dict(curriculum._sources) if curriculum is not None else {}
        ahead = taken.upcoming(count)
        assert taken.state_dict() == before and (curriculum is None or curriculum._sources == noted)
        assert taken.take(count) == ahead
        taken.again([ahead[0][1]])


class Fetching:
    """What a toy policy is asked to fetch, beside what it does."""

    def __init__(self, policy: Any) -> None:
        self.policy = policy
        self.fetched: list[list[str]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.policy, name)

    def use_workers(self, count: int, max_bytes: int) -> None: ...

    def prefetch(self, prompts: list[Prompt]) -> None:
        self.fetched.append([prompt.text for prompt in prompts])

    def decoding_seconds(self) -> tuple[float, float]:
        return 0.0, 0.0


@pytest.mark.parametrize("groups", [GroupSettings(), GroupSettings(degenerate="refill")])
def test_a_collector_fetches_the_prompts_of_its_next_iteration(groups: GroupSettings) -> None:
    drawing = collector(stream(*TEXTS), groups, wanted=3)
    policy = Fetching(drawing.policy)
    object.__setattr__(drawing, "policy", policy)
    for iteration in range(3):
        collected = drawing(iteration, "trained")
        assert collected.rollout is not None
        if policy.fetched:  # the first prompts; refills follow them
            assert [prompt.text for prompt in collected.rollout.prompts][:3] == policy.fetched[-1]
        drawing.prefetch()
    policy.policy.sample_kind = "turns"  # of an agent, whose screens are not known before
    drawing.prefetch()
    assert len(policy.fetched) == 3


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> CommandLine:
    return command_line(tmp_path, monkeypatch, capsys)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["vision_language", "video"])
def test_a_run_is_the_same_with_threads_and_after_a_resume(kind: str, cli: CommandLine) -> None:
    given = ("iterations=3", "evaluation.every=3")
    for out, workers in (("none", 0), ("three", 3)):
        ended = cli.train(*given, f"data.workers={workers}", kind=kind, out=out)
        assert ended.code == 0, ended.err
    assert_same(numbers(Path("three")), numbers(Path("none")))
    assert cli.train(*given, "iterations=2", "data.workers=2", kind=kind, out="stopped").code == 0
    ended = cli("train", "--resume", "stopped", "iterations=3", "data.workers=1")  # another number may be set
    assert ended.code == 0, ended.err
    stopped, none = numbers(Path("stopped")), numbers(Path("none"))
    assert stopped["tensors"].keys() == none["tensors"].keys()
    for which, tensors in none["tensors"].items():
        torch.testing.assert_close(stopped["tensors"][which], tensors, rtol=0, atol=0)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("encoding_")]
    line = (Path("three") / "metrics.jsonl").read_text().splitlines()[-2]
    assert '"time/decoding"' in line and '"time/decoding_workers"' in line
