"""Checks of whole runs: dry runs of configs, a kill and a resume, a full step, sharded weights."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from mmrl.core.config import OptimizerSettings, load_config, shipped_names
from mmrl.core.keys import GroupKey
from mmrl.losses.grpo import Grpo
from mmrl.plans.answers import AnswerPlan
from mmrl.training.checkpoint import Checkpoint, save
from mmrl.training.optimizer import optimizer_of
from mmrl.training.sharding import shard
from mmrl.training.update import Updater

from .answers import answers_of
from .building import lora, prompt_of, qwen
from .dry_runs import dry_runs
from .images import batch_of, processes_of
from .measuring import Measurement, cosine, gb, is_installed, significant

ROOT = Path(__file__).parents[2]
IMAGES = ("sd3", "stable_diffusion", "stable_diffusion_xl", "diffusers_pipeline")
ANSWERS = ("vision_language", "gui", "video")
# One config of each kind, for small sizes.
SMALLEST = {
    "sd3": "flow_grpo_sd35",
    "stable_diffusion": "dance_grpo_sd14",
    "stable_diffusion_xl": "nft_sdxl",
    "vision_language": "vlm_r1_qwen25vl_3b_detection",
    "gui": "gui_g1_qwen25vl_3b",
}


def every_config_tiny(measured: Measurement) -> None:
    """Runs `mmrl check --tiny` of the image configs of real size: one of each kind first, at small sizes only these."""
    _dry_runs(measured, IMAGES)


def runs_tiny_and_resume(measured: Measurement) -> None:
    """Runs the same of the configs of answers; kills and resumes a run; makes a full step of Qwen2-VL-2B."""
    _full_step(measured)
    _killed_and_resumed(measured)
    _dry_runs(measured, ANSWERS)


def _dry_runs(measured: Measurement, modalities: Sequence[str]) -> None:
    names, changes = _by_kind(modalities, is_tiny=measured.is_tiny)
    rows = list(dry_runs(names, changes, max(measured.left, 1)))
    measured.figures["configs"] = rows
    measured.highest = max([measured.highest, *(int(1e9 * row.get("peak_gb", 0)) for row in rows)])
    spent = f"the check's {measured.budget:.0f} s were spent"
    measured.skipped |= dict.fromkeys(sorted(set(names) - {row["config"] for row in rows}), spent)
    measured.identity("configs_that_are_not_good", sum(not row["is_good"] for row in rows), 0)


def _by_kind(modalities: Sequence[str], *, is_tiny: bool) -> tuple[list[str], list[str]]:
    """Returns the configs of real size, one of each pair of modality and loss first, and changes of them all.

    Where all is small: one or two.
    """
    named = [name for name in shipped_names() if "/" not in name and not name.startswith("quickstart")]
    changes = ["threads=1"]
    if is_tiny:
        named = [SMALLEST[modality] for modality in modalities if modality in SMALLEST]
        steps = [] if modalities == ANSWERS else ["sampler.num_steps=3", "evaluation.sampler.num_steps=3"]
        changes += steps
    first: dict[tuple[str, ...], str] = {}
    rest = []
    for name in named:
        config = load_config(name, changes)
        if config.modality["name"] not in modalities:
            continue
        kind = (str(config.modality["name"]), str(config.loss["name"]))
        if kind in first:
            rest.append(name)
        first.setdefault(kind, name)
    return [*first.values(), *rest], changes


# a run that is killed


def _killed_and_resumed(measured: Measurement) -> None:
    """Kills a run behind its first checkpoints, resumes it, and looks for each iteration once in its metrics."""
    iterations = 20
    changes = [f"iterations={iterations}", "checkpoint.every=2", "prompts_per_iteration=2", "group_size=2",
               "evaluation.num_prompts=2", "evaluation.every=100", "threads=1"]  # fmt: skip
    with tempfile.TemporaryDirectory(prefix="mmrl-killed-") as name:
        folder = Path(name) / "run"
        begin = time.perf_counter()
        command = [sys.executable, "-m", "mmrl", "train", "quickstart_gui", *changes, "--out", str(folder)]
        killed = _until(measured, command, lambda: any((folder / "checkpoints").glob("[1-9]*/manifest.json")))
        kept = sorted(int(path.name) for path in (folder / "checkpoints").glob("[0-9]*"))
        again = [sys.executable, "-m", "mmrl", "train", "--resume", str(folder)]
        resumed = subprocess.run(again, cwd=ROOT, timeout=300, stdout=sys.stderr, env=_environment(measured))
        measured.figures |= {"killed_behind": kept, "kill_and_resume_seconds": significant(time.perf_counter() - begin)}
        measured.figures["was_killed_in_time"] = killed
        rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
        seen = sorted(row["iteration"] for row in rows if "loss/total" in row)
        measured.figures["iterations"] = len(seen)
        measured.identity("exit_of_the_resumed_run", resumed.returncode, 0)
        measured.identity("iterations_not_there_once", float(seen != list(range(1, iterations + 1))), 0)


def _until(measured: Measurement, command: Sequence[str], is_there: Callable[[], bool]) -> bool:
    """Starts a process and kills it when the condition holds; returns whether it was still running then."""
    process = subprocess.Popen(command, cwd=ROOT, stdout=sys.stderr, env=_environment(measured))
    end = time.monotonic() + 240
    while process.poll() is None and not is_there():
        if time.monotonic() > end:
            process.kill()
            raise TimeoutError("no checkpoint after 240 s")
        time.sleep(0.02)
    is_running = process.poll() is None
    process.send_signal(signal.SIGKILL)
    process.wait()
    return is_running


def _environment(measured: Measurement) -> dict[str, str]:
    hidden = {} if measured.is_cuda else {"CUDA_VISIBLE_DEVICES": ""}
    return dict(os.environ) | hidden | {"PYTHONPATH": _paths()}


def _paths() -> str:
    return os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])


# a full step


def _full_step(measured: Measurement) -> None:
    """Makes an update and an optimizer step of all weights of Qwen2-VL-2B, and writes a checkpoint."""
    name = "a full step of Qwen2-VL-2B"
    with measured.may_lack_memory(name):
        policy: Any = qwen(measured, is_small=True, gradient_checkpointing=True)
        prompt = prompt_of(policy, 40 if measured.is_tiny else 600, 56 if measured.is_tiny else 560)
        rollout = answers_of(policy, prompt, 2 if measured.is_tiny else 8, 4 if measured.is_tiny else 64)
        before = [p.detach().flatten()[:64].clone() for p in policy.weights.parameters.values()]
        measured.begin_peak()
        begin = time.perf_counter()
        updated(measured, policy, rollout)
        optimizer = optimizer_of(OptimizerSettings(learning_rate=1e-3), policy.weights)
        optimizer.step()
        measured.synchronise()
        measured.figures["full_step_seconds"] = significant(time.perf_counter() - begin)
        measured.figures["full_step_peak_gb"] = measured.end_peak()
        count = sum(p.numel() for p in policy.weights.parameters.values())
        measured.figures |= {"full_step_weights": count, "full_step_formula_gb": gb(16 * count)}
        after = [p.detach().flatten()[:64] for p in policy.weights.parameters.values()]
        alike = sum(torch.equal(one, other) for one, other in zip(before, after, strict=True))
        measured.identity("tensors_that_did_not_move", alike / len(before), 0.05)
        _checkpoint(measured, policy)


def updated(measured: Measurement, policy: Any, rollout: Any) -> None:
    """Adds the gradient of one update with advantages of -1 to 1."""
    count = rollout.num_samples
    batch = batch_of(rollout, measured.device)
    for parameter in policy.weights.parameters.values():
        parameter.grad = None
    updater = Updater(policy, Grpo(clip_low=0.2, clip_high=0.2), processes_of(measured), count)
    views = updater.loss.views(rollout, torch.arange(count), GroupKey(0, 0, 0))
    updater.accumulate(rollout, views, batch, "itself")


def _checkpoint(measured: Measurement, policy: Any) -> None:
    """Measures the writing of the trained weights."""
    if not measured.has_time("a checkpoint", 0 if measured.is_tiny else 30):
        return
    tensors = policy.weights.tensors("trained")
    size = sum(t.numel() * t.element_size() for t in tensors.values())
    with tempfile.TemporaryDirectory(prefix="mmrl-checkpoint-") as folder:
        begin = time.perf_counter()
        save(Path(folder), Checkpoint(0, {"trained": {name: tensor.cpu() for name, tensor in tensors.items()}}, {}))
        seconds = time.perf_counter() - begin
    measured.figures |= {
        "checkpoint_gb": gb(size),
        "checkpoint_seconds": significant(seconds),
        "checkpoint_gb_per_second": significant(size / 1e9 / seconds),
    }


# sharded weights


def mesh_of_one_and_server(measured: Measurement) -> None:
    """Measures weights that are sharded over one process, with and without resharding, against the same unsharded."""
    policy: Any = qwen(measured, lora=lora(16, is_tiny=measured.is_tiny), gradient_checkpointing=True)
    tiny = measured.is_tiny
    prompt = prompt_of(policy, 40 if tiny else 600, 56 if tiny else 560)
    count, tokens = (2, 4) if tiny else (8, 64)
    plain = answers_of(policy, prompt, count, tokens)
    updated(measured, policy, plain)
    whole = [p.grad.detach().clone() for p in policy.weights.parameters.values() if p.grad is not None]
    measured.figures["unsharded"] = _sampled(measured, policy, prompt, count, tokens)
    with _one_process(measured):
        trained = shard(list(policy.modules().values()), policy.networks(), policy.weights.parameters, 1)
        policy.weights.shard(trained)
        policy._placement = replace(policy._placement, maximum=lambda number: number)
        for case, reshards in (("resharding", True), ("kept whole", False)):
            _set_resharding(policy._model, reshards)
            if measured.has_time(case, 0 if tiny else 20):
                measured.figures[case] = _sampled(measured, policy, prompt, count, tokens)
        _set_resharding(policy._model, True)
        updated(measured, policy, plain)
        parts = [p.grad.to_local() for p in policy.weights.parameters.values() if p.grad is not None]
        most = 1e-5 if measured.dtype == torch.float32 else 0.02
        measured.identity("gradient_sharded_1_minus_cosine", 1 - cosine(parts, whole), most)
        sampled = policy.rollout([prompt], [AnswerPlan(count, tokens)], [GroupKey(0, 0, 0)])
        first = (sampled.trace.completions.log_prob[:, 0] - plain.trace.completions.log_prob[:, 0]).abs().max()
        measured.identity("first_log_prob_sharded_difference", float(first), 1e-4 if most < 1e-4 else 0.2)
    what = "a vLLM server beside the run"
    measured.skipped[what] = "vllm is not installed" if not is_installed("vllm") else "this suite starts none yet"


def _sampled(measured: Measurement, policy: Any, prompt: Any, count: int, tokens: int) -> dict[str, Any]:
    answers_of(policy, prompt, count, 2)  # warm
    measured.begin_peak()
    seconds = measured.seconds(lambda: answers_of(policy, prompt, count, tokens), warm=0)
    return {"ms_a_token": significant(1000 * seconds / tokens), "peak_gb": measured.end_peak()}


def _set_resharding(model: torch.nn.Module, reshards: bool) -> None:
    from torch.distributed.fsdp import FSDPModule

    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.set_reshard_after_forward(reshards, recurse=False)


@contextmanager
def _one_process(measured: Measurement) -> Iterator[None]:
    """Makes this process a group of its own, by NCCL on a GPU and gloo elsewhere."""
    import torch.distributed as dist

    backend = "nccl" if measured.is_cuda else "gloo"
    library: Any = dist
    library.init_process_group(backend, store=library.HashStore(), rank=0, world_size=1)
    try:
        yield
    finally:
        library.destroy_process_group()
