"""Common properties of the losses on likelihood ratios, and the cases in which one loss is another."""

import math

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from mmrl.core.contracts import OutputsByWeights
from mmrl.core.forward_outputs import TokenDecisions
from mmrl.core.numerics import Normalisation
from mmrl.losses.base.ratio import RatioLoss, path_mean, path_sum, ratio_of
from mmrl.losses.cispo import Cispo
from mmrl.losses.flow_dppo import FlowDppo
from mmrl.losses.gmpo import Gmpo
from mmrl.losses.gpg import Gpg
from mmrl.losses.grpo import Grpo
from mmrl.losses.gspo import Gspo
from mmrl.losses.reinforce import Reinforce
from mmrl.losses.sapo import Sapo
from mmrl.losses.topr import Topr
from tests.parameters import in_one_test
from tests.ratios import ADVANTAGES, INSIDE, LENGTHS, gradient, log_ratios, normal, ragged, value

FAMILY = (Grpo, Gspo, Cispo, Sapo, Gmpo, Topr)


def _policy_gradient(normalise: Normalisation) -> Tensor:
    """Returns the gradient of -A log_prob by the log-probs, answer by answer."""
    expected = torch.zeros(INSIDE.shape, dtype=torch.float64)
    for row, length in enumerate(LENGTHS):
        divisor = {"sample": len(LENGTHS) * length, "decision": sum(LENGTHS)}.get(normalise, len(LENGTHS))
        expected[row, :length] = -ADVANTAGES[row] / divisor
    return expected


@pytest.mark.parametrize("normalise", ["sample", "decision", "constant"])
@pytest.mark.parametrize("kind", FAMILY)
def test_at_ratio_one_all_have_the_policy_gradient(kind: type[RatioLoss], normalise: Normalisation) -> None:
    """With the weights each normaliser declares (docs/maths/group-relative-losses.md#ratio-and-clip)."""
    got = gradient(kind(normalise=normalise), torch.zeros(INSIDE.shape, dtype=torch.float64), ragged())
    assert_close(got, _policy_gradient(normalise))


def test_at_ratio_one_a_mask_has_it_too_and_so_has_what_knows_no_ratio() -> None:
    nothing = torch.zeros(INSIDE.shape, dtype=torch.float64)
    assert_close(gradient(FlowDppo(), nothing, ragged(), nothing), _policy_gradient("sample"))
    for loss in (Reinforce(normalise="decision"), Gpg()):
        assert_close(gradient(loss, nothing, ragged()), _policy_gradient("decision"))


@in_one_test("kind", FAMILY)
def test_the_ratio_is_new_to_old_and_only_the_trained_weights_get_a_gradient(kind: type[RatioLoss]) -> None:
    new, old = normal(0, 4, 3).requires_grad_(), normal(1, 4, 3).requires_grad_()
    loss = kind()
    measures = loss.measure(OutputsByWeights(TokenDecisions(new), TokenDecisions(old.detach())))
    assert len(measures) == 1
    assert_close(measures[0].detach(), (new - old).detach())
    assert loss.needs == {"old"} and loss.declaration.requires == frozenset()


@pytest.mark.parametrize("kind", FAMILY)
@pytest.mark.parametrize("log_ratio", [200.0, -200.0])
def test_huge_log_ratios_leave_a_finite_loss_and_gradient(kind: type[RatioLoss], log_ratio: float) -> None:
    batch = ragged(ADVANTAGES.float())
    got = gradient(kind(), INSIDE * torch.tensor(log_ratio), batch)
    assert got.isfinite().all()
    assert value(kind(), (INSIDE * torch.tensor(log_ratio),), batch).isfinite()


def test_equal_clips_make_dapo_grpo() -> None:
    """R-dapo: of answers of one length, which both normalisers count alike."""
    inside = torch.ones(4, 3, dtype=torch.bool)
    batch, log_ratio = ragged(ADVANTAGES, inside), log_ratios(inside=inside)
    dapo, grpo = Grpo(clip_low=0.2, clip_high=0.2, normalise="decision"), Grpo(clip_low=0.2, clip_high=0.2)
    assert_close(gradient(dapo, log_ratio, batch), gradient(grpo, log_ratio, batch))
    higher = Grpo(clip_low=0.2, clip_high=0.28, normalise="decision")
    between = torch.full((4, 3), math.log(1.25), dtype=torch.float64)  # clipped by one of the two
    assert (gradient(dapo, between, batch)[0] == 0).all() and (gradient(higher, between, batch)[0] != 0).all()


@pytest.mark.parametrize("kind", [Gspo, Gmpo])
def test_on_answers_of_one_token_those_of_whole_answers_are_grpo(kind: type[RatioLoss]) -> None:
    """R-gspo, R-gmpo."""
    inside = torch.ones(4, 1, dtype=torch.bool)
    batch, log_ratio = ragged(ADVANTAGES, inside), torch.tensor([[0.5], [-0.5], [0.1], [0.6]], dtype=torch.float64)
    if kind is Gspo:
        loss: RatioLoss = Gspo(clip_low=0.2, clip_high=0.3)
        grpo = Grpo(clip_low=0.2, clip_high=0.3)
    else:
        loss = Gmpo(clip_low=0.2, clip_high=0.3)
        grpo = Grpo(clip_low=1 - math.exp(-0.2), clip_high=math.exp(0.3) - 1)
    expected = gradient(grpo, log_ratio, batch)
    assert_close(gradient(loss, log_ratio, batch), expected)
    assert (expected == 0).sum() == 2
    assert_close(value(loss, (log_ratio,), batch), value(grpo, (log_ratio,), batch))


def test_copying_every_answer_leaves_the_gradient_of_each_normaliser_as_it_is() -> None:
    """Each copy carries half (docs/maths/group-relative-losses.md#what-a-sum-is-divided-by)."""
    for normalise in ("decision", "sample", "group", "constant"):
        loss = Grpo(clip_low=0.2, clip_high=0.2, normalise=normalise, constant=3.0)
        one = gradient(loss, log_ratios(), ragged())
        doubled = ragged(ADVANTAGES.repeat(2), INSIDE.repeat(2, 1))
        two = gradient(loss, log_ratios().repeat(2, 1), doubled)
        assert_close(two[:4] + two[4:], one)


def test_answers_of_one_length_are_counted_alike_by_every_normaliser() -> None:
    """The constant is the length (docs/maths/group-relative-losses.md#what-a-sum-is-divided-by)."""
    inside = torch.ones(4, 3, dtype=torch.bool)
    batch, log_ratio = ragged(ADVANTAGES, inside), log_ratios(inside=inside)
    losses = [Grpo(normalise=n, constant=3.0) for n in ("decision", "sample", "group", "constant")]
    for loss in losses[1:]:
        assert_close(gradient(loss, log_ratio, batch), gradient(losses[0], log_ratio, batch))


def test_sums_and_means_over_a_path_count_shared_decisions_wholly() -> None:
    values = torch.tensor([[1.0, 2.0, 100.0], [4.0, 50.0, 100.0], [9.0, 9.0, 9.0]])
    weight = torch.tensor([[0.5, 1.0, 0.0], [0.5, 0.0, 0.0], [0.0, 0.0, 0.0]])
    assert path_sum(values, weight).tolist() == [[3.0] * 3, [4.0] * 3, [0.0] * 3]
    assert path_mean(values, weight).tolist() == [[1.5] * 3, [4.0] * 3, [0.0] * 3]


def test_a_ratio_is_bounded_above() -> None:
    assert ratio_of(torch.tensor([0.0, 1000.0])).tolist() == pytest.approx([1.0, math.exp(20)])
