"""`mmrl list systems`: the status of a system follows from configs, dry runs and tests, and is never written down."""

import json
from collections.abc import Callable
from pathlib import Path

import check_systems
import pytest
import systems_page
import yaml

from mmrl.commands import listing, systems
from mmrl.commands.systems import Proof, digest, row_of
from mmrl.core.config import check_config, load_config, read_yaml
from mmrl.core.systems import System
from mmrl.core.systems import systems as all_systems
from mmrl.system.errors import ConfigError
from tests.parameters import in_one_test

TEST = "tests/losses/test_nft.py"
NFT = System("NFT", "Losses", 1, "loss nft", "", (TEST,))


def proof(*configs: str, tests: tuple[str, ...] = (TEST,)) -> Proof:
    """A proof of configs as they are now."""
    return Proof({config: digest(config) for config in configs}, frozenset(tests))


@pytest.fixture
def made_up(tmp_path: Path) -> str:
    """A config of one's own, a copy of lab/nft."""
    path = tmp_path / "mine.yaml"
    path.write_text(yaml.safe_dump(read_yaml("lab/nft")), encoding="utf-8")
    return str(path)


def test_the_page_is_what_the_script_writes() -> None:
    assert systems_page.page() == systems_page.FILE.read_text(encoding="utf-8"), "run: python scripts/systems_page.py"


def test_every_system_has_one_row() -> None:
    rows = listing.rows("systems")
    assert len(rows) == len({row["name"] for row in rows}) == 285
    assert [sum(row["priority"] == one for row in rows) for one in (1, 2, 3)] == [57, 144, 84]
    wanted = {"name", "section", "priority", "status", "configs", "missing", "level", "works"}
    assert all(row.keys() == wanted for row in rows)
    assert all((row["status"] == "whole") == (not row["missing"]) for row in rows)
    assert "".join(listing.lines("systems", rows, 80)).count("  whole  ") == sum(r["status"] == "whole" for r in rows)


def test_the_configs_of_a_row_are_those_that_name_it() -> None:
    named = {
        config: set(load_config(config).systems) for config in ("lab/dpo", "lab/mix_grpo", "lab/sft", "quickstart_gui")
    }
    for row in systems.rows():
        assert [one for one in row["configs"] if one in named] == [one for one in named if row["name"] in named[one]]


def test_what_is_proven_whole_has_a_level_and_no_gap() -> None:
    row = row_of(NFT, ("lab/nft", "nft_sd35"), proof("lab/nft", "nft_sd35"))
    assert (row["status"], row["missing"], row["level"]) == ("whole", "", "twin")


def test_an_edited_config_is_proven_no_more(made_up: str) -> None:
    before = proof(made_up)
    assert row_of(NFT, (made_up,), before)["status"] == "whole"
    tree = read_yaml(made_up)
    tree["optimizer"]["learning_rate"] = 0.5
    Path(made_up).write_text(yaml.safe_dump(tree), encoding="utf-8")
    row = row_of(NFT, (made_up,), before)
    assert row["status"] == "part" and row["missing"] == f"a dry run of {made_up}, which was edited since"


def test_comments_and_names_of_systems_do_not_count_as_edits(made_up: str) -> None:
    before = digest(made_up)
    tree = read_yaml(made_up) | {"systems": ["DPO"]}
    tree["recipe"]["level"] = "gpu"
    Path(made_up).write_text("# a comment\n" + yaml.safe_dump(tree), encoding="utf-8")
    assert digest(made_up) == before


@in_one_test(
    ("row", "status", "missing"),
    [
        (lambda: row_of(NFT, ("lab/nft",), proof()), "part", "a dry run of lab/nft that passed"),
        (lambda: row_of(NFT, (), proof()), "part", "a config that names it"),
        (lambda: row_of(NFT, (), proof(tests=())), "no", f"a config that names it; the test {TEST}"),
        (lambda: row_of(NFT, ("lab/nft",), proof("lab/nft", tests=())), "part", f"the test {TEST}"),
        (lambda: row_of(System("X", "s", 1, "", "soap", (TEST,)), ("lab/nft",), proof("lab/nft")), "part", "soap"),
        (lambda: row_of(System("X", "s", 1, "", "", ()), ("lab/nft",), proof("lab/nft")), "part", "a test"),
    ],
)
def test_each_gap_is_named(row: Callable[[], dict[str, str]], status: str, missing: str) -> None:
    assert (row()["status"], row()["missing"]) == (status, missing)


def test_a_dry_run_that_failed_proves_nothing(tmp_path: Path) -> None:
    rows = [{"config": "lab/nft", "digest": digest("lab/nft"), "passed": False}]
    (tmp_path / "checked.json").write_text(json.dumps({"configs": rows, "tests": [TEST]}), encoding="utf-8")
    assert row_of(NFT, ("lab/nft",), Proof.load(tmp_path / "checked.json"))["status"] == "part"


@pytest.mark.slow
def test_the_tests_that_count_are_in_their_files() -> None:
    wanted = {name for one in all_systems() for name in one.tests}
    missing = {name for name in wanted if not check_systems.is_there(name)}
    assert not missing and wanted == Proof.load().tests, "run: python scripts/check_systems.py"
    assert not check_systems.is_there("tests/losses/test_nft.py::test_soap") and not check_systems.is_there(
        "tests/x.py"
    )


def test_an_unknown_system_is_refused_with_the_nearest_name() -> None:
    tree = read_yaml("lab/nft")
    with pytest.raises(
        ConfigError, match=r"config\.systems: there is no system 'Dance GRPO' \(did you mean 'DanceGRPO'"
    ):
        check_config(tree | {"systems": ["Dance GRPO"]})
    with pytest.raises(ConfigError, match="`mmrl list systems` names those"):
        check_config(tree | {"systems": ["!"]})
    with pytest.raises(ConfigError, match="must name each system once"):
        check_config(tree | {"systems": ["DPO", "DPO"]})
