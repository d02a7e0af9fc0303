"""The bonus for rare good samples, by hand."""

import math

import pytest
import torch
from torch.testing import assert_close

from mmrl.advantages.dr_grpo import DrGrpo
from mmrl.advantages.grpo import Grpo
from mmrl.advantages.novelty import Novelty
from mmrl.advantages.process import Process
from mmrl.core.declarations import AdvantageDeclaration
from tests.advantages.scored import NAN, decided, scored

# means -1, -2 and -3: of the group -2, so that eta is e, 1 and 1/e
PATHS = decided(3, 2, 1, log_prob=[[-1.0, -0.5, -1.5], [-3.0, -1.0], [-3.0]])


def test_rare_good_samples_gain_up_to_the_cap_and_bad_ones_nothing() -> None:
    # advantages 1, -2 and 1; 1 - 1/e = 0.632
    got = Novelty(inner=DrGrpo(), scale=0.5, cap=1.0)(scored([3.0, 0.0, 3.0]), PATHS)
    rare = 1 + 0.5 * (1 - math.exp(-1))
    assert_close(got, torch.tensor([[1.0, 1.0, 1.0], [-2.0, -2.0, 0.0], [rare, 0.0, 0.0]]))
    capped = Novelty(inner=DrGrpo(), scale=2.0, cap=0.25)(scored([3.0, 0.0, 3.0]), PATHS)
    assert_close(capped[2, 0], torch.tensor(1.25))


def test_a_rare_bad_sample_is_left_as_it_is() -> None:
    got = Novelty(inner=DrGrpo())(scored([3.0, 3.0, 0.0]), PATHS)
    assert_close(got[:, 0], torch.tensor([1.0, 1.0, -2.0]))


def test_samples_that_could_not_be_judged_enter_no_mean() -> None:
    got = Novelty(inner=DrGrpo(), cap=1.0)(scored([NAN, 2.0, 4.0]), PATHS)  # mean -2.5 of the other two
    assert_close(got[2, 0].item(), 1 + 1 - math.exp(-0.5), atol=1e-6, rtol=0)
    assert not got[0].any()


def test_with_scale_zero_it_is_the_inner_one() -> None:
    scores = scored([3.0, 1.0, 2.0])
    got = Novelty(scale=0.0)(scores, PATHS)
    assert torch.equal(got, torch.where(PATHS.edge >= 0, Grpo()(scores)[:, None], 0.0))


def test_an_inner_advantage_of_decisions_is_sharpened_decision_by_decision() -> None:
    dense = torch.tensor([[1.0, 0.0, 1.0], [0.0, 0.0, NAN], [2.0, NAN, NAN]])
    scores = scored([2.0, 0.0, 2.0], granularities=("token",), dense={"r": dense})
    inner = Process()(scores, PATHS)
    got = Novelty(inner=Process(), cap=10.0)(scores, PATHS)
    bonus = torch.tensor([[0.0], [0.0], [1 - math.exp(-1)]])
    assert_close(got, torch.where((PATHS.edge >= 0) & (inner > 0), inner + torch.minimum(bonus, 10 * inner), inner))
    declared = AdvantageDeclaration.of(Novelty(inner=Process()))
    assert declared.requires == {"log_prob"} and declared.requires_dense_reward


def test_samples_without_decisions_have_none() -> None:
    scores = scored([3.0, 1.0])
    assert Novelty()(scores, decided(0, 0)).shape == (2, 0)
    assert torch.equal(Novelty()(scores), Grpo()(scores))
    assert not Novelty()(scored([0.1] * 3), PATHS).any(), "equal rewards"


@pytest.mark.parametrize("settings", [{"scale": -1.0}, {"cap": -0.1}])
def test_settings_out_of_range_are_refused(settings: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="must be at least 0"):
        Novelty(**settings)  # type: ignore[arg-type]
