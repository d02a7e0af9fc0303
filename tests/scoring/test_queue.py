"""The thread that scores a chunk while the next one is drawn."""

import threading
import time
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from mmrl.core.contracts import ConfigError, RewardBatch, RunError
from mmrl.core.data import Outputs
from mmrl.scoring.scorer import Judgement, ScoringQueue
from tests.scripted_reward import ScriptedReward, number, refuse, rollout, scorer


def test_the_queue_gives_what_scoring_at_once_gives_in_order() -> None:
    def random_and_uneven(batch: RewardBatch) -> Tensor:
        time.sleep(0.02 if batch.group[0] == 0 else 0.0)  # the first chunk is the slowest
        return torch.rand(len(batch), generator=batch.generator) + number(batch)

    whole = scorer(random_and_uneven, refuse(3, 6))
    chunks = [rollout(2, first=0), rollout(1, first=2), rollout(3, first=3)]
    expected = Judgement.join([whole.judge(chunk, 4) for chunk in chunks])
    with ScoringQueue(whole) as queue:
        for chunk in chunks:
            queue.submit(chunk, 4)
        found = queue.join()
        queue.submit(chunks[1], 4)
        again = queue.join()
    torch.testing.assert_close(found.scores.values, expected.scores.values, rtol=0, atol=0, equal_nan=True)
    assert torch.equal(found.scores.valid, expected.scores.valid)
    assert found.scores.group.tolist() == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5]
    assert found.first_failures == expected.first_failures
    nothing, failure = found.first_failures
    assert nothing is None and str(failure).startswith("r1: ValueError: cannot see 3 (at scripted_reward.py:")
    assert again.scores.group.tolist() == [2, 2], "what was joined once is not joined again"


def test_a_chunk_is_scored_while_the_next_is_drawn() -> None:
    events: list[str] = []
    drawn = threading.Event()

    def judge(batch: RewardBatch) -> Tensor:
        events.append("scoring starts")
        assert drawn.wait(timeout=10), "sampling goes on while this reward thinks"
        events.append("scoring ends")
        return number(batch)

    with ScoringQueue(scorer(judge)) as queue:
        queue.submit(rollout(1), 0)
        while not events:
            time.sleep(0.001)
        events.append("next chunk drawn")
        drawn.set()
        scores = queue.join().scores
    assert events == ["scoring starts", "next chunk drawn", "scoring ends"]
    assert scores.values[:, 0].tolist() == [0, 1]


def test_no_more_than_one_chunk_waits_for_its_scores() -> None:
    judged: list[int] = []

    def judge(batch: RewardBatch) -> Tensor:
        time.sleep(0.01)
        judged.append(int(batch.group[0]))
        return number(batch)

    with ScoringQueue(scorer(judge)) as queue:
        for chunk in range(4):
            queue.submit(rollout(1, first=chunk), 0)
            assert judged[: max(0, chunk)] == list(range(chunk)), "all chunks before are scored"
        assert queue.join().scores.group.tolist() == [0, 0, 1, 1, 2, 2, 3, 3]


@pytest.mark.slow
def test_slow_rewards_and_slow_sampling_take_turns_side_by_side() -> None:
    events: list[str] = []

    def judge(batch: RewardBatch) -> Tensor:
        events.append(f"scoring {int(batch.group[0])}")
        time.sleep(0.05)
        events.append(f"scored {int(batch.group[0])}")
        return number(batch)

    with ScoringQueue(scorer(judge)) as queue:
        for chunk in range(3):
            time.sleep(0.05)
            events.append(f"drawn {chunk}")
            queue.submit(rollout(1, first=chunk), 0)
        queue.join()
    assert events.index("scoring 0") < events.index("drawn 1") and events.index("scoring 1") < events.index("drawn 2")
    assert [event for event in events if event.startswith("scored")] == ["scored 0", "scored 1", "scored 2"]


@pytest.mark.parametrize("error", [ConfigError, KeyboardInterrupt, RunError])
def test_what_the_thread_raised_is_raised_at_the_join_with_its_own_type(error: type[BaseException]) -> None:
    def judge(batch: RewardBatch) -> Tensor:
        if batch.group[0] == 0:
            raise error("from the thread")
        return number(batch)

    with ScoringQueue(scorer(judge)) as queue:
        for first in range(2):
            queue.submit(rollout(1, first=first), 0)
        with pytest.raises(error, match="from the thread"):
            queue.join()
        queue.submit(rollout(1, first=5), 0)
        assert queue.join().scores.group.tolist() == [5, 5], "the queue is clean again"


def test_no_thread_is_left_behind_even_when_sampling_fails() -> None:
    def alive() -> list[str]:
        return [thread.name for thread in threading.enumerate() if thread.name.startswith("scoring")]

    started, go_on = threading.Event(), threading.Event()

    def judge(batch: RewardBatch) -> Tensor:
        started.set()
        assert go_on.wait(10)
        return number(batch)

    reward = ScriptedReward(judge)
    with pytest.raises(RuntimeError, match="sampling failed"), ScoringQueue(scorer(reward)) as queue:
        queue.submit(rollout(1), 0)
        assert started.wait(10) and len(alive()) == 1
        threading.Timer(0.02, go_on.set).start()
        raise RuntimeError("sampling failed")
    assert not alive()
    assert len(reward.calls) == 1


def test_joining_nothing_is_the_judgement_of_no_sample() -> None:
    with ScoringQueue(scorer(number, number)) as queue:
        nothing = queue.join()
    assert nothing.scores.values.shape == (0, 2) and len(nothing.scores.valid) == 0
    some = scorer(number, number).judge(rollout(), 0)
    joined = Judgement.join([nothing, some]).scores
    assert torch.equal(joined.values, some.scores.values) and joined.group.dtype == torch.int64
    assert scorer(number).judge(replace(rollout(), **no_samples()), 0).scores.values.shape == (0, 1)


def no_samples() -> dict[str, Any]:
    none = torch.zeros(0, dtype=torch.int64)
    outputs = Outputs(images=torch.zeros(0, 3, 2, 2))
    return {"prompt": none, "group": none, "episode": none, "turn": none, "outputs": outputs}
