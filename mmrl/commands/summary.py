"""How a training run ended: the numbers of its summary.json, and the lines that are printed about them."""

import platform
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mmrl.run_directory import checkpoint_files
from mmrl.system.versions import version_of

if TYPE_CHECKING:
    from mmrl.training.trainer import Trainer

REPORTED = ("mmrl", "torch", "diffusers", "transformers", "peft", "accelerate", "numpy")


@dataclass(frozen=True)
class Outcome:
    """The end of a training run: its numbers, and whether it is complete."""

    folder: Path
    summary: dict[str, Any]
    is_complete: bool  # False: stopped by a signal, to be resumed

    def __str__(self) -> str:
        """Returns what improved and where to look, in one line, and in a further line what else to know."""
        held_out, seconds = self.summary["held_out"], self.summary["train_seconds"]
        where = f"report: {self.folder / 'report.html'}{self._better_line()}"
        if not self.is_complete and not self.summary["iterations"]:
            return f"stopped before the first iteration; begin again with: mmrl train --resume {self.folder}"
        if not self.is_complete:
            return (
                f"stopped after iteration {self.summary['iterations']}; go on with: mmrl train --resume {self.folder}"
            )
        if 2 * (idle := self.summary["idle_iterations"]) >= self.summary["iterations"] > 0:
            where += (
                f"\nnothing could be learned in {idle} of {self.summary['iterations']} iterations: in every group all "
                "samples scored alike; see the rewards in the report, and what the samples look like"
            )
        if held_out["before"] is None:
            return f"{self.summary['iterations']} iterations in {seconds:.0f} s of training; {where}"
        change = f"held-out {held_out['name']} {held_out['before']:.3f} -> {held_out['after']:.3f}"
        for key, other in self.summary.items():
            if key.startswith("held_out_") and other["after"] is not None:
                change += f", {key.removeprefix('held_out_')} {other['before']:.3f} -> {other['after']:.3f}"
        return f"{change} after {self.summary['iterations']} iterations, {seconds:.0f} s of training; {where}"

    def _better_line(self) -> str:
        """Returns a line that names a better earlier iteration, and the command that exports it; else ''."""
        held_out = self.summary["held_out"]
        better = better_iteration(held_out["best"], held_out["best_iteration"], held_out["after"])
        if better is None:
            return ""
        if held_out["before"] is not None and held_out["best"] <= held_out["before"]:
            return f"\nno iteration was better than the model before training: mmrl doctor {self.folder}"
        if held_out["best_iteration"] not in checkpoint_files.saved(self.folder / "checkpoints"):
            return f"\n{better}; it was not saved (checkpoint.every is 0)"
        return f"\n{better}: mmrl export {self.folder} --checkpoint best"


def better_iteration(best: float | None, best_iteration: int | None, last: float | None) -> str | None:
    """Returns a sentence that names the iteration with the best held-out score; None where the last is as good."""
    if best is None or last is None or best <= last:
        return None
    return f"iteration {best_iteration} was better than the last, {best:.3f} on the held-out prompts"


def summary_of(trainer: "Trainer", is_complete: bool) -> dict[str, Any]:
    """Returns the numbers of a run that has just ended, as summary.json holds them."""
    progress, evaluator = trainer.progress, trainer.evaluator
    name = "+".join(term.name for term in evaluator.scorer.terms) if evaluator is not None else None
    after = progress.latest if progress.evaluated else None  # a run that was stopped may have evaluated its start alone
    return {
        "held_out": {
            "name": name,
            "before": progress.before,
            "after": after,
            "after_iteration": progress.evaluated or None,
            "best": progress.best,
            "best_iteration": progress.best_iteration,
        },
        **{
            f"held_out_{other}": {
                "before": before,
                "after": progress.others_latest[other] if after is not None else None,
            }
            for other, before in progress.others_before.items()
        },
        "iterations": progress.iteration,
        "idle_iterations": progress.idle,
        "is_complete": is_complete,
        "train_seconds": round(progress.train_seconds, 3),
        "network_calls": progress.network_calls,
        "processes": trainer.processes.num_processes,
        "device": str(trainer.processes.device),
        "versions": {"python": platform.python_version()} | {name: version_of(name) for name in REPORTED},
    }
