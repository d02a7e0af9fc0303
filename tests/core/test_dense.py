"""Rewards of decisions: what they may return, what is kept of it, and where they are refused."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

from mmrl.core.config import ScoringSettings
from mmrl.core.contracts import ConfigError, Granularity, Reward, RewardBatch
from mmrl.core.data import DecisionBlock, Outputs, Prompt, Rollout, Scores
from mmrl.core.keys import GroupKey
from mmrl.core.plugins import build, find, names
from mmrl.mixes.product import Product
from mmrl.rewards.base.wrapper import RewardWrapper
from mmrl.scoring.scorer import Judgement, RewardTerm, Scorer, build_scorer
from mmrl.scoring.standalone import score, scorer_of
from tests.parameters import in_one_test

LENGTHS = (3, 1, 4, 2)


@dataclass
class Numbered:
    """Dense: 10 times the sample's number plus the decision's place; it remembers the widths that it was asked for."""

    source: ClassVar[str] = "this test"
    differentiable: ClassVar[bool] = True
    range: ClassVar[tuple[float, float]] = (-math.inf, math.inf)
    needs: ClassVar[frozenset[str]] = frozenset({"texts"})

    change: Callable[[Tensor, RewardBatch], Tensor] | None = None
    granularity: Granularity = "token"
    batch_size: int | None = None
    widths: list[list[int]] = field(default_factory=list)

    def score(self, batch: RewardBatch) -> Tensor:
        there = batch.is_decision
        self.widths.append(list(there.shape))
        number = torch.tensor([float(text) for text in batch.outputs.texts or ()])
        numbers = torch.where(there, 10 * number[:, None] + torch.arange(there.shape[1]), 0.0)
        return numbers if self.change is None else self.change(numbers, batch)


@dataclass
class OfHalves(Numbered):
    """The same at every second token and at the last one."""

    granularity: Granularity = "segment"
    where: Callable[[Tensor], Tensor] | None = None

    def ends(self, batch: RewardBatch) -> Tensor:
        there = batch.is_decision
        is_last = torch.arange(there.shape[1]) == there.sum(1, keepdim=True) - 1
        ends = there & (is_last | (torch.arange(there.shape[1]) % 2 == 1))
        return ends if self.where is None else self.where(ends)

    def score(self, batch: RewardBatch) -> Tensor:
        return torch.where(self.ends(batch), super().score(batch), 0.0) if self.where is None else super().score(batch)


@dataclass
class Plain(Numbered):
    granularity: Granularity = "sample"

    def score(self, batch: RewardBatch) -> Tensor:
        return torch.tensor([float(text) for text in batch.outputs.texts or ()])


class OfImages(Numbered):
    needs: ClassVar[frozenset[str]] = frozenset({"images"})


def rollout(lengths: tuple[int, ...] = LENGTHS, group: tuple[int, ...] = (0, 0, 1, 1), first: int = 0) -> Rollout:
    """Samples named by their numbers, in groups, with so many decisions each."""
    count, number = len(lengths), torch.arange(len(lengths))
    there = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    edge = torch.where(there, there.flatten().cumsum(0).view_as(there) - 1, -1)
    return Rollout(
        prompts=tuple(Prompt(f"prompt {name}") for name in dict.fromkeys(group)),
        keys=tuple(GroupKey(0, 0, name) for name in dict.fromkeys(group)),
        prompt=torch.tensor([list(dict.fromkeys(group)).index(name) for name in group]),
        group=torch.tensor(group),
        episode=number,
        turn=torch.zeros_like(number),
        outputs=Outputs(texts=tuple(str(first + n) for n in range(count))),
        blocks=(DecisionBlock(torch.where(there, number[:, None], -1), edge, there.float()),),
        trace=None,
        num_calls=count,
    )


def scorer(*rewards: Any, **settings: Any) -> Scorer:
    terms = (RewardTerm(f"r{n}", reward) for n, reward in enumerate(rewards))
    return Scorer(tuple(terms), **{"max_failed_share": 1.0, **settings})


def kept(numbers: Tensor) -> list[list[float]]:
    """Without the places where there is no number."""
    return [[value for value in row if not math.isnan(value)] for row in numbers.tolist()]


@in_one_test("size", [None, 1, 2, 3])
def test_every_decision_has_its_number_and_the_sample_their_sum(size: int | None) -> None:
    dense = Numbered(batch_size=size)
    scores = scorer(dense, Plain()).score(rollout(), 0)
    assert kept(scores.dense["r0"]) == [[0, 1, 2], [10], [20, 21, 22, 23], [30, 31]]
    assert scores.values.tolist() == [[3, 0], [10, 1], [86, 2], [61, 3]] and scores.valid.all()
    assert set(scores.dense) == {"r0"} and scores.total.tolist() == [3, 11, 88, 64]
    widest = {None: [[4, 4]], 1: [[1, n] for n in LENGTHS], 2: [[2, 3], [2, 4]], 3: [[3, 4], [1, 2]]}
    assert dense.widths == widest[size]


def test_segments_have_numbers_at_their_ends_alone_and_zero_is_one() -> None:
    scores = scorer(OfHalves()).score(rollout(), 0)
    assert kept(scores.dense["r0"]) == [[1, 2], [10], [21, 23], [31]]
    zero = scorer(OfHalves(lambda numbers, _: numbers * 0)).score(rollout(), 0)
    assert kept(zero.dense["r0"]) == [[0, 0], [0], [0, 0], [0]]
    assert scores.values[:, 0].tolist() == [3, 10, 44, 31]


def test_tokens_are_decisions_where_none_was_left_to_chance() -> None:
    greedy = replace(rollout(), blocks=(DecisionBlock.none(4),))
    greedy = replace(greedy, outputs=replace(greedy.outputs, num_tokens=torch.tensor(LENGTHS)))
    assert scorer(Numbered()).score(greedy, 0).values[:, 0].tolist() == [3, 10, 86, 61]


def test_a_sample_without_decisions_cannot_be_judged() -> None:
    judgement = scorer(Numbered()).judge(rollout((3, 0, 4, 2)), 0)
    assert judgement.scores.valid.tolist() == [True, False, True, True]
    assert "without decisions" in str(judgement.first_failures)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf], ids=str)
@pytest.mark.parametrize("place", [0, 3])
def test_a_number_that_is_none_makes_its_sample_invalid(bad: float, place: int) -> None:
    def broken(numbers: Tensor, batch: RewardBatch) -> Tensor:
        row = (batch.outputs.texts or ()).index("2")
        numbers[row, place] = bad
        return numbers

    judgement = scorer(Numbered(broken)).judge(rollout(), 0)
    assert judgement.scores.valid.tolist() == [True, True, False, True]
    assert judgement.scores.values[:, 0].isnan().tolist() == [False, False, True, False]
    assert judgement.first_failures == (f"r0: returned {bad}",)


def test_a_reward_that_raises_is_asked_about_each_sample_alone() -> None:
    def broken(numbers: Tensor, batch: RewardBatch) -> Tensor:
        if "1" in (batch.outputs.texts or ()):
            raise ValueError("cannot see 1")
        return numbers

    judgement = scorer(Numbered(broken), Plain()).judge(rollout(), 0)
    assert kept(judgement.scores.dense["r0"]) == [[0, 1, 2], [], [20, 21, 22, 23], [30, 31]]
    assert judgement.scores.valid.tolist() == [True, False, True, True]
    assert "cannot see 1" in str(judgement.first_failures[0])


def test_sums_that_are_too_large_are_failures() -> None:
    scores = scorer(Numbered(lambda numbers, _: numbers * 1e17)).score(rollout(), 0)
    assert scores.valid.tolist() == [True, True, False, False]  # 3e17, 1e18, 8.6e18, 6.1e18
    overflow = scorer(Numbered(lambda numbers, batch: 3e38 * batch.is_decision.float())).judge(rollout(), 0)
    assert overflow.scores.values[:, 0].isnan().tolist() == [True, False, True, True]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda numbers, _: numbers.sum(1), r"must return a torch.float32 tensor \[4, 4\], got torch.float32 \[4\]"),
        (lambda numbers, _: numbers[:, :3], r"got torch.float32 \[4, 3\]"),
        (lambda numbers, _: numbers.double(), r"got torch.float64 \[4, 4\]"),
        (lambda numbers, _: numbers + 1, "must be 0 behind the last decision.*sample 0 of the batch is not"),
        (lambda numbers, _: torch.where(numbers > 0, numbers, math.nan), "must be 0 behind the last decision"),
    ],
    ids=["sums", "narrow", "double", "behind", "nan behind"],
)
def test_a_wrong_shape_or_a_number_behind_the_end_is_the_users_error(change: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        scorer(Numbered(change)).judge(rollout(), 0)


@pytest.mark.parametrize(
    ("where", "message"),
    [
        (lambda ends: ends.float(), r"'r0.ends' must return a torch.bool tensor \[4, 4\], got torch.float32"),
        (lambda ends: torch.zeros_like(ends), "a segment must end at a sample's last decision"),
        (lambda ends: torch.ones_like(ends), "and none behind it"),
        (lambda ends: ends, "in a segment before its last token"),
    ],
    ids=["numbers", "no end", "behind", "number inside"],
)
def test_wrong_segments_are_the_users_error(where: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        scorer(OfHalves(where=where)).judge(rollout(), 0)


def test_a_judge_of_segments_must_say_where_they_end() -> None:
    settings = {"name": "tests.core.test_dense:Numbered", "granularity": "segment"}
    with pytest.raises(ConfigError, match="judges segments, and has no method `ends`"):
        build_scorer([settings], ScoringSettings())


def test_numbers_go_where_their_samples_go() -> None:
    judge = scorer(Numbered(), Plain(), OfHalves())
    whole = judge.judge(rollout(), 0).scores
    narrow = judge.judge(rollout((3, 1), (0, 0)), 0)
    wide = judge.judge(rollout((4, 2), (1, 1), first=2), 0)
    joined = Judgement.join([narrow, wide]).scores
    assert joined.values.tolist() == whole.values.tolist() and joined.dense.keys() == {"r0", "r2"}
    for name in joined.dense:
        torch.testing.assert_close(joined.dense[name], whole.dense[name], equal_nan=True, rtol=0, atol=0)
    some = whole.select(torch.tensor([2, 0]))
    assert kept(some.dense["r0"]) == [[20, 21, 22, 23], [0, 1, 2]]
    assert set(whole.of("r2").dense) == {"r2"} and not whole.of("r1").dense
    nothing = Judgement.join([judge.empty(), judge.empty()]).scores
    assert nothing.dense["r0"].shape == (0, 0)
    assert Scores.join([nothing, whole]).dense["r0"].shape == (4, 4)


def test_a_mix_mixes_the_sums() -> None:
    assert scorer(Numbered(), Plain(), mix=None).score(rollout(), 0).total.tolist() == [3, 11, 88, 64]
    bounded = Numbered()
    bounded.range = (0.0, 100.0)  # type: ignore[misc]
    other = Plain()
    other.range = (0.0, 9.0)  # type: ignore[misc]
    assert scorer(bounded, other, mix=Product()).score(rollout(), 0).total.tolist() == [0, 10, 172, 183]


def test_a_number_outside_of_the_range_is_told_of_and_a_sum_is_not(caplog: pytest.LogCaptureFixture) -> None:
    dense = Numbered()
    dense.range = (0.0, 40.0)  # type: ignore[misc]  # the sums go up to 86
    scorer(dense).judge(rollout(), 0)
    assert not caplog.records
    dense.range = (0.0, 30.0)  # type: ignore[misc]
    scorer(dense).judge(rollout(), 0)
    assert "reward 'r0' scored 31, outside of the range 0 to 30" in caplog.text


def test_the_gradient_of_the_sum_is_there() -> None:
    factor = torch.tensor(2.0, requires_grad=True)
    judge, rows = scorer(Numbered(lambda numbers, _: numbers * factor)), torch.tensor([0, 2])
    outputs = rollout().outputs.select(rows)
    (gradient,) = torch.autograd.grad(judge.score_in_graph(rollout(), outputs, rows, 0).sum(), factor)
    assert gradient == 89


def test_outputs_alone_have_no_decisions() -> None:
    alone = replace(rollout(), blocks=())
    with pytest.raises(ConfigError, match="reward 'r0' judges each token of samples of a policy of mmrl"):
        scorer(Numbered()).judge(alone, 0)
    section = {"name": "tests.core.test_dense:Numbered"}
    with pytest.raises(ConfigError, match="judges each token of samples of a policy of mmrl; of outputs alone"):
        scorer_of([section])
    with pytest.raises(ConfigError, match="judges each token"):
        score(section, ["a"], texts=["1"])


def test_a_wrapper_that_makes_one_number_of_a_sample_refuses_a_dense_reward() -> None:
    held, images = ({"name": f"tests.core.test_dense:{kind}"} for kind in ("Numbered", "OfImages"))
    plain = {"name": "tests.rewards.inner:Written"}
    drawn: dict[str, Any] = {
        "generator": {"name": "sd3", "model": "own/model"},
        "sampler": {"name": "ode", "num_steps": 2},
    }
    beside: dict[str, Any] = {name: {"accuracy": plain} for name in ("trusted", "conditional", "group_gate")}
    beside |= {
        "format_diversity": {"last": 9},
        "generate_then_score": drawn,
        "repeated": {"noise": 0.1, "kind": "lower_bound"},
    }
    classes = {name: find("rewards", name) for name in names("rewards")}
    wrappers = {name for name, cls in classes.items() if issubclass(cls, RewardWrapper) and not cls.holds_dense}
    assert {"cached", "delta", "length_penalised", "text_norm", *beside} <= wrappers
    for name in wrappers:
        own = images if name in ("frame_mean", "delta", "repeated") else held
        with pytest.raises((ConfigError, ValueError), match=r"judges (each token|tokens)"):
            build("rewards", {"name": name, "reward": own, **beside.get(name, {})})


@dataclass(frozen=True)
class Doubled(RewardWrapper):
    """A wrapper of a user's own, which says nothing of dense rewards."""

    reward: Reward
    source: ClassVar[str] = "this test"

    def __post_init__(self) -> None:
        super().__post_init__()
        self.inherit(self.reward)

    def score(self, batch: RewardBatch) -> Tensor:
        return 2 * self.reward.score(batch)


def test_so_does_a_wrapper_that_says_nothing_of_them() -> None:
    plain: Any = Plain()
    numbered: Any = Numbered()
    Doubled(plain)
    with pytest.raises(ValueError, match="reward must judge samples, got a reward that judges each token"):
        Doubled(numbered)


def test_a_wrapper_that_changes_each_number_holds_a_dense_reward() -> None:
    """Its numbers stand where those of the inner reward do, also where batches are of one sample."""
    held = [{"name": f"tests.core.test_dense:{kind}"} for kind in ("Numbered", "OfHalves")]
    for inner, expected in zip(held, ([[0, 1, 2], [9], [9] * 4, [9, 9]], [[1, 2], [9], [9, 9], [9]]), strict=True):
        for size in (None, 1):
            clipped = build("rewards", {"name": "clip_range", "high": 9.0, "reward": inner | {"batch_size": size}})
            scores = scorer(clipped, Plain()).score(rollout(), 0)
            assert kept(scores.dense["r0"]) == expected
            assert scores.values[:, 0].tolist() == [sum(row) for row in expected]
