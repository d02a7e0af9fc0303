"""Wrappers around rewards of steps: each number is changed by hand, and stands where the inner reward has one."""

import random
import statistics
from dataclasses import replace
from typing import Any

import pytest
import torch

from mmrl.core.contracts import ConfigError, RewardBatch
from mmrl.core.data import Scores
from mmrl.core.plugins import build
from mmrl.core.reward_batches import select
from mmrl.scoring.calls import call_reward
from tests.parameters import in_one_test
from tests.rewards.inner import LAST, STEPS, WRITTEN, of_steps, steps, wrapped

TEXTS = ("0.2 - 0.9", "0.5", "- 1 0.4 0")
HALVES: dict[str, Any] = {"name": "clip_range", "low": 0.0, "high": 0.5, "reward": STEPS}
OVER: dict[str, Any] = {"name": "threshold", "threshold": 0.5, "reward": STEPS}
ALL: dict[str, dict[str, Any]] = {
    "clip_range": {"low": 0.25, "high": 0.5},
    "threshold": {"threshold": 0.5},
    "annealed": {"last": 4},
    "gated": {"gate": LAST, "otherwise": -1.0},
    "constrained": {"constraints": [LAST], "broken": "cap", "limit": 0.3},
    "dithered": {},
    "running_normalised": {},
    "clip_and_delta": {"eta": 0.5},
    "renormalised": {"outcome": LAST},
}
SEVERAL: dict[str, dict[str, Any]] = {
    "weighted": {"rewards": [STEPS, OVER], "weights": [2.0, -1.0]},
    "uncertainty_weighted": {"rewards": [STEPS, HALVES]},
}


def built(name: str, **settings: Any) -> Any:
    """The wrapper around `Steps`, as above or with other settings."""
    if name in SEVERAL:
        return build("rewards", {"name": name} | SEVERAL[name] | settings)
    return wrapped(name, **({"reward": STEPS} | (settings or ALL[name])))


def numbers_of(reward: Any, batch: RewardBatch) -> list[list[float]]:
    """The numbers at the ends of the segments, without the others, which are all 0."""
    scores, ends = reward.score(batch), reward.ends(batch)
    assert scores.dtype == torch.float32 and scores.shape == batch.is_decision.shape
    assert not scores[~ends].any()
    return [row[end].tolist() for row, end in zip(scores, ends, strict=True)]


@in_one_test(
    ("name", "settings", "expected"),
    [
        ("clip_range", {}, [[0.25, 0.5], [0.5], [0.5, 0.4, 0.25]]),
        ("threshold", {}, [[0, 1], [1], [1, 0, 0]]),
        ("annealed", {}, [[0.15, 0.675], [0.375], [0.75, 0.3, 0]]),  # three quarters, at iteration 1 of 4
        ("annealed", {"last": 2, "then": OVER}, [[0.1, 0.95], [0.75], [1, 0.2, 0]]),
        ("annealed", {"last": 1}, [[0, 0], [0], [0, 0, 0]]),
        ("weighted", {}, [[0.4, 0.8], [0], [1, 0.8, 0]]),  # 2 r less 1 from 0.5 on
        ("uncertainty_weighted", {}, [[0.2, 0.5], [0.5], [0.5, 0.4, 0]]),  # 0.9 and 0.5: 0.7 - 0.2
        ("uncertainty_weighted", {"kind": "worst"}, [[0.2, 0.5], [0.5], [0.5, 0.4, 0]]),
        ("gated", {}, [[0.2, 0.9], [0.5], [-1, -1, -1]]),  # open where the last word is at least 0.5
        ("constrained", {}, [[0.2, 0.9], [0.5], [0.3, 0.3, 0]]),
        ("constrained", {"constraints": [LAST], "limit": -1.0}, [[0.2, 0.9], [0.5], [-1, -1, -1]]),
    ],
)
def test_each_number_is_changed_alone(name: str, settings: dict[str, Any], expected: list[list[float]]) -> None:
    reward = built(name, **settings)
    assert reward.granularity == "segment"
    found = numbers_of(reward, replace(of_steps(*TEXTS), iteration=1))
    assert len(found) == len(expected)
    for own, wanted in zip(found, expected, strict=True):
        assert own == pytest.approx(wanted, abs=1e-6)


@pytest.mark.slow
@in_one_test(("name", "granularity"), [(name, kind) for name in (*ALL, *SEVERAL) for kind in ("segment", "token")])
def test_the_core_takes_the_numbers_whatever_the_batch(name: str, granularity: str) -> None:
    """Each sample has the numbers that it has alone, in any order, and also of an inner reward with small batches."""
    inner = STEPS | {"granularity": granularity, "batch_size": 1}
    several = {"rewards": [inner, OVER | {"reward": inner}]}
    reward = built(name, **(several if name in SEVERAL else ALL[name] | {"reward": inner}))
    assert reward.granularity == granularity
    batch = steps(random.Random(3))
    whole = call_reward("r", reward, batch)
    assert whole.failure is None and whole.dense is not None
    is_number = reward.ends(batch) if granularity == "segment" else batch.is_decision
    assert torch.equal(whole.dense.isfinite(), is_number)
    low, high = reward.range
    assert (whole.dense[is_number] >= low - 1e-6).all() and (whole.dense[is_number] <= high + 1e-6).all()
    order = torch.randperm(len(batch), generator=torch.Generator().manual_seed(0))
    shuffled = call_reward("r", reward, select(batch, order)).dense
    torch.testing.assert_close(shuffled, whole.dense[order], rtol=0, atol=0, equal_nan=True)
    for row in range(len(batch)):
        alone = call_reward("r", reward, select(batch, torch.tensor([row]))).dense
        assert alone is not None
        width = alone.shape[1]
        torch.testing.assert_close(alone[0], whole.dense[row, :width], rtol=0, atol=0, equal_nan=True)
    together = reward.score(batch)  # not in the core's batches of one
    torch.testing.assert_close(together, whole.dense.nan_to_num(), rtol=0, atol=0)


def test_each_number_has_noise_of_its_own() -> None:
    reward = built("dithered", std=0.1, noise="uniform")
    batch = of_steps("0.5 0.5 0.5 - 0.5", "0.5 0.5")
    first, second = numbers_of(reward, batch)
    assert len(set(first + second)) == 6
    assert all(abs(number - 0.5) <= 3**0.5 * 0.1 for number in first + second)
    assert numbers_of(reward, batch) == [first, second]


def test_noise_of_a_sample_is_what_it_was_before_steps_had_any() -> None:
    """The number that the seed 0 gives, in double precision times the std, as a float32."""
    plain = wrapped("dithered", std=0.05).score(of_steps("0"))
    wanted = wrapped("dithered", std=0.05, reward=STEPS).score(of_steps("0"))[:, 0]
    assert plain.item() == wanted.item() != 0


def test_statistics_are_those_of_all_numbers_and_survive_a_checkpoint() -> None:
    reward = built("running_normalised", epsilon=0.0)
    batch = of_steps(*TEXTS)
    values = reward.score(batch)
    dense = torch.where(reward.ends(batch), values, torch.nan)
    number = torch.arange(3)
    scores = Scores(
        values=torch.tensor([[1.1], [torch.nan], [1.4]]),  # the second could not be judged
        names=("r",),
        weights=(1.0,),
        valid=number != 1,
        group=number * 0,
        episode=number,
        turn=number * 0,
        granularities=("segment",),
        dense={"r": dense},
    )
    reward.update(scores)
    seen = [0.2, 0.9, 1.0, 0.4, 0.0]
    mean, std = statistics.fmean(seen), statistics.pstdev(seen)
    expected = [[(number - mean) / std for number in row] for row in ([0.2, 0.9], [0.5], [1, 0.4, 0])]
    other = built("running_normalised", epsilon=0.0)
    other.load_state_dict(reward.state_dict())
    for one in (reward, other):
        for own, wanted in zip(numbers_of(one, batch), expected, strict=True):
            assert own == pytest.approx(wanted, abs=1e-5)


def test_a_router_has_the_numbers_and_the_ends_of_each_samples_own_reward() -> None:
    kinds = {"cut": HALVES, "each": STEPS | {"ends_everywhere": True}}
    reward = build("rewards", {"name": "router", "rewards": kinds})
    batch = of_steps(*TEXTS)
    targets = [{"task": "cut"}, {"task": "each"}, {"task": "each"}]
    prompts = tuple(replace(one, target=target) for one, target in zip(batch.prompts, targets, strict=True))
    routed = replace(batch, prompts=prompts)
    assert reward.granularity == "segment"
    found = numbers_of(reward, routed)
    for own, wanted in zip(found, [[0.2, 0.5], [0.5], [0, 1, 0.4, 0]], strict=True):
        assert own == pytest.approx(wanted)


def test_a_gate_that_cannot_judge_leaves_the_sample_out() -> None:
    reward = built("gated", gate={"name": "tests.rewards.inner:Written", "place": 0})
    answer = call_reward("r", reward, of_steps("0.9 0.1", "nan 0.1"))
    assert answer.values.isnan().tolist() == [False, True]


def test_inner_rewards_that_differ_are_refused() -> None:
    with pytest.raises(ConfigError, match="must judge alike, got rewards of sample, segment"):
        built("weighted", rewards=[STEPS, WRITTEN])
    with pytest.raises(ConfigError, match="must judge alike, got rewards of segment, token"):
        built("uncertainty_weighted", rewards=[STEPS, STEPS | {"granularity": "token"}])
    with pytest.raises(ConfigError, match="both must judge the same, got segment and sample"):
        built("annealed", last=2, then=WRITTEN)
    with pytest.raises(ConfigError, match="the gate must judge samples, got one that judges segments"):
        built("gated", gate=STEPS)
    reward = built("weighted", rewards=[STEPS, STEPS | {"ends_everywhere": True}], weights=[1.0, 1.0])
    with pytest.raises(ConfigError, match="must end their segments at the same tokens"):
        call_reward("r", reward, of_steps(*TEXTS))
