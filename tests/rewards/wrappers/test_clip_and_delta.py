"""clip_and_delta by hand, and the bound that it is made for."""

import random
from typing import Any

import pytest

from mmrl.core.contracts import ConfigError
from tests.parameters import in_one_test
from tests.rewards.example import Example
from tests.rewards.inner import STEPS, WRITTEN, of_steps, steps, wrapped

# no best: a number says how a step differs from the next
EXAMPLE = Example(random_batch=steps, settings={"reward": STEPS, "eta": 1.0})


@in_one_test(
    ("settings", "expected"),
    [
        ({"eta": 0.5, "delta": False}, [-0.3, 0, 0, -0.1]),
        ({"eta": None}, [0.2 - 0.9, 0.9 - 0.5, 0.5, 0]),
        ({"eta": 0.5}, [-0.3 - 0, 0 - 0, 0, 0]),
        ({"eta": 0.8}, [-0.6 - 0, 0 + 0.3, -0.3, 0]),
    ],
)
def test_the_formulas_by_hand(settings: dict[str, Any], expected: list[float]) -> None:
    batch = of_steps("0.2 - 0.9 0.5 0.4", "0.7", "0.7 - 0.1")
    reward = wrapped("clip_and_delta", reward=STEPS, **settings)
    scores = reward.score(batch)
    assert scores[0, [0, 2, 3, 4]].tolist() == pytest.approx(expected, abs=1e-6)
    assert scores[0, 1] == 0 and not scores[1, 1:].any()
    eta = settings["eta"]
    only = 0.7 if eta is None else min(0.7 - eta, 0)
    if settings.get("delta", True):
        assert scores[1, 0] == 0  # the only step is the last
        assert scores[2].tolist() == pytest.approx([only, 0, 0, 0, 0], abs=1e-6)
    else:
        assert scores[1, 0].item() == pytest.approx(only, abs=1e-6)


def test_what_a_step_and_all_behind_it_earn_is_bounded_however_many_there_are() -> None:
    """The sum from any step on is the clipped reward of that step, and 0 for the last."""
    source = random.Random(0)
    for _ in range(20):
        numbers = [source.random() for _ in range(source.randrange(2, 40))]
        reward = wrapped("clip_and_delta", reward=STEPS, eta=0.6)
        scores = reward.score(of_steps(" ".join(map(str, numbers))))[0].tolist()
        for place, number in enumerate(numbers):
            is_last = place == len(numbers) - 1
            wanted = 0 if is_last else min(number - 0.6, 0)
            assert sum(scores[place:]) == pytest.approx(wanted, abs=1e-5)


def test_the_range_follows_from_the_inner_reward() -> None:
    assert wrapped("clip_and_delta", reward=STEPS, eta=0.25, delta=False).range == (-0.25, 0.0)
    assert wrapped("clip_and_delta", reward=STEPS, eta=2.0, delta=False).range == (-2.0, -1.0)
    assert wrapped("clip_and_delta", reward=STEPS, eta=0.25).range == (-0.25, 0.25)
    assert wrapped("clip_and_delta", reward=STEPS, eta=None).range == (-1.0, 1.0)


def test_bad_settings_are_refused() -> None:
    with pytest.raises(ConfigError, match="must judge steps, segments or tokens, got one that judges samples"):
        wrapped("clip_and_delta", reward=WRITTEN, eta=0.5)
    with pytest.raises(ConfigError, match="needs an eta, or delta"):
        wrapped("clip_and_delta", reward=STEPS, eta=None, delta=False)
    with pytest.raises(ConfigError, match="eta must be finite and above 0, the lowest score, got 0"):
        wrapped("clip_and_delta", reward=STEPS, eta=0.0)
