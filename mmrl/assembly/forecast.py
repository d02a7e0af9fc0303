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

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
PROMPT_TOKENS = 1300  # of a prompt with an image of 1 megapixel, where nothing says it
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
    launch: float = 20e-6  # seconds that eager Python takes for a kernel
    usable: float = 0.92  # of the memory: the rest is the context's and what the allocator cannot join
    rollout_mfu: float = 0.30  # of image networks
    update_mfu: float = 0.30


GPUS = {
    "h100": Gpu(80, 989, 3350),
    "h200": Gpu(141, 989, 4800),
    "a100": Gpu(80, 312, 2039, rollout_mfu=0.45, update_mfu=0.45),
    "4090": Gpu(24, 165, 1008, rollout_mfu=0.45, update_mfu=0.45),
}


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
        micro_batch=config.updates.micro_batch,
        branches=plan.forwards_per_call,
        prompt_tokens=prompt_tokens,
        max_tokens=plan.max_tokens if isinstance(plan, AnswerPlan) else 0,
    )


def footprint_of(config: RunConfig, parts: Parts, prompt_tokens: int = PROMPT_TOKENS) -> tuple[Workload, Footprint]:
    """Returns work and footprint. Raises ConfigError for a policy or a model of which nothing can be said."""
    if not isinstance(parts.policy, Foreseeing):
        raise ConfigError(f"--gpu: a policy of {type(parts.policy).__name__} has no forecast")
    work = workload_of(config, parts, prompt_tokens)
    return work, parts.policy.footprint(work)


def memory_of(config: RunConfig, parts: Parts, work: Workload, footprint: Footprint, *, fused: bool) -> dict[str, int]:
    """Returns the bytes of live tensors on a GPU in each phase of an iteration, after the first optimizer step.

    `fused`: the optimizer's temporaries are lists of all tensors (foreach, on GPUs), not of one after the other.
    """
    one, loss = footprint, parts.loss
    copies = sum(
        (
            "reference" in loss.needs and not one.is_adapter,
            "averaged" in loss.needs or config.averaging is not None,
            loss.old_decay(0) is not None,
        )
    )
    moments = {"adamw": 2.0, "adam": 2.0, "adamw8bit": 0.5, "sgd": 1.0}[config.optimizer.name]
    weights = one.frozen + one.trained * (1 + copies)
    resident = weights + int(moments * one.trained)
    rewards = 4 * sum(REWARD_WEIGHTS.get(name, 0) for name in _reward_models(config.rewards))
    resident += rewards
    in_a_step = work.calls / config.updates.minibatches
    is_once = work.micro_batch >= in_a_step
    # gradients of one micro-batch come as activations go; of several they stay
    gradients = max(one.activations, one.trained + one.last_layer) if is_once else one.trained + one.activations
    temporaries = one.trained if fused else 2 * one.largest
    phases = {
        "weights": weights + rewards,
        "rollout": resident + one.sampling + one.kept + one.outputs,
        "scoring": resident + one.kept + 2 * one.outputs,
        "update": resident + one.kept + gradients,
        "optimizer_step": resident + one.kept + one.trained + temporaries,
        "checkpoint": resident,
    }
    return phases | {"peak": max(phases.values())}


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
    if gpu_name not in GPUS:
        raise ConfigError(f"--gpu takes one of {', '.join(GPUS)}, got {gpu_name!r}")
    gpu = GPUS[gpu_name]
    work, footprint = footprint_of(config, parts, prompt_tokens)
    memory = memory_of(config, parts, work, footprint, fused=True)
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
