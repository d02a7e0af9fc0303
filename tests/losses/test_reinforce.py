"""REINFORCE against a slow loop, and against GRPO where both must agree."""

import torch
from torch import Tensor
from torch.distributions import Categorical
from torch.testing import assert_close

from mmrl.core.contracts import LossBatch, OutputsByWeights
from mmrl.core.forward_outputs import GaussianDecisions, TokenDecisions
from mmrl.losses.grpo import Grpo
from mmrl.losses.reinforce import Reinforce

ADVANTAGES = torch.tensor([[1.0, -2.0], [0.5, 0.0]], dtype=torch.float64)


def _normal(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def _batch() -> LossBatch:
    return LossBatch(ADVANTAGES, torch.ones_like(ADVANTAGES), torch.tensor([0, 0]), torch.zeros(2))


def _gaussian(mean: Tensor) -> GaussianDecisions:
    call, std = torch.tensor([0, 1, 0, 2]), torch.tensor([0.2, 0.5, 1.0], dtype=torch.float64)
    return GaussianDecisions(mean, std, _normal(1, 4, 5).float(), call, torch.tensor([[0, 1], [2, 3]]), "rms")


def test_terms_are_minus_advantage_times_log_prob() -> None:
    logits, token = _normal(0, 2, 2, 4), torch.tensor([[3, 0], [1, 1]])
    log_prob = Categorical(logits=logits).log_prob(token)
    loss = Reinforce()
    result = loss(loss.measure(OutputsByWeights(TokenDecisions(log_prob))), _batch())
    for row in range(2):
        for column in range(2):
            expected = -float(ADVANTAGES[row, column]) * float(log_prob[row, column])
            assert abs(result.terms[row, column].item() - expected) < 1e-12
    assert_close(result.metrics["log_prob"], log_prob)


def test_at_ratio_one_grpo_has_the_same_gradient() -> None:
    mean = _normal(0, 3, 5).requires_grad_()
    trained, reference = _gaussian(mean), _gaussian(_normal(7, 3, 5))
    gradients = []
    for loss in (Reinforce(kl_coef=0.3), Grpo(kl_coef=0.3)):
        forward_outputs = OutputsByWeights(trained, trained.detach(), reference)
        terms = loss(loss.measure(forward_outputs), _batch()).terms
        gradients.append(torch.autograd.grad(terms.sum(), mean, retain_graph=True)[0])
    assert_close(gradients[0], gradients[1])
    assert gradients[0].norm() > 0


def test_the_mean_gradient_climbs_the_expected_reward() -> None:
    """Every token is tried and weighed by its probability: the gradient is that of -sum p r."""
    logits, reward = _normal(0, 5).requires_grad_(), _normal(1, 5)
    trained = TokenDecisions(logits.log_softmax(-1)[:, None])
    batch = LossBatch(reward[:, None], torch.ones(5, 1), torch.zeros(5, dtype=torch.int64), reward)
    loss = Reinforce()
    terms = loss(loss.measure(OutputsByWeights(trained)), batch).terms[:, 0]
    got = torch.autograd.grad((logits.detach().softmax(-1) * terms).sum(), logits)[0]
    assert_close(got, torch.autograd.grad(-(logits.softmax(-1) * reward).sum(), logits)[0])


def test_old_weights_are_never_asked_for() -> None:
    assert Reinforce().needs == frozenset()
    assert Reinforce(kl_coef=0.1).needs == {"reference"}
    assert Reinforce().old_decay(0) is None
