"""An environment of mmrl in which clicks paint dots, and its tasks."""

from dataclasses import dataclass
from typing import Any

import numpy

from mmrl.core.data import Observation, Prompt
from mmrl.environments.base.pixels import as_picture
from mmrl.parsing.actions.action import Action


def task(**target: Any) -> Prompt:
    return Prompt("x", target=target)


@dataclass
class Dots:
    """An environment of eight by six pixels, in which every click paints a pixel; the corner ends the episode."""

    painted: tuple[tuple[int, int], ...] = ()
    is_closed: bool = False

    def _seen(self, text: str = "", **more: Any) -> Observation:
        pixels = numpy.zeros((6, 8, 3), numpy.uint8)
        for x, y in self.painted:
            pixels[y, x] = 255
        return Observation(as_picture(pixels, "dots"), text, **more)

    def reset(self, task: Prompt, seed: int) -> Observation:
        self.painted = ((seed % 8, seed % 6),)
        return self._seen(goal=f"paint {task.target['what']}")

    def step(self, action: Action) -> Observation:
        if action.kind != "click" or action.point is None:
            return self._seen(f"no {action.kind} here")
        self.painted += ((int(action.point[0]), int(action.point[1])),)
        return self._seen(is_done=self.painted[-1] == (7, 5), reward=float(self.painted[-1] == (7, 5)))

    def state_key(self) -> str:
        return str(self.painted)

    def close(self) -> None:
        self.is_closed = True
