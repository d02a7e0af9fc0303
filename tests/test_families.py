"""Each listed family of diffusers pipelines has a twin, a config and a row of the page, and differs by little."""

import json
import re
from typing import Any

import families_page
import family_configs
import pytest
import yaml

from mmrl.commands import families
from mmrl.commands.check import check_tiny, plan_summary
from mmrl.core.config import SHIPPED, load_config, shipped_names, to_yaml
from mmrl.core.contracts import ConfigError
from mmrl.modalities.tiny.pipelines.families import FAMILIES

ROWS = {row["name"]: row for row in families.rows()}
REFUSED: dict[str, str] = json.loads(families_page.REFUSED.read_text(encoding="utf-8"))
TEXT = families_page.FILE.read_text(encoding="utf-8")
NAMES = [name for name in shipped_names() if name.startswith("families/")]


def test_a_twin_is_listed_or_refused() -> None:
    assert set(ROWS) | set(REFUSED) == set(FAMILIES) and not set(ROWS) & set(REFUSED)
    assert all(len(reason) > 20 for reason in REFUSED.values())


def test_the_listed_families_are_those_with_a_config() -> None:
    assert sorted(row["config"] for row in ROWS.values()) == NAMES
    assert all(row["config"] == f"families/{name}" for name, row in ROWS.items())


def test_the_page_is_what_the_script_writes() -> None:
    assert families_page.page(list(ROWS.values()), REFUSED) == TEXT, "run: python scripts/families_page.py"
    for name in ROWS:
        assert TEXT.count(f"| `families/{name}`") == 1
    for name, reason in REFUSED.items():
        assert f"| {name} | {reason} |" in TEXT


def test_differences_are_within_the_bars() -> None:
    for name, row in ROWS.items():
        assert 0 <= row["stock_difference"] <= 1e-5, name
        assert 0 <= row["batch_difference"] <= 1e-4 and row["gradient_difference"] <= 1e-4, name
        assert row["log_prob_difference"] == 0 and row["calls"] >= 1, name


def test_the_list_has_images_videos_conditions_and_modular_pipelines() -> None:
    rows = list(ROWS.values())
    assert len(rows) >= 24
    assert len([row for row in rows if row["makes"] == "video"]) >= 5
    assert len([row for row in rows if row["condition"]]) >= 4
    modular = {row["name"] for row in rows if row["modular"]}
    assert len(modular) >= 4 and "flux3" in modular and modular & {"ltx25", "minimax_h3"}


@pytest.mark.slow
def test_a_row_says_what_its_twin_and_its_config_say() -> None:
    for name, row in ROWS.items():
        family, modality = FAMILIES[name], load_config(row["config"]).modality
        assert row["makes"] == family.makes == modality.get("output", "image"), name
        assert row["condition"] == (family.conditions > 0), name
        names = modality.get("conditions") or ["image"] * modality.get("condition_images", 0)
        assert tuple(names) == family.condition_arguments and modality["family"] == name
        assert row["modular"] == family.modular == modality.get("modular", False), name
        assert tuple(modality.get("removed_blocks", ())) == family.removed_blocks, name


def test_the_configs_are_what_the_script_writes() -> None:
    assert sorted(f"families/{name}" for name in family_configs.MODELS) == NAMES
    for name, model in family_configs.MODELS.items():
        written = (SHIPPED / "families" / f"{name}.yaml").read_text(encoding="utf-8")
        assert written == family_configs.text_of(name, model), "run: python scripts/family_configs.py"


def test_a_config_begins_with_what_it_is() -> None:
    for name in NAMES:
        comment, section, *_ = (SHIPPED / f"{name}.yaml").read_text(encoding="utf-8").splitlines()
        assert re.fullmatch(r"# Flow-GRPO on .+\.", comment) and section == "recipe:", name


@pytest.mark.slow
def test_a_config_builds_and_reads_back_equal() -> None:
    """One of each kind; all others are written by the same script, and the exhaustive test builds them."""
    for name in ("flux", "qwen_image_edit_plus", "ltx25", "wan22_5b_i2v"):
        builds(f"families/{name}")


@pytest.mark.slow
@pytest.mark.exhaustive
def test_every_config_builds_and_reads_back_equal() -> None:
    for name in NAMES:
        builds(name)


def builds(name: str) -> None:
    """A config has a plan of as many samples as it says, and is the same after it was written out."""
    config = load_config(name)
    found = plan_summary(config)
    assert found["samples per iteration"] == config.group_size * config.prompts_per_iteration, name
    assert found["network calls of a rollout"] > 0 and found["network calls of the updates"] > 0, name
    assert yaml.safe_load(to_yaml(config)) == yaml.safe_load(to_yaml(load_config(name))), name


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.parametrize("name", ROWS)
def test_a_family_is_proven_again(name: str) -> None:
    assert_same(families_page.prove(name), ROWS[name])


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.parametrize("name", REFUSED)
def test_a_refused_family_is_refused_for_its_reason(name: str) -> None:
    with pytest.raises(ConfigError) as caught:
        families_page.prove(name)
    # numbers differ between machines
    assert re.sub(r"\d", "0", families_page.reason_of(caught.value)) == re.sub(r"\d", "0", REFUSED[name])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["flux_kontext", "modular_z_image"])
def test_the_check_of_a_family_finds_what_the_list_says(name: str) -> None:
    found = check_tiny(load_config(f"families/{name}", ["threads=1"]))
    assert found["is_good"], found
    assert_same(found, ROWS[name])


@pytest.mark.parametrize(
    ("worse", "reason"),
    [({"stock_difference": 2e-5}, "by 2e-05"), ({"batch_difference": 2e-4}, "by 2e-04")],
)
def test_a_family_beyond_the_bars_is_refused(
    monkeypatch: pytest.MonkeyPatch, worse: dict[str, float], reason: str
) -> None:
    proof = {"stock_difference": 0.0, "batch_difference": 0.0} | worse
    monkeypatch.setattr(families_page, "proof_of", lambda name: proof)
    with pytest.raises(ConfigError, match=reason):
        families_page.prove("flux")


def assert_same(found: dict[str, Any], row: dict[str, Any]) -> None:
    """Differences of float32 are those of another machine up to their order; replayed branches share a call."""
    for name in ("stock_difference", "batch_difference"):
        assert found[name] == pytest.approx(row[name], rel=20, abs=2e-6), name
    assert found["log_prob_difference"] == 0 and found["calls"] <= row["calls"]
