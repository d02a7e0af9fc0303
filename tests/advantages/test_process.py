"""Process supervision against a slow loop and numbers by hand, and its refusals."""

import math
import random
import statistics
from typing import Any

import pytest
import torch
from torch.testing import assert_close

from mmrl.advantages.grpo import Grpo
from mmrl.advantages.process import Process
from mmrl.core.data import Granularity, Paths, Scores
from tests.parameters import in_one_test

NAN = math.nan
CREDITS = [
    Process(),
    Process(credit="discounted", gamma=0.5),
    Process(credit="min"),
    Process(credit="min", temperature=0.0),
]


def made(
    steps: list[list[float]],
    outcomes: list[float],
    *,
    group: list[int] | None = None,
    weights: tuple[float, float] = (1.0, 1.0),
    valid: list[bool] | None = None,
    granularity: Granularity = "segment",
) -> Scores:
    """Returns scores of a dense reward and an outcome; `steps` [B][K] has NaN where there is no reward."""
    count = len(steps)
    width = max(map(len, steps))
    dense = torch.tensor([row + [NAN] * (width - len(row)) for row in steps])
    number = torch.arange(count)
    return Scores(
        values=torch.stack([dense.nan_to_num().sum(1), torch.tensor(outcomes)], 1),
        names=("steps", "outcome"),
        weights=weights,
        valid=torch.tensor(valid or [True] * count),
        group=torch.tensor(group or [0] * count),
        episode=number,
        turn=torch.zeros_like(number),
        granularities=(granularity, "sample"),
        dense={"steps": dense},
    )


def own_edges(*lengths: int) -> Paths:
    """Returns the edges of answers that share no decision."""
    there = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    return Paths(torch.where(there, there.flatten().cumsum(0).view_as(there) - 1, -1))


def slow(scores: Scores, paths: Paths, epsilon: float) -> list[list[float]]:
    """Returns section 4.1.3 of arXiv 2402.03300 with lists, by a loop over samples and decisions."""
    rewards: list[dict[int, float]] = []
    for row, edges in enumerate(paths.edge.tolist()):
        found: dict[int, float] = {}
        length = sum(edge >= 0 for edge in edges)
        for place in range(length if scores.valid[row] else 0):
            said = float(scores.dense["steps"][row, place])
            if scores.weights[0] and not math.isnan(said):
                found[place] = scores.weights[0] * said
            if place == length - 1 and scores.weights[1]:
                found[place] = found.get(place, 0.0) + scores.weights[1] * float(scores.values[row, 1])
        rewards.append(found)
    result = [[0.0] * paths.edge.shape[1] for _ in rewards]
    for row, found in enumerate(rewards):
        mates = [other for other, group in zip(rewards, scores.group, strict=True) if group == scores.group[row]]
        everything = [reward for mate in mates for reward in mate.values()]
        if len([mate for mate in mates if mate]) < 2 or statistics.pstdev(everything) < 1e-9:
            continue
        mean, std = statistics.fmean(everything), statistics.pstdev(everything) + epsilon
        for place in range(sum(edge >= 0 for edge in paths.edge[row].tolist())):
            result[row][place] = sum((reward - mean) / std for end, reward in found.items() if end >= place)
    return result


def test_the_advantage_of_a_token_is_the_sum_of_what_ends_at_it_and_behind_it_by_hand() -> None:
    # two answers of 4 and 2 tokens; segments end at tokens 1 and 3, and at token 1: rewards 1, 0 and 0.5
    scores = made([[NAN, 1, NAN, 0], [NAN, 0.5]], [0, 0], weights=(1.0, 0.0))
    std = math.sqrt((0.25 + 0.25 + 0) / 3)
    plus, minus = 0.5 / std, -0.5 / std
    expected = torch.tensor([[plus + minus, plus + minus, minus, minus], [0, 0, 0, 0]])
    assert_close(Process(epsilon=0.0)(scores, own_edges(4, 2)), expected, atol=1e-6, rtol=0)


def test_an_outcome_stands_at_the_last_decision_by_hand() -> None:
    # what is normalised: 1 and 2 of the first answer, whose outcome 3 is added to 2; 0 and 0 + 2 * 0 of the second
    scores = made([[1, 2], [0, 0]], [1.5, 0], weights=(1.0, 2.0), granularity="token")
    std = statistics.pstdev([1, 5, 0, 0])
    expected = torch.tensor([[(1 + 5 - 3) / std, (5 - 1.5) / std], [(0 - 3) / std, -1.5 / std]])
    assert_close(Process(epsilon=0.0)(scores, own_edges(2, 2)), expected)


def random_scores(seed: int, weights: tuple[float, float]) -> tuple[Scores, list[int]]:
    """Random scores of twelve samples of three groups, some invalid; and the numbers of their steps."""
    source = random.Random(seed)
    lengths = [source.randrange(1, 7) for _ in range(12)]
    steps = [
        [source.choice([NAN, 0.0, source.random()]) for _ in range(length - 1)] + [source.random()]
        for length in lengths
    ]
    scores = made(
        steps,
        [source.random() for _ in lengths],
        group=[source.choice([3, 8, 5]) for _ in lengths],
        weights=weights,
        valid=[source.random() < 0.8 for _ in lengths],
    )
    return scores, lengths


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("weights", [(1.0, 0.5), (0.3, 0.0), (0.0, 1.0)], ids=["both", "steps", "outcome"])
def test_it_equals_a_slow_loop(seed: int, weights: tuple[float, float]) -> None:
    scores, lengths = random_scores(seed, weights)
    got = Process(epsilon=0.01)(scores, own_edges(*lengths))
    assert_close(got, torch.tensor(slow(scores, own_edges(*lengths), 0.01)))


def test_a_step_of_reward_zero_is_a_step() -> None:
    """With it the mean of the group is 2 / 3, without it there would be no spread."""
    scores = made([[1, 0], [NAN, 1]], [0, 0], weights=(1.0, 0.0))
    assert Process()(scores, own_edges(2, 2))[0, 1] < 0


def test_one_segment_each_is_grpo_without_a_clip() -> None:
    rewards = [0.1, 0.9, 0.4, 0.7]
    scores = made([[NAN, NAN, reward] for reward in rewards], [0] * 4, weights=(1.0, 0.0))
    expected = Grpo(clip=None)(scores)[:, None].expand(4, 3)
    for advantage in (Process(), Process(credit="min"), Process(credit="discounted", gamma=1.0)):
        assert_close(advantage(scores, own_edges(3, 3, 3, 3)), expected)
    halved = Process(credit="discounted", gamma=0.5)(scores, own_edges(3, 3, 3, 3))
    assert_close(halved, expected * torch.tensor([0.25, 0.5, 1.0]))


def test_equal_rewards_give_exactly_zero() -> None:
    scores = made([[0.1] * n for n in (3, 7, 5)], [0] * 3, weights=(0.3, 0.0), granularity="token")
    for epsilon in (0.0, 1e-4):
        assert not Process(epsilon)(scores, own_edges(3, 7, 5)).any()
    for advantage in CREDITS:
        assert not advantage(scores, own_edges(3, 7, 5)).any()


@in_one_test("advantage", CREDITS)
def test_invalid_samples_get_zero_and_change_nothing_for_the_others(advantage: Process) -> None:
    lengths = (2, 3, 2)
    for wrong in (NAN, 1e9):
        scores = made([[1, 0], [wrong] * 3, [0.5, 0.2]], [1, wrong, 0], valid=[True, False, True])
        got = advantage(scores, own_edges(*lengths))
        assert not got[1].any() and got.isfinite().all()
        alone = scores.select(torch.tensor([0, 2]))
        assert_close(got[[0, 2], :2], advantage(alone, own_edges(2, 2)))


@in_one_test("advantage", CREDITS)
def test_the_only_valid_member_gets_zero_however_its_steps_differ(advantage: Process) -> None:
    scores = made([[1, 0], [NAN, NAN]], [0, 0], valid=[True, False])
    assert not advantage(scores, own_edges(2, 2)).any()


@in_one_test("advantage", CREDITS)
def test_a_sample_that_is_not_learned_from_has_no_step(advantage: Process) -> None:
    """As a cut answer whose tokens are no decisions: it neither counts nor has an advantage."""
    scores = made([[1, 0], [5, 7], [0.5, 0.5]], [0, 0, 0])
    paths = Paths(torch.tensor([[0, 1], [-1, -1], [2, 3]]))
    got = advantage(scores, paths)
    assert not got[1].any()
    assert_close(got[[0, 2]], advantage(scores.select(torch.tensor([0, 2])), paths[[0, 2]]))


@in_one_test("advantage", CREDITS)
def test_numbers_may_be_wider_or_narrower_than_the_decisions(advantage: Process) -> None:
    scores = made([[1, 0], [0.5, 0.25]], [0, 0])
    wide = made([[1, 0, NAN, NAN], [0.5, 0.25, NAN, NAN]], [0, 0])
    assert torch.equal(advantage(wide, own_edges(2, 2)), advantage(scores, own_edges(2, 2)))
    padded = Paths(torch.nn.functional.pad(own_edges(2, 2).edge, (0, 3), value=-1))
    got = advantage(scores, padded)
    assert torch.equal(got[:, :2], advantage(scores, own_edges(2, 2))) and not got[:, 2:].any()


@in_one_test("advantage", CREDITS)
def test_a_shared_edge_has_the_mean_over_its_valid_leaves(advantage: Process) -> None:
    """Edge 0 is passed by three leaves, of which one is invalid; the same number in another group is another edge."""
    steps = [[0, 1.0], [0, 0.0], [0, 9.0], [0, 0.25], [0, 0.75]]
    scores = made(steps, [0] * 5, group=[0, 0, 0, 1, 1], weights=(1.0, 0.0), valid=[True, True, False, True, True])
    paths = Paths(torch.tensor([[0, 1], [0, 2], [0, 3], [0, 1], [4, 2]]))
    unshared = advantage(scores, own_edges(2, 2, 2, 2, 2))
    got = advantage(scores, paths)
    mean = (unshared[0, 0] + unshared[1, 0]) / 2
    assert_close(got[:, 0], torch.stack([mean, mean, torch.tensor(0.0), unshared[3, 0], unshared[4, 0]]))
    assert_close(got[:, 1], unshared[:, 1])


@in_one_test("advantage", CREDITS)
def test_the_order_and_joining_do_not_matter(advantage: Process) -> None:
    scores = made([[1], [0.5, 0.2, 0.1], [0.3, 0.7], [0.2]], [1, 0, 0.5, 0], group=[1, 0, 1, 0])
    paths, order = own_edges(1, 3, 2, 1), torch.tensor([2, 0, 3, 1])
    whole = advantage(scores, paths)
    assert_close(advantage(scores.select(order), paths[order]), whole[order])
    parts = [scores.select(torch.tensor(rows)) for rows in ([0, 2], [1, 3])]
    narrow = [Scores(**{**vars(parts[0]), "dense": {"steps": parts[0].dense["steps"][:, :2]}}), parts[1]]
    assert_close(advantage(Scores.join(narrow), paths[[0, 2, 1, 3]]), whole[[0, 2, 1, 3]])


@in_one_test("advantage", CREDITS)
def test_no_decisions_have_no_advantages(advantage: Process) -> None:
    empty = made([[1.0]], [0.0]).select(torch.zeros(0, dtype=torch.int64))
    assert advantage(empty, Paths(torch.zeros(0, 3, dtype=torch.int64))).shape == (0, 3)
    assert advantage(made([[1.0], [0.5]], [0, 0]), Paths(torch.zeros(2, 0, dtype=torch.int64))).shape == (2, 0)


def test_settings_out_of_range_are_refused() -> None:
    wrong: Any = -1.0
    with pytest.raises(ValueError, match=r"epsilon must be at least 0, got -1\.0"):
        Process(epsilon=wrong)
    with pytest.raises(ValueError, match=r"temperature must be at least 0, got -1\.0"):
        Process(credit="min", temperature=wrong)
    with pytest.raises(ValueError, match="gamma and credit 'discounted' go together, got None and 'discounted'"):
        Process(credit="discounted")
    with pytest.raises(ValueError, match=r"gamma and credit 'discounted' go together, got 0\.9 and 'min'"):
        Process(credit="min", gamma=0.9)
    with pytest.raises(ValueError, match=r"gamma must be at most 1, got 1\.5|gamma must be .* at most 1"):
        Process(credit="discounted", gamma=1.5)
    least: Any = "least"
    with pytest.raises(ValueError, match="credit must be"):
        Process(credit=least)


def test_discounted_rewards_by_hand() -> None:
    # as above, rewards 1 and 0 at tokens 1 and 3, and 0.5 at token 1 of another answer; each token between halves
    scores = made([[NAN, 1, NAN, 0], [NAN, 0.5]], [0, 0], weights=(1.0, 0.0))
    std = math.sqrt((0.25 + 0.25 + 0) / 3)
    plus, minus = 0.5 / std, -0.5 / std
    second = plus + minus / 4
    expected = torch.tensor([[second / 2, second, minus / 2, minus], [0, 0, 0, 0]])
    assert_close(Process(0.0, "discounted", 0.5)(scores, own_edges(4, 2)), expected, atol=1e-6, rtol=0)


def test_a_discount_of_one_is_the_sum_and_one_of_zero_the_own_reward() -> None:
    scores = made([[0.3, 1, NAN, 0], [0.5, 0.1]], [1, 0])
    everything = Process(credit="discounted", gamma=1.0)(scores, own_edges(4, 2))
    assert_close(everything, Process()(scores, own_edges(4, 2)))
    alone = Process(credit="discounted", gamma=0.0)(scores, own_edges(4, 2))
    assert_close(alone[:, :3].cumsum(1)[1, 1], everything[1, 0])  # the second answer's two rewards
    assert alone[0, 2] == 0  # inside of a segment


def test_the_worst_step_is_credited_until_it_is_over_by_hand() -> None:
    """Worst steps 0.2 and 0.6, outcomes 1 and 0: totals 1.2 and 0.6 with mean 0.9 and std 0.3."""
    scores = made([[NAN, 0.2, NAN, 0.8], [NAN, 0.6]], [1, 0])
    got = Process(epsilon=0.0, credit="min", temperature=0.0)(scores, own_edges(4, 2))
    before, after = (0.2 - 0.4 + 1 - 0.5) / 0.3, (1 - 0.5) / 0.3
    other = (0.6 - 0.4 + 0 - 0.5) / 0.3
    assert_close(got, torch.tensor([[before, before, after, after], [other, other, 0, 0]]))
    late = made([[NAN, 0.8, NAN, 0.2], [NAN, 0.6]], [1, 0])
    got = Process(epsilon=0.0, credit="min", temperature=0.0)(late, own_edges(4, 2))
    assert_close(got[0], torch.full((4,), before))


def test_the_softmin_by_hand() -> None:
    """Steps that are 0.1 ln 3 apart weigh 3 to 1 at temperature 0.1."""
    apart = 0.1 * math.log(3)
    scores = made([[0.3, 0.3 + apart], [0.5, NAN]], [0, 0], weights=(1.0, 0.0), granularity="token")
    worst = 0.3 + apart / 4
    mean, std = (worst + 0.5) / 2, (0.5 - worst) / 2
    second = (0.3 + apart - mean) / 4 / std
    expected = torch.tensor([[(worst - mean) / std, second], [(0.5 - mean) / std, 0]])
    assert_close(Process(epsilon=0.0, credit="min")(scores, own_edges(2, 2)), expected)


def slow_min(scores: Scores, lengths: list[int], temperature: float, epsilon: float) -> list[list[float]]:
    """Returns the advantages of min-form credit with lists, by a loop over samples and decisions."""
    totals: dict[int, tuple[float, float]] = {}
    shares: dict[int, dict[int, float]] = {}
    steps: dict[int, dict[int, float]] = {}
    for row, length in enumerate(lengths):
        if not scores.valid[row]:
            continue
        own = {place: float(scores.dense["steps"][row, place]) * scores.weights[0] for place in range(length)}
        own = {place: number for place, number in own.items() if not math.isnan(number)}
        terms = {place: math.exp((min(own.values()) - number) / temperature) for place, number in own.items()}
        shares[row] = {place: term / sum(terms.values()) for place, term in terms.items()}
        steps[row] = own
        worst = sum(shares[row][place] * number for place, number in own.items())
        totals[row] = (worst, float(scores.values[row, 1]) * scores.weights[1])
    result = [[0.0] * max(lengths) for _ in lengths]
    for row in totals:
        mates = [totals[other] for other in totals if scores.group[other] == scores.group[row]]
        std = statistics.pstdev([sum(one) for one in mates])
        if len(mates) < 2 or std < 1e-9:
            continue
        means = [statistics.fmean(part) for part in zip(*mates, strict=True)]
        for place in range(lengths[row]):
            ahead = [number for number in steps[row] if number >= place]
            earned = sum(shares[row][number] * (steps[row][number] - means[0]) for number in ahead)
            result[row][place] = (earned + totals[row][1] - means[1]) / (std + epsilon)
    return result


@in_one_test(("seed", "temperature"), [(seed, temperature) for seed in range(6) for temperature in (0.02, 0.1, 3.0)])
def test_the_min_equals_a_slow_loop(seed: int, temperature: float) -> None:
    scores, lengths = random_scores(seed, (0.7, 0.5))
    got = Process(epsilon=0.01, credit="min", temperature=temperature)(scores, own_edges(*lengths))
    assert_close(got, torch.tensor(slow_min(scores, lengths, temperature, 0.01)), atol=1e-5, rtol=1e-4)


def test_more_good_steps_earn_nothing() -> None:
    """Of the sum they do: the answer with the longer row of ones has more."""
    short = made([[0.5, 1.0], [0.4, 0.9]], [0, 0], weights=(1.0, 0.0), granularity="token")
    long = made([[0.5, *[1.0] * 8], [0.4, 0.9]], [0, 0], weights=(1.0, 0.0), granularity="token")
    strict = Process(credit="min", temperature=0.0)
    assert_close(strict(long, own_edges(9, 2))[:, 0], strict(short, own_edges(2, 2))[:, 0])
    assert Process()(long, own_edges(9, 2))[0, 0] > Process()(short, own_edges(2, 2))[0, 0]


def test_a_small_temperature_is_nearly_the_minimum_and_a_large_one_the_mean() -> None:
    scores = made([[0.5, 0.1, 0.9], [0.4, 0.3, 0.8]], [0, 0], weights=(1.0, 0.0), granularity="token")
    edges = own_edges(3, 3)
    strict = Process(credit="min", temperature=0.0)(scores, edges)
    assert_close(Process(credit="min", temperature=1e-3)(scores, edges), strict)
    assert_close(Process(credit="min", temperature=1e-300)(scores, edges), strict)
    means = torch.tensor([0.5, 0.5])
    assert_close(means, scores.dense["steps"].mean(1))
    assert Process(credit="min", temperature=1e9)(scores, edges)[:, 0].abs().max() < 0.1  # equal means
    assert strict[1, 0] > 0.9


def test_worst_steps_of_one_size_share_the_credit() -> None:
    scores = made([[0.2, 0.7, 0.2], [0.6, 0.9, NAN]], [0, 0], weights=(1.0, 0.0), granularity="token")
    got = Process(epsilon=0.0, credit="min", temperature=0.0)(scores, own_edges(3, 2))
    assert_close(got, torch.tensor([[-1.0, -0.5, -0.5], [1.0, 0.0, 0.0]]))


def test_without_decisions_the_min_is_of_whole_samples() -> None:
    scores = made([[0.2, 0.7], [0.6, 0.9]], [1, 0])
    assert_close(Process(credit="min")(scores), Process()(scores))
