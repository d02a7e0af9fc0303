"""Rows that bring outputs: one or more outputs with scores, or a chosen and a rejected one."""

import math
from collections.abc import Callable, Sequence
from typing import Any

from mmrl.core.data import Prompt
from mmrl.prompts import row_values
from mmrl.prompts.messages import are_messages, last_answer, media_of, question
from mmrl.prompts.row import Row
from mmrl.prompts.row_pictures import BadRow

LARGEST = 1e18  # of a score: totals may be no larger
PAIR, OUTPUTS, SCORES = ("chosen", "rejected"), ("outputs", "output"), ("scores", "score")
RECORDED = ("token_ids", "log_probs")  # of each answer: together, or neither
FIELDS = (
    "prompt",
    "messages",
    "images",
    "image",
    "system",
    "output",
    "outputs",
    "score",
    "scores",
    "chosen",
    "rejected",
)
Read = Callable[[Row, Any, str], Any]  # an output from the row's value and its name; raises BadRow


def offline_prompt(row: Row, read: Read, *, has_tokens: bool = False) -> Prompt:
    """Returns the prompt of a row, whose target has `given` and `given_scores`. Raises BadRow.

    `has_tokens`: outputs are answers, and may bring their tokens and log-probs: `given_token_ids`, `given_log_probs`.
    """
    name = "messages" if "prompt" not in row.values and "messages" in row.values else "prompt"
    conversation = question(row.need(name), name)
    media, system = media_of(row, conversation), row.take("system")
    if not isinstance(system, str | None):
        raise BadRow(f"the field 'system' must be a text, got {system!r:.80}")
    outputs, scores = (
        _pair(row, read) if _is_pair(row, conversation.answer) else _scored(row, read, conversation.answer)
    )
    target = {"given": outputs, "given_scores": scores, **(_recorded(row, len(outputs)) if has_tokens else {})}
    return row.prompt(conversation.text, media, target, conversation.system if system is None else system)


def _is_pair(row: Row, answer: Any) -> bool:
    """Returns whether a row has `chosen` or `rejected`, or has them empty and holds no other output."""
    says_else = answer is not None or any(name in row.values for name in (*OUTPUTS, *SCORES))
    return any(name in row.values or (name in row.nulls and not says_else) for name in PAIR)


def _pair(row: Row, read: Read) -> tuple[tuple[Any, ...], tuple[float, ...]]:
    if unread := next((name for name in (*OUTPUTS, *SCORES) if name in row.values), None):
        own = next(name for name in PAIR if name in row.values)
        raise BadRow(f"it has {own!r} and {unread!r}; a row holds a pair, or outputs with scores")
    values = [row.need(name) for name in PAIR]
    return tuple(read(row, value, name) for value, name in zip(values, PAIR, strict=True)), (1.0, 0.0)


def _scored(row: Row, read: Read, answer: Any) -> tuple[tuple[Any, ...], tuple[float, ...]]:
    """Returns outputs with their scores, 1 where a row has none; without outputs the answer of its messages."""
    named, scored = _one_of(row, OUTPUTS), _one_of(row, SCORES)
    if named is None and answer is None:
        row.need(next((name for name in OUTPUTS if name in row.nulls), "output"))  # raises
    taken = answer if named is None else row.take(named)
    values = _listed(_cell(taken) if named == "outputs" else taken)  # `output` may be a text that is a list of JSON
    outputs = tuple(read(row, one, f"{named or 'answer'} {n}") for n, one in enumerate(values, 1))
    if scored is None and (empty := [name for name in SCORES if name in row.nulls]):
        raise BadRow(f"its field {empty[0]!r} is null; without that field each output scores 1")
    scores = _numbers([1.0] * len(outputs) if scored is None else _listed(_cell(row.take(scored))))
    if not outputs or len(scores) != len(outputs):
        raise BadRow(f"it has {len(outputs)} outputs and {len(scores)} scores; each output needs one")
    return outputs, scores


def _one_of(row: Row, names: Sequence[str]) -> str | None:
    there = [name for name in names if name in row.values]
    if len(there) > 1:
        raise BadRow(f"it has {there[0]!r} and {there[1]!r}; one of the two is allowed")
    return there[0] if there else None


def _cell(value: Any) -> Any:
    """Returns a list that a table's cell holds as JSON text as a list; any other value as it is."""
    return row_values.parsed(value) if isinstance(value, str) and value.lstrip().startswith("[") else value


def _listed(value: Any) -> list[Any]:
    """Returns a list as it is, and one value as a list of one; a list of messages is one answer."""
    return value if isinstance(value, list) and not are_messages(value) else [value]


def _numbers(values: Sequence[Any]) -> tuple[float, ...]:
    numbers = [row_values.parsed(value) for value in values]
    for value in numbers:
        if not isinstance(value, bool | int | float) or not abs(value) <= LARGEST:  # NaN is not
            raise BadRow(f"a score must be a finite number of at most {LARGEST:g}, got {value!r:.40}")
    return tuple(float(value) for value in numbers)


def _recorded(row: Row, count: int) -> dict[str, Any]:
    """Returns the tokens of `count` answers and their log-probs when they were sampled, if the row has any."""
    if not any(name in row.values or name in row.nulls for name in RECORDED):
        return {}
    tokens, log_probs = (_lists(row.need(name), name, count) for name in RECORDED)
    for number, (ids, values) in enumerate(zip(tokens, log_probs, strict=True), 1):
        if len(ids) != len(values):
            raise BadRow(f"answer {number} has {len(ids)} token_ids and {len(values)} log_probs; each token needs one")
        if wrong := [one for one in ids if type(one) is not int or one < 0]:
            raise BadRow(f"token_ids are whole numbers of at least 0, got {wrong[0]!r:.40}")
        if wrong := [one for one in values if type(one) not in (int, float) or not -math.inf < one <= 0]:
            raise BadRow(f"log_probs are finite numbers of at most 0, got {wrong[0]!r:.40}")
    ended = [tuple(map(float, values)) for values in log_probs]
    return {"given_token_ids": tuple(map(tuple, tokens)), "given_log_probs": tuple(ended)}


def _lists(value: Any, name: str, count: int) -> list[list[Any]]:
    """Returns one list for each of `count` answers, none empty; the list of a single answer may stand alone."""
    value = _cell(value)
    lists = [value] if count == 1 and isinstance(value, list) and not any(isinstance(v, list) for v in value) else value
    if not isinstance(lists, list) or len(lists) != count or not all(isinstance(one, list) and one for one in lists):
        raise BadRow(f"the field {name!r} must be one list of numbers for each of {count} answers, got {value!r:.80}")
    return lists


def text_of(row: Row, value: Any, name: str) -> str:
    """Returns the text of an answer, which is a text, or messages that end with the assistant's."""
    answer = last_answer(value, name)
    if not isinstance(answer, str) or not answer.strip():
        raise BadRow(f"the field {name!r} must be a text, got {answer!r:.80}")
    try:
        answer.encode()
    except UnicodeEncodeError as error:
        raise BadRow(f"the field {name!r} is no Unicode text: {error}") from error
    return answer
