"""The command line in one or two processes, forked from a process that has imported everything already."""

import faulthandler
import json
import multiprocessing
import os
import shutil
import socket
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import load_file
from torch import Tensor

from mmrl.cli import main
from mmrl.reporting.metric_names import VARYING

HEAVY = (
    "diffusers.loaders.peft",
    "diffusers.models.autoencoders.autoencoder_kl",
    "diffusers.models.transformers.transformer_flux",
    "diffusers.models.transformers.transformer_sd3",
    "diffusers.pipelines.flux.pipeline_flux",
    "diffusers.pipelines.stable_diffusion_3.pipeline_stable_diffusion_3",
    "diffusers.schedulers.scheduling_flow_match_euler_discrete",
    "peft",
    "transformers.models.clip.modeling_clip",
    "transformers.models.clip.tokenization_clip",
    "transformers.models.qwen2_5_vl.modeling_qwen2_5_vl",
    "transformers.models.qwen2_5_vl.processing_qwen2_5_vl",
    "datasets",
    "mmrl.modalities.diffusers_pipeline",
    "mmrl.modalities.sd3",
    "mmrl.modalities.vision_language",
    "mmrl.commands.train",
)
DESCRIBED = ("prompt", "name", "text", "size", "degenerate")  # of a group: the same on any number of processes
TIMEOUT = 120.0  # seconds; then the processes are killed and the test fails
LOST = "gloo/transport"  # in what a process says whose companion is gone: closed by peer, or reset

MY_REWARDS = '''
from dataclasses import dataclass
from typing import ClassVar
import torch


@dataclass(frozen=True)
class Redness:
    """Mean of the red channel; for prompts with a given word 0.5, an error, or an answer of the wrong shape."""

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

    @property
    def said(self) -> str:
        """The output without the long list behind a crash."""
        return self.output.split("Extension modules:")[0]


def write_inputs(folder: Path, changes: dict[str, Any], prompts: tuple[str, ...] = PROMPTS) -> None:
    """A user's folder: config.yaml, prompts, and rewards of their own."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "my_rewards.py").write_text(MY_REWARDS, encoding="utf-8")
    (folder / "train.txt").write_text("\n".join(prompts), encoding="utf-8")
    (folder / "held_out.txt").write_text("\n".join(PROMPTS[:3]), encoding="utf-8")
    (folder / "run.yaml").write_text(yaml.safe_dump(SETTINGS | changes), encoding="utf-8")


def mmrl(
    folder: Path, arguments: list[str], num_processes: int, meanwhile: Callable[[list[int]], None] | None = None
) -> list[Ended]:
    """`mmrl ARGUMENTS` run inside `folder` by that many processes, as a launcher starts them; their ends.

    `meanwhile` is called with their process ids when they have started.
    """
    logs = [folder / f"log-{time.monotonic_ns()}-{rank}.txt" for rank in range(num_processes)]
    codes = _fork(_command_line, [(folder, arguments, log) for log in logs], meanwhile)
    outputs = [log.read_text(encoding="utf-8") if log.exists() else "" for log in logs]
    return [Ended(code, output) for code, output in zip(codes, outputs, strict=True)]


def in_processes(function: Callable[[], Any], num_processes: int) -> list[Any]:
    """What a function of a module returns in each of that many processes."""
    context = multiprocessing.get_context("forkserver")
    pipes = [context.Pipe(duplex=False) for _ in range(num_processes)]
    codes = _fork(_send, [(function, sender) for _, sender in pipes])
    assert codes == [0] * num_processes, f"exit codes {codes}; what was raised is on stderr"
    return [receiver.recv() for receiver, _ in pipes]


def _fork(
    target: Callable[..., None],
    arguments: Sequence[tuple[Any, ...]],
    meanwhile: Callable[[list[int]], None] | None = None,
) -> list[int]:
    """Exit codes of a process for each of the tuples, forked from one that has imported everything."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__, *HEAVY])
    port = _free_port()
    started = [
        context.Process(target=_as_launched, args=(rank, len(arguments), port, target, own), daemon=True)
        for rank, own in enumerate(arguments)
    ]
    try:
        for process in started:
            process.start()
        if meanwhile is not None:
            meanwhile([process.pid for process in started if process.pid is not None])
        deadline = time.monotonic() + TIMEOUT
        for process in started:
            process.join(max(0.0, deadline - time.monotonic()))
    finally:
        for process in started:
            if process.is_alive():
                process.kill()
                process.join()
    return [-1 if process.exitcode is None else process.exitcode for process in started]


def _as_launched(rank: int, num_processes: int, port: int, target: Callable[..., None], own: tuple[Any, ...]) -> None:
    """Calls the target in the surroundings that `accelerate launch` makes."""
    os.environ |= {"HF_HUB_OFFLINE": "1", "ACCELERATE_USE_CPU": "true"}
    if num_processes > 1:
        ranks = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": num_processes, "LOCAL_WORLD_SIZE": num_processes}
        os.environ |= {name: str(value) for name, value in ranks.items()}
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    torch.set_num_threads(1)
    target(*own)


def _command_line(folder: Path, arguments: list[str], log: Path) -> None:
    os.chdir(folder)
    handle = os.open(log, os.O_WRONLY | os.O_CREAT)
    os.dup2(handle, 1)
    os.dup2(handle, 2)
    faulthandler.enable()
    faulthandler.dump_traceback_later(TIMEOUT - 10)  # where it hangs, before it is killed
    sys.argv = ["mmrl", *arguments]
    main()


def _send(function: Callable[[], Any], sender: Connection) -> None:
    sender.send(function())


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
    return [{k: v for k, v in json.loads(line).items() if not k.startswith(VARYING)} for line in lines]


def ended_well(ends: list[Ended]) -> None:
    """Fails with what the processes said, the one behind it last: a report of failures may be cut at its start."""
    outputs = [f"process {rank} ended with {end.code}:\n{end.said[-3000:]}" for rank, end in enumerate(ends)]
    outputs.sort(key=lambda output: LOST not in output)
    assert all(end.code == 0 for end in ends), "\n".join(outputs)


def train(folder: Path, out: str, num_processes: int, *overrides: str) -> Path:
    """The run's folder. Tried once more, with a warning, where a process died without a word: gloo or the machine."""
    arguments = ["train", "run.yaml", "--out", out, *overrides]
    ends = mmrl(folder, arguments, num_processes)
    if any(LOST in end.output for end in ends) and any(died_silently(end) for end in ends):
        warnings.warn(f"a process died: {[end.code for end in ends]}, {ends}", RuntimeWarning, stacklevel=2)
        shutil.rmtree(folder / out, ignore_errors=True)
        ends = mmrl(folder, arguments, num_processes)
    ended_well(ends)
    return folder / out


def died_silently(end: Ended) -> bool:
    """Whether a signal ended the process, and no error of Python's, nor the end of the time that it has."""
    return end.code < 0 and "Traceback" not in end.output and "Timeout (" not in end.output


def assert_same_metrics(line: dict[str, float], other: dict[str, float]) -> None:
    """The metrics of one iteration to 1e-4; correlations, which magnify the rounding of weights, to 1e-2.

    In the first iteration, whose weights are the same, correlations agree to 1e-4 too.
    """
    assert other.keys() == line.keys()
    for name, value in line.items():
        size = 1e-2 if name.startswith("follows/") and line["iteration"] > 1 else 1e-4
        assert other[name] == pytest.approx(value, abs=size), name


def assert_same_run(one: Path, two: Path, iteration: int = 3, *, processes: int = 2) -> None:
    """Weights to 1e-5, metrics to 1e-4, calls and files exactly; the second run is of so many processes."""
    expected, got = final_tensors(one, iteration), final_tensors(two, iteration)
    assert expected.keys() == got.keys()
    for name, tensor in expected.items():
        size = 2e-3 if name.startswith("plugins/") else 1e-5  # what rewards remember: latents, which magnify rounding
        torch.testing.assert_close(got[name], tensor, atol=size, rtol=0, msg=name.__add__)
    lines, lines_of_two = metrics(one), metrics(two)
    for line, other in zip(lines, lines_of_two, strict=True):
        assert_same_metrics(line, other)
        for name in line:
            # all but a variance of rewards, which are rounded in another order
            if name.startswith(("calls/", "groups/", "iteration")) and name != "groups/difficulty_weight":
                assert other[name] == line[name], name
    assert _files(one) == _files(two)
    for group, other in zip(_groups(one), _groups(two), strict=True):
        assert [other.pop(name) for name in DESCRIBED] == [group.pop(name) for name in DESCRIBED]
        assert other == pytest.approx(group, abs=1e-4)
    summaries = [json.loads((run / "summary.json").read_text(encoding="utf-8")) for run in (one, two)]
    assert [summary["processes"] for summary in summaries] == [1, processes]
    assert summaries[0]["network_calls"] == summaries[1]["network_calls"]
    assert summaries[1]["held_out"] == pytest.approx(summaries[0]["held_out"], abs=1e-4)
    for first in sorted((one / "samples").glob("*/samples.json")):
        saved, same = (json.loads((run / first.relative_to(one)).read_text(encoding="utf-8")) for run in (one, two))
        kept = ("prompt", "seed", "text")
        names = [[[sample.get(name) for name in kept] for sample in page["samples"]] for page in (saved, same)]
        assert len(names[0]) == 3 and names[0] == names[1]


def _groups(run: Path) -> list[dict[str, Any]]:
    """The groups of all iterations, the means of their rewards beside their other numbers."""
    lines = (run / "groups.jsonl").read_text(encoding="utf-8").splitlines()
    return [group | group.pop("rewards") for line in lines for group in json.loads(line)["groups"]]


def _files(run: Path) -> list[str]:
    return sorted(str(path.relative_to(run)) for path in run.rglob("*") if path.is_file())


def movement(run: Path, first: int, last: int) -> float:
    """Largest change of a trained number between two checkpoints."""
    before, after = final_tensors(run, first), final_tensors(run, last)
    return max(float((after[n] - before[n]).abs().max()) for n in before if n.startswith("trained/"))
