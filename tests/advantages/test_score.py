"""The score itself, in groups of any size."""

import torch

from mmrl.advantages.score import Score
from mmrl.core.data import Scores


def test_each_valid_sample_has_its_own_total_and_others_nothing() -> None:
    number = torch.arange(4)
    values = torch.tensor([[1.0, 2.0], [0.5, -1.0], [float("nan"), 1.0], [0.0, 0.0]])
    valid = torch.tensor([True, True, False, True])
    scores = Scores(values, ("a", "b"), (1.0, 0.5), valid, torch.tensor([3, 3, 4, 5]), number, torch.zeros(4).long())
    assert Score()(scores).tolist() == [2.0, 0.0, 0.0, 0.0]
    assert Score(baseline=1.5)(scores).tolist() == [0.5, -1.5, 0.0, -1.5]
    assert Score().declaration.min_group_size == 1


def test_a_won_comparison_counts_one_and_a_lost_one_minus_one() -> None:
    """BRPO: win rates against one member of the group, times 2, less 1; the member itself has the mean of its own."""
    rates = torch.tensor([[1.0], [0.0], [0.5], [1.0 - 0.5]])
    number = torch.arange(4)
    valid = torch.ones(4, dtype=torch.bool)
    scores = Scores(rates, ("win_rate",), (2.0,), valid, torch.zeros(4).long(), number, torch.zeros(4).long())
    assert Score(baseline=1.0)(scores).tolist() == [1.0, -1.0, 0.0, 0.0]
