"""The command line in one or two processes, forked from a process that has imported everything already."""

import json
import multiprocessing
import os
import socket
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import yaml
from safetensors.torch import load_file
from torch import Tensor

TIMEOUT = 120.0  # seconds; then the processes are killed and the test fails

MY_REWARDS = '''
from dataclasses import dataclass
from typing import ClassVar
import torch


@dataclass(frozen=True)
class Redness:
    """Mean of the red channel, or 0.5 for prompts with the word `dull`; raises at an iteration, or for a prompt."""

    source: ClassVar[str] = "a test"
    range: ClassVar[tuple[float, float]] = (0.0, 1.0)
    granularity: ClassVar[str] = "sample"
    differentiable: ClassVar[bool] = False
    needs: ClassVar[frozenset[str]] = frozenset({"images"})
    batch_size: ClassVar[int | None] = None

    dull: str = "nothing"
    raises_for: str = "nothing"
    wrong_shape_for: str = "nothing"

    def score(self, batch):
        texts = [prompt.text for prompt in batch.prompts]
        if any(self.raises_for in text for text in texts):
            raise ValueError("cannot judge this")
        if any(self.wrong_shape_for in text for text in texts):
            return torch.zeros(len(texts), 2)
        is_dull = torch.tensor([self.dull in text for text in texts])
        return torch.where(is_dull, 0.5, batch.outputs.images[:, 0].mean((1, 2)))
'''

PROMPTS = ("red circle left", "blue square right", "green circle right", "red square left", "blue circle left")

SETTINGS: dict[str, Any] = {
    "iterations": 3,
    "threads": 1,
    "group_size": 4,
    "prompts_per_iteration": 3,
    "prompts": {"train": "train.txt", "held_out": "held_out.txt"},
    "modality": {"name": "sd3", "model": "lab:shapes", "height": 32, "width": 32, "max_sequence_length": 1},
    "sampler": {"name": "flow_sde", "num_steps": 3, "sigmas": "uniform", "noise_level": 0.7},
    "rewards": [{"name": "my_rewards:Redness"}],
    "advantage": {"name": "grpo"},
    "loss": {"name": "grpo", "clip_low": 0.01, "clip_high": 0.01},
    "optimizer": {"learning_rate": 1e-3},
    "averaging": {"decay": 0.5},
    "evaluation": {
        "every": 2,
        "sampler": {"name": "ode", "num_steps": 2, "sigmas": "uniform"},
        "samples_per_prompt": 2,
        "saved_samples": 3,
    },
    "checkpoint": {"every": 2, "keep": 5},
}


@dataclass(frozen=True)
class Ended:
    """How one process ended; code -9 where it had to be killed."""

    code: int
    output: str


def write_inputs(folder: Path, changes: dict[str, Any], prompts: tuple[str, ...] = PROMPTS) -> None:
    """A user's folder: config.yaml, prompts, and rewards of their own."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "my_rewards.py").write_text(MY_REWARDS, encoding="utf-8")
    (folder / "train.txt").write_text("\n".join(prompts), encoding="utf-8")
    (folder / "held_out.txt").write_text("\n".join(PROMPTS[:3]), encoding="utf-8")
    (folder / "run.yaml").write_text(yaml.safe_dump(SETTINGS | changes), encoding="utf-8")


def mmrl(folder: Path, arguments: list[str], num_processes: int) -> list[Ended]:
    """`mmrl ARGUMENTS` run inside `folder` by that many processes, as a launcher starts them; their ends."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.process_runs", "tests.warm_imports"])
    port = _free_port()
    logs = [folder / f"log-{time.monotonic_ns()}-{rank}.txt" for rank in range(num_processes)]
    started = [
        context.Process(target=_run, args=(folder, arguments, rank, num_processes, port, logs[rank]), daemon=True)
        for rank in range(num_processes)
    ]
    for process in started:
        process.start()
    deadline = time.monotonic() + TIMEOUT
    for process in started:
        process.join(max(0.0, deadline - time.monotonic()))
    for process in started:
        if process.is_alive():
            process.kill()
            process.join()
    codes = [process.exitcode for process in started]
    return [
        Ended(-1 if code is None else code, log.read_text(encoding="utf-8") if log.exists() else "")
        for code, log in zip(codes, logs, strict=True)
    ]


def _run(folder: Path, arguments: list[str], rank: int, num_processes: int, port: int, log: Path) -> None:
    os.environ |= {"HF_HUB_OFFLINE": "1", "ACCELERATE_USE_CPU": "true"}
    if num_processes > 1:
        os.environ |= {
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": str(num_processes),
            "LOCAL_WORLD_SIZE": str(num_processes),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
        }
    os.chdir(folder)
    handle = os.open(log, os.O_WRONLY | os.O_CREAT)
    os.dup2(handle, 1)
    os.dup2(handle, 2)
    sys.argv = ["mmrl", *arguments]
    torch.set_num_threads(1)
    from mmrl.cli import main  # reads the rank when it is imported

    main()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def final_tensors(run: Path, iteration: int = 3) -> dict[str, Tensor]:
    """Weights and optimizer state of a checkpoint, by file and name."""
    folder = run / "checkpoints" / f"{iteration:06d}"
    return {
        f"{file.stem}/{name}": tensor
        for file in sorted(folder.glob("*.safetensors"))
        for name, tensor in load_file(file).items()
    }


def metrics(run: Path) -> list[dict[str, float]]:
    """The lines of metrics.jsonl without timings."""
    lines = (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [{k: v for k, v in json.loads(line).items() if not k.startswith("time/")} for line in lines]
