"""A prompt whose group failed as a whole is asked once more, with a hint."""

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from mmrl.assembly.build import build
from mmrl.core.config import GroupSettings, load_config
from mmrl.core.contracts import ConfigError, RewardBatch
from mmrl.core.data import Prompt
from mmrl.prompts.stream import PromptStream
from mmrl.training.rollouts import Collected, with_hint
from tests.toy_runs import CountZeros, collector

HINTS = GroupSettings(degenerate="refill", max_refills=3, hint="tip")


@dataclass
class Hard(CountZeros):
    """0 for all answers to a hard prompt, unless it has a hint."""

    def score(self, batch: RewardBatch) -> Tensor:
        is_open = torch.tensor(["hard" not in one.text or "look" in one.text for one in batch.prompts])
        return super().score(batch) * is_open


def prompts() -> PromptStream:
    texts = [f"{kind} {number}" for number in range(5) for kind in ("hard", "easy")]
    return PromptStream([tuple(Prompt(text, target={"tip": "look left", "answer": 3}) for text in texts)], [1.0], 0)


def requests_of(collected: Collected) -> list[tuple[int, str]]:
    assert collected.rollout is not None
    pairs = zip(collected.rollout.keys, collected.rollout.prompts, strict=True)
    return sorted((key.prompt_index, prompt.text) for key, prompt in pairs)


def test_the_hint_stands_behind_the_prompt_once() -> None:
    hinted = with_hint(Prompt("What?", target={"tip": "look", "answer": 3}), "tip")
    assert hinted == Prompt("What?\nlook", target={"answer": 3})


def test_failed_prompts_are_asked_again_before_new_ones_and_only_once() -> None:
    stream = prompts()
    collected = collector(stream, HINTS, wanted=4, reward=Hard())(0, "trained")
    texts = dict(requests_of(collected))
    failed = [text for draw, text in texts.items() if draw < 4 and "hard" in text]
    assert failed and [texts[4 + n] for n in range(len(failed))] == [f"{text}\nlook left" for text in failed]
    assert all("look" not in texts[draw] for draw in range(4))
    assert set(range(len(texts))) == set(texts) and stream.num_taken == len(texts), "every draw has a number of its own"
    assert sum("look" in text for text in texts.values()) == collected.metrics["groups/hinted"]
    assert len(collected.kept) == 4 and not any("hard" in texts[d] and "look" not in texts[d] for d in collected.kept)


def test_groups_that_agree_on_something_good_get_no_hint() -> None:
    nothing_above = GroupSettings(degenerate="refill", hint="tip", hint_above=-1.0)
    collected = collector(prompts(), nothing_above, wanted=4, reward=Hard())(0, "trained")
    assert collected.metrics["groups/hinted"] == 0


@pytest.mark.slow
def test_neither_chunks_nor_a_resume_change_what_is_asked() -> None:
    whole = prompts()
    drawing = collector(whole, HINTS, reward=Hard())
    first, second = requests_of(drawing(0, "trained")), requests_of(drawing(1, "trained"))
    again = prompts()
    assert requests_of(collector(again, HINTS, chunk=1, reward=Hard())(0, "trained")) == first
    resumed = prompts()
    resumed.load_state_dict(again.state_dict())
    assert requests_of(collector(resumed, HINTS, reward=Hard())(1, "trained")) == second
    assert resumed.state_dict() == whole.state_dict()


def test_without_a_hint_nothing_is_asked_again() -> None:
    plain: Any = GroupSettings(degenerate="refill", max_refills=3)
    collected = collector(prompts(), plain, reward=Hard())(0, "trained")
    assert "groups/hinted" not in collected.metrics and not any("look" in text for _, text in requests_of(collected))


@pytest.mark.slow
def test_hints_that_nobody_gives_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"groups\.hint needs groups\.degenerate refill, got keep"):
        build(load_config("quickstart_gui", ["groups.hint=tip"]))
    with pytest.raises(ConfigError, match="no training prompt has 'tip' in its target"):
        build(load_config("quickstart_gui", ["groups.hint=tip", "groups.degenerate=refill"]))
