"""The findings of a run, `findings.jsonl`: what may be wrong, why, and what to do."""

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mmrl.reporting.formatting import number, shown_text
from mmrl.reporting.record import read_bytes

FILE = "findings.jsonl"
SEVERITIES = ("fatal", "warning", "note")  # from the worst to the least
MAX_SHOWN = 60


@dataclass(frozen=True)
class Finding:
    """One thing that a run noticed about itself."""

    iteration: int
    name: str
    severity: str
    cause: str
    value: float | str | None
    remedy: str


def read_findings(run: Path) -> list[Finding]:
    """Returns the findings of a run, oldest first; [] where it has none. Lines that are none are left out."""
    file = run / FILE
    return findings_of(read_bytes(file).splitlines()) if file.is_file() else []


def findings_of(lines: Iterable[bytes]) -> list[Finding]:
    """Returns the findings of whole lines; a line that a kill cut short, and any other, is left out."""
    return [finding for line in lines if (finding := _finding(line)) is not None]


def _finding(line: bytes) -> Finding | None:
    try:
        entry: Any = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(entry, dict) or not isinstance(entry.get("iteration"), int):
        return None
    value, severity = entry.get("value"), entry.get("severity")
    return Finding(
        iteration=entry["iteration"],
        name=str(entry.get("name", "")),
        severity=severity if severity in SEVERITIES else "note",
        cause=str(entry.get("cause", "")),
        value=value if isinstance(value, int | float | str) and not isinstance(value, bool) else None,
        remedy=str(entry.get("remedy", "")),
    )


def in_order(findings: Iterable[Finding]) -> list[Finding]:
    """Returns the findings in the order of reading: the worst first, and of one severity the earliest, a likely cause
    of those after it.
    """
    return sorted(findings, key=lambda one: (SEVERITIES.index(one.severity), one.iteration))


def findings_list(findings: Sequence[Finding]) -> str:
    """Returns the findings as HTML, in the order of reading; empty where there are none."""
    if not findings:
        return ""
    more = len(findings) - MAX_SHOWN
    rest = f'<p class="about">{more} more stand in findings.jsonl.</p>' if more > 0 else ""
    return f'<ul class="findings">{"".join(map(_item, in_order(findings)[:MAX_SHOWN]))}</ul>{rest}'


def _item(finding: Finding) -> str:
    value = ""
    if finding.value is not None:
        shown = number(finding.value) if isinstance(finding.value, int | float) else shown_text(finding.value)
        value = f'<span class="value">value {shown}</span>'
    when = f"iteration {finding.iteration}" if finding.iteration >= 0 else ""
    remedy = f'<p class="remedy"><i>Remedy</i>{_with_code(finding.remedy)}</p>' if finding.remedy else ""
    return (
        f'<li class="card finding {finding.severity}"><p class="head"><span class="badge {finding.severity}">'
        f"{finding.severity}</span><code>{shown_text(finding.name)}</code>{value}"
        f'<span class="when">{when}</span></p><p class="cause"><i>Cause</i>{_with_code(finding.cause)}</p>{remedy}</li>'
    )


def _with_code(text: str) -> str:
    """Returns a text as HTML, what stands between backticks as code."""
    return re.sub("`([^`]+)`", r"<code>\1</code>", shown_text(text))
