"""The best and the worst of each group, and that nothing else is learned from."""

import torch

from mmrl.advantages.best_worst import BestWorst
from mmrl.core.data import Scores


def scores_of(values: list[float], group: list[int], valid: list[bool]) -> Scores:
    number = torch.arange(len(values))
    column = torch.tensor(values)[:, None]
    return Scores(column, ("r",), (1.0,), torch.tensor(valid), torch.tensor(group), number, torch.zeros_like(number))


def test_the_best_has_one_and_the_worst_minus_one() -> None:
    scores = scores_of([0.2, 0.9, 0.5, 3.0, -1.0, 0.0], [7, 7, 7, 2, 2, 2], [True] * 6)
    assert BestWorst()(scores).tolist() == [-1, 1, 0, 1, -1, 0]
    assert BestWorst().update_mask(scores).tolist() == [True, True, False, True, True, False]


def test_ties_share_a_place_and_equal_groups_have_none() -> None:
    scores = scores_of([1.0, 1.0, 0.0, 0.5, 0.3, 0.3], [0, 0, 0, 0, 1, 1], [True] * 6)
    assert BestWorst()(scores).tolist() == [1, 1, -1, 0, 0, 0]


def test_what_could_not_be_judged_has_no_place() -> None:
    scores = scores_of([float("nan"), 0.4, 0.1, 9.0], [0, 0, 0, 0], [False, True, True, False])
    assert BestWorst()(scores).tolist() == [0, 1, -1, 0]
    assert not BestWorst().update_mask(scores)[[0, 3]].any()
