"""What the README shows works: its code blocks run, in order, in a working folder; only sizes are made small."""

import json
import re
import shlex
import subprocess
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import diffusers
import huggingface_hub
import pytest
import torch
from PIL import Image

import mmrl
from mmrl.core.data import Outputs
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
    (folder / "my_rewards.py").write_text(ten_lines(), encoding="utf-8")
    (folder / "my_prompts.txt").write_text("a photo of a red apple\na photo of a blue bird\n", encoding="utf-8")
    Image.new("RGB", (112, 112), "red").save(folder / "screen.png")
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


def ten_lines() -> str:
    (code,) = [code for code in blocks("python") if "class " in code]
    return code


@pytest.mark.slow  # a dozen runs, two of them of the twin of Stable Diffusion 3
def test_the_code_blocks_run_in_order(cli: CommandLine) -> None:
    for kind, code in re.findall(r"^```(\w+)\n(.*?)^```$", README, re.M | re.S):
        assert kind in ("bash", "python"), f"a test does not know how to run {kind}"
        if kind == "python":
            exec(compile(code, "README.md", "exec"), {"__name__": "my_rewards"})
            continue
        for line in code.strip().replace("\\\n", "").splitlines():
            run_line(cli, line)
    summary = json.loads((cli.folder / "runs/first/summary.json").read_text(encoding="utf-8"))
    assert summary["iterations"] == 40
    assert len(list((cli.folder / "runs/drawn").glob("*.png"))) == 8  # four for each prompt
    assert len(list((cli.folder / "runs/best").glob("*.png"))) == 4
    assert (cli.folder / "runs/first/export/model_index.json").is_file()
    assert (cli.folder / "my_lora/pytorch_lora_weights.safetensors").is_file()
    assert (cli.folder / "apples.png").is_file()


def test_the_reward_in_ten_lines_trains(cli: CommandLine) -> None:
    assert len([line for line in ten_lines().splitlines() if line.strip()]) <= 10
    (line,) = [line for line in "".join(blocks("bash")).splitlines() if "my_rewards:" in line]
    run_line(cli, line.replace("iterations=5", "iterations=2"))
    lines = [json.loads(text) for text in (cli.folder / "runs/red/metrics.jsonl").read_text().splitlines()]
    rewards = [row["reward/Redness/mean"] for row in lines if "reward/mean" in row]
    assert len(rewards) == 2 and all(-1 < reward < 1 for reward in rewards)


def test_the_reward_in_ten_lines_says_what_it_means() -> None:
    scope: dict[str, Any] = {"__name__": "my_rewards"}
    exec(compile(ten_lines(), "my_rewards.py", "exec"), scope)
    red, green, grey = [1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.5, 0.5, 0.5]
    images = torch.tensor([red, green, grey]).view(3, 3, 1, 1).expand(3, 3, 4, 4)

    class Batch:
        outputs = Outputs(images=images)

    assert scope["Redness"]().score(Batch()).tolist() == [1.0, -0.5, 0.0]


def test_the_two_commands_come_first() -> None:
    assert blocks("bash")[0] == "make quickstart\nmake test\n"


def test_the_pictures_are_there_and_small() -> None:
    pictures = re.findall(r"!\[[^\]]+\]\(([^)]+)\)", README)
    assert len(pictures) == 2
    for picture in pictures:
        content = (ROOT / picture).read_bytes()
        assert content.startswith(b"\x89PNG") and len(content) < 200_000
