"""Rewards of the numbers of a click, each at its own tokens: functions for `python` with granularity segment."""

import re
from collections.abc import Sequence
from typing import Any

from mmrl.labs.screens.world import CLICK

MARKS = (",", ")")  # what ends the number across, and the number down


def ends(batch: Any) -> list[list[float]]:
    """Returns for each token whether it ends a number of the click: the first comma, and the bracket that closes it.

    The last token ends the rest of the answer.
    """
    return [
        [float(token in (*places, len(pieces) - 1)) for token in range(len(pieces))]
        for pieces, places in _placed(batch)
    ]


def across(batch: Any) -> list[list[float]]:
    """Returns 1 at the end of the first number where it is inside of the box from left to right, else 0."""
    return _scores(batch, 0)


def down(batch: Any) -> list[list[float]]:
    """Returns 1 at the end of the second number where it is inside of the box from top to bottom, else 0."""
    return _scores(batch, 1)


def steps(batch: Any) -> list[list[float]]:
    """Returns at the end of each number of the click whether it is inside of the box, and at the last token whether the
    answer is a whole click: a process reward of three steps, 1 or 0.
    """
    found = []
    for (pieces, _), *numbers in zip(_placed(batch), across(batch), down(batch), strict=True):
        row = [max(both) for both in zip(*numbers, strict=True)]
        found.append([*row[:-1], float(CLICK.search("".join(pieces)) is not None)])
    return found


def _scores(batch: Any, axis: int) -> list[list[float]]:
    found = []
    for (pieces, places), prompt in zip(_placed(batch), batch.prompts, strict=True):
        numbers = re.search(r"\(([0-9]{1,3}), ([0-9]{1,3})\)", "".join(pieces))
        box = prompt.target["box"]
        is_inside = numbers is not None and box[axis] <= int(numbers.group(axis + 1)) < box[axis + 2]
        found.append([float(is_inside and token == places[axis]) for token in range(len(pieces))])
    return found


def _placed(batch: Any) -> list[tuple[Sequence[str], tuple[int, int]]]:
    """Returns the texts of the tokens of each answer, with the places where its two numbers end; -1 for none."""
    return [
        (pieces, tuple(next((n for n, piece in enumerate(pieces) if mark in piece), -1) for mark in MARKS))  # type: ignore[misc]  # two marks
        for pieces in batch.outputs.pieces
    ]
