"""A judge of each step of an answer: what it is asked, where the numbers stand, and what credit follows from them."""

import math
import random
import re
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
import torch

from mmrl.advantages.process import Process
from mmrl.core.contracts import RewardBatch
from mmrl.core.data import Outputs, Paths, Scores
from mmrl.rewards.base.judging.memory import Ledger, Memory
from mmrl.rewards.base.judging.panel import Panel
from mmrl.rewards.base.judging.questions import Question, Reply, UnansweredError
from mmrl.rewards.base.judging.settings import JudgeModel
from mmrl.rewards.judges.segment_judge import SegmentJudge, steps_of
from mmrl.scoring.calls import call_reward
from tests.rewards.example import Example, make_batch
from tests.vision_twins import picture

TOKENS = ("One", " and", " one.\n", "\n", "", "Makes", " two.\n\n \nSo:", "\n", "2", "")


def of_pieces(*rows: Sequence[str], **settings: Any) -> RewardBatch:
    """Answers by the texts of their tokens, about a picture each."""
    media = [(picture(12, 8, number),) for number in range(len(rows))]
    texts = [f"question {number}" for number in range(len(rows))]
    batch = make_batch(Outputs(pieces=tuple(map(tuple, rows))), texts, media=media, **settings)
    return replace(batch, num_decisions=torch.tensor([len(row) for row in rows]))


def random_batch(given: random.Random) -> RewardBatch:
    pieces = ("a", " b", ".\n", "\n", "\n\n", " \n\nc", "", "d\n\n")
    return of_pieces(*([given.choice(pieces) for _ in range(given.randrange(1, 9))] for _ in range(8)))


EXAMPLE = Example(random_batch=random_batch, settings={"prompt": "answer_step"})


class Judge:
    """Gives the step that is asked about its P(yes), and keeps the questions."""

    def __init__(self, chances: dict[str, float]) -> None:
        self.chances, self.questions = chances, list[Question]()

    def ask(self, questions: Sequence[Question], seeds: Sequence[int]) -> list[Reply | UnansweredError]:
        self.questions += questions
        return [self.reply(question) for question in questions]

    def reply(self, question: Question) -> Reply | UnansweredError:
        step = question.text.split("-----")[3]
        if (chance := self.chances.get(step.strip())) is None:
            return UnansweredError("never seen")
        return Reply("", log_probs=(math.log(chance), math.log(1 - chance)))


def judged(chances: dict[str, float], **settings: Any) -> tuple[SegmentJudge, Judge]:
    reward, judge = SegmentJudge("answer_step", **settings), Judge(chances)
    reward._panel = Panel([(JudgeModel(), judge)], 1, "mean", Memory(None), Ledger(None, None, None))
    return reward, judge


def test_numbers_stand_at_the_last_tokens_of_steps_by_hand() -> None:
    reward, judge = judged({"One and one.": 0.75, "Makes two.": 0.5, "So:\n2": 0.25, "No": 0.125})
    batch = of_pieces(TOKENS, ["No"], group_size=1)
    scores = reward.score(batch)
    expected = torch.zeros(2, 10)
    expected[0, 3], expected[0, 6], expected[0, 9], expected[1, 0] = 0.75, 0.5, 0.25, 0.125
    torch.testing.assert_close(scores, expected)
    assert torch.equal(reward.ends(batch), expected > 0)
    values = call_reward("r", reward, batch).values
    torch.testing.assert_close(values.detach(), torch.tensor([1.5, 0.125]))  # elsewhere a sample has the sum
    told = [re.split(r"\n?-----\n", question.text)[1] for question in judge.questions]
    assert told == ["", "One and one.", "One and one.\n\nMakes two.", ""]
    assert all("question 0" in question.text for question in judge.questions[:3])
    for number, question in zip((0, 0, 0, 1), judge.questions, strict=True):
        (seen,) = question.images
        assert seen.tobytes() == picture(12, 8, number).load().convert("RGB").tobytes()
    assert reward.needs == {"pieces", "prompt.image", "model"} and reward.granularity == "segment"


@pytest.mark.parametrize(
    ("pieces", "by", "expected"),
    [
        (["a\n", "b"], "paragraph", [(1, 3)]),
        (["a\n", "b"], "line", [(0, 2), (1, 3)]),
        (["\n\n", "a", "\n\n", "\n"], "paragraph", [(3, 6)]),  # white space around is no step
        (["a\n\nb\n\n", "c"], "paragraph", [(0, 6), (1, 7)]),  # two in one token are one
        (["a\n\nb"], "paragraph", [(0, 4)]),
        (["a", "\n", " \t\r", "\n", "b", ""], "paragraph", [(3, 6), (5, 7)]),
        (["", ""], "line", [(1, 0)]),
        ([], "line", []),
    ],
)
def test_steps_by_hand(pieces: list[str], by: Any, expected: list[tuple[int, int]]) -> None:
    assert steps_of(pieces, by, 32) == expected


def test_the_steps_are_the_text_whatever_its_tokens() -> None:
    """One token for each letter: the steps are what a plain split of the text has."""
    source = random.Random(0)
    for _ in range(200):
        text = "".join(source.choice("ab \n\n") for _ in range(source.randrange(1, 30)))
        steps = steps_of(list(text), "line", 99)
        stops = [0, *(stop for _, stop in steps)]
        found = [text[before:stop].strip() for before, stop in pairwise(stops)]
        assert found == ([line.strip() for line in text.split("\n") if line.strip()] or [""])
        assert steps[-1] == (len(text) - 1, len(text)) and all(stop == place + 1 for place, stop in steps)


def test_beyond_the_most_the_rest_is_one_step() -> None:
    pieces = ["a\n", "b\n", "c\n", "d"]
    assert steps_of(pieces, "line", 2) == [(0, 2), (3, 7)] and steps_of(pieces, "line", 1) == [(3, 7)]
    reward, judge = judged({"a": 0.5, "b\nc\nd": 0.25}, by="line", max_segments=2)
    torch.testing.assert_close(reward.score(of_pieces(pieces, group_size=1)), torch.tensor([[0.5, 0, 0, 0.25]]))
    assert len(judge.questions) == 2


def test_a_step_without_a_verdict_is_an_error() -> None:
    reward, _ = judged({"One and one.": 0.75, "Makes two.": 0.5})
    with pytest.raises(UnansweredError, match="never seen"):
        reward.score(of_pieces(TOKENS, group_size=1))


def test_without_pictures_the_judge_is_a_model_of_text() -> None:
    reward, judge = judged({"a": 0.5}, condition_image=False)
    assert not reward.sees_images and reward.needs == {"pieces", "model"}
    reward.score(of_pieces(["a"], group_size=1))
    assert judge.questions[0].images == ()


def test_an_answer_is_worth_its_worst_step() -> None:
    """PURE: what comes before the worst step has its value less the group's mean, what comes after it has nothing."""
    reward, _ = judged({"a": 1 - 1e-9, "b": 0.2, "c": 0.9, "d": 0.6})
    batch = of_pieces(["a\n\n", "b\n\n", "c"], ["a\n\n", "d\n\n", "c"], group_size=2)
    values = call_reward("r", reward, batch)
    assert values.dense is not None
    row = torch.arange(2)
    scores = Scores(
        values=values.values[:, None],
        names=("r",),
        weights=(1.0,),
        valid=row >= 0,
        group=row * 0,
        episode=row,
        turn=row * 0,
        granularities=("segment",),
        dense={"r": values.dense},
    )
    paths = Paths(torch.arange(6).reshape(2, 3))
    advantages = Process(epsilon=0.0, credit="min", temperature=0.0)(scores, paths)
    torch.testing.assert_close(advantages, torch.tensor([[-1.0, -1, 0], [1, 1, 0]]))


def test_a_question_about_groups_or_without_the_step_is_refused(tmp_path: Any) -> None:
    with pytest.raises(ValueError, match="one step, got a prompt of the form pairwise"):
        SegmentJudge("answer_pair")
    with pytest.raises(ValueError, match="one step, got a prompt of the form group_scores"):
        SegmentJudge("deepseek_grm")
    (tmp_path / "own.yaml").write_text("about: x\nform: yes_no\nquestion: Is {prompt} fine?\n")
    with pytest.raises(ValueError, match=r"must hold {answer}"):
        SegmentJudge(str(tmp_path / "own.yaml"))
