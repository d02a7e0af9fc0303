"""What the commands do: train, resume, evaluate, export."""

import json
import os
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Literal

from mmrl import checkpoint, start, trackers
from mmrl.config import RunConfig, load_config, near_config, shipped_names
from mmrl.contracts import ConfigError, RunError
from mmrl.data import WeightsName
from mmrl.evaluation import Result
from mmrl.pairs import final_weights
from mmrl.parts import build, make_trainer
from mmrl.report import write_report
from mmrl.summary import Outcome, summary_of
from mmrl.tracking import MetricsLog, Tracking
from mmrl.tracking import Progress as ProgressBar
from mmrl.trainer import Trainer

EVALUATED = ("evaluation.", "prompts.held_out", "scoring.", "modality.engine")  # what an evaluation of a run may change


def train(config: RunConfig, folder: Path, *, resume: bool = False) -> Outcome:
    """Trains into the run directory `folder`, whose config.yaml is there already.

    With `resume` it goes on from the latest checkpoint (from the start where none was saved yet) as if it had not
    stopped: the same metrics and the same weights, bit for bit on a CPU.

    Raises ConfigError for input that cannot work, RunError where the run fails, KeyboardInterrupt for a Ctrl-C before
    there is anything to keep; a run directory in which nothing but the new config.yaml stands is then removed.
    """
    try:
        return _train(config, folder, resume)
    except (ConfigError, RunError, KeyboardInterrupt):
        if not resume and folder.is_dir():
            start.forget(folder)
        raise


def _train(config: RunConfig, folder: Path, resume: bool) -> Outcome:
    parts, watchers = build(config), [trackers.build(one) for one in config.trackers]
    trainer = make_trainer(config, parts, folder)
    saved = checkpoint.latest(folder / "checkpoints") if resume else None
    if saved is not None:
        loaded = checkpoint.load(saved)
        trainer.collector.prompts.check_same(loaded.state["prompts"])
        trainer.restore(loaded)
    if trainer.progress.iteration > config.iterations:
        raise ConfigError(
            f"{folder} has {trainer.progress.iteration} iterations already, got iterations={config.iterations}"
        )
    if trainer.engine.is_main:
        shown = ("reward/mean", "held_out/score")
        bar = ProgressBar(config.iterations, done=trainer.progress.iteration, every=5, shown=shown)
        bar.say(_beginning(trainer))
        trainer.tracking = Tracking(MetricsLog(folder / "metrics.jsonl"), watchers, bar)
    kept = trainer.progress.iteration if saved is not None else -1
    is_evaluated = trainer.progress.evaluated == trainer.progress.iteration
    settings = config.model_dump(mode="json")
    with trainer.tracking.open(folder, settings, kept, is_evaluated=is_evaluated), _stop_on_signal(trainer) as received:
        if trainer.engine.is_main and resume:  # only now: settings that fail must not stay in the run directory
            start.write_config(folder, config)
        is_complete = trainer.train()
    summary = summary_of(trainer, is_complete)
    has_numbers = is_complete or trainer.progress.iteration > 0 or trainer.progress.evaluated is not None
    if trainer.engine.is_main and has_numbers:
        text = json.dumps(summary, indent=2)
        (folder / "summary.json").write_text(text + "\n", encoding="utf-8")
        write_report(folder)
    trainer.engine.wait()
    if signal.SIGINT in received and not has_numbers:
        raise KeyboardInterrupt
    return Outcome(folder, summary, is_complete)


def _beginning(trainer: Trainer) -> str:
    """What starts and where, in one line."""
    import torch

    engine, done, total = trainer.engine, trainer.progress.iteration, trainer.config.iterations
    where = str(engine.device)
    if engine.device.type == "cpu":
        where += f" with {torch.get_num_threads()} thread{'s' if torch.get_num_threads() > 1 else ''}"
    if engine.num_processes > 1:
        where += f" in each of {engine.num_processes} processes"
    first = ", the held-out prompts first" if trainer.evaluator is not None and done == 0 else ""
    steps = f"iterations {done + 1} to {total}" if done < total else f"all {total} iterations are done"
    return f"{trainer.folder}: {steps}, on {where}{first}"


def restored(
    source: str,
    which: WeightsName | None = None,
    at: Literal["last", "best"] = "last",
    overrides: Sequence[str] = (),
    *,
    is_whole: bool = False,
) -> tuple[Trainer, WeightsName]:
    """A run's trainer at its last or best checkpoint (or that of a config, untrained), and the weights to use.

    `is_whole`: each process holds all of the weights, whatever the run did.
    Raises ConfigError where there is no such run, checkpoint or copy of the weights.
    """
    folder, is_run, config = Path(source), _is_run(source), config_of(source, overrides)
    if is_whole:
        config = config.model_copy(update={"sharding": "none"})
    trainer = make_trainer(config, build(config), folder)
    if is_run:
        trainer.restore(checkpoint.load(_checkpoint_of(folder, at)))
    weights = which or (final_weights(config) if is_run else "trained")
    if not trainer.policy.weights.has(weights):
        present = ", ".join(["trained", *trainer.policy.weights.kept])
        raise ConfigError(f"{source} keeps no {weights!r} weights; it has {present}")
    return trainer, weights


def evaluate(
    source: str,
    which: WeightsName | None = None,
    at: Literal["last", "best"] = "last",
    overrides: Sequence[str] = (),
) -> Result:
    """Held-out evaluation of a run's weights, or of an untrained config.

    `overrides` change settings of a config, and of a run how it is evaluated (`EVALUATED`). Raises ConfigError for
    others.
    """
    refuse_others(source, overrides)
    trainer, weights = restored(source, which, at, overrides)
    if trainer.evaluator is None:
        raise ConfigError(f"{source} has no evaluation section")
    return replace(trainer.evaluator, weights=weights)()


def export(source: str, out: Path, which: WeightsName | None = None, at: Literal["last", "best"] = "last") -> Path:
    """Writes a run's weights as other tools load them: a plain folder of diffusers or transformers, or a LoRA."""
    if not (Path(source) / "config.yaml").is_file():
        raise ConfigError(f"there is no run directory {source!r}: it has no config.yaml")
    refuse_full(out)
    trainer, weights = restored(source, which, at, is_whole=True)
    if trainer.engine.is_main:
        with trainer.policy.weights(weights):
            trainer.policy.export(out)
    trainer.engine.wait()
    return out


def _is_run(source: str) -> bool:
    return (Path(source) / "config.yaml").is_file()


def config_of(source: str, overrides: Sequence[str] = ()) -> RunConfig:
    """The config of a run, or one by its name or file."""
    folder = Path(source)
    if folder.is_dir() and not _is_run(source) and source not in shipped_names():
        raise ConfigError(f"there is no run in {folder}: it has no config.yaml")
    if not folder.exists() and source not in shipped_names():
        hint = near_config(source)
        raise ConfigError(f"there is no run {source!r}, and no config, neither a file nor a shipped name{hint}")
    return load_config(folder / "config.yaml" if _is_run(source) else source, overrides)


def refuse_others(source: str, overrides: Sequence[str]) -> None:
    """Raises ConfigError for overrides of a run that change more than how it is evaluated."""
    for override in overrides if _is_run(source) else ():
        if not override.startswith(EVALUATED):
            raise ConfigError(f"of a run only {', '.join(EVALUATED)} may be overridden here, got {override!r}")


def refuse_full(out: Path) -> None:
    """Raises ConfigError for a folder that holds something already."""
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ConfigError(f"{out} exists and is not an empty folder; give another with --out")


def _checkpoint_of(folder: Path, at: Literal["last", "best"]) -> Path:
    last = checkpoint.latest(folder / "checkpoints")
    if last is None:
        raise ConfigError(f"{folder} holds no checkpoint yet")
    if at == "last":
        return last
    best = checkpoint.load(last).state["progress"]["best_iteration"]
    if best is None:
        raise ConfigError(f"{folder} has no best checkpoint: it was not evaluated after training began")
    found = checkpoint.saved(folder / "checkpoints")
    if best not in found:
        raise ConfigError(f"the best iteration of {folder}, {best}, was not saved; saved are {sorted(found)}")
    return found[best]


@contextmanager
def _stop_on_signal(trainer: Trainer) -> Iterator[list[int]]:
    """The first Ctrl-C or SIGTERM ends the run after the iteration at hand, with a checkpoint; the second at once.

    An evaluation is left before its next chunk, and made again on resume. Gives the signals received so far.
    """
    received: list[int] = []

    def ask(number: int, frame: FrameType | None) -> None:
        received.append(number)
        if trainer.stop_requested:
            raise KeyboardInterrupt
        trainer.stop_requested = True
        if trainer.engine.is_main:
            # not print: the signal may have come in the middle of one
            os.write(
                2,
                b"\nstopping: an iteration is finished, an evaluation left; then all is saved; once more: at once\n",
            )

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
