"""A parser of calls such as `click(x=1, y=2)`, by lark in linear time and without Python's parser; nothing is run.

It reads a small part of Python: names with dots, strings, numbers, True, False, None, flat lists and tuples, comments,
several statements. Unlike `ast.parse`, it cannot run out of memory or stack, and gives no warnings about escapes.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from mmrl.parsing.answers import MAX_CHARACTERS, ParseError, shown

Constant = str | float | int | bool | None
Value = Constant | tuple[Constant, ...]

MAX_TOKENS = 2000
_WORDS: dict[str, Constant] = {"True": True, "False": False, "None": None}
_QUOTED = "|".join(
    rf"{quote}[^{quote[0]}\\]*+(?:(?:\\.|{more})[^{quote[0]}\\]*+)*+{quote}"
    for quote, more in (("'''", "'(?!'')"), ('"""', '"(?!"")'), ("'", r"\\."), ('"', r"\\."))
)
# Within brackets no statement can end, and the end of a line is a space.
_GRAMMAR = rf"""
start: (statement? _END)* statement?
?statement: _IMPORT NAME -> nothing | NAME -> bare | NAME "(" (argument ("," argument)* ","?)? ")" -> call
argument: (NAME "=")? value
?value: constant | "(" _constants? ")" -> several | "[" _constants? "]" -> several
_constants: constant ("," constant)* ","?
constant: STRING -> string | NUMBER -> number | WORD -> word
_IMPORT: "import"
WORD.1: /(?:True|False|None)(?![A-Za-z0-9_.])/
NAME: /[A-Za-z_][A-Za-z0-9_]{{0,60}}+(?:\.[A-Za-z_][A-Za-z0-9_]{{0,60}}+)*+/
NUMBER: /[+-]?(?:[0-9]{{1,12}}+(?:\.[0-9]{{0,20}}+)?+|\.[0-9]{{1,20}}+)/
STRING: /{_QUOTED}/s
_END.2: /[\n;]/
%ignore /[ \t\r\f]++|\#[^\n]*+|\\\n|\n/
"""
_ESCAPE = re.compile(r"\\(x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|[0-7]{1,3}|.)", re.DOTALL)
_ESCAPED = {"\\": "\\", "'": "'", '"': '"', "n": "\n", "t": "\t", "r": "\r", "a": "\a", "b": "\b", "f": "\f"}
_ESCAPED |= {"v": "\v", "\n": ""}


@dataclass(frozen=True)
class Call:
    """A call `name(positional, keyword=value)`, or a name alone."""

    name: str
    positional: tuple[Value, ...] = ()
    keywords: Mapping[str, Value] = field(default_factory=dict)
    is_bare: bool = False  # a name without brackets

    def bind(self, *names: str) -> dict[str, Value]:
        """Returns the arguments by name, as a function with the parameters `names` sees them, without missing ones.

        Raises ParseError for other arguments, and for a name alone.
        """
        if self.is_bare or len(self.positional) > len(names):
            raise ParseError(f"{self.name} takes {', '.join(names) or 'nothing'} in brackets")
        bound = dict(zip(names, self.positional, strict=False))
        for name, value in self.keywords.items():
            if name in bound or name not in names:
                raise ParseError(f"{self.name} takes {', '.join(names) or 'nothing'}, each once, got {shown(name)}")
            bound[name] = value
        return bound


def read_calls(text: str) -> list[Call]:
    """Returns the statements of a text, each a call or a name alone; imports of modules are skipped.

    Raises:
        ParseError: anything else is in the text, or more than MAX_TOKENS tokens.
    """
    from lark import UnexpectedInput

    if len(text) > MAX_CHARACTERS:
        raise ParseError(f"a text may have {MAX_CHARACTERS} characters, got {len(text)}")
    reading = _parser().parse_interactive(text)
    try:
        for number, _ in enumerate(reading.iter_parse()):
            if number == MAX_TOKENS:
                raise ParseError(f"a call may have {MAX_TOKENS} pieces: {shown(text)}")
        return [call for call in reading.feed_eof().children if call is not None]
    except UnexpectedInput as error:
        raise ParseError(f"cannot be read as a call: {shown(text[error.pos_in_stream or 0 :])}") from error


@cache
def _parser() -> Any:
    """Returns the parser, whose tree has a `Call` for each statement."""
    from lark import Lark, Transformer, v_args

    @v_args(inline=True)
    class Read(Transformer[Any, Any]):
        def nothing(self, name: str) -> None:
            return None

        def bare(self, name: str) -> Call:
            return Call(str(name), is_bare=True)

        def call(self, name: str, *arguments: tuple[str | None, Value]) -> Call:
            names = [key for key, _ in arguments if key is not None]
            if any(key is not None for key, _ in arguments[: len(arguments) - len(names)]):
                raise ParseError("arguments without a name come first")
            if len(set(names)) < len(names):
                raise ParseError(f"a name of {shown(name)} is given twice")
            positional = tuple(value for key, value in arguments if key is None)
            return Call(str(name), positional, {key: value for key, value in arguments if key is not None})

        def argument(self, *parts: Any) -> tuple[str | None, Value]:
            return (None, *parts) if len(parts) == 1 else (str(parts[0]), parts[1])

        def several(self, *constants: Constant) -> tuple[Constant, ...]:
            return constants

        def string(self, literal: str) -> str:
            marks = 3 if literal[:3] in ("'''", '"""') and len(literal) >= 6 else 1
            return unescape(literal[marks:-marks])

        def number(self, number: str) -> float:
            return float(number) if "." in number else int(number)

        def word(self, word: str) -> Constant:
            return _WORDS[word]

    return Lark(_GRAMMAR, parser="lalr", lexer="contextual", transformer=Read(), maybe_placeholders=False)


def unescape(text: str) -> str:
    """Returns the inside of a string literal with its escapes replaced as in Python; unknown escapes stay."""

    def replaced(match: re.Match[str]) -> str:
        code = match[1]
        if code in _ESCAPED:
            return _ESCAPED[code]
        if code[0] in "xuU" and len(code) > 1:
            number = int(code[1:], 16)
        elif code[0] in "01234567":
            number = int(code, 8)
        else:
            return match[0]
        if number > 0x10FFFF:
            raise ParseError(f"there is no character {match[0]}")
        return chr(number)

    return _ESCAPE.sub(replaced, text)


def quote(text: str) -> str:
    """Returns a text as a string literal in single quotes."""
    return "'" + repr('"' + text)[2:-1] + "'"  # with a double quote inside, repr always takes single ones
