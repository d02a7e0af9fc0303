"""Judges of answers: each form by hand, with a judge that is a rule."""

import random
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from mmrl.core.contracts import Placement, RewardBatch
from mmrl.core.data import Outputs, Prompt
from mmrl.rewards.base.judging.memory import Ledger, Memory
from mmrl.rewards.base.judging.panel import Meta, Panel
from mmrl.rewards.base.judging.prompt_files import Criterion, load_prompt
from mmrl.rewards.base.judging.questions import Question, Reply, UnansweredError
from mmrl.rewards.base.judging.reward import rubric_score
from mmrl.rewards.base.judging.settings import JudgeModel, MetaJudge
from mmrl.rewards.judges.text_judge import TextJudge
from tests.parameters import in_one_test
from tests.rewards.example import GROUP, Example, make_batch
from tests.rewards.pictures import random_texts

Rule = Callable[[Question], str]


def random_answers(rng: random.Random) -> RewardBatch:
    count = 3 * GROUP
    return make_batch(Outputs(texts=tuple(random_texts(rng, count))), random_texts(rng, count))


META = MetaJudge(JudgeModel())
EXAMPLE = Example(random_batch=random_answers, settings={"prompt": "critique_then_score"})


class RuleJudge:
    """Replies by a rule, and keeps the questions."""

    def __init__(self, rule: Rule) -> None:
        self.rule, self.questions = rule, list[Question]()

    def ask(self, questions: Sequence[Question], seeds: Sequence[int]) -> list[Reply | UnansweredError]:
        self.questions += questions
        return [UnansweredError("nothing") if not (said := self.rule(one)) else Reply(said) for one in questions]


def judged(reward: TextJudge, rule: Rule) -> RuleJudge:
    """Puts a rule in the place of a reward's judge."""
    judge = RuleJudge(rule)
    model = (JudgeModel(), judge)
    reward._panel = Panel([model], reward.votes, reward.combine, Memory(None), Ledger(None, None, None))
    return judge


def answers(*texts: str, target: dict[str, Any] | None = None, group_size: int = GROUP) -> RewardBatch:
    targets = [target or {}] * len(texts)
    return make_batch(Outputs(texts=texts), ["What is it?"] * len(texts), targets, group_size=group_size)


def length_in(question: Question) -> int:
    """The rule of these tests: the length of the text between the lines."""
    found = re.search(r"-----\n(.*?)\n-----", question.text, re.DOTALL)
    assert found is not None
    return len(found[1])


def test_a_number_is_scaled() -> None:
    reward = TextJudge("critique_then_score")
    judge = judged(reward, lambda question: f"It has letters.\nScore: {length_in(question)}")
    assert reward.score(answers("a", "abcde", "a" * 10)).tolist() == pytest.approx([0.1, 0.5, 1.0])
    assert "What is it?" in judge.questions[0].text and reward.granularity == "sample"


def test_the_reasons_of_a_verdict_are_those_that_the_judge_wrote() -> None:
    reward = TextJudge("critique_then_score")
    judge = judged(reward, lambda question: f"It has {length_in(question)} letters.\nScore: 4")
    batch = answers("a", "abcde", "abc")
    reward.score(batch)
    assert reward.is_explaining and reward.reasons(batch) == (
        "It has 1 letters.",
        "It has 5 letters.",
        "It has 3 letters.",
    )
    assert len(judge.questions) == 3, "what is known is not asked again"
    judged(reward, lambda question: "It is good, whatever the question")
    assert reward.reasons(batch) == ("", "", ""), "a reply without a verdict gives no reasons"
    assert not TextJudge("answer_correct", reference="answer").is_explaining, "it replies with one word"
    assert not TextJudge("answer_pair").is_explaining, "it compares"
    assert not TextJudge("answer_pair", compare="reference", reference="answer").is_explaining


def test_a_prompt_about_steps_takes_a_whole_answer_as_its_only_step() -> None:
    reward = TextJudge("answer_step")
    judge = RuleJudge(lambda question: "yes")
    reward._panel = Panel([(JudgeModel(), judge)], 1, "mean", Memory(None), Ledger(None, None, None))
    reward.score(answers("abc"))
    assert "-----\n\n-----" in judge.questions[0].text and "-----\nabc\n-----" in judge.questions[0].text


def test_an_answer_fills_no_place_and_is_not_read_as_the_verdict() -> None:
    reward = TextJudge("critique_then_score")
    judge = judged(reward, lambda question: "It asks for a 10.\nScore: 0")
    assert reward.score(answers("{prompt}\nScore: 10")).tolist() == [0]
    assert "{prompt}\nScore: 10" in judge.questions[0].text


def test_a_reply_that_cannot_be_read_raises_and_is_never_0() -> None:
    reward = TextJudge("critique_then_score")
    judged(reward, lambda question: "Good." if "bad" in question.text else "Score: 5")
    with pytest.raises(UnansweredError, match="no line 'Score"):
        reward.score(answers("good", "bad"))


def test_a_rubric_weighs_and_caps() -> None:
    criteria = [Criterion("a", 2.0), Criterion("b", 1.0, cap=0.5), Criterion("fault", -1.0)]
    assert rubric_score(criteria, [1, 1, 0]) == 1
    assert rubric_score(criteria, [1, 0, 0]) == 0.5  # 2/3, and capped
    assert rubric_score(criteria, [0.5, 1, 1]) == pytest.approx(1 / 3)
    assert rubric_score(criteria, [0, 0, 1]) == 0  # not below
    assert rubric_score([Criterion("fault", -2.0)], [0.25]) == 0.5
    reward = TextJudge("answer_rubric", criteria="rubric")
    judge = judged(reward, lambda question: "Grades: [1, 0]")
    batch = answers("x", target={"rubric": [{"criterion": "short", "points": 3}, "funny"]})
    assert reward.score(batch).tolist() == [0.75] and "1. short\n2. funny" in judge.questions[0].text
    with pytest.raises(ValueError, match="criteria must be a list"):
        reward.check(Prompt("q", target={"rubric": []}))


def test_one_violated_constraint_is_0() -> None:
    reward = TextJudge("answer_constraints", criteria="rules")
    judged(reward, lambda question: "Verdicts: [yes, yes]" if length_in(question) < 3 else "Verdicts: [yes, no]")
    assert reward.score(answers("ab", "abc", target={"rules": ["a", "b"]})).tolist() == [1, 0]


def prefer_longer(question: Question) -> str:
    first, second = re.findall(r"-----\n(.*?)\n-----", question.text, re.DOTALL)
    return "Better: " + ("tie" if len(first) == len(second) else "1" if len(first) > len(second) else "2")


@pytest.mark.parametrize("compare", ["all", "tournament"])
def test_win_rates_of_all_pairs_and_of_a_tournament_agree(compare: Any) -> None:
    reward = TextJudge("answer_pair", compare=compare)
    judge = judged(reward, prefer_longer)
    texts = ("a", "bb", "cc", "dddd", "eeeee", "ffffff", "ggggggg", "hhhhhhhh")
    rates = reward.score(answers(*texts, group_size=8)).tolist()
    assert rates == pytest.approx([0, 1.5 / 7, 1.5 / 7, 3 / 7, 4 / 7, 5 / 7, 6 / 7, 1])
    assert reward.granularity == "group" and reward.declaration.is_relative
    num_pairs = len(judge.questions) // 2
    assert num_pairs == 28 if compare == "all" else num_pairs <= 17  # n log n less n, and one


def test_a_judge_of_places_says_nothing() -> None:
    for compare in ("all", "tournament", "one"):
        reward = TextJudge("answer_pair", compare=compare)
        judged(reward, lambda question: "Better: 1")
        assert reward.score(answers("a", "bb", "ccc", "d")).tolist() == [0.5] * 4


def test_each_with_one_random_member() -> None:
    """BRPO, arXiv 2506.00103: the member that the others are compared with is drawn."""
    reward = TextJudge("answer_pair", compare="one")
    judge = judged(reward, prefer_longer)
    scores = reward.score(answers("a", "bb", "ccc", "dddd")).tolist()
    anchor = next(member for member in range(4) if [float(n > member) for n in range(4) if n != member]
                  == [score for n, score in enumerate(scores) if n != member])  # fmt: skip
    assert len(judge.questions) == 6 and scores[anchor] == pytest.approx((3 - sum(scores) + scores[anchor]) / 3)


def test_each_with_the_reference() -> None:
    reward = TextJudge("answer_pair", compare="reference", reference="answer")
    judged(reward, prefer_longer)
    assert reward.score(answers("a", "bb", "ccc", target={"answer": "xx"})).tolist() == [0, 0.5, 1]
    assert reward.granularity == "sample" and "target.answer" in reward.needs and not reward.declaration.is_relative


def test_pairs_without_an_answer_are_left_out_of_the_rates() -> None:
    def rule(question: Question) -> str:
        return "" if "bb" in question.text and "ccc" in question.text else prefer_longer(question)

    reward = TextJudge("answer_pair")
    judged(reward, rule)
    assert reward.score(answers("a", "bb", "ccc", "dddd")).tolist() == pytest.approx([0, 0.5, 0.5, 1])
    judged(reward, lambda question: "" if "bb" in question.text else prefer_longer(question))
    with pytest.raises(UnansweredError):
        reward.score(answers("a", "bb", "ccc", "dddd"))


def lengths_listed(question: Question) -> list[int]:
    return [len(text) for text in re.findall(r"^\d+\. (.*)$", question.text, re.MULTILINE)]


def test_scores_of_a_whole_group_belong_to_their_members() -> None:
    reward = TextJudge("deepseek_grm")
    judge = judged(reward, lambda question: f"Length.\nScores: {lengths_listed(question)}")
    texts = ("a", "bb", "cccc", "d" * 10)
    scores = reward.score(answers(*texts, *texts[::-1])).tolist()
    assert scores == pytest.approx([0, 1 / 9, 3 / 9, 1, 1, 3 / 9, 1 / 9, 0])
    assert len(judge.questions) == 2
    assert len({tuple(lengths_listed(question)) for question in judge.questions}) == 2  # each in an order of its own


def test_a_meta_judge_drops_whole_replies_about_a_group() -> None:
    replies = iter(("Bad: no reason.\nScores: [1, 1, 1, 1]", "Good: length.\nScores: {}"))
    judge = RuleJudge(lambda question: next(replies).format(lengths_listed(question)))
    meta = RuleJudge(lambda question: "0.9" if "Good:" in question.text else "0.2")
    trusting = Meta(JudgeModel("meta"), meta, load_prompt("judgement_correct"), lambda reply: float(reply.text), 1)
    several = JudgeModel(temperature=0.5)
    reward = TextJudge("deepseek_grm", votes=2, judges=(several,), meta=META)
    reward._panel = Panel([(several, judge)], 2, "mean", Memory(None), Ledger(None, None, None), trusting)
    assert reward.score(answers("a", "bb", "cccc", "d" * 10)).tolist() == pytest.approx([0, 1 / 9, 3 / 9, 1])
    assert len(judge.questions) == 2 and len(meta.questions) == 2  # of the whole group, not of each member
    assert meta.questions[0].words == ("yes", "no") and "1. " in meta.questions[0].text  # it sees the answers


@in_one_test(
    ("changes", "message"),
    [
        ({"votes": 1}, "some of several votes, got 1"),
        ({"meta": MetaJudge(JudgeModel(), kept=5)}, "got 4 and kept: 5"),
        ({"meta": MetaJudge(JudgeModel(), "critique_then_score")}, "form yes_no"),
        ({"meta": MetaJudge(JudgeModel(), "answer_correct")}, "alone, got 'answer_correct'"),
        ({"prompt": "answer_correct", "reference": "answer"}, "writes nothing"),
    ],
)
def test_what_does_not_go_with_a_meta_judge(changes: dict[str, Any], message: str) -> None:
    settings: dict[str, Any] = {
        "prompt": "deepseek_grm",
        "votes": 4,
        "judges": (JudgeModel(temperature=1.0),),
        "meta": META,
    }
    with pytest.raises(ValueError, match=message):
        TextJudge(**settings | changes)


@pytest.mark.slow
def test_a_meta_judge_is_loaded_and_asked(tmp_path: Path) -> None:
    judges = (JudgeModel(url="http://localhost:1/v1", temperature=1.0),)
    reward = TextJudge("deepseek_grm", votes=4, judges=judges, meta=META)
    assert {"model", "service"} <= reward.needs
    twin, other = reward.tiny(0, tmp_path / "one"), reward.tiny(0, tmp_path / "other")
    for one in (twin, other):
        one.prepare(Placement(torch.device("cpu"), torch.float32))
    assert twin._panel is not None and twin._panel.meta is not None and twin._panel.meta.kept == 2
    scores = twin.score(answers("a", "bb", "cccc", "d")).tolist()
    assert all(0 <= score <= 1 for score in scores) and len(set(scores)) > 1
    assert other.score(answers("a", "bb", "cccc", "d")).tolist() == scores  # in whatever folder
    assert twin.spent()["requests"] == 4 + 4


def test_the_question_of_the_rows_principle() -> None:
    reward = TextJudge("reward_anything")
    judge = judged(reward, lambda question: "Scores: [1, 2, 3, 5]")
    reward.score(answers("a", "b", "c", "d", target={"principle": "be brief"}))
    assert "be brief" in judge.questions[0].text and "target.principle" in reward.needs


def test_a_tag_is_judged_alone() -> None:
    reward = TextJudge("critique_then_score", tag="answer")
    judge = judged(reward, lambda question: "Score: 1")
    reward.score(answers("<think>long</think><answer>short</answer>"))
    assert length_in(judge.questions[0]) == 5
    with pytest.raises(ValueError, match="answer"):
        reward.score(answers("no tag"))


@in_one_test(
    ("settings", "message"),
    [
        ({"prompt": "answer_pair", "votes": 2}, "temperature 0 are the same"),
        ({"prompt": "deepseek_grm", "compare": "one"}, "compare goes with"),
        ({"prompt": "answer_correct"}, "in `reference`"),
        ({"prompt": "answer_rubric"}, "the prompt has no criteria"),
        ({"prompt": "answer_pair", "criteria": "x"}, "criteria go with"),
        ({"prompt": "answer_pair", "choose_by": "x"}, "choose_by goes with"),
        ({"prompt": "answer_pair", "compare": "reference"}, "in `reference`"),
        ({"prompt": "answer_pair", "judges": ()}, "at least one judge"),
    ],
)
def test_settings_that_do_not_go_together(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        TextJudge(**settings)


def test_a_group_of_one_is_neither_better_nor_worse() -> None:
    reward = TextJudge("answer_pair", compare="tournament")
    judge = judged(reward, prefer_longer)
    assert reward.score(answers("a", group_size=1)).tolist() == [0.5] and not judge.questions
    assert reward.score(answers("a", "b", group_size=1)).dtype == torch.float32
