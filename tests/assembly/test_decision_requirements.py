"""A loss that reads what decisions do not tell is refused, and told why."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, ClassVar, cast

import pytest

from mmrl.assembly.compatibility import refuse_single_samples, refuse_unprovided
from mmrl.core.contracts import ConfigError, Loss, Modality
from mmrl.core.declarations import LossDeclaration
from mmrl.losses.flow_dppo import FlowDppo
from mmrl.losses.grpo import Grpo
from mmrl.losses.guard import Guard
from mmrl.losses.neighbor import Neighbor
from mmrl.losses.nft import Nft
from mmrl.plans.flow import Neighbors, Plan, Step, Transition
from tests.parameters import in_one_test


class RequiresSteps:
    kind = "decisions"
    declaration: ClassVar[LossDeclaration] = LossDeclaration(requires=frozenset({"step"}))


def _check(loss: Any, draws: str) -> None:
    refuse_unprovided(cast(Loss, loss), cast(Modality, SimpleNamespace(sample_kind=draws)), "mine", "theirs")


@in_one_test(
    ("loss", "draws", "message"),
    [
        (Grpo(kl_coef=0.1), "tokens", "'exact_kl' of each decision, .* for a penalty set loss.kl to k1, k2 or k3"),
        (Grpo(kl_coef=0.1, kl="velocity"), "turns", "tokens have no velocity"),
        (FlowDppo(), "turns", "exact KL of tokens"),
        (Guard(), "tokens", "loss 'mine' requires 'noise' of each decision, which modality 'theirs' does not provide"),
        (Neighbor(), "tokens", "'choice' of each decision, .* a token is not compared with others"),
        (Grpo(entropy_coef=0.1), "latents", "leave out entropy_coef"),
        (RequiresSteps(), "tokens", "'step' of each decision, .* tokens have no noise levels"),
    ],
)
def test_what_is_not_told_is_refused(loss: Any, draws: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        _check(loss, draws)


@in_one_test(
    ("loss", "draws"),
    [
        (Grpo(kl_coef=0.1), "latents"),
        (Grpo(kl_coef=0.1, kl="k3"), "tokens"),
        (Grpo(entropy_coef=0.1), "tokens"),
        (Guard(kl_coef=0.1, kl="velocity"), "latents"),
        (Nft(), "latents"),
        (SimpleNamespace(kind="decisions"), "tokens"),  # a loss of one's own need not say
        (SimpleNamespace(kind="denoising", requires=frozenset({"velocity"})), "tokens"),
    ],
)
def test_what_is_told_passes(loss: Any, draws: str) -> None:
    _check(loss, draws)


MOVE, RANDOM = Step(1.0, 0.0, Transition(1.0, -1.0, 0.0)), Step(1.0, 0.0, Transition(1.0, -1.0, 0.5))
BESIDE = Neighbors(0.3, (0,), ((0, RANDOM),))


@pytest.mark.parametrize(
    "plan",
    [
        Plan(4, (RANDOM,)),  # each from a state of its own
        Plan(4, (MOVE,), neighbors=Neighbors(0.3)),
        Plan(1, (MOVE,), neighbors=BESIDE),
    ],
)
def test_a_loss_on_choices_is_refused_where_no_state_has_two_draws(plan: Plan) -> None:
    with pytest.raises(ConfigError, match="loss 'mine' compares the samples from one state, and sampler 'theirs'"):
        refuse_single_samples(cast(Loss, Neighbor()), plan, "mine", "theirs")
    refuse_single_samples(cast(Loss, Grpo()), plan, "mine", "theirs")


@pytest.mark.parametrize("plan", [Plan(4, (MOVE,), neighbors=BESIDE), Plan(1, (replace(RANDOM, branch=4),))])
def test_states_with_several_draws_pass(plan: Plan) -> None:
    refuse_single_samples(cast(Loss, Neighbor()), plan, "mine", "theirs")
