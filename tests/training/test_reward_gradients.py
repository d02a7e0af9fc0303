"""Losses that read gradients of rewards: what they ask of a run is checked first, and what they cost is counted."""

from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

from mmrl.assembly.build import build, make_trainer
from mmrl.assembly.costs import gradient_calls, may_share
from mmrl.commands.check import check_tiny, plan_summary
from mmrl.core.config import check_config
from mmrl.core.contracts import ConfigError, RewardBatch
from mmrl.losses.adjoint_matching import AdjointMatching
from mmrl.losses.draft import Draft
from mmrl.losses.grpo import Grpo
from mmrl.losses.nft import Nft
from mmrl.plans.flow import Fork, Plan, Step, Transition
from mmrl.rewards.images.soft_shapes import SoftShapes
from mmrl.training.reward_gradients import requires_gradients
from tests.parameters import in_one_test

LAB: dict[str, Any] = {
    "iterations": 2,
    "group_size": 3,
    "prompts_per_iteration": 2,
    "prompts": {"train": "lab:shapes/train", "held_out": "lab:shapes/held_out"},
    "modality": {"name": "sd3", "model": "lab:shapes", "height": 32, "width": 32, "max_sequence_length": 1},
    "sampler": {"name": "ode", "num_steps": 4, "sigmas": "uniform"},
    "rewards": [{"name": "soft_shapes"}],
    "advantage": {"name": "grpo"},
    "loss": {"name": "draft", "num_steps": 2},
}
ADJOINT: dict[str, Any] = {
    "loss": {"name": "adjoint_matching"},
    "sampler": {"name": "memoryless", "num_steps": 4, "sigmas": "uniform"},
}
PAIRS: dict[str, Any] = {"group_size": 2, "prompts": {"train": "lab:shapes/pairs", "held_out": "lab:shapes/held_out"}}
PASSES = "forward passes per iteration, a backward pass as two"


class Groups(SoftShapes):
    granularity: ClassVar[Any] = "group"


def calls(**changes: Any) -> list[int]:
    found = plan_summary(check_config(LAB | changes))
    return [found[name] for name in ("network calls of a rollout", "network calls of the updates", PASSES)]


def test_the_losses_say_whether_they_read_gradients() -> None:
    assert requires_gradients(Draft()) and requires_gradients(AdjointMatching())
    assert not requires_gradients(Grpo()) and not requires_gradients(Nft())


@in_one_test(
    ("changes", "said"),
    [
        ({"rewards": [{"name": "shapes"}]}, "reward 'shapes' is not differentiable; give it weight 0 to log it"),
        (ADJOINT | {"rewards": [{"name": "shapes"}]}, "loss 'adjoint_matching' learns from gradients of rewards, and"),
        (
            {"rewards": [{"name": "tests.training.test_reward_gradients:Groups"}]},
            "of single samples, and reward .* judges each group",
        ),
        ({"mix": {"name": "product"}}, "learns from the gradient of a weighted sum; leave out mix 'product'"),
        (ADJOINT | {"mix": {"name": "product"}}, "leave out mix 'product'"),
        ({"sharding": "full", "precision": "float32"}, "set sharding to 'none'"),
        ({"loss": {"name": "draft", "num_steps": 5}}, "loss 'draft' looks back 5 steps, but the sampler makes 4"),
        ({"loss": {"name": "refl"}}, "loss 'refl' looks back 10 steps, but the sampler makes 4"),
        (ADJOINT | {"sampler": LAB["sampler"]}, "loss 'adjoint_matching' learns from random steps"),
        (PAIRS | {"sampler": {"name": "given"}}, "loss 'draft' learns .* none led to outputs that the data gives"),
        (
            PAIRS | {"sampler": LAB["sampler"] | {"name": "given_and_drawn"}},
            "take a sampler that samples all of a group",
        ),
    ],
)
def test_what_cannot_work_is_refused_before_any_weight_is_loaded(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        build(check_config(LAB | changes))


def test_a_loss_through_the_sampler_is_refused_for_answers(tmp_path: Path) -> None:
    screens = {"name": "gui", "model": "lab:screens", "dialect": "plain"}
    with pytest.raises(ConfigError, match=r"reads outputs \(.*\), but modality 'gui' evaluates decisions"):
        build(check_config(LAB | {"modality": screens, "sampler": {"name": "autoregressive", "max_tokens": 4}}))


def test_rewards_that_only_watch_need_no_gradient() -> None:
    build(check_config(LAB | {"rewards": [{"name": "soft_shapes"}, {"name": "shapes", "weight": 0.0}]}))


def test_costs_are_known_from_the_plan() -> None:
    rollout = 2 * 3 * 4
    assert calls() == [rollout, 12, rollout + 12 + 2 * 12]
    assert calls(loss={"name": "draft", "num_steps": [1, 4]}) == [rollout, 15, rollout + 3 * 15]
    assert calls(loss={"name": "draft", "renoised": 2}) == [rollout, 18, rollout + 3 * 18]
    assert calls(loss={"name": "refl", "left_out": 2}) == [rollout, 6, rollout + 3 * 6]
    guided = LAB["sampler"] | {"guidance_scale": 3.0}
    assert calls(sampler=guided) == [2 * rollout, 24, 2 * rollout + 3 * 24]
    # three decisions a sample under the trained weights and the reference, three states behind the first
    assert calls(**ADJOINT) == [rollout, 2 * 18 + 18, rollout + 2 * 18 + 18 + 2 * (18 + 18)]


def test_states_behind_a_decision_are_counted_once_also_in_trees() -> None:
    def step(sigma: float, after: float, std: float = 0.0, branch: int = 1) -> Step:
        return Step(sigma, after, Transition(1.0, after - sigma, std), branch)

    trunk = (step(1, 0.7), step(0.7, 0.4), step(0.4, 0.2), step(0.2, 0))
    fan = Fork(1, (step(0.7, 0.4, 0.1, 3), *trunk[2:]))
    assert gradient_calls(AdjointMatching(), Plan(2, trunk, forks=(fan,))) == 2 * 3 * 2
    assert gradient_calls(Draft(), Plan(2, trunk, forks=(fan,))) == 0
    assert may_share(Draft(), Plan(2, trunk, forks=(fan,))) and not may_share(Draft(), Plan(2, trunk))


@pytest.mark.slow  # whole dry runs
@pytest.mark.parametrize(
    "changes",
    [
        {"loss": {"name": "draft", "num_steps": [1, 4]}, "updates": {"epochs": 2, "minibatches": 2, "micro_batch": 5}},
        ADJOINT | {"sampler": ADJOINT["sampler"] | {"train_fraction": 0.7, "guidance_scale": 2.0}},
    ],
)
def test_a_dry_run_makes_the_calls_that_were_planned(changes: dict[str, Any]) -> None:
    evaluation = {"sampler": {"name": "ode", "num_steps": 2}, "num_prompts": 2}
    found = check_tiny(check_config(LAB | {"evaluation": evaluation} | changes))
    assert found["is_good"] and found["network calls made"] == found["network calls planned"]


@pytest.mark.slow
def test_rollouts_keep_their_states_only_for_losses_that_start_from_them(tmp_path: Path) -> None:
    for loss, keeps in (("draft", True), ("nft", False)):
        config = check_config(LAB | {"loss": {"name": loss}, "evaluation": None})
        policy: Any = make_trainer(config, build(config), tmp_path).policy
        assert policy.records_trajectories == keeps


class Half(SoftShapes):
    """Counts how often it is asked inside of a graph."""

    had_graph: ClassVar[list[bool]] = []

    def score(self, batch: RewardBatch) -> Tensor:
        assert batch.outputs.images is not None
        self.had_graph.append(batch.outputs.images.requires_grad)
        return super().score(batch) / 2


@pytest.mark.slow  # most of a second each, or more
def test_weights_that_change_over_a_run_weigh_the_gradient(tmp_path: Path) -> None:
    """The first iteration counts one reward only, so the other's weight 0 leaves it out of the graph."""
    rising = {"start": 0.0, "end": 1.0, "last": 1}
    rewards = [{"name": "soft_shapes"}, {"name": "tests.training.test_reward_gradients:Half", "weight": rising}]
    config = check_config(LAB | {"rewards": rewards, "evaluation": None, "checkpoint": {"every": 0}})
    trainer = make_trainer(config, build(config), tmp_path)
    Half.had_graph.clear()
    before = {name: tensor.clone() for name, tensor in trainer.policy.weights.tensors("trained").items()}
    trainer._iterate(0)
    assert Half.had_graph and not any(Half.had_graph)
    trainer._iterate(1)
    assert any(Half.had_graph)
    moved = [
        not torch.equal(before[name], tensor) for name, tensor in trainer.policy.weights.tensors("trained").items()
    ]
    assert all(moved)
