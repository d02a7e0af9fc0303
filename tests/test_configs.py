"""Every shipped config says what it is, builds, survives being written out, and runs small."""

import re
from functools import cache
from itertools import takewhile
from pathlib import Path
from typing import Any

import pytest

from mmrl.assembly.build import build
from mmrl.commands.check import check_tiny, plan_summary
from mmrl.core.config import DatasetSettings, RunConfig, load_config, shipped_names, to_yaml
from mmrl.core.data import Prompt
from tests.parameters import in_one_test, slow_but
from tests.web_pages import needs_browser

ROOT = Path(__file__).parents[1]
FILES = sorted((ROOT / "configs").glob("**/*.yaml"))
ALL = sorted(path.relative_to(ROOT / "configs").with_suffix("").as_posix() for path in FILES)
NAMES = [name for name in ALL if not name.startswith("families/")]  # those: tests/test_families.py
LAB = [name for name in NAMES if name.startswith("lab/")]  # one for each algorithm, on a lab
FAST = ("quickstart",)  # runs small every time
# One of each modality, environment and sampler, which the slow tests run; all others: `make exhaustive`.
SMALL = (
    *FAST,
    "grpo_qwen3vl_4b_screenspot",
    *("agent_qwen3vl_4b_browser", "alignprop_sd15", "dance_grpo_sd14", "diffusion_dpo_sd15", "flow_grpo_fast_sd35"),
    *("flow_grpo_sd35", "geometry3k_qwen25vl_7b", "gigpo_qwen25vl_3b_screens", "nft_sdxl", "quickstart_video"),
    *("lab/adjoint_matching", "lab/best_of_n", "lab/branch_grpo", "lab/consistency", "lab/dance_grpo", "lab/e_grpo"),
    *("lab/fk_steering", "lab/g2rpo", "lab/neighbor", "lab/precise", "lab/spin", "lab/spo", "lab/svdd"),
    *(
        "lab/motion_partial_chain",
        "lab/tempflow",
        "lab/tree_rl",
        "flow_nrg_wan",
        "vl_rethinker_qwen25vl_7b",
        "webgen_agent_qwen25vl_3b",
    ),
)


@cache
def shipped(name: str) -> RunConfig:
    return load_config(name)


def test_the_shipped_names_are_the_files() -> None:
    assert shipped_names() == ALL and "quickstart" in NAMES


@pytest.mark.slow
@in_one_test("name", NAMES)
def test_a_config_begins_with_what_it_is_and_then_names_its_paper(name: str) -> None:
    text = (ROOT / "configs" / f"{name}.yaml").read_text(encoding="utf-8")
    comment = list(takewhile(lambda line: line.startswith("# "), text.splitlines()))
    assert comment and comment[-1].endswith("."), "sentences, the first of which `mmrl list configs` shows"
    section = text.splitlines()[len(comment) :]
    assert section[0] == "recipe:" and not section[-1].startswith("#")
    recipe = shipped(name).recipe
    assert recipe is not None and recipe.level == ("lab" if name in LAB or name.startswith("quickstart") else "twin")
    assert re.fullmatch(r'[A-Z][\w. -]+ \d{4}, "[^"]+"', recipe.paper), "authors, year, and the title in quotes"
    if name in LAB:  # says all there is to say in its own comment
        return
    recipes = (ROOT / "docs" / "recipes.md").read_text(encoding="utf-8")
    assert f"\n## {name}\n" in recipes
    assert "arXiv" in recipes.partition(f"\n## {name}\n")[2].partition("\n## ")[0]


def test_an_algorithm_has_one_paper_and_a_paper_one_title() -> None:
    recipes = [recipe for name in NAMES if (recipe := shipped(name).recipe) is not None]
    assert len(recipes) == len(NAMES)
    assert len({recipe.name for recipe in recipes}) == len({(recipe.name, recipe.arxiv) for recipe in recipes})
    assert len({recipe.arxiv for recipe in recipes}) == len({(recipe.arxiv, recipe.paper) for recipe in recipes})


def test_a_config_and_the_guide_name_the_same_paper() -> None:
    text = (ROOT / "docs" / "recipes.md").read_text(encoding="utf-8")
    for name in NAMES:
        section = text.partition(f"\n## {name}\n")[2].partition("\n## ")[0]
        recipe = shipped(name).recipe
        assert recipe is not None
        assert not section or recipe.arxiv in section, name


@pytest.mark.parametrize("name", slow_but(NAMES, *SMALL))
def test_a_config_builds_and_its_plan_is_known(name: str) -> None:
    config = shipped(name)
    found = plan_summary(config)  # builds it, with synthetic rows for data that is not on this machine
    further = 0 if config.groups.more is None else config.groups.more.budget
    # with fans, a prompt has several groups
    assert (found["samples per iteration"] - further) % (config.group_size * config.prompts_per_iteration) == 0
    if config.sampler["name"] == "given":  # the data brings all, nothing is drawn
        assert found["network calls of a rollout"] == 0
    elif "calls of a rollout without sharing" in found:
        assert found["network calls of a rollout"] > 0
        assert found["network calls of a rollout"] <= found["calls of a rollout without sharing"]
    elif "prompt_reads" in found:
        assert found["prompt_reads"] < found["prompt_reads without sharing"]
    else:
        assert "reward" in config.sampler, "samples that a reward chooses from others cannot be drawn alone"
    assert found["network calls of the updates"] > 0 and found["held-out samples"] > 0


@pytest.mark.parametrize("name", slow_but(NAMES, *SMALL))
def test_a_config_written_out_reads_back_equal(name: str, tmp_path: Path) -> None:
    config = shipped(name)
    (tmp_path / "config.yaml").write_text(to_yaml(config), encoding="utf-8")
    assert load_config(tmp_path / "config.yaml") == config


def files_of(source: Any) -> set[tuple[str, str | None]]:
    """Returns the files of a source of prompts, each with its split; those of a list of sources together."""
    if isinstance(source, tuple):
        return {file for one in source for file in files_of(one.source)}
    if not isinstance(source, DatasetSettings):
        return set()
    paths = (source.path,) if isinstance(source.path, str) else source.path
    return {(path, source.split) for path in paths}


@pytest.mark.slow
def test_a_config_evaluates_on_prompts_that_it_does_not_train_on() -> None:
    seen = set()
    for name in NAMES:
        config = shipped(name)
        if (same := repr(config.prompts)) in seen:  # many share theirs
            continue
        seen.add(same)
        train, held_out = config.prompts.train, config.prompts.held_out
        if files_of(train) or (held_out is not None and files_of(held_out)):  # which are not here
            assert held_out is not None, name  # prompts that ship are in no such file
            assert files_of(train).isdisjoint(files_of(held_out)), name
            continue
        parts = build(config)
        assert parts.evaluation is not None, name
        trained_on = {question_of(prompt) for prompts in parts.prompts.sets for prompt in prompts}
        assert trained_on.isdisjoint(map(question_of, parts.evaluation.prompts)), name


def question_of(prompt: Prompt) -> tuple[Any, ...]:
    """What a prompt is about; a task of an environment says it in its target."""
    about = prompt.media or prompt.clips
    return (prompt.text, about) if about else (prompt.text, repr(sorted(prompt.target.items())))


def kinds_of(name: str) -> set[str]:
    """What a config's dry run takes its way by."""
    config = shipped(name)
    modality, environment = config.modality, config.modality.get("environment") or {}
    return {
        f"modality {modality['name']}",
        f"environment {environment.get('name')}",
        f"sampler {config.sampler['name']}",
    }


def test_each_modality_environment_and_sampler_runs_small() -> None:
    missing = set[str]().union(*map(kinds_of, NAMES)) - set[str]().union(*map(kinds_of, SMALL))
    assert not missing, f"SMALL holds no config with {missing}"


def marks_of(name: str) -> list[pytest.MarkDecorator]:
    """A twin is written, loaded and evaluated with all 40 steps, which is slow; the labs' twins are many."""
    text = (ROOT / "configs" / f"{name}.yaml").read_text(encoding="utf-8")
    is_in_browser = "name: browser" in text or "name: written_page" in text
    slow = [] if name in FAST else [pytest.mark.slow]
    return slow + [pytest.mark.exhaustive] * (name not in SMALL) + [needs_browser] * is_in_browser


@pytest.mark.filterwarnings("ignore:Mismatch dtype:UserWarning")  # rms_norm of bfloat16 under float32 weights
@pytest.mark.parametrize("name", [pytest.param(name, marks=marks_of(name)) for name in NAMES])
def test_a_config_runs_small(name: str) -> None:
    found = check_tiny(load_config(name, ["threads=1"]))
    assert found.pop("is_good"), found
    assert found["plug-ins that did not run"] == found["trained tensors that did not move"] == "none"
    if "network calls planned at most" in found:
        assert 0 < found["network calls made"] <= found["network calls planned at most"]
    else:
        assert found["network calls made"] == found["network calls planned"] > 0
