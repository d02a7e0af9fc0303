"""docs/settings.md is what the code says of settings; every setting has a meaning, and nothing else is on the page."""

import math
import re
from dataclasses import MISSING, dataclass, field, is_dataclass
from typing import Annotated, Any, ClassVar, Literal, Protocol

import pytest
import settings_reference
import settings_source
import yaml
from pydantic import BaseModel, Field

from mmrl.advantages.grpo import Grpo
from mmrl.core import config, plugins
from tests.parameters import in_one_test


@pytest.mark.slow
def test_the_page_is_what_the_script_writes() -> None:
    text = settings_reference.FILE.read_text(encoding="utf-8")
    assert text == settings_reference.reference(), "run: python scripts/settings_reference.py"


def test_every_setting_has_a_comment_and_so_a_meaning() -> None:
    assert settings_reference.lacking() == []


def sections() -> dict[str, str]:
    """The text of the page under each heading."""
    text = settings_reference.FILE.read_text(encoding="utf-8")
    _, *parts = re.split(r"^### (.+)\n", text, flags=re.MULTILINE)
    return dict(zip(parts[::2], parts[1::2], strict=True))


@in_one_test("kind", sorted(settings_reference.KINDS))
def test_every_plug_in_has_its_section(kind: plugins.Kind) -> None:
    expected = {f"{name} ({plugins.singular(kind)})" for name in plugins.names(kind)}
    assert {title for title in sections() if title.endswith(f" ({plugins.singular(kind)})")} == expected


@pytest.mark.parametrize("kind", sorted(settings_reference.KINDS))
def test_the_tables_of_a_plug_in_and_its_bases_hold_exactly_its_settings(kind: plugins.Kind) -> None:
    titles = {entry.title: entry for entry in settings_reference.entries()}
    for name in plugins.names(kind):
        entry = titles[f"{name} ({plugins.singular(kind)})"]
        text = sections()[entry.title]
        bases = re.findall(r"\[([^\]]+)\]\(#", text.partition("| setting |")[0])
        found = re.findall(r"^\| `(\w+)` \|", "".join(sections()[one] for one in [entry.title, *bases]), re.MULTILINE)
        assert set(found) == set(settings_source.settings(entry.cls)), name


def read_back(text: str, like: Any) -> Any:
    """A default cell as a value of the type of `like`."""
    value = yaml.safe_load(text.strip("`").replace(r"\|", "|"))
    if isinstance(like, float):
        return float(value)  # YAML reads 1e-05 as text
    if not isinstance(like, tuple):
        return value
    are_numbers = not any(isinstance(one, str) for one in like)
    return tuple(float(one) if are_numbers and isinstance(one, str) else one for one in value)


@pytest.mark.slow
def test_every_default_of_the_page_reads_back_as_the_default() -> None:
    for entry in settings_reference.entries():
        rows = re.findall(r"^\| `(\w+)` \| .*? \| (`[^`]*`|needed) \|", sections()[entry.title], re.MULTILINE)
        assert [name for name, _ in rows] == list(settings_source.settings(entry.cls, inherited=False))
        for name, text in rows:
            default = settings_source.default_value(entry.cls, name)
            if default is MISSING or text == "needed":
                assert default is MISSING and text == "needed", (entry.title, name)
            elif not is_dataclass(default) and not isinstance(default, BaseModel):
                assert read_back(text, default) == default, (entry.title, name)


def test_every_section_of_a_config_is_on_the_page() -> None:
    names = {name for name, hint in config.RunConfig.__annotations__.items() if "Settings" in str(hint)}
    assert names and names <= set(sections())


def test_titles_and_anchors_are_unique() -> None:
    anchors = [entry.anchor for entry in settings_reference.entries()]
    assert len(set(anchors)) == len(anchors)


def test_a_setting_without_a_comment_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings_reference, "entries", lambda: [settings_reference.Entry(Settings, "settings", "")])
    place = f"{Settings.__module__}:Settings"
    assert [one for one in settings_reference.lacking() if one.startswith(place)] == [f"{place}.text", f"{place}.other"]


@dataclass
class Base:
    count: int = 3  # at least 1 | 2, or None
    source: ClassVar[str] = "here"  # not a setting
    made: int = field(default=0, init=False)  # not a setting either


@dataclass
class Settings(Base):
    # of two: the first,
    # or the second
    kind: Literal["one", "yes"] = "one"
    text: str = "# not a comment"
    pair: tuple[float, float] = (
        -math.inf,
        1e-4,
    )  # on several lines
    other: "dict[str, int] | None" = None  # fmt: skip


@dataclass
class Heir(Base):
    count: int = 4


@dataclass
class Empty: ...


class Model(BaseModel):
    size: int = 1


class Reward(Protocol): ...


@in_one_test(
    ("text", "expected"),
    [
        ("a * b, `a * b`", r"a \* b, `a * b`"),
        ("w_k of _none_ and p~", r"w_k of \_none\_ and p\~"),
        ("</think> and 1 < 2", r"\</think> and 1 < 2"),
        ("- 1 is\n+ 2 and\n3. of\n-1", "\\- 1 is\n\\+ 2 and\n3\\. of\n-1"),
        (">= 2", r"\>= 2"),
        ("[0, 1](see)", r"[0, 1]\(see)"),
        (r"\{1, 2\} costs $5", r"\\{1, 2\\} costs \$5"),
    ],
)
def test_words_hold_nothing_that_markdown_would_eat(text: str, expected: str) -> None:
    assert settings_source.escaped(text) == expected


def test_indented_lines_of_a_docstring_are_code() -> None:
    text = "The sum:\n  a * b\n    c\n\n  d\nand so on.\n\nThe end."
    assert settings_source.markdown(text) == "The sum:\n\n```text\na * b\n  c\n\nd\n```\n\nand so on.\n\nThe end."


def test_a_table_holds_types_defaults_and_the_comments_of_the_source() -> None:
    assert settings_source.table(Settings, {}).splitlines()[2:] == [
        r"| `count` | integer | `3` | at least 1 \| 2, or `null` |",
        '| `kind` | `one`, `"yes"` | `one` | of two: the first, or the second |',
        '| `text` | text | `"# not a comment"` | |',
        "| `pair` | list of 2 numbers | `[-.inf, 0.0001]` | on several lines |",
        "| `other` | section of names with integer, or `null` | `null` | |",
    ]


def test_a_table_of_own_settings_leaves_out_those_of_the_base() -> None:
    assert "`count`" not in settings_source.table(Settings, {}, inherited=False)
    assert settings_source.table(Heir, {}, inherited=False).splitlines()[2:] == [
        r"| `count` | integer | `4` | at least 1 \| 2, or `null` |"
    ], "a new default keeps the meaning"


def test_a_class_without_settings_says_so() -> None:
    assert settings_source.table(Empty, {}) == "It has no settings."


@in_one_test(
    ("hint", "words"),
    [
        (Annotated[int, Field(ge=1)], "integer, at least 1"),
        (Annotated[float, Field(gt=0, le=1)] | None, "number, above 0 and at most 1, or `null`"),
        (bool, "`true` or `false`"),
        (Literal["a", "b"] | None, "`a`, `b`, or `null`"),
        (str | tuple[str, ...], "text or list of texts"),
        (tuple[Annotated[float, Field(ge=0)], ...], "list of numbers, at least 0"),
        (Annotated[tuple[str, ...], Field(min_length=1)], "list of texts, at least 1 of them"),
        (Annotated[str, Field(min_length=2)], "text, at least 2 letters"),
        (tuple[int, str], "list: integer; text"),
        (dict[str, Any], "section"),
        (dict[str, float], "section of names with number"),
        (Base, "[Base](#base)"),
        (Reward, "reward, `{name: ...}`"),
        (tuple[Reward, ...], "list of rewards, `{name: ...}`"),
    ],
)
def test_a_type_in_words(hint: Any, words: str) -> None:
    assert settings_source.in_words(hint, {Base: "base"}) == words


@in_one_test(
    ("value", "text"),
    [
        (Base(), "{}"),
        (Base(5), "{count: 5}"),
        (Model(), "{}"),
        (Grpo(), "{name: grpo}"),
        ((1, None, True), "[1, null, true]"),
        ("", '""'),
        (-math.inf, "-.inf"),
    ],
)
def test_a_default_in_yaml(value: Any, text: str) -> None:
    assert settings_source.as_yaml(value) == text
