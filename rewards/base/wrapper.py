"""The base of rewards that wrap other rewards: weights, checks, twins and state of the inner rewards."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import fields, replace
from math import inf
from pathlib import Path
from typing import Any, ClassVar, Protocol, Self, cast, runtime_checkable

import torch
from torch import Tensor

from mmrl.core.checked import Checked
from mmrl.core.contracts import (
    Checking,
    ConfigError,
    Granularity,
    Placement,
    Prepared,
    Reward,
    RewardBatch,
    Segmented,
    Stateful,
    Twinned,
)
from mmrl.core.data import Prompt, Scores
from mmrl.core.declarations import RewardDeclaration
from mmrl.core.dense import DENSE
from mmrl.core.likelihoods import thought_needs
from mmrl.core.reward_batches import pack, select, units_of


@runtime_checkable
class _Learning(Protocol):
    """A reward that learns from scores, with the other methods of a `Stateful` plug-in or without."""

    def update(self, scores: Scores) -> None: ...


class RewardWrapper(Checked):
    """The base of rewards that hold other rewards in their fields: a dataclass with rewards, the inner rewards.

    A field may be a reward, a tuple of rewards, a dictionary of rewards, or None. The wrapper prepares, checks, twins
    and saves its inner rewards. A subclass sets its own `needs`, `range` and the like in `__post_init__`, with
    `override` or `inherit`; what it does not set is as here.

    A subclass with `holds_dense` takes inner rewards of steps, segments or tokens too. Its granularity is then theirs,
    and its score works on each of their numbers alone: `only_numbers` leaves 0 where they have none.
    """

    range: ClassVar[tuple[float, float]] = (-inf, inf)
    granularity: ClassVar[Granularity] = "sample"
    differentiable: ClassVar[bool] = False
    needs: ClassVar[frozenset[str]] = frozenset()  # beside those of the inner rewards
    batch_size: ClassVar[int | None] = None
    holds_dense: ClassVar[bool] = False  # whether inner rewards may be dense

    def override(self, **attributes: Any) -> None:
        """Overrides attributes of the class, such as `needs`, for this instance.

        Raises ValueError for an inner reward that learns from its scores, since only rewards of the run see theirs, and
        for a dense inner reward where the wrapper makes one number of a sample.
        """
        for name, reward in self.inner_rewards().items():
            if reward.granularity in DENSE and not self.holds_dense:
                raise ValueError(f"{name} must judge samples, got a reward that judges each {reward.granularity}")
            is_plain_wrapper = isinstance(reward, RewardWrapper) and type(reward).update is RewardWrapper.update
            if isinstance(reward, _Learning) and not is_plain_wrapper:
                raise ValueError(
                    f"{name} learns from its own scores, which only a reward of the run sees: list it under "
                    "`rewards` itself; where it is a wrapper, put it around this one"
                )
        for name, value in attributes.items():
            object.__setattr__(self, name, value)

    def inherit(self, reward: Reward, **attributes: Any) -> None:
        """Overrides attributes of the class with those of `reward`, except for those in `attributes`.

        The instance needs what the class and all inner rewards need.
        """
        inherited = {
            "range": reward.range,
            "granularity": reward.granularity,
            "differentiable": reward.differentiable,
            "batch_size": reward.batch_size,
            "needs": type(self).needs | self.needs_of_inner(),
        }
        self.override(**(inherited | attributes))

    def inner_rewards(self) -> dict[str, Reward]:
        """Returns the inner rewards by the names of their fields: `reward`, `rewards.0`, `rewards.<key>`."""
        inner: dict[str, Reward] = {}
        for item in fields(self):  # type: ignore[arg-type]  # the classes that inherit are dataclasses
            inner |= dict(_rewards_in(item.name, getattr(self, item.name))) if item.init else {}
        return inner

    @property
    def declaration(self) -> RewardDeclaration:
        """Returns what follows from the declarations of the inner rewards: the least concurrency, and so on."""
        rewards = list(self.inner_rewards().values())
        inner = [RewardDeclaration.of(reward) for reward in rewards]
        return RewardDeclaration(
            is_relative=bool(inner) and all(one.is_relative for one in inner),
            concurrency=min((one.concurrency for one in inner), default=1),
            follows_iteration=any(one.follows_iteration for one in inner),
            is_changing=any(one.is_changing for one in inner) or any(map(_has_own_state, rewards)),
        )

    def ends(self, batch: RewardBatch) -> Tensor:
        """Returns [B, K] bool: where the segments of the inner rewards end, for wrappers of granularity segment.

        Raises ConfigError where inner rewards end their segments at different tokens.
        """
        rewards = [reward for reward in self.inner_rewards().values() if reward.granularity == "segment"]
        ends = [cast(Segmented, reward).ends(batch) for reward in rewards]
        if any(not torch.equal(ends[0].cpu(), other.cpu()) for other in ends[1:]):
            raise ConfigError("the inner rewards must end their segments at the same tokens")
        return ends[0]

    def needs_of_inner(self) -> frozenset[str]:
        """Returns what at least one inner reward needs."""
        return frozenset().union(*(reward.needs for reward in self.inner_rewards().values()))

    def prepare(self, placement: Placement) -> None:
        """Prepares the inner rewards that load weights or open services."""
        for reward in self.inner_rewards().values():
            if isinstance(reward, Prepared):
                reward.prepare(placement)

    def tiny(self, seed: int, folder: Path) -> Self:
        """Returns the same wrapper around the tiny twins of the inner rewards that have one."""
        names = iter(self.inner_rewards())

        def twin(reward: Reward) -> Reward:
            name = next(names)
            return reward.tiny(seed, folder / name) if isinstance(reward, Twinned) else reward

        twins = {item.name: _mapped(twin, getattr(self, item.name)) for item in fields(self) if item.init}  # type: ignore[arg-type]
        return replace(self, **twins)  # type: ignore[type-var]

    def check(self, prompt: Prompt) -> None:
        """Raises ValueError where an inner reward could not judge any answer to this prompt."""
        for reward in self.inner_rewards().values():
            check_prompt(reward, prompt)

    def update(self, scores: Scores) -> None:
        """Learns nothing: inner rewards see no scores of their own. A wrapper with a state overrides this."""

    def state_dict(self) -> dict[str, Any]:
        """Returns the states of the inner rewards that have one, by their names."""
        inner = self.inner_rewards().items()
        return {name: reward.state_dict() for name, reward in inner if isinstance(reward, Stateful)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores the states of the inner rewards."""
        for name, reward in self.inner_rewards().items():
            if isinstance(reward, Stateful):
                reward.load_state_dict(state[name])


def common_granularity(rewards: Iterable[Reward]) -> Granularity:
    """Returns the granularity of all rewards. Raises ValueError where they judge different things."""
    granularities = {reward.granularity for reward in rewards}
    if len(granularities) != 1:
        raise ValueError(f"the rewards must judge alike, got rewards of {', '.join(sorted(granularities))}")
    return granularities.pop()


def check_judges_outputs_alone(reward: Reward) -> None:
    """Raises ValueError for a reward that reads what the policy thinks of the answers, where others are judged."""
    if thought := thought_needs(reward.needs):
        raise ValueError(f"the inner reward must judge by outputs and prompts alone, got one that needs {thought[0]}")


def check_judges_samples(reward: Reward, what: str = "the inner reward") -> None:
    """Raises ValueError, which begins with `what`, unless the reward judges each sample alone."""
    if reward.granularity != "sample":
        raise ValueError(f"{what} must judge samples, got one that judges {reward.granularity}s")


def check_dense(reward: Reward, what: str = "the inner reward") -> None:
    """Raises ValueError, which begins with `what`, unless the reward judges steps, segments or tokens."""
    if reward.granularity not in DENSE:
        raise ValueError(f"{what} must judge steps, segments or tokens, got one that judges {reward.granularity}s")


def score_inner(reward: Reward, batch: RewardBatch) -> Tensor:
    """Returns the scores [B] of an inner reward, in batches of its `batch_size`, larger only to keep groups whole.

    Of a dense reward they are [B, K].
    """
    parts = [torch.cat(units) for units in pack(units_of(reward, batch), reward.batch_size)]
    if len(parts) < 2:
        return reward.score(batch)
    scores = [as_wide_as(batch, reward.score(select(batch, rows))) for rows in parts]
    return torch.cat(scores)[torch.cat(parts).argsort()]


def as_wide_as(batch: RewardBatch, scores: Tensor) -> Tensor:
    """Returns the dense scores [n, K] of some samples of a batch with the K of the whole batch, 0 behind them.

    Scores [n] of samples are returned as they are.
    """
    if scores.dim() == 1:
        return scores
    return torch.nn.functional.pad(scores, (0, batch.is_decision.shape[1] - scores.shape[1]))


def number_mask(reward: Reward, batch: RewardBatch) -> Tensor | None:
    """Returns [B, K] bool: where a dense reward has a number; None for a reward that is not dense."""
    if reward.granularity not in DENSE:
        return None
    return cast(Segmented, reward).ends(batch) if reward.granularity == "segment" else batch.is_decision


def only_numbers(reward: Reward, batch: RewardBatch, scores: Tensor) -> Tensor:
    """Returns scores made of those of `reward`: of a dense one [B, K] with 0 where it has no number."""
    mask = number_mask(reward, batch)
    return scores if mask is None else torch.where(mask.to(scores.device), scores, 0.0)


def for_each_number(values: Tensor, scores: Tensor) -> Tensor:
    """Returns the values [B] of samples so that they combine with scores [B] or, at each decision alike, [B, K]."""
    return values if scores.dim() == 1 else values[:, None]


def check_prompt(reward: Reward, prompt: Prompt) -> None:
    """Raises ValueError where the target lacks a field that the reward needs, or its own `check` refuses the prompt."""
    for need in sorted(need.removeprefix("target.") for need in reward.needs if need.startswith("target.")):
        if need not in prompt.target:
            raise ValueError(f"needs {need!r} in the target, got {', '.join(prompt.target) or 'nothing'}")
    if isinstance(reward, Checking):
        reward.check(prompt)


def is_changing(reward: Reward) -> bool:
    """Returns whether the same sample may score otherwise in another call: by noise, the iteration or a state."""
    return _has_own_state(reward) or RewardDeclaration.of(reward).is_changing


def _has_own_state(reward: Reward) -> bool:
    """Returns whether a reward has a state that is not only that of its inner rewards."""
    return isinstance(reward, Stateful) and not isinstance(reward, RewardWrapper)


def _rewards_in(name: str, value: Any) -> Iterator[tuple[str, Reward]]:
    """Yields the rewards in the value of a field, each with its name."""
    if isinstance(value, Reward):
        yield name, value
    elif isinstance(value, dict):
        for key, one in value.items():
            yield from _rewards_in(f"{name}.{key}", one)
    elif isinstance(value, tuple):
        for number, one in enumerate(value):
            yield from _rewards_in(f"{name}.{number}", one)


def _mapped(change: Callable[[Reward], Reward], value: Any) -> Any:
    """Returns the value with `change` applied to every reward in it, in the order of `_rewards_in`."""
    if isinstance(value, Reward):
        return change(value)
    if isinstance(value, dict):
        return {key: _mapped(change, one) for key, one in value.items()}
    if isinstance(value, tuple):
        return tuple(_mapped(change, one) for one in value)
    return value
