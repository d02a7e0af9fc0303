"""Reading what a model wrote: tags, numbers, points, boxes and JSON, in linear time and without evaluating anything.

An answer is data from a stranger. Every function takes any text, looks at no more than MAX_CHARACTERS of it, and
raises ParseError where the text does not hold exactly one answer: nobody earns more by answering several times.
The one exception is `read_span`, which the field reads as the last one of a sentence.
Numbers are ASCII digits with a sign and decimals, at most 12 digits before the point and 20 behind; exponents,
infinities and NaN are none. Patterns use possessive quantifiers, so that no text makes them backtrack.
"""

import json
import re
from collections import deque
from dataclasses import dataclass
from itertools import islice

from mmrl.parsing.coordinates import Box, Point

MAX_CHARACTERS = 1_000_000
MAX_JSON_CHARACTERS = 100_000  # its numbers and brackets are looked at one by one
MAX_DEPTH = 20  # of nested JSON
MAX_SPANS = 100  # of time in one text

_NUMBER = r"[+-]?(?:[0-9]{1,12}+(?:\.[0-9]{0,20}+)?+|\.[0-9]{1,20}+)"
_SPACE = r"[ \t\r\n]*+"
_COMMA = rf"{_SPACE},{_SPACE}"
_PAIR = rf"{_NUMBER}{_COMMA}{_NUMBER}"
_CORNERS = rf"\({_SPACE}{_PAIR}{_SPACE}\){_COMMA}\({_SPACE}{_PAIR}{_SPACE}\)"  # (x1, y1), (x2, y2)
_LIST = rf"{_SPACE}{_PAIR}(?:{_COMMA}{_PAIR})?+{_SPACE}"
_SPACED_POINT = rf"<point>{_SPACE}{_NUMBER}(?:{_COMMA}|[ \t\r\n]++){_NUMBER}{_SPACE}</point>"
_PLACE = re.compile(rf"{_CORNERS}|\({_LIST}\)|\[{_LIST}\]|{_SPACED_POINT}")
_NUMBER_ALONE = re.compile(_NUMBER)
_NUMBERS = re.compile(rf"{_NUMBER}(?:(?:{_COMMA}|[ \t\r\n]++){_NUMBER})*+")
_TIME = re.compile(r"[0-9]{1,12}+(?:\.[0-9]{0,20}+)?+(?![0-9:]|\.[0-9]|[eE][+-]?[0-9])")  # seconds, no sign
_UNIT = rf"(?:{_SPACE}(?:seconds?+|secs?+|s)\b)?+"
_UNTIL = rf"{_UNIT}{_SPACE}(?:to|and|[-\u2013\u2014,]){_SPACE}"
_FIRST = rf"(?<![\w.])(?<![\w.][+-])(?<![0-9]:){_TIME.pattern}"  # a sign before it is a dash: no time is below 0
_TIMES = re.compile(rf"{_FIRST}(?:{_UNTIL}{_TIME.pattern})++", re.IGNORECASE)
_ONE_SPAN = re.compile(rf"{_FIRST}{_UNIT}{_SPACE}(?:to|and|[-\u2013\u2014]){_SPACE}{_TIME.pattern}", re.IGNORECASE)
_MOMENT = r"[0-9]{1,12}+(?:\.[0-9]{1,20}+)?+"
_TUPLE = rf"\({_SPACE}{_MOMENT}{_COMMA}{_MOMENT}{_SPACE}\)"
_TUPLES = re.compile(rf"\[{_SPACE}{_TUPLE}(?:{_COMMA}{_TUPLE})*+(?:{_SPACE},)?+{_SPACE}\]")  # as Python writes them
_TAG_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,39}")
_JSON_PIECE = re.compile(r'"(?:[^"\\]++|\\.)*+"?+|[\[\]{}]', re.DOTALL)  # an unclosed string ends the text
_LITERAL_PIECE = re.compile(r"\"(?:[^\"\\]++|\\.)*+\"?+|'(?:[^'\\]++|\\.)*+'?+|\b(?:True|False|None)\b", re.DOTALL)
_IN_QUOTES = re.compile(r'\\.|"', re.DOTALL)
_BOXED = "\\boxed{"
_BRACES = re.compile(r"(?:\\.)++|\{++|\}++", re.DOTALL)  # what follows a backslash is no brace


Span = tuple[float, float]  # start and end in seconds


class ParseError(ValueError):
    """The text holds no answer of the kind that was looked for, or several."""


@dataclass(frozen=True)
class Tagged:
    """The parts of a text that stand in tags."""

    contents: tuple[str, ...]  # one for each tag
    outside: str  # everything before, between and after them


def check_tag(tag: str | None) -> None:
    """Raises ValueError unless this is the name of a tag, or none."""
    if tag is not None:
        check_tags((tag,))


def check_tags(tags: tuple[str, ...]) -> None:
    """Raises ValueError unless these are names of tags, at least one, each once."""
    if not tags or len(set(tags)) != len(tags) or not all(_TAG_NAME.fullmatch(tag) for tag in tags):
        raise ValueError(f"tags must be different names of letters, digits and _, got {', '.join(tags) or 'none'}")


def tagged(text: str, tags: tuple[str, ...]) -> Tagged:
    """The contents of `tags`: each `<tag>...</tag>` once in the whole text, in this order, none inside another.

    This is the one rule for tags, of the format rewards and of everything that reads an answer out of its tag. Tags
    are written in exactly this way: no capitals, spaces or attributes of their own.

    Raises:
        ParseError: a tag is missing, repeated, closed before it is opened, or not in its place.
    """
    _bound(text)
    contents, outside, end = [], [], 0
    for tag in tags:
        opening, closing = f"<{tag}>", f"</{tag}>"
        counts = text.count(opening), text.count(closing)
        if counts != (1, 1):
            raise ParseError(f"needs one {opening} and one {closing}, got {counts[0]} and {counts[1]}")
        start = text.index(opening)
        stop = text.index(closing)
        if not end <= start < stop:
            raise ParseError(f"{opening}...{closing} is not in its place")
        contents.append(text[start + len(opening) : stop])
        outside.append(text[end:start])
        end = stop + len(closing)
    return Tagged(tuple(contents), "".join([*outside, text[end:]]))


def extract(text: str, tag: str | None) -> str:
    """What stands in the one pair `<tag>...</tag>` of the text; the whole text where `tag` is None."""
    return text if tag is None else tagged(text, (tag,)).contents[0]


def read_numbers(text: str) -> tuple[float, ...]:
    """The numbers of a text that is nothing else: with commas or white space between, maybe in one pair of brackets."""
    _bound(text)
    inner = text.strip(" \t\r\n")
    if inner[:1] + inner[-1:] in ("()", "[]"):
        inner = inner[1:-1].strip(" \t\r\n")
    if not _NUMBERS.fullmatch(inner):
        raise ParseError(f"these are not numbers alone: {shown(text)}")
    return tuple(float(number) for number in _NUMBER_ALONE.findall(inner))


def read_place(text: str) -> Point | Box:
    """The one point or box in a text; other words around it do not matter. How many numbers it has decides, no key.

    A point: `(x, y)`, `[x, y]`, `<point>x y</point>`. A box: `[x1, y1, x2, y2]`, `(x1, y1, x2, y2)`, or its corners
    `(x1, y1), (x2, y2)`. So also `{"point_2d": [x, y]}`, `{"bbox_2d": [x1, y1, x2, y2], "label": "cat"}` and both in
    `<|box_start|>...<|box_end|>`. The corners of a box are as written: in the wrong order too.

    Raises:
        ParseError: there is no place in the text, or more than one.
    """
    _bound(text)
    places = _PLACE.finditer(text)
    first, second = next(places, None), next(places, None)
    if first is None:
        raise ParseError(f"there is no point or box in {shown(text)}")
    if second is not None:
        raise ParseError(f"there is more than one point or box in {shown(text)}")
    numbers = tuple(float(number) for number in _NUMBER_ALONE.findall(first[0]))
    return (numbers[0], numbers[1]) if len(numbers) == 2 else (numbers[0], numbers[1], numbers[2], numbers[3])


def read_point(text: str) -> Point:
    """The one place in a text (`read_place`), which must be a point."""
    place = read_place(text)
    if len(place) != 2:
        raise ParseError(f"a point has two numbers, not four: {shown(text)}")
    return place


def read_box(text: str) -> Box:
    """The one place in a text (`read_place`), which must be a box; its corners are as written."""
    place = read_place(text)
    if len(place) != 4:
        raise ParseError(f"a box has four numbers, not two: {shown(text)}")
    return place


def read_span(text: str) -> Span:
    """The last span of time in a text, in seconds: `3.5 to 7.2`, `3.5 and 7.2`, `3.5 - 7.2`, `3.5, 7.2`.

    Units are `s`, `sec` or `seconds`, or none; capitals do not matter. Times like 1:20 and exponents are none, and a
    sign in front of the first time is a dash. Of three numbers in a row the last two count. Start and end are as
    written: in the wrong order too. (VideoChat-R1 2025, arXiv 2504.06958, and Time-R1 2025, arXiv 2503.13377, read `to`
    and `and` in this way.)

    Raises:
        ParseError: there is no span in the text.
    """
    _bound(text)
    last = deque(_TIMES.finditer(text), maxlen=1)
    if not last:
        raise ParseError(f"there is no span of seconds, like `3.5 to 7.2`, in {shown(text)}")
    start, end = _TIME.findall(last[0][0])[-2:]
    return float(start), float(end)


def read_spans(text: str) -> tuple[Span, ...]:
    """All spans of time in a text, in seconds and in their order, as written: in the wrong order too.

    Either a list and nothing else, of tuples as Python writes them, `[(3.5, 7.2), (9, 12)]` (VideoChat-R1 2025, arXiv
    2504.06958), or as JSON, `[[3.5, 7.2], [9, 12]]`, of which one span needs no outer brackets; `[]` for none. Or in
    words, `3.5 to 7.2 and 9 s - 12 s`, times as in `read_span`.

    Raises:
        ParseError: words without a span, a list of another kind, or more than MAX_SPANS spans.
    """
    _bound(text)
    inner = text.strip(" \t\r\n")
    if _TUPLES.fullmatch(inner):
        times = [float(one[0]) for one in islice(_NUMBER_ALONE.finditer(inner), 2 * MAX_SPANS + 2)]
        spans = tuple(zip(times[::2], times[1::2], strict=True))
    elif inner.startswith("["):
        found = read_json(text)
        pairs = [found] if isinstance(found, list) and found and not isinstance(found[0], list) else found
        spans = tuple(_span(pair) for pair in pairs) if isinstance(pairs, list) else ()
    else:
        words = islice(_ONE_SPAN.finditer(text), MAX_SPANS + 1)
        spans = tuple((float(one), float(two)) for one, two in (_TIME.findall(found[0]) for found in words))
        if not spans:
            raise ParseError(f"there is no span of seconds, like `3.5 to 7.2`, in {shown(text)}")
    if len(spans) > MAX_SPANS:
        raise ParseError(f"a text may have {MAX_SPANS} spans of time, got more")
    return spans


def read_json(text: str) -> object:
    """The value of a JSON text, at most MAX_JSON_CHARACTERS long and MAX_DEPTH deep; its numbers as in this module.

    Raises:
        ParseError: not JSON, too long or deep, a key twice in an object, or a number that is none here.
    """
    _bound(text, MAX_JSON_CHARACTERS)
    depth = 0
    for piece in _JSON_PIECE.finditer(text):
        depth += {"[": 1, "{": 1, "]": -1, "}": -1}.get(piece[0], 0)
        if depth > MAX_DEPTH:
            raise ParseError(f"JSON is nested deeper than {MAX_DEPTH}")
    try:
        return json.loads(
            text,
            parse_int=lambda number: int(_number(number)),
            parse_float=_number,
            parse_constant=_number,
            object_pairs_hook=_object,
        )
    except json.JSONDecodeError as error:
        raise ParseError(f"not JSON: {error.msg} at {shown(text[error.pos :])}") from None


def read_literal(text: str) -> object:
    """The value of JSON as Python writes it: texts may stand in single quotes, True, False and None are known too.

    Nothing is evaluated: the text becomes JSON and is read as that (`read_json`), with its limits. Tuples, sets and
    calls are none. Raises ParseError where it is neither.
    """
    _bound(text, MAX_JSON_CHARACTERS)
    return read_json(_LITERAL_PIECE.sub(_as_json, text))


def read_boxed(text: str) -> str:
    r"""What stands in the one `\boxed{...}` of a text; what was thought before the last `</think>` does not count.

    Raises:
        ParseError: there is no such box, or more than one, or its braces do not close.
    """
    _bound(text)
    rest = text.rpartition("</think>")[2]
    count = rest.count(_BOXED)
    if count != 1:
        raise ParseError(f"needs one {_BOXED}...}}, got {count}")
    start, depth = rest.index(_BOXED) + len(_BOXED), 1
    for braces in _BRACES.finditer(rest, start):
        if braces[0][0] == "}" and len(braces[0]) >= depth:
            return rest[start : braces.start() + depth - 1]
        depth += {"{": 1, "}": -1}.get(braces[0][0], 0) * len(braces[0])
    raise ParseError(f"{_BOXED} is not closed in {shown(rest[start:])}")


def shown(text: str) -> str:
    """The beginning of a text, for a message."""
    return repr(text if len(text) <= 80 else f"{text[:80]}...")


def _bound(text: str, most: int = MAX_CHARACTERS) -> None:
    if len(text) > most:
        raise ParseError(f"a text may have {most} characters, got {len(text)}")


def _as_json(piece: re.Match[str]) -> str:
    """A text in single quotes, or a word of Python, as JSON has it."""
    words = {"True": "true", "False": "false", "None": "null"}
    if piece[0] in words:
        return words[piece[0]]
    if piece[0][0] == '"':
        return piece[0]
    is_closed = len(piece[0]) > 1 and piece[0][-1] == "'"
    inner = _IN_QUOTES.sub(lambda found: {"\\'": "'", '"': '\\"'}.get(found[0], found[0]), piece[0][1:-1])
    return f'"{inner}"' if is_closed else piece[0]


def _span(pair: object) -> Span:
    is_two = isinstance(pair, list) and len(pair) == 2 and all(type(time) in (int, float) for time in pair)
    if not is_two or not isinstance(pair, list):
        raise ParseError(f"a span is [start, end] in seconds, got {shown(str(pair))}")
    return float(pair[0]), float(pair[1])


def _number(text: str) -> float:
    if not _NUMBER_ALONE.fullmatch(text):
        raise ParseError(f"not a number that is allowed here: {shown(text)}")
    return float(text)


def _object(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ParseError("a key stands twice in an object of the JSON")
    return found
