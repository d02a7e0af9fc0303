"""Equal mathematics, and that nothing an answer says can hold up or bring down who asks."""

import random
import threading
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mmrl.core.contracts import ConfigError, RewardBatch
from mmrl.parsing.answers import ParseError
from mmrl.rewards.text import math_answer
from mmrl.rewards.text.math_answer import MAX_DIGITS, MAX_LETTERS, MathAnswer, _latex, _Mathematician
from tests.parameters import in_one_test
from tests.rewards.example import Example, answers
from tests.rewards.hostile import FLOODS, HOSTILE, REPEATED, TEXTS, check_scores, megabytes, shown

TARGET = {"answer": "\\frac{1}{2}"}
REWARD = MathAnswer(tag=None, seconds=1)  # starts its process at the first question, ends it with the tests


def random_batch(rng: random.Random) -> RewardBatch:
    said = ["0.5", "1/2", "\\frac12", "2", "5.", "$x$", "{", "", "1/2 or 2", "\\boxed{0.50}", "\\boxed{1} \\boxed{2}"]
    return answers([f"<answer>{rng.choice(said)}</answer>" for _ in range(8)], TARGET)


EXAMPLE = Example(
    random_batch=random_batch,
    best=lambda: answers(["<answer>0.5</answer>", "<answer>$\\frac{2}{4}$</answer>"] * 4, TARGET),
)


def judge(text: str, target: Any, reward: MathAnswer = REWARD) -> float:
    return float(reward.score(answers([text], {"answer": target})))


@in_one_test(
    ("text", "target", "score"),
    [
        *(("1/2", "0.5", 1), ("\\frac12", "0.5", 1), ("$\\frac{1}{2}$", "\\boxed{0.5}", 1), ("0.333333", "1/3", 1)),
        *(("0.33", "1/3", 0), ("-3", "3", 0), ("3.0", "3", 1), ("1,000", "1000", 1), ("1\\frac{1}{2}", "1.5", 1)),
        *(
            ("x=3", "3", 1),
            ("3", "x=3", 1),
            ("2\\sqrt{2}", "\\sqrt{8}", 1),
            ("(x+1)^2", "x^2+2x+1", 1),
            ("x+1", "x+2", 0),
        ),
        *(
            ("\\{1,2\\}", "2,1", 1),
            ("(1,2)", "(1, 2)", 1),
            ("(1,2)", "(2,1)", 0),
            ("5\\text{ cm}", "5", 1),
            *(("50\\%", target, score) for target, score in (("0.5", 1), ("50", 1), ("5", 0))),
        ),
        *(
            ("\\(7\\)", "7", 1),
            ("\\[7\\]", "$7$", 1),
            ("90^\\circ", "90", 1),
            ("7", ["8", "7"], 1),
            ("9", ["8", "7"], 0),
        ),
        *(
            ("5 or 6", "5", 0),
            ("$5$ $6$", "5", 0),
            ("\\boxed{5} \\boxed{6}", "5", 0),
            ("5} \\boxed{5", "5", 0),
            ("5}", "5", 0),
        ),
        *(("{5", "5", 0), ("", "5", 0), ("I do not know", "5", 0), ("\u0665", "5", 0), ("__import__('os')", "5", 0)),
        *(("9" * MAX_DIGITS, "9" * MAX_DIGITS, 1), ("9" * (MAX_DIGITS + 1), "5", 0), ("1/0", "5", 0)),
    ],
)
def test_equal_and_different_by_hand(text: str, target: Any, score: float) -> None:
    assert judge(text, target) == score


@pytest.mark.slow
@given(st.integers(-99, 99), st.integers(1, 99), st.integers(-99, 99), st.integers(1, 99))
@settings(deadline=None, max_examples=30)
def test_fractions_are_equal_where_their_cross_products_are(a: int, b: int, c: int, d: int) -> None:
    assert judge(f"\\frac{{{a}}}{{{b}}}", f"{c}/{d}") == float(a * d == b * c)
    assert judge(f"\\frac{{{2 * a}}}{{{2 * b}}}", f"{a}/{b}") == 1


@pytest.mark.slow  # most of a second each, or more
def test_the_tag_and_the_box() -> None:
    texts = ["<answer>5</answer>", "<answer>\\boxed{5}</answer>", "5", "<answer>5</answer>" * 2]
    assert replace(REWARD, tag="answer").score(answers(texts, {"answer": "5"})).tolist() == [1, 1, 0, 0]
    texts = ["<think>\\boxed{4}</think> so \\boxed{5}", "5", "\\boxed{4} \\boxed{5}", "<think>\\boxed{5}</think> 5"]
    boxed = replace(REWARD, boxed=True)
    assert boxed.score(answers(texts, {"answer": "5"})).tolist() == [1, 0, 0, 0]


@pytest.mark.slow
def test_the_settings_reach_math_verify() -> None:
    lax = MathAnswer(tag=None, float_rounding=2, is_strict=False)
    assert judge("0.33", "1/3") == 0 and judge("0.33", "1/3", lax) == 1
    assert judge("x+1", "y+1") == 0 and judge("x+1", "y+1", lax) == 1


@in_one_test(
    ("field", "value"),
    [("seconds", 0), ("seconds", 601), ("float_rounding", -1), ("float_rounding", 16), ("tag", "<a>")],
)
def test_impossible_settings_are_refused(field: str, value: Any) -> None:
    with pytest.raises(ValueError, match="must be"):
        MathAnswer(**{field: value})


def test_without_math_verify_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(math_answer, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"pip install 'mmrl\[math\]'"):
        MathAnswer()


@in_one_test("target", [3, None, "", " ", [], ["3", 4], "{", "\\boxed{3", "1/0", "\\frac{", "9" * 99, "+"])
def test_a_target_that_is_no_mathematics_cannot_judge(target: Any) -> None:
    with pytest.raises(ValueError, match=r"target\.answer"):
        judge("3", target)
    with pytest.raises(ValueError, match=r"target\.answer"):
        REWARD.check(answers([""], {"answer": target}).prompts[0])


def test_it_judges_on_any_thread() -> None:
    found: list[float] = []
    threads = [threading.Thread(target=lambda: found.append(judge("1/2", "0.5"))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [1, 1, 1, 1]


@pytest.mark.slow  # processor time runs out, and processes start again
@pytest.mark.timeout(60)
@pytest.mark.parametrize("text", ["9^{9^{9^{9}}}", "(x+y+z)^{5000}"])  # the first cannot be interrupted, only killed
def test_what_takes_too_long_is_wrong_and_the_next_is_judged(text: str) -> None:
    hurried = MathAnswer(tag=None, seconds=0.3)
    assert hurried.score(answers(["5", text, "$5$", text], {"answer": "5"})).tolist() == [1, 0, 1, 0]


def test_right_answers_are_read_once_and_plain_numbers_not_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(0)
    numbers = [f"{rng.choice(['', '-'])}{rng.randrange(10 ** rng.randrange(1, 15))}" for _ in range(20)]
    numbers += [f"{number}.{rng.randrange(10 ** rng.randrange(1, 15))}" for number in numbers] + ["007", "-0", "0.50"]
    process = REWARD._process
    for number in numbers:
        assert process.ask({"right": number}) == "equal" and process.can_read(number) and _latex(number) == number
    assert process.can_read("\\frac{7}{9}") and not process.can_read("\\frac{7}{")
    monkeypatch.setattr(process, "ask", None)
    assert process.can_read("\\frac{7}{9}") and not process.can_read("\\frac{7}{") and process.can_read("12.5")


@pytest.mark.slow  # starts three processes
def test_a_process_that_was_killed_from_outside_is_no_wrong_answer() -> None:
    asked = _Mathematician(5, 6, True)
    assert asked.are_equal("5", "5")
    assert asked._child is not None
    asked._child.kill()  # between two questions: the next one gets a new process
    asked._child.wait()
    assert asked.are_equal("5", "5")
    timer = threading.Timer(0.3, asked._child.kill)
    timer.start()
    with pytest.raises(RuntimeError, match="killed from outside"):
        asked.are_equal("5", "9^{9^{9^{9}}}")
    timer.join()
    assert asked.are_equal("5", "5.0")


@pytest.mark.slow  # most of a second each, or more
def test_a_process_that_does_not_answer_is_no_wrong_answer() -> None:
    asked = _Mathematician(5, 6, True)
    assert asked.are_equal("5", "5")
    asked.patience = 0.2
    with pytest.raises(RuntimeError, match=r"did not answer within 0\.2 seconds"):
        asked.are_equal("5", "9^{9^{9^{9}}}")


def test_a_process_that_does_not_start_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.executable", "/bin/false")
    with pytest.raises(RuntimeError, match="math-verify does not start"):
        _Mathematician(5, 6, True).are_equal("5", "5")


@given(TEXTS)
def test_what_goes_to_math_verify_is_short_and_closes_its_braces(text: str) -> None:
    try:
        latex = _latex(text)
    except ParseError:
        return
    assert 0 < len(latex) <= MAX_LETTERS and "\\boxed{" not in latex


@pytest.mark.slow
@pytest.mark.timeout(120)
@given(TEXTS)
@settings(deadline=None, max_examples=40)
def test_any_text_has_a_score(text: str) -> None:
    check_scores(REWARD, answers([text], TARGET))


@pytest.mark.slow  # ten of them take all of their second of processor time
@pytest.mark.timeout(300)
def test_hostile_texts_have_scores() -> None:
    check_scores(MathAnswer(seconds=1), answers(HOSTILE, TARGET))


@pytest.mark.slow
@pytest.mark.timeout(60)
@pytest.mark.parametrize("piece", REPEATED, ids=shown)
def test_a_megabyte_is_wrong(piece: str) -> None:
    assert check_scores(REWARD, answers(megabytes(piece), TARGET)).tolist() == [0, 0, 0]


@pytest.mark.slow  # each piece is parsed at the length that answers may have
@pytest.mark.timeout(600)
def test_the_longest_answers_of_every_piece_have_scores() -> None:
    check_scores(REWARD, answers([(piece * MAX_LETTERS)[:MAX_LETTERS] for piece in FLOODS], TARGET))
