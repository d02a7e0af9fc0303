"""Bytes of live tensors."""

import pytest
import torch

from mmrl.system.live_tensors import LiveTensors


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_each_storage_counts_once_and_until_it_is_freed(device: str) -> None:
    given = torch.zeros(100, 100, device=device)
    with LiveTensors() as live:
        flat = given.view(-1)
        assert live.now == 0  # it was there before
        made = given + 1
        assert live.now == 40_000
        part = made[:50]
        del made
        assert live.now == 40_000  # the part needs the whole
        del part
        assert live.now == 0
        small = flat[:10] * 2
        small.add_(1)
    assert (live.now, live.peak) == (40, 40_000)
