"""The doctor's rules on the log of a run. Each reads a handful of numbers, so that all run after every iteration.

A threshold without a source of its own was set on the runs of docs/curves.md, on a healthy run and a sick one of the
same config; tests/diagnosis/test_rules.py reads both again.
"""

from mmrl.diagnosis import (
    answer_rules,
    balance_rules,
    examination_rules,
    learning_rules,
    reward_rules,
    sample_rules,
    setup_rules,
    time_rules,
)
from mmrl.diagnosis.history import History
from mmrl.diagnosis.symptoms import Rule
from mmrl.reporting.findings import Finding

RULES: dict[str, Rule] = {  # what causes others first
    **learning_rules.RULES,
    **answer_rules.RULES,
    **reward_rules.RULES,
    **balance_rules.RULES,
    **time_rules.RULES,
    **setup_rules.RULES,
    **examination_rules.RULES,
    **sample_rules.RULES,
}


def findings_of(history: History) -> list[Finding]:
    """Returns all findings on the newest iteration of a history, in the order of the rules."""
    seen = ((name, rule(history)) for name, rule in RULES.items())
    return [
        Finding(history.iteration, name, one.severity, one.cause, one.value, one.remedy) for name, one in seen if one
    ]


def all_findings(history: History) -> list[Finding]:
    """Returns the first finding of each name and severity over a whole run, as a run that watched itself has them."""
    found: dict[tuple[str, str], Finding] = {}
    known = History(history.config)
    for iteration, metrics in history.by_iteration().items():
        known.add(iteration, metrics)
        for one in findings_of(known):
            found.setdefault((one.name, one.severity), one)
    return list(found.values())
