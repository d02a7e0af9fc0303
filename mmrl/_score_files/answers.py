"""Answers as outputs that rewards judge: with what their run knew of them, or what the command line says."""

from collections.abc import Sequence
from dataclasses import replace

from mmrl._score_files.items import Item
from mmrl._score_files.reckoning import Seeing
from mmrl.data import Outputs
from mmrl.judging import answered


def outputs_of(items: Sequence[Item], seeing: Seeing) -> Outputs:
    """The texts with canvases and actions; a run's own hold, its actions where no dialect is named."""
    found = answered(
        [item.prompt for item in items],
        [item.text or "" for item in items],
        coordinates=seeing.coordinates,
        dialect=seeing.dialect,
        canvases=[item.canvas for item in items],
    )
    if seeing.dialect is not None or any(item.actions is None for item in items):
        return found
    return replace(found, actions=tuple(action for item in items for action in item.actions or ()))
