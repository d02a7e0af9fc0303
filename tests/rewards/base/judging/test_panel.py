"""Votes of judges, what is kept, and what it costs."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from mmrl.core.contracts import ConfigError, RunError
from mmrl.rewards.base.judging.memory import Ledger, Memory, Spent
from mmrl.rewards.base.judging.panel import Meta, Panel, combined, most_trusted
from mmrl.rewards.base.judging.prompt_files import load_prompt
from mmrl.rewards.base.judging.questions import Question, Reply, UnansweredError
from mmrl.rewards.base.judging.settings import JudgeModel

WRONG = UnansweredError("unreadable")


class Scripted:
    """Replies with the texts that it is given, in order, and counts the questions."""

    def __init__(self, *texts: str) -> None:
        self.texts, self.num_questions = list(texts), 0

    def ask(self, questions: Sequence[Question], seeds: Sequence[int]) -> list[Reply | UnansweredError]:
        self.num_questions += len(questions)
        return [Reply(self.texts.pop(0), None, 100, 10) for _ in questions]


def read(reply: Reply) -> float:
    if not reply.text.replace(".", "").isdigit():
        raise WRONG
    return float(reply.text)


def panel(*judges: Scripted, votes: int = 1, folder: Path | None = None, **changes: object) -> Panel:
    model = JudgeModel(temperature=1.0 if votes > 1 else 0.0, price=(1.0, 2.0))
    models = [(JudgeModel(f"judge {number}", temperature=model.temperature, price=(1.0, 2.0)), one)
              for number, one in enumerate(judges)]  # fmt: skip
    ledger = Ledger(folder, changes.get("max_tokens"), changes.get("max_cost"))  # type: ignore[arg-type]
    return Panel(models, votes, "mean", Memory(folder), ledger)


def values(panel: Panel, *texts: str, iteration: int = 0) -> list[float | UnansweredError]:
    return panel.values([Question(text) for text in texts], [read] * len(texts), iteration)


def test_votes_by_hand() -> None:
    assert combined([0.2, 0.4], "mean") == pytest.approx(0.3) and combined([0.2, 0.4], "min") == 0.2
    assert combined([0.2, 0.4], "mean_minus_std") == pytest.approx(0.3 - 0.1)
    assert combined([0.2, WRONG, 0.4], "mean") == pytest.approx(0.3)
    assert combined([0.2, WRONG], "mean") is WRONG and combined([WRONG], "min") is WRONG


def test_the_most_trusted_votes_by_hand() -> None:
    assert most_trusted([0.1, 0.9, 0.5, 0.3], [0.2, 0.8, 0.4, 0.6], 2) == [0.9, 0.3]
    assert most_trusted([0.1, 0.9, 0.5], [0.5, 0.5, 0.9], 2) == [0.5, 0.1]  # of equal trust the first
    assert most_trusted([0.1, WRONG, 0.5], [0.1, WRONG, 0.2], 1) == [0.5]
    assert most_trusted([0.1, 0.9, 0.5], [WRONG, 0.9, 0.1], 3) == [0.9, 0.5]
    untrusted = most_trusted([0.1, 0.9, 0.5], [WRONG, 0.9, WRONG], 2)
    assert untrusted == [WRONG, 0.9, WRONG] and combined(untrusted, "mean") is WRONG


def test_votes_that_the_meta_judge_trusts_least_do_not_count() -> None:
    trusts = {"0": 0.1, "1": 0.9, "0.5": 0.8}

    class Trusting(Scripted):
        def ask(self, questions: Sequence[Question], seeds: Sequence[int]) -> list[Reply | UnansweredError]:
            self.num_questions += len(questions)
            self.texts += [question.text for question in questions]
            return [Reply(str(trusts[one.text.split("-----")[1].strip()])) for one in questions]

    judge, meta = Scripted("0", "1", "x", "0.5"), Trusting()
    asked = panel(judge, votes=4)
    asked.meta = Meta(JudgeModel("meta"), meta, load_prompt("judgement_correct"), read, 2)
    assert values(asked, "How good?") == [pytest.approx((1 + 0.5) / 2)]  # without it (0 + 1 + 0.5) / 3
    assert meta.num_questions == 3 and all("How good?" in text for text in meta.texts)  # x cannot be read
    assert values(asked, "How good?") == [0.75] and meta.num_questions == 3  # kept, as all replies
    assert asked.ledger.spent.requests == 4 + 3


def test_each_judge_votes_as_often_as_told() -> None:
    first, second = Scripted("1", "0", "1"), Scripted("0", "0", "x")
    assert values(panel(first, second, votes=3), "a") == [pytest.approx(2 / 5)]
    assert (first.num_questions, second.num_questions) == (3, 3)


def test_the_vote_with_the_lowest_value_is_that_of_any_judge_and_is_not_asked_for_again() -> None:
    first, second = Scripted("0.5", "x", "1", "1", "0.25", "x"), Scripted("0.75", "y", "0.25", "0.1", "z", "0.9")
    asked = panel(first, second, votes=2)
    questions = [Question(text) for text in ("a", "b", "c")]
    # votes on a: 0.5 1, 0.75 0.1; on b: x 0.25, y z; on c: 1 x, 0.25 0.9
    for _ in range(2):
        lowest = [None if one is None else one.text for one in asked.lowest(questions, [read] * 3)]
        assert lowest == ["0.1", "0.25", "0.25"]
        assert (first.num_questions, second.num_questions) == (6, 6)
    assert panel(Scripted("x", "y")).lowest(questions[:2], [read] * 2) == [None, None]


def test_what_was_answered_is_not_asked_again() -> None:
    judge = Scripted("0.5", "x", "0.25", "1")
    asked = panel(judge)
    assert values(asked, "a", "b") == [0.5, WRONG]  # the reply x is kept as well: it was paid for
    assert values(asked, "a", "b", "c") == [0.5, WRONG, 0.25] and judge.num_questions == 3
    assert values(asked, "a", "a") == [0.5, 0.5] and judge.num_questions == 3


def test_a_question_that_failed_is_asked_again_in_the_next_iteration_only() -> None:
    class Broken(Scripted):
        def ask(self, questions: Sequence[Question], seeds: Sequence[int]) -> list[Reply | UnansweredError]:
            self.num_questions += len(questions)
            return [WRONG] * len(questions)

    judge = Broken()
    asked = panel(judge)
    for iteration, num_questions in ((0, 1), (0, 1), (1, 2), (1, 2)):
        assert values(asked, "a", iteration=iteration) == [WRONG] and judge.num_questions == num_questions


def test_a_folder_keeps_replies_and_spending_over_processes(tmp_path: Path) -> None:
    values(panel(Scripted("0.5"), folder=tmp_path), "a")
    later = panel(judge := Scripted(), folder=tmp_path)
    assert values(later, "a") == [0.5] and judge.num_questions == 0
    assert later.ledger.spent == Spent(1, 100, 10, 120 / 1e6)
    (path,) = tmp_path.glob("*/*.json")
    path.write_text(path.read_text()[:-5])  # cut short: it is asked again
    assert values(panel(Scripted("0.75"), folder=tmp_path), "a") == [0.75]
    next(iter(tmp_path.glob("spent-*.json"))).write_text("{}")
    with pytest.raises(ConfigError, match="does not say what was spent"):
        Ledger(tmp_path, None, None)


def test_a_budget_ends_the_questions_and_says_so(tmp_path: Path) -> None:
    asked = panel(judge := Scripted("1", "1", "1"), folder=tmp_path, max_tokens=200)
    values(asked, "a")
    values(asked, "b")
    with pytest.raises(RunError, match=r"220 of max_tokens_spent 200 after 2 requests; give a larger"):
        values(asked, "c")
    assert values(asked, "a") == [1] and judge.num_questions == 2  # what is known costs nothing
    with pytest.raises(RunError, match="max_cost"):
        values(panel(Scripted("1"), folder=tmp_path, max_cost=1e-4), "c")
    assert values(panel(Scripted("1"), folder=tmp_path, max_tokens=221), "c") == [1]


def test_equal_questions_are_those_with_equal_pixels_and_words() -> None:
    from PIL import Image

    one, other = Image.new("RGB", (2, 1), "red"), Image.new("RGB", (1, 2), "red")
    assert Question("a", images=(one,)).digest() == Question("a", images=(one.copy(),)).digest()
    every = [Question("a"), Question("b"), Question("a", "b"), Question("a", words=("yes", "no")), Question("", "a"),
             Question("a", images=(one,)), Question("a", images=(other,)), Question("a", images=(one, one)),
             Question("a", schema={"type": "object"})]  # fmt: skip
    assert len({question.digest() for question in every}) == len(every)
