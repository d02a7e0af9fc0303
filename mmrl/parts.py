"""RunConfig to parts: plug-ins by name, checked against each other, then put together as a trainer."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from mmrl import checkpoint, plugins
from mmrl.collect import Collector
from mmrl.config import EvaluationSettings, Plugin, RunConfig
from mmrl.contracts import Advantage, ConfigError, Loss, Modality, Reward, Sampler
from mmrl.data import Prompt, WeightsName
from mmrl.engine import Engine
from mmrl.evaluation import Evaluator
from mmrl.keys import GroupKey, seed_from
from mmrl.optimizer import optimizer_of
from mmrl.plans import GroupPlan
from mmrl.prompts import PromptStream, load_prompts, mixture
from mmrl.reward_batches import check_targets
from mmrl.scoring import RewardTerm, Scorer
from mmrl.sharding import refuse_unshardable
from mmrl.tracking import Tracking
from mmrl.trainer import Trainer


@dataclass(frozen=True)
class EvaluationParts:
    """What held-out evaluation has of its own."""

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


def build(config: RunConfig) -> Parts:
    """Every plug-in of the config, checked: fast, nothing is loaded but the prompts.

    Raises ConfigError for an unknown plug-in or field, prompts that are missing, and pairings that cannot work.
    """
    loss = plugins.build("losses", config.loss)
    parts = Parts(
        policy=plugins.build("modalities", resolve_lab(config.modality)),
        sampler=plugins.build("samplers", config.sampler),
        scorer=build_scorer(config.rewards, config.scoring.max_failed_share),
        advantage=plugins.build("advantages", config.advantage),
        loss=loss,
        prompts=_stream(config),
        evaluation=_evaluation(config),
    )
    _check_pairs(config, parts)
    return parts


def build_scorer(rewards: Sequence[Plugin], max_failed_share: float) -> Scorer:
    """Rewards by name; `weight` and `label` belong to the mix, all other fields to the reward."""
    terms = []
    for settings in rewards:
        own = {key: value for key, value in settings.items() if key not in ("weight", "label")}
        try:
            weight = float(settings.get("weight", 1.0))
        except (TypeError, ValueError):
            raise ConfigError(f"rewards.weight must be a number, got {settings.get('weight')!r}") from None
        reward = plugins.build("rewards", own, beside=("weight", "label"))
        if lacking := [part for part in (*Reward.__annotations__, "score") if not hasattr(reward, part)]:
            raise ConfigError(f"rewards.{own['name']} is not a reward: it has no {', '.join(lacking)}")
        terms.append(RewardTerm(str(settings.get("label", own["name"])), reward, weight))
    return Scorer(tuple(terms), max_failed_share)


def resolve_lab(settings: Plugin) -> Plugin:
    """Puts the folder of an embedded lab in the place of `model: lab:NAME`."""
    model = settings.get("model")
    if not isinstance(model, str) or not model.startswith("lab:"):
        return settings
    from mmrl import labs

    try:
        return {**settings, "model": str(labs.checkpoint(model.removeprefix("lab:")))}
    except ValueError as error:
        raise ConfigError(f"modality.model: {error}") from error


def make_trainer(config: RunConfig, parts: Parts, folder: Path, tracking: Tracking | None = None) -> Trainer:
    """Loads weights and puts the parts together, at iteration 0."""
    if config.threads is not None:
        torch.set_num_threads(config.threads)
    engine = Engine(config.precision, config.sharding)
    torch.manual_seed(seed_from(config.seed, "initial weights"))
    with engine.together():
        parts.policy.prepare(engine.placement)
        parts.scorer.prepare(engine.placement)
    engine.shard(parts.policy)
    weights = parts.policy.weights
    if config.warm_start is not None:
        try:
            weights.start_from(_trained_of(Path(config.warm_start)))
        except ConfigError:
            raise
        except ValueError as error:
            raise ConfigError(f"warm_start: {config.warm_start} holds another model: {error}") from error
    for which in _copies(config, parts.loss):
        weights.keep(which)
    chunk = config.rollout_groups or config.prompts_per_iteration
    collector = Collector(
        policy=parts.policy,
        sampler=parts.sampler,
        scorer=parts.scorer,
        prompts=parts.prompts,
        engine=engine,
        groups=config.groups,
        seed=config.seed,
        group_size=config.group_size,
        wanted=config.prompts_per_iteration,
        chunk=chunk,
        overlap=config.scoring.overlap,
    )
    plug_ins = {"advantage": parts.advantage, "loss": parts.loss, "sampler": parts.sampler}
    plug_ins |= {f"reward/{term.name}": term.reward for term in parts.scorer.terms}
    evaluator = _evaluator(config, parts, engine, chunk * config.group_size)
    also = parts.evaluation.also if parts.evaluation is not None else {}
    return Trainer(
        config=config,
        folder=folder,
        engine=engine,
        policy=parts.policy,
        collector=collector,
        advantage=parts.advantage,
        loss=parts.loss,
        optimizer=optimizer_of(config.optimizer, weights),
        stateful={name: plugin for name, plugin in plug_ins.items() if hasattr(plugin, "state_dict")},
        evaluator=evaluator,
        tracking=tracking or Tracking(),
        also_evaluated={
            name: replace(evaluator, sampler=one, saved_samples=0) for name, one in also.items() if evaluator
        },
    )


def _evaluator(config: RunConfig, parts: Parts, engine: Engine, num_samples: int) -> Evaluator | None:
    if parts.evaluation is None:
        return None
    settings = parts.evaluation.settings
    with engine.together():
        parts.evaluation.scorer.prepare(engine.placement)
    return Evaluator(
        policy=parts.policy,
        sampler=parts.evaluation.sampler,
        scorer=parts.evaluation.scorer,
        engine=engine,
        prompts=parts.evaluation.prompts,
        weights=final_weights(config),
        samples_per_prompt=settings.samples_per_prompt,
        seed=settings.seed,
        chunk=max(1, num_samples // settings.samples_per_prompt),
        saved_samples=settings.saved_samples,
    )


def final_weights(config: RunConfig) -> WeightsName:
    """The weights that are evaluated and exported: those the evaluation names, else the averaged ones if any."""
    if config.evaluation is not None and config.evaluation.weights is not None:
        return config.evaluation.weights
    return "averaged" if config.averaging is not None else "trained"


def _stream(config: RunConfig) -> PromptStream:
    sources = mixture(config.prompts.train)
    return PromptStream([load_prompts(source) for source, _ in sources], [weight for _, weight in sources], config.seed)


def _evaluation(config: RunConfig) -> EvaluationParts | None:
    settings = config.evaluation
    if settings is None:
        return None
    if config.prompts.held_out is None:
        raise ConfigError("evaluation needs prompts.held_out")
    return EvaluationParts(
        settings,
        plugins.build("samplers", settings.sampler),
        {name: plugins.build("samplers", other) for name, other in settings.also.items()},
        build_scorer(settings.rewards or config.rewards, config.scoring.max_failed_share),
        load_prompts(config.prompts.held_out)[: settings.num_prompts],
    )


class _AnyGrid:
    """Stands in for a modality whose noise levels are not known before its model is loaded."""

    def sigmas(self, kind: str, num_steps: int) -> list[float]:
        return [1 - step / num_steps for step in range(num_steps + 1)]


def example_plan(sampler: Sampler, group_size: int) -> GroupPlan:
    """The shape of the plan of a group: its counts of steps and calls are right, its noise levels are not.

    Raises ConfigError where the sampler cannot draw a group of this size.
    """
    try:
        plan: GroupPlan = sampler.plan(_AnyGrid(), GroupKey(0, 0, 0), group_size)
    except ValueError as error:
        raise ConfigError(f"the sampler cannot draw a group of {group_size}: {error}") from error
    return plan


def _check_pairs(config: RunConfig, parts: Parts) -> None:
    """Refuses what cannot work together, before any weight is loaded."""
    smallest = parts.advantage.min_group_size
    if config.group_size < smallest:
        raise ConfigError(
            f"advantage {config.advantage['name']!r} compares the samples of a group: "
            f"group_size must be at least {smallest}, got {config.group_size}"
        )
    if config.updates.minibatches > config.prompts_per_iteration:
        raise ConfigError(
            f"updates.minibatches must be at most prompts_per_iteration (whole groups): "
            f"got {config.updates.minibatches} for {config.prompts_per_iteration}"
        )
    if parts.loss.kind not in parts.policy.evaluates:
        raise ConfigError(
            f"loss {config.loss['name']!r} reads {parts.loss.kind}, but modality {config.modality['name']!r} evaluates "
            f"{', '.join(sorted(parts.policy.evaluates))}"
        )
    if (
        "reference" in parts.loss.needs
        and getattr(parts.loss, "kl", None) == "exact"
        and parts.policy.draws == "tokens"
    ):
        raise ConfigError(
            f"loss.kl is 'exact', but tokens have no exact KL (it would need every log-prob of the vocabulary), and "
            f"modality {config.modality['name']!r} makes its samples of tokens; set loss.kl to k1, k2 or k3"
        )
    if config.sharding == "full":
        refuse_unshardable(parts.policy, config.modality["name"], config.precision, config.optimizer.name)
    _check_sampler("sampler", config.sampler, parts.sampler, config, parts.policy)
    plan = example_plan(parts.sampler, config.group_size)
    if parts.loss.kind == "decisions" and plan.num_update_calls == 0:
        flows = "use a stochastic sampler, or a loss on the forward process such as 'nft'"
        raise ConfigError(
            f"loss {config.loss['name']!r} learns from random steps, sampler {config.sampler['name']!r} makes none; "
            + ("set sampler.temperature above 0" if parts.policy.draws == "tokens" else flows)
        )
    for term in parts.scorer.terms:
        for prompts in parts.prompts.sets:
            check_targets(term.name, term.reward, prompts)
    if parts.evaluation is not None:
        evaluation, settings = parts.evaluation, parts.evaluation.settings
        drawn = {"sampler": (settings.sampler, evaluation.sampler)}
        drawn |= {f"also.{name}": (settings.also[name], sampler) for name, sampler in evaluation.also.items()}
        for name, (own, sampler) in drawn.items():
            _check_sampler(f"evaluation.{name}", own, sampler, config, parts.policy)
            example_plan(sampler, settings.samples_per_prompt)
        for term in evaluation.scorer.terms:
            check_targets(term.name, term.reward, evaluation.prompts)
        _check_evaluated_weights(config, parts.loss)


def _check_sampler(where: str, settings: Plugin, sampler: Sampler, config: RunConfig, policy: Modality) -> None:
    if sampler.draws != policy.draws:
        raise ConfigError(
            f"{where} {settings['name']!r} draws {sampler.draws}, but modality {config.modality['name']!r} makes "
            f"its samples of {policy.draws}"
        )


def _check_evaluated_weights(config: RunConfig, loss: Loss) -> None:
    which = final_weights(config)
    if which == "averaged" and config.averaging is None:
        raise ConfigError("evaluation.weights is 'averaged', but there is no averaging; set averaging.decay")
    if which == "old" and loss.old_decay(0) is None:
        raise ConfigError(f"evaluation.weights is 'old', but loss {config.loss['name']!r} keeps no old weights")


def _copies(config: RunConfig, loss: Loss) -> list[WeightsName]:
    """The copies of the trained tensors that this run keeps."""
    wanted: dict[WeightsName, bool] = {
        "reference": "reference" in loss.needs,
        "old": loss.old_decay(0) is not None,
        "averaged": config.averaging is not None,
    }
    return [which for which, is_wanted in wanted.items() if is_wanted]


def _trained_of(run: Path) -> dict[str, torch.Tensor]:
    found = checkpoint.latest(run / "checkpoints")
    if found is None:
        raise ConfigError(f"warm_start: {run} holds no checkpoint")
    return dict(checkpoint.load(found).tensors["trained"])
