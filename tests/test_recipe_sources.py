"""docs/recipes_sources*.md say what the configs say, show all that changes an update, and claim no false sameness."""

import re
from collections.abc import Mapping
from dataclasses import asdict, is_dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from mmrl.core.config import RunConfig, load_config, read_yaml, shipped_names
from mmrl.core.plugins import build, find
from tests.parameters import in_one_test

PAGES = sorted((Path(__file__).parents[1] / "docs").glob("recipes_sources*.md"))
ROW = re.compile(r"^\| `([\w.]+)` \| (.+?) \| `(.+?)` \| (.+?) \|$", re.M)
KINDS = {"sampler": "samplers", "advantage": "advantages", "loss": "losses"}
SECTIONS = ("sampler", "rewards", "mix", "advantage", "loss", "updates", "optimizer", "averaging")  # change an update
ALWAYS = (
    *("group_size", "prompts_per_iteration", "modality.lora", "updates.minibatches"),
    *("optimizer.learning_rate", "optimizer.weight_decay", "optimizer.max_grad_norm"),
)
GENERATION = ("diffusers_pipeline", "sd3", "stable_diffusion", "stable_diffusion_xl")  # modalities of images and clips
MEMORY = ("updates.micro_batch",)  # changes no result
Rows = dict[str, tuple[str, str, str]]  # setting -> theirs, ours, why


@cache
def sections() -> dict[str, tuple[str, Rows]]:
    """The text of each section above its table, and its rows."""
    found: dict[str, tuple[str, Rows]] = {}
    parts = [part for page in PAGES for part in page.read_text(encoding="utf-8").split("\n## ")[1:]]
    for part in parts:
        name, _, text = part.partition("\n")
        assert name not in found, f"{name} has two sections"
        found[name] = text.partition("\n| setting")[0], {row[0]: row[1:] for row in ROW.findall(text)}
        assert len(found[name][1]) == text.count("\n|") - 2, f"{name}: a row that is not `setting`, theirs, `ours`, why"
    return found


def base_of(name: str) -> str | None:
    match = re.search(r"As `([\w/]+)`, but:", sections()[name][0])
    return match[1] if match else None


def rows_of(name: str) -> Rows:
    """The rows of a config, with those of the config that it is compared with."""
    base = base_of(name)
    return (rows_of(base) if base else {}) | sections()[name][1]


def value_of(config: RunConfig, path: str) -> Any:
    """The value of a setting: the config's, or the default of its plug-in; None where the config has no such part."""
    try:
        return stated_or_default(config, path)
    except (AttributeError, IndexError, KeyError):
        return None


def stated_or_default(config: RunConfig, path: str) -> Any:
    value: Any = config.model_dump(mode="json")
    keys = path.split(".")
    for depth, key in enumerate(keys):
        if isinstance(value, list):
            value = value[int(key)]
        elif isinstance(value, Mapping) and key in value:
            value = value[key]
        elif depth == 1 and keys[0] == "modality":
            value = getattr(find("modalities", value["name"]), key)
        elif depth == 1 and keys[0] in KINDS:
            value = getattr(build(KINDS[keys[0]], value), key)  # type: ignore[arg-type]  # of the table above
        else:
            raise KeyError(path)
    plain = asdict(value) if is_dataclass(value) and not isinstance(value, type) else value
    return yaml.safe_load(yaml.safe_dump(plain if not isinstance(plain, tuple) else list(plain)))


def written(name: str) -> set[str]:
    """The settings of a config that change its update, as its file has them."""
    tree, found = read_yaml(name), set()
    for section in SECTIONS:
        for number, part in enumerate(tree.get(section) or [] if section == "rewards" else [tree.get(section) or {}]):
            place = f"rewards.{number}" if section == "rewards" else section
            found |= {f"{place}.{key}" for key in part}
    return found - set(MEMORY)


@pytest.mark.slow
@in_one_test("name", sections())
def test_our_column_is_what_the_config_has(name: str) -> None:
    config = load_config(name)
    for setting, (_, ours, _) in sections()[name][1].items():
        assert yaml.safe_load(ours) == value_of(config, setting), setting


def is_number(text: str) -> bool:
    return re.fullmatch(r"-?[0-9.]+", text) is not None


@pytest.mark.slow
@in_one_test("name", [name for name in sections() if not name.startswith("lab/")])
def test_every_setting_that_changes_the_update_is_shown(name: str) -> None:
    assert (written(name) | set(ALWAYS)) - set(rows_of(name)) == set()


@pytest.mark.parametrize("name", [name for name in sections() if base_of(name)])
def test_what_a_variant_does_not_show_is_as_in_its_base(name: str) -> None:
    base = base_of(name)
    assert base is not None
    mine, its = load_config(name), load_config(base)
    shown = sections()[name][1]
    for setting in set(rows_of(base)) - set(shown):
        if not setting.startswith("rewards.") and not any(row.startswith(f"{setting}.") for row in shown):
            assert value_of(mine, setting) == value_of(its, setting), setting


def test_where_both_are_numbers_the_same_is_the_same() -> None:
    stated = re.compile(r"`(?:[\w.\-]+(?:=| = |: )|--[\w-]+ )(-?[0-9][0-9.e-]*)`")
    compared = 0
    for name, (_, rows) in sections().items():
        for setting, (theirs, ours, why) in rows.items():
            match = stated.fullmatch(theirs)
            if match is not None and is_number(ours) and why == "the same":
                assert float(match[1]) == pytest.approx(float(ours)), f"{name}: {setting}"
                compared += 1
    assert compared > 80


def test_each_config_says_where_theirs_was_read() -> None:
    for name, (text, _) in sections().items():
        is_cited = re.search(r"\(https://github\.com/[\w-]+/[\w.-]+\)", text) and re.search(r"\([0-9a-f]{7}", text)
        says_that_none_was_found = re.search(r"arXiv \d{4}\.\d{5}", text) and re.search(
            r"no code|not at hand|No (repository|script|paper's run)|not public|none of rewards|a README alone",
            text.replace("\n", " "),
        )
        is_of_this_commit = re.search(r"commit [0-9a-f]{7}", text)
        assert is_cited or base_of(name) or is_of_this_commit or says_that_none_was_found, name


@pytest.mark.slow
def test_each_shipped_config_of_images_and_clips_has_a_section() -> None:
    shipped = [name for name in shipped_names() if not name.startswith(("families/", "lab/", "quickstart"))]
    ours = {name for name in shipped if load_config(name).modality["name"] in GENERATION}
    assert len(ours) > 50
    assert ours - set(sections()) == set()


def test_the_dozen_of_the_papers_that_people_start_from_is_here() -> None:
    names = {
        "flow_grpo_sd35_geneval", "flow_grpo_sd35_ocr", "flow_grpo_sd35_pickscore", "flow_grpo_fast_sd35", "nft_sd35",
        "mix_grpo_flux", "dance_grpo_flux", "flow_dpo_sd35", "grpo_qwen25vl_3b_refcoco", "video_r1_qwen25vl_7b",
        "visual_rft_qwen2vl_2b_detection", "time_r1_qwen25vl_7b", "gui_g2_qwen25vl_7b", "gigpo_qwen25vl_3b_screens",
        "lab/tempflow", "dgpo_sd35", "alignprop_sd15",
    }  # fmt: skip
    assert names <= set(sections())


ANSWERS = ("vision_language", "video", "gui", "agent")


@pytest.mark.slow
def test_every_config_of_answers_is_compared() -> None:
    here = [name for name in shipped_names() if "/" not in name and not name.startswith("quickstart")]
    assert [name for name in here if read_yaml(name)["modality"]["name"] in ANSWERS and name not in sections()] == []
