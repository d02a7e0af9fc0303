"""What the source says of settings: name, type and range, default, and the comment beside the field.

The scripts that write docs/settings.md and docs/reward_reference.md share this file.
"""

import ast
import inspect
import io
import json
import math
import re
import textwrap
import tokenize
from dataclasses import MISSING, Field, fields, is_dataclass
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import yaml
from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from mmrl.core import plugins
from mmrl.core.checked import bound_in_words

# emphasis, strikes, formulas, escapes, tags, links; an underscore inside of a word is no emphasis
MARKS = re.compile(r"[*~$]|\\(?=[{}\[\]()])|(?<!\w)_|_(?!\w)|<(?=[\w/!])|(?<=\])\(")
FOR_TOOLS = re.compile(r"\s*#?\s*(fmt: \w+|noqa\b.*|type: ignore\S*|ruff: .*)$")  # comments that linters read
HEAD = ("| setting | type and range | default | meaning |", "|---|---|---|---|")
WORDS: dict[Any, tuple[str, str]] = {  # one, and several
    int: ("integer", "integers"),
    float: ("number", "numbers"),
    str: ("text", "texts"),
    bool: ("`true` or `false`", "`true` or `false` each"),
    Any: ("anything", "anything"),
}


def settings(cls: type, *, inherited: bool = True) -> dict[str, Any]:
    """Returns the settings of a dataclass or pydantic model and their annotations; without `inherited`, its own."""
    hints = get_type_hints(cls, include_extras=True)
    if issubclass(cls, BaseModel):
        names = list(cls.model_fields)
    else:
        assert is_dataclass(cls), cls
        names = [item.name for item in fields(cls) if item.init]
    own = inspect.get_annotations(cls)
    return {name: hints[name] for name in names if inherited or name in own}


def table(cls: type, links: dict[type, str], *, inherited: bool = True) -> str:
    """Returns one row per setting. `links`: where the classes that are types of settings have their own tables."""
    rows = []
    for name, hint in settings(cls, inherited=inherited).items():
        meaning = escaped(re.sub(r"\bNone\b", "`null`", meanings(cls).get(name, "")))
        cells = (f"`{name}`", in_words(hint, links), default(cls, name), meaning)
        rows.append("|" + "|".join(f" {cell.replace('|', chr(92) + '|')} " if cell else " " for cell in cells) + "|")
    return "\n".join([*HEAD, *rows]) if rows else "It has no settings."


@cache
def meanings(cls: type) -> dict[str, str]:
    """Returns the comments of all fields of a class; a field that is declared anew without one keeps its parent's."""
    found: dict[str, str] = {}
    for owner in reversed(cls.__mro__[:-1]):
        if is_dataclass(owner) or issubclass(owner, BaseModel):
            found |= {name: text for name, text in _own_comments(owner).items() if text}
    return found


@cache
def _own_comments(cls: type) -> dict[str, str]:
    """Fields that the class itself declares, and their comments: behind the field, or in the lines directly above."""
    source = textwrap.dedent(inspect.getsource(cls))
    tokens = list(tokenize.generate_tokens(io.StringIO(source).readline))
    comments = {one.start[0]: one for one in tokens if one.type == tokenize.COMMENT}
    alone = {line for line, one in comments.items() if not one.line[: one.start[1]].strip()}
    (definition,) = ast.parse(source).body
    assert isinstance(definition, ast.ClassDef)
    found = {}
    for statement in definition.body:
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            first = statement.lineno
            while first - 1 in alone:
                first -= 1
            lines = range(first, (statement.end_lineno or statement.lineno) + 1)
            texts = [_text(comments[line].string) for line in lines if line in comments]
            found[statement.target.id] = " ".join(filter(None, texts))
    return found


def _text(comment: str) -> str:
    return FOR_TOOLS.sub("", comment).lstrip("# ")


def _place(link: str) -> str:
    """Returns where a link leads: a heading of the same page, or another page."""
    return link if ".md" in link else f"#{link}"


def in_words(hint: Any, links: dict[type, str], *, several: bool = False) -> str:
    """Returns an annotation as a user of YAML reads it: "integer, at least 1, or null"."""
    origin, arguments = get_origin(hint), get_args(hint)
    if hint in WORDS:
        return WORDS[hint][several]
    if origin is Annotated:
        return ", ".join(
            [in_words(arguments[0], links, several=several), *_limits(arguments[1:], is_text=arguments[0] is str)]
        )
    if origin is Literal:
        return ", ".join(f"`{as_yaml(one)}`" for one in arguments)
    if origin in (Union, UnionType):
        parts = [in_words(one, links, several=several) for one in arguments if one is not NoneType]
        return " or ".join(parts) + (", or `null`" if NoneType in arguments else "")
    if origin in (tuple, list, frozenset, set):
        return _list_in_words(arguments, links)
    if isinstance(origin, type) and arguments:
        return (
            "section"
            + "s" * several
            + (f" of names with {in_words(arguments[1], links)}" if arguments[1] is not Any else "")
        )
    name = getattr(hint, "__name__", str(hint))
    if name in plugins.INNER and hint not in links:
        return f"{plugins.singular(plugins.INNER[name])}{'s' * several}, `{{name: ...}}`"
    return f"[{name}]({_place(links[hint])})" if hint in links else name


def _list_in_words(items: tuple[Any, ...], links: dict[type, str]) -> str:
    if len(items) == 1 or items[1:] == (Ellipsis,):
        return f"list of {in_words(items[0], links, several=True)}"
    if len(set(map(str, items))) == 1:
        return f"list of {len(items)} {in_words(items[0], links, several=True)}"
    return f"list: {'; '.join(in_words(one, links) for one in items)}"


def _limits(metadata: tuple[Any, ...], *, is_text: bool) -> list[str]:
    """Returns the bounds of an `Annotated[..., Field(...)]` in words."""
    parts = [part for item in metadata for part in getattr(item, "metadata", ())]
    found = {key: getattr(part, key) for part in parts for key in ("gt", "ge", "lt", "le") if hasattr(part, key)}
    counted = "letters" if is_text else "of them"
    lengths = [f"at least {part.min_length} {counted}" for part in parts if hasattr(part, "min_length")]
    patterns = [f"`{part.pattern}`" for part in parts if getattr(part, "pattern", None)]
    return [*([bound_in_words(found)] if found else []), *lengths, *patterns]


def default(cls: type, name: str) -> str:
    """Returns a default as YAML, in backticks; `needed` without them where there is none."""
    value = default_value(cls, name)
    return "needed" if value is MISSING else f"`{as_yaml(value)}`"


def default_value(cls: type, name: str) -> Any:
    """Returns the default of a setting; MISSING where it must be given."""
    if issubclass(cls, BaseModel):
        value = cls.model_fields[name].get_default(call_default_factory=True)
        return MISSING if value is PydanticUndefined else value
    items: dict[str, Field[Any]] = {item.name: item for item in fields(cls)}  # type: ignore[arg-type]  # a dataclass
    factory = items[name].default_factory
    return items[name].default if factory is MISSING else factory()


def as_yaml(value: Any) -> str:
    """Returns a setting as a config writes it, on one line."""
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    if isinstance(value, float):
        return ("-" if value < 0 else "") + ".inf" if math.isinf(value) else repr(value)
    if isinstance(value, str):
        is_plain = bool(value) and "#" not in value and yaml.safe_load(value) == value
        return value if is_plain else json.dumps(value)
    if isinstance(value, tuple | list | frozenset):
        return f"[{', '.join(map(as_yaml, value))}]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {as_yaml(one)}" for key, one in value.items()) + "}"
    if is_dataclass(value) or isinstance(value, BaseModel):  # what differs from the defaults of its own class
        cls = type(value)
        own = {name: getattr(value, name) for name in settings(cls)}
        changed = {name: one for name, one in own.items() if one != default_value(cls, name)}
        return as_yaml(_plug_in_name(cls) | changed)
    return str(value)


def _plug_in_name(cls: type) -> dict[str, str]:
    """Returns {"name": ...} for the class of a plug-in, {} for every other class."""
    module, _, name = cls.__module__.rpartition(".")
    is_plug_in = any(module.startswith(f"mmrl.{kind}") and name in plugins.names(kind) for kind in plugins.KINDS)
    return {"name": name} if is_plug_in else {}


def markdown(text: str) -> str:
    """Returns a docstring as Markdown: what is indented becomes a block of code, the rest stays words."""
    blocks: list[tuple[bool, list[str]]] = []
    for line in text.splitlines():
        is_code = line.startswith(" ") or (not line and bool(blocks) and blocks[-1][0])
        if not blocks or blocks[-1][0] != is_code:
            blocks.append((is_code, []))
        blocks[-1][1].append(line)
    return "\n\n".join(written for is_code, lines in blocks if (written := _block(is_code, "\n".join(lines))))


def _block(is_code: bool, text: str) -> str:
    text = textwrap.dedent(text).strip("\n") if is_code else text.strip("\n")
    if not is_code:
        return escaped(text)
    return f"```text\n{text}\n```" if text else ""


def escaped(text: str) -> str:
    """Returns words in which Markdown finds nothing but what stands in backticks."""
    parts = re.split(r"(`[^`]*`)", text)
    for number in range(0, len(parts), 2):
        parts[number] = re.sub(MARKS, r"\\\g<0>", parts[number])
    # what would begin a list, a heading, a rule or a quotation where it stands at the beginning of a line
    return re.sub(r"^([0-9]+(?=[.)]\s)|(?=[-+#=]\s|>))", r"\1\\", "".join(parts), flags=re.MULTILINE)
