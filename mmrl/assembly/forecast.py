"""What a run takes of a GPU, before it begins: memory by phase, and hours by FLOPs, kernels and assumptions."""

from dataclasses import dataclass
from typing import Any

import torch

from mmrl.assembly import costs
from mmrl.assembly.compatibility import Parts, example_plan
from mmrl.assembly.group_checks import plans_of_iteration
from mmrl.core.config import RunConfig
from mmrl.core.contracts import Footprint, Foreseeing, Workload
from mmrl.plans.answers import AnswerPlan
from mmrl.system.errors import ConfigError
from mmrl.training.optimizer import CHUNK

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
PROMPT_TOKENS = 1300  # of a prompt with an image of 1 megapixel, where nothing says it
USABLE = 0.92  # of a GPU's memory: the rest is the context's and what the allocator cannot join
# Weights of the rewards' models that shipped configs name, in float32; others are named as not counted.
REWARD_WEIGHTS = {
    "openai/clip-vit-large-patch14": 428_000_000,
    "google/siglip2-so400m-patch14-384": 1_140_000_000,
}


@dataclass(frozen=True)
class Gpu:
    """A kind of GPU, by its maker's data sheet, and what is assumed of programs on it."""

    memory: float  # GB
    teraflops: float  # of dense bf16 products
    bandwidth: float  # GB/s
    # What an H200 was measured to do (docs/gpu.md): decoding 22 microseconds a kernel, SD3.5 24% and 18 to 24%.
    launch: float = 20e-6  # seconds that eager Python takes for a kernel
    usable: float = USABLE
    rollout_mfu: float = 0.24  # of image networks
    update_mfu: float = 0.20


GPUS = {
    "h100": Gpu(80, 989, 3350),
    "h200": Gpu(141, 989, 4800),
    "a100": Gpu(80, 312, 2039, rollout_mfu=0.45, update_mfu=0.45),
    "4090": Gpu(24, 165, 1008, rollout_mfu=0.45, update_mfu=0.45),
}


def known_gpu(name: str) -> Gpu:
    """Returns a kind of GPU by its name. Raises ConfigError for one that is not known."""
    if name not in GPUS:
        raise ConfigError(f"--gpu takes one of {', '.join(GPUS)}, got {name!r}")
    return GPUS[name]


def workload_of(config: RunConfig, parts: Parts, prompt_tokens: int) -> Workload:
    """Returns the work of an iteration on one process."""
    plan = example_plan(parts.sampler, config.group_size, parts.policy)
    plans = plans_of_iteration(config, parts.sampler, parts.policy)
    samples = sum(one.num_samples * count for one, count in plans)
    calls = round(sum(costs.calls_per_pass(parts.loss, one, one.num_samples) * count for one, count in plans))
    branches = costs.calls_behind(parts.loss, plan)
    chunk = min(config.rollout_groups or config.prompts_per_iteration, config.prompts_per_iteration)
    return Workload(
        dtype=_DTYPES[config.precision],
        samples=samples,
        at_once=min(samples, chunk * config.group_size),
        group_size=config.group_size,
        calls=max(1, calls // branches),
        micro_batch=config.updates.calls_at_once,
        branches=plan.forwards_per_call,
        prompt_tokens=prompt_tokens,
        max_tokens=plan.max_tokens if isinstance(plan, AnswerPlan) else 0,
        trained_dtype=_DTYPES[config.memory.trained_weights],
    )


def footprint_of(config: RunConfig, parts: Parts, prompt_tokens: int = PROMPT_TOKENS) -> tuple[Workload, Footprint]:
    """Returns work and footprint. Raises ConfigError for a policy or a model of which nothing can be said."""
    if not isinstance(parts.policy, Foreseeing):
        raise ConfigError(f"a policy of {type(parts.policy).__name__} has no forecast of memory")
    work = workload_of(config, parts, prompt_tokens)
    return work, parts.policy.footprint(work)


def memory_of(config: RunConfig, parts: Parts, work: Workload, footprint: Footprint, *, on_gpu: bool) -> dict[str, int]:
    """Returns the bytes of live tensors on a device in each phase of an iteration, after the first optimizer step; and
    under `host` those that settings of `memory` keep in the CPU's memory.

    `on_gpu`: the optimizer's step is one kernel, or has lists of all tensors as temporaries, and what is on the host is
    moved; on a CPU it steps on one tensor after the other, and nothing is moved.
    """
    one, where = footprint, _places(config, parts, work, footprint)
    weights = one.frozen + one.trained + where.copies
    rewards = 4 * sum(REWARD_WEIGHTS.get(name, 0) for name in _reward_models(config.rewards))
    resident = weights + where.state + rewards
    moved = where.moved if on_gpu or work.trained_dtype != torch.float32 else 0
    keeps = config.memory.rollouts == "device"
    kept, images = one.features + (one.kept if keeps else 0), (one.outputs if keeps else 0)
    is_once = work.micro_batch >= work.calls / config.updates.minibatches
    # gradients of one micro-batch come as activations go; of several they stay
    own = where.in_float32
    gradients = max(one.activations, own + one.last_layer) if is_once else own + one.activations
    gradients = max(gradients, (0 if is_once else own) + moved + one.last_layer)
    joins = work.samples > work.at_once  # chunks become one
    samples_old = parts.loss.old_decay(0) is not None
    phases = {
        "weights": weights + rewards,
        "rollout": resident + one.features + one.sampling + one.kept + one.outputs + (moved if samples_old else 0),
        "scoring": resident + kept + (one.outputs + images if joins else one.outputs),
        "update": resident + kept + gradients,
        "optimizer_step": resident + kept + own + _temporaries(config, work, one, where, on_gpu=on_gpu),
        "checkpoint": resident,
    }
    peak = {"peak": max(phases.values())}
    host = where.host + (0 if keeps else one.kept + one.outputs)
    return phases | peak | ({"host": host} if host else {})


@dataclass(frozen=True)
class _Places:
    """Bytes of what training holds beside weights and activations."""

    in_float32: int  # trained tensors in float32: of their gradients, masters and averages
    state: int  # masters and the optimizer's moments on the device
    copies: int  # on the device
    host: int  # of state and copies, in the CPU's memory
    moved: int  # a copy that is in place, where it is not used as it is kept


def _places(config: RunConfig, parts: Parts, work: Workload, one: Footprint) -> _Places:
    memory, loss = config.memory, parts.loss
    is_rounded = not one.is_adapter and work.trained_dtype == torch.bfloat16
    whole = one.trained * (2 if is_rounded else 1)
    finer = sum(("averaged" in loss.needs or config.averaging is not None, loss.old_decay(0) is not None))
    has_reference = costs.requires_reference(loss, parts.scorer.needs) and not one.is_adapter
    copies = finer * whole + has_reference * one.trained
    state = int(_MOMENTS[config.optimizer.name] * whole)
    state += whole if is_rounded or memory.optimizer == "host" else 0
    hosted, apart = memory.optimizer == "host", memory.copies == "host"
    is_moved = bool(copies and apart) or bool(finer and is_rounded)
    return _Places(
        in_float32=whole,
        state=0 if hosted else state,
        copies=0 if apart else copies,
        host=(state if hosted else 0) + (copies if apart else 0),
        moved=one.trained if is_moved else 0,
    )


_MOMENTS = {"adamw": 2.0, "adam": 2.0, "adamw8bit": 0.5, "sgd": 1.0}  # of the size of float32 weights


def _temporaries(config: RunConfig, work: Workload, one: Footprint, where: _Places, *, on_gpu: bool) -> int:
    """Returns the bytes that an optimizer step takes beside gradients, masters and moments."""
    name, is_hosted = config.optimizer.name, config.memory.optimizer == "host"
    largest = one.largest * where.in_float32 // max(1, one.trained)
    has_masters = is_hosted or where.in_float32 > one.trained
    at_once = min(where.in_float32, max(CHUNK, largest)) if has_masters else where.in_float32
    is_fused = config.optimizer.fused is True or (config.optimizer.fused is None and on_gpu and name != "adamw8bit")
    own = 0 if is_fused else at_once if on_gpu else 2 * largest
    return own + (int((1 + _MOMENTS[name]) * at_once) if is_hosted and on_gpu else 0)


def hours_of(config: RunConfig, parts: Parts, work: Workload, one: Footprint, gpu: Gpu) -> float:
    """Returns the hours of 100 iterations on one GPU, evaluations and rewards left out; an estimate."""
    plans = plans_of_iteration(config, parts.sampler, parts.policy)
    calls = sum(plan.num_rollout_calls * count for plan, count in plans)
    plan = example_plan(parts.sampler, config.group_size, parts.policy)
    flops = calls * plan.forwards_per_call * one.call_flops + work.samples * one.decode_flops
    rollout = flops / (gpu.teraflops * 1e12 * gpu.rollout_mfu)
    if one.steps:
        chunks = -(-work.samples // work.at_once)
        read = (one.frozen + one.trained) / (gpu.bandwidth * 1e9)
        rollout = max(rollout, chunks * one.steps * max(one.kernels * gpu.launch, read))
    else:
        rollout = max(rollout, 0.0)
    passes = costs.num_passes(config, parts.loss, parts.policy, work.calls / config.updates.minibatches)
    trained = work.calls * config.updates.epochs
    forwards = work.calls * passes + (2 + one.recomputes) * trained
    update = forwards * work.branches * one.update_flops / (gpu.teraflops * 1e12 * gpu.update_mfu)
    return 100 * (rollout + update) / 3600


def forecast(config: RunConfig, parts: Parts, gpu_name: str, prompt_tokens: int = PROMPT_TOKENS) -> dict[str, Any]:
    """Returns memory by phase in GB, hours, and what was assumed. Raises ConfigError for an unknown GPU or model."""
    gpu = known_gpu(gpu_name)
    work, footprint = footprint_of(config, parts, prompt_tokens)
    memory = memory_of(config, parts, work, footprint, on_gpu=True)
    unknown = [name for name in _reward_models(config.rewards) if name not in REWARD_WEIGHTS]
    return {
        "gpu": f"{gpu_name}, {gpu.memory:g} GB",
        "memory_gb": {phase: round(size / 1e9, 2) for phase, size in memory.items()},
        "fits": memory["peak"] <= gpu.usable * gpu.memory * 1e9,
        "hours_per_100_iterations": round(hours_of(config, parts, work, footprint, gpu), 2),
        "assumed": [
            *footprint.notes,
            f"{gpu.usable:.0%} of the memory is usable",
            f"{gpu.teraflops:g} TFLOP/s, of which {gpu.rollout_mfu:.0%} in rollouts and {gpu.update_mfu:.0%} in updates"
            f", {1e6 * gpu.launch:g} microseconds for each of {footprint.kernels:,} kernels of a step: estimates",
            *([f"models of rewards that are not counted: {', '.join(unknown)}"] if unknown else []),
        ],
    }


def _reward_models(rewards: Any) -> list[str]:
    """Returns the hub names of the rewards' models, those inside of wrappers too."""
    found = []
    for one in rewards:
        given = dict(one)
        if isinstance(given.get("model"), str):
            found.append(given["model"])
        if isinstance(given.get("reward"), dict):
            found += _reward_models([given["reward"]])
    return sorted(set(found))
