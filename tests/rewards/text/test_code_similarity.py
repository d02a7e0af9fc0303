"""Jaccard similarities of code by hand."""

import random
import time
from typing import Any

import pytest

from mmrl.core.contracts import RewardBatch
from mmrl.core.data import Prompt
from mmrl.rewards.text.code_similarity import CodeSimilarity, tokens_of
from tests.rewards.example import Example, answers

QUERY = "SELECT name FROM singers WHERE age > 20"


def queries(source: random.Random) -> RewardBatch:
    words = QUERY.split()
    texts = [f"<answer>{' '.join(words[: source.randint(1, len(words))])}</answer>" for _ in range(6)]
    return answers([f"<answer>{QUERY}</answer>", "no answer", *texts], {"answer": QUERY})


EXAMPLE = Example(
    random_batch=queries, best=lambda: answers([f"<answer>{QUERY}</answer>"] * 4, {"answer": QUERY})
)  # fmt: skip


def judge(text: str, answer: Any, **settings: Any) -> float:
    found: float = CodeSimilarity(**({"tag": None} | settings)).score(answers([text], {"answer": answer})).item()
    return found


def test_pairs_of_tokens_by_hand() -> None:
    """A has a=b, b; of `a b c` and `a b d` one pair of three is shared."""
    assert judge("a b c", "a b d") == pytest.approx(1 / 3)
    assert judge("a b c d", "a b c d") == 1
    assert judge("SELECT age FROM singers", "select name from singers") == pytest.approx(1 / 5)
    assert judge("a b a b", "a b") == pytest.approx(1 / 2), "(a b) of (a b), (b a): repeating gains nothing"
    assert judge("a b c", "a b d", n=1) == pytest.approx(2 / 4)
    assert judge("a", "a") == 1 and judge("a", "b") == 0


def test_names_by_hand() -> None:
    settings = {"measure": "names"}
    wanted = "SELECT T1.name FROM singers AS T1 WHERE T1.\"home town\" = 'select' AND T1.`age` > 20"
    assert judge(wanted, wanted, **settings) == 1
    # singers, name, age, t1 of these and concert: the town in quotes has a space, and is no name
    assert judge("SELECT T1.name, T1.age FROM singers T1, concert", wanted, **settings) == pytest.approx(4 / 5)
    assert judge("SELECT 1", wanted, **settings) == 0
    assert judge("def f(x): return x", "def f(y): return y", keywords=("def", "return"), **settings) == pytest.approx(
        1 / 3
    )


def test_tokens() -> None:
    assert tokens_of("```sql\nSELECT 'It''s', x>=10.5 FROM \"T a\";\n```") == [
        "select", "'it''s'", ",", "x", ">=", "10.5", "from", '"t a"',
    ]  # fmt: skip
    assert tokens_of("x = 'open") == ["x", "=", "'", "open"]
    assert tokens_of("") == tokens_of(" ; ") == []


def test_of_several_references_the_best_counts() -> None:
    assert judge("a b", ["c d", "a b"]) == 1


def test_a_reference_without_code_is_refused() -> None:
    with pytest.raises(ValueError, match=r"target\.answer must be code, got ';'"):
        CodeSimilarity().check(Prompt("?", target={"answer": ";"}))
    assert judge("SELECT 2", "SELECT 1", measure="names") == 1, "none has a name"
    assert judge("SELECT a", "SELECT 1", measure="names") == judge("", "SELECT 1") == 0


@pytest.mark.parametrize("text", ["'" * 9000, '"' * 9000, "a\\" * 4500, "`" * 9000, "<" * 9000, "'\\" * 4500])
def test_hostile_code_takes_no_time(text: str) -> None:
    begin = time.process_time()
    assert 0 <= judge(text, QUERY) <= 1
    assert time.process_time() - begin < 2
