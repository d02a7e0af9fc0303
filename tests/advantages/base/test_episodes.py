"""Advantages of episodes against slow loops and numbers by hand."""

import math
import statistics
from typing import Any

import pytest
import torch
from torch.testing import assert_close

from mmrl.advantages.base.episodes import joint, normalised, returns, turn_rewards, whole_episodes
from mmrl.advantages.gigpo import Gigpo
from mmrl.advantages.turn_returns import TurnReturns
from mmrl.core.data import Scores

# One task, three episodes of 3, 2 and 1 turns, and an episode of another task; success is told of whole episodes.
GROUP = [4, 4, 4, 4, 4, 4, 9]
EPISODE = [0, 0, 0, 1, 1, 2, 3]
TURN = [0, 1, 2, 0, 1, 0, 0]
ANCHOR = [11, 22, 33, 11, 22, 11, 11]
SUCCESS = [1.0, 1.0, 1.0, 0.0, 0.0, 0.0, 1.0]
STEP = [0.0, -0.1, 0.0, 0.0, 0.2, 0.0, 0.0]


def scores(rows: list[int] | None = None, **changes: Any) -> Scores:
    made = Scores(
        values=torch.tensor([SUCCESS, STEP]).T,
        names=("success", "step"),
        weights=(1.0, 0.5),
        valid=torch.ones(7, dtype=torch.bool),
        group=torch.tensor(GROUP),
        episode=torch.tensor(EPISODE),
        turn=torch.tensor(TURN),
        anchor=torch.tensor(ANCHOR),
        granularities=("episode", "turn"),
    )
    made = Scores(**{**vars(made), **changes})
    return made if rows is None else made.select(torch.tensor(rows))


def test_a_reward_of_an_episode_is_given_for_its_last_turn() -> None:
    assert_close(
        turn_rewards(scores()), torch.tensor([0, -0.05, 1, 0, 0.1, 0, 1], dtype=torch.float64), atol=1e-7, rtol=0
    )


def test_a_watched_reward_that_could_not_judge_changes_nothing() -> None:
    watched = scores(values=torch.tensor([SUCCESS, [math.nan] * 7]).T, weights=(1.0, 0.0))
    assert turn_rewards(watched).tolist() == [0, 0, 1, 0, 0, 0, 1]


def test_returns_by_hand_in_any_order() -> None:
    # 1 at the end of three turns: 0.5^2 * 1 + 0.5 * -0.05; ...
    by_hand = torch.tensor([0.225, 0.45, 1.0, 0.05, 0.1, 0.0, 1.0], dtype=torch.float64)
    assert_close(returns(turn_rewards(scores()), scores(), 0.5), by_hand, atol=1e-7, rtol=0)
    order = [5, 2, 6, 0, 4, 1, 3]
    mixed = scores(order)
    assert_close(returns(turn_rewards(mixed), mixed, 0.5), by_hand[order], atol=1e-7, rtol=0)


def slow_gigpo(made: Scores, discount: float, step_weight: float, counts: str, epsilon: float = 1e-6) -> list[float]:
    """Equations 3, 6-8 of arXiv 2505.10978 with dictionaries and `statistics`."""
    rows = range(len(made.group))
    granularities, weights = made.granularities, made.weights
    ends = {int(e): max(int(made.turn[n]) for n in rows if made.episode[n] == e) for e in made.episode}
    reward = [
        sum(
            w * float(made.values[n, r])
            for r, (w, kind) in enumerate(zip(weights, granularities, strict=True))
            if kind != "episode" or int(made.turn[n]) == ends[int(made.episode[n])]
        )
        for n in rows
    ]

    def follows(n: int) -> list[int]:
        return [m for m in rows if made.episode[m] == made.episode[n] and made.turn[m] >= made.turn[n]]

    to_go = [sum(discount ** int(made.turn[m] - made.turn[n]) * reward[m] for m in follows(n)) for n in rows]
    total = [sum(reward[m] for m in rows if made.episode[m] == made.episode[n]) for n in rows]

    def against(value: float, others: list[float]) -> float:
        if len(others) < 2 or statistics.stdev(others) < 1e-12:
            return 0.0
        return (value - statistics.fmean(others)) / (statistics.stdev(others) + epsilon)

    found = []
    for n in rows:
        mates = [m for m in rows if made.group[m] == made.group[n]]
        peers = [m for m in mates if made.anchor[m] == made.anchor[n]]
        totals = [total[m] for m in mates if counts == "turns" or made.turn[m] == 0]
        found.append(against(total[n], totals) + step_weight * against(to_go[n], [to_go[m] for m in peers]))
    return found


@pytest.mark.parametrize("counts", ["turns", "episodes"])
@pytest.mark.parametrize("order", [[0, 1, 2, 3, 4, 5, 6], [5, 2, 6, 0, 4, 1, 3]], ids=["sorted", "mixed"])
def test_gigpo_equals_a_slow_loop(counts: Any, order: list[int]) -> None:
    made = scores(order)
    got = Gigpo(discount=0.9, step_weight=0.7, counts=counts)(made)
    assert_close(got, torch.tensor(slow_gigpo(made, 0.9, 0.7, counts)))


def test_gigpo_without_repeated_states_is_grpo_on_episodes() -> None:
    alone = scores(anchor=torch.arange(7))
    assert_close(Gigpo()(alone), Gigpo(step_weight=0.0)(scores()))
    unknown = scores(anchor=torch.full((7,), -1))
    assert_close(Gigpo()(unknown), Gigpo(step_weight=0.0)(scores()))


def test_the_same_state_of_another_task_is_no_peer() -> None:
    assert Gigpo()(scores())[6] == 0


def test_without_division_gigpo_is_a_difference_of_means() -> None:
    made = scores(weights=(1.0, 0.0), anchor=torch.arange(7))
    # the total of the first episode is 1, the mean over the six turns of the task 3 / 6, over its three episodes 1 / 3
    assert_close(Gigpo(divides=False)(made)[:6], torch.tensor([0.5, 0.5, 0.5, -0.5, -0.5, -0.5]))
    by_episode = Gigpo(divides=False, counts="episodes")(made)[:6]
    assert_close(by_episode, torch.tensor([2.0, 2.0, 2.0, -1.0, -1.0, -1.0]) / 3)


def test_an_invalid_turn_takes_its_whole_episode_out() -> None:
    valid = torch.tensor([True, True, True, True, False, True, True])
    values = torch.tensor([SUCCESS, STEP]).T.clone()
    values[4] = math.nan
    assert whole_episodes(scores(valid=valid)).tolist() == [True, True, True, False, False, True, True]
    for advantage in (Gigpo(), Gigpo(counts="episodes"), TurnReturns(), TurnReturns(compare="turn")):
        got = advantage(scores(valid=valid, values=values))
        assert got.isfinite().all() and (got[3:5] == 0).all()
        assert_close(got[[0, 1, 2, 5, 6]], advantage(scores([0, 1, 2, 5, 6])))


def test_turn_returns_by_hand() -> None:
    made = scores(weights=(1.0, 0.0))
    to_go = [0.25, 0.5, 1.0, 0.0, 0.0, 0.0]
    mean, std = statistics.fmean(to_go), statistics.stdev(to_go)
    by_hand = [(value - mean) / (std + 1e-6) for value in to_go]
    assert_close(TurnReturns(discount=0.5)(made), torch.tensor([*by_hand, 0.0]))
    assert_close(TurnReturns(discount=0.5, divides=False)(made)[:6], torch.tensor(to_go) - mean)


def test_turn_returns_against_the_same_turn_of_others() -> None:
    got = TurnReturns(discount=0.5, compare="turn", divides=False)(scores(weights=(1.0, 0.0)))
    # turn 0: 0.25, 0, 0; turn 1: 0.5, 0; turn 2 has nobody to be compared with
    assert_close(got, torch.tensor([2 / 12, 0.25, 0.0, -1 / 12, -0.25, -1 / 12, 0.0]))


@pytest.mark.parametrize("compare", ["task", "turn"])
def test_an_episode_alone_in_its_group_is_not_compared_with_itself(compare: Any) -> None:
    """Its later turns are nearer to its end, not better."""
    advantage = TurnReturns(compare=compare)
    assert (advantage(scores([0, 1, 2, 6])) == 0).all()
    others_fail = torch.tensor([True, True, True, False, True, False, True])
    assert (advantage(scores(valid=others_fail)) == 0).all()


def test_who_has_nobody_to_be_compared_with_gets_zero_without_an_epsilon_too() -> None:
    for advantage in (Gigpo(epsilon=0.0), TurnReturns(epsilon=0.0)):
        got = advantage(scores())
        assert got.isfinite().all() and got[6] == 0 and got[:6].any()


def test_equal_returns_are_equal_however_they_were_added_up() -> None:
    """0.95 * 1 is 0.95, whose mean over three is another number in its last bit."""
    values, group = torch.full((3,), 0.95, dtype=torch.float64), torch.zeros(3, dtype=torch.int64)
    valid = torch.ones(3, dtype=torch.bool)
    assert normalised(values, group, valid, divides=True, epsilon=0.0).tolist() == [0, 0, 0]
    assert normalised(values, group, valid, divides=False, epsilon=0.0).tolist() == [0, 0, 0]


def test_joint_groups_agree_in_all_names() -> None:
    a, b = torch.tensor([1, 1, 2, 2, 1]), torch.tensor([5, 6, 5, 5, 5])
    assert joint(a, b).tolist() == [0, 1, 2, 2, 0]


@pytest.mark.parametrize("wrong", [{"discount": 1.1}, {"step_weight": -1.0}, {"epsilon": -1e-3}])
def test_settings_out_of_range_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        Gigpo(**wrong)  # type: ignore[arg-type]
    if "step_weight" not in wrong:
        with pytest.raises(ValueError, match=next(iter(wrong))):
            TurnReturns(**wrong)  # type: ignore[arg-type]
