"""Which runs can sample the next iteration's rollout while they learn from this one."""

import torch

from mmrl.core.config import RunConfig
from mmrl.core.contracts import ConfigError, Loss, Modality, Sampler
from mmrl.core.declarations import PolicyDeclaration
from mmrl.plans.groups import GroupPlan
from mmrl.plans.offline import OfflinePlan
from mmrl.scoring.during_sampling import reward_of


def check_ahead(config: RunConfig, policy: Modality, sampler: Sampler, loss: Loss, plan: GroupPlan) -> None:
    """Raises ConfigError for runs of which nothing can be sampled ahead as they set it."""
    ahead, devices, modality = config.rollout.ahead, config.rollout.devices, config.modality["name"]
    declared = PolicyDeclaration.of(policy)
    if devices is None:
        if ahead and not declared.samples_ahead:
            raise ConfigError(
                "rollout.ahead needs what samples ahead: rollout.devices, or modality.engine with sleep 0; and no "
                f"agent, whose screens are not known ahead; got modality {modality!r}"
            )
        return
    refusals = {
        "rollout.devices is for sampling ahead; set rollout.ahead to 1": not ahead,
        "rollout.devices is for runs without modality.engine; leave one of the two out": declared.has_inference_engine,
        f"rollout.devices cannot sample for modality {modality!r}, whose screens are not known ahead": (
            policy.sample_kind == "turns"
        ),
        "rollout.devices: processes that share the weights cannot send them; set sharding to none": (
            config.sharding == "full"
        ),
        f"rollout.devices: sampler {config.sampler['name']!r} takes outputs of the data": isinstance(plan, OfflinePlan),
        f"rollout.devices: sampler {config.sampler['name']!r} asks a reward, which is not there": (
            reward_of(sampler) is not None
        ),
        f"rollout.devices: loss {config.loss['name']!r} follows a gradient through the sampler, which is elsewhere": (
            loss.kind == "outputs"
        ),
    }
    for why, is_so in refusals.items():
        if is_so:
            raise ConfigError(why)
    for device in devices or [""]:
        try:
            torch.device(device)
        except RuntimeError as error:
            raise ConfigError(f"rollout.devices must name devices of torch, such as [cuda:1], got {devices}") from error
