"""The base of rewards with a small network of their own, which is fitted in the run to the samples that they judge."""

from abc import ABC, abstractmethod
from copy import deepcopy
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Self

import torch
from pydantic import Field
from torch import Tensor, nn

from mmrl.core.contracts import Reward, RewardBatch
from mmrl.core.data import Scores
from mmrl.core.declarations import RewardDeclaration
from mmrl.core.keys import generator

from .wrapper import RewardWrapper, check_judges_outputs_alone, score_inner


@dataclass(kw_only=True)
class FittedReward(ABC):
    """The settings of a reward that learns, its network, its optimizer (Adam) and the examples that it remembers.

    After each iteration with new examples it makes `fit_steps` optimizer steps on those of its memory, on the CPU in
    float32, from the same examples on all processes, so that all have the same network; a checkpoint has network,
    optimizer and memory. It is ready after `warm_up` iterations: before that its own scores do not count.

    An evaluation has a copy of its own, which is never fitted.
    """

    warm_up: Annotated[int, Field(ge=0)] = 10  # iterations before its own scores count
    fit_steps: Annotated[int, Field(ge=1)] = 50  # optimizer steps after each iteration with new examples
    fit_batch: Annotated[int, Field(ge=1)] = 64  # examples of a step
    learning_rate: Annotated[float, Field(gt=0)] = 1e-3  # of Adam
    memory: Annotated[int, Field(ge=1)] = 2048  # how many examples are kept, the newest; checkpoints hold them
    seed: int = 0  # of the first weights, and of the choice of examples
    _updates: int = field(default=0, init=False, repr=False, compare=False)
    _examples: Tensor | None = field(default=None, init=False, repr=False, compare=False)  # [n, D]
    _network: nn.Module | None = field(default=None, init=False, repr=False, compare=False)
    _optimizer: Any = field(default=None, init=False, repr=False, compare=False)
    _placed: tuple[int, nn.Module] | None = field(default=None, init=False, repr=False, compare=False)
    _error: float | None = field(default=None, init=False, repr=False, compare=False)

    @abstractmethod
    def make_network(self, width: int) -> nn.Module:
        """Makes the network for examples of D = `width` numbers; weights come from torch's global generator."""

    @abstractmethod
    def fit_loss(self, network: nn.Module, examples: Tensor) -> Tensor:
        """Returns the mean loss of examples [n, D]."""

    def examples_of(self, scores: Scores) -> Tensor:
        """Returns the examples [n, D] of an iteration, from what was seen of its samples."""
        seen = scores.examples[scores.names[0]]
        return seen[seen.isfinite().all(1)] if seen.shape[1] else seen[:0]

    def sooner(self) -> Self:
        """Returns the same reward, ready after one iteration and a few steps, for a twin."""
        return replace(self, warm_up=min(self.warm_up, 1), fit_steps=min(self.fit_steps, 4))

    @property
    def is_ready(self) -> bool:
        """Returns whether its own scores count."""
        return self._network is not None and self._updates >= self.warm_up

    def network_on(self, device: torch.device) -> nn.Module:
        """Returns the network on a device, without gradients to its weights."""
        assert self._network is not None, "it is ready"
        if self._placed is None or self._placed[0] != self._updates:
            self._placed = self._updates, deepcopy(self._network).requires_grad_(False)
        return self._placed[1].to(device)

    def update(self, scores: Scores) -> None:
        """Fits the network to the examples of an iteration and to those that it remembers."""
        new = self.examples_of(scores).float().cpu()
        self._updates, self._error = self._updates + 1, None
        if not len(new):
            return
        if self._network is None:
            self._start(new.shape[1])
        assert self._network is not None, "just made"
        known = new if self._examples is None else torch.cat([self._examples, new])
        self._examples = known[-self.memory :].clone()
        with torch.no_grad():
            self._error = float(self.fit_loss(self._network, new))
        source = generator(self.seed, "fit", self._updates)
        with torch.enable_grad(), torch.autocast("cpu", enabled=False):
            for _ in range(self.fit_steps):
                chosen = torch.randint(len(self._examples), (self.fit_batch,), generator=source)
                self._optimizer.zero_grad()
                self.fit_loss(self._network, self._examples[chosen]).backward()
                self._optimizer.step()

    def _start(self, width: int) -> None:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            self._network = self.make_network(width)
        self._optimizer = torch.optim.Adam(self._network.parameters(), lr=self.learning_rate)

    def fit(self) -> dict[str, float]:
        """Returns the mean loss on the newest samples before they were learned from: `fit_error`."""
        return {} if self._error is None else {"fit_error": self._error}

    def state_dict(self) -> dict[str, Any]:
        """Returns network, optimizer and memory."""
        state: dict[str, Any] = {"updates": self._updates, "error": self._error}
        if self._network is None or self._examples is None:
            return state
        names = [name for name, _ in self._network.named_parameters()]
        moments = self._optimizer.state_dict()["state"]
        return state | {
            "examples": self._examples,
            "network": dict(self._network.state_dict()),
            "optimizer": {name: dict(moments[number]) for number, name in enumerate(names)},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores network, optimizer and memory."""
        self._updates, self._error, self._placed = state["updates"], state["error"], None
        if "network" not in state:
            self._network = self._optimizer = self._examples = None
            return
        self._examples = state["examples"].clone()
        self._start(self._examples.shape[1])
        assert self._network is not None, "just made"
        self._network.load_state_dict(state["network"])
        names = [name for name, _ in self._network.named_parameters()]
        moments = {number: state["optimizer"][name] for number, name in enumerate(names)}
        self._optimizer.load_state_dict(self._optimizer.state_dict() | {"state": moments})


@dataclass
class FittedWrapper(FittedReward, RewardWrapper):
    """A reward whose network learns from what an inner reward says of the same samples.

    Until it is ready the inner reward's scores are its own. From then on they are the network's, and the inner reward
    is asked in each `every`-th iteration only, to learn on. Raises ValueError for an inner reward that judges by more
    than outputs and prompts.
    """

    reward: Reward  # what it learns from
    every: Annotated[int, Field(ge=1)] = 1  # once ready, the inner reward is asked in each of so many iterations

    def __post_init__(self) -> None:
        super().__post_init__()
        check_judges_outputs_alone(self.reward)

    @property
    def declaration(self) -> RewardDeclaration:
        """Returns that of the inner reward; what is learned changes, and compares samples of all groups."""
        return replace(super().declaration, is_changing=True, is_relative=False)

    def tiny(self, seed: int, folder: Path) -> Self:
        """Returns the same around twins of the inner rewards, soon ready."""
        return super().tiny(seed, folder).sooner()

    @abstractmethod
    def features_of(self, batch: RewardBatch) -> Tensor:
        """Returns what the network sees of each sample, [B, D] float32."""

    def in_units(self, values: Tensor) -> Tensor:
        """Returns the scores of the network's values [B]."""
        return values

    def score(self, batch: RewardBatch) -> Tensor:
        """Returns the scores [B] float32; raises what the inner reward raises."""
        return self.score_with_examples(batch)[0]

    @torch.no_grad()
    def score_with_examples(self, batch: RewardBatch) -> tuple[Tensor, Tensor]:
        """Returns the scores [B], and features with the inner reward's score where it was asked, [B, D + 1]."""
        features = self.features_of(batch)
        if self.is_ready and self._updates % self.every:
            return self.predicted(features).cpu(), torch.zeros(len(batch), 0)
        given = score_inner(self.reward, batch).cpu()
        scores = self.predicted(features).cpu() if self.is_ready else given
        return scores, torch.cat([features.cpu(), given[:, None]], 1)

    def predicted(self, features: Tensor) -> Tensor:
        """Returns the scores [B] that the network gives, with a gradient to the features where they require one."""
        with torch.autocast(features.device.type, enabled=False):
            values: Tensor = self.network_on(features.device)(features)
        return self.in_units(values)

    def state_dict(self) -> dict[str, Any]:
        """Returns what was learned, and the states of inner rewards."""
        return FittedReward.state_dict(self) | {"inner": RewardWrapper.state_dict(self)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores what was learned, and the states of inner rewards."""
        FittedReward.load_state_dict(self, state)
        RewardWrapper.load_state_dict(self, state["inner"])
