"""A parser of calls such as `click(x=1, y=2)`, in one pass and without Python's parser; nothing is run.

It reads a small part of Python: names with dots, strings, numbers, True, False, None, flat lists and tuples, comments,
several statements. Unlike `ast.parse`, it cannot run out of memory or stack, and gives no warnings about escapes.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from mmrl.parsing.answers import MAX_CHARACTERS, ParseError, shown

Constant = str | float | int | bool | None
Value = Constant | tuple[Constant, ...]

MAX_TOKENS = 2000
_WORDS: dict[str, Constant] = {"True": True, "False": False, "None": None}
_QUOTED = "|".join(
    rf"{quote}[^{quote[0]}\\]*+(?:(?:\\.|{more})[^{quote[0]}\\]*+)*+{quote}"
    for quote, more in (("'''", "'(?!'')"), ('"""', '"(?!"")'), ("'", r"\\."), ('"', r"\\."))
)
_TOKEN = re.compile(
    rf"(?P<space>[ \t\r\f]++|\#[^\n]*+|\\\n)|(?P<end>[\n;])|(?P<string>{_QUOTED})"
    r"|(?P<number>[+-]?(?:[0-9]{1,12}+(?:\.[0-9]{0,20}+)?+|\.[0-9]{1,20}+))"
    r"|(?P<name>[A-Za-z_][A-Za-z0-9_]{0,60}+(?:\.[A-Za-z_][A-Za-z0-9_]{0,60}+)*+)|(?P<mark>[(),=\[\]])",
    re.DOTALL,
)
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
    if len(text) > MAX_CHARACTERS:
        raise ParseError(f"a text may have {MAX_CHARACTERS} characters, got {len(text)}")
    reader = _Reader(_tokens(text))
    calls = []
    while reader.kind != "stop":
        if reader.kind == "end":
            reader.advance()
            continue
        name = reader.take("name")
        if name == "import":
            reader.take("name")
        else:
            calls.append(reader.call(name))
        if reader.kind not in ("end", "stop"):
            raise ParseError(f"not the end of a statement: {shown(reader.value)}")
    return calls


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


def _tokens(text: str) -> Iterator[tuple[str, str]]:
    """Yields the kind and the text of each token, without spaces; within brackets the end of a line is a space."""
    position = depth = 0
    for _ in range(MAX_TOKENS):
        if position == len(text):
            return
        match = _TOKEN.match(text, position)
        if match is None or match.lastgroup is None:
            raise ParseError(f"cannot be read as a call: {shown(text[position:])}")
        position, piece = match.end(), match[0]
        if match.lastgroup == "mark":
            depth += {"(": 1, "[": 1, ")": -1, "]": -1}.get(piece, 0)
        if match.lastgroup != "space" and not (piece == "\n" and depth > 0):
            yield match.lastgroup, piece
    raise ParseError(f"a call may have {MAX_TOKENS} pieces: {shown(text)}")


class _Reader:
    """A recursive reader of tokens; `kind` and `value` are those of the next token."""

    def __init__(self, tokens: Iterator[tuple[str, str]]) -> None:
        self._tokens = tokens
        self.advance()

    def advance(self) -> None:
        """Moves on to the next token."""
        self.kind, self.value = next(self._tokens, ("stop", ""))

    def take(self, kind: str, value: str | None = None) -> str:
        """Returns the next token, which must be of this kind, and advances."""
        if self.kind != kind or (value is not None and self.value != value):
            raise ParseError(f"expected {value or f'a {kind}'}, got {shown(self.value)}")
        taken = self.value
        self.advance()
        return taken

    def has(self, mark: str) -> bool:
        """Returns whether the next token is the mark, and advances if so."""
        if (self.kind, self.value) != ("mark", mark):
            return False
        self.advance()
        return True

    def call(self, name: str) -> Call:
        """Reads the arguments of a call, if there are any, behind its name."""
        if not self.has("("):
            return Call(name, is_bare=True)
        positional: list[Value] = []
        keywords: dict[str, Value] = {}
        while not self.has(")"):
            if self.kind == "name" and self.value not in _WORDS:
                key = self.take("name")
                self.take("mark", "=")
                if key in keywords:
                    raise ParseError(f"{shown(key)} is given twice")
                keywords[key] = self.argument()
            elif keywords:
                raise ParseError("arguments without a name come first")
            else:
                positional.append(self.argument())
            if not self.has(","):
                self.take("mark", ")")
                break
        return Call(name, tuple(positional), keywords)

    def argument(self) -> Value:
        """Reads a constant, or a flat list or tuple of constants."""
        closing = {"[": "]", "(": ")"}.get(self.value) if self.kind == "mark" else None
        if closing is None:
            return self.constant()
        self.advance()
        items: list[Constant] = []
        while not self.has(closing):
            items.append(self.constant())
            if not self.has(","):
                self.take("mark", closing)
                break
        return tuple(items)

    def constant(self) -> Constant:
        """Reads a string, a number, True, False or None."""
        if self.kind == "string":
            literal = self.take("string")
            marks = 3 if literal[:3] in ("'''", '"""') and len(literal) >= 6 else 1
            return unescape(literal[marks:-marks])
        if self.kind == "number":
            number = self.take("number")
            return float(number) if "." in number else int(number)
        word = self.take("name")
        if word not in _WORDS:
            raise ParseError(f"expected a string or a number, got {shown(word)}")
        return _WORDS[word]
