"""docs/reward_reference.md is what the rewards say of themselves."""

import math
import re
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from typing import Any

import pytest
import reward_reference
import yaml

from mmrl.commands import listing
from mmrl.core import plugins
from tests.parameters import in_one_test

ROOT = Path(__file__).parents[1]
FILE = ROOT / "docs" / "reward_reference.md"


def sections() -> dict[str, str]:
    """The text of the page under the name of each reward."""
    _, *parts = re.split(r"^### (\w+)\n", FILE.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return dict(zip(parts[::2], parts[1::2], strict=True))


def as_python(text: str) -> Any:
    """The default in a cell; MISSING where it is needed."""
    return MISSING if text == "needed" else yaml.safe_load(re.fullmatch(r"`(.*)`", text)[1].replace(r"\|", "|"))  # type: ignore[index]


@pytest.mark.slow
def test_the_page_is_what_the_script_writes() -> None:
    assert FILE.read_text(encoding="utf-8") == reward_reference.reference(), "run: python scripts/reward_reference.py"


@in_one_test("name", plugins.names("rewards"))
def test_every_setting_of_a_reward_is_in_the_reference_with_its_default(name: str) -> None:
    found = re.findall(r"^\| `(\w+)` \| .*? \| (`[^`]*`|needed) \|", sections()[name], flags=re.MULTILINE)
    settings = [item for item in fields(plugins.find("rewards", name)) if item.init]
    assert [key for key, _ in found] == [item.name for item in settings]
    for item, (_, text) in zip(settings, found, strict=True):
        expected = item.default if item.default_factory is MISSING else item.default_factory()
        written = as_python(text)
        if isinstance(expected, tuple | frozenset):
            plain = [_differing(one) if is_dataclass(one) else one for one in expected]
            assert written == plain
        elif isinstance(expected, float) and not math.isnan(expected):
            assert float(written) == expected  # YAML reads 1e-05 as text
        else:
            assert written is expected or (type(written), written) == (type(expected), expected)


def _differing(value: Any) -> dict[str, Any]:
    """The fields of a dataclass that differ from its defaults, as YAML writes a section."""
    return {item.name: getattr(value, item.name) for item in fields(value) if getattr(value, item.name) != item.default}


def test_the_rewards_stand_under_their_groups_in_the_order_of_the_alphabet() -> None:
    text = FILE.read_text(encoding="utf-8")
    groups = re.split(r"^## (.+)\n", text, flags=re.MULTILINE)[1:]
    found = {
        title: re.findall(r"^### (\w+)$", body, re.MULTILINE)
        for title, body in zip(groups[::2], groups[1::2], strict=True)
    }
    assert list(found) == ["At a glance", "Mixes", *reward_reference.GROUPS]
    assert all(names == sorted(names) for names in found.values())
    assert sorted(name for names in found.values() for name in names) == plugins.names("rewards")


def test_the_table_at_a_glance_has_a_row_for_every_reward_with_its_range_and_licence() -> None:
    glance, mixes = FILE.read_text(encoding="utf-8").partition("\n## Geometry and GUI\n")[0].split("\n## Mixes\n")
    found = re.findall(r"^\| \[`(\w+)`\]\(#\1\) \|(.*)\|$", glance, re.M)
    cells = {name: [cell.strip() for cell in rest.split("|")] for name, rest in found}
    assert sorted(cells) == plugins.names("rewards")
    assert cells["clip_score"][1:] == ["-1 to 1", "MIT"]
    assert cells["aesthetic"][1:] == ["any", "Apache-2.0"]
    assert cells["jpeg_size"][1:] == ["up to 0", ""]
    assert cells["cached"][1:] == ["the inner one's", ""]
    groups = re.findall(r"^\| \*\*(.+)\*\* \| \| \| \|$", glance, re.M)
    assert groups == list(reward_reference.GROUPS)
    assert re.findall(r"^\| \[`(\w+)`\]\(settings\.md#", mixes, re.M) == plugins.names("mixes")


def test_the_licence_of_weights_stands_with_the_reward_that_loads_them() -> None:
    found = sections()
    for row in listing.rows("rewards"):
        (facts,) = re.findall(r"^\*(.*; source: .*)\.\*$", found[row["name"]], re.M)
        assert ("; weights: " in facts) == (row["license"] is not None), row["name"]
    assert "; weights: CC-BY-NC-4.0, not for commercial use; source: Ghosh" in found["geneval"]


def test_a_reward_without_a_group_and_a_group_without_its_reward_are_errors(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reward_reference, "GROUPS", {**reward_reference.GROUPS, "Time": ("temporal_iou", "clock")})
    with pytest.raises(ValueError, match=r"\['clock', 'temporal_contrast', 'temporal_segments'\]"):
        reward_reference.reference()
