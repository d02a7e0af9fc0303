"""Batches whose size is `auto`: the largest that the forecast says to fit in memory. They change no result."""

import logging
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from mmrl.assembly import forecast
from mmrl.assembly.compatibility import Parts
from mmrl.core.config import RunConfig
from mmrl.core.contracts import Answering, Foreseeing, Modality
from mmrl.core.data import Prompt
from mmrl.system.errors import ConfigError
from mmrl.system.host_memory import free_bytes
from mmrl.training.processes import Processes

AUTO = "auto"
ANSWERS, CALLS = "modality.answer_batch", "updates.micro_batch"
_PROMPTS = 32  # training prompts whose longest stands for all
log = logging.getLogger(__name__)


def autos(config: RunConfig) -> list[str]:
    """Returns the keys of the batches that are `auto`."""
    values = {ANSWERS: config.modality.get("answer_batch"), CALLS: config.updates.micro_batch}
    return [key for key, value in values.items() if value == AUTO]


def check_auto(config: RunConfig, policy: Modality) -> None:
    """Raises ConfigError for batches that are `auto` where memory cannot be forecast."""
    keys = autos(config)
    if keys and config.sharding == "full":
        raise ConfigError(
            f"{keys[0]} 'auto' needs weights that every process holds whole; set a number, or sharding none"
        )
    if keys and not isinstance(policy, Foreseeing):
        raise ConfigError(f"{keys[0]} 'auto': a policy of {type(policy).__name__} has no forecast; set a number")


def chosen(config: RunConfig, parts: Parts, processes: Processes) -> RunConfig:
    """Returns the settings with a number in the place of each `auto`, the same on all processes, and lets the policy
    use them; call it once weights are loaded, so that what is free is for all else.

    Prompts are taken to be as long as the longest of some. Raises ConfigError for a device or a model of which nothing
    is known.
    """
    if not autos(config):
        return config
    room, policy = _room(config, processes), parts.policy
    groups = -(-config.prompts_per_iteration // processes.num_processes)
    own = config.model_copy(update={"prompts_per_iteration": groups})
    tokens = 1
    if isinstance(policy, Answering):
        tokens = policy.longest_prompt(_spread(parts.prompts.every)) or forecast.PROMPT_TOKENS
    numbers = fitting(own, parts, tokens, room, on_gpu=processes.device.type != "cpu")
    if ANSWERS in numbers:
        assert isinstance(policy, Answering), "its setting is auto"
        policy.answer_at_once(numbers[ANSWERS])
    return with_numbers(config, numbers)


def numbers_of(before: RunConfig, now: RunConfig) -> dict[str, int]:
    """Returns the numbers, by their keys, that stand now where `auto` stood before."""
    values: dict[str, Any] = {ANSWERS: now.modality.get("answer_batch"), CALLS: now.updates.micro_batch}
    return {key: values[key] for key in autos(before)}


def with_numbers(config: RunConfig, numbers: Mapping[str, int]) -> RunConfig:
    """Returns the settings with these batches, by their keys."""
    changed: dict[str, Any] = {}
    if ANSWERS in numbers:
        changed["modality"] = {**config.modality, "answer_batch": numbers[ANSWERS]}
    if CALLS in numbers:
        changed["updates"] = config.updates.model_copy(update={"micro_batch": numbers[CALLS]})
    return config.model_copy(update=changed)


def parts_with_numbers(parts: Parts, numbers: Mapping[str, int]) -> Parts:
    """Returns the parts with a policy of the same settings, not loaded, that answers so many at once."""
    if ANSWERS not in numbers:
        return parts
    return replace(parts, policy=replace(parts.policy, answer_batch=numbers[ANSWERS]))  # type: ignore[type-var]


def fitting_on(config: RunConfig, parts: Parts, gpu: forecast.Gpu, prompt_tokens: int) -> dict[str, int]:
    """Returns, by their keys, the largest batches that fit on a kind of GPU, or into `memory.budget_gb` there."""
    usable = gpu.usable * gpu.memory
    budget = min(usable, config.memory.budget_gb or usable)
    return fitting(config, parts, prompt_tokens, lambda weights: 1e9 * budget - weights, on_gpu=True)


def fitting(
    config: RunConfig, parts: Parts, prompt_tokens: int, room: Callable[[int], float], *, on_gpu: bool
) -> dict[str, int]:
    """Returns, by their keys, the largest batches that fit: all at once, else a power of two.

    Args:
        room: maps the bytes of the weights to those that may be taken beside them. on_gpu: as of `forecast.memory_of`.
    """
    keys, numbers = autos(config), dict[str, int]()

    def fits(phase: str, tried: Mapping[str, int]) -> bool:
        given = {**dict.fromkeys(keys, 1), **numbers, **tried}
        settings, own = with_numbers(config, given), parts_with_numbers(parts, given)
        try:
            work, footprint = forecast.footprint_of(settings, own, prompt_tokens)
        except ConfigError as error:
            raise ConfigError(f"{keys[0]} 'auto': {error}. Or set a number") from error
        memory = forecast.memory_of(settings, own, work, footprint, on_gpu=on_gpu)
        return memory[phase] - memory["weights"] <= room(memory["weights"])

    work = forecast.workload_of(with_numbers(config, dict.fromkeys(keys, 1)), parts, prompt_tokens)
    most = {ANSWERS: work.at_once, CALLS: -(-work.calls // config.updates.minibatches)}
    for key, phase in ((ANSWERS, "rollout"), (CALLS, "update")):
        if key in keys:
            numbers[key] = _largest(key, most[key], lambda size: fits(phase, {key: size}))  # noqa: B023
    return numbers


def _largest(key: str, most: int, fits: Callable[[int], bool]) -> int:
    """Returns the largest of `most` and the powers of two below it that fits; 1, with a warning, where none does."""
    if fits(most):
        return most
    sizes = [2**power for power in range(most.bit_length()) if 2**power < most]
    count = bisect_left(sizes, True, key=lambda size: not fits(size))
    if count == 0:
        log.warning("%s is 1, which by the forecast does not fit either: the run may end out of memory", key)
    return sizes[count - 1] if count else 1


def _room(config: RunConfig, processes: Processes) -> Callable[[int], float]:
    """Returns the bytes that may be taken beside weights, as a function of theirs; the same on all processes."""
    budget = config.memory.budget_gb
    if budget is not None:
        return lambda weights: 1e9 * budget - weights
    try:
        free = free_bytes(processes.device)
    except ValueError as error:
        raise ConfigError(f"{autos(config)[0]} 'auto': {error}; set memory.budget_gb, or a number") from error
    sharing = processes.num_processes if processes.device.type == "cpu" else 1
    least = min(processes.gather([free // sharing]))
    return lambda _: forecast.USABLE * least


def _spread(prompts: Sequence[Prompt]) -> Sequence[Prompt]:
    """Returns some of the prompts, from first to last."""
    return prompts[:: max(1, len(prompts) // _PROMPTS)][:_PROMPTS]
