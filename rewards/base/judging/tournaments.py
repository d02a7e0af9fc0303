"""Which pairs of a group are compared, and what the comparisons make of its members."""

from collections.abc import Generator, Mapping

Pair = tuple[int, int]
Tier = list[int]  # members that tie


def ranked(members: list[int]) -> Generator[Pair, float, list[Tier]]:
    """Sorts members by merging: yields pairs, is sent how far the first is preferred to the second, in [0, 1].

    Returns the tiers, best first; members whose preference is 1/2 tie. It takes at most n ceil(log2 n) pairs. Where the
    preferences are of one order, with ties, the tiers are that order.
    """
    if len(members) < 2:
        return [[member] for member in members]
    half = len(members) // 2
    left = yield from ranked(members[:half])
    right = yield from ranked(members[half:])
    merged: list[Tier] = []
    while left and right:
        preference = yield left[0][0], right[0][0]
        if preference == 0.5:
            merged.append(left.pop(0) + right.pop(0))
        else:
            merged.append((left if preference > 0.5 else right).pop(0))
    return [*merged, *left, *right]


def rates_of_tiers(tiers: list[Tier]) -> dict[int, float]:
    """Returns the win rate of each member against all others, in [0, 1]: a tie is one half; 1/2 for one alone."""
    count = sum(map(len, tiers))
    rates: dict[int, float] = {}
    better = 0
    for tier in tiers:
        worse = count - better - len(tier)
        rates |= dict.fromkeys(tier, (worse + (len(tier) - 1) / 2) / (count - 1) if count > 1 else 0.5)
        better += len(tier)
    return rates


def rates_of_pairs(count: int, preferences: Mapping[Pair, float]) -> list[float | None]:
    """Returns the mean preference for each of `count` members over its pairs; None for one that is in none.

    Args:
        count: of members. preferences: in [0, 1] for pairs (i, j): how far i is preferred to j; each pair once.
    """
    sums, numbers = [0.0] * count, [0] * count
    for (first, second), preference in preferences.items():
        for member, value in ((first, preference), (second, 1 - preference)):
            sums[member] += value
            numbers[member] += 1
    return [total / number if number else None for total, number in zip(sums, numbers, strict=True)]
