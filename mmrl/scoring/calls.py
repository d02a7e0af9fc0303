"""One reward asked about a batch: cut as it likes, its failures found sample by sample."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import cast

import torch
from torch import Tensor

from mmrl.core.contracts import ConfigError, Reward, RewardBatch, RunError, Segmented
from mmrl.core.data import Outputs
from mmrl.core.declarations import RewardDeclaration
from mmrl.core.dense import DENSE, stray, widened
from mmrl.core.reward_batches import check_needs, pack, refuse_dense, select, units_of
from mmrl.system.errors import Failure, Interruption, describe, place
from mmrl.system.time_limits import Patience, Workers


@dataclass(frozen=True)
class RewardValues:
    """What one reward says of n samples."""

    values: Tensor  # [n] float32, NaN where it cannot judge; of a dense reward the sum over the decisions of a sample
    dense: Tensor | None = None  # [n, K] float32, NaN where it gives no number; None: the reward is not dense

    @classmethod
    def nothing(cls, count: int, width: int | None) -> "RewardValues":
        """Of samples that it cannot judge, with `width` decisions where the reward is dense."""
        return cls(torch.full((count,), torch.nan), None if width is None else torch.full((count, width), torch.nan))

    @classmethod
    def join(cls, parts: "Sequence[RewardValues]") -> "RewardValues":
        """All samples, in order."""
        dense = [part.dense for part in parts if part.dense is not None]
        width = max((numbers.shape[1] for numbers in dense), default=0)
        return cls(
            torch.cat([part.values for part in parts]),
            torch.cat([widened(numbers, width) for numbers in dense]) if dense else None,
        )


@dataclass(frozen=True)
class Answer:
    """What one reward says of a batch."""

    values: Tensor  # [B] float32, NaN where it cannot judge
    failure: str | None  # the first one, in words
    seconds: float  # that it took
    dense: Tensor | None = None  # [B, K] of a dense reward, as in `RewardValues`


@torch.no_grad()
def ask(name: str, reward: Reward, everyone: RewardBatch, patience: Patience | None = None) -> Answer:
    """Asks in batches of the reward's own size, `concurrency` of them at once where it says so.

    A reward that raises is asked again about each sample alone (each group or episode, if it judges those), to find
    the ones that it cannot judge: these, and NaN or infinity, are NaN.
    Raises ConfigError where it needs what the batch does not have, returns a wrong shape or type, or changes the
    tensors of the batch in place: the rewards behind it would judge other samples. Raises HangError where a call takes
    longer than `patience` has.
    """
    patience = patience or Patience()
    started, versions = time.perf_counter(), _versions(everyone.outputs)
    check_needs(name, reward, everyone)
    if everyone.num_decisions is None:
        refuse_dense(name, reward)
    packs = pack(units_of(reward, everyone), reward.batch_size)

    @torch.no_grad()  # which holds for a thread only
    def scored(units: list[Tensor]) -> tuple[RewardValues, str | None]:
        return _ask_units(name, reward, everyone, units, patience)

    concurrency = RewardDeclaration.of(reward).concurrency
    if concurrency > 1 and len(packs) > 1:
        with Workers(concurrency, f"reward {name}", patience) as workers:
            jobs = [workers.submit(scored, units) for units in packs]
            answers = [patience.result(job) for job in jobs]
    else:
        answers = [scored(units) for units in packs]
    if changed := [key for key, version in _versions(everyone.outputs).items() if versions[key] != version]:
        raise ConfigError(f"reward {name!r} changes {changed[0]} of its batch in place; it must work on a copy")
    found = RewardValues.nothing(len(everyone), _width(reward, everyone))
    if answers:
        joined = RewardValues.join([answer for answer, _ in answers])
        order = torch.cat([rows for units in packs for rows in units]).argsort()  # every sample is in one unit
        dense = None if joined.dense is None else joined.dense[order]
        found = RewardValues(joined.values[order], dense)
    first = next((failure for _, failure in answers if failure), None)
    return Answer(found.values, first, time.perf_counter() - started, found.dense)


def _versions(outputs: Outputs) -> dict[str, int]:
    """How often each tensor of a batch was changed in place; those of inference mode do not say."""
    tensors = {item.name: getattr(outputs, item.name) for item in fields(outputs)}
    return {key: one._version for key, one in tensors.items() if isinstance(one, Tensor) and not one.is_inference()}


def _width(reward: Reward, batch: RewardBatch) -> int | None:
    return batch.is_decision.shape[1] if reward.granularity in DENSE else None


def ask_once(
    name: str, reward: Reward, batch: RewardBatch, patience: Patience
) -> tuple[RewardValues | None, str | None]:
    """One call of a reward: what it says, NaN where that is not finite; None where it raised; and the failure.

    The only place that catches what a reward raises: anything means that it cannot judge this batch, whatever library
    it came from, an attempt to end the process too. Our own two errors stay what they are; Ctrl-C ends.
    """
    with patience.call(f"reward {name!r}, asked about {len(batch)} samples,", reward):
        try:
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
    failure = f"{name}: returned {float(answer[bad][0])}" if bad.any() else None
    return RewardValues(torch.where(bad, torch.nan, answer)), failure


def _check(name: str, answer: object, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    if not isinstance(answer, Tensor) or answer.shape != shape or answer.dtype != dtype:
        got = f"{answer.dtype} {list(answer.shape)}" if isinstance(answer, Tensor) else type(answer).__name__
        raise ConfigError(f"reward {name!r} must return a {dtype} tensor {list(shape)}, got {got}")


def _of_decisions(
    name: str, answer: Tensor, batch: RewardBatch, ends: Tensor | None
) -> tuple[RewardValues | None, str | None]:
    """The numbers [n, K] of a dense reward, and their sums.

    Raises ConfigError for numbers where there is no decision or no end of a segment, and for segments without an end.
    """
    is_number = is_decision = batch.is_decision.to(answer.device)
    if ends is not None:
        _check(f"{name}.ends", ends, torch.bool, tuple(answer.shape))
        is_number = ends.to(answer.device)
        last = is_decision & ~is_decision.roll(-1, 1)
        last[:, -1:] = is_decision[:, -1:]
        if (is_number & ~is_decision).any() or (last & ~is_number).any():
            raise ConfigError(f"reward {name!r}: a segment must end at a sample's last decision, and none behind it")
    if (row := stray(answer, is_number)) is not None:
        raise ConfigError(
            f"reward {name!r} must be 0 behind the last decision of a sample, and in a segment before its last token; "
            f"sample {row} of the batch is not"
        )
    total = torch.where(is_number, answer, 0.0).double().sum(1).float()
    bad = ~total.isfinite() | ~is_decision.any(1)  # a sum of inf and -inf is NaN
    wrong = answer[~answer.isfinite()]
    said = f"returned {float(wrong[0])}" if len(wrong) else "a sum that is no number, or a sample without decisions"
    dense = torch.where(is_number & answer.isfinite(), answer, torch.nan)
    return RewardValues(torch.where(bad, torch.nan, total), dense.detach()), f"{name}: {said}" if bad.any() else None


def _ask_units(
    name: str, reward: Reward, everyone: RewardBatch, units: list[Tensor], patience: Patience
) -> tuple[RewardValues, str | None]:
    """What it says of the samples of some units, in their order: asked together, and if that fails each unit alone."""
    batch = select(everyone, torch.cat(units))
    found, failure = ask_once(name, reward, batch, patience)
    if found is not None:
        return RewardValues(found.values.cpu(), None if found.dense is None else found.dense.cpu()), failure
    if len(units) == 1:
        return RewardValues.nothing(len(batch), _width(reward, batch)), failure
    alone = [_ask_units(name, reward, everyone, [unit], patience) for unit in units]
    return RewardValues.join([found for found, _ in alone]), next((message for _, message in alone if message), None)
