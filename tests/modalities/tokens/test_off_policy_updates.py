"""Later steps on one rollout: clip, KL and truncated sampling against transformers' own forward and a plain formula."""

import pytest
import torch
from torch import Tensor

from mmrl.core.contracts import LossBatch
from mmrl.core.data import Rollout
from mmrl.core.keys import GroupKey
from mmrl.core.numerics import Normalisation
from mmrl.losses.grpo import Grpo
from mmrl.modalities.vision_language import VisionLanguage
from mmrl.training.processes import Processes
from mmrl.training.update import Updater
from tests import vision_twins

TEMPERATURE, TOP_P = 0.8, 0.9
ADVANTAGES = (-2.0, 1.5, 0.5, 1.0, -0.5, 2.0, -1.0, 0.0, -1.5)
LEFT_OUT = 4  # a sample that no reward could judge


def naive(policy: VisionLanguage, drawn: Rollout, row: int, kept: Tensor | None) -> tuple[Tensor, Tensor]:
    """Log-probs [T] of an answer, one forward over prompt and answer; and the tokens [T, V] that could be drawn."""
    prompt, length = drawn.trace.prompts[int(drawn.prompt[row])], int(drawn.trace.completions.length[row])
    answer = drawn.trace.completions.tokens[row, :length]
    tokens = torch.cat([prompt.tokens, answer])[None]
    kinds = torch.cat([prompt.token_types, torch.zeros(length, dtype=torch.int64)])[None]
    logits = policy.modules()["model"](
        input_ids=tokens, attention_mask=torch.ones_like(tokens), mm_token_type_ids=kinds, use_cache=False,
        **prompt.media,
    ).logits[0, len(prompt.tokens) - 1 : -1]  # fmt: skip
    banned = torch.zeros(logits.shape[1], dtype=torch.bool)
    banned[list(policy.banned)] = True
    logits = logits.masked_fill(banned, -torch.inf) / TEMPERATURE
    if kept is None:
        probs, order = logits.softmax(1).sort(descending=True)
        kept = torch.zeros_like(logits, dtype=torch.bool)
        kept.scatter_(1, order, probs.cumsum(1) - probs < TOP_P)
    log_probs = logits.masked_fill(~kept, -torch.inf).log_softmax(1)
    return log_probs.gather(1, answer[:, None])[:, 0], kept


def grpo_by_hand(log_prob: Tensor, old: Tensor, advantage: float) -> Tensor:
    """-min(rho A, clip(rho) A) + 0.3 k3, where the reference is the old policy."""
    ratio = (log_prob - old).exp()
    surrogate = torch.minimum(ratio * advantage, ratio.clamp(0.95, 1.1) * advantage)
    return -surrogate + 0.3 * (1 / ratio - 1 + ratio.log())


def shares(by: Normalisation, length: dict[int, int], group: list[int]) -> dict[int, float]:
    """What a token of each sample counts."""
    used = list(length)
    if by == "decision":
        return {row: 1 / sum(length.values()) for row in used}
    if by == "sample":
        return {row: 1 / length[row] / len(used) for row in used}
    if by == "constant":
        return {row: 1 / 7 / len(used) for row in used}
    in_group = {row: sum(length[other] for other in used if group[other] == group[row]) for row in used}
    return {row: 1 / in_group[row] / len({group[other] for other in used}) for row in used}


def gradients(policy: VisionLanguage) -> Tensor:
    """[n]: of all trained tensors, which are then cleared."""
    found = [torch.zeros_like(p) if p.grad is None else p.grad.clone() for p in policy.weights.parameters.values()]
    policy.modules()["model"].zero_grad()
    return torch.cat([grad.flatten() for grad in found])


def moved(policy: VisionLanguage) -> None:
    """Other weights than those that drew the rollout, near enough that some tokens are clipped and some are not."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in policy.weights.parameters.values():
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.add_(0.02 * noise * parameter.std().nan_to_num(0))


@pytest.mark.slow
@pytest.mark.parametrize("by", ["decision", "sample", "constant", "group"])
def test_an_off_policy_update_is_the_gradient_of_the_formula(by: Normalisation) -> None:
    policy = vision_twins.policy()
    policy.weights.keep("reference")
    drawn = vision_twins.rollout(policy, 6, temperature=TEMPERATURE, top_p=TOP_P)
    rows = [row for row in range(len(ADVANTAGES)) if row != LEFT_OUT]
    with torch.no_grad():
        before = {row: naive(policy, drawn, row, None) for row in rows}
    moved(policy)
    length = {row: int(drawn.trace.completions.length[row]) for row in rows}
    share, total, is_clipped = shares(by, length, drawn.group.tolist()), 0.0, []
    for row in rows:
        old, kept = before[row]
        log_prob, _ = naive(policy, drawn, row, kept)
        value = share[row] * grpo_by_hand(log_prob, old, ADVANTAGES[row]).sum()
        value.backward()
        total += float(value.detach())
        ratio = (log_prob - old).exp()
        is_clipped += ((ratio > 1.1) if ADVANTAGES[row] > 0 else (ratio < 0.95)).tolist()
    assert any(is_clipped) and not all(is_clipped)
    expected = gradients(policy)

    loss = Grpo(clip_low=0.05, clip_high=0.1, kl_coef=0.3, kl="k3", normalise=by, constant=7.0)
    is_used = torch.tensor([float(row != LEFT_OUT) for row in range(len(ADVANTAGES))])
    batch = LossBatch(torch.tensor(ADVANTAGES)[:, None], is_used[:, None], drawn.group, torch.zeros(len(ADVANTAGES)))
    for micro_batch in (3, 9):
        views = loss.views(drawn, torch.tensor(rows), GroupKey(0, 0, 0))
        found = Updater(policy, loss, Processes(), micro_batch).accumulate(drawn, views, batch, "recorded")
        assert found is not None
        assert float((gradients(policy) - expected).norm() / expected.norm()) < 1e-4
        assert float(found.totals["loss/total"]) == pytest.approx(total, rel=1e-4)
