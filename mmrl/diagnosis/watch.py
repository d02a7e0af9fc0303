"""The doctor in a training run: each new finding is said once, in the terminal, and kept in `findings.jsonl`."""

import json
import logging
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from mmrl.core.config import RunConfig
from mmrl.diagnosis.history import History
from mmrl.diagnosis.rules import findings_of
from mmrl.reporting.findings import FILE, read_findings
from mmrl.reporting.metrics_log import MetricsLog, append_line

log = logging.getLogger(__name__)


@dataclass
class Watch:
    """Reads the metrics of a run as they come. Only the main process has one."""

    folder: Path
    config: RunConfig
    history: History = field(init=False)
    seen: set[tuple[str, str]] = field(default_factory=set)  # name and severity

    def __post_init__(self) -> None:
        self.history = History(self.config)

    def open(self, kept: int) -> None:
        """Takes up the log of metrics, which is cut back before, and drops findings after the iteration `kept`."""
        MetricsLog(self.folder / FILE).cut_back(kept)
        self.history, self.seen = History(self.config), {(one.name, one.severity) for one in read_findings(self.folder)}
        for line in MetricsLog(self.folder / "metrics.jsonl").read():
            self.history.add_line(line)

    def see(self, iteration: int, metrics: Mapping[str, float]) -> None:
        """Takes the metrics of an iteration or evaluation; warns of what is new, and keeps it.

        Raises RunError where the disk is full.
        """
        self.history.add(iteration, metrics)
        for finding in findings_of(self.history):
            if (finding.name, finding.severity) in self.seen:
                continue
            self.seen.add((finding.name, finding.severity))
            append_line(self.folder / FILE, json.dumps(asdict(finding), allow_nan=False).encode() + b"\n")
            if finding.severity != "note":
                log.warning("%s: %s; %s", finding.name, finding.cause, finding.remedy)
