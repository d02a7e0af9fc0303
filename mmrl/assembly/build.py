"""From a config to the parts of a run: plug-ins by name, checked against each other, put together as a trainer."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from inspect import signature
from pathlib import Path
from typing import Any

import torch

from mmrl.assembly import batches
from mmrl.assembly.compatibility import EvaluationParts, Parts, check_evaluation, check_pairs, final_weights
from mmrl.assembly.costs import requires_reference
from mmrl.assembly.group_checks import check_groups
from mmrl.assembly.memory import check_memory, place
from mmrl.assembly.reward_checks import check_coordinates
from mmrl.core import plugins
from mmrl.core.config import DatasetSettings, EvaluationSettings, Plugin, RunConfig
from mmrl.core.contracts import (
    AdapterScoring,
    Closing,
    ConfigError,
    Differentiable,
    Modality,
    Prefetching,
    Sampler,
    Stateful,
)
from mmrl.core.data import WeightsName
from mmrl.core.declarations import MixDeclaration, PolicyDeclaration
from mmrl.core.keys import seed_from
from mmrl.core.lab_models import resolve_lab
from mmrl.core.likelihoods import adapters_read
from mmrl.core.reward_batches import MEDIA
from mmrl.plans.offline import brings_log_probs
from mmrl.prompts.curriculum import Curriculum
from mmrl.prompts.filtering import readable, reader_of
from mmrl.prompts.stream import PromptStream, load_prompts, mixture
from mmrl.reporting.tracking import Tracking
from mmrl.scoring import during_sampling
from mmrl.scoring.scorer import Scorer, build_scorer
from mmrl.training import checkpoint
from mmrl.training.difficulty import Difficulty
from mmrl.training.held_out import Evaluator
from mmrl.training.optimizer import optimizer_of
from mmrl.training.processes import Processes
from mmrl.training.replay import Replay
from mmrl.training.reward_gradients import requires_gradients
from mmrl.training.rollouts import Collector
from mmrl.training.sampling_process import SamplingProcess, check_device, packed
from mmrl.training.thought import ThoughtReader
from mmrl.training.trainer import OF_REWARD, Trainer

_TAKES = {"advantage": "(scores, paths=None)", "loss": "(measures, batch)"}  # what these are called with


def build(config: RunConfig) -> Parts:
    """Builds and checks every plug-in of the config. Loads nothing but the prompts.

    Raises ConfigError for an unknown plug-in or field, missing prompts, and parts that cannot work together.
    """
    loss, scorer = plugins.build("losses", config.loss), build_scorer(config.rewards, config.scoring, config.mix)
    sampler = plugins.build("samplers", config.sampler)
    parts = Parts(
        policy=plugins.build("modalities", resolve_lab(config.modality)),
        sampler=sampler,
        scorer=scorer,
        advantage=plugins.build("advantages", config.advantage),
        loss=loss,
        prompts=_stream(config, scorer, sampler),
        evaluation=_evaluation(config),
    )
    plugins.refuse_half("samplers", config.sampler["name"], sampler)
    plugins.refuse_half("advantages", config.advantage["name"], parts.advantage)
    plugins.refuse_half("losses", config.loss["name"], parts.loss)
    for kind, takes in _TAKES.items():
        _refuse_other_call(kind, getattr(config, kind)["name"], getattr(parts, kind), takes)
    check_pairs(config, parts)
    check_groups(config, parts)
    check_memory(config)
    batches.check_auto(config, parts.policy)
    return parts


def _refuse_other_call(kind: str, name: str, plugin: Any, takes: str) -> None:
    try:
        signature(plugin).bind("scores or measures", "paths or batch")
    except TypeError as error:
        raise ConfigError(f"{kind} {name!r} is called with {takes}: {error} (see mmrl/core/contracts.py)") from error


@contextmanager
def closing(policy: Modality) -> Iterator[None]:
    """Closes a policy at the end, also after an error, where it can be closed."""
    try:
        yield
    finally:
        if isinstance(policy, Closing):
            policy.close()


def make_trainer(config: RunConfig, parts: Parts, folder: Path, tracking: Tracking | None = None) -> Trainer:
    """Loads the weights and puts the parts together as a trainer at iteration 0."""
    if config.threads is not None:
        torch.set_num_threads(config.threads)
    _set_tf32(config.tf32)
    processes = Processes(config.precision, config.sharding)
    elsewhere = _sampling_process(config, parts.policy, processes)
    parts = _prepared(config, parts, processes)
    config = batches.chosen(config, parts, processes)
    plug_ins = {"advantage": parts.advantage, "loss": parts.loss, "sampler": parts.sampler}
    plug_ins |= {"curriculum": parts.prompts.curriculum}
    augment = config.groups.augment
    difficulty = None if augment is None else Difficulty(augment.window)
    plug_ins |= {"difficulty": difficulty}
    plug_ins |= {f"{OF_REWARD}{term.name}": term.reward for term in parts.scorer.terms}
    collector = replace(_collector(config, parts, processes, elsewhere), difficulty=difficulty)
    evaluator = _evaluator(config, parts, processes, collector.chunk * config.group_size)
    also = parts.evaluation.also if parts.evaluation is not None else {}
    return Trainer(
        config=config,
        folder=folder,
        processes=processes,
        policy=parts.policy,
        collector=collector,
        advantage=parts.advantage,
        loss=parts.loss,
        optimizer=optimizer_of(config.optimizer, parts.policy.weights),
        stateful={name: plugin for name, plugin in plug_ins.items() if isinstance(plugin, Stateful)},
        evaluator=evaluator,
        tracking=tracking or Tracking(),
        replay=_replay(config, parts, processes),
        brings_old=config.updates.old == "recorded" and brings_log_probs(parts.sampler, parts.prompts.every),
        also_evaluated={
            name: replace(evaluator, sampler=one, saved_samples=0) for name, one in also.items() if evaluator
        },
    )


def _set_tf32(allows: bool | None) -> None:
    """Lets torch compute products of float32 numbers in TF32, or forbids it; None leaves it as it is."""
    if allows is not None:
        torch.backends.cuda.matmul.allow_tf32 = allows
        torch.backends.cudnn.allow_tf32 = allows


def _prepared(config: RunConfig, parts: Parts, processes: Processes) -> Parts:
    """Returns the parts with weights loaded, sharded and copied, and with the prompts that the policy can read."""
    torch.manual_seed(seed_from(config.seed, "initial weights"))
    with processes.lockstep():
        parts = judged_by_settings(config, parts)
        parts.policy.prepare(processes.placement)
        for adapter in adapters_read(parts.scorer.needs):
            assert isinstance(parts.policy, AdapterScoring), "checked when the parts were built"
            parts.policy.load_reward_adapter(adapter)
        check_coordinates(parts.policy, parts.scorers)  # a hub name may not tell the unit before
        parts.scorer.prepare(processes.placement)
        during_sampling.prepare(parts.sampler, processes.placement)
    processes.shard(parts.policy)
    with processes.lockstep():
        parts = _readable_parts(config, parts)
    _start_weights(config, parts.policy)
    for which in _copies(config, parts):
        parts.policy.weights.keep(which)
    if isinstance(parts.policy, Prefetching):
        parts.policy.use_workers(config.data.workers_on(processes.device.type), config.data.ahead_bytes)
    if isinstance(parts.policy, Differentiable):
        parts.policy.records_trajectories = requires_gradients(parts.loss)
        parts.policy.renders_latents = not set(MEDIA) & parts.scorer.needs_of_gradient - {"latents"}
    return parts


def _sampling_process(config: RunConfig, policy: Modality, processes: Processes) -> SamplingProcess | None:
    """Returns the process that samples ahead for this one, not started; None: none is set. Before the model is loaded.

    Raises ConfigError for a device that cannot be used.
    """
    if config.rollout.devices is None:
        return None
    with processes.lockstep():
        device = processes.own(config.rollout.devices)
        check_device(device, processes.device)
    return SamplingProcess(packed(policy), device, processes.placement.dtype, config.seed)


def _collector(config: RunConfig, parts: Parts, processes: Processes, elsewhere: SamplingProcess | None) -> Collector:
    return Collector(
        policy=parts.policy,
        sampler=parts.sampler,
        scorer=parts.scorer,
        prompts=parts.prompts,
        processes=processes,
        groups=config.groups,
        seed=config.seed,
        group_size=config.group_size,
        wanted=config.prompts_per_iteration,
        chunk=config.rollout_groups or config.prompts_per_iteration,
        overlap=config.scoring.overlap,
        advantage=parts.advantage,
        stores_on_host=config.memory.rollouts == "host",
        thoughts=ThoughtReader(config.updates.calls_at_once),
        ahead=config.rollout.ahead,
        elsewhere=elsewhere,
        saves=lambda iteration: config.rollout.is_saved(iteration + 1, config.iterations),
    )


def _replay(config: RunConfig, parts: Parts, processes: Processes) -> Replay | None:
    if config.replay is None:
        return None
    size, more = config.group_size, config.groups.more
    wanted = size * config.prompts_per_iteration + (0 if more is None else more.budget)
    owned = (parts.policy, parts.sampler, parts.prompts, processes, parts.advantage)
    return Replay(config.replay, *owned, config.seed, bundle=size, wanted=wanted)


def _evaluator(config: RunConfig, parts: Parts, processes: Processes, num_samples: int) -> Evaluator | None:
    if parts.evaluation is None:
        return None
    return _evaluator_of(config, parts.policy, parts.evaluation, processes, num_samples)


def _evaluator_of(
    config: RunConfig, policy: Modality, evaluation: EvaluationParts, processes: Processes, num_samples: int
) -> Evaluator:
    """Returns the evaluator, its judges loaded. `num_samples`: that are sampled at once."""
    settings = evaluation.settings
    with processes.lockstep():
        evaluation.scorer.prepare(processes.placement)
        for sampler in (evaluation.sampler, *evaluation.also.values()):
            during_sampling.prepare(sampler, processes.placement)
    return Evaluator(
        policy=policy,
        sampler=evaluation.sampler,
        scorer=evaluation.scorer,
        processes=processes,
        prompts=evaluation.prompts,
        weights=final_weights(config),
        samples_per_prompt=settings.samples_per_prompt,
        seed=settings.seed,
        chunk=max(1, num_samples // settings.samples_per_prompt),
        iteration=config.iterations,
        saved_samples=settings.saved_samples,
        by=settings.by,
    )


def build_evaluated(
    config: RunConfig, policy: Modality, settings: EvaluationSettings, sources: Sequence[DatasetSettings]
) -> EvaluationParts:
    """Builds and checks what an evaluation on other prompts needs, and nothing of the training; loads the prompts.

    Raises ConfigError as `build` does.
    """
    scorer = build_scorer(settings.rewards or config.rewards, config.scoring)
    sampler = plugins.build("samplers", settings.sampler)
    needed = during_sampling.with_sampler_rewards(scorer.demands, {"sampler": sampler})
    prompts = tuple(prompt for source in sources for prompt in load_prompts(source, needed))
    parts = EvaluationParts(settings, sampler, {}, scorer, prompts)
    check_evaluation(config, policy, parts)
    check_coordinates(policy, (scorer,))
    if batches.ANSWERS in batches.autos(config):
        raise ConfigError("modality.answer_batch is auto, which training chooses; here it needs a number")
    if policy.sample_kind == "latents" and reader_of(policy) is None and any(prompt.media for prompt in prompts):
        raise ConfigError(f"the prompts have images, and modality {config.modality['name']!r} takes none")
    return parts


def make_evaluator(
    config: RunConfig, policy: Modality, evaluation: EvaluationParts, sources: Sequence[DatasetSettings]
) -> Evaluator:
    """Loads the weights that an evaluation needs, those of the policy and of its judges, and no others.

    Raises ConfigError where they cannot be loaded, and for a prompt that the policy cannot read.
    """
    if config.threads is not None:
        torch.set_num_threads(config.threads)
    _set_tf32(config.tf32)
    processes = Processes(config.precision, config.sharding)
    torch.manual_seed(seed_from(config.seed, "initial weights"))
    with processes.lockstep():
        policy.prepare(processes.placement)
        check_coordinates(policy, (evaluation.scorer,))
    processes.shard(policy)
    with processes.lockstep():
        if (reader := reader_of(policy)) is not None:
            evaluation = replace(evaluation, prompts=readable(reader, evaluation.prompts, sources[0]))
    _start_weights(config, policy)
    if isinstance(policy, Prefetching):
        policy.use_workers(config.data.workers_on(processes.device.type), config.data.ahead_bytes)
    num_samples = (config.rollout_groups or config.prompts_per_iteration) * config.group_size
    return _evaluator_of(config, policy, evaluation, processes, num_samples)


def _start_weights(config: RunConfig, policy: Modality) -> None:
    """Puts the weights of an earlier run in place, where this one starts from them, and places what is trained."""
    if config.warm_start is not None:
        try:
            policy.weights.start_from(_trained_of(Path(config.warm_start)))
        except ConfigError:
            raise
        except ValueError as error:
            raise ConfigError(f"warm_start: {config.warm_start} holds another model: {error}") from error
    place(config.memory, policy.weights)


def _stream(config: RunConfig, scorer: Scorer, sampler: Sampler) -> PromptStream:
    sources = mixture(config.prompts.train)
    needed = during_sampling.with_sampler_rewards(scorer.demands, {"sampler": sampler})
    sets = [load_prompts(source, needed) for source, _ in sources]
    settings, weights = config.prompts.curriculum, [weight for _, weight in sources]
    if settings is not None and len(sets) == 1:
        raise ConfigError("prompts.curriculum chooses among the sources of a mixture, of which prompts.train has one")
    curriculum = None if settings is None else Curriculum(len(sets), settings.window, settings.temperature)
    return PromptStream(sets, weights, config.seed, curriculum)


def _evaluation(config: RunConfig) -> EvaluationParts | None:
    settings = config.evaluation
    if settings is None:
        return None
    if config.prompts.held_out is None:
        raise ConfigError("evaluation needs prompts.held_out")
    scorer = build_scorer(settings.rewards or config.rewards, config.scoring, _absolute(config, settings))
    sampler = plugins.build("samplers", settings.sampler)
    also = {name: plugins.build("samplers", other) for name, other in settings.also.items()}
    samplers = {"evaluation.sampler": sampler} | {f"evaluation.also.{name}": other for name, other in also.items()}
    needed = during_sampling.with_sampler_rewards(scorer.demands, samplers)
    prompts = load_prompts(config.prompts.held_out, needed)[: settings.num_prompts]
    if settings.by is not None and (lacking := [one for one in prompts if settings.by not in one.target]):
        there = ", ".join(sorted(lacking[0].target)) or "nothing"
        raise ConfigError(
            f"evaluation.by: a held-out prompt has no target.{settings.by}, its target has {there} "
            f"(prompt {lacking[0].text[:80]!r})"
        )
    return EvaluationParts(settings, sampler, also, scorer, prompts)


def _absolute(config: RunConfig, settings: EvaluationSettings) -> Plugin | None:
    """Returns the mix of held-out scores: the run's, if it mixes the same rewards and can score a sample alone."""
    is_own = settings.rewards is None and config.mix is not None
    return (
        config.mix if is_own and not MixDeclaration.of(plugins.build("mixes", config.mix or {})).is_relative else None
    )


def judged_by_settings(config: RunConfig, parts: Parts) -> Parts:
    """Returns the parts with the prompts that the policy can read, as far as that is known before its model is loaded.

    Raises ConfigError as `readable`.
    """
    return _readable_parts(config, parts) if PolicyDeclaration.of(parts.policy).refuses_by_settings else parts


def _readable_parts(config: RunConfig, parts: Parts) -> Parts:
    """Returns the parts with the prompts that the policy can read; media are not decoded."""
    reader = reader_of(parts.policy)
    if reader is None:
        return parts
    stream, evaluation = parts.prompts, parts.evaluation
    sources = [source for source, _ in mixture(config.prompts.train)]
    sets = [readable(reader, prompts, source) for prompts, source in zip(stream.sets, sources, strict=True)]
    if evaluation is not None and config.prompts.held_out is not None:
        held_out = readable(reader, evaluation.prompts, config.prompts.held_out)
        evaluation = replace(evaluation, prompts=held_out)
    return replace(parts, prompts=replace(stream, sets=sets), evaluation=evaluation)


def _copies(config: RunConfig, parts: Parts) -> list[WeightsName]:
    """Returns the names of the copies of the trained tensors that this run keeps."""
    wanted: dict[WeightsName, bool] = {
        "reference": requires_reference(parts.loss, parts.scorer.needs),
        "old": parts.loss.old_decay(0) is not None,
        "averaged": config.averaging is not None,
    }
    return [which for which, is_wanted in wanted.items() if is_wanted]


def _trained_of(run: Path) -> dict[str, torch.Tensor]:
    latest = checkpoint.latest(run / "checkpoints")
    if latest is None:
        raise ConfigError(f"warm_start: {run} holds no checkpoint")
    return dict(checkpoint.load(latest).tensors["trained"])
