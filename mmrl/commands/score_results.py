"""Outputs with what rewards say of them: as a table, as rows, and the best of each group."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from torch import Tensor

from mmrl.commands.score_items import Item
from mmrl.core.contracts import ConfigError
from mmrl.core.data import Outputs, Scores
from mmrl.parsing.actions.dialects import DIALECTS, DialectName
from mmrl.parsing.coordinates import Convention
from mmrl.scoring.standalone import answered
from mmrl.system.spelling import did_you_mean

NONE_JUDGED = "none judged"  # stands for the mean of a reward that could judge no output


@dataclass(frozen=True)
class Reckoning:
    """The outputs of a folder or file and what the rewards say of them."""

    items: list[Item]
    scores: Scores  # values NaN where a reward could not judge
    first_failures: tuple[str | None, ...]  # R

    @property
    def total(self) -> list[float | None]:
        """The rewards mixed; None for an output that a reward which counts could not judge."""
        pairs = zip(self.scores.total.tolist(), self.scores.valid.tolist(), strict=True)
        return [value if is_valid else None for value, is_valid in pairs]

    def __str__(self) -> str:
        """A table for a terminal."""
        shown = self.summary()
        heads = ("mean", "std", "min", "max", "failed")
        rows = [["reward", *heads]]
        for name, said in shown["scores"].items():
            ends = [f"{said[head]:.4g}" for head in heads[:-1]] if said["mean"] is not None else [NONE_JUDGED, *"---"]
            rows.append([name, *ends, str(said["failed"])])
        widths = [max(8 if n else 0, *map(len, column)) for n, column in enumerate(zip(*rows, strict=True))]
        table = [
            "  ".join([f"{row[0]:{widths[0]}}", *(f"{cell:>{n}}" for cell, n in zip(row[1:], widths[1:], strict=True))])
            for row in rows
        ]
        about = f"{_many(shown['outputs'], 'output')} in {_many(shown['groups'], 'group')}"
        return "\n".join([about, "", *table, *self.failures()])

    def failures(self) -> list[str]:
        """Why each reward that could not judge an output could not, in words: the first of its failures."""
        return [f"could not be judged, the first: {failure}" for failure in self.first_failures if failure]

    def summary(self) -> dict[str, Any]:
        """For each reward, and for their total where there are several: mean, std, ends, and how many it failed on."""
        columns = dict(zip(self.scores.names, self.scores.values.unbind(1), strict=True))
        found = {name: _statistics(values) for name, values in columns.items()}
        if len(columns) > 1:
            found["total"] = _statistics(torch.where(self.scores.valid, self.scores.total, torch.nan))
        return {"outputs": len(self.items), "groups": len(self.scores.group.unique()), "scores": found}

    def rows(self) -> list[dict[str, Any]]:
        """One object for each output, as JSON has it."""
        listed = []
        for row, (item, total) in enumerate(zip(self.items, self.total, strict=True)):
            values = self.scores.values[row].tolist()
            scores = {n: v if math.isfinite(v) else None for n, v in zip(self.scores.names, values, strict=True)}
            said = {} if item.text is None else {"response": item.text}
            group = int(self.scores.group[row])
            listed.append(
                {
                    "name": item.name,
                    "prompt": item.prompt.text,
                    **said,
                    "group": group,
                    "scores": scores,
                    "total": total,
                }
            )
        return listed

    def best(self) -> list[int]:
        """The row of the best output of each group, the first of several that are equally good (best of n)."""
        found: dict[int, int] = {}
        totals = [-math.inf if total is None else total for total in self.total]
        for row, group in enumerate(self.scores.group.tolist()):
            if totals[row] > -math.inf and (group not in found or totals[row] > totals[found[group]]):
                found[group] = row
        return [found[group] for group in sorted(found)]


@dataclass(frozen=True)
class Seeing:
    """How outputs become what rewards see."""

    coordinates: Convention = "original"
    dialect: DialectName | None = None
    num_frames: int = 16  # of a video, evenly spread

    @classmethod
    def checked(cls, coordinates: str, dialect: str | None, num_frames: int) -> "Seeing":
        """Of texts from a user. Raises ConfigError for an unknown unit or dialect."""
        for name, given, known in (
            ("coordinates", coordinates, ("original", "thousand", "unit")),
            ("dialect", dialect, tuple(DIALECTS)),
        ):
            if given is not None and given not in known:
                raise ConfigError(f"--{name}: unknown {given!r}{did_you_mean(given, known)}")
        return cls(cast(Convention, coordinates), cast("DialectName | None", dialect), num_frames)


def _many(count: int, what: str) -> str:
    return f"{count} {what}" + ("" if count == 1 else "s")


def _statistics(values: Tensor) -> dict[str, Any]:
    judged = values[~values.isnan()].double()
    if not len(judged):
        return {"mean": None, "std": None, "min": None, "max": None, "failed": len(values)}
    return {
        "mean": float(judged.mean()),
        "std": float(judged.std(unbiased=False)),
        "min": float(judged.min()),
        "max": float(judged.max()),
        "failed": len(values) - len(judged),
    }


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
