"""Is the action of the right kind, at the right place, with the right text? GUI-R1, UI-R1 and AgentCPM-GUI."""

import math
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, get_args

import torch
from pydantic import Field
from torch import Tensor

from mmrl.core.checked import Checked
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
class GuiAction(Checked):
    """A score of actions: 1 for the right kind with the right argument, `type_weight` for the right kind alone, else 0.

    The kind must be that of `target.action`, by mmrl's names or those of the data sets (`press_back`, `complete` ...).
    The argument of
      clicks, move        is right inside of `target.box`, borders included, or closer to `target.point` than `radius`;
      type, open, answer  is right where its words and those of `target.input_text` have an F1 of at least `min_f1`;
      scroll, hotkey      is right where the direction, or the keys, are those of `target.input_text`.
    Where the target says nothing of an argument, and for all other kinds, the kind alone is enough. An action without
    an argument (dialect `ui_r1`) is wrong where the target has one. An answer that is not understood, or is several
    actions, scores `malformed`. The argument of an action of the wrong kind never counts.

    Luo et al. 2025 (GUI-R1, arXiv 2504.10458): kind and argument or nothing, a radius of 140 pixels, F1 0.5 (their
    words also match parts of words; not here). Lu et al. 2025 (UI-R1, arXiv 2503.21620) add a point for the kind and
    one for the coordinate: `type_weight` 0.5 with weight 2. Zhang et al. 2025 (AgentCPM-GUI, arXiv 2506.01391, section
    3.5.1) take away a point for what is no action: -1 malformed, 0 wrong, 1 right, a point in the true box; that is
    `malformed` -1, with `min_f1` 1 for texts that must be the same words (the paper does not say how texts are
    compared).
    """

    source: ClassVar[str] = "Luo et al. 2025 (GUI-R1), arXiv 2504.10458"
    range: ClassVar[tuple[float, float]] = (0.0, 1.0)
    granularity: ClassVar[Granularity] = "sample"
    differentiable: ClassVar[bool] = False
    needs: ClassVar[frozenset[str]] = frozenset({"actions", "canvases", "target.action"})
    batch_size: ClassVar[int | None] = None

    type_weight: Annotated[float, Field(ge=0, le=1)] = 0.0  # score of the right kind with a wrong argument
    radius: Annotated[float, Field(gt=0)] = 140.0  # distance from `target.point` below which a place is right; GUI-R1's
    # unit of `radius`: pixels of the image as the model sees it, or shares, where both axes run from 0 to 1
    radius_unit: RadiusUnit = "pixels"
    min_f1: Annotated[float, Field(gt=0, le=1)] = 0.5  # F1 of the words from which a text is right; GUI-R1's
    malformed: Annotated[float, Field(ge=-1, le=0)] = 0.0  # score of an answer that is no action; AgentCPM-GUI's is -1

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "range", (float(self.malformed), 1.0))

    def check(self, prompt: Prompt) -> None:
        """Raises ValueError where the target is no action, or its place or text is none."""
        _TrueAction.of(prompt)

    def score(self, batch: RewardBatch) -> Tensor:
        """Returns the scores [B] float32.

        Raises ValueError for a target that is no action, or whose place or text is none.
        """
        assert batch.outputs.actions is not None, "scoring checks needs"
        scores = []
        for row, action in enumerate(batch.outputs.actions):
            wanted = _TrueAction.of(batch.prompts[row])
            if action is None:
                scores.append(self.malformed)
            elif action.kind != wanted.kind:
                scores.append(0.0)
            else:
                is_right = self._is_right(action, wanted, canvas_of(batch, row))
                scores.append(1.0 if is_right else self.type_weight)
        return torch.tensor(scores, dtype=torch.float32)

    def _is_right(self, action: Action, wanted: "_TrueAction", canvas: Canvas) -> bool:
        """Returns whether the argument is that of the true action; the kinds are the same."""
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

    def _is_there(self, point: Point, wanted: "_TrueAction", canvas: Canvas) -> bool:
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
class _TrueAction:
    """The true action of a prompt."""

    kind: Kind
    keys: tuple[str, ...]
    box: tuple[float, float, float, float] | None
    point: Point | None
    text: str | None

    @classmethod
    def of(cls, prompt: Prompt) -> "_TrueAction":
        """Reads the true action of a prompt; raises ValueError where the target is no action, or its argument none."""
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
    """Returns the F1 of the sets of words of two texts, without capitals and [ and ]; 1 for two texts without words.

    2 |both| / (|one| + |other|); GUI-R1 strips the brackets too.
    """
    one, two = (set(words.casefold().replace("[", "").replace("]", "").split()) for words in (text, other))
    return 2 * len(one & two) / (len(one) + len(two)) if one or two else 1.0


def _plain(keys: tuple[str, ...]) -> frozenset[str]:
    return frozenset(key.casefold() for key in keys)
