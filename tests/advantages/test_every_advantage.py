"""What holds for every advantage in the folder, with its default settings."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from mmrl.data import Scores
from mmrl.plugins import build, names

# Groups of 4 mixed, 3 equal, 3 with one invalid, 1 alone, and 2 of whom one is invalid
GROUP = torch.tensor([7, 7, 1, 7, 1, 30, 7, 1, 30, 4, 30, 5, 5])
REWARD = torch.tensor([0.1, 0.9, 0.3, 0.5, 0.3, 2.0, 0.2, 0.3, math.nan, 8.0, 1.0, math.nan, 3.0])
VALID = REWARD.isfinite()


@pytest.fixture(params=names("advantages"))
def advantage(request: pytest.FixtureRequest) -> Any:
    return build("advantages", {"name": request.param})


def _scores(rows: Tensor | None = None) -> Scores:
    numbers = torch.arange(len(GROUP))
    scores = Scores(REWARD[:, None], ("r",), (1.0,), VALID, GROUP, numbers, torch.zeros_like(numbers))
    return scores if rows is None else scores.select(rows)


def test_there_are_advantages() -> None:
    assert {"grpo", "rloo"} <= set(names("advantages"))


def test_shape_and_dtype(advantage: Any) -> None:
    got = advantage(_scores())
    assert got.shape[0] == len(GROUP)
    assert got.dtype == torch.float32
    assert got.isfinite().all()


def test_the_order_of_the_batch_does_not_matter(advantage: Any) -> None:
    order = torch.randperm(len(GROUP), generator=torch.Generator().manual_seed(0))
    assert_close(advantage(_scores(order)), advantage(_scores())[order])


@pytest.mark.parametrize("num_processes", [2, 4])
def test_it_is_the_same_after_a_gather_from_several_processes(advantage: Any, num_processes: int) -> None:
    """Whole groups on each process, gathered process by process."""
    index = torch.unique(GROUP, return_inverse=True)[1]
    parts = [torch.nonzero(index % num_processes == rank)[:, 0] for rank in range(num_processes)]
    gathered = advantage(Scores.join([_scores(rows) for rows in parts]))
    assert_close(gathered, advantage(_scores())[torch.cat(parts)])


def test_invalid_samples_get_zero(advantage: Any) -> None:
    assert (advantage(_scores())[~VALID] == 0).all()


def test_degenerate_groups_get_exactly_zero(advantage: Any) -> None:
    """All rewards equal, alone, or the only valid member."""
    got = advantage(_scores())
    assert (got[torch.isin(GROUP, torch.tensor([1, 4, 5]))] == 0).all()
    assert got.abs().sum() > 0


def test_an_empty_batch_is_empty(advantage: Any) -> None:
    assert len(advantage(_scores(torch.zeros(0, dtype=torch.int64)))) == 0


def test_it_can_compare_two(advantage: Any) -> None:
    assert advantage.min_group_size >= 2
