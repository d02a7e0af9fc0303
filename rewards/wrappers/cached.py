"""A memory of scores: any reward, called once for the same sample."""

import math
import threading
from collections import OrderedDict
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field, fields
from hashlib import blake2b
from typing import Annotated, Any, ClassVar

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from mmrl.core.contracts import Reward, RewardBatch
from mmrl.core.data import Outputs
from mmrl.core.reward_batches import select

from ..base.wrapper import RewardWrapper, check_judges_outputs_alone, check_judges_samples, is_changing


@dataclass
class Cached(RewardWrapper):
    """A memory of scores: the earlier score of `reward` for the same prompt and output, else its score now.

    For slow judges of answers that come up again: greedy evaluation, groups that have converged, a resumed run within
    one process. The last `size` different samples are remembered, in memory only: the scores do not depend on the
    memory, so there is no state to save. Two samples are the same where their prompts (text, system, media, target) and
    all of their outputs are. NaN is not remembered: it may have been the server's fault. The inner reward must judge
    samples by these alone: a reward that draws noise (`dithered`), follows the iteration (`annealed`) or has a state
    must stand around this one, not inside.

    Raises ValueError for a reward that does not judge samples or has a state.
    """

    reward: Reward  # the reward whose scores are remembered
    size: Annotated[int, Field(ge=1)] = 65536  # samples that are remembered, the last ones
    _known: "OrderedDict[Hashable, float]" = field(default_factory=OrderedDict, init=False, repr=False, compare=False)
    _lock: Any = field(default_factory=threading.Lock, init=False, repr=False, compare=False)

    source: ClassVar[str] = "memoisation, Michie 1968, doi 10.1038/218019a0"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_judges_samples(self.reward)
        check_judges_outputs_alone(self.reward)
        if is_changing(self.reward):
            raise ValueError("the inner reward changes from call to call; put cached inside of it")
        self.inherit(self.reward, differentiable=False)  # a number from the past has no gradient

    @torch.no_grad()
    def score(self, batch: RewardBatch) -> Tensor:
        """Returns the scores [B] float32; raises what the inner reward raises."""
        names = [_name(batch, row) for row in range(len(batch))]
        with self._lock:
            scores = {name: self._known[name] for name in names if name in self._known}
        missing = {name: row for row, name in reversed(list(enumerate(names))) if name not in scores}
        if missing:
            new = self.reward.score(select(batch, torch.tensor(list(missing.values())))).tolist()
            scores |= dict(zip(missing, new, strict=True))
        with self._lock:
            for name in (name for name in names if not math.isnan(scores[name])):
                self._known[name] = scores[name]
                self._known.move_to_end(name)
            while len(self._known) > self.size:
                self._known.popitem(last=False)
        return torch.tensor([scores[name] for name in names], dtype=torch.float32)


def _name(batch: RewardBatch, row: int) -> Hashable:
    """Returns a key that is equal for samples that are the same."""
    prompt, outputs = batch.prompts[row], batch.outputs
    values = ((item.name, getattr(outputs, item.name)) for item in fields(Outputs))
    frozen = tuple((name, _frozen(value[row])) for name, value in values if value is not None)
    return (prompt.text, prompt.system, prompt.media, prompt.clips, _written(prompt.target), frozen)


def _written(value: Any) -> Hashable:
    """Returns a value of a target part by part, since `repr` leaves out the middle of a large array."""
    if isinstance(value, Mapping):
        return tuple((repr(key), _written(value[key])) for key in sorted(value, key=repr))
    if isinstance(value, list | tuple):
        return type(value).__name__, tuple(map(_written, value))
    if isinstance(value, np.ndarray):
        plain = _written(value.tolist()) if value.dtype.hasobject else blake2b(value.tobytes()).hexdigest()
        return value.dtype.str, value.shape, plain
    return _frozen(value) if isinstance(value, Tensor) else repr(value)


def _frozen(value: Any) -> Hashable:
    """Returns a tensor as its shape and the digest of its bytes; other values are hashable as they are."""
    if not isinstance(value, Tensor):
        return value  # type: ignore[no-any-return]
    plain = value.detach().cpu().contiguous()
    return (
        str(plain.dtype),
        tuple(plain.shape),
        blake2b(plain.flatten().view(torch.uint8).numpy().tobytes()).hexdigest(),
    )
