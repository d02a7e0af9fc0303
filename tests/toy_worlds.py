"""A corridor that an agent walks along by clicking, with tasks in which the world breaks; and an agent that clicks."""

import time
from dataclasses import dataclass, field
from io import BytesIO
from typing import Any, ClassVar

import torch
from PIL import Image
from torch import Tensor

from mmrl.core.checked import Checked
from mmrl.core.contracts import Granularity, RewardBatch
from mmrl.core.data import Observation, Prompt
from mmrl.media.pictures import StoredPicture
from mmrl.modalities.agent import Agent
from mmrl.parsing.actions.action import Action
from mmrl.parsing.coordinates import Canvas
from tests import vision_twins

SIZE = 56


@dataclass
class Corridor:
    """A click in the right half goes one place to the right, in the left half back; `places` to the right is the goal.

    The screenshot shows the place, beginning with one that depends on the seed. `target["trouble"]`: the world raises
    (`crash`) or hangs at the second step, or does not even begin (`closed`; `late`: at the first try only).
    """

    places: int = 2
    closed: list[str] = field(default_factory=list, init=False)  # what was closed, for tests to look at
    _place: int = field(default=0, init=False)
    _start: int = field(default=0, init=False)
    _steps: int = field(default=0, init=False)
    _trouble: str = field(default="", init=False)

    def reset(self, task: Prompt, seed: int) -> Observation:
        self._place = self._start = seed % 7
        self._steps, self._trouble = 0, str(task.target.get("trouble", ""))
        if self._trouble == "closed":
            raise OSError("the door is closed")
        return Observation(self._screenshot())

    def step(self, action: Action) -> Observation:
        self._steps += 1
        if self._steps == 2 and self._trouble == "crash":
            raise OSError("the floor gave way")
        if self._steps == 2 and self._trouble == "hang":
            time.sleep(5)
        if action.point is None:
            return Observation(self._screenshot(), text=f"nothing happens after {action.kind}")
        self._place += 1 if action.point[0] >= SIZE / 2 else -1
        is_done = self._place - self._start >= self.places
        return Observation(self._screenshot(), is_done=is_done, reward=float(is_done))

    def state_key(self) -> str:
        return f"place {self._place}"

    def close(self) -> None:
        self.closed.append("closed")

    def _screenshot(self) -> StoredPicture:
        image, file = Image.new("RGB", (SIZE, SIZE), (10 * (self._place % 20) + 20, 90, 160)), BytesIO()
        image.save(file, "PNG")
        return StoredPicture("screenshot", content=file.getvalue())


@dataclass(frozen=True)
class Rightwards(Checked):
    """A critic that finds clicks to the right good, and cannot judge where the target says so."""

    source: ClassVar[str] = "by hand"
    range: ClassVar[tuple[float, float]] = (0.0, 1.0)
    granularity: ClassVar[Granularity] = "sample"
    differentiable: ClassVar[bool] = False
    needs: ClassVar[frozenset[str]] = frozenset({"actions"})
    batch_size: ClassVar[int | None] = None

    def score(self, batch: RewardBatch) -> Tensor:
        if any(prompt.target.get("trouble") == "dark" for prompt in batch.prompts):
            raise ValueError("it is too dark to see the click")
        actions = batch.outputs.actions or ()
        return torch.tensor([float(one is None or one.point is None or one.point[0] >= SIZE / 2) for one in actions])


@dataclass(frozen=True)
class Wordy(Rightwards):
    """The same critic; it writes about each text, and spells a token that means something."""

    explained: list[str] = field(default_factory=list, init=False)
    is_explaining: ClassVar[bool] = True

    def reasons(self, batch: RewardBatch) -> tuple[str, ...]:
        assert batch.outputs.texts is not None
        self.explained.extend(batch.outputs.texts)
        return tuple(f"{len(text)} bytes lead to the left, <image>" for text in batch.outputs.texts)


class Silent(Rightwards):
    """The same critic, which may write something and does not."""

    is_explaining: ClassVar[bool] = True

    def reasons(self, batch: RewardBatch) -> tuple[str, ...]:
        return ("",) * len(batch)


@dataclass(kw_only=True)
class Clicker(Agent):
    """Reads a click out of any answer, since random weights write none: to the right after an odd number of bytes."""

    def action(self, text: str, canvas: Canvas | None) -> Action | None:
        if text.startswith(("!", "#")):
            return None
        return Action("click", point=(40.0 if len(text.encode()) % 2 else 10.0, 20.0))


def clicker(**settings: Any) -> Clicker:
    """A prepared agent on the tiny Qwen2.5-VL."""
    given: dict[str, Any] = {
        "dialect": "plain",
        "instructions": "none",
        "environment": Corridor(),
        "history": 0,
    } | settings
    return vision_twins.prepared(Clicker, **given)
