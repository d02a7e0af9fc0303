"""What rewards need of the prompts, the samples and the decisions of a run, checked before anything is loaded."""

import math
from collections.abc import Sequence

import torch

from mmrl.core.config import RunConfig
from mmrl.core.contracts import (
    AdapterScoring,
    Advantage,
    Assessing,
    BestChecking,
    ConfigError,
    Loss,
    Modality,
    SampleKind,
)
from mmrl.core.data import Prompt, Scores
from mmrl.core.declarations import MixDeclaration, PolicyDeclaration, RewardDeclaration
from mmrl.core.dense import DENSE
from mmrl.core.likelihoods import RIGHT_ANSWERS, THOUGHT, TURN_ANSWERS, adapters_read, thought_needs, weights_read
from mmrl.core.reward_batches import CONTROLS, check_images, check_makes
from mmrl.parsing.coordinates import UNKNOWN_UNIT
from mmrl.plans.groups import GroupPlan
from mmrl.plans.offline import OfflinePlan
from mmrl.scoring.scorer import RewardTerm, Scorer


def check_rewards(modality: str, scorer: Scorer, makes: frozenset[str], sets: Sequence[Sequence[Prompt]]) -> None:
    """Raises ConfigError for rewards that need outputs or images that are not there; targets were checked when read."""
    for term in scorer.terms:
        check_makes(term.name, term.reward, makes, modality)
        for prompts in sets:
            check_images(term.name, term.reward, prompts)


def check_thought(config: RunConfig, policy: Modality, scorer: Scorer, loss: Loss, plan: GroupPlan) -> None:
    """Raises ConfigError for rewards that need what the policy thinks of its answers where that cannot be known."""
    kept = {"averaged": config.averaging is not None, "old": loss.old_decay(0) is not None}
    for term in scorer.terms:
        needs = thought_needs(term.reward.needs)
        if not needs:
            continue
        said = f"reward {term.name!r} needs {' and '.join(needs)}"
        if adapters_read(needs):
            _check_adapters(config, policy, said)
        if set(needs) & set(THOUGHT) and not isinstance(policy, Assessing):
            raise ConfigError(f"{said}: how likely a policy finds answers, and {config.modality['name']!r} writes none")
        if config.sharding == "full":
            raise ConfigError(f"{said}, which is not read by sharded weights; set sharding to none")
        if "likelihoods.sampled" in needs and isinstance(plan, OfflinePlan):
            raise ConfigError(f"{said}: log-probs that the rollout recorded, and these answers are of the data")
        if policy.sample_kind == "turns" and set(needs) & set(RIGHT_ANSWERS):
            raise ConfigError(f"{said}: the right answer to a question, and episodes have turns")
        if policy.sample_kind != "turns" and set(needs) & set(TURN_ANSWERS):
            raise ConfigError(f"{said}: the right answer before each turn, and {config.modality['name']!r} has none")
        for which in weights_read(needs):
            if not kept.get(which, True):
                hint = "set averaging.decay" if which == "averaged" else "take a loss that averages them"
                raise ConfigError(f"{said}, and the run keeps no {which} weights; {hint}")


def _check_adapters(config: RunConfig, policy: Modality, said: str) -> None:
    """Raises ConfigError where the policy's base cannot carry a reward model."""
    if not isinstance(policy, AdapterScoring):
        raise ConfigError(f"{said}: a reward model on the policy's base, and {config.modality['name']!r} carries none")
    if config.modality.get("lora") is None:
        raise ConfigError(f"{said}: a reward model on the policy's frozen base, and all weights are trained; set lora")


def check_coordinates(policy: Modality, scorers: Sequence[Scorer]) -> None:
    """Raises ConfigError where actions or rewards read coordinates, and the policy's unit of them is unknown."""
    are_read = "actions" in policy.makes or any(
        "canvases" in term.reward.needs for one in scorers for term in one.terms
    )
    if are_read and not PolicyDeclaration.of(policy).has_coordinates:
        raise ConfigError(UNKNOWN_UNIT)


def check_evaluated(scorer: Scorer) -> None:
    """Raises ConfigError for an evaluation by relative rewards alone, whose mean in every group is always the same."""
    counted = [term for term in scorer.terms if term.counts]
    if counted and all(RewardDeclaration.of(term.reward).is_relative for term in counted):
        raise ConfigError(
            f"reward {counted[0].name!r} compares the samples of a group, and has the same mean in all groups: "
            "an evaluation by it shows nothing; give evaluation.rewards that score single samples, such as the "
            "reward inside, or set evaluation to null"
        )


def check_best(scorer: Scorer, advantage: Advantage, name: str) -> None:
    """Raises ConfigError for an advantage whose best total is not the one that rewards, weights and mix can give."""
    if isinstance(advantage, BestChecking):
        try:
            advantage.check_best(best_totals(scorer))
        except ValueError as error:
            raise ConfigError(f"advantage {name!r}: {error}") from error


def best_totals(scorer: Scorer) -> dict[str, tuple[float, float]]:
    """Returns the largest possible totals at both ends of the weights' schedules, by the rewards that they sum.

    Infinite where a reward has no upper end, and where a mix only compares the samples of a group.
    """
    terms, mix = [term for term in scorer.terms if term.counts], MixDeclaration.of(scorer.mix)
    if mix.is_relative:
        return {"mix": (math.inf, math.inf)}
    if mix.is_of_advantages:
        return {f"reward {term.name!r}": (_most(term, 1.0),) * 2 for term in terms}
    ends = [tuple(term.ends[place] for term in scorer.terms) for place in (0, 1)]
    return {"total": (_total(scorer, ends[0]), _total(scorer, ends[1]))}


def total_range(scorer: Scorer) -> tuple[float, float]:
    """Returns the smallest and the largest possible total; infinite as those of `best_totals` are."""
    mix = MixDeclaration.of(scorer.mix)
    if mix.is_relative or mix.is_of_advantages:
        return -math.inf, math.inf
    ends = [tuple(term.ends[place] for term in scorer.terms) for place in (0, 1)]
    least = min(_total(scorer, weights, is_best=False) for weights in ends)
    return least, max(_total(scorer, weights) for weights in ends)


def _total(scorer: Scorer, weights: tuple[float, ...], *, is_best: bool = True) -> float:
    """Returns the total of a sample with the best value of each reward, or with the worst."""
    sign = 1 if is_best else -1
    values = torch.tensor([[_most(term, sign * weight) for term, weight in zip(scorer.terms, weights, strict=True)]])
    one, number = torch.ones(1, dtype=torch.bool), torch.zeros(1, dtype=torch.int64)
    return float(Scores(values, scorer.names, weights, one, number, number, number, mix=scorer.mix).total)


def _most(term: RewardTerm, weight: float) -> float:
    """Returns the end of a reward's range that counts most; infinite for a dense reward."""
    end = term.reward.range[0 if weight < 0 else 1]
    return math.copysign(math.inf, end) if term.reward.granularity in DENSE and end else end


def check_dense(scorer: Scorer, sample_kind: SampleKind, plan: GroupPlan, where: str) -> None:
    """Raises ConfigError for dense rewards of decisions that the samples do not have."""
    allowed = ("step",) if sample_kind == "latents" else ("segment", "token")
    for term in scorer.terms:
        granularity = term.reward.granularity
        if granularity in DENSE and granularity not in allowed:
            raise ConfigError(
                f"reward {term.name!r} judges each {granularity}, but samples made of {sample_kind} have "
                f"{' and '.join(f'{one}s' for one in allowed)}"
            )
        if granularity == "step" and plan.num_update_calls == 0:
            hint = "; give the evaluation rewards of its own" if where != "sampler" else ""
            raise ConfigError(f"reward {term.name!r} judges each random step, and {where} makes none{hint}")


def check_controls(scorer: Scorer, plan: GroupPlan, where: str) -> None:
    """Raises ConfigError for rewards that compare with samples which the plan does not sample."""
    for term in scorer.terms:
        if CONTROLS in term.reward.needs and not plan.num_controls:
            raise ConfigError(
                f"reward {term.name!r} compares with samples that are not learned from: set {where}.controls"
                + (", or give the evaluation rewards of its own" if where != "sampler" else "")
            )
