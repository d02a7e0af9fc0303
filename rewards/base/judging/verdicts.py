"""How the verdict of a written reply is read: its last labelled line or JSON, never a guess."""

import json
import math
import re
from collections.abc import Sequence
from typing import Any

from .questions import UnansweredError

_SHOWN = 200  # characters of a reply in an error
_MOST = 100_000  # characters of a reply that are read: its end
_NUMBER = re.compile(r"[-+]?(?:[0-9]{1,15}(?:\.[0-9]{0,15})?|\.[0-9]{1,15})")
_MARKS = " \t*_`#>\"'"  # of Markdown and quotation around a verdict
_YES, _NO = ("yes", "true"), ("no", "false")


def verdict_in(reply: str, label: str, *, is_bare: bool) -> Any:
    """Returns the verdict of a reply: the value of `label` in the JSON object that the reply is, else the text of the
    last line `label: ...`, else, where `is_bare`, the whole reply.

    The last one counts, since a reply may quote earlier ones. Raises UnansweredError where there is none.
    """
    text = reply[-_MOST:].strip()
    if isinstance(found := _json(text), dict):
        named = {str(key).casefold().replace("_", " "): value for key, value in found.items()}
        if label.casefold() in named:
            return named[label.casefold()]
    if lines := _line_of(label).findall(text):
        return lines[-1].strip(_MARKS)
    if is_bare and text:
        return text.strip(_MARKS)
    raise UnansweredError(f"the reply has no line '{label}: ...', got {_short(reply)}")


def reasons_in(reply: str, label: str) -> str:
    """Returns what a reply says beside its verdict, empty where it says nothing: the field `reasons` of the JSON object
    that the reply is, else all that stands before its last line `label: ...`."""
    text = reply[-_MOST:].strip()
    if isinstance(found := _json(text), dict):
        return str(found.get("reasons", "")).strip()
    lines = list(_line_of(label).finditer(text))
    return text[: lines[-1].start()].strip() if lines else ""


def _line_of(label: str) -> re.Pattern[str]:
    """Returns the pattern of a line `label: ...`, also with Markdown around the label."""
    marks = r"[ \t*_`#>\-]*"
    return re.compile(rf"^{marks}{re.escape(label)}[ \t*_`]*[:=](.*)$", re.IGNORECASE | re.MULTILINE)


def number_of(verdict: Any, low: float, high: float) -> float:
    """Returns a verdict that is one number in [low, high], such as 4, "4" or "4/5" where high is 5.

    Raises UnansweredError for anything else: a number outside is no clear verdict.
    """
    if isinstance(verdict, str):
        text = verdict.strip(_MARKS).rstrip(".")
        whole, slash, most = text.partition("/")
        if slash and _NUMBER.fullmatch(most.strip()) and float(most) == high:
            text = whole.strip()
        if _NUMBER.fullmatch(text):
            verdict = float(text)
    if isinstance(verdict, bool) or not isinstance(verdict, int | float) or not low <= verdict <= high:
        raise UnansweredError(f"a verdict must be a number from {low:g} to {high:g}, got {_short(verdict)}")
    return float(verdict)


def numbers_of(verdict: Any, count: int, low: float, high: float) -> list[float]:
    """Returns a verdict that is a list of `count` numbers in [low, high]. Raises UnansweredError for anything else."""
    return [number_of(one, low, high) for one in _listed(verdict, count)]


def choices_of(verdict: Any, count: int) -> list[bool]:
    """Returns a verdict that is a list of `count` times yes or no (or true and false, 1 and 0)."""
    return [is_yes(one) for one in _listed(verdict, count)]


def is_yes(verdict: Any, yes: Sequence[str] = _YES, no: Sequence[str] = _NO) -> bool:
    """Returns whether a verdict is yes. Raises UnansweredError where it is not no, either."""
    word = str(verdict).strip(_MARKS + ".,!").casefold() if isinstance(verdict, str) else verdict
    for answer, words in ((True, yes), (False, no)):
        if word is answer or (isinstance(word, str) and word in [one.casefold() for one in words]):
            return answer
    if word in (0, 1, "0", "1") and not isinstance(word, bool):
        return str(word) == "1"
    raise UnansweredError(f"a verdict must be {yes[0]} or {no[0]}, got {_short(verdict)}")


def preference_of(verdict: Any, first: str, second: str, tie: str) -> float:
    """Returns 1 where a verdict is the word `first`, 0 for `second`, 1/2 for `tie`. Raises UnansweredError else."""
    word = str(verdict).strip(_MARKS + ".,!").casefold()
    for value, allowed in ((1.0, first), (0.0, second), (0.5, tie)):
        if word == allowed.casefold():
            return value
    raise UnansweredError(f"a verdict must be {first}, {second} or {tie}, got {_short(verdict)}")


def level_of(verdict: Any, levels: Sequence[str]) -> float:
    """Returns the place in [0, 1] of a verdict among words, of which the first is 0 and the last 1.

    Raises UnansweredError for another word.
    """
    word = str(verdict).strip(_MARKS + ".,!").casefold()
    known = [level.casefold() for level in levels]
    if word not in known:
        raise UnansweredError(f"a verdict must be one of {', '.join(levels)}, got {_short(verdict)}")
    return known.index(word) / (len(known) - 1)


def places_of(verdict: Any, count: int) -> list[int]:
    """Returns a ranking of `count` items, best first, as the places [count] from 0 (best) of items 1 to `count`.

    The verdict is a list such as [3, 1, 2] or "3 > 1 > 2". Raises UnansweredError where an item is missing or twice.
    """
    items = verdict.replace(">", ",") if isinstance(verdict, str) else verdict
    order = [int(number) for number in numbers_of(items, count, 1, count) if float(number).is_integer()]
    if sorted(order) != list(range(1, count + 1)):
        raise UnansweredError(f"a ranking must name each of 1 to {count} once, got {_short(verdict)}")
    places = [0] * count
    for place, item in enumerate(order):
        places[item - 1] = place
    return places


def scaled(number: float, low: float, high: float) -> float:
    """Returns a number in [low, high] as one in [0, 1]."""
    return (number - low) / (high - low)


def share_of_yes(log_probs: Sequence[float]) -> float:
    """Returns P(yes) / (P(yes) + P(no)) of the log-probs of yes and no. Raises UnansweredError where both are -inf."""
    yes, no = log_probs
    if max(yes, no) == -math.inf:
        raise UnansweredError("neither of both answers is among the likeliest first words")
    return 1.0 / (1.0 + math.exp(min(no - yes, 700.0)))


def _listed(verdict: Any, count: int) -> list[Any]:
    """Returns the items of a verdict: of a JSON list, of an object whose keys are 1 to `count`, or between commas."""
    if isinstance(verdict, str):
        found = _json(verdict)
        verdict = (
            found if isinstance(found, list | dict) else [one.strip() for one in verdict.strip("[]() ").split(",")]
        )
    if isinstance(verdict, dict) and set(verdict) == {str(number) for number in range(1, count + 1)}:
        verdict = [verdict[str(number)] for number in range(1, count + 1)]
    if not isinstance(verdict, list) or len(verdict) != count:
        raise UnansweredError(f"a verdict must list {count} items, got {_short(verdict)}")
    return verdict


def _json(text: str) -> Any:
    """Returns the JSON value that a text is, also inside of a code fence; None where it is none."""
    if fenced := re.fullmatch(r"```(?:json)?\s*(.*?)\s*```", text, re.DOTALL):
        text = fenced[1]
    if not text.startswith(("{", "[")):
        return None
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _short(value: Any) -> str:
    words = repr(value)
    return words if len(words) <= _SHOWN else f"{words[:_SHOWN]}..."
