"""The first update of a vision-language policy is the policy gradient, whatever is shared and however it is cut."""

from typing import Any

import pytest
import torch
from torch import Tensor

from mmrl.core.contracts import OutputsByWeights
from mmrl.core.data import Rollout
from mmrl.core.keys import GroupKey
from mmrl.core.numerics import Normalisation
from mmrl.core.views import DecisionView
from mmrl.losses.grpo import Grpo
from mmrl.losses.reinforce import Reinforce
from mmrl.modalities.loading.lora import Lora
from mmrl.modalities.vision_language import VisionLanguage
from mmrl.training.processes import Processes
from mmrl.training.update import Updater
from tests import vision_twins
from tests.parameters import slow_but
from tests.toys import loss_batch

NORMALISATIONS: tuple[Normalisation, ...] = ("decision", "sample", "group", "constant")


def gradient(policy: VisionLanguage, drawn: Rollout, loss: Any, micro_batch: int) -> Tensor:
    """Of the trained tensors, by the engine's own accumulation over micro-batches."""
    policy.modules()["model"].zero_grad()
    views = loss.views(drawn, torch.arange(drawn.num_samples), GroupKey(0, 0, 0))
    assert Updater(policy, loss, Processes(), micro_batch).accumulate(drawn, views, loss_batch(drawn), "recorded")
    return torch.cat([p.grad.flatten() for p in policy.weights.parameters.values() if p.grad is not None])


def slow_gradient(policy: VisionLanguage, drawn: Rollout, by: Normalisation, constant: float) -> Tensor:
    """Of -sum(share * advantage * log p), one answer at a time; the share of a token as the normalisation says."""
    policy.modules()["model"].zero_grad()
    length, group = drawn.trace.completions.length.tolist(), drawn.group.tolist()
    advantages, count = loss_batch(drawn).advantages[:, 0].tolist(), len(length)
    in_group = [sum(n for n, other in zip(length, group, strict=True) if other == own) for own in group]
    share = {
        "decision": [1 / sum(length)] * count,
        "sample": [1 / n / count for n in length],
        "group": [1 / n / len(set(group)) for n in in_group],
        "constant": [1 / constant / count] * count,
    }[by]
    for row in range(count):
        call = int(drawn.blocks[0].call[row, 0])
        log_prob = policy.forward(drawn, DecisionView(torch.tensor([call]))).values[row, : length[row]]
        (-share[row] * advantages[row] * log_prob.sum()).backward()
    return torch.cat([p.grad.flatten() for p in policy.weights.parameters.values() if p.grad is not None])


@pytest.mark.parametrize("loss", slow_but([Grpo, Reinforce], Grpo))
@pytest.mark.parametrize("by", slow_but(NORMALISATIONS, "group"))
def test_the_first_update_is_the_policy_gradient(by: Normalisation, loss: Any) -> None:
    policy = vision_twins.policy()
    drawn = vision_twins.rollout(policy, 6, top_p=0.9)
    expected = slow_gradient(policy, drawn, by, 6.0)
    for micro_batch in (2, 9):
        found = gradient(policy, drawn, loss(normalise=by, constant=6.0), micro_batch)
        assert float((found - expected).norm() / expected.norm()) < 2e-5


@pytest.mark.slow
@pytest.mark.parametrize("settings", [{}, {"lora": Lora(rank=2, alpha=4)}], ids=["full", "lora"])
def test_at_the_first_update_the_ratio_is_one_and_the_divergence_zero(settings: Any) -> None:
    policy = vision_twins.policy(**settings)
    policy.weights.keep("reference")
    drawn = vision_twins.rollout(policy, 6, temperature=0.7, top_k=50)
    view = DecisionView(torch.arange(9))
    with policy.weights("reference"), torch.no_grad():
        reference = policy.forward(drawn, view)
    trained = policy.forward(drawn, view)
    ratio = trained.log_ratio(policy.recorded(drawn, view)).exp()
    torch.testing.assert_close(ratio, torch.ones_like(ratio), rtol=0, atol=1e-5)
    loss = Grpo(kl_coef=1.0, kl="k3")
    *_, divergence = loss.measure(OutputsByWeights(trained, policy.recorded(drawn, view), reference))
    assert divergence.requires_grad and float(divergence.detach().abs().max()) < 1e-10
