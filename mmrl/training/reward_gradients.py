"""Gradients of rewards: which losses read them, what they ask of a run, and what carrying them back costs."""

from collections.abc import Mapping

from mmrl.core.contracts import ConfigError, Differentiable, Loss, Modality, Reward
from mmrl.core.declarations import LossDeclaration
from mmrl.plans.flow import Plan
from mmrl.plans.groups import GroupPlan
from mmrl.plans.offline import OfflinePlan


def requires_gradients(loss: Loss) -> bool:
    """Whether it learns from gradients of rewards: by the weights of the policy, or by what was drawn."""
    return loss.kind == "outputs" or carries_back(loss)


def carries_back(loss: Loss) -> bool:
    """Whether it reads the gradient of the scores by what each decision drew, see `contracts.Differentiable`."""
    return "gradient" in LossDeclaration.of(loss).requires


def check_gradients(names: Mapping[str, str], loss: Loss, policy: Modality, rewards: Mapping[str, Reward]) -> None:
    """Raises ConfigError where a loss reads gradients of rewards that are not to be had.

    Args:
        names: what the config calls the loss, the modality and the sharding. rewards: those that count.
    """
    if not requires_gradients(loss):
        return
    asked = f"loss {names['loss']!r} learns from gradients of rewards"
    if not isinstance(policy, Differentiable):
        raise ConfigError(f"{asked}, which do not reach the samples of modality {names['modality']!r}")
    if names["sharding"] != "none":
        raise ConfigError(f"{asked}, which does not go with sharded weights yet; set sharding to 'none'")
    for name, reward in rewards.items():
        if not reward.differentiable:
            raise ConfigError(
                f"{asked}, and reward {name!r} is not differentiable; give it weight 0 to watch it, or take one that "
                "`mmrl list rewards` shows as differentiable"
            )
        if reward.granularity != "sample":
            raise ConfigError(
                f"{asked} of single samples, and reward {name!r} judges each {reward.granularity}; give it weight 0"
            )


def check_steps(name: str, loss: Loss, plan: GroupPlan) -> None:
    """Raises ConfigError where the loss looks back further than its samples go, or by other ways than they came."""
    if isinstance(plan, OfflinePlan) and requires_gradients(loss):
        raise ConfigError(
            f"loss {name!r} learns from gradients through the sampler's steps, and none led to outputs that the data "
            "gives; take a sampler that draws all of a group"
        )
    if isinstance(plan, Plan) and requires_gradients(loss) and not plan.is_plain:
        raise ConfigError(
            f"loss {name!r} learns from gradients through the sampler's own steps, which lead through no solver and no "
            "choice, and beside no anchors; take solver euler, no tail, anchors 0, and a sampler that does not steer"
        )
    wanted = LossDeclaration.of(loss).num_gradient_steps
    if isinstance(plan, Plan) and wanted > plan.num_tree_steps:
        raise ConfigError(
            f"loss {name!r} looks back {wanted} steps, but the sampler makes {plan.num_tree_steps}; "
            "raise sampler.num_steps"
        )
