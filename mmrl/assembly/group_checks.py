"""Checks of the section `groups` of a config against the other parts, and the cost of further members."""

from collections.abc import Sequence

from mmrl.assembly.compatibility import Parts, example_plan
from mmrl.core.config import GroupSettings, RunConfig
from mmrl.core.contracts import ConfigError, Modality, Sampler, Selective
from mmrl.core.declarations import AdvantageDeclaration
from mmrl.plans.answers import AnswerPlan, AnswerTree, RethinkingPlan
from mmrl.plans.flow import Plan
from mmrl.plans.groups import GroupPlan
from mmrl.plans.offline import OfflinePlan
from mmrl.training.off_policy_correction import is_sampled_elsewhere
from mmrl.training.replay import Replayable


def check_groups(config: RunConfig, parts: Parts) -> None:
    """Raises ConfigError where settings of groups contradict each other, or the plug-ins."""
    groups, sets = config.groups, parts.prompts.sets
    band = groups.mean_between
    if band is not None and not (band[0] <= band[1] and groups.degenerate != "keep"):
        raise ConfigError(
            "groups.mean_between is two numbers, the smaller first, and goes with groups.degenerate drop or refill; "
            f"got {list(band)} with {groups.degenerate}"
        )
    if groups.hint is not None:
        if groups.degenerate != "refill":
            raise ConfigError(f"groups.hint needs groups.degenerate refill, got {groups.degenerate}")
        if not any(groups.hint in prompt.target for prompts in sets for prompt in prompts):
            raise ConfigError(f"groups.hint: no training prompt has {groups.hint!r} in its target")
    if groups.augment is not None:
        _check_augment(config, parts)
    if groups.more is not None:
        _check_more(config, parts)
    if config.replay is not None:
        _check_replay(config, parts)


def _check_augment(config: RunConfig, parts: Parts) -> None:
    """Raises ConfigError for changed prompts where groups are replaced otherwise, or where nothing can be changed."""
    augment, groups = config.groups.augment, config.groups
    assert augment is not None, "asked by the caller"
    if parts.policy.sample_kind != "tokens":
        name = config.modality["name"]
        raise ConfigError(f"groups.augment changes questions, and modality {name!r} is for something else")
    if isinstance(example_plan(parts.sampler, config.group_size, parts.policy), OfflinePlan):
        raise ConfigError("groups.augment samples answers anew, and these are of the data")
    if groups.degenerate == "refill" or groups.more is not None or config.replay is not None:
        raise ConfigError("groups.augment goes neither with groups.degenerate refill nor with groups.more nor replay")
    prompts = parts.prompts.every
    has_clips = augment.noise > 0 and any(prompt.clips for prompt in prompts)
    has_answers = augment.answer is not None and any(augment.answer in prompt.target for prompt in prompts)
    if not has_clips and not has_answers:
        raise ConfigError(
            f"groups.augment: no training prompt has a video, for noise {augment.noise:g}, or {augment.answer!r} in "
            "its target, for cues"
        )


def _check_more(config: RunConfig, parts: Parts) -> None:
    """Raises ConfigError for further members where samples of a group are not sampled and judged independently."""
    more = config.groups.more
    assert more is not None, "asked by the caller"
    most = more.per_prompt * config.prompts_per_iteration
    if not more.rounds <= more.budget <= most:
        raise ConfigError(
            f"groups.more.budget must be at least groups.more.rounds ({more.rounds}) and at most per_prompt x "
            f"prompts_per_iteration ({most}), got {more.budget}"
        )
    one, whole = further_plan(parts.sampler, parts.policy), config.group_size
    if one is None or not _is_of_singles(example_plan(parts.sampler, whole, parts.policy), whole):
        raise ConfigError(
            f"groups.more samples further members independently, and with sampler {config.sampler['name']!r} the "
            "members of a group share steps, are compared with a sample that is not learned from, come from the "
            "data, or are episodes"
        )
    for term in parts.scorer.terms:
        if term.reward.granularity == "group":
            raise ConfigError(
                f"reward {term.name!r} judges groups as a whole, and groups.more samples members after it was called"
            )


def _check_replay(config: RunConfig, parts: Parts) -> None:
    """Raises ConfigError for replay of samples that cannot be kept whole, or that mean nothing without their group."""
    loss, plan = parts.loss, example_plan(parts.sampler, config.group_size, parts.policy)
    is_plain = type(plan) in (AnswerPlan, RethinkingPlan)
    if not isinstance(parts.policy, Replayable) or not is_plain or is_sampled_elsewhere(parts.policy):
        raise ConfigError(
            f"replay keeps single answers that the policy itself sampled, not those of modality "
            f"{config.modality['name']!r} by sampler {config.sampler['name']!r} (nor of a modality.engine)"
        )
    assert isinstance(plan, AnswerPlan), "a plan of answers"
    if plan.top_p < 1 or plan.top_k is not None or plan.min_p > 0:
        raise ConfigError("replay keeps log-probs of the whole distribution: leave out top_p, top_k and min_p")
    if loss.kind != "decisions" or "old" not in loss.needs or loss.old_decay(0) is not None or loss.scope == "group":
        raise ConfigError(
            f"replay needs a loss on single samples that compares with the weights that sampled them, such as 'grpo'; "
            f"got {config.loss['name']!r}"
        )
    declared = AdvantageDeclaration.of(parts.advantage)
    if isinstance(parts.advantage, Selective) or declared.is_per_decision or declared.requires:
        raise ConfigError(f"replay keeps one advantage for each sample, {config.advantage['name']!r} has more")
    if config.sharding == "full" or config.groups.hint is not None:
        raise ConfigError("replay goes neither with sharding 'full' nor with groups.hint, whose prompts are not data")


def further_plan(sampler: Sampler, policy: Modality) -> GroupPlan | None:
    """Returns an example plan of one further member; None where members are not sampled independently."""
    try:
        plan = example_plan(sampler, 1, policy)
    except ConfigError:  # a group of another size cannot be planned
        return None
    return plan if _is_of_singles(plan, 1) else None


def _is_of_singles(plan: GroupPlan, size: int) -> bool:
    """Returns whether the plan is that of `size` samples that share nothing but the prompt."""
    if isinstance(plan, Plan):
        singles = plan.neighbors is None and not plan.forks and all(step.branch == 1 for step in plan.steps)
        return singles and plan.roots == size
    return type(plan) is AnswerPlan and not plan.num_controls and not plan.has_greedy


def missing_tree(config: RunConfig, parts: Parts, plan: GroupPlan) -> str | None:
    """Returns why an advantage of trees has no tree; None where it has, or is another advantage. `plan`: an example."""
    if _is_tree(plan) or not AdvantageDeclaration.of(parts.advantage).compares_branches:
        return None
    return (
        f"none to compare: {config.advantage['name']!r} compares the branches of a tree, and samples of "
        f"{config.sampler['name']!r} share none, so each is compared as a whole"
    )


def _is_tree(plan: GroupPlan) -> bool:
    """Returns whether some samples of a group share decisions, and then part."""
    if not isinstance(plan, Plan):
        return isinstance(plan, AnswerTree)
    return bool(plan.forks) or any(
        later.branch > 1
        for number, step in enumerate(plan.steps)
        if step.is_decision
        for later in plan.steps[number + 1 :]
    )


def plans_of_iteration(config: RunConfig, sampler: Sampler, policy: Modality) -> list[tuple[GroupPlan, int]]:
    """Returns example plans of an iteration's groups and further members, and how many of each there are.

    All groups are taken to be kept, and none sampled again.
    """
    plans = [(example_plan(sampler, config.group_size, policy), config.prompts_per_iteration)]
    more, one = config.groups.more, further_plan(sampler, policy)
    return plans if more is None or one is None else [*plans, (one, more.budget)]


def shared_work(plans: Sequence[tuple[GroupPlan, int]]) -> dict[str, int]:
    """Returns the work of an iteration, in calls, with and without sharing, by what is counted.

    Each further member is taken to read its prompt; those of one round share one reading.
    """
    names = plans[0][0].shared_work
    return {what: sum(plan.shared_work[what] * count for plan, count in plans) for what in names}


def shrunk_groups(groups: GroupSettings, num_prompts: int) -> GroupSettings:
    """Returns the same settings for an iteration of few prompts."""
    if groups.more is None:
        return groups
    budget = min(groups.more.budget, groups.more.per_prompt * num_prompts)
    rounds = min(groups.more.rounds, budget)
    return groups.model_copy(update={"more": groups.more.model_copy(update={"budget": budget, "rounds": rounds})})
