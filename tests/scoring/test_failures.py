"""Rewards that cannot judge: which samples are masked, what ends the run, and what is an error."""

import math
import re
from asyncio import CancelledError
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from mmrl.core.contracts import ConfigError, RewardBatch, RunError
from mmrl.core.data import Outputs
from mmrl.scoring.scorer import Judgement
from mmrl.system.errors import Interruption
from tests.parameters import in_one_test
from tests.scripted_reward import Judge, ScriptedReward, number, refuse, rollout, scorer


def test_only_the_samples_that_cannot_be_judged_are_masked() -> None:
    reward = ScriptedReward(refuse(1, 4), batch_size=3)
    judgement = scorer(reward).judge(rollout(num_groups=3), 0)
    assert reward.calls == [[0, 1, 2], [0], [1], [2], [3, 4, 5], [3], [4], [5]]
    assert judgement.scores.valid.tolist() == [True, False, True, True, False, True]
    assert judgement.scores.values[judgement.scores.valid, 0].tolist() == [0, 20, 30, 50]
    assert judgement.scores.values[~judgement.scores.valid].isnan().all()
    (failure,) = judgement.first_failures
    assert failure is not None and re.fullmatch(r"r0: ValueError: cannot see 1 \(at scripted_reward\.py:\d+\)", failure)


def test_a_reward_that_compares_a_group_fails_for_the_whole_group() -> None:
    reward = ScriptedReward(refuse(1), "group")
    scores = scorer(reward).score(rollout(), 0)
    assert reward.calls == [[0, 1, 2, 3], [0, 1], [2, 3]]
    assert scores.valid.tolist() == [False, False, True, True]


def test_what_fails_together_and_succeeds_alone_is_no_failure() -> None:
    def small_memory(batch: RewardBatch) -> Tensor:
        if len(batch) > 1:
            raise RuntimeError("out of memory")
        return number(batch)

    judgement = scorer(small_memory).judge(rollout(), 0)
    assert judgement.scores.values[:, 0].tolist() == [0, 1, 2, 3] and judgement.scores.valid.all()
    assert judgement.first_failures == (None,)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_score_that_is_not_finite_masks_its_sample(value: float) -> None:
    reward = ScriptedReward(lambda batch: torch.where(number(batch) == 2, value, number(batch)))
    judgement = scorer(reward).judge(rollout(), 0)
    assert len(reward.calls) == 1
    assert judgement.scores.valid.tolist() == [True, True, False, True]
    assert judgement.scores.values[2].isnan().all()
    assert judgement.first_failures == (f"r0: returned {value}",)


def test_failures_of_a_watched_reward_leave_the_samples_valid() -> None:
    whole = scorer(number, refuse(0, 1, 2, 3), weights=(1.0, 0.0), max_failed_share=0.0)
    scores = whole.score(rollout(), 0)
    assert scores.valid.all() and scores.values[:, 1].isnan().all()
    assert scores.total.tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize(("share", "is_fine"), [(0.25, True), (0.24, False), (0.0, False)])
def test_too_many_failures_end_the_run_with_the_first_message(share: float, is_fine: bool) -> None:
    whole = scorer(number, refuse(3), weights=(1.0, -1.0), max_failed_share=share)
    if is_fine:
        assert whole.score(rollout(), 0).valid.tolist() == [True, True, True, False]
    else:
        with pytest.raises(RunError, match=r"1 of 4 samples could not be judged.*r1: ValueError: cannot see 3"):
            whole.score(rollout(), 0)


def test_the_message_is_not_that_of_a_watched_reward() -> None:
    whole = scorer(refuse(0), refuse(1), weights=(0.0, 1.0), max_failed_share=0.0)
    with pytest.raises(RunError, match="first failure: r1: ValueError: cannot see 1"):
        whole.score(rollout(), 0)


def test_the_share_is_that_of_all_chunks_together() -> None:
    whole = scorer(refuse(0), max_failed_share=0.2)
    chunks = [whole.judge(rollout(1, first=0), 0), whole.judge(rollout(2, first=1), 0)]
    everyone = Judgement.join(chunks)
    whole.check(everyone.scores, everyone.first_failures)
    with pytest.raises(RunError, match="1 of 2"):
        whole.check(chunks[0].scores)


@in_one_test(
    ("answer", "got"),
    [
        (lambda batch: number(batch)[:, None], r"got torch\.float32 \[4, 1\]"),
        (lambda batch: number(batch)[:3], r"got torch\.float32 \[3\]"),
        (lambda batch: number(batch).mean(), r"got torch\.float32 \[\]"),
        (lambda batch: number(batch).double(), r"got torch\.float64 \[4\]"),
        (lambda batch: number(batch) > 1, r"got torch\.bool \[4\]"),
        (lambda batch: number(batch).tolist(), "got list"),
    ],
)
def test_a_wrong_shape_or_type_is_an_error_that_says_so(answer: Judge, got: str) -> None:
    with pytest.raises(ConfigError, match=rf"reward 'r0' must return a torch\.float32 tensor \[4\], {got}"):
        scorer(answer).score(rollout(), 0)


def test_a_reward_that_changes_what_it_judges_is_an_error() -> None:
    def spoil(batch: RewardBatch) -> Tensor:
        assert batch.outputs.images is not None
        batch.outputs.images.zero_()
        return number(batch)

    with pytest.raises(ConfigError, match="reward 'r0' changes images of its batch in place"):
        scorer(spoil, number).score(rollout(), 0)


@in_one_test("error", [GeneratorExit, SystemExit, CancelledError, BaseException])
def test_whatever_else_a_reward_raises_is_a_failure_to_judge(error: type[BaseException]) -> None:
    def judge(batch: RewardBatch) -> Tensor:
        if 1 in number(batch):
            raise error("stop")
        return number(batch)

    judgement = scorer(judge).judge(rollout(), 0)
    assert judgement.scores.valid.tolist() == [True, False, True, True]
    assert str(judgement.first_failures[0]).startswith(f"r0: {error.__name__}: stop (at test_failures.py:")


@pytest.mark.parametrize("raised", [ValueError("no words"), SystemExit(3)])
def test_an_exception_whose_words_cannot_be_had_is_a_failure_to_judge(raised: BaseException) -> None:
    class Wordless(Exception):
        def __str__(self) -> str:
            raise raised

    def judge(batch: RewardBatch) -> Tensor:
        raise Wordless

    judgement = scorer(judge, max_failed_share=1.0).judge(rollout(), 0)
    assert not judgement.scores.valid.any()
    assert str(judgement.first_failures[0]).startswith("r0: Wordless (at test_failures.py:")


def test_a_long_text_of_a_user_is_not_printed_whole() -> None:
    def judge(batch: RewardBatch) -> Tensor:
        raise ValueError(f"cannot read {'x' * 10**6} for\n{'y' * 10**6}, sorry")

    with pytest.raises(
        RunError, match=r"(?s)cannot read x+ \[\.\.\. [\d,]+ letters \.\.\.\] x+ for\ny+ .* y+, sorry"
    ) as said:
        scorer(judge, max_failed_share=0.0).score(rollout(), 0)
    assert len(str(said.value)) < 5000
    assert str(ConfigError("a" * 2000)) == "a" * 2000, "what is read in a glance stays as it is"
    assert "[... 1 letters ...]" in str(ConfigError("a" * 2001))


@in_one_test("error", [KeyboardInterrupt, Interruption, ConfigError, RunError])
def test_what_is_not_a_failure_to_judge_passes_unchanged(error: type[BaseException]) -> None:
    def judge(batch: RewardBatch) -> Tensor:
        raise error("stop")

    reward = ScriptedReward(judge)
    with pytest.raises(error, match="stop"):
        scorer(reward).score(rollout(), 0)
    assert len(reward.calls) == 1


def test_a_reward_that_needs_what_is_not_there_is_not_asked() -> None:
    reward = ScriptedReward(number)
    with pytest.raises(ConfigError, match="needs images, but the policy makes texts"):
        scorer(reward).score(replace(rollout(), outputs=Outputs(texts=("a", "b", "c", "d"))), 0)
    assert not reward.calls
