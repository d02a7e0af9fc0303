"""Training runs of a second, on the shapes lab and on questions about images, in processes that may be killed."""

import json
import multiprocessing
import os
import random
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from mmrl.reporting.metric_names import VARYING
from mmrl.training import checkpoint
from tests.tiny_texts import agent, video, vision_language

SMALL = (  # whole sections, so that the shipped config may be tuned without a change here
    "iterations=6",
    "threads=1",
    "prompts_per_iteration=2",
    "group_size=4",
    "advantage={name: grpo}",
    "updates={}",
    "groups={}",
    "averaging=null",
    "optimizer={learning_rate: 3e-4}",
    "checkpoint.every=1",
    "evaluation.every=3",
    "evaluation.num_prompts=2",
    "evaluation.samples_per_prompt=1",
    "evaluation.sampler={name: ode, num_steps: 2, sigmas: uniform}",
)
SDE = "sampler={name: flow_sde, num_steps: 4, sigmas: uniform}"
KINDS = {
    "policy_gradient": (SDE, "loss={name: grpo}", "updates.minibatches=2", "averaging.decay=0.8"),
    "lora": (SDE, "loss={name: grpo, kl_coef: {start: 0.2, end: 0.0, last: 3}}", "modality.lora={rank: 2, alpha: 4}"),
    "nft": (
        "sampler={name: ode, num_steps: 3, sigmas: uniform}",
        "loss={name: nft, draws: 1, reference_weight: 0.1, decay: {start: 0.5, maximum: 0.5}}",
        "averaging.decay=0.5",
    ),
    "draft": (
        "sampler={name: ode, num_steps: 3, sigmas: uniform}",
        "loss={name: draft, num_steps: [1, 3]}",
        "rewards=[{name: soft_shapes}]",
    ),
    "vision_language": ("loss={name: grpo}", "updates.minibatches=2", "averaging.decay=0.8"),
    "vision_language_lora": (
        "loss={name: grpo, kl_coef: 0.1, kl: k3}",
        "modality.lora={rank: 2, alpha: 4}",
        "updates.minibatches=2",
        "averaging.decay=0.8",
    ),
    "video": ("loss={name: grpo}", "averaging.decay=0.8"),
    "agent": ("loss={name: grpo}", "updates.minibatches=2"),
}
TASKS = {"vision_language": vision_language, "video": video, "agent": agent}  # by how the name of a kind begins
HEAVY = [
    "mmrl.cli",
    "mmrl.commands.train",
    "diffusers.pipelines.stable_diffusion_3.pipeline_stable_diffusion_3",
    "peft",
    "transformers.models.clip.modeling_clip",
    "transformers.models.clip.tokenization_clip",
    "transformers.models.qwen2_5_vl.modeling_qwen2_5_vl",
    "transformers.models.qwen2_5_vl.processing_qwen2_5_vl",
    "transformers.models.qwen2_vl.image_processing_qwen2_vl",
    "datasets",
    "mmrl.modalities.vision_language",
    "mmrl.modalities.video",
    "mmrl.modalities.agent",
    "accelerate",
    "torch._dynamo",
    "PIL.Image",
]


def arguments(kind: str, out: Path, *overrides: str) -> list[str]:
    """Of `mmrl train` for a small run of a kind."""
    task = next((overrides() for name, overrides in TASKS.items() if kind.startswith(name)), ())
    return ["train", "quickstart", *SMALL, *task, *KINDS[kind], *overrides, "--out", str(out)]


def run_command(given: list[str], output: Path, save_event: int | None = None) -> None:
    """What a process does: `mmrl` with the given arguments; it kills itself at the `save_event`-th event of saves."""
    os.environ["ACCELERATE_USE_CPU"] = "true"
    handle = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(handle, 1)
    os.dup2(handle, 2)
    if save_event is not None:
        die_inside_save(save_event)
    from mmrl import cli

    sys.argv = ["mmrl", *given]
    cli.main()


def die_inside_save(event: int) -> None:
    """Kills this process before its `event`-th (from 0) change of the disk inside `checkpoint.save` and `prune`."""
    remaining = iter(range(event))
    is_inside = False

    def entered(function: Callable[..., Any]) -> Callable[..., Any]:
        def called(*given: Any, **settings: Any) -> Any:
            nonlocal is_inside
            is_inside = True
            try:
                return function(*given, **settings)
            finally:
                is_inside = False

        return called

    def deadly(function: Callable[..., Any]) -> Callable[..., Any]:
        def called(*given: Any, **settings: Any) -> Any:
            if is_inside and next(remaining, None) is None:
                os.kill(os.getpid(), signal.SIGKILL)
            return function(*given, **settings)

        return called

    for owner, name in ((checkpoint, "save_file"), (os, "fsync"), (os, "rename"), (os, "unlink"), (os, "mkdir")):
        setattr(owner, name, deadly(getattr(owner, name)))
    for name in ("save", "prune"):
        setattr(checkpoint, name, entered(getattr(checkpoint, name)))


@dataclass(frozen=True)
class Kill:
    """When a process is killed: some seconds after its start, or at an event inside a save."""

    seconds: float | None = None
    save_event: int | None = None

    @property
    def is_inside_save(self) -> bool:
        return self.save_event is not None


class Processes:
    """Forks of a process that has imported everything, so that each is there at once."""

    def __init__(self, folder: Path) -> None:
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(HEAVY)
        self.output = folder / "output.txt"

    def start(self, given: list[str], save_event: int | None = None, output: Path | None = None) -> Any:
        process = self._context.Process(target=run_command, args=(given, output or self.output, save_event))
        process.start()
        return process

    def run(self, given: list[str], kill: Kill | None = None) -> int:
        """The exit code: 0, or -9 where the kill came in time."""
        kill = kill or Kill()
        process = self.start(given, kill.save_event)
        process.join(kill.seconds)
        if process.is_alive():
            process.kill()
            process.join()
        code: int = process.exitcode
        assert code in (0, -signal.SIGKILL), self.output.read_text()
        return code


def story(processes: Processes, kind: str, out: Path, kills: list[Kill]) -> list[Kill]:
    """One run, killed and resumed until no kill is left, then to its end; returns the kills that came in time."""
    given = arguments(kind, out)
    for number, kill in enumerate(kills):
        if processes.run(given, kill) == 0:
            return kills[:number]
        if (out / "config.yaml").exists():
            given = ["train", "--resume", str(out)]
    assert processes.run(given) == 0
    return kills


def random_kills(seed: int, count: int, most_seconds: float) -> list[Kill]:
    """Kills at random times, and every second one at a random event inside a save."""
    source = random.Random(seed)
    return [
        Kill(save_event=source.randrange(40)) if number % 2 else Kill(seconds=source.uniform(0.05, most_seconds))
        for number in range(count)
    ]


def numbers(run: Path) -> dict[str, Any]:
    """All that two equal runs have in common: tensors of the last checkpoint, its state, metrics without times."""
    last = checkpoint.latest(run / "checkpoints")
    assert last is not None
    state = json.loads((last / "state.json").read_text())
    del state["state"]["progress"]["train_seconds"]
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    metrics = [{key: value for key, value in line.items() if not key.startswith(VARYING)} for line in lines]
    return {"tensors": tensors(last), "state": state, "metrics": metrics, "samples": samples(run)}


def assert_same(got: dict[str, Any], wanted: dict[str, Any]) -> None:
    assert got["state"] == wanted["state"]
    assert got["metrics"] == wanted["metrics"]
    assert got["samples"] == wanted["samples"]
    assert got["tensors"].keys() == wanted["tensors"].keys()
    for group, tensors in wanted["tensors"].items():
        torch.testing.assert_close(got["tensors"][group], tensors, rtol=0, atol=0)


def tensors(folder: Path) -> dict[str, dict[str, Tensor]]:
    return {path.stem: load_file(path) for path in sorted(folder.glob("*.safetensors"))}


def samples(run: Path) -> dict[str, bytes]:
    return {str(path.relative_to(run)): path.read_bytes() for path in sorted((run / "samples").rglob("*.*"))}
