"""AsymRE against its gradient by hand, and where its policy ends."""

import pytest
import torch
from torch.testing import assert_close

from mmrl.core.contracts import LossBatch, OutputsByWeights
from mmrl.core.forward_outputs import TokenDecisions
from mmrl.losses.asymre import Asymre
from mmrl.losses.reinforce import Reinforce
from tests.ratios import ADVANTAGES, LENGTHS, gradient, normal, ragged

LOG_PROB = -normal(0, 4, 3).abs()


def test_the_gradient_is_that_of_reinforce_with_another_baseline() -> None:
    got = gradient(Asymre(baseline_shift=-0.3), LOG_PROB, ragged())
    for row, length in enumerate(LENGTHS):
        assert got[row, :length].tolist() == pytest.approx([-(float(ADVANTAGES[row]) + 0.3) / 4] * length)
        assert (got[row, length:] == 0).all()


def test_without_a_shift_it_is_reinforce() -> None:
    """R-asymre."""
    expected = gradient(Reinforce(normalise="constant"), LOG_PROB, ragged())
    assert_close(gradient(Asymre(baseline_shift=0.0), LOG_PROB, ragged()), expected)


def _descend(shift: float) -> torch.Tensor:
    """Returns probabilities of 4 answers after many steps on the same samples of a uniform policy."""
    reward = torch.tensor([1.0, 0.0, 0.0, 1.0], dtype=torch.float64)
    advantages = (reward - reward.mean())[:, None]
    batch = LossBatch(advantages, torch.ones_like(advantages), torch.zeros(4, dtype=torch.int64), reward)
    logits = torch.tensor([0.1, 0.0, 0.0, 0.0], dtype=torch.float64, requires_grad=True)
    loss = Asymre(baseline_shift=shift)
    for _ in range(300):
        measures = loss.measure(OutputsByWeights(TokenDecisions(logits.log_softmax(0)[:, None])))
        logits.grad = None
        loss(measures, batch).terms.mean().backward()
        with torch.no_grad():
            assert logits.grad is not None
            logits -= logits.grad
    return logits.detach().softmax(0)


@pytest.mark.slow
def test_below_the_mean_reward_the_policy_keeps_both_good_answers() -> None:
    """Its limit is (r - V) over the good ones; a baseline above the mean leaves it one answer."""
    kept, collapsed = _descend(-0.5), _descend(0.3)
    assert_close(kept, torch.tensor([0.5, 0.0, 0.0, 0.5], dtype=torch.float64), rtol=0, atol=0.02)
    assert collapsed.max() > 0.99
