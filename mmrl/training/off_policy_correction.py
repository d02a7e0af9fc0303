"""The off-policy correction of samples of an inference engine or of older weights, by the trainer's own log-probs.

Maths: docs/maths/group-relative-losses.md#samples-of-another-engine-or-of-older-weights
"""

from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor

from mmrl.core.config import CorrectionSettings, RolloutSettings
from mmrl.core.contracts import ConfigError, Loss, LossBatch, Modality, Shardable
from mmrl.core.data import Rollout, WeightsName, count_calls
from mmrl.core.declarations import PolicyDeclaration
from mmrl.core.numerics import kl_estimate
from mmrl.core.views import DecisionView
from mmrl.plans.answers import AnswerTree, RethinkingPlan
from mmrl.plans.offline import OfflinePlan
from mmrl.training.processes import Processes
from mmrl.training.update import micro_batches

Kind = Literal["none", "truncated", "masked"]
Level = Literal["token", "sequence"]
_COLUMNS = ("count", "difference", "kl_k1", "kl_k3", "units", "truncated", "masked", "weight", "weight_squared")
_LARGEST = 300.0  # of a log-ratio in the metrics: its square is still a number in float64


def is_sampled_elsewhere(policy: Modality) -> bool:
    """Returns whether an inference engine samples for the policy; the same on all processes."""
    return PolicyDeclaration.of(policy).has_inference_engine


def is_corrected(policy: Modality, loss: Loss, rollout: RolloutSettings) -> bool:
    """Returns whether rollouts are corrected: those of an inference engine, and decisions by older weights."""
    return is_sampled_elsewhere(policy) or (rollout.devices is not None and loss.kind == "decisions")


def refuse_unsampled(policy: Modality, plan: object, where: str, *, is_sharded: bool) -> None:
    """Raises ConfigError for plans that an inference engine, or processes that share the weights, cannot sample.

    These are trees of answers for both, and answers of the data for an engine.
    """
    if isinstance(plan, OfflinePlan) and is_sampled_elsewhere(policy):
        raise ConfigError(f"modality.engine samples answers, and {where} takes those of the data; leave the engine out")
    other = "modality.engine samples" if is_sampled_elsewhere(policy) else "processes that share the weights sample"
    if isinstance(plan, RethinkingPlan) and (is_sampled_elsewhere(policy) or is_sharded):
        raise ConfigError(f"{where}: answers go on behind a trigger, and {other} none that do; use 'autoregressive'")
    if isinstance(plan, AnswerTree) and (is_sampled_elsewhere(policy) or is_sharded):
        raise ConfigError(f"{where} is a tree of answers, and {other} none; use sampler 'autoregressive'")


def importance(log_ratio: Tensor, is_decision: Tensor, level: Level) -> Tensor:
    """Returns importance weights w [B, K] of what one engine sampled and another one learns from.

    w = exp(log p_trainer - log p_engine) of each decision (`token`), or the product of those of the whole sample
    (`sequence`); 1 where there is no decision.

    Args:
        log_ratio: [B, K] log p_trainer - log p_engine. is_decision: [B, K] bool; entries outside may hold anything.
    """
    kept = torch.where(is_decision, log_ratio, torch.zeros_like(log_ratio))
    if level == "sequence":
        kept = kept.sum(1, keepdim=True).expand_as(kept)
    return torch.where(is_decision, kept.exp(), torch.ones_like(kept))


def corrected(weight: Tensor, kind: Kind, cap: float, floor: float) -> Tensor:
    """Returns the factors of the advantages, from importance weights of any shape.

    `none`: 1. `truncated`: min(w, cap) (Espeholt et al. 2018, IMPALA, arXiv 1802.01561, eq. 1; Yao et al. 2025, "Your
    efficient RL framework secretly brings you off-policy RL training"). `masked`: w within [floor, cap], else 0 (Ling
    team 2025, "IcePop", arXiv 2510.18855).
    """
    if kind == "none":
        return torch.ones_like(weight)
    if kind == "truncated":
        return weight.clamp(max=cap)
    return torch.where((weight >= floor) & (weight <= cap), weight, torch.zeros_like(weight))


def mismatch(log_ratio: Tensor, is_decision: Tensor, settings: CorrectionSettings) -> tuple[Tensor, Tensor]:
    """Returns the sums behind `mismatch_metrics`, [9], and the largest |log-ratio| []; float64, on the CPU.

    Arguments as for `importance`. A unit is what has one weight: a decision or a sample.
    """
    ratio = log_ratio[is_decision].double().cpu()
    is_unit = is_decision
    if settings.level == "sequence":
        is_unit = is_decision & (is_decision.cumsum(1) == 1)  # a sample is counted at its first decision
    weight = importance(log_ratio, is_decision, settings.level)[is_unit].double().cpu()
    bounded = weight.clamp(max=torch.tensor(_LARGEST, dtype=torch.float64).exp())  # float32 may have made it inf
    is_cut = weight > settings.cap if settings.kind == "truncated" else torch.zeros_like(weight, dtype=torch.bool)
    applied = corrected(weight, settings.kind, settings.cap, settings.floor)
    seen = (ratio.new_tensor(len(ratio)), ratio.abs().sum(), *(kl_estimate(-ratio, e).sum() for e in ("k1", "k3")))
    used = (ratio.new_tensor(len(weight)), is_cut.sum(), (applied == 0).sum(), bounded.sum(), bounded.square().sum())
    largest = ratio.abs().max() if len(ratio) else ratio.new_zeros(())
    return torch.stack([value.double() for value in (*seen, *used)]), largest


def mismatch_metrics(sums: Tensor, largest: Tensor) -> dict[str, float]:
    """Returns metrics of all processes' sums [9] and largest difference []; empty where there was no decision.

    `engine/difference` and `_max`: |log p_trainer - log p_engine| in nats per decision. `engine/kl_k1`, `_k3`:
    estimates of KL(engine || trainer) per decision. `engine/truncated`, `masked`: shares of the units whose weight was
    cut or became 0. `engine/effective`: (sum w)^2 / (n sum w^2) of the importance weights before they are corrected, 1
    where the engines agree.
    """
    total = dict(zip(_COLUMNS, sums.tolist(), strict=True))
    if not total["count"]:
        return {}
    means = {f"engine/{name}": total[name] / total["count"] for name in ("difference", "kl_k1", "kl_k3")}
    shares = {f"engine/{name}": total[name] / total["units"] for name in ("truncated", "masked")}
    effective = total["weight"] ** 2 / (total["units"] * total["weight_squared"]) if total["weight_squared"] else 0.0
    return {**means, "engine/difference_max": float(largest), **shares, "engine/effective": effective}


def correct(
    policy: Modality,
    rollout: Rollout | None,
    batch: LossBatch | None,
    settings: CorrectionSettings,
    processes: Processes,
    *,
    sampled_by: WeightsName,
    micro_batch: int,
) -> tuple[Rollout | None, LossBatch | None, dict[str, float]]:
    """Returns a rollout that was sampled elsewhere, made fit to learn from. Every process must call it.

    Returned are the rollout with log-probs recomputed by the weights `sampled_by`, the batch with advantages [B, K]
    times the corrected importance weights, and the metrics of the mismatch.
    """
    sums, largest = torch.zeros(len(_COLUMNS), dtype=torch.float64), torch.zeros((), dtype=torch.float64)
    if rollout is None or batch is None:
        with processes.lockstep(), policy.weights(sampled_by), torch.no_grad():
            for _ in range(processes.maximum(0)):  # as many calls as the others', where they share the weights
                assert isinstance(policy, Shardable), "only such policies are sharded"
                policy.dummy_forward()
    else:
        sampled, view = rollout, DecisionView(torch.arange(count_calls(rollout.blocks[0])))
        with processes.lockstep():
            with policy.weights(sampled_by):
                rollout = policy.recompute(sampled, micro_batch)
            log_ratio = _log_ratio(policy, rollout, sampled, view, micro_batch)
        is_decision = (view.weight(rollout).to(log_ratio.device) > 0) & (batch.weight > 0)  # [B, K]
        sums, largest = mismatch(log_ratio, is_decision, settings)
        weight = importance(log_ratio, is_decision, settings.level)
        factor = corrected(weight, settings.kind, settings.cap, settings.floor)
        batch = replace(batch, advantages=batch.advantages * factor)
    gathered = processes.gather([(sums, largest)])
    total = torch.stack([sums for sums, _ in gathered]).sum(0)
    return rollout, batch, mismatch_metrics(total, torch.stack([most for _, most in gathered]).max())


def _log_ratio(policy: Modality, now: Rollout, before: Rollout, view: DecisionView, micro_batch: int) -> Tensor:
    """Returns the log-probs [B, K] that one rollout records less those of the other, by few calls at a time: each may
    have a latent."""
    parts = micro_batches(policy, now, view, micro_batch) or [view]
    ratios = (policy.recorded(now, part).log_ratio(policy.recorded(before, part)) for part in parts)  # type: ignore[union-attr, arg-type]
    return sum(ratios, torch.zeros(()))
