"""trusted against the paper's formula by hand."""

import math
from dataclasses import replace

import pytest
import torch

from mmrl.core.contracts import ConfigError
from tests.rewards.example import Example
from tests.rewards.inner import SECOND, WRITTEN, numbers, said, wrapped

EXAMPLE = Example(
    random_batch=numbers, best=lambda: said(*["1 1"] * 4), settings={"reward": WRITTEN, "accuracy": SECOND}
)


def test_thoughts_count_less_where_wrong_answers_have_the_better_ones() -> None:
    reward = wrapped("trusted", accuracy=SECOND)
    # group 1: right 0.2 and 0.4, wrong 0.9 and 0.5: exp(0.3 - 0.7); group 2: right ones are better: 1
    batch = said("0.2 1", "0.9 0", "0.4 0.5", "0.5 0.4", "0.8 1", "0.1 0", "0.6 1", "0.2 0")
    trust = math.exp(0.3 - 0.7)
    expected = [0.2 * trust, 0.9 * trust, 0.4 * trust, 0.5 * trust, 0.8, 0.1, 0.6, 0.2]
    assert reward.score(batch).tolist() == pytest.approx(expected)


@pytest.mark.parametrize("accuracy", ["0", "1"])
def test_where_there_is_nothing_to_compare_it_is_believed(accuracy: str) -> None:
    batch = said(*(f"{thought} {accuracy}" for thought in (0.1, 0.2, 0.3, 0.4)))
    assert wrapped("trusted", accuracy=SECOND).score(batch).tolist() == pytest.approx([0.1, 0.2, 0.3, 0.4])


def test_it_fades_with_the_iterations() -> None:
    reward = wrapped("trusted", accuracy=SECOND, decay=10)
    batch = said("0.5 1", "0.5 1")
    assert reward.score(replace(batch, iteration=5))[0].item() == pytest.approx(0.5 * math.exp(-0.5))


def test_controls_are_in_no_mean() -> None:
    batch = said("0.2 1", "0.9 0", "0.2 0", "0.2 1")
    batch = replace(batch, is_control=torch.tensor([False, True, False, False]))
    assert wrapped("trusted", accuracy=SECOND).score(batch).tolist() == pytest.approx([0.2, 0.9, 0.2, 0.2])


def test_bad_settings_are_refused() -> None:
    with pytest.raises(ConfigError, match="decay must be above 0"):
        wrapped("trusted", accuracy=SECOND, decay=0)
    with pytest.raises(ConfigError, match="must judge samples, got one that judges groups"):
        wrapped("trusted", accuracy={"name": "trusted", "reward": WRITTEN, "accuracy": SECOND})


def test_what_cannot_be_judged_is_in_no_mean_and_stays_so() -> None:
    found = wrapped("trusted", accuracy=SECOND).score(said("0.2 1", "0.6 0", "nan 1", "0 nan"))
    trust = math.exp(0.2 - 0.6)
    assert found[:2].tolist() == pytest.approx([0.2 * trust, 0.6 * trust])
    assert found[2:].isnan().all()
