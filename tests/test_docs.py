"""The user's guide says what is true: every setting with its default, every link with a target."""

import ast
import importlib
import inspect
import re
import shlex
from collections.abc import Iterator
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import Any, get_args, get_type_hints

import floor_plan
import pytest
import torch
import yaml
from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from mmrl.advantages.base.wrapper import Wrapper
from mmrl.assembly import build as parts
from mmrl.core import config, plugins
from mmrl.core import config as group_settings
from mmrl.core.contracts import Reward, RewardBatch
from mmrl.core.data import Outputs, Prompt, Scores
from mmrl.core.schedules import Schedule
from mmrl.losses.base.decisions import DecisionLoss
from mmrl.losses.base.denoising import DenoisingLoss
from mmrl.losses.base.log_ratios import AnchoredLoss
from mmrl.losses.base.old_decay import OldDecay
from mmrl.losses.base.paths import PairLoss, PathLoss
from mmrl.modalities.flow.diffusers_policy import PipelinePolicy
from mmrl.modalities.flow.policy import FlowPolicy
from mmrl.modalities.language.rollout import TokenGenerator
from mmrl.modalities.loading.lora import Lora
from mmrl.modalities.tokens.vllm.engine import Vllm
from mmrl.parsing.actions.action import Action
from mmrl.reporting import trackers
from mmrl.samplers.base.fans import FanSampler, WindowedFans
from mmrl.samplers.base.flow import FlowSampler, StochasticSampler, WindowedSampler
from mmrl.samplers.base.steering import SteeredSampler
from mmrl.samplers.base.tail import ShortTail
from mmrl.samplers.base.tokens import TokenSampler
from mmrl.samplers.base.window import Window

ROOT = Path(__file__).parents[1]
NEEDED = "needed"
SHARED: dict[str, type] = {  # headings of docs/configs.md that are no plug-in's name
    "The run": config.RunConfig,
    "prompts": config.PromptSettings,
    "prompts / a data set": config.DatasetSettings,
    "prompts / a source in a mixture": config.MixedPrompts,
    "prompts / a curriculum": config.CurriculumSettings,
    "groups": config.GroupSettings,
    "groups / further members": group_settings.MoreSettings,
    "replay": group_settings.ReplaySettings,
    "updates": config.UpdateSettings,
    "optimizer": config.OptimizerSettings,
    "correction": config.CorrectionSettings,
    "averaging": config.AveragingSettings,
    "scoring": config.ScoringSettings,
    "evaluation": config.EvaluationSettings,
    "checkpoint": config.CheckpointSettings,
    "modality / every flow modality": FlowPolicy,
    "modality / every pipeline modality": PipelinePolicy,
    "modality / every token modality": TokenGenerator,
    "modality / vllm": Vllm,
    "modality / lora": Lora,
    "sampler / every flow sampler": FlowSampler,
    "sampler / every flow sampler with a window": WindowedSampler,
    "sampler / every random flow sampler": StochasticSampler,
    "sampler / tail": ShortTail,
    "sampler / every sampler that steers another": SteeredSampler,
    "sampler / every sampler with fans": FanSampler,
    "sampler / every sampler with fans in a window": WindowedFans,
    "sampler / window": Window,
    "sampler / every sampler of tokens": TokenSampler,
    "advantage / every advantage made of another": Wrapper,
    "loss / every loss on decisions": DecisionLoss,
    "loss / every loss on the forward process": DenoisingLoss,
    "loss / every loss with an anchor": AnchoredLoss,
    "loss / every loss on whole samples": PathLoss,
    "loss / every loss on pairs": PairLoss,
    "loss / decay": OldDecay,
    "rewards / a weight that changes": Schedule,
}
SECTIONS: dict[plugins.Kind, str] = {  # rewards are in tests/test_reward_reference.py
    "modalities": "modality",
    "samplers": "sampler",
    "mixes": "mix",
    "advantages": "advantage",
    "losses": "loss",
}
ENVIRONMENTS = {  # by their headings in docs/environments.md
    "screens": "screens",
    "Web pages": "browser",
    "gymnasium": "gymnasium",
    "BrowserGym": "browsergym",
}


def owners() -> dict[str, type]:
    """Every class that holds settings, by its heading."""
    found = SHARED | {f"trackers / {name}": cls for name, cls in trackers.TRACKERS.items()}
    for kind, section in SECTIONS.items():
        found |= {f"{section} / {name}": plugins.find(kind, name) for name in plugins.names(kind)}
    return found


@cache
def tables(page: str = "configs.md") -> dict[str, dict[str, str]]:
    """The settings under each heading of a page and the text of their defaults."""
    found: dict[str, dict[str, str]] = {}
    section = heading = ""
    for line in (ROOT / "docs" / page).read_text(encoding="utf-8").splitlines():
        if line.startswith("## "):
            section = heading = line[3:]
        elif line.startswith("### "):
            heading = f"{section} / {line[4:]}"
        if line.startswith("#"):
            found[heading] = {}
        if row := re.fullmatch(r"\| `(\w+)` \| (.+?) \| .*\|", line):
            found[heading][row[1]] = row[2].strip("`")
    return found


def defaults(cls: type) -> dict[str, Any]:
    """The settings that the class itself declares, not its bases, and their defaults; NEEDED where there is none."""
    own = inspect.get_annotations(cls)
    if issubclass(cls, BaseModel):
        every = {name: item.get_default(call_default_factory=True) for name, item in cls.model_fields.items()}
        return {name: NEEDED if value is PydanticUndefined else value for name, value in every.items() if name in own}
    assert is_dataclass(cls), cls
    return {
        item.name: item.default_factory()
        if item.default_factory is not MISSING
        else (NEEDED if item.default is MISSING else item.default)
        for item in fields(cls)
        if item.init and item.name in own
    }


def is_same(text: str, default: Any) -> bool:
    """Whether the text of a table, which is YAML, is the default."""
    if default is NEEDED or text == NEEDED:
        return default is NEEDED and text == NEEDED
    value = yaml.safe_load(text)
    if isinstance(default, BaseModel):
        return bool(value == {})
    if is_dataclass(default):  # what differs from the defaults of its own class
        own = defaults(type(default))
        return bool(value == {name: getattr(default, name) for name in own if getattr(default, name) != own[name]})
    if isinstance(default, float):
        return float(value) == default
    return bool(value == (list(default) if isinstance(default, tuple) else default))


def settings_inside(cls: type) -> Iterator[type]:
    """The bases of a class that declare settings, and the classes in the types of its settings."""
    for base in cls.__mro__:
        is_holder = is_dataclass(base) or (issubclass(base, BaseModel) and bool(base.model_fields))
        if is_holder and defaults(base):
            yield base
    hints = [get_type_hints(cls)[name] for name in defaults(cls)]
    while hints:
        hint = hints.pop()
        hints += get_args(hint)
        if isinstance(hint, type) and (is_dataclass(hint) or issubclass(hint, BaseModel)):
            yield hint


@pytest.mark.parametrize("heading", sorted(owners()))
def test_every_setting_is_in_the_guide_with_its_default(heading: str) -> None:
    expected, written = defaults(owners()[heading]), tables().get(heading)
    assert written is not None, f"docs/configs.md has no heading for {heading!r}"
    assert list(written) == list(expected)
    wrong = {name: (text, expected[name]) for name, text in written.items() if not is_same(text, expected[name])}
    assert not wrong, "what the guide says, and what the default is"


@pytest.mark.parametrize(("heading", "name"), sorted(ENVIRONMENTS.items()))
def test_every_setting_of_an_environment_is_in_the_guide_with_its_default(heading: str, name: str) -> None:
    expected = defaults(plugins.find("environments", name))
    written = {key: text for key, text in tables("environments.md")[heading].items() if key in expected}
    assert list(written) == list(expected)
    wrong = {key: (text, expected[key]) for key, text in written.items() if not is_same(text, expected[key])}
    assert not wrong, "what the guide says, and what the default is"


def test_the_guide_has_every_environment() -> None:
    assert sorted(ENVIRONMENTS.values()) == plugins.names("environments")


def test_the_guide_leaves_out_no_class_with_settings_and_invents_none() -> None:
    every = owners()
    inside = {found for cls in every.values() for found in settings_inside(cls)}
    assert inside <= set(every.values())
    invented = {heading for heading, rows in tables().items() if rows} - set(every)
    assert invented == {"rewards / every reward"}, "weight and label, which parts.py takes from each reward's settings"


@pytest.mark.parametrize(
    ("text", "default", "same"),
    [
        ("3e-4", 3e-4, True),
        ("3e-3", 3e-4, False),
        ("null", None, True),
        ("[0.9, 0.999]", (0.9, 0.999), True),
        ("false", True, False),
        ("needed", NEEDED, True),
        ("0", NEEDED, False),
        ("{}", config.GroupSettings(), True),
    ],
)
def test_a_default_is_compared_as_yaml(text: str, default: Any, same: bool) -> None:
    assert is_same(text, default) is same


PAGES = sorted(path for path in (*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("benchmarks/*.md")))


def anchors(text: str) -> set[str]:
    """The names of a page's headings in links, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", text, flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_inside_the_repository_leads_somewhere(page: Path) -> None:
    broken = []
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
        file, _, anchor = target.partition("#")
        if file.startswith(("http:", "https:")):
            continue
        path = page if not file else (page.parent / file).resolve()
        if not path.exists() or (anchor and anchor not in anchors(path.read_text(encoding="utf-8"))):
            broken.append(target)
    assert not broken


@pytest.mark.parametrize("page", ["README.md", "gui.md"])
def test_the_rewards_of_the_guide_can_be_used_as_they_stand(page: str) -> None:
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    (code,) = re.findall(r"^```python\n(?!# my_parts.py)(.*?)^```$", text, re.M | re.S)
    names: dict[str, Any] = {"__name__": "my_rewards"}
    exec(compile(code, page, "exec"), names)
    (reward,) = [value for value in names.values() if hasattr(value, "granularity")]
    assert all(hasattr(reward, part) for part in (*Reward.__annotations__, "score"))
    prompts = (Prompt("?", target={"answer": "4", "box": (0, 0, 9, 9)}),) * 3
    actions = (Action("click", point=(1, 1)), Action("click", point=(99, 1)), None)
    outputs = Outputs(texts=("4", "6", "four"), actions=actions)
    number = torch.arange(3)
    batch = RewardBatch(prompts, outputs, number, number, number, (0, 1, 2), 0, torch.Generator())
    expected = {"README.md": [1, 1 / 3, 0], "gui.md": [1, 0, 0]}[page]
    torch.testing.assert_close(reward().score(batch), torch.tensor(expected, dtype=torch.float32))


def test_the_advantage_and_the_loss_of_the_guide_pass_the_checks_of_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = (ROOT / "docs" / "README.md").read_text(encoding="utf-8")
    code = re.findall(r"^```python\n(# my_parts.py\n.*?)^```$", text, re.M | re.S)
    command = re.findall(r"^mmrl train (lab/.*)$", text, re.M)
    assert len(code) == len(command) == 1
    (tmp_path / "my_parts.py").write_text(code[0], encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    name, *overrides = shlex.split(command[0])
    built = parts.build(config.load_config(name, overrides))
    valid, group = torch.tensor([True, True, True, False]), torch.zeros(4, dtype=torch.int64)
    values = torch.tensor([[1.0], [0.0], [0.2], [9.0]])
    scores = Scores(values, ("shapes",), (1.0,), valid, group, episode=torch.arange(4), turn=group)
    torch.testing.assert_close(built.advantage(scores), torch.tensor([1.0, -1.0, -1.0, 0.0]))
    assert built.loss.most == 0.5  # type: ignore[attr-defined]


ARCHITECTURE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")


def named_paths() -> set[str]:
    """Files and folders that docs/architecture.md names; `<name>` stands for any."""
    words = re.findall(r"`([^`\s]+)`", re.sub(r"^```.*?^```$", "", ARCHITECTURE, flags=re.M | re.S))
    return {word for word in words if "<" not in word and (word.endswith("/") or re.fullmatch(r"[\w./]+\.\w+", word))}


def test_the_architecture_names_files_and_folders_that_exist() -> None:
    paths = {path for path in named_paths() if not path.startswith("mmrl.")}
    assert len(paths) > 80
    assert not [path for path in sorted(paths) if not (ROOT / path).exists()]
    assert not [path for path in sorted(paths) if path.endswith(".py") and not ast.parse((ROOT / path).read_text())]


def test_the_modules_that_the_architecture_names_can_be_imported() -> None:
    for name in sorted(path for path in named_paths() if path.startswith("mmrl.")):
        module, _, last = name.rpartition(".")
        assert hasattr(importlib.import_module(module), last) or importlib.import_module(name), name


def test_the_architecture_names_every_folder_of_the_floor_plan_in_its_layer() -> None:
    rows = {int(row[1]): row[2] for row in re.finditer(r"^\| (\d+) \| (.+) \|$", ARCHITECTURE, flags=re.M)}
    assert sorted(rows) == list(range(1, len(floor_plan.LAYERS) + 1))
    expected = {}
    for number, folders in enumerate(floor_plan.LAYERS, 1):
        paths = {folder.replace(".", "/") for folder in folders} - {"rewards"}  # which holds folders only
        expected[number] = {f"{'' if path.split('/')[0] in floor_plan.LINKED else 'mmrl/'}{path}" for path in paths}
    named = {number: {word.rstrip("/") for word in re.findall(r"`([\w/]+/)`", text)} for number, text in rows.items()}
    assert named == {number: {path.rstrip("/") for path in paths} for number, paths in expected.items()}
