"""Scoring: order, batches, weights, metrics and graphs of rewards that can judge."""

import math
import threading
import time
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

from mmrl.core.config import label_of
from mmrl.core.contracts import ConfigError, Placement, RewardBatch, RunError
from mmrl.core.data import Outputs
from mmrl.core.declarations import RewardDeclaration
from mmrl.core.schedules import Schedule
from mmrl.scoring.scorer import Judgement, RewardTerm, Scorer, ScoringQueue
from tests.parameters import in_one_test
from tests.scripted_reward import ScriptedReward, number, refuse, rollout, scorer, term


def test_scores_have_a_row_for_each_sample_and_a_column_for_each_reward() -> None:
    scores = scorer(number, lambda batch: -number(batch), weights=(1.0, 0.25)).score(rollout(), 0)
    assert scores.values.tolist() == [[0, 0], [1, -1], [2, -2], [3, -3]]
    assert scores.names == ("r0", "r1") and scores.weights == (1.0, 0.25)
    assert scores.total.tolist() == [0, 0.75, 1.5, 2.25]
    assert scores.valid.all() and scores.group.tolist() == [0, 0, 1, 1]


def test_a_reward_without_a_batch_size_is_asked_once() -> None:
    reward = ScriptedReward(number)
    scorer(reward).score(rollout(), 0)
    assert reward.calls == [[0, 1, 2, 3]]


def test_rewards_see_samples_of_one_size_at_a_time_and_scores_keep_their_order() -> None:
    reward, whole = ScriptedReward(number, batch_size=3), ScriptedReward(lambda batch: number(batch) * 2, "group")
    parts = [rollout(num_groups=1, first=n) for n in range(3)]
    wide = replace(parts[1], outputs=Outputs(images=torch.stack([torch.full((3, 2, 4), v) for v in (2.0, 3.0)])))
    outputs = Outputs.join([parts[0].outputs, wide.outputs, parts[2].outputs])
    mixed = replace(rollout(num_groups=3), outputs=outputs)
    scores = scorer(reward, whole).score(mixed, 0)
    assert reward.calls == [[0, 1, 4], [5], [2, 3]] and whole.calls == [[0, 1, 4, 5], [2, 3]]
    assert scores.values.T.tolist() == [[0, 1, 2, 3, 4, 5], [0, 2, 4, 6, 8, 10]]
    lacking = scorer(refuse(3)).judge(mixed, 0)
    assert lacking.scores.valid.tolist() == [True, True, True, False, True, True]
    assert lacking.first_failures[0] is not None and "cannot see 3" in lacking.first_failures[0]


def test_batches_for_samples_may_cut_a_group_and_those_for_groups_never_do() -> None:
    samples, groups = ScriptedReward(number, batch_size=4), ScriptedReward(number, "group", batch_size=4)
    scores = scorer(samples, groups).score(rollout(num_groups=3, size=3), 0)
    assert samples.calls == [[0, 1, 2, 3], [4, 5, 6, 7], [8]]
    assert groups.calls == [[0, 1, 2], [3, 4, 5], [6, 7, 8]]
    assert scores.values[:, 0].tolist() == scores.values[:, 1].tolist() == list(range(9))


@pytest.mark.parametrize(("batch_size", "calls"), [(2, [[0, 2], [1, 3]]), (None, [[0, 2, 1, 3]])])
def test_scores_are_in_the_order_of_the_samples_where_groups_are_interleaved(
    batch_size: int | None, calls: list[list[float]]
) -> None:
    mixed = replace(rollout(), group=torch.tensor([7, 3, 7, 3]))
    reward = ScriptedReward(number, "group", batch_size=batch_size)
    scores = scorer(reward).score(mixed, 0)
    assert reward.calls == calls
    assert scores.values[:, 0].tolist() == [0, 1, 2, 3] and scores.group.tolist() == [7, 3, 7, 3]


def test_a_reward_that_asks_a_server_has_several_batches_under_way_and_they_stay_in_order() -> None:
    together = threading.Barrier(2, timeout=30)  # it breaks unless two batches are asked at once

    def ask(batch: RewardBatch) -> Tensor:
        together.wait()
        return number(batch)

    @dataclass
    class Remote(ScriptedReward):
        needs: ClassVar[frozenset[str]] = frozenset({"images", "service"})
        declaration: ClassVar[RewardDeclaration] = RewardDeclaration(concurrency=2)

    scores = scorer(Remote(ask, batch_size=2), number).score(rollout(), 0)
    assert scores.values.tolist() == [[n, n] for n in range(4)]


def test_a_server_is_asked_while_the_others_judge() -> None:
    together = threading.Barrier(2, timeout=30)

    def ask(batch: RewardBatch) -> Tensor:
        together.wait()
        return number(batch)

    @dataclass
    class Remote(ScriptedReward):
        needs: ClassVar[frozenset[str]] = frozenset({"images", "service"})

    assert scorer(ask, Remote(ask)).score(rollout(), 0).values.tolist() == [[n, n] for n in range(4)]


def test_weights_may_change_over_the_iterations_and_a_weight_of_0_only_watches() -> None:
    rising: Any = Schedule(start=0, end=1, first=2, last=4)
    terms = (term("a", ScriptedReward(number)), term("b", ScriptedReward(refuse(1)), rising))
    changing = Scorer(terms, max_failed_share=1.0)
    found = {iteration: changing.score(rollout(), iteration) for iteration in (0, 3, 9)}
    assert [scores.weights for scores in found.values()] == [(1.0, 0.0), (1.0, 0.5), (1.0, 1.0)]
    assert found[0].valid.all() and found[3].valid.tolist() == [True, False, True, True]
    assert found[3].total[found[3].valid].tolist() == [0, 12, 18]
    assert changing.changing_weights(3) == {"reward/b/weight": 0.5}
    with ScoringQueue(changing) as queue:
        queue.submit(rollout(), 3)
        assert queue.join().scores.weights == (1.0, 0.5)


def test_what_each_reward_takes_is_told_and_adds_up_over_chunks() -> None:
    def slow(batch: RewardBatch) -> Tensor:
        time.sleep(0.01)
        return number(batch)

    whole = scorer(slow, number)
    parts = [whole.judge(rollout(), 0), whole.judge(rollout(first=2), 0)]
    joined = Judgement.join(parts)
    assert joined.seconds == tuple(a + b for a, b in zip(parts[0].seconds, parts[1].seconds, strict=True))
    assert joined.seconds[0] > 0.02  # two sleeps, however fast the machine


def test_a_reward_sees_the_iteration_its_groups_and_no_graph() -> None:
    seen: list[RewardBatch] = []

    def judge(batch: RewardBatch) -> Tensor:
        assert not torch.is_grad_enabled()
        seen.append(batch)
        return torch.rand(len(batch), generator=batch.generator)

    one = scorer(judge, judge).score(rollout(), 11)
    assert [batch.iteration for batch in seen] == [11, 11] and seen[0].group.tolist() == [0, 0, 1, 1]
    assert torch.equal(one.values, scorer(judge, judge).score(rollout(), 11).values), "randomness comes from the keys"


def test_prepare_reaches_the_rewards_that_have_it() -> None:
    class Heavy(ScriptedReward):
        def prepare(self, placement: Placement) -> None:
            self.calls.append([float(placement.dtype == torch.bfloat16)])

    heavy = Heavy(number)
    scorer(heavy, number).prepare(Placement(torch.device("cpu"), torch.bfloat16))
    assert heavy.calls == [[1.0]]


def test_a_graph_runs_through_the_rewards_that_count() -> None:
    whole = scorer(lambda b: number(b).square(), lambda b: 3 * number(b), refuse(0, 2, 3), weights=(2.0, -1.0, 0.0))
    images = torch.tensor([5.0, 7.0]).view(2, 1, 1, 1).repeat(1, 3, 2, 2).requires_grad_()
    total = whole.score_in_graph(rollout(), Outputs(images=images), torch.tensor([3, 0]), 0)
    assert total.tolist() == [2 * 25 - 15, 2 * 49 - 21]
    total.sum().backward()
    assert images.grad is not None and images.grad[:, 0, 0, 0].tolist() == [4 * 5 - 3, 4 * 7 - 3]


def test_a_graph_shows_each_sample_its_own_prompt() -> None:
    texts: list[str] = []

    def judge(batch: RewardBatch) -> Tensor:
        texts.extend(prompt.text for prompt in batch.prompts)
        return number(batch)

    images = Outputs(images=torch.zeros(2, 3, 2, 2))
    scorer(judge).score_in_graph(rollout(), images, torch.tensor([3, 0]), 0)
    assert texts == ["prompt 1", "prompt 0"]


def test_a_graph_refuses_what_has_no_gradient() -> None:
    class Black(ScriptedReward):
        differentiable: ClassVar[bool] = False

    outputs, rows = Outputs(images=torch.zeros(1, 3, 2, 2)), torch.tensor([0])
    with pytest.raises(ConfigError, match="'r0' is not differentiable"):
        scorer(Black(number)).score_in_graph(rollout(), outputs, rows, 0)
    with pytest.raises(RunError, match="cannot judge: r0: ValueError: cannot see 0"):
        scorer(refuse(0)).score_in_graph(rollout(), outputs, rows, 0)
    with pytest.raises(RunError, match="cannot judge: r0: returned nan"):
        scorer(lambda batch: number(batch) / 0).score_in_graph(rollout(), outputs, rows, 0)
    with pytest.raises(RunError, match="cannot judge: r0: returned nan"):  # and no warning of torch's beside it
        scorer(lambda batch: number(batch).requires_grad_() / 0).score_in_graph(rollout(), outputs, rows, 0)
    with pytest.raises(ConfigError, match="all rewards have weight 0"):
        scorer(number, weights=(0.0,)).score_in_graph(rollout(), outputs, rows, 0)


@in_one_test(
    ("terms", "share", "message"),
    [
        ((), 0.1, "at least one reward"),
        ((term("a", ScriptedReward(number)), term("a", ScriptedReward(number))), 0.1, "a name of its own"),
        (
            (term("a", ScriptedReward(number), math.nan),),
            0.1,
            "the weight of reward 'a' must be a finite number of at most 1e.18, got nan",
        ),
        ((term("a", ScriptedReward(number)),), 1.1, r"max_failed_share must be in \[0, 1\], got 1.1"),
    ],
)
def test_settings_are_checked(terms: tuple[RewardTerm, ...], share: float, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Scorer(terms, share)


def test_why_a_reward_fails_is_said_once_for_each(caplog: pytest.LogCaptureFixture) -> None:
    broken: Any = ScriptedReward(lambda batch: torch.tensor([0.5, math.nan, 0.0, 1.0]))
    terms = RewardTerm("broken", broken), RewardTerm("logged", broken, weight=0.0)
    scorer = Scorer(terms, max_failed_share=0.5)
    for _ in range(2):
        judged = scorer.judge(rollout(2), 0)
        scorer.check(judged.scores, judged.first_failures)
    left_out, kept = [record.getMessage() for record in caplog.records]
    assert "is left out of its group, as further ones are: broken" in left_out
    assert "is without this score, as further ones are: logged" in kept


def test_a_score_outside_of_the_stated_range_is_said_once_and_stays(caplog: pytest.LogCaptureFixture) -> None:
    """`range` scales the axes of the report and tells a user what to expect; a wrong one is no failure."""

    @dataclass
    class Loud(ScriptedReward):
        range = (0.0, 1.0)

    loud: Any = Loud(lambda batch: torch.tensor([0.5, 3.0, 0.0, 1.0]))
    scorer = Scorer((RewardTerm("loud", loud),))
    for _ in range(2):
        assert scorer.judge(rollout(2), 0).scores.values[:, 0].tolist() == [0.5, 3.0, 0.0, 1.0]
    said = [record.getMessage() for record in caplog.records]
    assert said == ["reward 'loud' scored 3, outside of the range 0 to 1 that it states"]


@in_one_test(
    ("settings", "label"),
    [
        ({"name": "shapes"}, "shapes"),
        ({"name": "my_rewards:Redness"}, "Redness"),
        ({"name": "my.own.rewards:Redness", "label": "red: very"}, "red: very"),
        ({"name": "python", "function": "my_rewards:short"}, "short"),
        ({"name": "python"}, "python"),
        ({"name": "my_rewards:Held", "function": "other:one"}, "Held"),
    ],
)
def test_a_reward_of_one_s_own_is_called_as_its_class_or_function(settings: dict[str, str], label: str) -> None:
    assert label_of(settings) == label
