"""What a stock pipeline makes by itself: `pipeline(...)` as diffusers' users call it. Nothing of the driver is here."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from .results import media_of


def stock_run(pipeline: Any, arguments: Mapping[str, Any]) -> tuple[Tensor, list[Tensor]]:
    """Returns what the pipeline makes, [n, ...] in [0, 1], and the samples of its first step, one for each part.

    Args:
        pipeline: of diffusers, with the scheduler to step with. arguments: of its call.
    """
    seen: list[list[Tensor]] = []
    with _with_recorded_steps(pipeline.scheduler, seen), torch.no_grad():
        result = pipeline(**arguments)
    return media_of(result).float(), seen[0]


@contextmanager
def _with_recorded_steps(scheduler: Any, seen: list[list[Tensor]]) -> Iterator[None]:
    """Collects the samples that are given to the steps of a scheduler and of its copies, by timestep."""
    kind = type(scheduler)
    times: dict[float, list[Tensor]] = {}

    def step(self: Any, model_output: Any, timestep: Any, sample: Tensor, *args: Any, **kwargs: Any) -> Any:
        first = times.setdefault(float(timestep), [])
        if not seen:
            seen.append(first)
        first.append(sample.detach().clone())
        return kind.step(self, model_output, timestep, sample, *args, **kwargs)

    scheduler.__class__ = type(kind.__name__, (kind,), {"step": step})
    try:
        yield
    finally:
        scheduler.__class__ = kind
