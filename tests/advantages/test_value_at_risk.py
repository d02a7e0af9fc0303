"""RiskPO's advantage against a slow loop over bundles and sheets, and the quantiles that it tracks."""

from itertools import pairwise
from statistics import stdev

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from mmrl.advantages.dra import Dra
from mmrl.advantages.value_at_risk import ValueAtRisk
from mmrl.core.contracts import Stateful
from tests.advantages.scored import NAN, scored
from tests.parameters import in_one_test

# Five prompts of 3, 4, 3, 2 and 1 answers that could be judged, in bundles of two: 3 and 4, then 3 and 2
GROUP = [1, 1, 1, 2, 2, 2, 2, 5, 5, 5, 8, 8, 8, 9, 9]
REWARD = [1.0, 0.0, 0.5, 0.0, 1.0, 1.0, 0.25, 0.5, 0.5, 0.5, 0.0, NAN, 1.0, 1.0, NAN]
BUNDLES = ([[0, 3], [1, 4], [2, 5]], [[7, 10], [8, 12]])  # the samples of each sheet


def risk(score: float, low: float, high: float) -> float:
    """Returns the README's formula at levels 0.2 and 0.9 and with weight 1.5, without epsilon."""
    middle = (max(score - low, 0) - max(score - high, 0) + low - high) / (0.9 - 0.2)
    tail = -max(low - score, 0) / 0.2
    return (1.5 * tail + middle) / 2.5


def slow(quantiles: tuple[float, float] | None, *, divides: bool, by_std: bool) -> list[float]:
    """Returns the advantages by lists; `quantiles`: those of all bundles, None: each its own."""
    found = [0.0] * len(REWARD)
    for sheets in BUNDLES:
        sums = [sum(REWARD[row] for row in sheet) for sheet in sheets]
        low, high = np.quantile(sums, [0.2, 0.9]) if quantiles is None else quantiles
        for sheet, score in zip(sheets, sums, strict=True):
            for row in sheet:
                own = [r for r, g in zip(REWARD, GROUP, strict=True) if g == GROUP[row] and r == r]
                by = stdev(own) if by_std and stdev(own) > 1e-3 else 1.0
                found[row] = risk(score, low, high) / (stdev(sums) if divides and stdev(sums) else 1.0) / by
    return found


@in_one_test("divides", [True, False])
@in_one_test("credit", ["std", "sheet"])
def test_it_is_a_slow_loop_over_bundles_and_sheets(divides: bool, credit: str) -> None:
    settings = {"divides": divides, "credit": credit, "epsilon": 0.0}
    own = ValueAtRisk(bundle=2, quantiles="bundle", **settings)(scored(REWARD, GROUP))  # type: ignore[arg-type]
    assert_close(own, torch.tensor(slow(None, divides=divides, by_std=credit == "std"), dtype=torch.float32))
    tracked = ValueAtRisk(bundle=2, **settings)  # type: ignore[arg-type]
    tracked.load_state_dict({"quantiles": [0.75, 1.25]})
    expected = slow((0.75, 1.25), divides=divides, by_std=credit == "std")
    assert_close(tracked(scored(REWARD, GROUP)), torch.tensor(expected, dtype=torch.float32))


def test_the_worst_sheets_count_most_and_those_above_the_upper_quantile_not() -> None:
    """Slopes: (w / low + 0) / (w + 1) below Q_low, 1 / (high - low) / (w + 1) between, 0 above."""
    plain = ValueAtRisk(bundle=1, low=0.25, high=0.75, tail_weight=1.0, divides=False, credit="sheet")
    plain.load_state_dict({"quantiles": [4.0, 8.0]})
    got = plain(scored([0.0, 2.0, 4.0, 6.0, 8.0, 12.0])).tolist()
    assert got == pytest.approx([-12, -8, -4, -2, 0, 0])


def test_a_group_of_equal_answers_learns_from_those_beside_it() -> None:
    equal = [1.0, 1.0, 1.0, 1.0]
    other = [0.0, 1.0, 0.0, 1.0]
    assert not ValueAtRisk(bundle=1, quantiles="bundle")(scored(equal + other, [0] * 4 + [1] * 4))[:4].any()
    got = ValueAtRisk(bundle=2, quantiles="bundle")(scored(equal + other, [0] * 4 + [1] * 4))[:4]
    assert got[0] == got[2] < got[1] == got[3] == 0


def test_a_bundle_that_lacks_prompts_is_scaled_up() -> None:
    few, whole = ValueAtRisk(bundle=4, quantiles="bundle", divides=False), ValueAtRisk(bundle=2, quantiles="bundle")
    rewards, groups = [1.0, 0.0, 0.5, 0.0, 0.25, 1.0], [0, 0, 0, 1, 1, 1]
    plain = ValueAtRisk(bundle=2, quantiles="bundle", divides=False)
    assert_close(few(scored(rewards, groups)), 2 * plain(scored(rewards, groups)))
    divided = ValueAtRisk(bundle=4, quantiles="bundle")
    assert_close(divided(scored(rewards, groups)), whole(scored(rewards, groups)), atol=1e-4, rtol=1e-4)


def test_tracked_quantiles_begin_with_the_first_sheets_and_follow_the_share_below() -> None:
    made = ValueAtRisk(bundle=2, rate=0.1)
    assert isinstance(made, Stateful) and made.state_dict() == {"quantiles": []}
    assert_close(made(scored(REWARD, GROUP)), ValueAtRisk(bundle=2, quantiles="bundle")(scored(REWARD, GROUP)))
    made.update(scored(REWARD, GROUP))
    sums = [sum(REWARD[row] for row in sheet) for sheets in BUNDLES for sheet in sheets]
    low, high = np.quantile(sums, [0.2, 0.9])
    assert made.state_dict()["quantiles"] == pytest.approx([low, high])
    made.update(scored(REWARD, GROUP))
    below = [np.mean([one < q for one in sums]) for q in (low, high)]
    moved = [low + 0.1 * (0.2 - below[0]), high + 0.1 * (0.9 - below[1])]
    assert made.state_dict()["quantiles"] == pytest.approx(moved)
    made.update(scored([NAN, NAN], [0, 0]))
    again = ValueAtRisk(bundle=2, rate=0.1)
    again.load_state_dict(made.state_dict())
    assert again.state_dict()["quantiles"] == pytest.approx(moved)
    fixed = ValueAtRisk(quantiles="bundle")
    fixed.update(scored(REWARD, GROUP))
    assert fixed.state_dict() == {"quantiles": []}


def test_the_tracked_quantiles_of_a_standing_distribution_are_its_own() -> None:
    made, source = ValueAtRisk(bundle=1, rate=0.05), torch.Generator().manual_seed(0)
    rewards = torch.rand(40, 64, generator=source)
    for row in rewards:
        made.update(scored(row.tolist()))
    assert made.state_dict()["quantiles"] == pytest.approx([0.2, 0.9], abs=0.06)


def test_more_reward_on_a_sheet_never_costs() -> None:
    made = ValueAtRisk(bundle=1, quantiles="bundle")
    worth = made(scored([0.0, 0.1, 0.4, 0.5, 0.9, 1.0, 1.5])).tolist()
    assert all(a <= b for a, b in pairwise(worth)) and max(worth) == 0


def test_bad_settings_are_refused() -> None:
    with pytest.raises(ValueError, match=r"low must be below high, got 0\.9 and 0\.2"):
        ValueAtRisk(low=0.9, high=0.2)
    with pytest.raises(ValueError, match="inner learns from the scores of a run"):
        Dra(inner=ValueAtRisk())
