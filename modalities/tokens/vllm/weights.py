"""Weights for a server: fingerprints, which show whether weights changed, and a temporary folder."""

import atexit
import fcntl
import os
import shutil
from collections.abc import Iterable
from contextlib import suppress
from functools import cache
from pathlib import Path
from tempfile import gettempdir, mkdtemp

import torch
from torch import Tensor

from mmrl.core.weights import local

_CHUNK = 2**24  # elements of one step
_MIX = (-7046029254386353131, -4658895280553007687)  # odd; multiplied by them, counted numbers look random in 64 bits


@torch.no_grad()
def fingerprint(tensors: Iterable[Tensor]) -> tuple[int, ...]:
    """Returns a number for each tensor; equal tuples mean equal weights, bit for bit. Of a shard it counts itself.

    The number is the sum of all elements' bits times random 64-bit weights of their places, modulo 2^64: two different
    tensors share it with a probability of about 2^-64. Copies would be exact, at the price of their memory.
    """
    sums = [_sum(tensor) for tensor in tensors]
    return tuple(torch.stack([value.cpu() for value in sums]).tolist()) if sums else ()


def _sum(tensor: Tensor) -> Tensor:
    whole = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[tensor.element_size()]
    bits = local(tensor.detach()).contiguous().view(whole).flatten()
    total = torch.zeros((), dtype=torch.int64, device=bits.device)
    for start in range(0, len(bits), _CHUNK):
        part = bits[start : start + _CHUNK].long()
        place = torch.arange(start + 1, start + 1 + len(part), device=bits.device) * _MIX[0]
        weight = (place ^ (place >> 29)) * _MIX[1]
        total += (part * (weight | 1)).sum()  # integers wrap around
    return total


PREFIX = "mmrl-weights-"
_LOCK = "lock"  # locked until the process ends, in whatever way


@cache
def temporary_folder() -> Path:
    """Makes a folder for this process, which is removed when the process ends."""
    _remove_left(Path(gettempdir()))
    folder = Path(mkdtemp(prefix=PREFIX))
    handle = os.open(folder / f".{_LOCK}", os.O_RDWR | os.O_CREAT, 0o600)  # open to the end of the process
    with suppress(OSError):  # a disk without such locks: folders left there stay
        fcntl.flock(handle, fcntl.LOCK_EX)
    (folder / f".{_LOCK}").rename(folder / _LOCK)  # the file has this name only once it is locked
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def _remove_left(place: Path) -> None:
    """Removes the folders in `place` whose process has ended."""
    for folder in place.glob(f"{PREFIX}*"):
        with suppress(OSError):  # it is locked, another user's, or gone
            handle = os.open(folder / _LOCK, os.O_RDWR)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(handle)
