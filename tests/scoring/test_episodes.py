"""Episodes that were judged in part are in no loss, neither in its sum nor in what divides it; failures are counted."""

import pickle
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

from mmrl.advantages.turn_returns import TurnReturns
from mmrl.core.contracts import Granularity, LossBatch, RewardBatch, RunError
from mmrl.core.data import Outputs, Rollout, Scores
from mmrl.core.keys import GroupKey
from mmrl.core.numerics import Normalisation
from mmrl.losses.reinforce import Reinforce
from mmrl.rewards.episodes.episode_success import EpisodeSuccess
from mmrl.rewards.episodes.step_reward import StepReward
from mmrl.scoring.metrics import as_wholes, num_failed, too_many_failed
from mmrl.scoring.scorer import RewardTerm, Scorer
from mmrl.system.errors import Failure, raised
from mmrl.training.processes import Processes
from mmrl.training.update import Updater, select_groups
from tests.parameters import in_one_test
from tests.toys import ToyTokens, toy_rollout
from tests.training.test_held_out import evaluator


def scores(episode: list[int], valid: list[int], is_control: list[int] | None = None, **changes: Any) -> Scores:
    count = len(episode)
    made = Scores(
        values=torch.zeros(count, 1),
        names=("a",),
        weights=(1.0,),
        valid=torch.tensor(valid).bool(),
        group=torch.zeros(count, dtype=torch.int64),
        episode=torch.tensor(episode),
        turn=torch.zeros(count, dtype=torch.int64),
        is_control=torch.tensor(is_control or [0] * count).bool(),
    )
    return replace(made, **changes)


def test_an_episode_with_a_failed_turn_is_invalid_as_a_whole() -> None:
    whole = as_wholes(scores([7, 7, 3, 3, 5, 9], [1, 0, 1, 1, 0, 1]))
    assert whole.valid.tolist() == [False, False, True, True, False, True]
    assert num_failed(whole) == 2


def test_a_control_is_no_failed_turn() -> None:
    made = scores([0, 0, 1, 1], [1, 1, 0, 0], [0, 0, 1, 1])
    assert as_wholes(made).valid.tolist() == made.valid.tolist() and num_failed(made) == 0
    assert too_many_failed(made, 0.0) is None


def test_single_samples_and_no_samples_stay_as_they_were() -> None:
    for valid in ([1, 0, 1], []):
        made = scores(list(range(len(valid))), valid)
        assert as_wholes(made).valid.tolist() == made.valid.tolist()
        assert too_many_failed(made, 0.5) is None


@in_one_test(
    ("episode", "valid", "granularities", "allowed", "message"),
    [
        (
            [0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3],
            [0] + [1] * 12,
            (),
            0.1,
            "1 of 4 episodes could not be judged, which",
        ),
        (
            [0, 1, 2, 3],
            [0, 1, 1, 1],
            ("episode",),
            0.1,
            "1 of 4 episodes could not be judged, which is 25%; scoring.max",
        ),
        ([0, 1, 2, 3], [0, 1, 1, 1], ("sample",), 0.1, "1 of 4 samples could not be judged, which is 25%; scoring.max"),
        ([0, 1, 2], [0, 0, 1], (), 0.125, "which is 66.7%; scoring.max_failed_share allows 12.5%"),
        ([0, 0, 0, 1], [0, 0, 0, 1], (), 0.5, None),  # three of four turns, and one of two episodes
    ],
)
def test_failures_are_counted_by_episodes(
    episode: list[int], valid: list[int], granularities: tuple[Granularity, ...], allowed: float, message: str | None
) -> None:
    said = too_many_failed(scores(episode, valid, granularities=granularities), allowed)
    assert said is None if message is None else said is not None and message in said


def two_turns_each(outcome: str) -> tuple[ToyTokens, Rollout]:
    """Three episodes of two answers; the first ends so in its second turn."""
    policy, rollout = toy_rollout(1, 6)
    outcomes: Any = (None, outcome, None, "done", None, "turn_limit")
    outputs = Outputs(step_rewards=torch.tensor([0.0, 0.0, 0.0, 1.0, 0.5, 0.25]), outcomes=outcomes)
    turns = torch.tensor([0, 1] * 3)
    return policy, replace(rollout, episode=torch.tensor([0, 0, 1, 1, 2, 2]), turn=turns, outputs=outputs)


def batch_of(rollout: Rollout, reward: Any) -> LossBatch:
    judged = Scorer((RewardTerm("reward", reward),), max_failed_share=1.0).score(rollout, 0)
    advantages = TurnReturns()(judged)
    return LossBatch(advantages[:, None], judged.valid.float()[:, None], judged.group, judged.total.nan_to_num())


def gradient(policy: ToyTokens, rollout: Rollout, batch: LossBatch, by: Normalisation) -> tuple[Tensor, float]:
    """Of one optimizer step, and what its loss was divided by."""
    loss = Reinforce(normalise=by)
    rows, part = select_groups(batch, [0])
    views = loss.views(rollout, rows, GroupKey(0, 0, 0))
    policy.network.zero_grad()
    assert part is not None and Updater(policy, loss, Processes(), 2).accumulate(rollout, views, part, "recorded")
    weight = views[0].weight(rollout) * part.weight
    whole = torch.cat([p.grad.flatten().clone() for p in policy.network.parameters() if p.grad is not None])
    return whole, float(loss.coefficients(replace(part, weight=weight))[1])


@pytest.mark.parametrize("by", ["decision", "sample", "group", "constant"])
@pytest.mark.parametrize("reward", [StepReward(), EpisodeSuccess()], ids=["step", "success"])
def test_a_broken_episode_is_in_no_sum_and_no_denominator(reward: Any, by: Normalisation) -> None:
    """The oracle: a rollout without it, its samples' weights and advantages taken out by hand."""
    policy, rollout = two_turns_each("failed")
    found, divided = gradient(policy, rollout, batch_of(rollout, reward), by)
    _, sound = two_turns_each("done")
    given = batch_of(sound, reward)
    others = torch.tensor([0.0, 0.0, 1.0, 1.0, 1.0, 1.0])[:, None]
    values = [[0.0], [1.0], [0.5], [0.25]] if isinstance(reward, StepReward) else [[1.0], [1.0], [0.0], [0.0]]
    turn = torch.tensor([0, 1, 0, 1])
    alone = TurnReturns()(
        scores([1, 1, 2, 2], [1] * 4, values=torch.tensor(values), turn=turn, granularities=(reward.granularity,))
    )
    advantages = torch.cat([torch.zeros(2), alone])[:, None]
    expected, by_hand = gradient(policy, sound, replace(given, advantages=advantages, weight=others), by)
    assert expected.abs().max() > 1e-3
    torch.testing.assert_close(found, expected)
    tokens = rollout.blocks[0].weight[2:].sum(1)
    assert divided == by_hand == {"decision": float(tokens.sum()), "sample": 4, "group": 1, "constant": 4}[by]


@dataclass(frozen=True)
class Refusing:
    """Cannot judge the first prompt."""

    source: ClassVar[str] = "here"
    range: ClassVar[tuple[float, float]] = (0.0, 1.0)
    granularity: ClassVar[Granularity] = "sample"
    differentiable: ClassVar[bool] = False
    needs: ClassVar[frozenset[str]] = frozenset()
    batch_size: ClassVar[int | None] = None

    def score(self, batch: RewardBatch) -> Tensor:
        if any(prompt == batch.prompts[0] for prompt in batch.prompts):
            raise KeyError("the page of answers")
        return torch.zeros(len(batch))


def test_a_failed_run_has_what_a_reward_raised_as_its_cause() -> None:
    with pytest.raises(RunError, match="12 of 12 samples could not be judged, which is 100%") as failed:
        Scorer((RewardTerm("page", Refusing()),)).score(toy_rollout()[1], 0)
    assert isinstance(failed.value.__cause__, KeyError)
    assert failed.value.__cause__.__traceback__ is not None
    with pytest.raises(RunError, match=r"^held-out evaluation: not one sample could be judged") as failed:
        evaluator(RewardTerm("page", Refusing()))()
    assert isinstance(failed.value.__cause__, KeyError)


def test_a_failed_evaluation_says_that_it_is_one() -> None:
    with pytest.raises(
        RunError, match=r"^held-out evaluation: .* of .* could not be judged, which is 100%; scoring.max"
    ):
        evaluator(RewardTerm("page", Refusing()), max_failed_share=0.3)()


def test_the_words_of_a_failure_reach_other_processes_without_their_cause() -> None:
    failure = Failure("no page", KeyError("page"))
    again = pickle.loads(pickle.dumps(failure))
    assert (again, type(again)) == ("no page", str)
    assert raised(failure) is failure.error and raised(again) is None and raised(None) is None
