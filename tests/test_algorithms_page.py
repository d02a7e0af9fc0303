"""docs/algorithms.md is what the recipes of the shipped configs say; it names every sampler, loss and advantage."""

import re
from typing import Any

import algorithms_page
import pytest
import yaml

from mmrl.commands import recipes
from mmrl.core import plugins
from mmrl.core.config import check_config, load_config, read_yaml, shipped_names
from tests.parameters import in_one_test

TEXT = algorithms_page.FILE.read_text(encoding="utf-8")


def sections() -> dict[str, str]:
    """The text of the page under each heading."""
    _, *parts = re.split(r"^## (.+)\n", TEXT, flags=re.MULTILINE)
    return dict(zip(parts[::2], parts[1::2], strict=True))


def rows(text: str) -> list[list[str]]:
    """The cells of the rows of a table, without its head."""
    lines = re.findall(r"^\| (.*) \|$", text, flags=re.MULTILINE)
    return [[cell.strip() for cell in line.split(" | ")] for line in lines[1:]]


@pytest.mark.slow
def test_the_page_is_what_the_script_writes() -> None:
    assert algorithms_page.page() == TEXT, "run: python scripts/algorithms_page.py"


@pytest.mark.slow
def test_every_config_stands_with_its_algorithm_paper_parts_and_level() -> None:
    tables = [sections()[group] for group in (algorithms_page.FIRST, *algorithms_page.GROUPS)]
    found: dict[str, list[str]] = {}
    for algorithm, *parts, configs in (row for text in tables for row in rows(text)):
        for level, names in re.findall(r"\*(\w+)\*: ([^;]+)", configs):
            for name in re.findall(r"`([\w/]+)`", names):
                assert name not in found, "a config stands once"
                found[name] = [algorithm, *parts, level]
    assert sorted(found) == [name for name in shipped_names() if not name.startswith("families/")]
    for config, (algorithm, sampler, loss, advantage, level) in found.items():
        tree = read_yaml(config)  # what the file says, by itself
        recipe = tree["recipe"]
        assert algorithm == (
            f"[{recipe['name']}](https://arxiv.org/abs/{recipe['arxiv']}), {recipe['paper'].partition(',')[0]}"
        )
        assert level == recipe["level"]
        assert f"`{tree['sampler']['name']}`" in sampler
        assert f"`{tree['loss']['name']}`" in loss and f"`{tree['advantage']['name']}`" in advantage


def test_what_people_come_for_stands_first() -> None:
    names = [re.findall(r"\[(.+?)\]", row[0])[0] for row in rows(sections()[algorithms_page.FIRST])]
    assert names == list(recipes.FIRST) and next(iter(sections())) == algorithms_page.FIRST


@pytest.mark.parametrize("kind", ["samplers", "losses", "advantages"])
def test_every_part_is_named_with_what_it_does(kind: plugins.Kind) -> None:
    section = rows(sections()[f"Every {plugins.singular(kind)}"])
    assert [re.findall(r"\[`(\w+)`\]", row[0]) for row in section] == [[name] for name in plugins.names(kind)]
    assert all(row[1].endswith(".") for row in section)


def test_losses_learn_from_what_their_kind_says() -> None:
    learns = {name: algorithms_page.learns_from(name) for name in plugins.names("losses")}
    kinds = {
        "grpo": "decisions",
        "d3po": "decisions",
        "nft": "denoising",
        "diffusion_dpo": "denoising",
        "draft": "outputs",
    }
    assert all(learns[name] == algorithms_page.LEARNS[kind] for name, kind in kinds.items())
    assert learns["sft"] == "final samples, of any sampler or from the data; or answers"


@pytest.mark.slow
def test_every_algorithm_has_its_paper_in_full() -> None:
    section = sections()["Every paper"]
    for row in recipes.rows():
        line = f"- **{row['name']}**: {row['paper']}, arXiv [{row['arxiv']}](https://arxiv.org/abs/{row['arxiv']}). "
        assert section.count(line) == 1, row["name"]


@in_one_test(
    ("config", "expected"),
    [
        ("lab/mix_grpo", {("sampler", "window `sliding`")}),
        ("lab/dapo", {("sampler", "groups `refill`"), ("loss", "`clip_high` above `clip_low`")}),
        ("lab/xrpo", {("sampler", "groups `more`")}),
        ("lab/ssr", {("sampler", "`replay`")}),
        ("lab/remax", {("sampler", "`greedy`")}),
        ("lab/dr_grpo", {("loss", "`normalise: constant`")}),
        ("lab/grpo", set()),
    ],
)
def test_the_settings_that_make_an_algorithm_are_marked(config: str, expected: set[tuple[str, str]]) -> None:
    assert set(algorithms_page.marked(load_config(config))) == expected


def test_a_mark_stands_only_where_all_configs_of_an_algorithm_have_it() -> None:
    found = {re.findall(r"\[(.+?)\]", row[0])[0]: row for row in rows(sections()[algorithms_page.FIRST])}
    assert "refill" in found["DAPO"][1]
    tree: dict[str, Any] = yaml.safe_load(yaml.safe_dump(read_yaml("grpo_qwen3vl_4b_screenspot")))
    assert check_config(tree).groups.degenerate == "refill" and "refill" not in found["GRPO"][1]


@pytest.mark.slow
def test_an_algorithm_without_a_group_and_a_group_without_its_algorithm_are_errors(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(algorithms_page, "GROUPS", {**algorithms_page.GROUPS, "Both": ("APA", "PPO")})
    with pytest.raises(ValueError, match=r"must hold each algorithm once; see \['AsymRE', .*'PPO'"):
        algorithms_page.page()
