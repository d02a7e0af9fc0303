"""Rewards that need what the policy thinks: in runs of a lab, in chunks, and what cannot be known."""

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor

from mmrl.assembly.build import build, make_trainer
from mmrl.assembly.compatibility import example_plan
from mmrl.assembly.reward_checks import check_thought
from mmrl.commands.check import plan_summary
from mmrl.core.config import load_config
from mmrl.core.contracts import ConfigError
from mmrl.core.data import Prompt
from mmrl.core.reward_batches import check_needs
from mmrl.rewards.text.answer_likelihood import AnswerLikelihood
from mmrl.scoring.scorer import RewardTerm, Scorer
from mmrl.training.thought import _right_end
from tests.parameters import in_one_test
from tests.rewards.example import answers

SMALL = [
    "group_size=4", "prompts_per_iteration=4", "iterations=2", "sampler.max_tokens=8", "evaluation=null",
    "prompts.held_out=null", "checkpoint.every=0",
]  # fmt: skip
UNLIKELY = "{name: unlikeliness, reward: {name: point_in_box}}"


def scores_of(folder: Path, *overrides: str) -> tuple[Tensor, int]:
    """The scores of the first iteration of a run, and the network calls of its rollouts."""
    config = load_config("lab/grpo_care", [*SMALL, *overrides])
    trainer = make_trainer(config, build(config), folder)
    collected = trainer.collector(0, "trained")
    return collected.scores.values, collected.num_calls


@pytest.mark.slow
def test_a_run_in_chunks_scores_as_one_chunk_does(tmp_path: Path) -> None:
    whole, calls = scores_of(tmp_path / "whole")
    chunks, more = scores_of(tmp_path / "chunks", "rollout_groups=1", "scoring.overlap=true", "updates.micro_batch=3")
    torch.testing.assert_close(chunks, whole, atol=1e-5, rtol=0)
    assert calls == more == 16 + 16, "each answer is read once more, by the averaged weights"
    assert whole[:, -1].isfinite().all()


@pytest.mark.slow
def test_several_rewards_and_weights_read_each_answer_once_for_each(tmp_path: Path) -> None:
    rewards = "{name: self_certainty}, {name: self_certainty, label: base, weights: reference}"
    values, calls = scores_of(tmp_path, f"rewards=[{rewards}, {{name: self_certainty, label: again}}, {UNLIKELY}]")
    assert calls == 16 + 2 * 16 and (values[:, 0] > 0).all()
    torch.testing.assert_close(values[:, 0], values[:, 1])  # nothing has learned yet
    _, calls = scores_of(tmp_path / "free", f"rewards=[{UNLIKELY}]")
    assert calls == 16, "what the rollout recorded costs nothing"


@pytest.mark.slow
def test_the_plan_of_a_run_names_the_calls() -> None:
    found = plan_summary(load_config("lab/grpo_care", SMALL))
    assert found["network calls that read answers again, at most"] == 16
    assert "network calls that read answers again, at most" not in plan_summary(load_config("lab/grpo", SMALL))
    for config in ("lab/remax", "lab/tree_rl", "quickstart_agent"):  # a greedy answer, spans between forks, turns
        found = plan_summary(load_config(config, ["rewards=[{name: self_certainty}]", "evaluation=null"]))
        read, drawn = (found[f"network calls {what}"] for what in ("that read answers again, at most", "of a rollout"))
        assert read == drawn


def test_the_right_answer_stands_in_the_tag_of_the_samples_answer() -> None:
    prompt = Prompt("?", target={"answer": "red"})
    assert _right_end("it is <answer>blue</answer>", prompt) == ("it is <answer>", "red</answer>")
    assert _right_end("<answer>blue", prompt) == ("<answer>", "red</answer>")
    assert _right_end("it is red", prompt) is None
    assert _right_end("<answer>blue", Prompt("?")) is None, "a prompt of another reward of the run"
    several = Prompt("?", target={"answer": ("one", "1")})
    assert _right_end("<answer>2</answer> <answer>3</answer>", several) == ("<answer>", "one</answer>")


@pytest.mark.slow
@in_one_test(
    ("config", "overrides", "message"),
    [
        (
            "lab/flow_grpo",
            ["rewards=[{name: self_certainty}]"],
            "needs num_tokens, but modality 'sd3' makes images",
        ),
        (
            "lab/flow_grpo",
            ["rewards=[{name: unlikeliness, reward: {name: shapes}}]"],
            "needs likelihoods.sampled: how likely a policy finds answers, and 'sd3' writes none",
        ),
        ("lab/grpo_care", ["averaging=null"], "the run keeps no averaged weights; set averaging.decay"),
        (
            "lab/grpo",
            ["rewards=[{name: answer_likelihood, weights: old}]"],
            "the run keeps no old weights; take a loss that",
        ),
        ("lab/grpo_care", ["sharding=full"], "not read by sharded weights; set sharding to none"),
        (
            "lab/grpo_care",
            ["evaluation.rewards=[{name: self_certainty}]"],
            "needs self_certainty.trained, which an evaluation does not read; give the evaluation rewards of its own",
        ),
    ],
)
def test_what_cannot_be_known_is_refused_before_any_weight_is_loaded(
    config: str, overrides: Sequence[str], message: str
) -> None:
    with pytest.raises(ConfigError, match=message.replace(".", r"\.")):
        build(load_config(config, overrides))


def test_the_right_answer_of_a_turn_is_refused() -> None:
    parts = build(load_config("quickstart_agent"))
    scorer = Scorer((RewardTerm("r", AnswerLikelihood(of="right", weights="reference")),))
    plan = example_plan(parts.sampler, 4, parts.policy)
    with pytest.raises(
        ConfigError, match=r"needs right_answer\.reference: the right answer to a question, and episodes"
    ):
        check_thought(load_config("quickstart_agent"), parts.policy, scorer, parts.loss, plan)


def test_outside_of_training_such_a_reward_says_what_it_lacks() -> None:
    reward = AnswerLikelihood()
    with pytest.raises(
        ConfigError, match=r"needs likelihoods\.averaged: it judges the answers of a policy in training"
    ):
        check_needs("r", reward, answers(["a"], pieces=(("a",),)))
