"""`mmrl check`: the plan and the cost of a config; with `--tiny` a dry run on small random twins of all parts."""

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from itertools import takewhile
from pathlib import Path
from typing import Any

import torch

from mmrl.assembly import batches, costs
from mmrl.assembly.build import build, closing, judged_by_settings, make_trainer
from mmrl.assembly.compatibility import EvaluationParts, Parts, example_plan
from mmrl.assembly.forecast import forecast, known_gpu
from mmrl.assembly.group_checks import missing_tree, plans_of_iteration, shared_work, shrunk_groups
from mmrl.commands.instrumentation import Instrumented, instrument
from mmrl.core import plugins
from mmrl.core.config import DatasetSettings, Plugin, RolloutSettings, RunConfig
from mmrl.core.contracts import (
    AdapterScoring,
    EngineTwinned,
    Holding,
    Modality,
    Placement,
    PromptSharing,
    Provable,
    Reward,
    Shrinking,
    Sized,
)
from mmrl.core.data import Prompt
from mmrl.core.declarations import AdvantageDeclaration
from mmrl.core.lab_models import lab_of, resolve_lab
from mmrl.core.likelihoods import adapters_read
from mmrl.media.pictures import Role
from mmrl.media.roles import role_of
from mmrl.plans.offline import LOG_PROBS, restated
from mmrl.prompts.datasets import missing_files
from mmrl.prompts.stream import counted, tiny_prompts, with_stand_ins
from mmrl.reporting.metrics_log import MetricsLog
from mmrl.reporting.tracking import Tracking
from mmrl.scoring import during_sampling
from mmrl.scoring.scorer import Scorer
from mmrl.system.errors import ConfigError, RunError
from mmrl.system.files import scratch_folder
from mmrl.system.progress_bars import Screen, TrainingBar
from mmrl.training.examination import Examination
from mmrl.training.processes import Processes
from mmrl.training.trainer import Trainer

TINY_GROUPS, TINY_GROUP_SIZE, TINY_EVALUATED = 2, 4, 2
_PIXELS = 1e-3  # in [0, 1]: the most by which a policy may differ from its library
TINY_TOKENS = 24  # of an answer: random twins seldom end one
TINY_ROOM = 4  # tokens behind a trigger, and the characters of it


def plan_summary(config: RunConfig, num_processes: int = 1) -> dict[str, Any]:
    """Returns what one iteration of a valid config costs, before any weight is loaded.

    Calls are network evaluations in batch elements; guidance doubles each. Data files that are not on this machine are
    named, and synthetic rows of their layout are checked in their place. Raises ConfigError for an invalid config.
    """
    with scratch_folder("check") as folder:
        prompts, missing = with_stand_ins(config.prompts, folder, config.seed, roles=roles_of(config))
        parts = build(config.model_copy(update={"prompts": prompts}))
        if not missing:
            parts = judged_by_settings(config, parts)
    plan = example_plan(parts.sampler, config.group_size, parts.policy)
    groups, factor = config.prompts_per_iteration, plan.forwards_per_call
    plans = plans_of_iteration(config, parts.sampler, parts.policy)
    per_pass = round(sum(costs.calls_per_pass(parts.loss, one, one.num_samples) * count for one, count in plans))
    in_a_step = per_pass / costs.calls_behind(parts.loss, plan) / config.updates.minibatches / num_processes
    passes = costs.num_passes(config, parts.loss, parts.policy, in_a_step)
    carried = sum(costs.gradient_calls(parts.loss, one) * count for one, count in plans) * factor
    update = per_pass * passes + carried
    rollout = sum(one.num_rollout_calls * count for one, count in plans) * factor
    trained = per_pass * config.updates.epochs + carried
    readings = costs.num_readings(parts.scorer.needs, parts.advantage) * rollout
    fewest, most = groups // num_processes, -(-groups // num_processes)
    summary: dict[str, Any] = {
        "samples per iteration": sum(one.num_samples * count for one, count in plans),
        "groups per process": fewest if fewest == most else f"{fewest} or {most}",
        "network calls of a rollout": rollout,
        **({"network calls that read answers again, at most": readings} if readings else {}),
        "network calls of the updates": update,
        "forward passes per iteration, a backward pass as two": rollout + readings + update + 2 * trained,
        "optimizer steps per iteration": config.updates.epochs * config.updates.minibatches,
    }
    summary |= {what: count * factor for what, count in shared_work(plans).items()}
    if config.groups.augment is not None:
        summary["network calls of a rollout at most, with changed prompts"] = 3 * rollout
    if config.groups.degenerate == "refill":
        summary["network calls of a rollout at most, with refills"] = rollout * (1 + config.groups.max_refills)
    summary |= _evaluation(config, parts)
    summary |= costs.memory_of_videos(config, parts.policy, most)
    if why := missing_tree(config, parts, plan):
        summary["branches"] = why
    if missing:
        summary["data that is not here, which train needs"] = ", ".join(missing)
    else:
        summary["training prompts"] = counted(parts.prompts.every)
        if isinstance(parts.policy, Sized) and parts.policy.known_sizes:
            summary["training prompts by size"] = _by_size(parts.policy, parts.prompts.every)
    if model := _absent_model(config):
        summary["model that is not here, which train needs"] = model
    if size := _size_on_disk(config):
        summary["model on disk, MiB"] = size
    return summary


def gpu_forecast(config: RunConfig, gpu: str, prompt_tokens: int) -> dict[str, Any]:
    """Returns memory by phase, hours and `chosen` (batches that are `auto`) on a kind of GPU; no weight is loaded.

    Raises ConfigError for an invalid config, an unknown GPU, or a model whose architecture is not known.
    """
    with scratch_folder("check") as folder:
        prompts, _ = with_stand_ins(config.prompts, folder, config.seed, roles=roles_of(config))
        parts = build(config.model_copy(update={"prompts": prompts}))
    numbers = batches.fitting_on(config, parts, known_gpu(gpu), prompt_tokens)
    sized, parts = batches.with_numbers(config, numbers), batches.parts_with_numbers(parts, numbers)
    found = forecast(sized, parts, gpu, prompt_tokens)
    return found | {"chosen": numbers} if numbers else found


def _by_size(policy: Sized, prompts: Sequence[Prompt]) -> str:
    """Returns how many prompts, and so groups, have samples of each size, in words."""
    counts = Counter(policy.size_for(prompt) for prompt in prompts)
    return ", ".join(f"{size}: {counts[size]:,}" for size in policy.known_sizes)


def _evaluation(config: RunConfig, parts: Parts) -> dict[str, Any]:
    """Returns the samples and calls of one evaluation, under all its samplers."""
    if parts.evaluation is None:
        return {"held-out samples": 0}
    samples, size = _num_held_out(config, parts.evaluation), parts.evaluation.settings.samples_per_prompt
    costs: dict[str, Any] = {"held-out samples": samples}
    if isinstance(samples, int):
        samplers = [parts.evaluation.sampler, *parts.evaluation.also.values()]
        plans = [example_plan(sampler, size, parts.policy) for sampler in samplers]
        calls = sum(plan.num_rollout_calls * plan.forwards_per_call for plan in plans)
        costs["network calls of an evaluation"] = samples // size * calls
    return costs


def _num_held_out(config: RunConfig, evaluation: EvaluationParts) -> int | str:
    """Returns the number of samples of an evaluation; by the settings alone where the data is not on this machine."""
    source, settings = config.prompts.held_out, evaluation.settings
    if isinstance(source, DatasetSettings) and missing_files(source):
        limits = [limit for limit in (source.limit, settings.num_prompts) if limit is not None]
        return min(limits) * settings.samples_per_prompt if limits else "unknown"
    return len(evaluation.prompts) * settings.samples_per_prompt


def check_tiny(
    config: RunConfig,
    metrics: MetricsLog | None = None,
    examination: Examination | None = None,
    *,
    is_shown: bool = False,
) -> dict[str, Any]:
    """Runs two full iterations, an evaluation and checkpoints with small random twins of all parts, on a run's device.

    Sizes shrink, the code that runs does not. A data set that is not on this machine is replaced by synthetic rows of
    its layout. Returns what was observed; `is_good` in it says whether all is well. `metrics`: a file for the numbers
    of the run. `examination`: measures more of it for the doctor; its network calls are then among those observed.
    `is_shown`: says on stderr what is being done.
    Raises ConfigError for an invalid config, RunError where the run fails.
    """
    from transformers.utils import logging

    logging.disable_progress_bar()  # of files of a few kilobytes
    with scratch_folder("check") as folder:
        small = _shrunk(config)
        small = small.model_copy(
            update={"prompts": tiny_prompts(config.prompts, folder / "data", config.seed, roles=roles_of(config))}
        )
        _, missing = with_stand_ins(config.prompts, folder / "missing", config.seed)
        built = build(small)
        with ExitStack() as stack:
            for one in shrinking(built.policy, built.scorers):
                stack.enter_context(one.shrunk())
            bar = TrainingBar(small.iterations, every=1, console=Screen(is_error=True)) if is_shown else None
            if bar is not None:
                bar.say("small random twins of all parts are made, and trained for two iterations")
            twins, tracking = _twins(built, small, folder), Tracking(metrics, progress=bar)
            findings = _tried(twins, small, folder, tracking, examination, is_restated=bool(missing))
        return {"rows made up in place of": ", ".join(missing)} | findings if missing else findings


def shrinking(policy: Modality, scorers: Sequence[Scorer]) -> list[Shrinking]:
    """Returns the policy and the rewards, inner ones too, whose twins are small while constants of libraries are."""
    rewards = [reward for scorer in scorers for term in scorer.terms for reward in _with_inner(term.reward)]
    return [one for one in (policy, *rewards) if isinstance(one, Shrinking)]


def _with_inner(reward: Reward) -> Iterator[Reward]:
    """Yields a reward and those that it is made of."""
    yield reward
    for inner in reward.inner_rewards().values() if isinstance(reward, Holding) else ():
        yield from _with_inner(inner)


def check_proven(config: RunConfig) -> dict[str, Any]:
    """Loads the policy as a run does and compares it with its library on the first training prompt.

    A vision-language model is compared with its own forward pass while it is loaded. Returns what was observed;
    `is_good` in it says whether all is well, in float32; in half precision libraries round states of their own.
    Raises ConfigError for an invalid config, and for a model that cannot be trained rightly.
    """
    parts = build(config)
    found: dict[str, Any] = {}
    with closing(parts.policy):
        parts.policy.prepare(Processes(config.precision).placement)
        if isinstance(parts.policy, Provable):
            plans: list[Any] = [example_plan(parts.sampler, config.group_size, parts.policy)]
            if (held_out := parts.evaluation) is not None:
                plans += [example_plan(held_out.sampler, held_out.settings.samples_per_prompt, parts.policy)]
            found |= parts.policy.proof(parts.prompts.every[0], sorted({plan.guidance_scale for plan in plans}))
    return found | {"is_good": config.precision != "float32" or found.get("stock_difference", 0.0) <= _PIXELS}


def _tried(
    twins: Parts,
    config: RunConfig,
    folder: Path,
    tracking: Tracking,
    examination: Examination | None,
    *,
    is_restated: bool,
) -> dict[str, Any]:
    """Trains twins and returns what was observed. `is_restated`: answers of the data may be of another model."""
    with closing(twins.policy):
        restate = is_restated or lab_of(config.modality) is None
        parts, instrumented = instrument(_restated(twins) if restate else twins)
        trainer = make_trainer(config, parts, folder)
        trainer.tracking, trainer.examination = tracking, examination
        before = {key: tensor.clone() for key, tensor in trainer.policy.weights.tensors("trained").items()}
        trainer.train()
        findings = _findings(trainer, before, instrumented, trainer.config)
    return findings | _proof(twins)


def roles_of(config: RunConfig) -> list[Role]:
    """Returns the roles of the images that the policy's settings ask of each prompt."""
    names = config.modality.get("conditions") or ("image",) * max(1, int(config.modality.get("condition_images", 1)))
    return [role_of(str(name)) for name in names]


def _proof(twins: Parts) -> dict[str, Any]:
    """Returns how far the policy's twin is from the library whose code it drives; empty for a policy that drives none.

    The precision is float32, in which nothing but rounding may be left.
    """
    if not isinstance(twins.policy, Provable):
        return {}
    policy = replace(twins.policy)  # type: ignore[type-var]  # plug-ins are dataclasses
    with closing(policy):
        policy.prepare(Placement(torch.device("cpu"), torch.float32))
        return dict(policy.proof(twins.prompts.every[0]))


def _shrunk(config: RunConfig) -> RunConfig:
    groups = min(config.prompts_per_iteration, max(TINY_GROUPS, config.updates.minibatches))
    compared = AdvantageDeclaration.of(plugins.build("advantages", config.advantage)).min_group_size
    evaluation = config.evaluation and config.evaluation.model_copy(
        update={
            "num_prompts": TINY_EVALUATED,
            "samples_per_prompt": 1,
            "saved_samples": 1,
            "sampler": shortened_sampler(config.evaluation.sampler),
            "also": {name: shortened_sampler(sampler) for name, sampler in config.evaluation.also.items()},
        }
    )
    return config.model_copy(
        update={
            "iterations": 2,
            "prompts_per_iteration": groups,
            "groups": shrunk_groups(config.groups, groups),
            "rollout_groups": None if config.rollout_groups is None else 1,
            # a process of its own would load the model, not its twin
            "rollout": config.rollout if config.rollout.devices is None else RolloutSettings(),
            "group_size": _smallest_group(config, compared),
            "sampler": shortened_sampler(config.sampler),
            "evaluation": evaluation,
            "trackers": (),
            "warm_start": None,
            "max_seconds": None,
        }
    )


def _smallest_group(config: RunConfig, compared: int) -> int:
    """Returns the smallest group size that the sampler can plan with at least `compared` samples compared.

    A tree has a fixed number of leaves.
    """
    sampler = plugins.build("samplers", shortened_sampler(config.sampler))
    policy = plugins.build("modalities", resolve_lab(config.modality))
    for size in range(max(TINY_GROUP_SIZE, compared), config.group_size):
        with suppress(ConfigError):
            plan = example_plan(sampler, size, policy)
            if plan.num_compared >= compared:
                return size
    return config.group_size


def shortened_sampler(sampler: Plugin) -> Plugin:
    """Returns the sampler's settings with a small budget of tokens, where it has one, and triggers that fit in."""
    budget, room = sampler.get("max_tokens"), sampler.get("room")
    if isinstance(room, int):
        texts = [text[:TINY_ROOM] for text in sampler.get("triggers", ["wait"])]
        sampler = {**sampler, "room": min(room, TINY_ROOM), "triggers": texts}
    return sampler if not isinstance(budget, int) else {**sampler, "max_tokens": min(budget, TINY_TOKENS)}


def _twins(parts: Parts, config: RunConfig, folder: Path) -> Parts:
    """Returns the parts with random twins of everything that would load weights; an embedded lab is tiny already."""
    seed = config.seed
    policy = twin_policy(config, parts.policy, folder / "twins" / "policy")

    def twin(scorer: Scorer, name: str) -> Scorer:
        return twin_scorer(scorer, seed, folder / "twins" / name)

    evaluation = parts.evaluation
    if evaluation is not None:
        also = {name: during_sampling.twin(one, seed, folder / "also" / name) for name, one in evaluation.also.items()}
        own = during_sampling.twin(evaluation.sampler, seed, folder / "twins" / "evaluation_sampler")
        evaluation = replace(evaluation, scorer=twin(evaluation.scorer, "held_out"), sampler=own, also=also)
    sampler, scorer = (
        during_sampling.twin(parts.sampler, seed, folder / "twins" / "sampler"),
        twin(parts.scorer, "reward"),
    )
    for adapter in adapters_read(scorer.needs):
        assert isinstance(policy, AdapterScoring), "checked when the parts were built"
        policy.write_tiny_adapter(seed, Path(adapter))
    return replace(parts, policy=policy, sampler=sampler, scorer=scorer, evaluation=evaluation)


def twin_policy(config: RunConfig, policy: Modality, folder: Path) -> Modality:
    """Returns a random twin of a policy, written to `folder`; an embedded lab is tiny already."""
    if lab_of(config.modality) is None:
        return policy.tiny(config.seed, folder)
    return policy.with_tiny_engine() if isinstance(policy, EngineTwinned) else policy


def twin_scorer(scorer: Scorer, seed: int, folder: Path) -> Scorer:
    """Returns the scorer with random twins of the rewards that load weights, written to `folder`."""
    terms = tuple(
        replace(term, reward=during_sampling.twin(term.reward, seed, folder / str(number)))
        for number, term in enumerate(scorer.terms)
    )
    return replace(scorer, terms=terms)


def _restated(parts: Parts) -> Parts:
    """Returns the parts with answers of the data in the policy's own tokens, where theirs are of another model."""
    policy = parts.policy
    if not any(LOG_PROBS in prompt.target for prompt in parts.prompts.every):
        return parts
    policy.prepare(Placement(torch.device("cpu"), torch.float32))
    own = [tuple(restated(policy, prompt) for prompt in prompts) for prompts in parts.prompts.sets]
    return replace(parts, prompts=replace(parts.prompts, sets=own))


def _findings(
    trainer: Trainer, before: dict[str, torch.Tensor], instrumented: dict[str, Instrumented], config: RunConfig
) -> dict[str, Any]:
    after = trainer.policy.weights.tensors("trained")
    unmoved = sorted(name for name, tensor in after.items() if torch.equal(tensor, before[name]))
    not_finite = sorted(name for name, tensor in after.items() if not tensor.isfinite().all())
    not_run = sorted(name for name, one in instrumented.items() if not one.results)
    planned, made = _planned_calls(trainer, instrumented, config), trainer.progress.network_calls
    plans = instrumented["sampler"].results.get("plan", [])
    is_bound = any(plan.is_bound or costs.may_share(trainer.loss, plan) or config.replay for plan in plans)
    is_bound |= config.groups.augment is not None  # whose cues nothing learns from
    is_bound |= bool(costs.num_readings(trainer.collector.scorer.needs, trainer.advantage))
    # what an advantage leaves out of the update costs no call
    is_bound = is_bound or not all(
        bool(kept.all()) for kept in instrumented["advantage"].results.get("update_mask", [])
    )
    findings = {
        "plug-ins that ran": ", ".join(sorted(set(instrumented) - set(not_run))),
        "plug-ins that did not run": ", ".join(not_run) or "none",
        "scores": "with a little noise added to each, so that groups differ and weights must move",
        "trained tensors": len(after),
        "trained numbers": _by_part({name: tensor.numel() for name, tensor in after.items()}),
        "trained tensors that did not move": ", ".join(unmoved) or "none",
        "trained tensors not finite": ", ".join(not_finite) or "none",
        f"network calls planned{' at most' if is_bound else ''}": planned,
        "network calls made": made,
        "held-out score before and after": f"{_text(trainer.progress.before)} and {_text(trainer.progress.latest)}",
    }
    if isinstance(trainer.policy, PromptSharing):
        findings["answers share their prompt by"] = trainer.policy.sharing_used
    if trainer.progress.iteration != config.iterations:
        raise RunError(f"the dry run ended after {trainer.progress.iteration} of {config.iterations} iterations")
    is_good = not not_run and not unmoved and not not_finite and (made == planned or (is_bound and made < planned))
    return findings | {"is_good": is_good}


def _by_part(sizes: dict[str, int]) -> str:
    """Returns how many numbers are trained in each part, by the first three steps of parameter names, layers as one."""
    counts: dict[str, int] = {}
    for name, size in sizes.items():
        path = name.split(".")[:-1][:3]
        part = ".".join(takewhile(lambda step: not step.isdecimal(), path))
        counts[part] = counts.get(part, 0) + size
    return ", ".join(f"{part} {count:,}" for part, count in counts.items())


def _planned_calls(trainer: Trainer, instrumented: dict[str, Instrumented], config: RunConfig) -> int:
    """Returns the network calls by the plans and views of the run: of rollouts, updates and evaluations."""
    plans = instrumented["sampler"].results.get("plan", [])
    factor = plans[0].forwards_per_call if plans else 1
    rollout: int = sum(plan.num_rollout_calls for plan in plans) * factor
    loss = trainer.loss
    sizes = [view.num_calls for views in instrumented["loss"].results.get("views", []) for view in views]
    view_calls: int = sum(size * costs.num_looks(loss, size, config.updates.micro_batch) for size in sizes)
    update = view_calls * costs.num_forwards(loss) * (costs.calls_behind(loss, plans[0]) if plans else 1)
    if costs.is_recomputed(config, loss, trainer.policy):
        update += sum(plan.num_update_calls for plan in plans) * factor
    readings = costs.num_readings(trainer.collector.scorer.needs, trainer.advantage) * rollout
    carried = sum(costs.gradient_calls(loss, plan) for plan in plans) * factor
    return rollout + readings + update + carried


def _absent_model(config: RunConfig) -> str | None:
    """Returns the folder of a model that is not on this machine; names of the hub are not looked up."""
    model = str(config.modality.get("model", ""))
    return model if model.startswith((".", "/", "~")) and not Path(model).expanduser().is_dir() else None


def _size_on_disk(config: RunConfig) -> float | None:
    folder = Path(str(resolve_lab(config.modality).get("model", "")))
    if not folder.is_dir():
        return None
    return round(sum(path.stat().st_size for path in folder.rglob("*.safetensors")) / 2**20, 1)


def _text(score: float | None) -> str:
    return "none" if score is None or math.isnan(score) else f"{score:.3f}"
