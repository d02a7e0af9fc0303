"""running_normalised against statistics of all scores, and its state."""

import json

import pytest
import torch

from mmrl.core.contracts import ConfigError
from mmrl.core.data import Scores
from tests.rewards.example import Example
from tests.rewards.inner import WRITTEN, numbers, said, wrapped

EXAMPLE = Example(random_batch=numbers, best=lambda: said("1"), settings={"reward": WRITTEN})


def scores_of(values: torch.Tensor) -> Scores:
    number = torch.arange(len(values))
    return Scores(values[:, None], ("r",), (1.0,), ~values.isnan(), number // 2, number, number * 0)


def test_it_is_the_place_among_all_scores_of_earlier_iterations() -> None:
    reward = wrapped("running_normalised", epsilon=0.0)
    texts = [["0.1", "0.9", "0.4"], ["0.3", "0.35"], ["0.8", "0.7", "0.2", "0"]]
    seen: list[float] = []
    for batch in texts:
        own = torch.tensor([float(text) for text in batch], dtype=torch.float64)
        found = reward.score(said(*batch))
        past = torch.tensor(seen, dtype=torch.float64)
        expected = (own - past.mean()) / past.std(unbiased=False) if seen else own
        torch.testing.assert_close(found.double(), expected, atol=1e-5, rtol=1e-5)
        reward.update(scores_of(found))
        seen += own.tolist()


def test_failed_scores_and_equal_ones_change_nothing_that_they_should_not() -> None:
    reward = wrapped("running_normalised")
    reward.update(scores_of(torch.tensor([0.5, torch.nan, 0.5])))
    assert reward.score(said("0.75")).item() == 0.75  # no spread yet
    reward.update(scores_of(torch.tensor([torch.nan])))
    assert reward.state_dict() == {"count": 2, "mean": 0.5, "squares": 0.0}


def test_its_state_survives_a_checkpoint() -> None:
    reward, other = wrapped("running_normalised"), wrapped("running_normalised")
    reward.update(scores_of(torch.tensor([0.1, 0.7, 0.9])))
    other.load_state_dict(json.loads(json.dumps(reward.state_dict())))
    assert torch.equal(other.score(said("0.3")), reward.score(said("0.3")))


def test_bad_settings_are_refused() -> None:
    with pytest.raises(ConfigError, match="epsilon must be at least 0"):
        wrapped("running_normalised", epsilon=-1.0)
