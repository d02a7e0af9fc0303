"""A reward and a world that say where they run, and a killer of their processes and nodes."""

import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar
from uuid import uuid4

import torch
from torch import Tensor

from mmrl.core.contracts import Granularity, Placement, RewardBatch
from mmrl.core.data import Observation, Prompt
from mmrl.parsing.actions.action import Action
from tests.toy_worlds import Corridor


def note(folder: str, what: str) -> None:
    """Writes a file whose name says what began in which process, on which node."""
    import ray

    node = ray.get_runtime_context().get_node_id() if ray.is_initialized() else "here"
    (Path(folder) / f"{what}-{os.getpid()}-{node}-{uuid4().hex[:8]}").touch()


@dataclass
class Brightness:
    """A reward with a model: a random linear map of the pixels, and half a second of thought."""

    source: ClassVar[str] = "here"
    range: ClassVar[tuple[float, float]] = (0.0, 1.0)
    granularity: ClassVar[Granularity] = "sample"
    differentiable: ClassVar[bool] = False
    needs: ClassVar[frozenset[str]] = frozenset({"images", "model"})
    batch_size: ClassVar[int | None] = 4

    folder: str
    seconds: float = 0.5
    _weight: Tensor | None = field(default=None, init=False, repr=False)

    def prepare(self, placement: Placement) -> None:
        self._weight = torch.randn(3 * 32 * 32, generator=torch.Generator().manual_seed(0))

    def score(self, batch: RewardBatch) -> Tensor:
        assert batch.outputs.images is not None and self._weight is not None
        note(self.folder, f"iteration{batch.iteration}")
        time.sleep(self.seconds)
        if any(seed % 7 == 0 for seed in batch.seeds):
            raise ValueError("too hard")
        return torch.sigmoid(batch.outputs.images.flatten(1) @ self._weight / 20)


@dataclass
class SlowCorridor(Corridor):
    """A corridor whose steps take a while."""

    folder: str = ""
    seconds: float = 0.3
    _number: int = field(default=0, init=False)

    def reset(self, task: Prompt, seed: int) -> Observation:
        self._number = 0
        return super().reset(task, seed)

    def step(self, action: Action) -> Observation:
        self._number += 1
        note(self.folder, f"step{self._number}")
        time.sleep(self.seconds)
        return super().step(action)


class Killer(threading.Thread):
    """Waits for a call that began as `what`, in a process that `is_meant` by its number and its node, and kills."""

    def __init__(self, folder: Path, what: str, kill: Callable[[int, str], Any], node: str | None = None) -> None:
        super().__init__(daemon=True)
        self._folder, self._what, self._kill, self._node = folder, what, kill, node
        self.has_killed = False

    def run(self) -> None:
        end = time.monotonic() + 300
        while time.monotonic() < end:
            for file in sorted(self._folder.glob(f"{self._what}-*")):
                _, process, node, _ = file.name.split("-")
                if self._node in (None, node):
                    self._kill(int(process), node)
                    self.has_killed = True
                    return
            time.sleep(0.02)
