"""Each fault of tests/diagnosis/faults.py is named in the lab where it is planted, and not in the same run without it.

`python -m benchmarks.doctor planted` plants every one in both labs; here each stands in the lab that its threshold was
not set on, where that takes seconds.
"""

import pytest

from mmrl.diagnosis.rules import RULES
from tests.diagnosis.faults import FAULTS, Fault

LONG = {"entropy_collapsed", "answers_unreadable", "groups_without_spread"}  # in the other lab, or by the script alone


def test_every_fault_has_a_finding_and_each_is_planted_in_two_configs() -> None:
    assert len(FAULTS) >= 25 and {one.finding for one in FAULTS} <= {*RULES, "batch_below_recipe", "nothing_is_shared"}
    assert all(first.config != second.config for first, second in (one.labs for one in FAULTS))


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS, ids=lambda one: one.finding)
def test_a_planted_fault_is_named_and_nothing_without_it(fault: Fault) -> None:
    named, healthy = fault.seen(int(fault.finding not in LONG))
    assert fault.finding in named and fault.finding not in healthy
