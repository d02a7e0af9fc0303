"""Which runs can sample the next iteration's rollout while they learn from this one."""

import torch

from mmrl.core.config import RunConfig
from mmrl.core.contracts import ConfigError, Loss, Modality, Sampler
from mmrl.core.declarations import PolicyDeclaration
from mmrl.plans.groups import GroupPlan
from mmrl.plans.offline import OfflinePlan
from mmrl.scoring.during_sampling import reward_of
from mmrl.training.reward_gradients import requires_gradients
from mmrl.training.sampling_process import packed


def check_ahead(config: RunConfig, policy: Modality, sampler: Sampler, loss: Loss, plan: GroupPlan) -> None:
    """Raises ConfigError for runs of which nothing can be sampled ahead as they set it, before a model is loaded."""
    ahead, devices, modality = config.rollout.ahead, config.rollout.devices, config.modality["name"]
    declared = PolicyDeclaration.of(policy)
    if devices is None:
        if ahead and not declared.samples_ahead:
            raise ConfigError(
                "rollout.ahead needs what samples ahead: modality.engine with sleep 0, or rollout.devices for "
                f"images and videos; and no agent, whose screens are not known ahead; got modality {modality!r}"
            )
        return
    loss_name, sampler_name = config.loss["name"], config.sampler["name"]
    refusals = {
        "is for sampling ahead; set rollout.ahead to 1": not ahead,
        "is for runs without modality.engine; leave one of the two out": declared.has_inference_engine,
        f"is for images and videos, got modality {modality!r}; answers are sampled ahead by modality.engine": (
            policy.sample_kind != "latents"
        ),
        "needs processes that each hold all weights; set sharding to none": config.sharding == "full",
        f"has nothing to sample: sampler {sampler_name!r} takes outputs of the data": isinstance(plan, OfflinePlan),
        f"cannot serve sampler {sampler_name!r}, which asks a reward": reward_of(sampler) is not None,
        f"cannot serve loss {loss_name!r}, whose gradients go through the sampler": (
            loss.kind == "outputs" or requires_gradients(loss)
        ),
        "does not go with replay, whose samples are older still; leave one of the two out": config.replay is not None,
    }
    for why, is_so in refusals.items():
        if is_so:
            raise ConfigError(f"rollout.devices {why}")
    packed(policy)
    for device in devices or [""]:
        try:
            torch.device(device)
        except RuntimeError as error:
            raise ConfigError(f"rollout.devices must name devices of torch, such as [cuda:1], got {devices}") from error
