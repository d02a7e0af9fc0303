"""What a rule of the doctor returns."""

from collections.abc import Callable
from dataclasses import dataclass

from mmrl.diagnosis.history import History


@dataclass(frozen=True)
class Symptom:
    """What a rule saw, before it is a finding of an iteration."""

    severity: str  # note, warning or fatal
    cause: str
    value: float
    remedy: str


Rule = Callable[[History], Symptom | None]
