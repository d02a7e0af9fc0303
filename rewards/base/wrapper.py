"""What rewards that wrap other ones share: the weights, the checks and the state of the inner rewards."""

from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor

from mmrl.core.contracts import Checking, Placement, Reward, RewardBatch
from mmrl.core.data import Prompt, Scores
from mmrl.core.declarations import RewardDeclaration
from mmrl.core.dense import DENSE
from mmrl.core.reward_batches import pack, select, units_of


class RewardWrapper:
    """Passes on to the rewards in the fields of a dataclass what is asked of rewards beside their score.

    A field is a reward, a tuple of rewards, a dictionary of them, or None. What the wrapper needs, and its range,
    are its own: it sets them on itself in `__post_init__` (`override`).
    """

    def override(self, **attributes: Any) -> None:
        """Overrides attributes of the class, such as `needs`, for this instance.

        Raises ValueError for an inner reward that learns from its scores: it would not see them; and for a dense one:
        of its numbers a wrapper would make one.
        """
        for name, reward in self.inner_rewards().items():
            if reward.granularity in DENSE:
                raise ValueError(f"{name} must judge samples, got a reward that judges each {reward.granularity}")
            if hasattr(reward, "update") and getattr(type(reward), "update", None) is not RewardWrapper.update:
                raise ValueError(
                    f"{name} learns from its own scores, which only a reward of the run sees: put it around this one, "
                    "not inside"
                )
        for name, value in attributes.items():
            object.__setattr__(self, name, value)

    def inherit(self, reward: Reward, **attributes: Any) -> None:
        """Takes over the attributes of `reward`, but for those given here; needs what both need."""
        said = {name: getattr(reward, name) for name in ("range", "granularity", "differentiable", "batch_size")}
        needs = type(self).needs | self.needs_of_inner()  # type: ignore[attr-defined]  # of every reward
        self.override(**(said | {"needs": needs} | attributes))

    def inner_rewards(self) -> dict[str, Reward]:
        """The inner rewards, by the names of their fields and of their places in these."""
        found: dict[str, Reward] = {}
        for item in fields(self):  # type: ignore[arg-type]  # the classes that inherit are dataclasses
            found |= dict(_rewards_in(item.name, getattr(self, item.name))) if item.init else {}
        return found

    @property
    def declaration(self) -> RewardDeclaration:
        """As many batches may be under way at once as all of the rewards held allow."""
        concurrency = (RewardDeclaration.of(reward).concurrency for reward in self.inner_rewards().values())
        return RewardDeclaration(concurrency=min(concurrency, default=1))

    def needs_of_inner(self) -> frozenset[str]:
        """What at least one of them needs."""
        return frozenset().union(*(reward.needs for reward in self.inner_rewards().values()))

    def prepare(self, placement: Placement) -> None:
        """Loads the weights of the rewards that have some."""
        for reward in self.inner_rewards().values():
            if hasattr(reward, "prepare"):
                reward.prepare(placement)

    def tiny(self, seed: int, folder: Path) -> Self:
        """The same with the tiny twins of those that have some."""
        names = iter(self.inner_rewards())

        def twin(reward: Reward) -> Reward:
            name = next(names)
            return reward.tiny(seed, folder / name) if hasattr(reward, "tiny") else reward

        found = {item.name: _mapped(twin, getattr(self, item.name)) for item in fields(self) if item.init}  # type: ignore[arg-type]
        return replace(self, **found)  # type: ignore[type-var]

    def check(self, prompt: Prompt) -> None:
        """Raises ValueError where one of them could not judge any answer to this prompt."""
        for reward in self.inner_rewards().values():
            check_prompt(reward, prompt)

    def update(self, scores: Scores) -> None:
        """What is held sees no scores of its own; a holder with a state of its own says what it learns."""

    def state_dict(self) -> dict[str, Any]:
        """The states of those that have one."""
        return {
            name: reward.state_dict() for name, reward in self.inner_rewards().items() if hasattr(reward, "state_dict")
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name, reward in self.inner_rewards().items():
            if hasattr(reward, "state_dict"):
                reward.load_state_dict(state[name])  # type: ignore[attr-defined]


def check_judges_samples(reward: Reward, what: str = "the reward held") -> None:
    """Raises ValueError, about `what`, unless the reward judges each sample alone."""
    if reward.granularity != "sample":
        raise ValueError(f"{what} must judge samples, got one that judges {reward.granularity}s")


def score_inner(reward: Reward, batch: RewardBatch) -> Tensor:
    """[B] what a reward says of a batch, asked about no more samples at once than it wants, but for whole groups."""
    parts = [torch.cat(units) for units in pack(units_of(reward, batch), reward.batch_size)]
    if len(parts) < 2:
        return reward.score(batch)
    return torch.cat([reward.score(select(batch, rows)) for rows in parts])[torch.cat(parts).argsort()]


def check_prompt(reward: Reward, prompt: Prompt) -> None:
    """Raises ValueError where the reward says that it cannot judge answers to this prompt, or a target field lacks."""
    for need in sorted(need.removeprefix("target.") for need in reward.needs if need.startswith("target.")):
        if need not in prompt.target:
            raise ValueError(f"needs {need!r} in the target, got {', '.join(prompt.target) or 'nothing'}")
    if isinstance(reward, Checking):
        reward.check(prompt)


def is_changing(reward: Reward) -> bool:
    """Whether the same sample may score otherwise in another call: noise of its own, the iteration, a state."""
    inner_rewards = reward.inner_rewards().values() if isinstance(reward, RewardWrapper) else ()
    has_state = hasattr(reward, "state_dict") and not isinstance(reward, RewardWrapper)
    return has_state or getattr(reward, "is_changing", False) or any(map(is_changing, inner_rewards))


def _rewards_in(name: str, value: Any) -> Iterator[tuple[str, Reward]]:
    if isinstance(value, Reward):
        yield name, value
    elif isinstance(value, dict):
        for key, one in value.items():
            yield from _rewards_in(f"{name}.{key}", one)
    elif isinstance(value, tuple):
        for number, one in enumerate(value):
            yield from _rewards_in(f"{name}.{number}", one)


def _mapped(change: Callable[[Reward], Reward], value: Any) -> Any:
    """The value with every reward in it changed, in the order of `_rewards_in`."""
    if isinstance(value, Reward):
        return change(value)
    if isinstance(value, dict):
        return {key: _mapped(change, one) for key, one in value.items()}
    if isinstance(value, tuple):
        return tuple(_mapped(change, one) for one in value)
    return value
