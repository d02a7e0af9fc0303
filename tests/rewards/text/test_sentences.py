"""What holds for all rewards that compare the words of sentences: BLEU, ROUGE and WER."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mmrl.core.contracts import Reward
from mmrl.rewards.base.references import MAX_LETTERS
from mmrl.rewards.text.bleu import Bleu
from mmrl.rewards.text.rouge import Rouge
from mmrl.rewards.text.wer import Wer
from tests.rewards.example import answers
from tests.rewards.hostile import HOSTILE, REPEATED, TEXTS, check_scores, megabytes, shown
from tests.rewards.sentences import TARGET

Make = Callable[[str | None], Reward]  # of the tag
REWARDS: dict[str, Make] = {
    "bleu": lambda tag: Bleu(smoothing="floor", tag=tag),
    "bleu of one word": lambda tag: Bleu(max_order=1, tag=tag),
    "rouge": lambda tag: Rouge(kind="mean", tag=tag),
    "wer": lambda tag: Wer(tag=tag),
    "wer of letters": lambda tag: Wer(unit="letter", tag=tag),
}
each = pytest.mark.parametrize("make", REWARDS.values(), ids=list(REWARDS))


@each
def test_the_answer_stands_in_its_one_tag(make: Make) -> None:
    texts = ["<answer>cat</answer>", "cat", "<answer>cat</answer><answer>cat</answer>", "<answer></answer>"]
    assert make("answer").score(answers(texts, {"answer": "cat"})).tolist() == [1, 0, 0, 0]


@each
@pytest.mark.parametrize("answer", [3, "", " ", [], ["a", ""]], ids=str)
def test_a_target_that_is_no_text_is_an_error(make: Make, answer: object) -> None:
    with pytest.raises(ValueError, match=r"target\.answer must be a text"):
        make(None).score(answers(["a"], {"answer": answer}))


@pytest.mark.slow
@each
@given(texts=st.lists(TEXTS, min_size=1, max_size=3))
def test_any_text_has_a_score(make: Make, texts: list[str]) -> None:
    for tag in ("answer", None):
        check_scores(make(tag), answers(texts, TARGET))


@each
def test_hostile_texts_have_scores(make: Make) -> None:
    for tag in ("answer", None):
        check_scores(make(tag), answers(HOSTILE, TARGET))


@pytest.mark.slow
@pytest.mark.timeout(60)
@pytest.mark.parametrize("make", [REWARDS[name] for name in ("bleu", "rouge", "wer of letters")])
@pytest.mark.parametrize("piece", REPEATED, ids=shown)
def test_a_megabyte_has_a_score(make: Make, piece: str) -> None:
    check_scores(make("answer"), answers(megabytes(piece), TARGET))
    check_scores(make(None), answers([piece * (MAX_LETTERS // len(piece))], TARGET))


@pytest.mark.timeout(20)
@each
def test_the_longest_texts_are_compared_in_a_moment(make: Make) -> None:
    """Different words, so that nothing is found early; a table of all prefixes would have 25 million fields."""
    left, right = (" ".join(chr(start + n % 1000) for n in range(MAX_LETTERS // 2)) for start in (0x4E00, 0x5E00))
    assert make(None).score(answers([left, right], {"answer": [right]})).tolist()[1] == 1
