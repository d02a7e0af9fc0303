"""What the files of a run say beside its numbers: why it ended before its last iteration, and where it has none."""

from collections.abc import Iterator
from pathlib import Path

from mmrl.core.config import RunConfig
from mmrl.reporting.findings import Finding
from mmrl.reporting.record import Record, RunFailure
from mmrl.run_directory.checkpoint_files import saved
from mmrl.run_directory.lock import RunLock
from mmrl.system.errors import DivergedWeightsError, UnjudgedError

LEARNED_FROM = ("reward/", "loss/", "held_out/")  # begin the names of numbers that a run cannot do without


def of_record(run: Path, record: Record, config: RunConfig) -> Iterator[Finding]:
    """Yields the findings on a run directory that no rule on its curves can see."""
    yield from _ended(run, record, config)
    yield from _without_numbers(record)


def of_failure(failure: RunFailure, iteration: int, config: RunConfig) -> Finding | None:
    """Returns the finding on an error that ended a run in an iteration; None for one that names its remedy itself."""
    if failure.kind == UnjudgedError.__name__:
        is_of_policy = "NaN or infinity" in failure.reason  # in what it made
        remedy = "lower optimizer.learning_rate by 10" if is_of_policy else "mend the reward by its message"
        return Finding(iteration, "rewards_fail", "fatal", failure.reason, None, remedy)
    if failure.kind == DivergedWeightsError.__name__:
        rate = config.optimizer.learning_rate
        remedy = f"lower optimizer.learning_rate (it is {rate:g}) by 10; set optimizer.max_grad_norm where it is null"
        return Finding(iteration, "learning_rate_too_high", "fatal", failure.reason, rate, remedy)
    return None


def _ended(run: Path, record: Record, config: RunConfig) -> Iterator[Finding]:
    iteration, wanted = record.span[1], config.iterations
    if (iteration >= wanted and record.failure is None) or RunLock(run.absolute()).is_taken:
        return
    summary = record.summary if record.summary.get("iterations") == iteration else {}  # or of an earlier start
    resume = f"mmrl train --resume {run}"
    begun = f"{resume} {_begins(run)}"
    if record.failure is not None:
        how, remedy = f"an error ended it: {record.failure.reason}", f"once its cause is mended, {begun}"
        if (cause := of_failure(record.failure, iteration + 1, config)) is not None:
            yield cause
            how = f"an error ended it: that of {cause.name}"
            if cause.name == "learning_rate_too_high":
                remedy = "train anew with the remedy of that finding: a run that goes on keeps its learning rate"
    elif summary.get("is_complete"):
        how, remedy = f"a limit of its own ended it ({_limits(config)})", "raise that limit, or take it as the end"
    elif summary:
        how, remedy = "it was stopped, and saved", f"{resume} goes on"
    else:
        how = "its process left no summary: an error, a kill, memory, or the machine ended it"
        remedy = f"look at what it printed last; once the cause is mended, {begun}"
    yield Finding(
        iteration,
        "ended_early",
        "note",
        f"the run has {iteration} of {wanted} iterations: {how}",
        iteration / wanted,
        remedy,
    )


def _begins(run: Path) -> str:
    newest = max(saved(run / "checkpoints"), default=None)
    return "begins again: nothing was saved" if newest is None else f"goes on from its checkpoint of {newest}"


def _limits(config: RunConfig) -> str:
    """Returns the settings that may end a run before its last iteration."""
    evaluation = config.evaluation
    limits = {
        "max_seconds": config.max_seconds,
        "evaluation.stop_after": None if evaluation is None else evaluation.stop_after,
        "evaluation.max_kl": None if evaluation is None else evaluation.max_kl,
    }
    return ", ".join(f"{name} {limit:g}" for name, limit in limits.items() if limit is not None) or "it has none now"


def _without_numbers(record: Record) -> Iterator[Finding]:
    """Yields a finding where numbers that a run learns from were NaN or infinite each time."""
    names = sorted(
        name
        for name, series in record.metrics.items()
        if name.startswith(LEARNED_FROM) and series.num_not_finite == len(series.values)
    )
    if names:
        cause = f"each value of {', '.join(names[:5])}{', ...' if len(names) > 5 else ''} is NaN or infinite"
        remedy = (
            "look at your own reward, loss or model (the root, log or norm of 0); precision: float32 where one "
            "overflows; `mmrl doctor CONFIG` examines the first iteration"
        )
        yield Finding(record.span[1], "never_finite", "fatal", cause, float(len(names)), remedy)
