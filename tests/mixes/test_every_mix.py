"""Properties of every mix in the folder, and each formula by hand."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.testing import assert_close

from mmrl.core.contracts import ConfigError
from mmrl.core.data import Scores
from mmrl.core.plugins import build, names
from mmrl.scoring.metrics import advantages_of
from mmrl.scoring.scorer import RewardTerm, Scorer
from tests.parameters import in_one_test

SETTINGS: dict[str, dict[str, Any]] = {"gate": {"by": "a"}, "lexicographic": {"order": ["a", "b"]}}
GROUP = torch.tensor([3, 3, 3, 8, 8])
VALUES = torch.tensor([[1.0, 0.2, 9.0], [0.0, 0.6, 9.0], [1.0, 0.4, 9.0], [0.5, 0.5, 9.0], [0.0, math.nan, 9.0]])
VALID = torch.tensor([True, True, True, True, False])


def made(mix: Any, weights: tuple[float, ...] = (2.0, 1.0, 0.0), rows: list[int] | None = None) -> Scores:
    number = torch.arange(5)
    scores = Scores(VALUES, ("a", "b", "c"), weights, VALID, GROUP, number, torch.zeros_like(number), mix=mix)
    return scores if rows is None else scores.select(torch.tensor(rows, dtype=torch.int64))


def mix_of(name: str, **settings: Any) -> Any:
    return build("mixes", {"name": name} | SETTINGS.get(name, {}) | settings)


@pytest.fixture(params=names("mixes"))
def mix(request: pytest.FixtureRequest) -> Any:
    return mix_of(request.param)


def test_it_gives_a_number_for_each_sample_whatever_their_order(mix: Any) -> None:
    total = made(mix).total
    assert total.shape == (5,) and total.dtype == torch.float32 and total[VALID].isfinite().all()
    order = [4, 2, 0, 3, 1]
    assert_close(made(mix, rows=order).total, total[order], equal_nan=True)
    assert len(made(mix, rows=[]).total) == 0


def test_groups_do_not_touch_each_other(mix: Any) -> None:
    apart = torch.cat([made(mix, rows=[0, 1, 2]).total, made(mix, rows=[3, 4]).total])
    assert_close(apart, made(mix).total, equal_nan=True)


def test_a_watched_reward_does_not_matter(mix: Any) -> None:
    scores = made(mix)
    other = replace(scores, values=VALUES * torch.tensor([1, 1, -7.0]))
    assert_close(other.total, scores.total, equal_nan=True)


ROOT = math.sqrt(2) / 3  # population std of 1, 0, 1
BY_HAND: list[tuple[str, dict[str, Any], list[float]]] = [
    ("weighted_sum", {}, [2.2, 0.6, 2.4, 1.5]),
    ("advantage_weighted", {}, [2.2, 0.6, 2.4, 1.5]),
    ("product", {}, [0.2, 0, 0.4, 0.125]),  # a^2 b
    ("harmonic_mean", {}, [3 / (2 + 5), 0, 3 / (2 + 2.5), 0.5]),
    ("gate", {}, [2.2, 0, 2.4, 1.5]),
    ("gate", {"threshold": 0.6, "otherwise": -1}, [2.2, -1, 2.4, 0]),
    # a: 1, 0, 1 and b: 0.2, 0.6, 0.4, whose population std is sqrt(0.08 / 3)
    (
        "gdpo",
        {"epsilon": 0, "is_unbiased": False},
        [2 / 3 / ROOT - 1.2247449, -4 / 3 / ROOT + 1.2247449, 2 / 3 / ROOT, 0],
    ),
    # unbiased: sqrt(1 / 3) and 0.2
    ("gdpo", {"epsilon": 0}, [2 / 3 * math.sqrt(3) - 1, -4 / 3 * math.sqrt(3) + 1, 2 / 3 * math.sqrt(3), 0]),
    ("lexicographic", {}, [0.5, 0, 1, 0.5]),  # the 1s of a are told apart by b
    ("lexicographic", {"order": ["b", "a"]}, [0, 1, 0.5, 0.5]),
    ("lexicographic", {"tolerance": 0.5}, [0.75, 0, 0.75, 0.5]),  # 0.2 and 0.4 are the same
]


@in_one_test(("name", "settings", "expected"), BY_HAND)
def test_totals_by_hand(name: str, settings: dict[str, Any], expected: list[float]) -> None:
    assert_close(made(mix_of(name, **settings)).total[VALID], torch.tensor(expected), atol=1e-6, rtol=1e-6)


def test_a_gate_of_weight_0_only_opens_and_shuts_and_its_failures_count() -> None:
    gate = mix_of("gate")
    assert_close(made(gate, (0.0, 1.0, 0.0)).total[VALID], torch.tensor([0.2, 0, 0.4, 0.5]))
    assert gate.declaration.requires_rewards == {"a"}


def scorer_of(mix: Any, ranges: dict[str, tuple[float, float]], weights: tuple[float, ...] = (1.0, 1.0)) -> Scorer:
    class Stated:
        granularity, needs = "sample", frozenset[str]()

        def __init__(self, ends: tuple[float, float]) -> None:
            self.range = ends

    pairs = zip(ranges.items(), weights, strict=True)
    return Scorer(tuple(RewardTerm(name, Stated(ends), weight) for (name, ends), weight in pairs), mix=mix)  # type: ignore[arg-type]


UNIT = {"a": (0.0, 1.0), "b": (0.0, 1.0)}


@in_one_test(
    ("name", "settings", "ranges", "weights", "message"),
    [
        ("product", {}, {"a": (-1.0, 1.0), "b": (0.0, 1.0)}, (1, 1), "never below 0, but 'a' goes down to -1"),
        ("harmonic_mean", {}, UNIT, (1, -1), "needs weights above 0, got -1 for 'b'"),
        ("gate", {"by": "d"}, UNIT, (1, 1), "there is no reward 'd'; known are a, b"),
        ("gate", {"threshold": 2}, UNIT, (1, 1), "runs from 0 to 1; a threshold of 2 would leave the gate always"),
        ("lexicographic", {"order": ["a"]}, UNIT, (1, 1), "the order lacks b"),
        ("lexicographic", {"order": ["a", "d"]}, UNIT, (1, 1), "there is no reward 'd'; known are a, b"),
    ],
)
def test_what_cannot_be_mixed_is_refused_before_anything_is_scored(
    name: str, settings: dict[str, Any], ranges: dict[str, Any], weights: tuple[float, ...], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        scorer_of(mix_of(name, **settings), ranges, weights)
    scorer_of(mix_of("weighted_sum"), ranges, weights)


@in_one_test(
    ("name", "settings", "message"),
    [
        ("gdpo", {"epsilon": -1}, "epsilon must be at least 0"),
        ("lexicographic", {"tolerance": -1}, "tolerance must be at least 0"),
        ("lexicographic", {"tolerance": [0.1]}, "one number, or one for each of 2 rewards, got .0.1,."),
        ("lexicographic", {"order": ["a", "a"]}, "name each reward once"),
        ("gate", {"by": "a", "thresh": 1}, "no field 'thresh' .did you mean 'threshold'"),
    ],
)
def test_bad_settings_are_refused(name: str, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        mix_of(name, **settings)


def test_where_all_weights_are_still_0_nothing_is_learned_and_nothing_fails(mix: Any) -> None:
    scores = made(mix, (0.0, 0.0, 0.0))
    assert scores.total[VALID].isfinite().all()
    if SETTINGS.get(mix_name(mix)) is None:  # those with settings of their own look at rewards of any weight
        assert advantages_of(scores, build("advantages", {"name": "grpo"}), None).tolist() == [0] * 5


def mix_name(mix: Any) -> str:
    return type(mix).__module__.rpartition(".")[2]


def test_the_lower_edge_of_a_bin_is_in_it_whatever_float32_makes_of_it() -> None:
    number = torch.arange(8)
    values = torch.tensor([[0.1 * n] for n in range(8)])  # 0.7 is held as 0.69999999
    mix = mix_of("lexicographic", order=["a"], tolerance=0.1, ties="bins")
    scores = Scores(values, ("a",), (1.0,), number >= 0, number * 0, number, number * 0, mix=mix)
    assert_close(scores.total, number / 7)


def compared(values: Any, **settings: Any) -> list[float]:
    """Returns the shares of one group, to three digits, of the rewards a and b."""
    rows = torch.tensor(values, dtype=torch.float32)
    number, mix = torch.arange(len(rows)), mix_of("lexicographic", order=["a", "b"], **settings)
    scores = Scores(rows, ("a", "b"), (1.0, 1.0), number >= 0, number * 0, number, number * 0, mix=mix)
    return [round(share, 3) for share in scores.total.tolist()]


@in_one_test(
    ("values", "settings", "expected"),
    [
        # 0.09 is as good as both of the others, of which one is better
        ([[0, 0], [0.09, 0], [0.11, 0]], {"tolerance": 0.1}, [0.25, 0.5, 0.75]),
        ([[0, 0], [0.09, 0], [0.11, 0]], {"tolerance": 0.1, "ties": "bins"}, [0.25, 0.25, 1]),
        # a margin for each: a is tied by 0.2, b tells by more than 0.05
        ([[0, 0.5], [0.2, 0.4], [0.3, 0.4]], {"tolerance": [0.2, 0.05]}, [0.5, 0.25, 0.75]),
        ([[0.2, 0], [0.4, 0]], {"tolerance": 0.2}, [0.5, 0.5]),  # float32 holds 0.4 - 0.2 as a little more
        # the std of 0, 1, 2 and of 0, 0, 3 is 1 and sqrt(3): 0 and 1 are tied in a, and in b
        ([[0, 0], [1, 0], [2, 3]], {"tolerance": 1, "unit": "std"}, [0.25, 0.25, 1]),
        ([[0, 3], [1, 0], [2, 0]], {"tolerance": [1, 2], "unit": "std"}, [0.25, 0.5, 0.75]),  # 3 is below 2 sqrt(3)
        ([[0.5, 0.5]] * 3, {"tolerance": 1, "unit": "std"}, [0.5, 0.5, 0.5]),
        ([[0.5, 0.5]], {"tolerance": 1, "unit": "std"}, [0.5]),
    ],
)
def test_ties_by_margins_and_by_bins(values: Any, settings: dict[str, Any], expected: list[float]) -> None:
    assert compared(values, **settings) == expected


def test_margins_of_0_are_ranks() -> None:
    values = torch.rand(40, 2, generator=torch.Generator().manual_seed(0)).mul(4).round().tolist()
    assert compared(values, tolerance=[0, 1e-9]) == compared(values)


@in_one_test(
    ("first", "second", "expected"),
    [((0, 0), (0, 1), 0.7071), ((0, 0), (1, 1), 1.4142), ((0, 1), (0, 2), 0.7071), ((0, 1), (1, 1), 0.7071)],
)
def test_gdpo_gives_the_numbers_of_the_papers_figure_2(
    first: tuple[int, int], second: tuple[int, int], expected: float
) -> None:
    number = torch.arange(2)
    values = torch.tensor([first, second], dtype=torch.float32)
    scores = Scores(values, ("a", "b"), (1.0, 1.0), number >= 0, number * 0, number, number * 0, mix=mix_of("gdpo"))
    assert_close(scores.total, torch.tensor([-expected, expected]), atol=3e-4, rtol=0)  # epsilon
