"""Samples that teach something come back while others teach nothing."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from scipy import stats
from torch import Tensor
from torch.testing import assert_close

from mmrl.assembly.build import build
from mmrl.core.config import ReplaySettings, load_config
from mmrl.core.contracts import ConfigError
from mmrl.core.data import Rollout
from mmrl.core.keys import GroupKey, generator
from mmrl.core.views import DecisionView
from mmrl.plans.answers import AnswerPlan
from mmrl.training import checkpoint
from mmrl.training.minibatches import batch_of
from mmrl.training.replay import FIRST_REPLAY_INDEX, Refilled, Replay, resample
from mmrl.training.rollouts import Collected
from tests import vision_twins
from tests.toy_runs import GROUP_SIZE, Toy, toy

PROMPTS = ("bright 1", "dull 1", "bright 2", "dull 2")


def replaying(made: Toy, **settings: Any) -> Toy:
    """The run with a replay of its samples."""
    trainer, chosen = made.trainer, {"capacity": 20} | settings
    drawing = trainer.collector
    trainer.replay = Replay(
        *(ReplaySettings.model_validate(chosen), trainer.policy, drawing.sampler, drawing.prompts, trainer.processes),
        *(trainer.advantage, 0, GROUP_SIZE, 4 * GROUP_SIZE),
    )
    return made


def replay_of(made: Toy) -> Replay:
    assert made.trainer.replay is not None
    return made.trainer.replay


def parameters(made: Toy) -> list[Tensor]:
    return [one.detach().clone() for one in made.trainer.policy.weights.parameters.values()]


def step(made: Toy, iteration: int) -> tuple[Collected, Refilled, Rollout]:
    """The samples of an iteration and what became of them; nothing is learned."""
    trainer = made.trainer
    collected = trainer.collector(iteration, "trained")
    assert collected.rollout is not None
    batch = batch_of(collected, trainer.advantage, trainer.processes.device)
    refilled = replay_of(made)(collected, collected.rollout, batch, iteration)
    assert refilled.rollout is not None
    return collected, refilled, refilled.rollout


@pytest.mark.parametrize(
    ("alpha", "expected"), [(0.0, [1, 1, 1]), (1.0, [1 / 7, 2 / 7, 4 / 7]), (2.0, [1 / 21, 4 / 21, 16 / 21])]
)
def test_samples_come_in_proportion_to_their_advantages(alpha: float, expected: list[float]) -> None:
    draws = [row for n in range(1000) for row in resample([1.0, -2.0, 4.0], 3, alpha, generator("chi", n))]
    counts = [draws.count(row) for row in range(3)]
    assert stats.chisquare(counts, [3000 * one / sum(expected) for one in expected]).pvalue > 0.01


def test_no_more_samples_come_back_than_there_are() -> None:
    source = generator("many")
    assert len(resample([0.5, -0.1], 9, 1.0, source)) == 2 and len(resample([0.5] * 9, 4, 1.0, source)) == 4
    assert resample([], 9, 1.0, source) == [] and resample([1.0], 0, 1.0, source) == []


def test_an_empty_buffer_changes_nothing(tmp_path: Path) -> None:
    plain, other = toy(tmp_path / "plain", *PROMPTS), replaying(toy(tmp_path / "other", *PROMPTS))
    for made in (plain, other):
        made.trainer._iterate(0)
    assert all(torch.equal(one, two) for one, two in zip(parameters(plain), parameters(other), strict=True))
    assert len(replay_of(other).buffer) > 0


def test_the_buffer_keeps_the_newest_samples_with_an_advantage(tmp_path: Path) -> None:
    made = replaying(toy(tmp_path, *PROMPTS))
    wanted: list[float] = []
    for iteration in range(3):
        collected, _, _ = step(made, iteration)
        advantages = made.trainer.advantage(collected.scores)
        wanted += [value for value in advantages.tolist() if value != 0]
        buffer = replay_of(made).buffer
        assert [one.advantage for one in buffer] == wanted[-20:]
        sets = made.trainer.collector.prompts.sets
        assert all("bright" in sets[one.place[0]][one.place[1]].text for one in buffer)
        totals = collected.scores.total[advantages != 0].tolist()
        assert [one.score for one in buffer[-len(totals) :]] == totals[-20:]


def test_replayed_samples_fill_the_places_of_those_that_teach_nothing(tmp_path: Path) -> None:
    made = replaying(toy(tmp_path, *PROMPTS), capacity=100)
    step(made, 0)
    before = list(replay_of(made).buffer)
    collected, refilled, rollout = step(made, 1)
    dull = int((made.trainer.advantage(collected.scores) == 0).sum())
    assert dull >= 2 * GROUP_SIZE and refilled.num_replayed == dull == refilled.metrics["replay/left_out"]
    batch = refilled.batch
    assert batch is not None and int(batch.weight.sum()) == 4 * GROUP_SIZE
    count = 4 * GROUP_SIZE
    assert (batch.weight[:count] > 0).equal(batch.advantages[:count] != 0)
    assert batch.group[count:].tolist() == [FIRST_REPLAY_INDEX + n - n % GROUP_SIZE for n in range(dull)]
    assert refilled.prompt_indices == collected.kept + sorted(set(batch.group[count:].tolist()))
    known = {(tuple(one.sample["tokens"].tolist()), one.advantage) for one in before}
    rows = zip(rollout.trace.tokens[count:].tolist(), batch.advantages[count:, 0].tolist(), strict=True)
    assert {(tuple(tokens), advantage) for tokens, advantage in rows} <= known


def test_some_fully_correct_samples_stay(tmp_path: Path) -> None:
    made = replaying(toy(tmp_path, *PROMPTS), correct=0.5, correct_above=0.4, capacity=100)
    step(made, 0)
    collected, refilled, _ = step(made, 1)
    teaches = made.trainer.advantage(collected.scores) != 0
    most = int(teaches.sum()) // 2
    good = [row for row in range(len(teaches)) if not teaches[row] and collected.scores.total[row] > 0.4][:most]
    assert refilled.batch is not None and good
    assert (refilled.batch.weight[: len(teaches), 0] > 0).nonzero()[:, 0].tolist() == sorted(
        [*teaches.nonzero()[:, 0].tolist(), *good]
    )
    assert refilled.num_replayed == 4 * GROUP_SIZE - int(teaches.sum()) - len(good)


def test_the_step_is_that_of_the_recorded_ratios_by_hand(tmp_path: Path) -> None:
    fast: Any = {"optimizer": {"learning_rate": 0.1}}
    made = replaying(toy(tmp_path, *PROMPTS, **fast), capacity=100)
    made.trainer._iterate(0)
    policy: Any = made.trainer.policy
    with torch.no_grad():
        policy.network.weight += torch.linspace(-0.05, 0.05, 20).view(5, 4)
    other = replaying(toy(tmp_path / "other", *PROMPTS, **fast), capacity=100)
    other.trainer._iterate(0)
    theirs: Any = other.trainer.policy
    theirs.network.load_state_dict(policy.network.state_dict())
    _, refilled, rollout = step(other, 1)
    assert refilled.batch is not None and refilled.num_replayed > 0
    takes_part = (refilled.batch.weight > 0) & (rollout.trace.tokens >= 0)
    new = theirs._taken(rollout.trace.tokens, torch.arange(rollout.num_samples))
    ratio = (new - rollout.trace.log_prob).exp()
    worth = torch.minimum(ratio * refilled.batch.advantages, ratio.clamp(0.8, 1.2) * refilled.batch.advantages)
    lengths = takes_part.sum(1, keepdim=True).clamp(min=1)
    (-(worth * takes_part / lengths).sum() / takes_part.any(1).sum()).backward()  # a mean over samples of means
    gradient = theirs.network.weight.grad
    before = policy.network.weight.detach().clone()
    rate = made.trainer.config.optimizer.learning_rate
    assert float(gradient.norm()) < 1, "it is not clipped"
    made.trainer._iterate(1)
    assert_close(before - policy.network.weight.detach(), rate * gradient, atol=2e-7, rtol=1e-4)
    replayed = ratio.detach()[4 * GROUP_SIZE :][rollout.trace.tokens[4 * GROUP_SIZE :] >= 0]
    assert float((replayed - 1).abs().max()) > 1e-3, "the weights are no more those that drew them"


@pytest.mark.slow
def test_a_resumed_run_replays_what_it_would_have_replayed(tmp_path: Path) -> None:
    changes: dict[str, Any] = {"checkpoint": {"every": 1, "keep": 9}, "updates": {"epochs": 2, "minibatches": 2}}
    straight = replaying(toy(tmp_path / "straight", *PROMPTS, **changes), capacity=30)
    straight.trainer.train()
    broken = replaying(toy(tmp_path / "broken", *PROMPTS, **changes, iterations=1), capacity=30)
    broken.trainer.train()
    assert 0 < len(replay_of(broken).buffer) < 30, "half full"
    again = replaying(toy(tmp_path / "broken", *PROMPTS, **changes), capacity=30)
    again.trainer.restore(checkpoint.load(checkpoint.latest(tmp_path / "broken" / "checkpoints") or Path()))
    again.trainer.train()
    assert all(torch.equal(one, two) for one, two in zip(parameters(straight), parameters(again), strict=True))
    assert sum(line.get("replay/samples", 0) for line in straight.lines) > 0
    for one, two in zip(replay_of(straight).buffer, replay_of(again).buffer, strict=True):
        assert (one.place, one.advantage, one.score) == (two.place, two.advantage, two.score)
        assert all(torch.equal(one.sample[name], two.sample[name]) for name in one.sample)


def test_an_empty_buffer_is_saved_and_comes_back(tmp_path: Path) -> None:
    made = replaying(toy(tmp_path, "dull 1"))
    saved = replay_of(made).tensors()
    replay_of(made).load(saved)
    assert replay_of(made).buffer == [] and saved["place"].shape == (0, 2)


@pytest.mark.slow
def test_answers_of_a_model_come_back_with_the_log_probs_that_were_recorded() -> None:
    policy = vision_twins.policy()
    rollout = vision_twins.rollout(policy, 8)
    plan = AnswerPlan(1, 8)
    rows = [rollout.num_samples - 1, 0, 2]
    prompts = [rollout.prompts[int(rollout.prompt[row])] for row in rows]
    keys = [GroupKey(0, 5, FIRST_REPLAY_INDEX)] * len(rows)
    again = policy.replayed(prompts, [policy.taken(rollout, row) for row in rows], keys, plan)
    assert again.outputs.texts == tuple(rollout.outputs.texts[row] for row in rows)  # type: ignore[index]
    views = [DecisionView(torch.arange(int(one.blocks[0].call.max()) + 1)) for one in (rollout, again)]
    for read in (policy.recorded, policy.forward):
        first, second = (read(one, view).log_prob().detach() for one, view in zip((rollout, again), views, strict=True))
        assert_close(second, first[rows, : second.shape[1]], atol=1e-5, rtol=0)
    joined = Rollout.join([rollout, replace(again, counts=rollout.counts)])
    assert joined.trace.is_recorded and joined.num_samples == rollout.num_samples + 3


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (["sampler.top_p=0.9"], "leave out top_p, top_k and min_p"),
        (["loss={name: reinforce}"], "replay needs a loss on single samples .* got 'reinforce'"),
        (["groups={degenerate: refill, hint: box}"], r"neither with sharding 'full' nor with groups\.hint"),
        (["advantage={name: entropy_advantage, inner: {name: grpo}}"], "one advantage for each sample"),
    ],
    ids=["a cut distribution", "no ratio", "a hint", "decisions"],
)
def test_what_cannot_be_replayed_is_refused(wrong: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build(load_config("lab/ssr", wrong))


def test_images_are_not_replayed() -> None:
    with pytest.raises(ConfigError, match="replay keeps single answers that the policy itself sampled, not those of"):
        build(load_config("quickstart_policy_gradient", ["replay.capacity=9"]))
