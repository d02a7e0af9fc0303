"""Labels that are the right ones, and answers that only hold them."""

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch import tensor

from mmrl.core.contracts import RewardBatch
from mmrl.core.data import Prompt
from mmrl.rewards.text.classification import MAX_LABEL, Classification
from tests.parameters import in_one_test
from tests.rewards.example import Example, answers
from tests.rewards.hostile import HOSTILE, REPEATED, TEXTS, check_scores, megabytes, shown

LABELS = ("cat", "dog", "red panda", "fox", "hen")


def batch(said: list[str], label: Any = "red panda") -> RewardBatch:
    return answers([f"<answer>{one}</answer>" for one in said], {"label": label})


def judge(said: list[str], label: Any = "red panda", **settings: Any) -> Any:
    return Classification(**settings).score(batch(said, label)).tolist()


def random_batch(random: random.Random) -> RewardBatch:
    return batch([*random.choices(LABELS, k=6), "red panda", random.choice(["", "cat, dog, red panda"])])


EXAMPLE = Example(random_batch=random_batch, best=lambda: batch(["red panda", " Red  Panda ", "red_panda", "redpanda"]))


@in_one_test(
    ("said", "label", "score"),
    [
        ("Red_Panda", "red panda", 1),
        ("boeing 737-200", "Boeing_737-200", 1),
        ("737 200", "737-200", 0),
        ("cafe\u0301", "caf\u00e9", 1),  # composed or not
        ("STRASSE", "straße", 1),
        ("cat", ["feline", "Cat"], 1),  # one of several
        ("a red panda", "red panda", 0),
        ("not red panda", "red panda", 0),
        ("female", "male", 0),  # Visual-RFT's code: the truth is in it
        ("cat, dog, red panda", "red panda", 0),
        ("red panda, red panda", "red panda", 0),
        ("red\u200bpanda", "red panda", 0),
        ("\u0441at", "cat", 0),  # Cyrillic
        ("", "cat", 0),
    ],
)
def test_one_label(said: str, label: Any, score: float) -> None:
    assert judge([said], label) == [score]


def test_strict_labels_differ_in_nothing_but_white_space() -> None:
    assert judge(["red panda", " red\n panda", "Red panda", "red_panda", "redpanda"], strict=True) == [1, 1, 0, 0, 0]


def test_a_set_of_labels_by_hand() -> None:
    said = ["cat, dog", "Dog,cat,", "cat", "cat, fox", "cat, cat, dog", "fox", ", ,", "cat, dog, fox, hen"]
    expected = [1, 1, 2 / 3, 2 / 4, 1, 0, 0, 4 / 6]
    assert judge(said, ["cat", "dog"], kind="set") == pytest.approx(expected)


@pytest.mark.slow
@given(st.sets(st.sampled_from(LABELS)), st.sets(st.sampled_from(LABELS), min_size=1))
def test_f1_is_that_of_torchmetrics(said: set[str], right: set[str]) -> None:
    from torchmetrics.functional.classification import binary_f1_score  # takes a second to import

    one, other = ([int(label in labels) for label in LABELS] for labels in (said, right))
    expected = float(binary_f1_score(tensor(one), tensor(other)))
    assert judge([", ".join(said)], sorted(right), kind="set") == pytest.approx([expected])


def test_a_label_behind_much_white_space_is_not_the_whole_answer() -> None:
    assert judge([f"cat{' ' * 2 * MAX_LABEL}dog", f"{' ' * 2 * MAX_LABEL}cat", "c" * 2 * MAX_LABEL], "cat") == [0, 1, 0]


def test_the_answer_stands_once_in_its_tag() -> None:
    texts = ["cat", "<answer>cat</answer>", "<answer>cat</answer><answer>cat</answer>"]
    assert Classification().score(answers(texts, {"label": "cat"})).tolist() == [0, 1, 0]
    assert Classification(tag=None).score(answers(texts, {"label": "cat"})).tolist() == [1, 0, 0]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["one", "set"])
@given(texts=st.lists(TEXTS, min_size=1, max_size=5))
def test_any_text_has_a_score(kind: Any, texts: list[str]) -> None:
    check_scores(Classification(kind=kind), answers(texts, {"label": "cat"}))
    check_scores(Classification(kind=kind, tag=None), answers(texts, {"label": "cat"}))


def test_hostile_texts_have_a_score() -> None:
    check_scores(Classification(kind="set"), answers(HOSTILE, {"label": "cat"}))


@pytest.mark.slow
@pytest.mark.timeout(60)
@pytest.mark.parametrize("piece", [*REPEATED, "\u0301\u0316"], ids=shown)
def test_a_megabyte_is_judged_in_time(piece: str) -> None:
    made = answers(megabytes(piece), {"label": "cat"})
    check_scores(Classification(kind="set", tag=None), made)
    check_scores(Classification(), made)


@in_one_test("label", [None, 3, "", " _ ", [], ["cat", ""], ["cat", 3], "x" * 2 * MAX_LABEL])
def test_targets_that_cannot_judge(label: Any) -> None:
    for score in (lambda: judge(["cat"], label), lambda: Classification().check(Prompt("?", target={"label": label}))):
        with pytest.raises(ValueError, match=r"target\.label must be a text or a list of texts, of at most"):
            score()


def test_labels_of_a_set_have_no_commas() -> None:
    with pytest.raises(ValueError, match=r"target\.label of kind set may have no commas, got \['a, b'\]"):
        judge(["cat"], ["a, b"], kind="set")
    assert judge(["a, b"], ["a, b"]) == [1]


@pytest.mark.parametrize(
    ("settings", "message"), [({"kind": "all"}, "kind must be one of"), ({"tag": ""}, "tags must")]
)
def test_impossible_settings_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Classification(**settings)


def test_wrong_labels_and_silence_cost_by_hand() -> None:
    said = ["cat, dog", "cat", "cat, fox", "cat, dog, fox, hen", "fox, hen, red panda", ""]
    assert judge(said, ["cat", "dog"], kind="penalised") == [1, 0.5, 0, 0, -1, -1]
    assert judge(said[:3], ["cat", "dog"], kind="penalised", penalty=0.25) == [1, 0.5, 0.25]
    assert Classification(kind="penalised").range == (-1, 1)
    assert Classification(kind="penalised").score(answers(["cat"], {"label": "cat"})).tolist() == [-1]  # without a tag
