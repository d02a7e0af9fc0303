"""progress: the inner reward of the screen after a turn, less that of the screen before, by hand and over episodes."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import pytest
import torch
from torch import Tensor

from mmrl.core.contracts import ConfigError, Granularity, RewardBatch
from mmrl.core.data import Outputs
from mmrl.core.plugins import build
from mmrl.media.pictures import Picture
from mmrl.rewards.base.judging.memory import Ledger, Memory
from mmrl.rewards.base.judging.panel import Panel
from mmrl.rewards.base.judging.questions import Question, Reply, UnansweredError
from mmrl.rewards.base.judging.settings import JudgeModel
from mmrl.rewards.judges.vlm_judge import VlmJudge
from mmrl.rewards.wrappers.progress import Progress
from mmrl.scoring.calls import call_reward
from tests.rewards.example import Example, make_batch
from tests.rewards.inner import WRITTEN
from tests.vision_twins import picture


def screen(progress: float) -> Picture:
    """A screen whose width says how far the agent has come: 4 pixels are 0, and 24 are 1."""
    return picture(4 + round(20 * progress), 8, 0)


@dataclass
class Width:
    """The progress that `screen` shows."""

    source: ClassVar[str] = "these tests"
    range: ClassVar[tuple[float, float]] = (0.0, 1.0)
    granularity: ClassVar[Granularity] = "turn"
    differentiable: ClassVar[bool] = False
    needs: ClassVar[frozenset[str]] = frozenset({"screens"})
    batch_size: ClassVar[int | None] = 3

    def score(self, batch: RewardBatch) -> Tensor:
        screens = batch.outputs.screens or ()
        if None in screens:
            raise ValueError("the environment broke in this turn")
        return torch.tensor([(one.load().width - 4) / 20 for one in screens if one is not None])


def of_turns(before: Sequence[float], after: Sequence[float | None]) -> RewardBatch:
    """Turns of two episodes, one after the other in each."""
    screens = tuple(None if one is None else screen(one) for one in after)
    batch = make_batch(Outputs(screens=screens), ["Go"] * len(before), media=[(screen(one),) for one in before])
    number = torch.arange(len(before))
    half = (len(before) + 1) // 2
    return replace(batch, episode=number // half, turn=number % half)


def random_batch(given: random.Random) -> RewardBatch:
    after = [given.choice([0.0, 1.0, given.randrange(21) / 20]) for _ in range(8)]
    return of_turns([given.choice([0.0, 1.0, given.randrange(21) / 20]) for _ in range(8)], after)


INNER = {"name": "tests.rewards.wrappers.test_progress:Width"}
EXAMPLE = Example(random_batch=random_batch, best=lambda: of_turns([0.0] * 4, [1.0] * 4), settings={"reward": INNER})


def test_the_change_in_each_turn_by_hand() -> None:
    reward = build("rewards", {"name": "progress", "reward": INNER})
    batch = of_turns([0.0, 0.25, 0.75, 0.5], [0.25, 0.75, 0.5, 0.5])
    torch.testing.assert_close(reward.score(batch), torch.tensor([0.25, 0.5, -0.25, 0]))
    assert reward.range == (-1, 1) and reward.granularity == "turn" and not reward.differentiable
    assert reward.needs == {"screens", "prompt.image"}


def test_the_turns_of_an_episode_add_up_to_what_it_ends_with() -> None:
    given = random.Random(0)
    reward = build("rewards", {"name": "progress", "reward": INNER})
    for _ in range(10):
        seen = [given.randrange(21) / 20 for _ in range(7)]
        scores = reward.score(of_turns(seen[:-1], seen[1:]))
        assert float(scores.sum()) == pytest.approx(seen[-1] - seen[0], abs=1e-6)


def test_a_turn_in_which_the_environment_broke_alone_is_not_judged() -> None:
    reward = build("rewards", {"name": "progress", "reward": INNER})
    answer = call_reward("r", reward, of_turns([0.0, 0.5, 0.0], [0.5, None, 1.0]))
    torch.testing.assert_close(answer.values, torch.tensor([0.5, torch.nan, 1]), equal_nan=True)
    assert answer.failure is not None and "the environment broke" in answer.failure


def test_a_judge_is_asked_about_both_screens_in_the_same_words_and_once_about_each() -> None:
    class Judge:
        questions: ClassVar[list[Question]] = []

        def ask(self, questions: Sequence[Question], seeds: Sequence[int]) -> list[Reply | UnansweredError]:
            self.questions.extend(questions)
            return [Reply(f"Steps.\nProgress: {5 * (one.images[0].width - 4)}") for one in questions]

    inner = VlmJudge("agent_progress", of="screens")
    inner._panel = Panel([(JudgeModel(), Judge())], 1, "mean", Memory(None), Ledger(None, None, None))
    scores = Progress(inner).score(of_turns([0.0, 0.25, 0.75], [0.25, 0.75, 0.5]))
    torch.testing.assert_close(scores, torch.tensor([0.25, 0.5, -0.25]))
    assert sorted(one.images[0].width for one in Judge.questions) == [
        4,
        9,
        14,
        19,
    ]  # 0.5 and 0.75 are of two turns each
    assert len({one.text for one in Judge.questions}) == 1


def test_rewards_that_judge_no_screens_are_refused() -> None:
    with pytest.raises(ConfigError, match="must judge screens turn by turn, got one that needs texts and judges sam"):
        build("rewards", {"name": "progress", "reward": WRITTEN})
