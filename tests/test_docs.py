"""The user's guide is true: every class with settings is in it, every link has a target, every file exists."""

import ast
import importlib
import json
import re
import shlex
from functools import cache
from pathlib import Path
from typing import Any

import floor_plan
import pytest
import settings_reference
import settings_source
import torch

from mmrl.assembly.build import build
from mmrl.core import config
from mmrl.core.contracts import Reward, RewardBatch
from mmrl.core.data import Outputs, Prompt, Scores
from mmrl.parsing.actions.action import Action
from tests.parameters import in_one_test

ROOT = Path(__file__).parents[1]
MODALITIES = ROOT / "docs" / "modalities"


@pytest.mark.parametrize("page", ["configs.md", "environments.md"])
def test_the_guide_has_no_table_of_settings_of_its_own(page: str) -> None:
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    tables = re.findall(r"^##+ (.+)\n(?:(?!#).*\n)*?\| setting \|", text, flags=re.MULTILINE)
    assert tables == (["every reward"] if page == "configs.md" else []), "docs/settings.md has them, from the code"


def test_the_guide_leaves_out_no_class_with_settings() -> None:
    guide = "".join((ROOT / "docs" / page).read_text(encoding="utf-8") for page in ("configs.md", "environments.md"))
    linked = set(re.findall(r"\(settings\.md#([\w-]+)\)", guide))
    entries = settings_reference.entries()
    assert {entry.anchor for entry in entries if settings_source.settings(entry.cls, inherited=False)} == linked


def test_the_settings_that_every_reward_has_are_in_the_guide() -> None:
    """`weight`, `label` and `device` are of no class: `mmrl.assembly.build` takes them from each reward's section."""
    section = (ROOT / "docs" / "configs.md").read_text(encoding="utf-8").partition("\n### every reward\n")[2]
    rows = re.findall(r"^\| `(\w+)` \|", section.partition("\n### ")[0], flags=re.MULTILINE)
    assert rows == ["weight", "label", "device"]


PAGES = sorted(path for path in (*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("benchmarks/*.md")))


@cache
def anchors(page: Path) -> set[str]:
    """The names of a page's headings in links, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@in_one_test("page", PAGES)
def test_every_link_inside_the_repository_leads_somewhere(page: Path) -> None:
    broken = []
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
        file, _, anchor = target.partition("#")
        if file.startswith(("http:", "https:")):
            continue
        path = page if not file else (page.parent / file).resolve()
        if not path.exists() or (anchor and anchor not in anchors(path)):
            broken.append(target)
    assert not broken


@in_one_test("page", ["quickstart.md", *sorted(f"modalities/{file.name}" for file in MODALITIES.iterdir())])
def test_the_commands_of_a_page_name_configs_and_settings_that_exist(page: str) -> None:
    blocks = re.findall(r"^```bash\n(.*?)^```$", (ROOT / "docs" / page).read_text(encoding="utf-8"), re.M | re.S)
    commands = [
        shlex.split(line)
        for block in blocks
        for line in block.replace("\\\n", "").splitlines()
        if " -m mmrl " not in line
    ]
    loaded = 0
    for program, *arguments in commands:
        if program == "mmrl" and arguments[0] in ("train", "check") and "--resume" not in arguments:
            name, *overrides = [word for word in arguments[1:] if word != "--tiny"]
            config.load_config(name, overrides[: overrides.index("--out")] if "--out" in overrides else overrides)
            loaded += 1
    assert loaded >= 2


def test_the_configs_of_the_page_on_new_models_load(tmp_path: Path) -> None:
    text = (ROOT / "docs" / "new_models.md").read_text(encoding="utf-8")
    pipeline, answers = re.findall(r"^```yaml\n(.*?)^```$", text, re.M | re.S)
    shared = "iterations: 1\ngroup_size: 4\nprompts_per_iteration: 2\nprompts: {train: a.txt, held_out: b.txt}\n"
    shared += "optimizer: {learning_rate: 1.0e-3}\n"
    for name, body in (("my.yaml", pipeline), ("vlm.yaml", shared + answers)):
        (tmp_path / name).write_text(body, encoding="utf-8")
    images, texts = (config.load_config(str(tmp_path / name), []) for name in ("my.yaml", "vlm.yaml"))
    assert images.group_size == texts.group_size == 4


@pytest.mark.parametrize("page", ["python.md", "modalities/clicks.md"])
def test_the_rewards_of_the_guide_can_be_used_as_they_stand(page: str) -> None:
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    (code,) = re.findall(r"^```python\n(?!# (?:my_|comfyui))(.*?)^```$", text, re.M | re.S)
    names: dict[str, Any] = {"__name__": "my_rewards"}
    exec(compile(code, page, "exec"), names)
    (reward,) = [value for value in names.values() if hasattr(value, "granularity")]
    assert all(hasattr(reward, part) for part in (*Reward.__annotations__, "score"))
    prompts = (Prompt("?", target={"answer": "4", "box": (0, 0, 9, 9)}),) * 3
    actions = (Action("click", point=(1, 1)), Action("click", point=(99, 1)), None)
    outputs = Outputs(texts=("4", "6", "four"), actions=actions)
    number = torch.arange(3)
    batch = RewardBatch(prompts, outputs, number, number, number, (0, 1, 2), 0, torch.Generator())
    expected = {"python.md": [1, 1 / 3, 0], "modalities/clicks.md": [1, 0, 0]}[page]
    torch.testing.assert_close(reward().score(batch), torch.tensor(expected, dtype=torch.float32))


def test_the_advantage_and_the_loss_of_the_guide_pass_the_checks_of_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = (ROOT / "docs" / "python.md").read_text(encoding="utf-8")
    code = re.findall(r"^```python\n(# my_parts.py\n.*?)^```$", text, re.M | re.S)
    command = re.findall(r"^mmrl train (lab/.*)$", text, re.M)
    assert len(code) == len(command) == 1
    (tmp_path / "my_parts.py").write_text(code[0], encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    name, *overrides = shlex.split(command[0])
    built = build(config.load_config(name, overrides))
    valid, group = torch.tensor([True, True, True, False]), torch.zeros(4, dtype=torch.int64)
    values = torch.tensor([[1.0], [0.0], [0.2], [9.0]])
    scores = Scores(values, ("shapes",), (1.0,), valid, group, episode=torch.arange(4), turn=group)
    torch.testing.assert_close(built.advantage(scores), torch.tensor([1.0, -1.0, -1.0, 0.0]))
    assert built.loss.most == 0.5  # type: ignore[attr-defined]


@pytest.mark.slow
def test_the_callback_of_the_guide_runs_to_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = (ROOT / "docs" / "python.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"^```python\n# my_callbacks.py\n(.*?)^```$", text, re.M | re.S)
    small = ["threads=1", "prompts_per_iteration=2", "group_size=2", "evaluation.num_prompts=1", "evaluation.every=1"]
    monkeypatch.chdir(tmp_path)
    smaller = code.replace('["iterations=5"]', repr(["iterations=2", *small])).replace("0.9", "0.0")
    exec(compile(smaller, "my_callbacks.py", "exec"), {"__name__": "__main__"})
    summary = json.loads((tmp_path / "runs" / "callbacks" / "summary.json").read_text(encoding="utf-8"))
    assert summary["iterations"] == 2 and summary["is_complete"]
    assert "iteration 2: " in capsys.readouterr().out


ARCHITECTURE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")


def named_paths() -> set[str]:
    """Files and folders that docs/architecture.md names; `<name>` stands for any."""
    words = re.findall(r"`([^`\s]+)`", re.sub(r"^```.*?^```$", "", ARCHITECTURE, flags=re.M | re.S))
    return {word for word in words if "<" not in word and (word.endswith("/") or re.fullmatch(r"[\w./]+\.\w+", word))}


@pytest.mark.slow
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
