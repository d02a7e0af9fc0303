"""Parsers of answers: tags, numbers, points, boxes, spans of time and JSON, in linear time, without evaluation.

An answer is untrusted data. Every function takes any text of at most MAX_CHARACTERS, and raises ParseError where the
text does not hold exactly one answer: several answers never score better than one. The exception is `read_span`, which
takes the last span of a text, as the field does.
Numbers are ASCII digits with a sign and decimals, at most 12 digits before the point and 20 behind it. Exponents,
infinities and NaN are no numbers here. Patterns use possessive quantifiers, so that no text makes them backtrack.
"""

import json
import re
from collections import deque
from dataclasses import dataclass
from itertools import islice

from mmrl.parsing.coordinates import Box, Point

MAX_CHARACTERS = 1_000_000
MAX_JSON_CHARACTERS = 100_000  # fewer, since numbers and brackets are checked one by one
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


Span = tuple[float, float]  # start and end in seconds, as written: the end may come before the start


class ParseError(ValueError):
    """A text that holds no answer of the wanted kind, or several."""


@dataclass(frozen=True)
class Tagged:
    """A text, split by its tags."""

    contents: tuple[str, ...]  # the text inside of each tag
    outside: str  # all text before, between and after the tags


def check_tag(tag: str | None) -> None:
    """Raises ValueError unless `tag` is a valid name of a tag, or None."""
    if tag is not None:
        check_tags((tag,))


def check_tags(tags: tuple[str, ...]) -> None:
    """Raises ValueError unless `tags` are valid names of tags, at least one, each once."""
    if not tags or len(set(tags)) != len(tags) or not all(_TAG_NAME.fullmatch(tag) for tag in tags):
        raise ValueError(f"tags must be different names of letters, digits and _, got {', '.join(tags) or 'none'}")


def tagged(text: str, tags: tuple[str, ...]) -> Tagged:
    """Returns the contents of `tags`: each `<tag>...</tag>` must be there once, in this order, none inside another.

    This is the one rule for tags: of the format rewards, and of everything that reads an answer inside of a tag. Tags
    must be written exactly so, without other capitals, spaces or attributes.

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
    """Returns the text inside of the one pair `<tag>...</tag>`; the whole text where `tag` is None."""
    return text if tag is None else tagged(text, (tag,)).contents[0]


def read_numbers(text: str) -> tuple[float, ...]:
    """Returns the numbers of a text of numbers alone: between commas or white space, perhaps in a pair of brackets.

    Raises ParseError for any other text.
    """
    _bound(text)
    inner = text.strip(" \t\r\n")
    if inner[:1] + inner[-1:] in ("()", "[]"):
        inner = inner[1:-1].strip(" \t\r\n")
    if not _NUMBERS.fullmatch(inner):
        raise ParseError(f"these are not numbers alone: {shown(text)}")
    return tuple(float(number) for number in _NUMBER_ALONE.findall(inner))


def read_place(text: str) -> Point | Box:
    """Returns the one point or box in a text, whatever words stand around it.

    A point is `(x, y)`, `[x, y]` or `<point>x y</point>`. A box is `[x1, y1, x2, y2]`, `(x1, y1, x2, y2)` or its
    corners `(x1, y1), (x2, y2)`. The number of coordinates decides, not a key: `{"point_2d": [x, y]}` is a point, and
    `{"bbox_2d": [x1, y1, x2, y2], "label": "cat"}` a box; both may stand in `<|box_start|>...<|box_end|>`. The corners
    of a box are returned as written, also in the wrong order.

    Raises:
        ParseError: there is no point or box in the text, or more than one.
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


def count_places(text: str) -> int:
    """Returns the number of points and boxes in a text, in the forms of `read_place`. Raises ParseError as it does for
    a text that is too long.
    """
    _bound(text)
    return sum(1 for _ in _PLACE.finditer(text))


def read_point(text: str) -> Point:
    """Returns the one point in a text. Raises ParseError for a box, and as `read_place` does."""
    place = read_place(text)
    if len(place) != 2:
        raise ParseError(f"a point has two numbers, not four: {shown(text)}")
    return place


def read_box(text: str) -> Box:
    """Returns the one box in a text, with its corners as written.

    Raises ParseError for a point, and as `read_place`.
    """
    place = read_place(text)
    if len(place) != 4:
        raise ParseError(f"a box has four numbers, not two: {shown(text)}")
    return place


def read_span(text: str) -> Span:
    """Returns the last span of time in a text, in seconds: `3.5 to 7.2`, `3.5 and 7.2`, `3.5 - 7.2`, `3.5, 7.2`.

    A unit is `s`, `sec`, `seconds` or nothing, in any case. Times such as 1:20 and exponents are not read, and a sign
    in front of the first time is a dash. Of three numbers in a row, the last two are the span. Start and end are
    returned as written, also in the wrong order. (VideoChat-R1 2025, arXiv 2504.06958, and Time-R1 2025, arXiv
    2503.13377, read `to` and `and` in this way.)

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
    """Returns all spans of time in a text, in seconds, in the order of the text, each with start and end as written.

    The text is either a list and nothing else: tuples of Python, `[(3.5, 7.2), (9, 12)]` (VideoChat-R1 2025, arXiv
    2504.06958), or JSON, `[[3.5, 7.2], [9, 12]]`, where a single span needs no outer brackets and `[]` is no span. Or
    it is in words, `3.5 to 7.2 and 9 s - 12 s`, with times as in `read_span`.

    Raises:
        ParseError: words without a span, a list of another kind, or more than MAX_SPANS spans.
    """
    _bound(text)
    inner = text.strip(" \t\r\n")
    if _TUPLES.fullmatch(inner):
        times = [float(one[0]) for one in islice(_NUMBER_ALONE.finditer(inner), 2 * MAX_SPANS + 2)]
        spans = tuple(zip(times[::2], times[1::2], strict=True))
    elif inner.startswith("["):
        value = read_json(text)
        pairs = [value] if isinstance(value, list) and value and not isinstance(value[0], list) else value
        spans = tuple(_span(pair) for pair in pairs) if isinstance(pairs, list) else ()
    else:
        words = islice(_ONE_SPAN.finditer(text), MAX_SPANS + 1)
        spans = tuple((float(one), float(two)) for one, two in (_TIME.findall(match[0]) for match in words))
        if not spans:
            raise ParseError(f"there is no span of seconds, like `3.5 to 7.2`, in {shown(text)}")
    if len(spans) > MAX_SPANS:
        raise ParseError(f"a text may have {MAX_SPANS} spans of time, got more")
    return spans


def read_json(text: str) -> object:
    """Returns the value of a JSON text of at most MAX_JSON_CHARACTERS, nested at most MAX_DEPTH deep.

    Raises:
        ParseError: the text is not JSON, too long or too deep, has a key twice, or a number that this module refuses.
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
    """Returns the value of JSON as Python writes it: also with single quotes, and with True, False and None.

    Nothing is evaluated: the text is rewritten as JSON and read by `read_json`, with its limits. Raises ParseError for
    any other text, such as one with tuples, sets or calls.
    """
    _bound(text, MAX_JSON_CHARACTERS)
    return read_json(_LITERAL_PIECE.sub(_as_json, text))


def read_boxed(text: str) -> str:
    r"""Returns the text inside of the one `\boxed{...}` behind the last `</think>`, or of the whole text without it.

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
    """Returns the beginning of a text in quotes, for a message."""
    return repr(text if len(text) <= 80 else f"{text[:80]}...")


def _bound(text: str, most: int = MAX_CHARACTERS) -> None:
    if len(text) > most:
        raise ParseError(f"a text may have {most} characters, got {len(text)}")


def _as_json(piece: re.Match[str]) -> str:
    """Returns a piece of Python, a quoted text or one of its three words, as JSON."""
    words = {"True": "true", "False": "false", "None": "null"}
    if piece[0] in words:
        return words[piece[0]]
    if piece[0][0] == '"':
        return piece[0]
    is_closed = len(piece[0]) > 1 and piece[0][-1] == "'"
    inner = _IN_QUOTES.sub(lambda match: {"\\'": "'", '"': '\\"'}.get(match[0], match[0]), piece[0][1:-1])
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
    value = dict(pairs)
    if len(value) != len(pairs):
        raise ParseError("a key stands twice in an object of the JSON")
    return value
