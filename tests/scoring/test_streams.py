"""The order of a scoring thread's work on an accelerator, by a library that writes down what it is asked."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor

from mmrl.core.config import ScoringSettings
from mmrl.core.contracts import ConfigError, Placement, RewardBatch
from mmrl.scoring.scorer import RewardTerm, Scorer, build_scorer
from mmrl.scoring.streams import SideStream
from tests.scripted_reward import ScriptedReward, rollout


class Library:
    """What of `torch.cuda` is used; it never ran on a GPU here."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def current_stream(self, device: torch.device) -> "Library":
        self.said.append(f"current of {device}")
        return self

    def record_event(self) -> str:
        return "the mark"

    def Stream(self, device: torch.device) -> "Library":  # as torch calls it
        self.said.append(f"made on {device}")
        return self

    def wait_event(self, mark: str) -> None:
        self.said.append(f"wait for {mark}")

    def synchronize(self) -> None:
        self.said.append("wait for all")

    @contextmanager
    def device(self, device: torch.device) -> Iterator[None]:
        self.said.append(f"on {device}")
        yield
        self.said.append("off")

    @contextmanager
    def stream(self, stream: Any) -> Iterator[None]:
        assert stream is self
        self.said.append("in")
        yield
        self.said.append("out")


def test_scoring_runs_on_a_stream_and_the_device_of_its_process() -> None:
    library = Library()
    side = SideStream(torch.device("cuda:3"), library)
    for _ in range(2):
        mark = side.mark()
        with side.behind(mark):
            library.said.append("score")
    once = ["on cuda:3", "in", "wait for the mark", "score", "wait for all", "out", "off"]
    assert library.said == [
        *("current of cuda:3", "on cuda:3", "made on cuda:3", *once[1:]),
        *("current of cuda:3", *once),
    ]


def test_it_waits_for_its_work_where_scoring_fails() -> None:
    side = SideStream(torch.device("cuda:0"), library := Library())
    with pytest.raises(ZeroDivisionError), side.behind(side.mark()):
        raise ZeroDivisionError
    assert library.said[-1] == "wait for all"  # then the contexts of the real library are left by the exception


@pytest.mark.parametrize("device", [None, torch.device("cpu")])
def test_a_cpu_has_no_stream(device: torch.device | None) -> None:
    side = SideStream(device, None)
    with side.behind(side.mark()):
        pass


def test_a_network_reward_may_have_a_device_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    scorer = build_scorer([{"name": "clip_score", "device": "cuda:1"}, {"name": "clip_score", "label": "b"}],
                          ScoringSettings())  # fmt: skip
    given: list[str] = []
    monkeypatch.setattr(type(scorer.terms[0].reward), "prepare", lambda reward, to: given.append(str(to.device)))
    scorer.prepare(Placement(torch.device("cuda:0"), torch.float32))
    assert given == ["cuda:1", "cuda:0"]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"name": "clip_score", "device": "gpu 1"}, "must be a device of torch such as cpu or cuda:1, got 'gpu 1'"),
        ({"name": "clip_score", "device": [1]}, "must be a device of torch"),
        ({"name": "exact_answer", "device": "cpu"}, "'exact_answer' runs none; remove it"),
    ],
)
def test_a_wrong_device_is_one_clear_error(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build_scorer([settings], ScoringSettings())


class Seeing(ScriptedReward):
    """One that looks at no pixel before its judge does."""

    def score(self, batch: RewardBatch) -> Tensor:
        return self.judge(batch)  # type: ignore[no-any-return]


def test_media_are_moved_to_the_device_of_the_reward_and_scores_come_back() -> None:
    seen: list[str] = []

    def judge(batch: RewardBatch) -> Tensor:
        assert batch.outputs.images is not None
        seen.append(batch.outputs.images.device.type)
        return torch.arange(4.0)

    reward: Any = Seeing(judge)
    scorer = Scorer((RewardTerm("there", reward, device=torch.device("meta")), RewardTerm("here", reward)))
    assert scorer.judge(rollout(), 0).scores.values.tolist() == [[0, 0], [1, 1], [2, 2], [3, 3]]
    assert seen == ["meta", "cpu"]
