"""`mmrl train --resume` of a run that is done: recognised by its files, before anything heavy is imported."""

from pathlib import Path
from typing import Any

from mmrl.commands.summary import Outcome
from mmrl.core.config import RunConfig, load_config
from mmrl.reporting.metrics_log import MetricsLog
from mmrl.reporting.report import write_report
from mmrl.run_directory import checkpoint_files, start
from mmrl.run_directory.lock import RunLock
from mmrl.run_directory.manifest import MANIFEST, check_files
from mmrl.run_directory.saved_state import Progress, check_state
from mmrl.system.errors import ConfigError
from mmrl.system.files import read_json

FOR_MODELS = ("trackers", "sharding")  # of what a resumed run may change: only a run itself knows whether they work


def finish(config: RunConfig, folder: Path) -> Outcome | None:
    """Cleans up a run with nothing left to train, and writes settings and report anew, as resuming it would.

    Returns None, with nothing changed, where something is left to train, to evaluate or to mend: that needs the model.
    """
    summary = _summary(config, folder)
    if summary is None:
        return None
    with RunLock(folder.absolute()).held():
        checkpoint_files.recover(folder / "checkpoints")
        start.update_config(folder, config)
        write_report(folder)
    return Outcome(folder, summary, is_complete=True)


def _summary(config: RunConfig, folder: Path) -> dict[str, Any] | None:
    """Returns summary.json of a run that is done and whose files are whole; None for any other run."""
    try:
        newest = checkpoint_files.latest(folder / "checkpoints")
        if newest is None or not (newest / MANIFEST).exists():
            return None
        progress = check_state(checkpoint_files.read_state(newest), newest).progress
        if not _is_done(config, progress):
            return None
        before, summary = load_config(folder / "config.yaml"), read_json(folder / "summary.json")
        metrics = MetricsLog(folder / "metrics.jsonl")
        lines, _ = metrics.count_up_to(progress.iteration)
        is_whole = lines == progress.logged == len(metrics.read())
        check_files(newest)  # last: it reads all of the weights
    except ConfigError:
        return None
    is_same = all(getattr(before, key) == getattr(config, key) for key in FOR_MODELS)
    is_recorded = isinstance(summary, dict) and summary.get("is_complete") is True
    if not (is_whole and is_same and is_recorded):
        return None
    return summary if summary.get("iterations") == progress.iteration else None


def _is_done(config: RunConfig, now: Progress) -> bool:
    is_evaluated = config.evaluation is None or now.evaluated == now.iteration
    is_over = now.iteration < config.iterations and now.is_over(config)
    return is_evaluated and (now.iteration == config.iterations or is_over)
