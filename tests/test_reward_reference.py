"""docs/reward_reference.md is what the rewards say of themselves."""

import importlib.util
import math
import re
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any, ClassVar, Literal

import pytest
import yaml
from pydantic import Field

from mmrl.core import plugins

ROOT = Path(__file__).parents[1]
FILE = ROOT / "docs" / "reward_reference.md"


@pytest.fixture(scope="module")
def script() -> ModuleType:
    """scripts/reward_reference.py, which is no part of the package."""
    spec = importlib.util.spec_from_file_location("reward_reference", ROOT / "scripts" / "reward_reference.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def sections() -> dict[str, str]:
    """The text of the page under the name of each reward."""
    _, *parts = re.split(r"^### (\w+)\n", FILE.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return dict(zip(parts[::2], parts[1::2], strict=True))


def as_python(text: str) -> Any:
    """The default in a cell; MISSING where it is needed."""
    return MISSING if text == "needed" else yaml.safe_load(re.fullmatch(r"`(.*)`", text)[1].replace(r"\|", "|"))  # type: ignore[index]


def test_the_page_is_what_the_script_writes(script: ModuleType) -> None:
    assert FILE.read_text(encoding="utf-8") == script.reference(), "run: python scripts/reward_reference.py"


@pytest.mark.parametrize("name", plugins.names("rewards"))
def test_every_setting_of_a_reward_is_in_the_reference_with_its_default(name: str) -> None:
    found = re.findall(r"^\| `(\w+)` \| (`.*?`|needed) \|", sections()[name], flags=re.MULTILINE)
    settings = [item for item in fields(plugins.find("rewards", name)) if item.init]
    assert [key for key, _ in found] == [item.name for item in settings]
    for item, (_, text) in zip(settings, found, strict=True):
        expected = item.default if item.default_factory is MISSING else item.default_factory()
        written = as_python(text)
        if isinstance(expected, tuple | frozenset):
            assert written == list(expected)
        elif isinstance(expected, float) and not math.isnan(expected):
            assert float(written) == expected  # YAML reads 1e-05 as text
        else:
            assert written is expected or (type(written), written) == (type(expected), expected)


def test_the_rewards_stand_under_their_groups_in_the_order_of_the_alphabet(script: ModuleType) -> None:
    text = FILE.read_text(encoding="utf-8")
    groups = re.split(r"^## (.+)\n", text, flags=re.MULTILINE)[1:]
    found = {
        title: re.findall(r"^### (\w+)$", body, re.MULTILINE)
        for title, body in zip(groups[::2], groups[1::2], strict=True)
    }
    assert list(found) == list(script.GROUPS)
    assert all(names == sorted(names) for names in found.values())
    assert sorted(name for names in found.values() for name in names) == plugins.names("rewards")


def test_a_reward_without_a_group_and_a_group_without_its_reward_are_errors(
    script: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(script, "GROUPS", {**script.GROUPS, "Time": ("temporal_iou", "clock")})
    with pytest.raises(ValueError, match=r"\['clock', 'temporal_contrast', 'temporal_segments'\]"):
        script.reference()


@pytest.mark.parametrize(
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
def test_words_hold_nothing_that_markdown_would_eat(script: ModuleType, text: str, expected: str) -> None:
    assert script.escaped(text) == expected


def test_indented_lines_of_a_docstring_are_code(script: ModuleType) -> None:
    text = "The sum:\n  a * b\n    c\n\n  d\nand so on.\n\nThe end."
    assert script.markdown(text) == "The sum:\n\n```text\na * b\n  c\n\nd\n```\n\nand so on.\n\nThe end."


@dataclass
class Base:
    count: int = 3  # at least 1 | 2
    source: ClassVar[str] = "here"  # not a setting


@dataclass
class Settings(Base):
    kind: Literal["one", "yes"] = "one"  # of two
    text: str = "# not a comment"
    pair: tuple[float, float] = (
        -math.inf,
        1e-4,
    )  # on several lines
    other: "dict[str, int] | None" = None
    share: Annotated[float, Field(gt=0, le=1)] | None = None  # of the whole
    # Above the field,
    # in two lines.
    size: Annotated[int, Field(ge=2)] = 3


def test_the_table_holds_defaults_choices_and_the_comments_of_the_source(script: ModuleType) -> None:
    assert script.table(Settings).splitlines()[2:] == [
        r"| `count` | `3` | at least 1 \| 2 |",
        '| `kind` | `one` | `one`, `"yes"`; of two |',
        '| `text` | `"# not a comment"` | |',
        "| `pair` | `[-.inf, 0.0001]` | on several lines |",
        "| `other` | `null` | |",
        "| `share` | `null` | above 0 and at most 1; of the whole |",
        "| `size` | `3` | at least 2; Above the field, in two lines. |",
    ]
