"""A budget of further samples goes where a slow calculation by hand sends it."""

import math
from typing import Any

import pytest
import torch
from scipy import stats
from torch import Tensor
from torch.testing import assert_close

from mmrl.core.config import MoreSettings
from mmrl.training.allocation import allocated, further_members, half_width, priority
from tests.advantages.scored import NAN, scored


def f64(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def slow(spread: list[float], judged: list[int], drawn: list[int], room: list[int], budget: int, bonus: float) -> Any:
    """The same one prompt and one sample at a time, with the quantiles of another function."""
    given = [0] * len(spread)
    for _ in range(budget):
        best, most = -1, -math.inf
        total = sum(drawn) + sum(given)
        for prompt in range(len(spread)):
            if given[prompt] == room[prompt]:
                continue
            n, m, s = judged[prompt] + given[prompt], drawn[prompt] + given[prompt], spread[prompt]
            widths = [float(stats.t.ppf(0.975, k - 1)) * s / math.sqrt(k) if n > 1 else 0.0 for k in (n, n + 1)]
            worth = widths[0] - widths[1] + bonus * math.sqrt(math.log(1 + total) / m)
            if worth > most:
                best, most = prompt, worth
        if best >= 0:
            given[best] += 1
    return given


def test_the_interval_of_four_binary_scores_by_hand() -> None:
    # t_{0.975, 3} = 3.182446, s = sqrt(1 / 3) for two of four; t_{0.975, 4} = 2.776445
    spread = math.sqrt(1 / 3)
    assert_close(half_width(f64(spread), f64(4), 0.95), f64(3.182446 * spread / 2), atol=1e-6, rtol=0)
    narrows = 3.182446 * spread / 2 - 2.776445 * spread / math.sqrt(5)
    got = priority(f64(spread, 0.0), f64(4, 4), f64(4, 4), 0.95, 0.5)
    bonus = 0.5 * math.sqrt(math.log(9) / 4)
    assert_close(got, f64(narrows + bonus, bonus), atol=1e-6, rtol=0)


def test_what_could_not_be_judged_has_the_bonus_alone() -> None:
    got = priority(f64(0.0, 0.0), f64(0, 1), f64(4, 4), 0.95, 0.1)
    assert_close(got, f64(*[0.1 * math.sqrt(math.log(9) / 4)] * 2))


@pytest.mark.parametrize("bonus", [0.0, 0.02, 0.2, 5.0])
@pytest.mark.parametrize("seed", range(3))
def test_each_sample_goes_where_a_slow_calculation_sends_it(bonus: float, seed: int) -> None:
    source = torch.Generator().manual_seed(seed)
    spread = torch.rand(7, generator=source, dtype=torch.float64)
    spread[2] = 0.0
    drawn = torch.randint(4, 9, (7,), generator=source)
    judged = (drawn - torch.randint(0, 3, (7,), generator=source)).clamp(max=6)
    judged[4] = 1
    room = torch.randint(0, 6, (7,), generator=source)
    for budget in (1, 5, 100):
        got = allocated(
            spread, judged.double(), drawn.double(), room, budget, confidence=0.95, exploration=bonus
        ).tolist()
        assert got == slow(spread.tolist(), judged.tolist(), drawn.tolist(), room.tolist(), budget, bonus)
        assert sum(got) == min(budget, int(room.sum()))


def test_without_a_bonus_what_agrees_gets_nothing_while_others_have_room() -> None:
    got = allocated(f64(0, 0.5), f64(4, 4), f64(4, 4), torch.tensor([9, 9]), 9, confidence=0.9, exploration=0.0)
    assert got.tolist() == [0, 9]


def test_a_large_bonus_makes_all_equally_large() -> None:
    drawn = f64(2, 5, 3)
    got = allocated(f64(0.1, 0.9, 0.4), drawn, drawn, torch.tensor([9] * 3), 8, confidence=0.95, exploration=1e6)
    assert (got + drawn).tolist() == [6, 6, 6]


def test_the_spread_is_that_of_the_valid_members_and_the_room_is_what_earlier_rounds_left() -> None:
    scores = scored([0, 1, NAN, 5, 5, 5, 0, 3, 0, 0], [3, 3, 3, 8, 8, 8, 9, 9, 9, 9])
    settings = MoreSettings(budget=5, per_prompt=2, rounds=2, exploration=0.0)
    assert [settings.in_round(number) for number in (0, 1)] == [3, 2]
    # draw 4 has no group; of draw 9 one further member is there already
    got = further_members(scores, [3, 4, 8, 9], 3, settings, 0)
    spread, counts = [math.sqrt(0.5), 0.0, 0.0, 1.5], [2, 0, 3, 4]
    assert got == slow(spread, counts, [3, 1, 3, 4], [2, 0, 2, 1], 3, 0.0) == [2, 0, 0, 1]
    assert further_members(scores, [3, 4, 8, 9], 3, settings, 1) == [2, 0, 0, 0]
