"""Calls of one reward: batches cut to its size, and its failures located sample by sample."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import cast

import torch
from torch import Tensor

from mmrl.core.contracts import ConfigError, Fitted, Reward, RewardBatch, RunError, Segmented
from mmrl.core.data import Outputs
from mmrl.core.declarations import RewardDeclaration
from mmrl.core.dense import DENSE, stacked, stray
from mmrl.core.reward_batches import check_needs, pack, refuse_dense, select, units_of
from mmrl.system.errors import Failure, Interruption, describe, place
from mmrl.system.time_limits import Patience, Workers


@dataclass(frozen=True)
class RewardValues:
    """The values of one reward for n samples."""

    values: Tensor  # [n] float32, NaN: not judged; of a dense reward the sum over the decisions of a sample
    dense: Tensor | None = None  # [n, K] float32, NaN: no number there; None: the reward is not dense
    examples: Tensor | None = None  # [n, D] float32, NaN: nothing is learned; None: the reward is not fitted

    @classmethod
    def nothing(cls, count: int, width: int | None) -> "RewardValues":
        """Returns NaN for `count` samples that were not judged, with `width` decisions where the reward is dense."""
        return cls(torch.full((count,), torch.nan), None if width is None else torch.full((count, width), torch.nan))

    @classmethod
    def join(cls, parts: "Sequence[RewardValues]") -> "RewardValues":
        """Returns the values of all samples, in order."""
        counts = [len(part.values) for part in parts]
        dense, examples = ([part.dense for part in parts], [part.examples for part in parts])
        values = torch.cat([part.values for part in parts])
        return cls(values, _one_table(counts, dense), _one_table(counts, examples))

    def __getitem__(self, rows: Tensor) -> "RewardValues":
        """Returns the values of the samples `rows`, [n] int64."""
        dense, examples = (None if one is None else one[rows] for one in (self.dense, self.examples))
        return RewardValues(self.values[rows], dense, examples)

    def cpu(self) -> "RewardValues":
        """Returns the values in the CPU's memory."""
        dense, examples = (None if one is None else one.cpu() for one in (self.dense, self.examples))
        return RewardValues(self.values.cpu(), dense, examples)


def _one_table(counts: Sequence[int], parts: Sequence[Tensor | None]) -> Tensor | None:
    """Returns tables [n_i, K_i] of `counts` samples as one of the largest K_i, filled with NaN; None: no part has one.

    A part without a table is NaN.
    """
    if all(part is None for part in parts):
        return None
    return stacked([torch.zeros(n, 0) if part is None else part for n, part in zip(counts, parts, strict=True)])


@dataclass(frozen=True)
class Answer:
    """The result of one reward for a batch."""

    values: Tensor  # [B] float32, NaN: not judged
    failure: str | None  # the first one, in words
    seconds: float  # that the calls took
    dense: Tensor | None = None  # [B, K] of a dense reward, as in `RewardValues`
    examples: Tensor | None = None  # [B, D] of a fitted reward, as in `RewardValues`


@torch.no_grad()
def call_reward(name: str, reward: Reward, everyone: RewardBatch, patience: Patience | None = None) -> Answer:
    """Calls a reward in batches of its own size, `concurrency` of them at once where it declares so.

    A reward that raises is called again for each sample alone (each group or episode, if it judges those). The samples
    that it cannot judge, and those with NaN or infinity, are NaN.
    Raises:
        ConfigError: the reward needs what the batch does not have, returns a wrong shape or type, or changes the
            tensors of the batch in place, which would change the samples of the rewards after it.
        HangError: a call takes longer than `patience` allows.
    """
    patience = patience or Patience()
    if everyone.outputs.each is not None:
        return _call_by_size(name, reward, everyone, patience)
    started, versions = time.perf_counter(), _versions(everyone.outputs)
    check_needs(name, reward, everyone)
    if everyone.num_decisions is None:
        refuse_dense(name, reward)
    packs = pack(units_of(reward, everyone), reward.batch_size)

    @torch.no_grad()  # which holds for a thread only
    def scored(units: list[Tensor]) -> tuple[RewardValues, str | None]:
        return _call_units(name, reward, everyone, units, patience)

    concurrency = RewardDeclaration.of(reward).concurrency
    if concurrency > 1 and len(packs) > 1:
        with Workers(concurrency, f"reward {name}", patience) as workers:
            jobs = [workers.submit(scored, units) for units in packs]
            answers = [patience.result(job) for job in jobs]
    else:
        answers = [scored(units) for units in packs]
    if changed := [key for key, version in _versions(everyone.outputs).items() if versions[key] != version]:
        raise ConfigError(f"reward {name!r} changes {changed[0]} of its batch in place; it must work on a copy")
    values = RewardValues.nothing(len(everyone), _width(reward, everyone))
    if answers:
        joined = RewardValues.join([answer for answer, _ in answers])
        values = joined[torch.cat([rows for units in packs for rows in units]).argsort()]  # each sample is in one unit
    first = next((failure for _, failure in answers if failure), None)
    return Answer(values.values, first, time.perf_counter() - started, values.dense, values.examples)


def _call_by_size(name: str, reward: Reward, everyone: RewardBatch, patience: Patience) -> Answer:
    """Returns the answer for samples of several sizes, in batches of one size; no group has two."""
    parts = everyone.outputs.rows_by_size()
    answers = [call_reward(name, reward, select(everyone, rows), patience) for rows in parts]
    joined = RewardValues.join([RewardValues(answer.values, answer.dense, answer.examples) for answer in answers])
    values, first = joined[torch.cat(parts).argsort()], next((one.failure for one in answers if one.failure), None)
    return Answer(values.values, first, sum(one.seconds for one in answers), values.dense, values.examples)


def _versions(outputs: Outputs) -> dict[str, int]:
    """Returns how often each tensor of a batch was changed in place; tensors of inference mode do not record it."""
    tensors = {item.name: getattr(outputs, item.name) for item in fields(outputs)}
    return {key: one._version for key, one in tensors.items() if isinstance(one, Tensor) and not one.is_inference()}


def _width(reward: Reward, batch: RewardBatch) -> int | None:
    return batch.is_decision.shape[1] if reward.granularity in DENSE else None


def call_once(
    name: str, reward: Reward, batch: RewardBatch, patience: Patience
) -> tuple[RewardValues | None, str | None]:
    """Calls a reward once. Returns its values, NaN where not finite; None where it raised; and the failure.

    This is the only place that catches an exception of a reward: any exception, also an attempt to end the process,
    means that the reward cannot judge this batch. ConfigError and HangError are raised on, and Ctrl-C ends the run.
    """
    with patience.call(f"reward {name!r}, called with {len(batch)} samples,", reward):
        try:
            examples: Tensor | None = None
            if isinstance(reward, Fitted) and not torch.is_grad_enabled():
                answer, examples = reward.score_with_examples(batch)
            else:
                answer = reward.score(batch)
            ends = cast(Segmented, reward).ends(batch) if reward.granularity == "segment" else None
        except (ConfigError, RunError, KeyboardInterrupt, Interruption):
            raise
        except BaseException as error:
            return None, Failure(f"{name}: {describe(error)}{place(error, reward)}", error)
    width = _width(reward, batch)
    _check(name, answer, torch.float32, (len(batch),) if width is None else (len(batch), width))
    if width is not None:
        return _of_decisions(name, answer, batch, ends)
    bad = ~answer.isfinite()
    failure = f"{name}: returned {float(answer[bad][0].detach())}" if bad.any() else None
    if examples is not None and (examples.dim() != 2 or examples.dtype != torch.float32 or len(examples) != len(batch)):
        raise ConfigError(f"reward {name!r} must learn from a float32 tensor [{len(batch)}, D], got {_shown(examples)}")
    return RewardValues(torch.where(bad, torch.nan, answer), examples=examples), failure


def _shown(tensor: Tensor) -> str:
    return f"{tensor.dtype} {list(tensor.shape)}"


def _check(name: str, answer: object, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    if not isinstance(answer, Tensor) or answer.shape != shape or answer.dtype != dtype:
        got = _shown(answer) if isinstance(answer, Tensor) else type(answer).__name__
        raise ConfigError(f"reward {name!r} must return a {dtype} tensor {list(shape)}, got {got}")


def last_decisions(is_decision: Tensor) -> Tensor:
    """Returns which places of [n, K] are followed by no decision and are one: the last decision of each sample."""
    last = is_decision & ~is_decision.roll(-1, 1)
    last[:, -1:] = is_decision[:, -1:]
    return last


def _of_decisions(
    name: str, answer: Tensor, batch: RewardBatch, ends: Tensor | None
) -> tuple[RewardValues | None, str | None]:
    """Returns the values [n, K] of a dense reward, and their sums [n].

    Raises ConfigError for values where there is no decision or no end of a segment, and for segments without an end.
    """
    is_number = is_decision = batch.is_decision.to(answer.device)
    if ends is not None:
        _check(f"{name}.ends", ends, torch.bool, tuple(answer.shape))
        is_number = ends.to(answer.device)
        if (is_number & ~is_decision).any() or (last_decisions(is_decision) & ~is_number).any():
            raise ConfigError(f"reward {name!r}: a segment must end at a sample's last decision, and none behind it")
    if (row := stray(answer, is_number)) is not None:
        raise ConfigError(
            f"reward {name!r} must be 0 behind the last decision of a sample, and in a segment before its last token; "
            f"sample {row} of the batch is not"
        )
    total = torch.where(is_number, answer, 0.0).double().sum(1).float()
    bad = ~total.isfinite() | ~is_decision.any(1)  # a sum of inf and -inf is NaN
    wrong = answer[~answer.isfinite()]
    reason = f"returned {float(wrong[0])}" if len(wrong) else "a sum that is no number, or a sample without decisions"
    dense = torch.where(is_number & answer.isfinite(), answer, torch.nan)
    return RewardValues(torch.where(bad, torch.nan, total), dense.detach()), f"{name}: {reason}" if bad.any() else None


def _call_units(
    name: str, reward: Reward, everyone: RewardBatch, units: list[Tensor], patience: Patience
) -> tuple[RewardValues, str | None]:
    """Returns the values of some units' samples, in order, of one call, or of one per unit where that fails."""
    batch = select(everyone, torch.cat(units))
    scored, failure = call_once(name, reward, batch, patience)
    if scored is not None:
        return scored.cpu(), failure
    if len(units) == 1:
        return RewardValues.nothing(len(batch), _width(reward, batch)), failure
    alone = [_call_units(name, reward, everyone, [unit], patience) for unit in units]
    return RewardValues.join([values for values, _ in alone]), next((message for _, message in alone if message), None)
