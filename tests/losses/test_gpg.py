"""GPG against its formula by hand."""

import pytest
import torch
from torch.testing import assert_close

from mmrl.core.contracts import LossBatch
from mmrl.losses.gpg import Gpg
from mmrl.losses.reinforce import Reinforce
from tests.ratios import gradient, normal, ragged, value

LOG_PROB = -normal(0, 6, 3).abs()


def _batch(lengths: list[int]) -> LossBatch:
    """Returns three groups of two; all rewards of the second group are equal."""
    inside = (torch.arange(3) < torch.tensor(lengths)[:, None]).double()
    advantages = torch.tensor([0.5, -0.5, 0.0, 0.0, 0.25, -0.25], dtype=torch.float64)[:, None].expand(6, 3)
    return LossBatch(advantages, inside, torch.tensor([4, 4, 1, 1, 9, 9]), advantages[:, 0])


def test_groups_of_equal_rewards_are_made_up_for_by_the_papers_factor() -> None:
    """B / (B - M) = 6 / 4 for answers of one length."""
    batch = _batch([2] * 6)
    papers = 6 / 4 * -(batch.advantages * LOG_PROB)[:, :2].sum() / 12
    assert_close(value(Gpg(), (LOG_PROB,), batch), papers)


def test_of_ragged_answers_the_tokens_that_teach_are_counted() -> None:
    batch = _batch([3, 1, 2, 2, 1, 2])
    taught = [(0, 3), (1, 1), (4, 1), (5, 2)]
    expected = -sum(float((batch.advantages * LOG_PROB)[row, :n].sum()) for row, n in taught) / 7
    assert value(Gpg(), (LOG_PROB,), batch).item() == pytest.approx(expected)
    coefficients, denominator = Gpg().coefficients(batch)
    assert denominator == 7 and (coefficients[2:4] == 0).all()


def test_where_every_group_teaches_it_is_reinforce() -> None:
    """R-gpg: a sample of advantage 0 in a group that teaches still counts."""
    advantages = torch.tensor([1.0, -1.0, 0.0, 0.5], dtype=torch.float64)
    expected = gradient(Reinforce(normalise="decision"), LOG_PROB[:4], ragged(advantages))
    assert_close(gradient(Gpg(), LOG_PROB[:4], ragged(advantages)), expected)


def test_where_no_group_teaches_there_is_nothing_to_divide_by() -> None:
    coefficients, denominator = Gpg().coefficients(ragged(torch.zeros(4, dtype=torch.float64)))
    assert denominator == 0 and (coefficients == 0).all()
