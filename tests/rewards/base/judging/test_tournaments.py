"""Sorting by comparisons against all pairs."""

import math
from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from mmrl.rewards.base.judging.tournaments import Tier, ranked, rates_of_pairs, rates_of_tiers


def prefer(first: int, second: int) -> float:
    return float(first > second) if first != second else 0.5


def sorted_by(strengths: list[int]) -> tuple[list[Tier], int]:
    """The tiers, and the number of comparisons."""
    sorting, num_pairs = ranked(list(range(len(strengths)))), 0
    try:
        pair = next(sorting)
        while True:
            num_pairs += 1
            pair = sorting.send(prefer(*(strengths[member] for member in pair)))
    except StopIteration as finished:
        return finished.value, num_pairs


@given(st.lists(st.integers(0, 6), min_size=1, max_size=17))
def test_a_tournament_gives_the_rates_of_all_pairs(strengths: list[int]) -> None:
    tiers, num_pairs = sorted_by(strengths)
    count = len(strengths)
    every = {(i, j): prefer(strengths[i], strengths[j]) for i, j in combinations(range(count), 2)}
    expected = [0.5 if rate is None else rate for rate in rates_of_pairs(count, every)]
    found = rates_of_tiers(tiers)
    assert all(math.isclose(found[member], expected[member]) for member in range(count))
    assert num_pairs <= count * math.ceil(math.log2(count)) if count > 1 else num_pairs == 0


def test_rates_by_hand() -> None:
    assert rates_of_tiers([[2], [0, 1], [3]]) == {2: 1, 0: 0.5, 1: 0.5, 3: 0}
    assert rates_of_tiers([[4]]) == {4: 0.5}
    assert rates_of_pairs(4, {(0, 1): 1.0, (1, 2): 0.5}) == [1.0, 0.25, 0.5, None]
