"""What a loss requires of decisions, against what those of a policy provide."""

from mmrl.contracts import ConfigError, Loss, Modality
from mmrl.evaluations import PROVIDED
from mmrl.plans import GroupPlan, Plan

_WHY_NOT = {
    "exact_kl": "the exact KL of tokens would need every log-prob of the vocabulary; for a penalty set loss.kl to k1, "
    "k2 or k3",
    "choice": "a token is not compared with others drawn after the same words",
    "noise": "a token is not drawn as a mean plus noise",
    "velocity": "tokens have no velocity; for a penalty set loss.kl to k1, k2 or k3",
    "step": "tokens have no noise levels",
    "gradient": "no gradient reaches a token that was drawn",
    "entropy": "the entropy of a denoising step is fixed by its std; leave out entropy_coef",
}


def refuse_unprovided(loss: Loss, policy: Modality, loss_name: str, modality_name: str) -> None:
    """Raises ConfigError for a loss that requires of decisions what the policy's do not provide."""
    if loss.kind != "decisions":
        return
    for what in sorted(getattr(loss, "requires", frozenset()) - PROVIDED[policy.sample_kind]):
        raise ConfigError(
            f"loss {loss_name!r} reads {what!r} of each decision, which modality {modality_name!r} does not tell: "
            + _WHY_NOT.get(what, "no modality does")
        )


def refuse_single_samples(loss: Loss, plan: GroupPlan, loss_name: str, sampler_name: str) -> None:
    """Raises ConfigError for a loss that compares the draws from one state, where no state has two."""
    if "choice" in getattr(loss, "requires", frozenset()) and isinstance(plan, Plan) and plan.max_next_states < 2:
        raise ConfigError(
            f"loss {loss_name!r} compares what was drawn from one state, and sampler {sampler_name!r} draws one from "
            "each; take sampler 'neighbor', or one whose steps branch"
        )
