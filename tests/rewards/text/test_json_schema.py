"""JSON of the wanted shape, and that nothing else is."""

import json
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mmrl.core.contracts import RewardBatch
from mmrl.rewards.base.json_schema_process import may_take_long
from mmrl.rewards.text.json_schema import MAX_LETTERS, JsonSchema
from tests.parameters import in_one_test
from tests.rewards.example import Example, answers
from tests.rewards.hostile import HOSTILE, REPEATED, TEXTS, check_scores, megabytes, shown

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "label": {"type": "string", "minLength": 1},
        "count": {"type": "integer", "minimum": 0},
        "boxes": {"type": "array", "items": {"$ref": "#/$defs/box"}, "maxItems": 3},
    },
    "required": ["label", "count"],
    "additionalProperties": False,
    "$defs": {"box": {"type": "array", "items": {"type": "number"}, "minItems": 4, "maxItems": 4}},
}
GOOD = '{"label": "cat", "count": 2, "boxes": [[1, 2, 30.5, 40]]}'


def random_batch(rng: random.Random) -> RewardBatch:
    texts = [
        GOOD,
        '{"label": "cat", "count": 2}',
        "{}",
        "[]",
        "cat",
        '{"label": "cat"}',
        '{"count": -1}',
        "```json\n{}\n```",
    ]
    return answers([f"<answer>{rng.choice(texts)}</answer>" for _ in range(8)])


EXAMPLE = Example(
    random_batch=random_batch, best=lambda: answers([f"<answer>{GOOD}</answer>"] * 8), settings={"schema": SCHEMA}
)


STRICT, GRADED = JsonSchema(SCHEMA, tag=None), JsonSchema(SCHEMA, tag=None, is_graded=True)


MADE: dict[str, JsonSchema] = {}  # each starts a process for its schema


def judge(text: str, schema: dict[str, Any] = SCHEMA, **settings: Any) -> float:
    key = repr((schema, settings))
    if key not in MADE:
        MADE[key] = JsonSchema(schema, **({"tag": None} | settings))
    return float(MADE[key].score(answers([text])))


@in_one_test(
    ("text", "strict", "graded"),  # graded: quarters of an object, label, count, whole
    [
        (GOOD, 1, 1),
        ('{"label": "cat", "count": 0}', 1, 1),
        (f" \n{GOOD}\n", 1, 1),
        (f"```json\n{GOOD}\n```", 1, 1),
        (f"```\n{GOOD}\n```\n", 1, 1),
        ('{"label": "cat", "count": 2.0}', 1, 1),  # 2.0 is an integer to JSON Schema
        ('{"label": "cat", "count": 2.5}', 0, 2 / 4),
        ('{"label": "cat", "count": true}', 0, 2 / 4),
        ('{"label": "cat", "count": "2"}', 0, 2 / 4),
        ('{"label": "", "count": -1}', 0, 1 / 4),
        ('{"label": "cat"}', 0, 2 / 4),
        ('{"label": "cat", "count": 2, "colour": "red"}', 0, 3 / 4),
        ('{"label": "cat", "count": 2, "boxes": [[1, 2, 3]]}', 0, 3 / 4),
        ("{}", 0, 1 / 4),
        ("[]", 0, 0),
        ("null", 0, 0),
        ('{"label": "cat", "count": 2, "count": 2}', 0, 0),  # a key twice
        (f"{GOOD} {GOOD}", 0, 0),
        (f"here it is: {GOOD}", 0, 0),
        (f"here it is:\n```json\n{GOOD}\n```", 0, 0),
        (f"```json\n{GOOD}\n```\n```json\n{GOOD}\n```", 0, 0),
        ("{'label': 'cat', 'count': 2}", 0, 0),
        ('{"label": "cat", "count": 1e2}', 0, 0),
        ('{"label": "cat", "count": NaN}', 0, 0),
        ("", 0, 0),
    ],
)
def test_scores_by_hand(text: str, strict: float, graded: float) -> None:
    assert judge(text) == strict
    assert judge(text, is_graded=True) == pytest.approx(graded)
    assert judge(f"<answer>{text}</answer>", tag="answer") == strict


def test_a_schema_without_parts_grades_as_it_judges() -> None:
    for text, score in (("[1, 2]", 1), ("[]", 0.5), ("{}", 0), ("x", 0)):
        assert judge(text, {"type": "array", "minItems": 1}, is_graded=True) == score
    assert judge("3", {"enum": [3, 4]}) == 1 and judge("5", {"enum": [3, 4]}) == 0


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.sampled_from(["", "cat", "dog"]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(["label", "count", "boxes"]), inner),
    max_leaves=8,
)


def is_good(value: Any) -> bool:
    """The schema, written by hand."""
    if not isinstance(value, dict) or not {"label", "count"} <= set(value) <= {"label", "count", "boxes"}:
        return False
    is_label = isinstance(value["label"], str) and value["label"] != ""
    is_count = type(value["count"]) is int and value["count"] >= 0
    boxes = value.get("boxes", [])
    are_boxes = isinstance(boxes, list) and len(boxes) <= 3
    return (
        is_label
        and is_count
        and are_boxes
        and all(isinstance(box, list) and len(box) == 4 and all(type(side) is int for side in box) for box in boxes)
    )


@pytest.mark.slow
@given(VALUES | st.fixed_dictionaries({"label": VALUES, "count": VALUES}, optional={"boxes": VALUES}))
def test_it_is_what_a_reader_of_the_schema_says(value: Any) -> None:
    assert STRICT.score(answers([json.dumps(value)])).tolist() == [is_good(value)]


@in_one_test(
    ("schema", "message"),
    [
        ({"type": "objekt"}, "schema is no JSON Schema: 'objekt' is not valid"),
        ({"required": "label"}, "schema is no JSON Schema"),
        ({"$ref": "#"}, "schema refers to itself without an end"),
        ({"$ref": "#/$defs/none"}, "schema refers to what it does not hold"),
        ({"$ref": "https://example.com/schema.json"}, "schema refers to what it does not hold"),
    ],
)
def test_a_schema_that_is_none_is_refused(schema: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        JsonSchema(schema)


@pytest.mark.slow
def test_a_reference_to_elsewhere_is_an_error_and_is_not_fetched(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []
    monkeypatch.setattr("urllib.request.urlopen", asked.append)
    reward = JsonSchema({"items": {"$ref": "https://example.com/schema.json"}}, tag=None)
    with pytest.raises(ValueError, match="schema refers to what it does not hold"):
        reward.score(answers(["[1]"]))
    assert asked == []


def test_the_draft_is_that_of_the_schema() -> None:
    old = {"$schema": "http://json-schema.org/draft-04/schema#", "minimum": 3, "exclusiveMinimum": True}
    assert judge("3", old) == 0 and judge("4", old) == 1


def test_the_tag_is_checked_and_long_answers_are_none() -> None:
    with pytest.raises(ValueError, match="tags must be"):
        JsonSchema(SCHEMA, tag="<answer>")
    assert judge(json.dumps("x" * (MAX_LETTERS - 2)), {}) == 1
    assert judge(json.dumps("x" * (MAX_LETTERS - 1)), {}) == 0


@given(TEXTS)
def test_any_text_has_a_score(text: str) -> None:
    check_scores(GRADED, answers([text]))


@pytest.mark.timeout(60)
def test_hostile_texts_have_scores() -> None:
    check_scores(JsonSchema({}), answers(HOSTILE))


@pytest.mark.slow
@pytest.mark.timeout(60)
@pytest.mark.parametrize("piece", REPEATED, ids=shown)
def test_a_megabyte_is_scored(piece: str) -> None:
    text = piece * (9_000 // len(piece))
    every = [
        *megabytes(piece),
        f"<answer>{text}</answer>",
        f"<answer>[{text}]</answer>",
        f"<answer>```json\n{text}</answer>",
    ]
    check_scores(JsonSchema({"uniqueItems": True}), answers(every))


@pytest.mark.slow  # compares each of the most things that fit with each other
@pytest.mark.timeout(60)
def test_the_longest_list_of_different_things_is_compared() -> None:
    items = [{"a": number} for number in range(820)]
    assert judge(json.dumps(items), {"uniqueItems": True}) == 1


PATTERN = {"type": "string", "pattern": "^(a+)+$"}


@pytest.mark.slow
def test_a_pattern_is_searched_in_a_process_of_its_own_with_the_same_result() -> None:
    reward = JsonSchema({"properties": {"a": PATTERN}, "required": ["a"]}, tag=None, is_graded=True)
    answered = ['{"a": "aa"}', '{"a": "ab"}', "{}", '{"a": 1}', '"\\ud800"', "no JSON"]
    assert reward.score(answers(answered)).tolist() == pytest.approx([1, 1 / 3, 1 / 3, 1 / 3, 1, 0])


@pytest.mark.parametrize("key", ["pattern", "patternProperties", "$ref"])
def test_what_may_take_long_is_found_wherever_it_stands(key: str) -> None:
    assert may_take_long({key: "a"}) and may_take_long({"properties": {"a": {"anyOf": [{}, {key: "a"}]}}})
    assert not may_take_long({"properties": {"a": {"const": key}}})


@pytest.mark.slow  # processor time runs out, and processes start again
@pytest.mark.timeout(60)
def test_an_answer_on_which_a_pattern_takes_too_long_is_wrong_and_the_next_is_judged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    long, graded = '"' + "a" * 40 + '!"', JsonSchema(PATTERN, tag=None, seconds=0.1, is_graded=True)
    for reward in (graded, JsonSchema({"anyOf": [PATTERN]}, tag=None, seconds=0.1)):
        assert reward.score(answers(['"aaa"', long, '"a"'])).tolist() == [1, 0, 1]
    assert "an answer took over 0.1 s of processor time, and counts as wrong" in caplog.text
    one = {"type": "array", "items": {"$ref": "#/$defs/a"}}
    deep = JsonSchema({"$defs": {"a": {"anyOf": [one, one, {"type": "string"}]}}, **one}, tag=None, seconds=0.5)
    assert deep.score(answers(["[" * 19 + "1" + "]" * 19, '["a"]'])).tolist() == [0, 1]
    missing = JsonSchema({"patternProperties": {"a": {"$ref": "#/none"}}}, tag=None)
    with pytest.raises(ValueError, match="schema refers to what it does not hold"):
        missing.score(answers(['{"a": 1}']))
    with pytest.raises(ValueError, match=r"seconds must be at least 0\.1 and at most 600, got 0"):
        JsonSchema({}, seconds=0)
