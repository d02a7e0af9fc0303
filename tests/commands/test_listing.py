"""What `mmrl list` shows is what the folders hold."""

import importlib
import inspect
from pathlib import Path
from typing import Any

import pytest

from mmrl import labs
from mmrl.commands import listing
from mmrl.core import plugins
from mmrl.prompts.datasets import layout_names
from mmrl.system.errors import ConfigError
from tests.parameters import in_one_test

ROOT = Path(__file__).parents[2]
FOLDERS = {
    "modalities": "modalities",
    "samplers": "samplers",
    "rewards": "rewards",
    "losses": "mmrl/losses",
    "advantages": "mmrl/advantages",
}


@in_one_test(("kind", "folder"), FOLDERS.items())
def test_every_file_of_a_folder_is_listed_with_its_first_line(kind: str, folder: str) -> None:
    found = (ROOT / folder).rglob("*.py") if kind == "rewards" else (ROOT / folder).glob("*.py")
    files = sorted(
        (path for path in found if path.name[0] != "_" and "base" not in path.parts), key=lambda path: path.stem
    )
    first_lines = [path.read_text(encoding="utf-8").splitlines()[0].strip('"') for path in files]
    rows = listing.rows(kind)
    assert [(row["name"], row["summary"]) for row in rows] == list(
        zip([path.stem for path in files], first_lines, strict=True)
    )


def test_every_shipped_config_is_listed_with_the_first_sentence_of_its_comment() -> None:
    rows = {row["name"]: row["summary"] for row in listing.rows("configs")}
    files = [path.relative_to(ROOT / "configs").with_suffix("") for path in (ROOT / "configs").glob("**/*.yaml")]
    assert sorted(rows) == sorted(file.as_posix() for file in files)
    assert rows["flow_grpo_sd35"] == (
        "Flow-GRPO on Stable Diffusion 3.5 Medium: CLIP reward, Flow-SDE sampling, LoRA."  # the dot of 3.5 ends nothing
    )
    assert rows["quickstart_policy_gradient"].endswith("averaged weights.")  # the end of the line ends it too
    assert not any(summary.endswith(("et al.", "Dr.")) for summary in rows.values())


@pytest.mark.slow
def test_layouts_and_labs_with_their_splits_are_listed() -> None:
    layouts = {row["name"]: row["summary"] for row in listing.rows("layouts")}
    assert sorted(layouts) == layout_names()
    assert layouts["ui_r1"].startswith("UI-R1's json: `img_filename`, `instruction`")
    rows = {row["name"]: row for row in listing.rows("labs")}
    assert sorted(rows) == labs.names()
    for name, row in rows.items():
        assert row["splits"] and all(split in row["summary"] for split in row["splits"])
        prompts = importlib.import_module(f"mmrl.labs.{name}.world").prompts
        assert all(prompts(split) for split in row["splits"][-1:])


def test_a_reward_without_ends_has_none_in_its_range() -> None:
    rows = {row["name"]: row for row in listing.rows("rewards")}
    assert rows["aesthetic"]["range"] == [None, None]  # JSON has no infinity
    assert rows["shapes"]["range"] == [0.0, 1.0]
    assert rows["clip_score"]["differentiable"] and not rows["shapes"]["differentiable"]


def test_a_reward_that_loads_weights_names_their_licence_and_no_other_does() -> None:
    rows = listing.rows("rewards")
    licensed = {row["name"]: (row["license"], row["commercial"]) for row in rows if row["license"] is not None}
    loading = {row["name"] for row in rows if "model" in row["needs"]}
    assert loading <= {*licensed, "human"}, "whose votes are no weights"
    for name in licensed:  # weights have a name on the hub, or come with a package
        text = (ROOT / inspect.getfile(plugins.find("rewards", name))).read_text(encoding="utf-8")
        assert '"model"' in text, name
    assert all(name and commercial in (True, False) for name, commercial in licensed.values()), "never null"
    assert licensed["clip_score"] == ("MIT", True)
    assert licensed["geneval"] == ("CC-BY-NC-4.0", False), "the model zoo of Mask2Former"
    assert licensed["pick_score"] == ("unknown", False), "a card without a licence is not known to allow anything"
    assert not any(commercial for name, commercial in licensed.values() if name in ("unknown", "other"))
    assert all(row["commercial"] is None for row in rows if row["license"] is None)


@in_one_test(
    ("row", "words"),
    [
        ({"license": None, "commercial": None}, ""),
        ({"license": "MIT", "commercial": True}, "MIT"),
        ({"license": "CC-BY-NC-4.0", "commercial": False}, "CC-BY-NC-4.0, not for commercial use"),
        ({"license": "unknown", "commercial": False}, "unknown licence, not known to allow commercial use"),
        ({"license": "other", "commercial": False}, "terms of their own, not known to allow commercial use"),
        ({"license": "other", "commercial": True}, "terms of their own"),
    ],
)
def test_a_licence_in_words(row: dict[str, Any], words: str) -> None:
    assert listing.weights(row) == words


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("reward", r"nothing called 'reward' to list \(did you mean 'rewards'\?\)"),
        ("x", "known are configs, recipes, families, systems, suites, modalities, samplers, rewards, mixes, losses"),
    ],
)
def test_another_kind_is_the_users_error(kind: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        listing.rows(kind)


def test_a_list_without_a_kind_says_which_there_are() -> None:
    with pytest.raises(
        ConfigError,
        match=r"list needs a kind: configs, recipes, families, systems, suites, modalities, .*, layouts, labs",
    ):
        listing.rows("")
