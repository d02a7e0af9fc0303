"""Modular pipelines of diffusers: blocks that hand a state on. Some models exist as nothing else."""

import copy
from collections.abc import Sequence
from typing import Any


def with_gradients(pipeline: Any) -> Any:
    """Returns a shallow copy of a modular pipeline whose blocks can have gradients.

    Each block's call switches autograd off, so that what a block does to a prediction would have no gradient.
    """
    made = copy.copy(pipeline)
    made.__dict__["_blocks"] = _with_gradients(pipeline._blocks)
    return made


def inputs_of(pipeline: Any) -> frozenset[str]:
    """Returns the names of what a modular pipeline's call takes."""
    return frozenset(item.name for item in pipeline._blocks.inputs if item.name) | {"output"}


def without_blocks(pipeline: Any, names: Sequence[str]) -> Any:
    """Takes blocks out of a modular pipeline. Raises ValueError for a name of none."""
    for name in names:
        if name not in pipeline._blocks.sub_blocks:
            known = ", ".join(pipeline._blocks.sub_blocks)
            raise ValueError(f"it has no block {name!r}; its blocks are {known}")
        pipeline._blocks.sub_blocks.pop(name)
    return pipeline


def _with_gradients(blocks: Any) -> Any:
    made, kind = copy.copy(blocks), type(blocks)
    call = getattr(kind.__call__, "__wrapped__", None)
    if call is not None:
        made.__class__ = type(kind.__name__, (kind,), {"__call__": call})
    if hasattr(made, "set_progress_bar_config"):
        made.set_progress_bar_config(disable=True)
    if getattr(blocks, "sub_blocks", None):
        below = blocks.sub_blocks
        made.sub_blocks = type(below)((name, _with_gradients(block)) for name, block in below.items())
    return made
