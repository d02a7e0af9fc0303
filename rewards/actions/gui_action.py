"""Is the action the right one, on the right place, with the right text? GUI-R1, UI-R1 and AgentCPM-GUI."""

import math
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, get_args

import torch
from torch import Tensor

from mmrl.core.contracts import Granularity, RewardBatch
from mmrl.core.data import Prompt
from mmrl.parsing.actions.action import CLICKS, Action, Direction, Kind
from mmrl.parsing.actions.names import keys_of, named
from mmrl.parsing.answers import ParseError
from mmrl.parsing.coordinates import Canvas, Point

from ..base.grounding import canvas_of, true_box, true_point
from ..base.references import composed

RadiusUnit = Literal["pixels", "share"]


@dataclass(frozen=True)
class GuiAction:
    """1 for the right action with the right argument; with `type_weight` a share of it for the kind of action alone.

    The kind must be that of `target.action`, by mmrl's names or those of the data sets (`press_back`, `complete` ...).
    The argument of
      clicks, move  is right inside of `target.box`, borders included, or near `target.point`: closer than `radius`;
      type, open, answer  where its words and those of `target.input_text` have an F1 of at least `min_f1`;
      scroll        where the direction is `target.input_text`; of hotkey, where the keys are.
    What the target does not say, and the other kinds, are right by their kind; an action that is its kind only (dialect
    `ui_r1`) lacks what the target does say. An answer that is not understood, or is
    several actions, scores `malformed`, and the argument of an action of the wrong kind never counts.

    Luo et al. 2025 (GUI-R1, arXiv 2504.10458): kind and argument or nothing, a radius of 140 pixels, F1 0.5 (their
    words also match parts of words; not here). Lu et al. 2025 (UI-R1, arXiv 2503.21620) add a point for the kind and
    one for the coordinate: that is `type_weight` 0.5 with weight 2. Zhang et al. 2025 (AgentCPM-GUI, arXiv 2506.01391,
    section 3.5.1) take away a point for what is no action: -1 malformed, 0 wrong, 1 right, a point in the true box;
    that is `malformed` -1, with `min_f1` 1 for texts that have to be the same words (they do not say how texts are
    compared).
    """

    source: ClassVar[str] = "Luo et al. 2025 (GUI-R1), arXiv 2504.10458"
    range: ClassVar[tuple[float, float]] = (0.0, 1.0)
    granularity: ClassVar[Granularity] = "sample"
    differentiable: ClassVar[bool] = False
    needs: ClassVar[frozenset[str]] = frozenset({"actions", "canvases", "target.action"})
    batch_size: ClassVar[int | None] = None

    type_weight: float = 0.0  # in [0, 1]: what the kind alone earns
    radius: float = 140.0  # above 0; GUI-R1's
    radius_unit: RadiusUnit = "pixels"  # of the image as the model sees it; `share`: both axes run from 0 to 1
    min_f1: float = 0.5  # in (0, 1]
    malformed: float = 0.0  # in [-1, 0]: what an answer scores that is no action; AgentCPM-GUI's is -1

    def __post_init__(self) -> None:
        if self.radius_unit not in get_args(RadiusUnit):
            raise ValueError(f"radius_unit must be one of {', '.join(get_args(RadiusUnit))}, got {self.radius_unit!r}")
        if not 0 <= self.type_weight <= 1:
            raise ValueError(f"type_weight must be in [0, 1], got {self.type_weight}")
        if not self.radius > 0 or not 0 < self.min_f1 <= 1:
            raise ValueError(f"radius must be above 0 and min_f1 in (0, 1], got {self.radius} and {self.min_f1}")
        if not -1 <= self.malformed <= 0:
            raise ValueError(f"malformed must be in [-1, 0], got {self.malformed}")
        object.__setattr__(self, "range", (float(self.malformed), 1.0))

    def check(self, prompt: Prompt) -> None:
        """Raises ValueError where the target is no action, or its place or text is none."""
        _Wanted.of(prompt)

    def score(self, batch: RewardBatch) -> Tensor:
        """[B] float32; raises ValueError for a target that is no action, or whose place or text is none."""
        assert batch.outputs.actions is not None, "scoring checks needs"
        scores = []
        for row, action in enumerate(batch.outputs.actions):
            wanted = _Wanted.of(batch.prompts[row])
            if action is None:
                scores.append(self.malformed)
            elif action.kind != wanted.kind:
                scores.append(0.0)
            else:
                is_right = self._is_right(action, wanted, canvas_of(batch, row))
                scores.append(1.0 if is_right else self.type_weight)
        return torch.tensor(scores, dtype=torch.float32)

    def _is_right(self, action: Action, wanted: "_Wanted", canvas: Canvas) -> bool:
        """Whether the argument is the wanted one; the kind is."""
        if action.kind in CLICKS or action.kind == "move":
            assert action.point is not None, "these have a point"
            return self._is_there(action.point, wanted, canvas)
        if action.kind == "hotkey":
            return not wanted.keys or _plain(action.keys) == _plain(wanted.keys)
        if wanted.text is None:
            return True
        if action.kind == "scroll":
            return action.direction == wanted.text.strip().lower()
        if action.kind in ("type", "open", "answer"):
            try:
                return words_f1(composed(action.text or ""), wanted.text) >= self.min_f1
            except ParseError:  # of endless accents
                return False
        return True

    def _is_there(self, point: Point, wanted: "_Wanted", canvas: Canvas) -> bool:
        if wanted.box is not None:
            x1, y1, x2, y2 = wanted.box
            return x1 <= point[0] <= x2 and y1 <= point[1] <= y2
        if wanted.point is None:
            return True
        spans = canvas.resized if self.radius_unit == "pixels" else (1, 1)
        return self.radius > math.hypot(
            *((point[axis] - wanted.point[axis]) * spans[axis] / canvas.original[axis] for axis in (0, 1))
        )


@dataclass(frozen=True)
class _Wanted:
    """The true action of a prompt."""

    kind: Kind
    keys: tuple[str, ...]
    box: tuple[float, float, float, float] | None
    point: Point | None
    text: str | None

    @classmethod
    def of(cls, prompt: Prompt) -> "_Wanted":
        """Raises ValueError where the target is no action."""
        target = prompt.target
        name, text = target["action"], target.get("input_text")
        meant = named(name) if isinstance(name, str) else None
        if meant is None:
            raise ValueError(f"target.action must be the name of an action, got {name!r} for {prompt.text!r}")
        if text is not None and not isinstance(text, str):
            raise ValueError(f"target.input_text must be a text, got {text!r} for {prompt.text!r}")
        kind, keys = meant
        text = None if text is None else composed(text)
        if kind == "scroll" and text is not None and text.strip().lower() not in get_args(Direction):
            raise ValueError(f"target.input_text of a scroll must be a direction, got {text!r} for {prompt.text!r}")
        if kind == "hotkey" and text is not None and not keys:
            keys = keys_of(text)
        box = None if target.get("box") is None else true_box(target["box"], "target.box", prompt)
        point: Any = target.get("point")
        return cls(kind, keys, box, None if point is None else true_point(point, "target.point", prompt), text)


def words_f1(text: str, other: str) -> float:
    """F1 of the sets of words of two texts, in lower case and without [ and ]; 1 for two without words.

    2 |both| / (|one| + |other|); GUI-R1 strips the brackets too.
    """
    one, two = (set(said.casefold().replace("[", "").replace("]", "").split()) for said in (text, other))
    return 2 * len(one & two) / (len(one) + len(two)) if one or two else 1.0


def _plain(keys: tuple[str, ...]) -> frozenset[str]:
    return frozenset(key.casefold() for key in keys)
