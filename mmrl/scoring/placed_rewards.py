"""Rewards with models and judges in actors of a Ray cluster: `scoring.pool: ray`."""

from dataclasses import dataclass, field, replace
from functools import partial
from math import inf
from pathlib import Path
from queue import SimpleQueue
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from mmrl.core.actors import ActorSettings, LastingActor
from mmrl.core.contracts import (
    Checking,
    Granularity,
    Placement,
    Prepared,
    Prompt,
    Reward,
    RewardBatch,
    Spending,
    Stateful,
    Twinned,
)
from mmrl.core.declarations import RewardDeclaration
from mmrl.core.reward_batches import on_device


def is_placeable(reward: Reward) -> bool:
    """Returns whether a reward may judge elsewhere: it has a model or asks a judge, and learns nothing here.

    Wrappers, which may have learned, rewards of segments, and clients of reward servers stay here.
    """
    stays = isinstance(reward, Stateful) or reward.granularity == "segment"
    return bool({"model", "service"} & reward.needs) and not stays and RewardDeclaration.of(reward).concurrency == 1


@dataclass
class PlacedReward:
    """A reward that is called in actors, each with a copy of its own; it gives the scores of the reward itself.

    Each actor judges one batch at a time, and a batch waits for an actor that is free. Where an actor or its node ends
    in the middle, a new actor is started and judges the batch. There is no gradient. A reward that counts what it
    spends has one copy, which counts for all.
    """

    source: ClassVar[str] = "that of the reward"  # this and the next ones are overridden by those of the reward
    range: ClassVar[tuple[float, float]] = (-inf, inf)
    granularity: ClassVar[Granularity] = "sample"
    differentiable: ClassVar[bool] = False
    needs: ClassVar[frozenset[str]] = frozenset()
    batch_size: ClassVar[int | None] = None

    inner: Reward
    settings: ActorSettings
    copies: int = 1
    _free: SimpleQueue[LastingActor] = field(init=False, repr=False, default_factory=SimpleQueue)
    _placement: Placement | None = field(init=False, repr=False, default=None)

    def __post_init__(self) -> None:
        if isinstance(self.inner, Spending):
            self.copies = 1
        inner = self.inner
        own = {"source": inner.source, "range": inner.range, "granularity": inner.granularity}
        for name, value in {**own, "needs": inner.needs, "batch_size": inner.batch_size}.items():
            object.__setattr__(self, name, value)

    @property
    def declaration(self) -> RewardDeclaration:
        """Returns that of the reward, with as many batches at once as there are copies."""
        return replace(RewardDeclaration.of(self.inner), concurrency=self.copies)

    def check(self, prompt: Prompt) -> None:
        """Raises ValueError where the reward cannot judge by the prompt."""
        if isinstance(self.inner, Checking):
            self.inner.check(prompt)

    def tiny(self, seed: int, folder: Path) -> Self:
        """Returns the same with the random small twin of the reward."""
        return replace(self, inner=self.inner.tiny(seed, folder) if isinstance(self.inner, Twinned) else self.inner)

    def prepare(self, placement: Placement) -> None:
        """Starts the actors and waits for them. Raises ConfigError without Ray or room, and what the reward raises."""
        self._placement = placement
        while not self._free.empty():
            self._free.get().close()
        actors = [self._begun() for _ in range(self.copies)]
        for actor in actors:
            actor.wait()
            self._free.put(actor)

    def spent(self) -> dict[str, float]:
        """Returns what the reward has spent, empty for one that spends nothing."""
        return dict(self._called("spent")) if isinstance(self.inner, Spending) and self._placement else {}

    def score(self, batch: RewardBatch) -> Tensor:
        """Returns the scores [B] (dense: [B, K]) on the CPU.

        Raises what the reward raises, and RunError where actors end again and again.
        """
        scores: Tensor = self._called("score", on_device(batch, torch.device("cpu")))
        return scores

    def _called(self, method: str, *arguments: Any) -> Any:
        actor = self._free.get()  # waits for one that is free
        try:
            return actor.call(method, *arguments)
        finally:
            self._free.put(actor)

    def _begun(self) -> LastingActor:
        assert self._placement is not None, "prepare comes before score"
        device = "cuda" if self.settings.gpus > 0 else "cpu"
        make = partial(_Judging, self.inner, device, self._placement.dtype)
        return LastingActor(make, self.settings, f"the reward {type(self.inner).__name__}")


class _Judging:
    """The reward in its actor."""

    def __init__(self, reward: Reward, device: str, dtype: torch.dtype) -> None:
        self._reward, self._device = reward, torch.device(device)
        if isinstance(reward, Prepared):
            reward.prepare(Placement(self._device, dtype))

    @torch.no_grad()
    def score(self, batch: RewardBatch) -> Any:
        answer = self._reward.score(on_device(batch, self._device))
        return answer.cpu() if isinstance(answer, Tensor) else answer

    def spent(self) -> dict[str, float]:
        assert isinstance(self._reward, Spending), "seen before"
        return dict(self._reward.spent())
