"""Which plug-ins of a run cannot work together, found before any weight is loaded."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from mmrl.assembly.ahead_checks import check_ahead
from mmrl.assembly.reward_checks import (
    check_best,
    check_controls,
    check_coordinates,
    check_dense,
    check_evaluated,
    check_rewards,
    check_thought,
    total_range,
)
from mmrl.core.config import EvaluationSettings, Plugin, RunConfig
from mmrl.core.contracts import (
    Advantage,
    ConfigError,
    Imitating,
    Loss,
    Modality,
    RangeChecking,
    SampleKind,
    Sampler,
    Stateful,
)
from mmrl.core.data import Prompt, WeightsName
from mmrl.core.declarations import AdvantageDeclaration, LossDeclaration, MixDeclaration, PolicyDeclaration
from mmrl.core.dense import DENSE
from mmrl.core.forward_outputs import PROVIDED
from mmrl.core.keys import GroupKey
from mmrl.core.likelihoods import SPREAD
from mmrl.core.reward_batches import refuse_thought
from mmrl.plans.answers import RethinkingPlan
from mmrl.plans.flow import Plan
from mmrl.plans.groups import GroupPlan
from mmrl.plans.offline import (
    OfflinePlan,
    brings_log_probs,
    check_behaviour,
    check_levels,
    check_mean_entropy,
    check_offline,
)
from mmrl.prompts.stream import PromptStream
from mmrl.scoring.during_sampling import check_steering
from mmrl.scoring.scorer import Scorer
from mmrl.system.spelling import near
from mmrl.training.member_sampling import check_min_advantage
from mmrl.training.off_policy_correction import is_corrected, refuse_unsampled
from mmrl.training.reward_gradients import check_gradients, check_steps, requires_gradients
from mmrl.training.sharding import refuse_unshardable

_WHY_NOT = {
    "exact_kl": "the exact KL of tokens would need every log-prob of the vocabulary; for a penalty set loss.kl to k1, "
    "k2 or k3",
    "choice": "a token is not compared with others sampled after the same words",
    "noise": "a token is not sampled as a mean plus noise",
    "velocity": "tokens have no velocity; for a penalty set loss.kl to k1, k2 or k3",
    "step": "tokens have no noise levels",
    "gradient": "no gradient reaches a sampled token",
    "entropy": "the entropy of a denoising step is fixed by its std; leave out entropy_coef",
}


def refuse_unprovided(loss: Loss, policy: Modality, loss_name: str, modality_name: str) -> None:
    """Raises ConfigError for a loss that requires more of decisions than the policy provides."""
    if loss.kind != "decisions":
        return
    for what in sorted(LossDeclaration.of(loss).requires - PROVIDED[policy.sample_kind]):
        raise ConfigError(
            f"loss {loss_name!r} requires {what!r} of each decision, which modality {modality_name!r} does not "
            "provide: " + _WHY_NOT.get(what, "no modality does")
        )


def refuse_single_samples(loss: Loss, plan: GroupPlan, loss_name: str, sampler_name: str) -> None:
    """Raises ConfigError for a loss that compares the samples from one state, where every state has one."""
    if "choice" in LossDeclaration.of(loss).requires and isinstance(plan, Plan) and plan.max_next_states < 2:
        raise ConfigError(
            f"loss {loss_name!r} compares the samples from one state, and sampler {sampler_name!r} makes one from "
            "each; take sampler 'neighbor', or one whose steps branch"
        )


# What a loss reads, by its `kind`, in the words of a message.
_KINDS = {
    "decisions": "decisions (the log-probs of random choices)",
    "denoising": "denoising (of samples noised anew: for image models)",
    "outputs": "outputs (made anew with a gradient: for image models)",
}


@dataclass(frozen=True)
class EvaluationParts:
    """The parts that only held-out evaluation uses."""

    settings: EvaluationSettings
    sampler: Sampler
    also: Mapping[str, Sampler]
    scorer: Scorer
    prompts: tuple[Prompt, ...]


@dataclass(frozen=True)
class Parts:
    """The plug-ins of a run, built and checked against each other; no weights are loaded yet."""

    policy: Modality
    sampler: Sampler
    scorer: Scorer
    advantage: Advantage
    loss: Loss
    prompts: PromptStream
    evaluation: EvaluationParts | None

    @property
    def scorers(self) -> tuple[Scorer, ...]:
        """Returns the scorers of training and of evaluation."""
        return (self.scorer,) if self.evaluation is None else (self.scorer, self.evaluation.scorer)


def final_weights(config: RunConfig) -> WeightsName:
    """Returns the weights that are evaluated and exported: the evaluation's, else the averaged ones if any."""
    if config.evaluation is not None and config.evaluation.weights is not None:
        return config.evaluation.weights
    return "averaged" if config.averaging is not None else "trained"


@dataclass(frozen=True)
class _AnyGrid:
    """A stand-in for a modality whose noise levels are not known before its model is loaded."""

    end: float
    sample_kind: SampleKind

    def sigmas(self, kind: str, num_steps: int) -> list[float]:
        return [1 - (1 - self.end) * step / num_steps for step in range(num_steps + 1)]


def example_plan(sampler: Sampler, group_size: int, policy: Modality) -> GroupPlan:
    """Returns a plan of a group; its counts of steps and calls are right, its noise levels are not.

    Raises ConfigError where the sampler cannot plan a group of this size.
    """
    try:
        end = 0.0 if PolicyDeclaration.of(policy).ends_without_noise else 0.01
        plan: GroupPlan = sampler.plan(_AnyGrid(end, policy.sample_kind), GroupKey(0, 0, 0), group_size)
    except (ValueError, OverflowError) as error:
        raise ConfigError(f"the sampler cannot plan a group of {group_size}: {error}") from error
    return plan


def check_pairs(config: RunConfig, parts: Parts) -> None:
    """Raises ConfigError for parts that cannot work together, before any weight is loaded."""
    if config.sharding == "full":
        refuse_unshardable(parts.policy, config.modality["name"], config.precision, config.optimizer.name)
    if config.updates.minibatches > config.prompts_per_iteration:
        raise ConfigError(
            f"updates.minibatches must be at most prompts_per_iteration (whole groups): "
            f"got {config.updates.minibatches} for {config.prompts_per_iteration}"
        )
    if parts.loss.kind not in parts.policy.forward_kinds:
        raise ConfigError(
            f"loss {config.loss['name']!r} reads {_KINDS[parts.loss.kind]}, but modality {config.modality['name']!r} "
            f"evaluates {', '.join(_KINDS[kind] for kind in sorted(parts.policy.forward_kinds))}"
        )
    check_min_advantage(config.updates.min_advantage, parts.loss, config.loss["name"])
    refuse_unprovided(parts.loss, parts.policy, config.loss["name"], config.modality["name"])
    _check_sampler("sampler", config.sampler, parts.sampler, config, parts.policy)
    check_steering("sampler", parts.sampler, parts.policy, config.modality["name"], parts.prompts.sets)
    plan = example_plan(parts.sampler, config.group_size, parts.policy)
    _check_group_size(config, parts, plan)
    _check_plan(config, parts, plan)
    _check_mix(config, parts)
    _check_gradients(config, parts, plan)
    _check_averaged(config, parts.loss)
    _check_decisions(config, parts)
    _check_model_folder(config.modality, parts.policy)
    makes = parts.policy.makes | ({"given"} if isinstance(plan, OfflinePlan) else set())
    check_rewards(config.modality["name"], parts.scorer, makes, parts.prompts.sets)
    check_thought(config, parts.policy, parts.scorer, parts.loss, plan)
    check_coordinates(parts.policy, parts.scorers)
    check_best(parts.scorer, parts.advantage, config.advantage["name"])
    if parts.evaluation is not None:
        check_evaluation(config, parts.policy, parts.evaluation)
        _check_evaluated_weights(config, parts.loss)
        _check_max_kl(config, parts.loss)


def _check_plan(config: RunConfig, parts: Parts, plan: GroupPlan) -> None:
    """Raises ConfigError for groups that the loss, the rewards or the advantage cannot learn from."""
    if parts.loss.kind == "decisions" and plan.num_update_calls == 0:
        flows = "use a stochastic sampler, or a loss on the forward process such as 'nft'"
        raise ConfigError(
            f"loss {config.loss['name']!r} learns from random steps, sampler {config.sampler['name']!r} makes none; "
            + ("set sampler.temperature above 0" if parts.policy.sample_kind != "latents" else flows)
        )
    refuse_single_samples(parts.loss, plan, config.loss["name"], config.sampler["name"])
    makes_videos = "videos" in parts.policy.makes
    check_offline(plan, parts.prompts.every, parts.policy.sample_kind, makes_videos=makes_videos)
    check_levels(plan, parts.loss, parts.policy)
    check_mean_entropy(plan, parts.loss, config.loss["name"])
    has_log_probs = brings_log_probs(parts.sampler, parts.prompts.every)
    _check_old(config, parts, plan, has_log_probs=has_log_probs)
    _check_facts(config, parts, plan, has_log_probs=has_log_probs)
    check_controls(parts.scorer, plan, "sampler")
    _check_comparison(config, parts, plan)
    _check_group_mean(config, parts)
    _check_imitation(config, parts, plan)
    check_dense(parts.scorer, parts.policy.sample_kind, plan, "sampler")
    refuse_unsampled(parts.policy, plan, "sampler", is_sharded=config.sharding == "full")
    check_ahead(config, parts.policy, parts.sampler, parts.loss, plan)


def check_evaluation(config: RunConfig, policy: Modality, evaluation: EvaluationParts) -> None:
    """Raises ConfigError for parts of an evaluation that cannot work together, or not with the policy."""
    settings = evaluation.settings
    samplers = {"sampler": (settings.sampler, evaluation.sampler)}
    samplers |= {f"also.{name}": (settings.also[name], sampler) for name, sampler in evaluation.also.items()}
    for name, (own, sampler) in samplers.items():
        where = f"evaluation.{name}"
        _check_sampler(where, own, sampler, config, policy)
        check_steering(where, sampler, policy, config.modality["name"], [evaluation.prompts])
        plan = example_plan(sampler, settings.samples_per_prompt, policy)
        if isinstance(plan, OfflinePlan):
            raise ConfigError(
                f"{where} {own['name']!r} takes outputs of the data, which do not show what the policy does"
            )
        check_offline(plan, evaluation.prompts, policy.sample_kind, makes_videos="videos" in policy.makes)
        check_controls(evaluation.scorer, plan, where)
        check_dense(evaluation.scorer, policy.sample_kind, plan, where)
        refuse_unsampled(policy, plan, where, is_sharded=config.sharding == "full")
    check_rewards(config.modality["name"], evaluation.scorer, policy.makes, [evaluation.prompts])
    for term in evaluation.scorer.terms:
        refuse_thought(term.name, term.reward, "an evaluation", "; give the evaluation rewards of its own")
    check_evaluated(evaluation.scorer)


def _check_group_size(config: RunConfig, parts: Parts, plan: GroupPlan) -> None:
    """Raises ConfigError where fewer samples are compared with each other than advantage and loss can learn from."""
    compared = plan.num_compared
    needed = {
        f"advantage {config.advantage['name']!r}": AdvantageDeclaration.of(parts.advantage).min_group_size,
        f"loss {config.loss['name']!r}": LossDeclaration.of(parts.loss).min_group_size,
    }
    for what, smallest in needed.items():
        if compared < smallest:
            some = "" if compared == config.group_size else f", of which {compared} are compared with each other"
            raise ConfigError(
                f"{what} compares the samples of a group: "
                f"group_size must be at least {smallest * config.group_size // compared}, got {config.group_size}{some}"
            )


def _check_mix(config: RunConfig, parts: Parts) -> None:
    name = "weighted_sum" if config.mix is None else config.mix["name"]
    if name == "weighted_sum":
        return
    if requires_gradients(parts.loss):
        raise ConfigError(
            f"loss {config.loss['name']!r} learns from the gradient of a weighted sum; leave out mix {name!r}"
        )
    if AdvantageDeclaration.of(parts.advantage).sums_rewards:
        raise ConfigError(
            f"advantage {config.advantage['name']!r} adds up rewards inside of samples, which mix {name!r} cannot; "
            "leave out the mix, or use advantage 'grpo'"
        )


def _check_gradients(config: RunConfig, parts: Parts, plan: GroupPlan) -> None:
    names = {"loss": config.loss["name"], "modality": config.modality["name"], "sharding": config.sharding}
    rewards = {term.name: term.reward for term in parts.scorer.terms if term.counts}
    check_gradients(names, parts.loss, parts.policy, rewards)
    check_steps(names["loss"], parts.loss, plan)


def _check_old(config: RunConfig, parts: Parts, plan: GroupPlan, *, has_log_probs: bool) -> None:
    """Raises ConfigError where loss or several optimizer steps need old log-probs that nothing computes."""
    if isinstance(plan, OfflinePlan):
        check_behaviour(parts.loss, config.loss["name"], config.updates.old, parts.sampler, parts.prompts.every)
    is_single = config.updates.epochs * config.updates.minibatches == 1
    if is_single or "old" not in parts.loss.needs or parts.loss.old_decay(0) is not None:
        return
    if parts.loss.kind == "denoising":
        raise ConfigError(
            f"loss {config.loss['name']!r} compares with the weights that sampled the rollout, which several optimizer "
            "steps (updates.epochs, updates.minibatches) leave behind; set loss.decay to {slope: 0}, which keeps them"
        )
    if isinstance(plan, OfflinePlan) and config.updates.old != "recomputed" and not has_log_probs:
        raise ConfigError("nothing recorded the log-probs of answers of the data; set updates.old to recomputed")


def _check_facts(config: RunConfig, parts: Parts, plan: GroupPlan, *, has_log_probs: bool) -> None:
    """Raises ConfigError for an advantage that requires facts of decisions that modality or data do not provide."""
    declared = AdvantageDeclaration.of(parts.advantage)
    known = PolicyDeclaration.of(parts.policy).provides
    whose = f"modality {config.modality['name']!r} records"
    if isinstance(plan, OfflinePlan):
        known = known & ({"log_prob"} if has_log_probs else set())
        whose = f"sampler {config.sampler['name']!r} provides"
    if missing := sorted(declared.requires - known):
        raise ConfigError(
            f"advantage {config.advantage['name']!r} requires {', '.join(missing)} of each decision, of which {whose} "
            f"{', '.join(sorted(known)) or 'nothing'}{near(missing[0], known)}"
        )
    if SPREAD in declared.requires:
        _check_spread(config)
    if declared.requires_probabilities and parts.policy.sample_kind == "latents":
        raise ConfigError(
            f"advantage {config.advantage['name']!r} requires the probability of each token, and steps of latents have "
            "densities; set its cut to null"
        )


def _check_spread(config: RunConfig) -> None:
    """Raises ConfigError where the spread of a group cannot be read: of sharded weights, and of a group in parts."""
    said = f"advantage {config.advantage['name']!r} requires the spread of whole groups"
    if config.sharding == "full":
        raise ConfigError(f"{said}, which is not read by sharded weights; set sharding to none")
    if config.groups.more is not None:
        raise ConfigError(f"{said}, and groups.more samples them in parts; set groups.more to null")


def _check_averaged(config: RunConfig, loss: Loss) -> None:
    if "averaged" in loss.needs and config.averaging is None:
        raise ConfigError(
            f"loss {config.loss['name']!r} compares with the averaged weights, but there is no averaging; "
            "set averaging.decay"
        )


def _check_max_kl(config: RunConfig, loss: Loss) -> None:
    """Raises ConfigError for a largest KL to the reference where no KL to it is measured."""
    if config.evaluation is None or config.evaluation.max_kl is None:
        return
    weight, other = config.loss.get("kl_coef", 0), config.loss.get("kl_to", "reference")
    if "reference" not in loss.needs or not weight or other != "reference":
        raise ConfigError(
            "evaluation.max_kl needs the KL to the reference, which a loss with a penalty measures: its kl_coef must "
            f"be above 0 (got {weight}) and its kl_to reference (got {other}); kl_coef: 1.0e-6 measures, hardly weighs"
        )


def _check_decisions(config: RunConfig, parts: Parts) -> None:
    """Raises ConfigError for an advantage of decisions where none can be told apart, and of answers for episodes."""
    name, declared = config.advantage["name"], AdvantageDeclaration.of(parts.advantage)
    if declared.is_per_decision and parts.loss.kind != "decisions":
        raise ConfigError(
            f"advantage {name!r} is one for each decision, and loss {config.loss['name']!r} learns from whole samples"
        )
    if declared.requires_single_answers and parts.policy.sample_kind == "turns":
        raise ConfigError(f"advantage {name!r} is of single answers; for episodes there are 'turn_returns' and 'gigpo'")
    is_dense = any(term.counts and term.reward.granularity in DENSE for term in parts.scorer.terms)
    if declared.requires_dense_reward and not is_dense:
        raise ConfigError(
            f"advantage {name!r} needs a reward that judges steps, segments or tokens (granularity), and that counts; "
            "for rewards of samples use 'grpo'"
        )


def _check_comparison(config: RunConfig, parts: Parts, plan: GroupPlan) -> None:
    """Raises ConfigError for an advantage without anything to compare with, or with rewards that it cannot compare."""
    name, advantage = config.advantage["name"], parts.advantage
    declared = AdvantageDeclaration.of(advantage)
    if declared.compares_with == "greedy" and not plan.has_greedy:
        raise ConfigError(
            f"advantage {name!r} compares with the likeliest answer: set sampler.greedy to true, if the sampler has it"
        )
    labels = {term.name for term in parts.scorer.terms}
    if missing := sorted(declared.requires_rewards - labels):
        hint = near(missing[0], labels)
        raise ConfigError(
            f"advantage {name!r} requires the rewards {', '.join(missing)}: add them, with weight 0{hint}; "
            f"the rewards are {', '.join(sorted(labels))}"
        )
    mix = MixDeclaration.of(parts.scorer.mix)
    if mix.is_of_advantages and isinstance(advantage, Stateful):
        raise ConfigError(
            f"advantage {name!r} learns from the totals of a run, and a mix of advantages asks it of each reward; "
            "leave out the mix, or take another advantage"
        )
    if declared.requires_rewards and mix.is_of_advantages:
        raise ConfigError(f"advantage {name!r} requires single rewards; leave out a mix of advantages")
    if isinstance(advantage, RangeChecking):
        terms = {term.name: term for term in parts.scorer.terms if term.counts}
        ranges = {label: term.reward.range for label, term in terms.items()}
        weights = {label: term.smallest_weight for label, term in terms.items()}
        if config.mix is not None and mix.is_relative:
            ranges, weights = {config.mix["name"]: (-math.inf, math.inf)}, {config.mix["name"]: 1.0}
        try:
            advantage.check(ranges, weights)
        except ValueError as error:
            raise ConfigError(f"advantage {name!r}: {error}") from error


def _check_group_mean(config: RunConfig, parts: Parts) -> None:
    """Raises ConfigError where a loss that reads the mean total of a group off the advantages cannot."""
    if not LossDeclaration.of(parts.loss).requires_group_mean:
        return
    loss, advantage = config.loss["name"], config.advantage["name"]
    if advantage != "dr_grpo":
        raise ConfigError(
            f"loss {loss!r} reads the mean of a group off the advantage 'dr_grpo', reward minus mean; got {advantage!r}"
        )
    if config.correction.kind != "none" and is_corrected(parts.policy, parts.loss, config.rollout):
        raise ConfigError(
            f"loss {loss!r} reads the mean of a group off the advantages, which a correction multiplies; set "
            "correction.kind to none"
        )
    low, high = total_range(parts.scorer)
    if low < 0 or high > 1 + 1e-6:  # weights such as 0.9 and 0.1 are rounded
        raise ConfigError(
            f"loss {loss!r} reads a total as the chance that an answer is right: totals must lie in [0, 1], and those "
            f"of these rewards lie in [{low:g}, {high:g}]"
        )


def _check_imitation(config: RunConfig, parts: Parts, plan: GroupPlan) -> None:
    """Raises ConfigError for samples to imitate that the loss does not, and for a loss that has none to imitate."""
    samples, imitates = isinstance(plan, RethinkingPlan), isinstance(parts.loss, Imitating)
    sampler, loss = config.sampler["name"], config.loss["name"]
    if samples and not imitates:
        raise ConfigError(
            f"sampler {sampler!r} samples answers to imitate, which loss {loss!r} does not; 'grpo_sft' does"
        )
    if imitates and not samples:
        raise ConfigError(f"loss {loss!r} imitates answers of sampler 'rethinking', got sampler {sampler!r}")


def _check_model_folder(settings: Plugin, policy: Modality) -> None:
    """Raises ConfigError for a folder on this machine that holds no model of the modality's kind; loads nothing."""
    declared = PolicyDeclaration.of(policy)
    if declared.checkpoint is None or declared.checkpoint_file is None:
        return
    folder, file = Path(declared.checkpoint).expanduser(), declared.checkpoint_file
    if folder.is_dir() and not (folder / file).is_file():
        raise ConfigError(
            f"modality.model: {settings['model']!r} is no model of modality {settings['name']!r}: it holds no {file}"
        )


def _check_sampler(where: str, settings: Plugin, sampler: Sampler, config: RunConfig, policy: Modality) -> None:
    if sampler.sample_kind not in (policy.sample_kind, "given"):
        raise ConfigError(
            f"{where} {settings['name']!r} samples {sampler.sample_kind}, but modality {config.modality['name']!r} "
            f"makes its samples of {policy.sample_kind}"
        )


def _check_evaluated_weights(config: RunConfig, loss: Loss) -> None:
    which = final_weights(config)
    if which == "averaged" and config.averaging is None:
        raise ConfigError("evaluation.weights is 'averaged', but there is no averaging; set averaging.decay")
    if which == "old" and loss.old_decay(0) is None:
        raise ConfigError(f"evaluation.weights is 'old', but loss {config.loss['name']!r} keeps no old weights")
