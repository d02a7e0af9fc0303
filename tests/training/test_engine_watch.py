"""The warning of an engine that samples by other weights: when it is given, when not, and that it is given once."""

import logging
from collections.abc import Sequence

import pytest

from mmrl.training.engine_watch import FAR, EngineWatch


def warnings(differences: Sequence[float], caplog: pytest.LogCaptureFixture) -> list[str]:
    caplog.clear()
    watch = EngineWatch()
    with caplog.at_level(logging.WARNING):
        for difference in differences:
            watch.see({"engine/difference": difference})
    return [record.getMessage() for record in caplog.records]


def test_it_warns_of_what_real_servers_did_wrong_and_of_nothing_else(caplog: pytest.LogCaptureFixture) -> None:
    # a server on a CPU that kept the old head, over 60 iterations; a healthy one in float32; one in bfloat16
    (old_head,) = warnings([7e-7, 1.6e-3, 5e-3, 1.2e-2], caplog)
    assert "rose from 7e-07 to 0.0016 nats" in old_head and "does not take all of the weights" in old_head
    assert not warnings([7.0e-7, 9.4e-7, 1.1e-6], caplog)
    assert not warnings([2.6e-3, 4.3e-3, 5.2e-3], caplog)


def test_other_weights_from_the_start_are_far(caplog: pytest.LogCaptureFixture) -> None:
    (far,) = warnings([9.3e-2, 0.2], caplog)
    assert "is 0.093 nats" in far and str(FAR) in far


def test_runs_without_an_engine_are_not_watched(caplog: pytest.LogCaptureFixture) -> None:
    EngineWatch().see({"reward/mean": 1.0})
    assert not caplog.records
