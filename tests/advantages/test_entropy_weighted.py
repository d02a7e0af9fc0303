"""GTPO and GRPO-S by slow loops over positions and answers."""

import math
import statistics

import pytest
import torch
from torch.testing import assert_close

from mmrl.advantages.dr_grpo import DrGrpo
from mmrl.advantages.entropy_weighted import EntropyWeighted
from mmrl.advantages.grpo import Grpo
from mmrl.advantages.remax import Remax
from mmrl.core.declarations import AdvantageDeclaration
from tests.advantages.scored import NAN, decided, scored

ENTROPY = [[0.2, 1.0, 0.5], [0.6, 0.1], [0.4, 0.8, 0.3], [1.5, 0.7], [0.9]]
REWARD = [2.0, 2.0, 0.0, 0.0, 0.0]  # two good answers and three bad ones
PATHS = decided(3, 2, 3, 2, 1, entropy=ENTROPY)
PLAIN = Grpo(epsilon=0.0, clip=None)


def _shaped(weight: float) -> list[list[float]]:
    """Returns equations 3 and 5: R + weight d H / sum H of good answers, R - weight h (1 / H) / sum (1 / H) of bad."""
    rows = []
    for n, row in enumerate(ENTROPY):
        sign, side = (1, [0, 1]) if REWARD[n] > 1 else (-1, [2, 3, 4])
        values = []
        for t, own in enumerate(row):
            others = [ENTROPY[m][t] ** sign for m in side if t < len(ENTROPY[m])]
            values.append(REWARD[n] + sign * weight * len(others) * own**sign / sum(others))
        rows.append(values)
    return rows


def _normalised(rows: list[list[float]]) -> torch.Tensor:
    every = [value for row in rows for value in row]
    mean, std = statistics.fmean(every), statistics.pstdev(every)
    return torch.tensor([[*((v - mean) / std for v in row), *[0.0] * (3 - len(row))] for row in rows])


def test_tokens_have_the_rewards_of_the_equations_and_are_compared_with_their_group() -> None:
    for weight in (0.1, 0.7):
        got = EntropyWeighted(inner=PLAIN, entropy_weight=weight, epsilon=1e-12)(scored(REWARD), PATHS)
        assert_close(got, _normalised(_shaped(weight)))


def test_by_sides_tokens_are_compared_with_those_of_their_kind() -> None:
    got = EntropyWeighted(inner=PLAIN, statistics="sides", epsilon=1e-12)(scored(REWARD), PATHS)
    rows = _shaped(0.1)
    assert_close(got, torch.cat([_normalised(rows[:2]), _normalised(rows[2:])]), rtol=1e-4, atol=1e-4)


def test_answers_have_the_share_of_their_mean_entropy() -> None:
    mean = [statistics.fmean(row) for row in ENTROPY]
    good = [2 + 0.3 * 2 * h / (mean[0] + mean[1]) for h in mean[:2]]
    bad = [-0.3 * 3 * (1 / h) / sum(1 / other for other in mean[2:]) for h in mean[2:]]
    got = EntropyWeighted(inner=DrGrpo(), level="sequence", entropy_weight=0.3, epsilon=1e-12)(scored(REWARD), PATHS)
    centre = statistics.fmean(good + bad)
    assert_close(got, torch.tensor([value - centre for value in good + bad]))


def test_the_shares_of_a_position_add_up_to_the_number_of_its_answers() -> None:
    """What one answer has more at a position, the others of its kind have less."""
    loss = EntropyWeighted(inner=DrGrpo(), entropy_weight=1.0)
    share = loss._share(
        PATHS.facts["entropy"].double(), PATHS.edge >= 0, torch.tensor(REWARD) > 1, torch.zeros(5).long()
    )
    assert share[:2].sum(0).tolist() == pytest.approx([2, 2, 1])
    assert share[2:].sum(0).tolist() == pytest.approx([3, 2, 1])


def test_without_weight_it_is_the_inner_one() -> None:
    """R-entropy_weighted."""
    reward = [0.3, 0.9, 0.1, 0.4, 0.4]
    got = EntropyWeighted(level="sequence", entropy_weight=0.0)(scored(reward), PATHS)
    assert_close(got, Grpo()(scored(reward)))


def test_a_group_of_one_kind_teaches_nothing_and_groups_do_not_mix() -> None:
    twice = decided(3, 2, 3, 2, 1, 2, 2, entropy=[*ENTROPY, [0.1, 0.2], [0.3, 0.4]])
    made = scored([*REWARD, 1.0, 1.0], [0, 0, 0, 0, 0, 3, 3])
    got = EntropyWeighted(inner=PLAIN)(made, twice)
    assert not got[5:].any()
    assert_close(got[:5], EntropyWeighted(inner=PLAIN)(scored(REWARD), PATHS))
    assert EntropyWeighted(positive_above=0.5)(made, twice)[5:].abs().sum() == 0


def test_a_distribution_without_entropy_has_an_equal_share() -> None:
    paths = decided(1, 1, 1, entropy=[[0.0], [0.0], [0.0]])
    got = EntropyWeighted(inner=DrGrpo(), entropy_weight=0.5)(scored([1.0, 1.0, 0.0]), paths)
    assert got[:, 0].tolist() == pytest.approx([2 / 3, 2 / 3, -4 / 3])  # of rewards 1.5, 1.5 and -0.5
    assert math.isfinite(float(EntropyWeighted()(scored([1.0, NAN, 0.0]), paths).sum()))


def test_it_declares_what_it_needs() -> None:
    assert EntropyWeighted().declaration == AdvantageDeclaration(requires=frozenset({"entropy"}), is_per_decision=True)
    assert not EntropyWeighted(level="sequence").declaration.is_per_decision
    with pytest.raises(ValueError, match="must compare the totals"):
        EntropyWeighted(inner=Remax())
