"""The metrics of a run while it trains: its logs, trackers by name, and a progress bar."""

import math
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from mmrl.reporting.group_log import GroupLog
from mmrl.reporting.metrics_log import MetricsLog
from mmrl.reporting.trackers import Tracker
from mmrl.system.progress_bars import Counter, TrainingBar


@dataclass(frozen=True)
class Tracking:
    """The log, the trackers and the progress bar of a run. Without parts, as on all processes but the main
    one, it does nothing.
    """

    metrics: MetricsLog | None = None
    trackers: Sequence[Tracker] = ()
    progress: TrainingBar | None = None
    groups: GroupLog | None = None
    _opened: ExitStack = field(default_factory=ExitStack, init=False, repr=False)

    def open(self, folder: Path, config: Mapping[str, Any], kept: int = -1, *, is_evaluated: bool = True) -> Self:
        """Starts all parts for the run directory `folder`; numbers after iteration `kept` (-1: all) are dropped.

        `is_evaluated`: as for `MetricsLog.cut_back`.
        Raises ConfigError where a tracker's package is missing or refuses the run; then nothing stays open.
        """
        with ExitStack() as opened:
            if self.metrics is not None:
                self.metrics.cut_back(kept, is_evaluated=is_evaluated)
            if self.groups is not None:
                self.groups.cut_back(kept)
            for tracker in self.trackers:
                tracker.open(folder, config, kept)
                opened.callback(tracker.close)
            if self.progress is not None:
                opened.callback(self.progress.close)
            self._opened.push(opened.pop_all())
        return self

    def log(self, iteration: int, metrics: Mapping[str, float]) -> None:
        """Passes on the metrics of an iteration; trackers get the finite ones."""
        if self.metrics is not None:
            self.metrics.write(iteration, metrics)
        finite = {name: float(value) for name, value in metrics.items() if math.isfinite(value)}
        for tracker in self.trackers:
            tracker.log(iteration, finite)
        if self.progress is not None:
            self.progress.update(iteration, metrics)

    def images(self, iteration: int, name: str, paths: Sequence[Path]) -> None:
        """Shows image files in the trackers."""
        for tracker in self.trackers:
            tracker.images(iteration, name, paths)

    def counter(self, what: str, total: int) -> Counter:
        """Returns a counter of prompts of which `what` is done; it is shown with the bar, where there is one."""
        return Counter(what, total, None) if self.progress is None else self.progress.counter(what, total)

    def sync(self) -> None:
        """Flushes the log to the disk; to be called before a checkpoint is saved."""
        for one in (self.metrics, self.groups):
            if one is not None:
                one.sync()

    def close(self) -> None:
        """Closes every part, even where one fails; a second call does nothing."""
        self._opened.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
