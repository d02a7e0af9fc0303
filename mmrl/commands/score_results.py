"""Scored outputs: as a table, as rows, and the best of each group."""

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
    """The outputs of a folder or file with their scores."""

    items: list[Item]
    scores: Scores  # values NaN where a reward could not judge
    first_failures: tuple[str | None, ...]  # R

    @property
    def total(self) -> list[float | None]:
        """Returns the mixed rewards; None for an output that a reward with a weight could not judge."""
        pairs = zip(self.scores.total.tolist(), self.scores.valid.tolist(), strict=True)
        return [value if is_valid else None for value, is_valid in pairs]

    def __str__(self) -> str:
        """Returns a table for a terminal."""
        shown = self.summary()
        heads = ("mean", "std", "min", "max", "failed")
        rows = [["reward", *heads]]
        for name, statistics in shown["scores"].items():
            ends = (
                [f"{statistics[head]:.4g}" for head in heads[:-1]]
                if statistics["mean"] is not None
                else [NONE_JUDGED, *"---"]
            )
            rows.append([name, *ends, str(statistics["failed"])])
        widths = [max(8 if n else 0, *map(len, column)) for n, column in enumerate(zip(*rows, strict=True))]
        table = [
            "  ".join([f"{row[0]:{widths[0]}}", *(f"{cell:>{n}}" for cell, n in zip(row[1:], widths[1:], strict=True))])
            for row in rows
        ]
        about = f"{many(shown['outputs'], 'output')} in {many(shown['groups'], 'group')}"
        return "\n".join([about, "", *table, *self.failures()])

    def failures(self) -> list[str]:
        """Returns a sentence for each reward that could not judge an output: its first failure."""
        return [f"could not be judged, the first: {failure}" for failure in self.first_failures if failure]

    def summary(self) -> dict[str, Any]:
        """Returns mean, std, ends and number of failures of each reward, and of their total where there are several."""
        columns = dict(zip(self.scores.names, self.scores.values.unbind(1), strict=True))
        scores = {name: _statistics(values) for name, values in columns.items()}
        if len(columns) > 1:
            scores["total"] = _statistics(torch.where(self.scores.valid, self.scores.total, torch.nan))
        return {"outputs": len(self.items), "groups": len(self.scores.group.unique()), "scores": scores}

    def rows(self) -> list[dict[str, Any]]:
        """Returns one object for each output, as JSON has it."""
        listed = []
        for row, (item, total) in enumerate(zip(self.items, self.total, strict=True)):
            values = self.scores.values[row].tolist()
            scores = {n: v if math.isfinite(v) else None for n, v in zip(self.scores.names, values, strict=True)}
            response = {} if item.text is None else {"response": item.text}
            group = int(self.scores.group[row])
            listed.append(
                {
                    "name": item.name,
                    "prompt": item.prompt.text,
                    **response,
                    "group": group,
                    "scores": scores,
                    "total": total,
                }
            )
        return listed

    def best(self) -> list[int]:
        """Returns the row of the best output of each group, the first of several that are equally good (best of n)."""
        best: dict[int, int] = {}
        totals = [-math.inf if total is None else total for total in self.total]
        for row, group in enumerate(self.scores.group.tolist()):
            if totals[row] > -math.inf and (group not in best or totals[row] > totals[best[group]]):
                best[group] = row
        return [best[group] for group in sorted(best)]


@dataclass(frozen=True)
class Seeing:
    """The settings of how outputs become what rewards score."""

    coordinates: Convention = "original"
    dialect: DialectName | None = None
    num_frames: int | None = None  # of a video, evenly spread; None: all

    @classmethod
    def checked(cls, coordinates: str, dialect: str | None, num_frames: int | None) -> "Seeing":
        """Returns the settings of a user's texts. Raises ConfigError for an unknown unit or dialect."""
        for name, value, known in (
            ("coordinates", coordinates, ("original", "thousand", "unit")),
            ("dialect", dialect, tuple(DIALECTS)),
        ):
            if value is not None and value not in known:
                raise ConfigError(f"--{name}: unknown {value!r}{did_you_mean(value, known)}")
        return cls(cast(Convention, coordinates), cast("DialectName | None", dialect), num_frames)


def many(count: int, what: str) -> str:
    """Returns a number of things in words, such as 1 sample and 2 samples."""
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
    """Returns the texts with canvases and actions; a run's own canvases hold, its actions where no dialect is named."""
    outputs = answered(
        [item.prompt for item in items],
        [item.text or "" for item in items],
        coordinates=seeing.coordinates,
        dialect=seeing.dialect,
        canvases=[item.canvas for item in items],
    )
    if seeing.dialect is not None or any(item.actions is None for item in items):
        return outputs
    return replace(outputs, actions=tuple(action for item in items for action in item.actions or ()))
