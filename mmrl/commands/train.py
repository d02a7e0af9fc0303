"""The commands train, evaluate and export, and how a run is restored for them."""

import json
import logging
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import asdict, replace
from pathlib import Path
from types import FrameType
from typing import Any, Literal

from mmrl.assembly import batches
from mmrl.assembly.build import build, closing, make_trainer
from mmrl.assembly.compatibility import Parts, final_weights
from mmrl.commands.model_card import write_card
from mmrl.commands.summary import Outcome, better_iteration, summary_of
from mmrl.core.config import RolloutSettings, RunConfig, load_config, near_config, shipped_names
from mmrl.core.contracts import ConfigError, RunError
from mmrl.core.data import WeightsName
from mmrl.core.weights import Weights
from mmrl.diagnosis.watch import Watch
from mmrl.prompts.filtering import warn_cut
from mmrl.prompts.stream import mixture
from mmrl.reporting import trackers
from mmrl.reporting.group_log import GroupLog
from mmrl.reporting.metrics_log import MetricsLog
from mmrl.reporting.record import FAILURE, RunFailure
from mmrl.reporting.report import write_report
from mmrl.reporting.tracking import Tracking
from mmrl.run_directory import checkpoint_files, start
from mmrl.run_directory.lock import RunLock
from mmrl.run_directory.saved_state import check_state
from mmrl.scoring.scorer import Scorer
from mmrl.system.errors import describe, in_one_line
from mmrl.system.files import replace_file, whole_folder
from mmrl.system.last_resort import LastResort
from mmrl.system.progress_bars import Counter, TrainingBar
from mmrl.system.versions import version_of
from mmrl.training import checkpoint
from mmrl.training.callbacks import Callback, Callbacks
from mmrl.training.checkpoint import Checkpoint
from mmrl.training.examination import Examination
from mmrl.training.held_out import Result, uncounted
from mmrl.training.trainer import Trainer

log = logging.getLogger(__name__)
EVALUATED = ("evaluation.", "prompts.held_out", "scoring.", "modality.engine")  # what an evaluation of a run may change


def train(
    config: RunConfig,
    folder: Path,
    *,
    resume: bool = False,
    is_main: bool = True,
    last_resort: LastResort | None = None,
    callbacks: Sequence[Callback] = (),
    examination: Examination | None = None,
) -> Outcome:
    """Trains into the run directory `folder`, whose config.yaml stands there already.

    Args:
        resume: goes on from the newest whole checkpoint as if the run had not stopped: the same metrics and the same
            weights, bit for bit on a CPU. A run without a checkpoint begins again.
        is_main: whether this process is the one of the run that writes, and holds the lock of the directory.
        last_resort: ends the process where something hangs in it.
        callbacks: code of the user's own, called at the events of the run.
        examination: measures for the doctor, of all processes.
    Raises:
        ConfigError: the input cannot work. RunError: the run failed. KeyboardInterrupt: a Ctrl-C came before there was
            anything to keep. A run directory that holds nothing but the new config.yaml is then removed.
    """
    path = folder.absolute()  # a reward may change the working folder
    lock = RunLock(path)
    with lock.held() if is_main else nullcontext():
        try:
            check_lock = lock.check if is_main else None
            settings_kept = start.settings_of(path, config) if is_main else {}  # before the long build
            parts = build(config)
            with closing(parts.policy):
                return _train(
                    config,
                    parts,
                    folder,
                    resume,
                    settings_kept,
                    check_lock,
                    last_resort,
                    Callbacks(callbacks),
                    examination,
                )
        except (ConfigError, RunError, KeyboardInterrupt):
            if not resume and path.is_dir():
                start.forget(path)
            raise


def _train(
    config: RunConfig,
    parts: Parts,
    folder: Path,
    resume: bool,
    settings_kept: dict[str, Any],
    check_lock: Callable[[], None] | None,
    last_resort: LastResort | None,
    callbacks: Callbacks,
    examination: Examination | None,
) -> Outcome:
    path = folder.absolute()  # a reward may change the working folder
    run_trackers = [trackers.build(one) for one in config.trackers]
    trainer = make_trainer(config, parts, path)
    numbers = batches.numbers_of(config, trainer.config)
    config, trainer.callbacks, trainer.examination = trainer.config, callbacks, examination
    # a default name holds the time, which may be another on each process
    (trainer.folder,) = trainer.processes.gather([path] if trainer.processes.is_main else [])
    trainer.check_lock = check_lock or trainer.check_lock
    saved = _restore_newest(trainer) if resume else None
    if trainer.progress.iteration > config.iterations:
        raise ConfigError(
            f"{folder} has {trainer.progress.iteration} iterations already, got iterations={config.iterations}"
        )
    kept = trainer.progress.iteration if saved is not None else -1
    is_evaluated = trainer.progress.evaluated == trainer.progress.iteration
    if trainer.processes.is_main:
        shown = ("reward/mean", "held_out/score")
        bar = TrainingBar(config.iterations, done=trainer.progress.iteration, every=5, shown=shown)
        bar.say(_beginning(trainer, folder))
        metrics = MetricsLog(path / "metrics.jsonl")
        if numbers:
            start.write_settings(path, numbers)
            settings_kept = {**settings_kept, **numbers}
            bar.say(f"by the forecast of memory: {', '.join(f'{key} {size}' for key, size in numbers.items())}")
        for remark in _remarks(trainer, saved, metrics):
            bar.say(remark)
        trainer.tracking = Tracking(metrics, run_trackers, bar, GroupLog(path / "groups.jsonl"))
        _warn_cut(trainer)
    settings = config.model_dump(mode="json")
    if last_resort is not None:
        last_resort.guard([scorer.patience for scorer in _scorers(trainer)])
    tracking = trainer.tracking.open(path, settings, kept, is_evaluated=is_evaluated)
    with tracking, _stop_on_signal(trainer, last_resort) as received, _leaving_its_failure(trainer, path):
        if trainer.processes.is_main:
            if (path / FAILURE).is_dir():
                raise ConfigError(f"{path / FAILURE} is a folder, where a run writes a file; remove it")
            (path / FAILURE).unlink(missing_ok=True)  # of an earlier start
            if resume:  # only now: settings that fail must not stay in the run directory
                start.update_config(path, config)
            trainer.settings = settings_kept
            if examination is None:  # else the doctor says it all at the end
                trainer.watch = Watch(path, config)
                trainer.watch.open(kept)
        is_complete = trainer.train()
    summary = summary_of(trainer, is_complete)
    has_numbers = is_complete or trainer.progress.iteration > 0 or trainer.progress.evaluated is not None
    if trainer.processes.is_main and has_numbers:
        replace_file(path / "summary.json", (json.dumps(summary, indent=2) + "\n").encode())
        write_report(path)
    trainer.processes.wait()
    trainer.end(is_complete)
    if signal.SIGINT in received and not has_numbers:
        raise KeyboardInterrupt
    return Outcome(folder, summary, is_complete)


@contextmanager
def _leaving_its_failure(trainer: Trainer, path: Path) -> Iterator[None]:
    """Writes why the block failed into the run directory, for the doctor and the report; the error goes on."""
    try:
        yield
    except Exception as error:
        if trainer.processes.is_main:
            # a disk that fails, or a directory that another process took, stays as it is
            with suppress(OSError, RunError):
                trainer.check_lock()
                replace_file(path / FAILURE, (json.dumps(asdict(failure_of(error))) + "\n").encode())
        raise


def failure_of(error: Exception) -> RunFailure:
    """Returns an error that ended a run as its files name it."""
    reason = str(error) if isinstance(error, ConfigError | RunError) else describe(error)
    return RunFailure(type(error).__name__, in_one_line(reason))


def _scorers(trainer: Trainer) -> list[Scorer]:
    evaluators = [*trainer.also_evaluated.values(), *([] if trainer.evaluator is None else [trainer.evaluator])]
    return [trainer.collector.scorer, *(evaluator.scorer for evaluator in evaluators)]


def _restore_newest(trainer: Trainer) -> Checkpoint | None:
    """Restores the newest whole checkpoint, the same on all processes; returns it, or None where none was saved.

    Newer damaged ones are named and set aside. Raises ConfigError where all are damaged.
    """
    folder, processes, chosen = trainer.folder / "checkpoints", trainer.processes, list[Path | None]()
    loaded: Checkpoint | None = None
    with processes.lockstep():
        if processes.is_main:
            if not folder.is_dir() and (folder.exists() or folder.is_symlink()):
                raise ConfigError(f"{folder} is no folder that is there: the run's checkpoints cannot be read")
            checkpoint.recover(folder)
            loaded, damaged = checkpoint.newest_whole(folder)
            whole = None if loaded is None else loaded.path
            for path, error in damaged.items():
                if whole is None:
                    raise ConfigError(
                        f"{error}; no checkpoint of {trainer.folder} is whole, so it cannot go on"
                    ) from error
                aside = checkpoint_files.set_aside(path)
                log.warning("%s; it was set aside as %s, and the run goes on from %s", error, aside.name, whole.name)
            if whole is None:
                _refuse_lost(trainer)
            chosen = [whole]
    (newest,) = processes.gather(chosen)
    if newest is None:
        return None
    loaded = loaded or checkpoint.load(newest, is_checked=True)
    trainer.collector.prompts.check_same(loaded.state["prompts"])
    trainer.restore(loaded)
    return loaded


def _refuse_lost(trainer: Trainer) -> None:
    """Raises ConfigError where a run without a checkpoint must have had one: training anew would delete its metrics.

    Warns where the run was stopped before its first checkpoint, since its metrics are then replaced.
    """
    numbers = MetricsLog(trainer.folder / "metrics.jsonl").read()
    newest = max((line["iteration"] for line in numbers), default=0)
    before = load_config(trainer.folder / "config.yaml")  # this start may have changed it
    is_saved = newest > (before.checkpoint.every or before.iterations) or (trainer.folder / "summary.json").exists()
    if newest > 0 and is_saved:
        raise ConfigError(
            f"{trainer.folder} has numbers up to iteration {newest} and no checkpoint to go on from: "
            f"its folder checkpoints is missing or was emptied; put it back, or train anew with another --out"
        )
    if newest > 0:
        log.warning("the run was stopped at iteration %d, before its first checkpoint: it begins again", newest)


def _remarks(trainer: Trainer, saved: Checkpoint | None, metrics: MetricsLog) -> Iterator[str]:
    """Yields what a user should know of a run that goes on from a checkpoint, a line each."""
    if saved is None:
        return
    now = trainer.progress
    lines, iterations = metrics.count_up_to(now.iteration, is_evaluated=now.evaluated == now.iteration)
    is_counted = "logged" in saved.state["progress"]  # not before lines were
    missing = now.logged - lines if is_counted else now.iteration - iterations
    if missing > 0:
        what = "line is" if missing == 1 else "lines are"
        yield f"{metrics.path.name}: {missing} {what} missing of those up to iteration {now.iteration}; the run goes on"
    now.logged = lines
    if saved.state.get("settings") is None:
        yield "its checkpoint is of an older mmrl, which kept no settings: whether config.yaml changed cannot be known"
    elif (version := saved.state.get("mmrl")) != version_of("mmrl"):
        yield f"its checkpoint was written by mmrl {version}, this is {version_of('mmrl')}"


def _warn_cut(trainer: Trainer, *, is_trained: bool = True) -> None:
    """Warns of prompts that the policy cuts: held-out ones, and with `is_trained` those of training."""
    if is_trained:
        sources = [source for source, _ in mixture(trainer.config.prompts.train)]
        for source, prompts in zip(sources, trainer.collector.prompts.sets, strict=True):
            warn_cut(trainer.policy, prompts, source)
    if trainer.evaluator is not None:
        warn_cut(trainer.policy, trainer.evaluator.prompts, trainer.config.prompts.held_out)


def _beginning(trainer: Trainer, folder: Path) -> str:
    """Returns one line that says what starts, in which directory and on which device."""
    import torch

    processes, done, total = trainer.processes, trainer.progress.iteration, trainer.config.iterations
    where = str(processes.device)
    if processes.device.type == "cpu":
        where += f" with {torch.get_num_threads()} thread{'s' if torch.get_num_threads() > 1 else ''}"
    if processes.num_processes > 1:
        where += f" in each of {processes.num_processes} processes"
    first = ", the held-out prompts first" if trainer.evaluator is not None and done == 0 else ""
    steps = f"iterations {done + 1} to {total}" if done < total else f"all {total} iterations are done"
    return f"{folder}: {steps}, on {where}{first}"


@contextmanager
def restored(
    source: str,
    which: WeightsName | None = None,
    at: Literal["last", "best"] = "last",
    overrides: Sequence[str] = (),
    *,
    is_whole: bool = False,
) -> Iterator[tuple[Trainer, WeightsName]]:
    """Yields the trainer of a run at its last or best checkpoint (or of a config, untrained), and the weights to use.

    The policy is closed at the end.

    Args:
        source: a run directory, or a config. which: the weights; None: those that the run evaluates.
        overrides: `key.sub=value` texts. is_whole: each process holds all of the weights, whatever the run did.
    Raises:
        ConfigError: there is no such run, checkpoint or copy of the weights.
    """
    folder, has_run = Path(source), is_run(source)
    saved = checkpoint_beside(folder, at) if has_run else None  # first: an edited config.yaml is named by its keys
    config = config_of(source, overrides)
    config = config.model_copy(update={"rollout": RolloutSettings()})  # nothing is sampled ahead
    if is_whole:
        config = config.model_copy(update={"sharding": "none"})
    parts = build(config)
    with closing(parts.policy):
        trainer = make_trainer(config, parts, folder)
        if saved is not None:
            trainer.restore(saved)
            if at == "last" and trainer.processes.is_main:
                _report_better(trainer)
        yield trainer, weights_of(source, which, config, trainer.policy.weights)


def weights_of(source: str, which: WeightsName | None, config: RunConfig, weights: Weights) -> WeightsName:
    """Returns which weights of a run, or of a config, are used; `which` None: those that a run evaluates.

    Raises ConfigError where they are not there.
    """
    name = which or (final_weights(config) if is_run(source) else "trained")
    if not weights.has(name):
        raise ConfigError(f"{source} keeps no {name!r} weights; it has {', '.join(['trained', *weights.kept])}")
    return name


def _report_better(trainer: Trainer) -> None:
    """Warns where an earlier saved checkpoint has a better held-out score than the last one, which is used."""
    now = trainer.progress
    better = better_iteration(now.best, now.best_iteration, now.latest)
    if better is None or now.best_iteration not in checkpoint_files.saved(trainer.folder / "checkpoints"):
        return
    if now.before is not None and now.best is not None and now.best <= now.before:
        return  # the model before training was better than all
    log.warning(
        "these are the last weights, of iteration %d, with %.3f on the held-out prompts; "
        "%s: --checkpoint best takes it",
        *(now.iteration, now.latest, better),
    )


def evaluate(
    source: str,
    which: WeightsName | None = None,
    at: Literal["last", "best"] = "last",
    overrides: Sequence[str] = (),
) -> Result:
    """Evaluates the weights of a run, or of an untrained config, on the held-out prompts.

    `overrides` change settings of a config; of a run they change only how it is evaluated (`EVALUATED`). Raises
    ConfigError for other overrides, and where there is no evaluation section.
    """
    refuse_others(source, overrides)
    with restored(source, which, at, overrides) as (trainer, weights):
        if trainer.evaluator is None:
            raise ConfigError(f"{source} has no evaluation section")
        if trainer.processes.is_main:
            _warn_cut(trainer, is_trained=False)
        evaluator = replace(trainer.evaluator, weights=weights)
        return evaluator(counting=Counter.on_stderr if trainer.processes.is_main else uncounted)


def export(source: str, out: Path, which: WeightsName | None = None, at: Literal["last", "best"] = "last") -> Path:
    """Writes the weights of a run as other tools load them: a plain folder of diffusers or transformers, or a LoRA.

    The folder `out` also gets a model card, README.md, whose code loads and uses the weights with the settings of the
    run.
    Raises ConfigError where there is no such run, or `out` holds something already; RunError where it cannot be
    written.
    """
    if not (Path(source) / "config.yaml").is_file():
        raise ConfigError(f"there is no run directory {source!r}: it has no config.yaml")
    refuse_full(out)
    from safetensors import SafetensorError

    with restored(source, which, at, is_whole=True) as (trainer, weights):
        if trainer.processes.is_main:
            with trainer.policy.weights(weights), whole_folder(out) as unfinished:
                try:
                    trainer.policy.export(unfinished)
                except SafetensorError as error:
                    raise RunError(f"cannot write {out}: {error}; make room on the disk") from error
                write_card(trainer, Path(source), weights, unfinished)
        trainer.processes.wait()
    return out


def is_run(source: str) -> bool:
    """Returns whether a source is a run directory, and no config."""
    return (Path(source) / "config.yaml").is_file()


def config_of(source: str, overrides: Sequence[str] = ()) -> RunConfig:
    """Returns the config of a run directory, a file or a shipped name. Raises ConfigError where there is none."""
    folder = Path(source)
    if folder.is_dir() and not is_run(source) and source not in shipped_names():
        raise ConfigError(f"there is no run in {folder}: it has no config.yaml")
    if not folder.exists() and source not in shipped_names():
        hint = near_config(source)
        raise ConfigError(f"there is no run {source!r}, and no config, neither a file nor a shipped name{hint}")
    return load_config(folder / "config.yaml" if is_run(source) else source, overrides)


def refuse_others(source: str, overrides: Sequence[str]) -> None:
    """Raises ConfigError for overrides of a run that change more than how it is evaluated."""
    for override in overrides if is_run(source) else ():
        if not override.startswith(EVALUATED):
            raise ConfigError(f"of a run only {', '.join(EVALUATED)} may be overridden here, got {override!r}")


def refuse_full(out: Path) -> None:
    """Raises ConfigError for a folder that holds something already, or cannot be written."""
    try:
        out.resolve()
    except (OSError, RuntimeError) as error:  # a link to itself
        raise ConfigError(f"nothing can be written to {out}: {error}") from error
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ConfigError(f"{out} exists and is not an empty folder; give another with --out")


def checkpoint_beside(folder: Path, at: Literal["last", "best"]) -> Checkpoint:
    """Loads the last or best checkpoint of a run beside which a training may go on, which deletes old checkpoints."""
    while True:
        path = checkpoint_of(folder, at)
        try:
            start.refuse_edits(folder, path, EVALUATED)
            return checkpoint.load(path)
        except ConfigError:
            if path.is_dir():
                raise


def checkpoint_of(folder: Path, at: Literal["last", "best"]) -> Path:
    """Returns the last or best checkpoint of a run. Raises ConfigError where there is none."""
    last = checkpoint_files.latest(folder / "checkpoints")
    if last is None:
        raise ConfigError(f"{folder} holds no checkpoint yet")
    if at == "last":
        return last
    best = check_state(checkpoint_files.read_state(last), last).progress.best_iteration
    if best is None:
        raise ConfigError(f"{folder} has no best checkpoint: it was not evaluated after training began")
    saved = checkpoint_files.saved(folder / "checkpoints")
    if best not in saved:
        raise ConfigError(f"the best iteration of {folder}, {best}, was not saved; saved are {sorted(saved)}")
    return saved[best]


@contextmanager
def _stop_on_signal(trainer: Trainer, last_resort: LastResort | None) -> Iterator[list[int]]:
    """Ends the run after the iteration at hand, with a checkpoint, on the first Ctrl-C or SIGTERM; at once on the
    second.

    Where the exception of the second hangs, the last resort ends the process. An evaluation ends before its next chunk,
    and is made again on resume. Yields the list of the signals received so far.
    """
    received: list[int] = []
    process = os.getpid()

    def request_stop(number: int, frame: FrameType | None) -> None:
        if os.getpid() != process:  # one that a reward forked, as multiprocessing does for a pool
            _end_child(number)
            return
        received.append(number)
        if trainer.stop_requested:
            if last_resort is not None:
                last_resort.stop_soon()
            raise KeyboardInterrupt
        trainer.stop_requested = True
        if trainer.processes.is_main:
            # not print: the signal may have come in the middle of one
            os.write(
                2,
                b"\nstopping: all is saved after this iteration, without an evaluation; again: it stops at once\n",
            )

    before = {number: signal.signal(number, request_stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _end_child(number: int) -> None:
    """Handles a signal in a forked process: SIGTERM ends it, Ctrl-C is left to the run, which ends its children."""
    if number == signal.SIGTERM:
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
