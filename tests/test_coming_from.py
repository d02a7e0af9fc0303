"""The pages for users of other trainers are true: their files build and run small, and the settings they name exist."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from check_coming_from import FOLDER, Example, examples, examples_of
from pydantic import BaseModel

from mmrl.commands.check import check_tiny, plan_summary
from mmrl.core import plugins
from mmrl.core.config import DatasetSettings, PromptSettings, RunConfig, load_config
from mmrl.prompts.row_files import FILES
from mmrl.reporting import trackers

PAGES = sorted(page for page in FOLDER.glob("*.md") if page.name != "README.md")
EXAMPLES = examples()
PLACES: dict[str, plugins.Kind] = {  # sections whose plug-in is chosen by its name
    "modality": "modalities",
    "sampler": "samplers",
    "rewards": "rewards",
    "mix": "mixes",
    "advantage": "advantages",
    "loss": "losses",
}


def classes_in(hint: Any) -> list[type]:
    """The classes with settings that a value of this type may be of, those of inner plug-ins included."""
    if (inner := plugins.INNER.get(getattr(hint, "__name__", ""))) is not None:
        return [plugins.find(inner, name) for name in plugins.names(inner)]
    if isinstance(hint, type) and (hasattr(hint, "__dataclass_fields__") or issubclass(hint, BaseModel)):
        return [hint]
    return [cls for part in getattr(hint, "__args__", ()) for cls in classes_in(part)]


def behind(cls: type, part: str) -> list[type] | None:
    """The classes that the setting `part` of a class may hold; None where it has no such setting."""
    if part == "name" and not issubclass(cls, BaseModel):
        return []
    settings = plugins._settings(cls)
    if part not in settings:
        return None
    if part == "trackers" and cls is RunConfig:
        return list(trackers.TRACKERS.values())
    if part in PLACES and issubclass(cls, BaseModel):
        return [plugins.find(PLACES[part], name) for name in plugins.names(PLACES[part])]
    return classes_in(settings[part])


def exists(path: str) -> bool:
    """Whether some config may have this setting: `sampler.num_steps` where some sampler has it."""
    classes: list[type] = [RunConfig]
    for number, part in enumerate(path.split(".")):
        if number and path.split(".")[number - 1] == "rewards" and part in {"weight", "label", "device"}:
            return True  # every reward's section has these two beside its own settings
        found = [inner for cls in classes if (inner := behind(cls, part)) is not None]
        if not found:
            return False
        classes = [cls for inner in found for cls in inner]
    return True


def without_the_hub(prompts: PromptSettings) -> PromptSettings:
    """The same prompts with files that are not here, for which rows are made up, in place of data sets of the hub."""

    def local(source: Any) -> Any:
        if isinstance(source, DatasetSettings) and isinstance(source.path, str) and not source.path.endswith(FILES):
            return source.model_copy(update={"path": f"{source.path}.parquet", "split": None, "subset": None})
        return source

    assert not isinstance(prompts.train, tuple)
    return prompts.model_copy(update={"train": local(prompts.train), "held_out": local(prompts.held_out)})


def ours(page: Path) -> list[str]:
    """The code in the column "ours" of a page's tables."""
    found, column = [], None
    for line in page.read_text(encoding="utf-8").splitlines():
        if not line.startswith("|"):
            column = None
            continue
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        if column is None:
            column = cells.index("ours") if "ours" in cells else -1
        elif column >= 0:
            found += re.findall(r"`([^`]+)`", cells[column])
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_setting_of_ours_that_a_page_names_exists(page: Path) -> None:
    named = [code for code in ours(page) if not code.startswith(("--", "mmrl ", "torchrun"))]
    assert len(named) > 20, "a page says of each of their settings what it is called here"
    assert [code for code in named if not exists(re.split(r"[=:]", code)[0].strip())] == []


def test_a_setting_that_is_nowhere_is_found_out() -> None:
    assert exists("loss.clip_low") and exists("modality.lora.rank") and exists("prompts.train.path")
    assert exists("evaluation.sampler.num_steps") and exists("sampler.window.mode") and exists("rewards.weight")
    assert exists("trackers") and exists("loss.decay.slope") and exists("modality.engine.url")
    assert not exists("loss.clip_range") and not exists("num_generations") and not exists("modality.lora.r")
    assert not exists("optimizer.lr") and not exists("sampler.window.size.first")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_has_an_example_and_says_what_has_no_counterpart(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert examples_of(page), "a YAML block that begins with `# NAME.yaml`"
    assert re.search(r"^#+ Without a counterpart", text, re.MULTILINE)
    assert re.search(r"\b[0-9a-f]{40}\b", text), "the commit of their file"


@pytest.mark.slow
@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.name)
def test_an_example_loads_and_builds(example: Example, tmp_path: Path) -> None:
    config = load_config(example.write(tmp_path))
    summary = plan_summary(config.model_copy(update={"prompts": without_the_hub(config.prompts)}))
    assert summary["samples per iteration"] >= config.group_size * config.prompts_per_iteration
    assert summary["optimizer steps per iteration"] == config.updates.epochs * config.updates.minibatches


@pytest.mark.slow  # trains twice and evaluates; all of them: python scripts/check_coming_from.py
def test_an_example_runs_small(tmp_path: Path) -> None:
    (example,) = [example for example in EXAMPLES if example.name.startswith("grpo_vlm")]
    assert check_tiny(load_config(example.write(tmp_path)))["is_good"]


def test_an_example_is_one_whole_file() -> None:
    names = [example.name for example in EXAMPLES]
    assert len(set(names)) == len(names)
    for example in EXAMPLES:
        assert {"iterations", "modality", "loss", "rewards"} <= set(yaml.safe_load(example.text)), example.name
