"""What rewards need of the prompts, the samples and the decisions of a run, checked before anything is loaded."""

from collections.abc import Mapping, Sequence

from mmrl.contracts import ConfigError, Draws, Reward
from mmrl.data import Prompt
from mmrl.dense import DENSE
from mmrl.plans import GroupPlan
from mmrl.reward_batches import CONTROLS, check_makes, check_prompts
from mmrl.scoring import Scorer


def check_rewards(modality: str, scorer: Scorer, makes: frozenset[str], sets: Sequence[Sequence[Prompt]]) -> None:
    """Refuses rewards that need what outputs or prompts do not have."""
    for term in scorer.terms:
        check_makes(term.name, term.reward, makes, modality)
        for prompts in sets:
            check_prompts(term.name, term.reward, prompts)


def check_evaluated(scorer: Scorer) -> None:
    """Refuses an evaluation by rewards alone whose mean in every group is the same, whatever the policy does."""
    counted = [term for term in scorer.terms if term.counts]
    if counted and all(_is_relative(term.reward) for term in counted):
        raise ConfigError(
            f"reward {counted[0].name!r} says how the samples of a group compare, and has the same mean in all groups: "
            "an evaluation by it finds nothing; give evaluation.rewards that say how good a sample is, such as the "
            "reward inside, or set evaluation to null"
        )


def _is_relative(reward: Reward) -> bool:
    held: Mapping[str, Reward] = getattr(reward, "held", dict)()
    return bool(getattr(reward, "is_relative", False)) or (bool(held) and all(map(_is_relative, held.values())))


def check_dense(scorer: Scorer, draws: Draws, plan: GroupPlan, where: str) -> None:
    """Refuses dense rewards of decisions that the samples do not have."""
    allowed = ("step",) if draws == "latents" else ("segment", "token")
    for term in scorer.terms:
        granularity = term.reward.granularity
        if granularity in DENSE and granularity not in allowed:
            raise ConfigError(
                f"reward {term.name!r} judges each {granularity}, but samples made of {draws} have "
                f"{' and '.join(f'{one}s' for one in allowed)}"
            )
        if granularity == "step" and plan.num_update_calls == 0:
            hint = "; give the evaluation rewards of its own" if where != "sampler" else ""
            raise ConfigError(f"reward {term.name!r} judges each random step, and {where} makes none{hint}")


def check_controls(scorer: Scorer, plan: GroupPlan, where: str) -> None:
    """Refuses rewards that compare with samples which the plan does not draw."""
    for term in scorer.terms:
        if CONTROLS in term.reward.needs and not plan.num_controls:
            raise ConfigError(
                f"reward {term.name!r} compares with samples that are not learned from: set {where}.controls"
                + (", or give the evaluation rewards of its own" if where != "sampler" else "")
            )
