"""What the README shows works: its code blocks run, in order, in a working folder; only sizes are made small."""

import json
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import diffusers
import huggingface_hub
import pytest
import torch

import mmrl
from mmrl.modalities.tiny.sd3 import write_tiny_sd3
from mmrl.rewards.base.networks.clip import load_clip, write_tiny_clip
from mmrl.rewards.models import clip_score
from tests.tiny_cli import CommandLine, command_line

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
LAUNCHER = "accelerate launch --num_processes 4 -m "
SMALL = (
    "threads=1",
    "group_size=2",
    "prompts_per_iteration=2",
    "updates.epochs=1",
    "evaluation.num_prompts=2",
    "evaluation.samples_per_prompt=1",
    "evaluation.sampler.num_steps=2",
)
SMALL_IMAGES = ("modality.height=32", "modality.width=32", "modality.max_sequence_length=64")
HUB_SD3, HUB_CLIP = "stabilityai/stable-diffusion-3.5-medium", "openai/clip-vit-large-patch14"


def blocks(language: str) -> list[str]:
    return [code for kind, code in re.findall(r"^```(\w+)\n(.*?)^```$", README, re.M | re.S) if kind == language]


def shrunk(arguments: Sequence[str]) -> list[str]:
    """The arguments of a command, with overrides for a run of a second."""
    if arguments[0] != "train" or "--resume" in arguments:
        return list(arguments)
    own_iterations = any(argument.startswith("iterations=") for argument in arguments)
    images = SMALL_IMAGES if arguments[1].endswith("sd35") else ()
    if arguments[1] == "quickstart_gui":
        return [*arguments, "prompts_per_iteration=2", "evaluation.num_prompts=2", "iterations=1"]
    return [*arguments, *SMALL, *images, *(() if own_iterations else ("iterations=1",))]


def run_line(cli: CommandLine, line: str) -> None:
    if line.startswith("make "):
        commands = subprocess.run(["make", "-n", line[5:]], cwd=ROOT, capture_output=True, text=True, check=True).stdout
        for command in re.findall(r"^\S*bin/(mmrl .*)$", commands, re.M):
            run_line(cli, command)
        return
    if line.startswith("pip "):
        extras = re.findall(r"\[(\w+)\]", line)
        project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
        assert extras and set(extras) <= set(project["optional-dependencies"])
        return
    program, *arguments = shlex.split(line.removeprefix(LAUNCHER))
    assert program == "mmrl", f"a test does not know how to run {line!r}"
    ended = cli(*shrunk(arguments))
    assert ended.code == 0, f"{line}\n{ended.out}{ended.err}"


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[CommandLine]:
    """The command line in a folder of its own, where models of the hub are small random twins."""
    folder = tmp_path / "user"
    folder.mkdir()
    cli = command_line(folder, monkeypatch, capsys)
    (folder / "my_rewards.py").write_text(own_reward(), encoding="utf-8")
    monkeypatch.syspath_prepend(folder)  # as of a script that stands in the folder
    monkeypatch.delitem(sys.modules, "my_rewards", raising=False)
    twins = {HUB_SD3: tmp_path / "sd3", HUB_CLIP: tmp_path / "clip"}
    pipeline: Any = diffusers.StableDiffusion3Pipeline
    from_pretrained, train = pipeline.from_pretrained, mmrl.train

    def from_hub(cls: Any, source: Any, /, **given: Any) -> Any:
        if source == HUB_SD3 and not twins[HUB_SD3].exists():
            write_tiny_sd3(twins[HUB_SD3], 0)
        return from_pretrained(twins.get(source, source), **given)

    def clip_from_hub(library: Any, model: str, *given: Any) -> Any:
        if model == HUB_CLIP and not twins[HUB_CLIP].exists():
            write_tiny_clip(library, twins[HUB_CLIP], 0, embedding=16)
        return load_clip(library, str(twins.get(model, model)), *given)

    def small_train(config: Any, overrides: Sequence[str] = (), **given: Any) -> Any:
        return train(config, [*overrides, *SMALL], **given)

    monkeypatch.setattr(pipeline, "from_pretrained", classmethod(from_hub))
    monkeypatch.setattr(clip_score, "load_clip", clip_from_hub)
    monkeypatch.setattr(mmrl, "train", small_train)
    monkeypatch.setattr(huggingface_hub, "try_to_load_from_cache", lambda model, file: file)  # as if it were there
    yield cli


def own_reward() -> str:
    """The file of a user's own reward."""
    (code,) = [code for code in blocks("python") if code.startswith("# my_rewards.py\n")]
    return code


@pytest.mark.slow  # a dozen runs, two of them of the twin of Stable Diffusion 3
def test_the_code_blocks_run_in_order(cli: CommandLine) -> None:
    for kind, code in re.findall(r"^```(\w+)\n(.*?)^```$", README, re.M | re.S):
        assert kind in ("bash", "python"), f"a test does not know how to run {kind}"
        if kind == "python":
            exec(compile(code, "README.md", "exec"), {"__name__": "readme"})
            continue
        for line in code.strip().replace("\\\n", "").splitlines():
            run_line(cli, line)
    summary = json.loads((cli.folder / "runs/first/summary.json").read_text(encoding="utf-8"))
    assert summary["iterations"] == 40
    assert len(list((cli.folder / "runs/painted").glob("*.png"))) == 4
    assert (cli.folder / "runs/first/export/model_index.json").is_file()
    assert (cli.folder / "scores.html").is_file()
    assert (cli.folder / "runs/flow/checkpoints").is_dir() and (cli.folder / "runs/four/checkpoints").is_dir()


def test_the_reward_of_the_readme_trains(cli: CommandLine, capsys: pytest.CaptureFixture[str]) -> None:
    own, training = blocks("python")
    assert len([line for line in (own + training).splitlines() if line.strip()]) <= 10
    exec(compile(training.replace("iterations=10", "iterations=2"), "README.md", "exec"), {"__name__": "readme"})
    lines = [json.loads(text) for text in (cli.folder / "runs/red/metrics.jsonl").read_text().splitlines()]
    rewards = [row["reward/redness/mean"] for row in lines if "reward/mean" in row]
    assert len(rewards) == 2 and all(-1 < reward < 1 for reward in rewards)
    before, arrow, after = capsys.readouterr().out.splitlines()[-1].split()
    assert arrow == "->" and -1 < float(before) < 1 and -1 < float(after) < 1


def test_the_reward_of_the_readme_says_what_it_means() -> None:
    scope: dict[str, Any] = {"__name__": "my_rewards"}
    exec(compile(own_reward(), "my_rewards.py", "exec"), scope)
    red, green, grey = [1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.5, 0.5, 0.5]
    scores = [scope["redness"](torch.tensor(colour).view(3, 1, 1).expand(3, 4, 4)) for colour in (red, green, grey)]
    assert scores == [1.0, -0.5, 0.0]


def test_the_readme_is_short() -> None:
    assert len(README.splitlines()) <= 130 and len(README.split()) <= 1500


def test_the_two_commands_come_first() -> None:
    assert blocks("bash")[0] == "make quickstart\nmake test\n"


def test_the_readme_has_one_picture_which_is_small() -> None:
    (picture,) = re.findall(r"!\[[^\]]+\]\(([^)]+)\)", README)
    content = (ROOT / picture).read_bytes()
    assert content.startswith(b"\x89PNG") and len(content) < 200_000


def test_the_results_of_the_quickstarts_are_those_of_the_labs_page() -> None:
    """The README rounds to two places; docs/lab.md has the measured three."""
    lab = (ROOT / "docs" / "lab.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| .* \| `mmrl train (\w+)` \| (\S+) \| (\S+), (\S+), (\S+) \|$", README, re.M)
    assert len(rows) == 8
    for name, *scores in rows:
        measured = re.search(rf"^\| `{name}` \|.*\| (0\.\d+) \| (0\.\d+), (0\.\d+), (0\.\d+) \|", lab, re.M)
        assert measured is not None, f"docs/lab.md has no row of {name}"
        assert [f"{float(text):.2f}" for text in measured.groups()] == scores, name
