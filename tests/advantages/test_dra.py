"""DRA against a slow loop over embeddings."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import normalize
from torch.testing import assert_close

from mmrl.advantages.best_worst import BestWorst
from mmrl.advantages.dr_grpo import DrGrpo
from mmrl.advantages.dra import Dra
from mmrl.advantages.grpo import Grpo
from mmrl.advantages.maxrl import Maxrl
from mmrl.advantages.rloo import Rloo
from mmrl.advantages.score import Score
from mmrl.advantages.seed_grpo import SeedGrpo
from mmrl.core.data import Scores
from mmrl.core.plugins import build
from mmrl.system.errors import ConfigError, RunError

GROUP = torch.tensor([4, 4, 4, 4, 1, 1, 1, 6])
REWARD = torch.tensor([1.0, 1.0, 0.0, 0.5, 0.2, 0.9, 0.4, 1.0])
EMBEDDING = normalize(torch.rand(8, 3, generator=torch.Generator().manual_seed(0)), dim=1)  # cosines above 0


def scores(different: Tensor | None = None) -> Scores:
    """With 1 - the mean cosine to the others of the group."""
    if different is None:
        same = (GROUP[:, None] == GROUP) & ~torch.eye(8, dtype=torch.bool)
        different = 1 - (EMBEDDING @ EMBEDDING.T * same).sum(1) / same.sum(1).clamp(min=1)
    numbers, valid = torch.arange(8), torch.ones(8, dtype=torch.bool)
    values, names = torch.stack([REWARD, different], 1), ("r", "response_diversity")
    return Scores(values, names, (1.0, 0.0), valid, GROUP, numbers, numbers * 0)


def test_rewards_are_divided_by_the_rows_of_the_similarity_matrix() -> None:
    """The authors' code: row sums, a sample's similarity 1 to itself among them."""
    adjusted = []
    for row in range(7):
        members = [other for other in range(8) if GROUP[other] == GROUP[row]]
        total = sum(float(EMBEDDING[row] @ EMBEDDING[other]) for other in members)
        adjusted.append(float(REWARD[row]) / total)
    expected = torch.tensor(adjusted)
    expected[:4] -= expected[:4].mean()
    expected[4:] -= expected[4:].mean()
    assert_close(Dra(inner=DrGrpo())(scores())[:7], expected)


def test_of_two_equal_rewards_the_one_that_others_share_is_worth_less() -> None:
    got = Dra(inner=DrGrpo())(scores(torch.tensor([0.1, 0.8, 0.1, 0.1, 0.5, 0.5, 0.5, 0.0])))
    assert got[0] < got[1]


def test_where_all_are_equally_different_the_normalised_advantage_is_the_inner_one() -> None:
    inner: Any = Grpo(epsilon=0.0)
    assert_close(Dra(inner=inner)(scores(torch.full((8,), 0.3))), inner(scores()), rtol=1e-5, atol=1e-6)


def test_a_group_whose_members_are_opposites_keeps_its_rewards() -> None:
    """Of four rewards 1, 1, 0, 0 with a mean cosine of -0.4: 1 / (1 + 3 * -0.4) = -5 would be worse than 0."""
    opposite = torch.tensor([1.4, 2.0, 1.4, 1.0 + 1 / 3, 0.5, 0.5, 0.5, 0.0])
    rewards = replace(scores(opposite), values=torch.stack([torch.tensor([1.0, 1, 0, 0, 1, 1, 0, 1]), opposite], 1))
    got = Dra(inner=DrGrpo())(rewards)
    assert got[:4].tolist() == [0.5, 0.5, -0.5, -0.5]
    assert_close(got[4:7], torch.tensor([1 / 6, 1 / 6, -1 / 3]))  # 1 / (1 + 2 * 0.5), less their mean 1 / 3
    assert got[7] == 0


def test_of_a_group_of_copies_each_has_its_share() -> None:
    got = Dra(inner=DrGrpo())(scores(torch.zeros(8)))
    assert_close(got[:4], torch.tensor([1.0, 1.0, 0.0, 0.5]) / 4 - 0.15625)


def test_samples_with_nothing_in_common_keep_their_rewards() -> None:
    assert_close(Dra(inner=DrGrpo())(scores(torch.ones(8))), DrGrpo()(scores()))


@pytest.mark.parametrize("inner", [Grpo(), Rloo(), Maxrl()])
def test_a_sample_whose_diversity_is_not_known_changes_nothing_for_the_others(inner: Any) -> None:
    """A reward that is only watched may fail at a valid sample."""
    made, others = scores(), torch.tensor([0, 2, 3, 4, 5, 6, 7])
    lacking = made.values.clone()
    lacking[1, 1] = torch.nan
    got = Dra(inner=inner)(replace(made, values=lacking))
    assert got[1] == 0 and got.abs().sum() > 0
    assert_close(got[others], Dra(inner=inner)(made.select(others)))
    assert Dra(inner=inner).update_mask(replace(made, values=lacking)).tolist() == [True, False, *[True] * 6]


def test_what_is_kept_is_what_the_inner_one_keeps_of_the_divided_rewards() -> None:
    made: Any = scores(torch.tensor([0.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0]))
    inner: Any = BestWorst()
    assert inner.update_mask(made)[:4].tolist() == [True, True, True, False]  # of rewards 1, 1, 0, 0.5
    assert Dra(inner=inner).update_mask(made)[:4].tolist() == [False, True, True, False]  # 0.25, 1, 0, 0.5
    assert torch.equal(Dra(inner=inner).update_mask(made), Dra(inner=inner)(made) != 0)


def test_wrong_inner_advantages_and_a_missing_reward_are_refused() -> None:
    wrong: tuple[Any, ...] = (SeedGrpo(), Score())
    for inner in wrong:
        with pytest.raises(ValueError, match="inner must compare the totals of a group"):
            Dra(inner=inner)
    with pytest.raises(RunError, match="reads the reward 'diversity', got r, response_diversity"):
        Dra(diversity="diversity")(scores())


@pytest.mark.parametrize("inner", [3, 0.5, True])
def test_an_inner_advantage_that_is_a_number_is_refused(inner: Any) -> None:
    with pytest.raises(ConfigError, match=rf"advantages.dra.inner is a section such as .* of advantages, got {inner}"):
        build("advantages", {"name": "dra", "inner": inner})
