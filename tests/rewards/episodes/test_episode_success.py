"""Success of episodes from the rewards that the environment gave, and what a broken environment means."""

import random
from dataclasses import replace
from typing import Any

import pytest
import torch

from mmrl.core.contracts import RewardBatch
from mmrl.core.data import Outcome, Outputs, Prompt
from mmrl.core.keys import generator
from mmrl.rewards.episodes.episode_success import EpisodeSuccess
from mmrl.rewards.episodes.step_reward import StepReward
from mmrl.scoring.scorer import RewardTerm, Scorer
from tests.modalities.test_agent import TASKS, play
from tests.rewards.example import Example, make_batch
from tests.toy_worlds import Corridor, clicker

EPISODE = [3, 3, 3, 5, 5, 8, 9, 9]
STEPS = [0.0, 0.5, 0.5, 0.0, 0.9, 1.0, 1.0, 0.0]
OUTCOMES: tuple[Outcome | None, ...] = (None, None, "done", None, "turn_limit", "done", None, "failed")


def batch(rows: list[int]) -> RewardBatch:
    return RewardBatch(
        prompts=(Prompt("go"),) * len(rows),
        outputs=Outputs(
            step_rewards=torch.tensor([STEPS[row] for row in rows]), outcomes=tuple(OUTCOMES[row] for row in rows)
        ),
        group=torch.zeros(len(rows), dtype=torch.int64),
        episode=torch.tensor([EPISODE[row] for row in rows]),
        turn=torch.zeros(len(rows), dtype=torch.int64),
        seeds=tuple(rows),
        iteration=0,
        generator=generator(0),
    )


def episodes(rewards: list[list[float]]) -> RewardBatch:
    """Episodes of turns with these rewards, a group for every two."""
    owner = torch.tensor([number for number, turns in enumerate(rewards) for _ in turns])
    ends: list[Outcome | None] = [None if later else "done" for turns in rewards for later in range(len(turns))[::-1]]
    outputs = Outputs(
        step_rewards=torch.tensor([reward for turns in rewards for reward in turns]), outcomes=tuple(ends)
    )
    turn = torch.tensor([number for turns in rewards for number in range(len(turns))])
    return replace(make_batch(outputs, ["go"] * len(owner)), episode=owner, group=owner // 2, turn=turn)


def random_batch(random: random.Random) -> RewardBatch:
    drawn = [[random.choice([0.0, 0.25, 0.5]) for _ in range(random.randint(1, 4))] for _ in range(6)]
    return episodes([*drawn, [0.0, 1.0], [0.0]])


EXAMPLE = Example(random_batch=random_batch, best=lambda: episodes([[0.0, 1.0], [0.5, 0.5, 0.5]]))


def test_success_is_the_sum_of_an_episodes_rewards_told_of_every_turn() -> None:
    assert EpisodeSuccess().score(batch([0, 1, 2, 3, 4, 5])).tolist() == [1, 1, 1, 0, 0, 1]
    assert EpisodeSuccess().score(batch([4, 2, 5, 0, 3, 1])).tolist() == [0, 1, 1, 1, 0, 1]
    assert EpisodeSuccess(threshold=0.9).score(batch([3, 4])).tolist() == [1, 1]


@pytest.mark.parametrize("count", [10, 12, 31])  # in float32 twelve twelfths are 0.9999999
def test_parts_of_one_add_up_to_one(count: int) -> None:
    made = batch([0] * count)
    made.outputs.step_rewards.fill_(1 / count)  # type: ignore[union-attr]
    assert EpisodeSuccess().score(made).tolist() == [1] * count


def test_a_broken_environment_says_nothing_about_the_agent_unless_told_so() -> None:
    with pytest.raises(ValueError, match="the environment broke"):
        EpisodeSuccess().score(batch([6, 7]))
    assert EpisodeSuccess(failed="zero").score(batch([5, 6, 7])).tolist() == [1, 0, 0]


def test_a_step_reward_is_the_environments() -> None:
    assert StepReward().score(batch([1, 5])).tolist() == [0.5, 1.0]


def test_a_turn_in_which_the_environment_broke_has_no_step_reward_unless_told_so() -> None:
    with pytest.raises(ValueError, match="the environment broke in this turn"):
        StepReward().score(batch([5, 6, 7]))
    assert StepReward(failed="zero").score(batch([5, 6, 7])).tolist() == [1, 1, 0]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("reward", "words"),
    [(EpisodeSuccess(), "the environment broke in this episode"), (StepReward(), "the environment broke in this turn")],
    ids=["success", "step"],
)
def test_a_broken_episode_leaves_its_group_and_is_counted(reward: Any, words: str) -> None:
    policy = clicker(environment=Corridor(places=99), invalid_limit=99)
    tasks: Any = (Prompt("go", target={"trouble": "crash"}), TASKS[0])
    judged = Scorer((RewardTerm("reward", reward),), max_failed_share=1.0).judge(play(policy, tasks), 0)
    failed = judged.scores.group == 10
    assert judged.scores.has_failed.tolist() == failed.tolist() and 0 < int(failed.sum()) < len(failed)
    (failure,) = judged.first_failures
    assert failure is not None and failure.startswith(f"reward: ValueError: {words}")
