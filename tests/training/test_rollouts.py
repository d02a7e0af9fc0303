"""Groups of an iteration: the same however they are cut, filtered by their spread, replaced within limits."""

import threading
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, ClassVar

import pytest
import torch

from mmrl.core.config import GroupSettings
from mmrl.core.contracts import ConfigError, RewardBatch
from mmrl.core.data import Rollout
from mmrl.training.rollouts import Collected
from tests.parameters import in_one_test
from tests.toy_runs import GROUP_SIZE, CountZeros, collector, stream

OF_SAMPLES = ("samples/", "follows/", "answers/dominant_")  # begin names of metrics with tests of their own
MIXED = ("bright 1", "dull 1", "bright 2", "dull 2", "bright 3", "dull 3", "bright 4", "bright 5", "bright 6")
DROP, REFILL = GroupSettings(degenerate="drop"), GroupSettings(degenerate="refill")


def texts_by_prompt_index(collected: Collected) -> dict[int, str]:
    """What each draw asked for, in the order of the rollout."""
    assert collected.rollout is not None
    pairs = zip(collected.rollout.keys, collected.rollout.prompts, strict=True)
    return {key.prompt_index: prompt.text for key, prompt in pairs}


def next_prompts(count: int) -> list[str]:
    return [prompt.text for _, prompt in stream(*MIXED).take(count)]


def test_draws_keep_the_order_and_the_numbers_of_the_stream() -> None:
    prompts = stream(*MIXED)
    draw = collector(prompts)
    for iteration in range(2):
        collected = draw(iteration, "trained")
        numbers = list(range(4 * iteration, 4 * iteration + 4))
        assert texts_by_prompt_index(collected) == {n: next_prompts(8)[n] for n in numbers}
        assert collected.kept == numbers
        assert collected.scores.group.tolist() == [n for n in numbers for _ in range(GROUP_SIZE)]
        assert collected.local_rows.tolist() == list(range(4 * GROUP_SIZE))
        assert collected.num_calls == 4 * GROUP_SIZE


@pytest.mark.parametrize("groups", [GroupSettings(), DROP, REFILL], ids=lambda groups: groups.degenerate)
@pytest.mark.parametrize("overlap", [True, False], ids=["overlapped", "in turn"])
@pytest.mark.parametrize("chunk", [1, 3])
def test_neither_chunks_nor_overlap_change_the_result(groups: GroupSettings, overlap: bool, chunk: int) -> None:
    whole = collector(stream(*MIXED), groups)(0, "trained")
    cut = collector(stream(*MIXED), groups, chunk=chunk, overlap=overlap)(0, "trained")
    assert cut.rollout is not None and whole.rollout is not None
    assert cut.rollout.outputs.texts == whole.rollout.outputs.texts
    assert cut.kept == whole.kept
    for name in ("values", "valid", "group"):
        assert torch.equal(getattr(cut.scores, name), getattr(whole.scores, name))
    assert torch.equal(cut.local_rows, whole.local_rows)


def test_scores_belong_to_the_answers_beside_them() -> None:
    collected = collector(stream(*MIXED), REFILL, chunk=2, overlap=True)(0, "trained")
    rollout = collected.rollout
    assert rollout is not None and rollout.outputs.texts is not None
    for row, answer in enumerate(rollout.outputs.texts):
        is_dull = "dull" in rollout.prompts[int(rollout.prompt[row])].text
        expected = 0.5 if is_dull else answer.count("0")
        assert collected.scores.values[collected.local_rows[row], 0] == expected


def test_what_is_watched_of_answers_is_meant_over_all_that_were_drawn() -> None:
    drawing = collector(stream(*MIXED), REFILL, chunk=2)
    policy: Any = drawing.policy
    plain = policy.rollout

    def counted(*given: Any) -> Rollout:
        rollout: Rollout = plain(*given)
        lengths = torch.tensor([len(text.split()) for text in rollout.outputs.texts or ()])
        return replace(rollout, outputs=replace(rollout.outputs, num_tokens=lengths))

    policy.rollout = counted
    collected = drawing(0, "trained")
    assert collected.rollout is not None and collected.rollout.outputs.texts is not None
    lengths = [len(text.split()) for text in collected.rollout.outputs.texts]
    assert len(lengths) > 4 * 6  # with a refill
    assert collected.metrics.pop("time/reward/zeros") > 0
    others = {name: one for name, one in collected.metrics.items() if not name.startswith(OF_SAMPLES)}
    assert others == {"answers/tokens": sum(lengths) / len(lengths)}


def test_chunks_are_scored_on_a_thread_of_their_own_only_where_that_is_wanted() -> None:
    for overlap, is_own in ((True, True), (False, False)):
        threads = set[str]()

        def note(batch: RewardBatch, seen: set[str] = threads) -> None:
            seen.add(threading.current_thread().name)

        collector(stream("a"), chunk=2, overlap=overlap, reward=CountZeros(note))(0, "trained")
        assert (threading.main_thread().name not in threads) is is_own


def test_dull_groups_are_dropped_and_missed() -> None:
    collected = collector(stream(*MIXED), DROP, wanted=6)(0, "trained")
    assert collected.kept == [n for n, text in enumerate(next_prompts(6)) if "bright" in text]
    assert 0 < len(collected.kept) < 6
    assert len(collected.scores.group) == 6 * GROUP_SIZE  # statistics of the batch still see them


def refilled(wanted: int, max_refills: int) -> tuple[list[int], int]:
    """The kept draws and the number of all draws, by a loop over the stream alone."""
    prompts, kept, count = stream(*MIXED), list[int](), 0
    for _ in range(1 + max_refills):
        for number, prompt in prompts.take(wanted - len(kept)):
            count += 1
            if "bright" in prompt.text:
                kept.append(number)
    return kept, count


@pytest.mark.slow
@in_one_test("max_refills", [0, 1, 2, 5])
def test_dull_groups_are_replaced_until_there_are_enough_or_the_rounds_are_used_up(max_refills: int) -> None:
    groups = GroupSettings(degenerate="refill", max_refills=max_refills)
    prompts = stream(*MIXED)
    collected = collector(prompts, groups, wanted=6)(0, "trained")
    kept, count = refilled(6, max_refills)
    assert collected.kept == kept
    assert prompts.num_taken == count == len(texts_by_prompt_index(collected))
    assert collected.scores.group.tolist() == [n for n in range(count) for _ in range(GROUP_SIZE)]
    assert len(kept) == 6 or max_refills < 5


def test_refill_rounds_have_numbers_of_their_own() -> None:
    """A round is part of a group's noise key."""
    collected = collector(stream(*MIXED), REFILL, wanted=6)(0, "trained")
    assert collected.rollout is not None
    rounds = [key.round for key in collected.rollout.keys]
    assert rounds == sorted(rounds) and set(rounds) == set(range(max(rounds) + 1)) and max(rounds) >= 1
    assert all(first.prompt_index < second.prompt_index for first, second in pairwise(collected.rollout.keys))


@pytest.mark.parametrize("groups", [DROP, REFILL], ids=lambda groups: groups.degenerate)
def test_nothing_is_kept_where_every_group_is_dull(groups: GroupSettings) -> None:
    prompts = stream("dull")
    collected = collector(prompts, groups)(0, "trained")
    assert collected.kept == []
    assert prompts.num_taken == (4 if groups is DROP else 12)


def test_a_spread_of_at_most_the_smallest_wanted_one_is_dull() -> None:
    collected = collector(stream("bright"))(0, "trained")
    spreads = collected.scores.total.view(4, GROUP_SIZE).std(1, correction=0)
    limit = float(spreads.sort().values[1])
    kept = collector(stream("bright"), GroupSettings(degenerate="drop", min_spread=limit))(0, "trained").kept
    assert kept == [n for n, spread in enumerate(spreads.tolist()) if spread > limit]
    assert len(kept) == 2


def test_dull_groups_are_kept_unless_something_else_is_asked_for() -> None:
    assert collector(stream("dull"))(0, "trained").kept == [0, 1, 2, 3]


def test_groups_are_drawn_with_the_weights_that_are_asked_for() -> None:
    draw = collector(stream("a"))
    policy: Any = draw.policy
    policy.weights.keep("old")
    with torch.no_grad():
        policy.network.bias[0] = 50.0  # the trained weights now say 0 only
    trained = draw(0, "trained").rollout
    assert trained is not None and trained.outputs.texts is not None
    assert set("".join(trained.outputs.texts)) == {"0", " "}
    old = draw(0, "old").rollout
    assert old is not None and old.outputs.texts is not None
    assert len(set("".join(old.outputs.texts))) > 2


@dataclass
class NeedsImages(CountZeros):
    needs: ClassVar[frozenset[str]] = frozenset({"images"})


@pytest.mark.parametrize("overlap", [True, False])
def test_a_reward_that_cannot_work_is_an_error_also_on_its_own_thread(overlap: bool) -> None:
    with pytest.raises(ConfigError, match="needs images, but the policy makes texts"):
        collector(stream("a"), chunk=1, overlap=overlap, reward=NeedsImages())(0, "trained")
