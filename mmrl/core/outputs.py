"""The outputs of samples: images, videos, answers, and facts about them."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal

import torch
from torch import Tensor

from mmrl.parsing.actions.action import Action
from mmrl.parsing.coordinates import Canvas

# How an episode ended: the environment ended it; it reached the limit of turns; too many answers in a row were no
# action; the environment broke or hung.
Outcome = Literal["done", "turn_limit", "invalid_limit", "failed"]


@dataclass(frozen=True)
class Outputs:
    """The outputs of B samples. A field is None where the samples have no such output."""

    images: Tensor | None = None  # [B, 3, H, W] in [0, 1], RGB
    videos: Tensor | None = None  # [B, F, 3, H, W] in [0, 1], RGB
    texts: tuple[str, ...] | None = None  # B answers, without the end token
    is_finished: Tensor | None = None  # [B] bool: the answer ended by itself; False: it was cut at the token limit
    num_tokens: Tensor | None = None  # [B] int64: length of the answers, the end token included
    # B: the text of each token of an answer; joined, they are the answer. The end token has an empty text. A character
    # that several tokens make belongs to the last of them.
    pieces: tuple[tuple[str, ...], ...] | None = None
    canvases: tuple[Canvas | None, ...] | None = None  # B: the first image of the prompt and the unit of coordinates
    actions: tuple[Action | None, ...] | None = None  # B: the action that an answer names; None: not understood
    step_rewards: Tensor | None = None  # [B] float32: the environment's reward for the turn's action
    outcomes: tuple[Outcome | None, ...] | None = None  # B: how the episode ended; None: not in this turn
    given: Tensor | None = None  # [B] int64: place among the outputs that the prompt brings; -1: it was sampled

    @classmethod
    def join(cls, parts: "Sequence[Outputs]") -> "Outputs":
        """Returns the outputs of all parts, in order."""
        return cls(**{item.name: _join_values([getattr(part, item.name) for part in parts]) for item in fields(cls)})

    def statistics(self) -> dict[str, Tensor]:
        """Returns numbers [B] in float64, by the names of the metrics that are their means."""
        known: dict[str, Tensor | None] = {
            "answers/tokens": self.num_tokens,
            "answers/finished": self.is_finished,
            "answers/understood": None if self.actions is None else torch.tensor([a is not None for a in self.actions]),
        }
        return {name: values.double() for name, values in known.items() if values is not None}

    def select(self, rows: Tensor) -> "Outputs":
        """Returns the outputs of the samples `rows`, [n] int64."""
        return Outputs(**{item.name: _select_values(getattr(self, item.name), rows) for item in fields(self)})


def _join_values(parts: Sequence[Any]) -> Any:
    """Returns the tensors or tuples of all parts as one; None where no part has any."""
    present = [part for part in parts if part is not None]
    if not present:
        return None
    if isinstance(present[0], Tensor):
        return torch.cat(present)
    return tuple(value for part in present for value in part)


def _select_values(values: Any, rows: Tensor) -> Any:
    if values is None:
        return None
    if isinstance(values, Tensor):
        return values[rows.to(values.device)]
    return tuple(values[row] for row in rows.tolist())
