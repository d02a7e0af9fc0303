"""Each fault of tests/diagnosis/faults.py is named in the labs where it is planted, and not in the same runs without.

Here some stand in the lab that their threshold was not set on; the exhaustive tests, and `benchmarks/doctor.py
planted`, plant every one in both.
"""

import pytest

from mmrl.diagnosis.rules import RULES
from tests.diagnosis.faults import FAULTS, Fault

QUICK = {  # seconds, and of each kind of rule one or two
    "answers_unfinished",
    "groups_missing",
    "images_shrunk",
    "learning_rate_too_high",
    "never_clips",
    "no_gradient",
    "ratio_off_at_start",
    "reference_differs_at_start",
    "warmup_too_long",
}


def test_every_fault_has_a_finding_and_each_is_planted_in_two_configs() -> None:
    known = {*RULES, "batch_below_recipe", "nothing_is_shared"}
    assert len({one.finding for one in FAULTS}) >= 25 and {one.finding for one in FAULTS} <= known
    assert all(first.config != second.config for first, second in (one.labs for one in FAULTS))


@pytest.mark.slow
@pytest.mark.parametrize("finding", sorted(QUICK))
def test_a_fault_is_named_in_a_lab_that_set_no_threshold_and_nothing_without_it(finding: str) -> None:
    check(next(one for one in FAULTS if one.finding == finding), 1)


@pytest.mark.exhaustive
@pytest.mark.parametrize("number", [0, 1])
@pytest.mark.parametrize("fault", FAULTS, ids=lambda one: one.finding)
def test_a_fault_is_named_in_both_labs(fault: Fault, number: int) -> None:
    check(fault, number)


def check(fault: Fault, number: int) -> None:
    sick, healthy = fault.seen(number)
    assert fault.finding in sick and fault.finding not in healthy
