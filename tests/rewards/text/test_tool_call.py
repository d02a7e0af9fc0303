"""Tool calls by hand, against a search over all matchings, and texts that call nothing."""

import json
import random
from itertools import permutations
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mmrl.core.contracts import RewardBatch
from mmrl.core.data import Prompt
from mmrl.rewards.text.tool_call import MAX_CALLS, ToolCall
from tests.parameters import in_one_test
from tests.rewards.example import Example, answers
from tests.rewards.hostile import HOSTILE, REPEATED, TEXTS, check_scores, megabytes, shown

Calls = list[dict[str, Any]]

WEATHER = {"name": "weather", "arguments": {"city": "Oslo", "days": 3}}
CLOCK = {"name": "clock", "arguments": {}}


def written(*calls: object) -> str:
    return "\n".join(f"<tool_call>\n{json.dumps(call)}\n</tool_call>" for call in calls)


def judge(text: str, calls: Any = (WEATHER,)) -> float:
    return float(ToolCall().score(answers([text], {"calls": calls})))


def random_calls(source: random.Random, most: int = 4) -> Calls:
    def one() -> dict[str, Any]:
        keys = source.sample(["a", "b", "c"], source.randint(0, 3))
        return {"name": source.choice(["f", "g"]), "arguments": {key: source.randint(0, 1) for key in keys}}

    return [one() for _ in range(source.randint(0, most))]


def random_batch(source: random.Random) -> RewardBatch:
    texts = ["", "<tool_call>", written({"name": "weather", "arguments": {"town": 1}}), written(WEATHER, CLOCK)]
    texts += [written({"name": "weather", "arguments": {"city": source.choice(["Oslo", "Rome"])}}) for _ in range(7)]
    return answers([*texts, written(WEATHER)], {"calls": [WEATHER]})


EXAMPLE = Example(random_batch=random_batch, best=lambda: answers([written(WEATHER)] * 4, {"calls": [WEATHER]}))


def call(name: str, **arguments: object) -> dict[str, Any]:
    return {"name": name, "arguments": arguments}


@in_one_test(
    ("text", "earned"),  # of 4: name 1, names of parameters 1, values 2
    [
        (written(WEATHER), 4),
        (written(call("weather", days=3, city="Oslo")), 4),
        (written(call("weather", city="Oslo", days=3.0)), 4),
        (written(call("weather", city="Oslo", days=4)), 3),
        (written(call("weather", city="oslo", days="3")), 2),
        (written(call("weather", city="Oslo", days=True)), 3),
        (written(call("weather", city="Oslo")), 1 + 1 / 2 + 1),
        (written(call("weather", city="Oslo", days=3, unit="C")), 1 + 2 / 3 + 2),
        (written(call("weather", town="Oslo")), 1),
        (written(call("weather")), 1),
        (written(call("forecast", city="Oslo", days=3)), 0),
        (written(WEATHER, CLOCK), 1 / 2 + 3),
        (written(CLOCK, WEATHER), 1 / 2 + 3),
        (written(WEATHER, WEATHER), 1 / 2 + 3),  # the same call again is no second name
        (written(call("weather", city="Rome"), call("weather", days=3)), 1 / 2 + 1 / 2 + 1),  # one pair alone
        ("I do not know.", 0),
        ("", 0),
    ],
)
def test_one_call_by_hand(text: str, earned: float) -> None:
    assert judge(text) == pytest.approx(6 * earned / 4 - 3, abs=1e-6)


@in_one_test(
    ("text", "score"),
    [
        (f"<think>{written(CLOCK)}</think>\n{written(WEATHER)}", 3),
        (f"<think>{written(WEATHER)}</think>\n", -3),  # thought of, and not made
        (f"First {written(WEATHER)} then I wait.", 3),
        (f"<tool_call>{json.dumps(WEATHER, indent=2)}</tool_call>", 3),
        (f"<tool_call>{json.dumps(WEATHER)}", -3),
        (f"{json.dumps(WEATHER)}</tool_call>", -3),
        (f"{written(WEATHER)}</tool_call>", -3),
        (f"{written(WEATHER)}<tool_call></tool_call>", -3),
        (f"{written(WEATHER)}<tool_call>nothing</tool_call>", -3),
        (written([WEATHER]), -3),
        (written("weather"), -3),
        (written({"name": "weather"}), -3),
        (written({"name": 3, "arguments": {}}), -3),
        (written({"name": "weather", "arguments": "city=Oslo"}), -3),
        (written({"name": "weather", "arguments": {}, "parameters": {}}), -3),
        ('<tool_call>{"name": "weather", "arguments": {"city": "Rome", "city": "Oslo"}}</tool_call>', -3),
        (json.dumps(WEATHER), -3),
    ],
)
def test_what_is_a_call(text: str, score: float) -> None:
    assert judge(text) == score


def test_toolrl_writes_one_call_a_line_with_parameters() -> None:
    lines = "\n".join(json.dumps({"name": one["name"], "parameters": one["arguments"]}) for one in (WEATHER, CLOCK))
    text = f"<think>both</think>\n<tool_call>\n{lines}\n\n</tool_call>\n<response>wait</response>"
    assert judge(text, [WEATHER, CLOCK]) == judge(written(CLOCK, WEATHER), text) == 3
    assert judge(text.replace("clock", "watch"), text) == pytest.approx(6 * (1 / 3 + 3) / 5 - 3)


def test_where_nothing_is_to_be_called_any_call_is_wrong() -> None:
    assert judge("It is sunny.", []) == judge("It is sunny.", "<response>It is sunny.</response>") == 3
    assert judge(written(CLOCK), []) == judge("<tool_call>", []) == -3


def slow(true: Calls, answered: Calls) -> float:
    """The paper's formula, with the best of all ways to pair calls."""
    pool = [one["name"] for one in answered]
    common = 0
    for one in true:
        if one["name"] in pool:
            pool.remove(one["name"])
            common += 1
    union = len(true) + len(answered) - common
    name = common / union if union else 1.0

    def pair(one: dict[str, Any], other: dict[str, Any] | None) -> float:
        if other is None or one["name"] != other["name"]:
            return 0.0
        mine, its = one["arguments"], other["arguments"]
        keys = len(set(mine) & set(its)) / len(set(mine) | set(its)) if {*mine, *its} else 1.0
        equal: float = keys + sum(key in its and its[key] == value for key, value in mine.items())
        return equal

    padded = [*answered, *([None] * len(true))]
    ways = permutations(padded, len(true))
    best = max(sum(pair(one, other) for one, other in zip(true, way, strict=True)) for way in ways)
    return 6 * (name + best) / (1 + sum(1 + len(one["arguments"]) for one in true)) - 3


def test_random_calls_against_all_matchings() -> None:
    source, found, expected = random.Random(0), [], []
    for _ in range(100):
        true, answered = random_calls(source, 3), random_calls(source, 3)
        found.append(judge(written(*answered), true))
        expected.append(slow(true, answered))
    assert found == pytest.approx(expected, abs=1e-6)
    assert len(set(expected)) > 20


def test_calls_are_paired_for_the_best_sum_not_one_by_one() -> None:
    true = [call("f", a=1, b=1), call("f", a=1, b=2)]
    answered = [call("f", a=1, b=2), call("f", a=5)]
    # greedy: the first true call takes the first answered one (2), and the second gets 1 / 2; turned: 1 / 2 + 3
    assert judge(written(*answered), true) == pytest.approx(6 * (1 + 3.5) / 7 - 3)


def test_nested_values_are_equal_as_json() -> None:
    true = [call("f", where={"x": 1, "y": [1.5, None, "é"]})]
    where = '{"y": [1.50, null, "\\u00e9"], "x": 1.0}'
    assert judge(f'<tool_call>{{"name": "f", "arguments": {{"where": {where}}}}}</tool_call>', true) == 3
    assert judge(written(call("f", where={"x": 1, "y": [None, 1.5, "é"]})), true) == 6 * 2 / 3 - 3


@in_one_test(
    ("calls", "message"),
    [
        (3, r"target\.calls must be a list of calls, or a text of them, got 3"),
        ([3], "a call is an object with a name, got '3'"),
        ([{"name": "f"}], "a call needs one object of arguments"),
        (["f()"], "a call is an object with a name"),
        ("<tool_call>f()</tool_call>", "not JSON"),
        ([call("f", a=1e-9)], "not a number that is allowed here"),
        ([call("f", a="</tool_call>")], "each <tool_call> needs one </tool_call>"),
        ([call("f", a={1})], "not JSON serializable"),
        ([CLOCK] * (MAX_CALLS + 1), "at most 32 calls"),
    ],
)
def test_a_target_that_no_answer_can_write_is_refused(calls: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ToolCall().check(Prompt("?", target={"calls": calls}))


def test_more_calls_than_the_most_are_none() -> None:
    assert judge(written(*[CLOCK] * MAX_CALLS), [CLOCK] * MAX_CALLS) == 3
    assert judge(written(*[CLOCK] * (MAX_CALLS + 1)), [CLOCK] * MAX_CALLS) == -3
    lines = "\n".join([json.dumps(CLOCK)] * (MAX_CALLS + 1))
    assert judge(f"<tool_call>{lines}</tool_call>", [CLOCK] * MAX_CALLS) == -3


@given(TEXTS)
def test_any_text_has_a_score(text: str) -> None:
    check_scores(ToolCall(), answers([text, f"<tool_call>{text}</tool_call>"], {"calls": [WEATHER]}))


@pytest.mark.slow
@given(st.lists(TEXTS | st.sampled_from(["<tool_call>", "</tool_call>", json.dumps(WEATHER), "\n", "</think>"])))
def test_any_text_with_pieces_of_calls_has_a_score(pieces: list[str]) -> None:
    check_scores(ToolCall(), answers(["".join(pieces)], {"calls": [WEATHER]}))


@pytest.mark.timeout(60)
def test_hostile_texts_have_scores() -> None:
    check_scores(ToolCall(), answers(HOSTILE, {"calls": [WEATHER]}))


@pytest.mark.slow
@pytest.mark.timeout(60)
@pytest.mark.parametrize("piece", [*REPEATED, "<tool_call>", "<tool_call>{}</tool_call>", "{}\n"], ids=shown)
def test_a_megabyte_is_scored(piece: str) -> None:
    tagged = [f"<tool_call>{piece * (one // len(piece))}</tool_call>" for one in (90_000, 900_000)]
    check_scores(ToolCall(), answers([*megabytes(piece), *tagged], {"calls": [WEATHER]}))
