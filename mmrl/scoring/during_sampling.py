"""Rewards that a sampler calls in the middle of sampling: a failure ends the run, since no sample can be left out."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mmrl.core.contracts import (
    Modality,
    Placement,
    Prepared,
    Reward,
    RewardBatch,
    RunError,
    Sampler,
    Steered,
    Twinned,
)
from mmrl.core.data import Outputs, Prompt
from mmrl.core.keys import GroupKey, generator
from mmrl.core.likelihoods import thought_needs
from mmrl.core.reward_batches import Demands, check_images, check_makes
from mmrl.scoring.calls import call_reward
from mmrl.system.errors import ConfigError, raised


def reward_of(sampler: Sampler) -> Reward | None:
    """Returns the reward by which the sampler chooses during sampling; None for most samplers."""
    return sampler.reward if isinstance(sampler, Steered) else None


def with_sampler_rewards(demands: Demands, samplers: Mapping[str, Sampler]) -> Demands:
    """Returns the demands of rewards on prompts, with those of the rewards of samplers, by their places."""
    own = {f"{where}.reward": reward_of(sampler) for where, sampler in samplers.items()}
    return Demands((*demands.rewards, *((name, reward) for name, reward in own.items() if reward is not None)))


def check_steering(
    where: str, sampler: Sampler, policy: Modality, modality: str, sets: Sequence[Sequence[Prompt]]
) -> None:
    """Raises ConfigError where the sampler's reward could not judge what the policy makes of some prompt."""
    reward = reward_of(sampler)
    for prompts in sets if reward is not None else ():
        assert reward is not None, "just seen"
        if thought := thought_needs(reward.needs):
            raise ConfigError(f"{where}.reward needs {thought[0]}, which is read of whole answers alone")
        check_makes(f"{where}.reward", reward, policy.makes, modality)
        check_images(f"{where}.reward", reward, prompts)


def twin(plugin: Any, seed: int, folder: Path) -> Any:
    """Returns the random twin of a reward that loads weights, or of a sampler with such a reward; others unchanged."""
    return plugin.tiny(seed, folder) if isinstance(plugin, Twinned) else plugin


def prepare(sampler: Sampler, placement: Placement) -> None:
    """Loads what the sampler needs, such as the weights of its reward."""
    if isinstance(sampler, Prepared):
        sampler.prepare(placement)


def judged_with_gradient(
    reward: Reward, outputs: Outputs, prompts: Sequence[Prompt], keys: Sequence[GroupKey], call: int
) -> Tensor:
    """Returns the scores [n] of outputs that are estimated behind network call `call`, with a gradient to them.

    Raises RunError where the reward cannot judge one of the outputs.
    """
    scores = reward.score(_batch_of(outputs, prompts, keys, call))
    if not scores.isfinite().all():
        raise RunError(f"the reward that guides sampling, {type(reward).__name__}, gave a score that is not finite")
    return scores


def judged(reward: Reward, outputs: Outputs, prompts: Sequence[Prompt], keys: Sequence[GroupKey], call: int) -> Tensor:
    """Returns the scores [n], in float64, of outputs that are estimated behind network call `call`.

    Args:
        outputs: n. prompts, keys: of the group of each, the members of a group in their order.
    Raises:
        RunError: the reward cannot judge one of the outputs. ConfigError: it needs what they do not have.
    """
    name = type(reward).__name__
    answer = call_reward(name, reward, _batch_of(outputs, prompts, keys, call))
    if answer.values.isnan().any():
        raise RunError(f"the reward that steers sampling cannot judge: {answer.failure}") from raised(answer.failure)
    return answer.values.double()


def _batch_of(outputs: Outputs, prompts: Sequence[Prompt], keys: Sequence[GroupKey], call: int) -> RewardBatch:
    places: dict[GroupKey, int] = {}
    seeds = []
    for key in keys:
        places[key] = places.get(key, -1) + 1
        seeds.append(key.seed_for("steering", call, places[key]))
    everyone = torch.arange(len(keys))
    return RewardBatch(
        prompts=tuple(prompts),
        outputs=outputs,
        group=torch.tensor([key.prompt_index for key in keys]),
        episode=everyone,
        turn=torch.zeros_like(everyone),
        seeds=tuple(seeds),
        iteration=keys[0].iteration,
        generator=generator(*seeds),
    )
