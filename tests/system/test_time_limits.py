"""Rewards that hang: told by name and place when their time is up, and never waited for in vain."""

import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from torch import Tensor

from mmrl.core.contracts import RewardBatch, RunError
from mmrl.core.declarations import RewardDeclaration
from mmrl.scoring.scorer import RewardTerm, Scorer, ScoringQueue
from mmrl.system.errors import HangError, Interruption
from mmrl.system.time_limits import Patience, Workers
from tests import scripted_reward
from tests.scripted_reward import ScriptedReward, number, rollout

LIMIT = 0.05


@pytest.fixture
def hang() -> Iterator[threading.Event]:
    """Set at the end of the test, so that nothing hangs for good."""
    over = threading.Event()
    yield over
    over.set()


def hanging(over: threading.Event) -> Callable[[RewardBatch], Tensor]:
    def judge(batch: RewardBatch) -> Tensor:
        over.wait(30)
        return number(batch)

    return judge


@dataclass
class Remote(ScriptedReward):
    """One that asks a server, in several batches at once."""

    needs = frozenset({"images", "service"})
    concurrency: int = 1

    @property
    def declaration(self) -> RewardDeclaration:
        return RewardDeclaration(concurrency=self.concurrency)


def scorer(reward: Any, *others: Any) -> Scorer:
    terms = tuple(RewardTerm(f"r{place}", one) for place, one in enumerate([reward, *others]))
    return Scorer(terms, 1.0, patience=Patience(LIMIT))


SAID = (
    r"reward 'r0', called with \d samples, has not answered within the 0.05 seconds of scoring.call_seconds "
    r"\(at test_time_limits.py:\d+\)"
)


def test_a_reward_that_hangs_in_the_main_thread_is_interrupted(hang: threading.Event) -> None:
    with pytest.raises(RunError, match=SAID):
        scorer(ScriptedReward(hanging(hang))).judge(rollout(), 0)


@pytest.mark.slow  # most of a second each, or more
def test_a_reward_that_hangs_while_the_next_chunk_is_drawn_is_left_behind(hang: threading.Event) -> None:
    with pytest.raises(RunError, match=SAID), ScoringQueue(scorer(ScriptedReward(hanging(hang)))) as queue:
        queue.submit(rollout(), 0)
        queue.join()
    left = next(thread for thread in threading.enumerate() if thread.name.startswith("scoring"))
    assert left.daemon, "the process can end"


@pytest.mark.slow
@pytest.mark.parametrize("concurrency", [1, 2])
def test_a_judge_behind_a_server_that_hangs_is_left_behind(hang: threading.Event, concurrency: int) -> None:
    judge = Remote(hanging(hang), batch_size=2, concurrency=concurrency)
    with pytest.raises(HangError, match=SAID):
        scorer(judge, ScriptedReward(number)).judge(rollout(), 0)


def test_a_regular_expression_without_an_end_is_interrupted() -> None:
    import re

    def judge(batch: RewardBatch) -> Tensor:
        re.match("^(a+)+$", "a" * 60 + "!")
        return number(batch)

    with pytest.raises(RunError, match=SAID):
        scorer(ScriptedReward(judge)).judge(rollout(), 0)


def test_a_reward_that_catches_every_exception_once_is_told_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mmrl.system.time_limits.SECOND_TRY", 0.01)

    def judge(batch: RewardBatch) -> Tensor:
        for _ in range(2):
            try:
                time.sleep(30)
            except BaseException:
                continue
        time.sleep(30)
        return number(batch)

    with pytest.raises(RunError, match=SAID):
        scorer(ScriptedReward(judge)).judge(rollout(), 0)


def test_rewards_that_answer_in_time_leave_no_alarm_behind() -> None:
    before = signal.getsignal(signal.SIGALRM), signal.getitimer(signal.ITIMER_REAL)
    patient = scorer(ScriptedReward(number), Remote(number, batch_size=2, concurrency=2))
    assert patient.judge(rollout(), 0).scores.values[:, 0].tolist() == [0, 1, 2, 3]
    assert before == (signal.getsignal(signal.SIGALRM), signal.getitimer(signal.ITIMER_REAL))
    assert patient.patience.late(-1e9) is None, "nothing is under way"


def test_an_alarm_of_somebody_else_goes_off_when_it_would_have() -> None:
    rung: list[float] = []
    before = signal.signal(signal.SIGALRM, lambda *_: rung.append(time.monotonic()))
    other, interval = signal.setitimer(signal.ITIMER_REAL, 0.06)
    try:
        began = time.monotonic()
        with Patience(0.05).call("who", None):
            time.sleep(0.02)
        with Patience(5).call("who", None):  # their alarm is earlier, and stays
            while not rung:
                time.sleep(0.001)
        assert rung[0] - began >= 0.06
    finally:
        signal.signal(signal.SIGALRM, before)
        signal.setitimer(signal.ITIMER_REAL, other, interval)


@pytest.mark.parametrize("error", [KeyboardInterrupt, Interruption])
def test_ctrl_c_does_not_wait_for_a_reward_that_hangs(hang: threading.Event, error: type[BaseException]) -> None:
    began, ended = threading.Event(), threading.Event()

    def judge(batch: RewardBatch) -> Tensor:
        began.set()
        hang.wait(5)
        ended.set()
        return number(batch)

    with pytest.raises(error), ScoringQueue(scripted_reward.scorer(judge)) as queue:
        queue.submit(rollout(), 0)
        assert began.wait(10)
        raise error
    assert not ended.is_set(), "it hangs still"


def test_workers_give_results_and_errors_to_whoever_waits() -> None:
    patience = Patience()
    with Workers(2, "workers", patience) as workers:
        jobs = [workers.submit(divmod, 7, divisor) for divisor in (2, 0, 3)]
        assert patience.result(jobs[0]) == (3, 1) and patience.result(jobs[2]) == (2, 1)
        with pytest.raises(ZeroDivisionError):
            patience.result(jobs[1])
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("workers")]
