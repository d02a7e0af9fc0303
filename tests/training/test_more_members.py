"""Groups that grow where their prompt's mean score is least certain."""

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from mmrl.advantages.grpo import Grpo
from mmrl.assembly.build import build
from mmrl.commands.check import plan_summary
from mmrl.core.config import GroupSettings, load_config
from mmrl.core.contracts import ConfigError
from mmrl.core.data import Rollout
from mmrl.core.keys import GroupKey
from mmrl.training import checkpoint
from mmrl.training.allocation import further_members
from mmrl.training.rollouts import Collected
from tests.toy_runs import GROUP_SIZE, Toy, WholeGroup, collector, stream, toy

MORE: dict[str, Any] = {"budget": 9, "per_prompt": 4, "rounds": 2, "exploration": 0.01}
PROMPTS = ("bright 1", "dull 1", "bright 2", "bright 3")


def settings(**changes: Any) -> GroupSettings:
    return GroupSettings.model_validate({"more": MORE} | changes)


def sizes(collected: Collected) -> dict[int, int]:
    return dict(Counter(collected.scores.prompt_index.tolist()))


def rollout_of(collected: Collected) -> Rollout:
    assert collected.rollout is not None
    return collected.rollout


def test_the_base_members_are_those_of_a_plain_run_and_the_budget_is_spent() -> None:
    plain, grown = (collector(stream(*PROMPTS), groups)(0, "trained") for groups in (GroupSettings(), settings()))
    first, texts = rollout_of(plain), rollout_of(grown).outputs.texts
    assert first.outputs.texts is not None and texts is not None
    assert texts[: first.num_samples] == first.outputs.texts, "what is drawn first knows nothing of what follows"
    assert grown.scores.group.tolist() == sorted(grown.scores.group.tolist())
    assert sum(sizes(grown).values()) == 4 * GROUP_SIZE + 9 == grown.num_calls == rollout_of(grown).num_samples
    dull = [key.prompt_index for key, prompt in zip(first.keys, first.prompts, strict=True) if "dull" in prompt.text]
    assert all(sizes(grown)[draw] == GROUP_SIZE for draw in dull), "their scores agree"
    assert grown.kept == plain.kept and grown.metrics["groups/largest"] == max(sizes(grown).values())


def test_each_round_looks_at_the_scores_of_those_before() -> None:
    groups = settings()
    assert groups.more is not None
    plain = collector(stream(*PROMPTS), GroupSettings())(0, "trained")
    first = further_members(plain.scores, range(4), GROUP_SIZE, groups.more, 0)
    grown = collector(stream(*PROMPTS), groups)(0, "trained")
    rollout = rollout_of(grown)
    keys = [rollout.keys[prompt] for prompt in rollout.prompt.tolist()]
    rounds = [Counter(key.prompt_index for key in keys if key.round == number) for number in (1, 2)]
    assert [rounds[0][draw] for draw in range(4)] == first and rounds[0].total() == 5
    before = [row for row, key in enumerate(keys) if key.round < 2]  # of the second
    seen = grown.scores.select(grown.local_rows[torch.tensor(before)])
    second = further_members(seen, range(4), GROUP_SIZE, groups.more, 1)
    assert [rounds[1][draw] for draw in range(4)] == second and rounds[1].total() == 4


def test_further_members_have_noise_of_their_own_and_take_the_steps_of_their_group() -> None:
    drawing, planned = collector(stream(*PROMPTS), settings()), list[tuple[GroupKey, int]]()

    class Noted(WholeGroup):
        def plan(self, policy: Any, key: GroupKey, group_size: int) -> int:
            planned.append((key, group_size))
            return group_size

    rollout = rollout_of(replace(drawing, sampler=Noted())(0, "trained"))
    assert all(key.round == 0 for key, _ in planned) and sum(size for _, size in planned) == 4 * GROUP_SIZE + 9
    assert len(set(rollout.keys)) == len(rollout.keys) == len(planned) > 4


@pytest.mark.parametrize("degenerate", ["keep", "drop", "refill"])
@pytest.mark.parametrize("chunk", [1, 3])
def test_neither_chunks_nor_overlap_change_what_is_drawn(chunk: int, degenerate: str) -> None:
    groups = settings(degenerate=degenerate)
    whole = collector(stream(*PROMPTS), groups)(0, "trained")
    cut = collector(stream(*PROMPTS), groups, chunk=chunk, overlap=True)(0, "trained")
    assert rollout_of(cut).outputs.texts == rollout_of(whole).outputs.texts and cut.kept == whole.kept
    for name in ("values", "valid", "group"):
        assert torch.equal(getattr(cut.scores, name), getattr(whole.scores, name))
    assert torch.equal(cut.local_rows, whole.local_rows)


def test_a_refill_asks_for_groups_of_the_plain_size() -> None:
    grown = collector(stream(*PROMPTS), settings(degenerate="refill", max_refills=3))(0, "trained")
    assert len(grown.kept) == 4 and max(sizes(grown)) > 3
    assert all(size == GROUP_SIZE for draw, size in sizes(grown).items() if draw > 3)


def test_advantages_compare_all_members_of_a_group() -> None:
    grown = collector(stream(*PROMPTS), settings())(0, "trained")
    scores = grown.scores
    got: Tensor = Grpo()(scores)
    for draw in sizes(grown):
        values = scores.values[scores.prompt_index == draw, 0]
        assert_close(got[scores.prompt_index == draw], (values - values.mean()) / (values.std(correction=0) + 1e-4))
    assert len(set(sizes(grown).values())) > 1, "groups of unequal size"


def test_no_two_members_share_an_edge() -> None:
    grown = collector(stream(*PROMPTS), settings(), chunk=2)(0, "trained")
    assert grown.paths is not None
    is_there = grown.paths.edge >= 0
    for draw in sizes(grown):
        edges = grown.paths.edge[grown.scores.prompt_index == draw]
        assert len(edges[edges >= 0].unique()) == int((edges >= 0).sum())
    assert torch.equal(grown.paths.edge[grown.local_rows], rollout_of(grown).blocks[0].edge) and is_there.any()


@pytest.mark.slow
def test_the_calls_are_as_planned(tmp_path: Path) -> None:
    made = toy(tmp_path, *PROMPTS, groups={"more": MORE})
    made.trainer.train()
    lines = [line for line in made.lines if "calls/rollout" in line]
    assert [line["calls/rollout"] for line in lines] == [4.0 * GROUP_SIZE + 9] * 4
    summary = plan_summary(load_config("lab/xrpo"))
    assert summary["samples per iteration"] == summary["network calls of a rollout"] == 16 * 6 + 32
    flow = ["groups.more={budget: 5, per_prompt: 2, exploration: 0.1}", "prompts_per_iteration=3", "group_size=4"]
    flow += ["sampler.share_noise=false", "sampler.num_steps=8"]
    summary = plan_summary(load_config("quickstart_policy_gradient", [*flow, "updates.minibatches=1"]))
    assert summary["network calls of a rollout"] == (3 * 4 + 5) * 8


@pytest.mark.slow
def test_a_resumed_run_draws_the_same_further_members(tmp_path: Path) -> None:
    changes: dict[str, Any] = {"groups": {"more": MORE}, "checkpoint": {"every": 2}}
    straight = toy(tmp_path / "straight", *PROMPTS, **changes)
    straight.trainer.train()
    broken = toy(tmp_path / "broken", *PROMPTS, **changes, iterations=2)
    broken.trainer.train()
    again = toy(tmp_path / "broken", *PROMPTS, **changes)
    again.trainer.restore(checkpoint.load(checkpoint.latest(tmp_path / "broken" / "checkpoints") or Path()))
    again.trainer.train()
    for one, other in zip(straight.trainer.policy.weights.parameters.values(), parameters(again), strict=True):
        assert torch.equal(one, other)


def parameters(made: Toy) -> list[Tensor]:
    return list(made.trainer.policy.weights.parameters.values())


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (["groups.more.budget=257"], r"groups\.more\.budget must be .* at most per_prompt x .* \(256\), got 257"),
        (["groups.more.budget=1"], r"at least groups\.more\.rounds \(2\)"),
        (["sampler.greedy=true"], "with sampler 'autoregressive' the members of a group share steps, are compared"),
        (["rewards.0={name: majority_vote}"], "reward 'majority_vote' judges groups as a whole"),
        (
            ["sampler={name: entropy_tree, max_tokens: 12, forks: 1, rounds: 1, branch: 2}"],
            "with sampler 'entropy_tree' the members of a group",
        ),
    ],
    ids=["too many", "fewer than rounds", "greedy", "a reward of groups", "a tree"],
)
def test_groups_whose_members_are_more_than_single_samples_are_refused(wrong: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build(load_config("lab/xrpo", wrong))


def test_images_that_begin_with_one_latent_are_refused() -> None:
    grows = ["groups.more={budget: 5, per_prompt: 2, exploration: 0.1}"]
    build(load_config("quickstart_policy_gradient", [*grows, "sampler.share_noise=false"]))
    with pytest.raises(ConfigError, match="the members of a group share steps"):
        build(load_config("quickstart_policy_gradient", grows))
