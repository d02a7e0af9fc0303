"""One reward asked about a batch: cut as it likes, its failures found sample by sample."""

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import torch
from torch import Tensor

from mmrl.contracts import ConfigError, Reward, RewardBatch, RunError
from mmrl.errors import Failure, place
from mmrl.reward_batches import check_needs, pack, select, units_of


@dataclass(frozen=True)
class Answer:
    """What one reward says of a batch."""

    values: Tensor  # [B] float32, NaN where it cannot judge
    failure: str | None  # the first one, in words
    seconds: float  # that it took


@torch.no_grad()
def ask(name: str, reward: Reward, everyone: RewardBatch) -> Answer:
    """Asks in batches of the reward's own size, `concurrency` of them at once where it says so.

    A reward that raises is asked again about each sample alone (each group or episode, if it judges those), to find
    the ones that it cannot judge: these, and NaN or infinity, are NaN.
    Raises ConfigError where it needs what the batch does not have, or returns a wrong shape or type.
    """
    started = time.perf_counter()
    check_needs(name, reward, everyone)
    values, first = torch.full((len(everyone),), torch.nan), None
    packs = pack(units_of(reward, everyone), reward.batch_size)

    @torch.no_grad()  # which holds for a thread only
    def asked(units: list[Tensor]) -> tuple[Tensor, str | None]:
        return _ask_units(name, reward, everyone, units)

    concurrency = getattr(reward, "concurrency", 1)
    if concurrency > 1 and len(packs) > 1:
        with ThreadPoolExecutor(concurrency, thread_name_prefix=f"reward {name}") as pool:
            answers = list(pool.map(asked, packs))
    else:
        answers = [asked(units) for units in packs]
    for units, (answer, failure) in zip(packs, answers, strict=True):
        values[torch.cat(units)] = answer
        first = first or failure
    return Answer(values, first, time.perf_counter() - started)


def ask_once(name: str, reward: Reward, batch: RewardBatch) -> tuple[Tensor | None, str | None]:
    """One call of a reward: its scores [B], NaN where they are not finite; None where it raised; and the failure.

    The only place that catches what a reward raises: any Exception means that it cannot judge this batch, whatever
    library it came from, and so does an attempt to end the process. Our own two errors stay what they are; Ctrl-C ends.
    """
    try:
        answer = reward.score(batch)
    except (ConfigError, RunError):
        raise
    except (Exception, SystemExit) as error:
        return None, Failure(f"{name}: {type(error).__name__}: {error}{place(error, reward)}", error)
    if not isinstance(answer, Tensor) or answer.shape != (len(batch),) or answer.dtype != torch.float32:
        got = f"{answer.dtype} {list(answer.shape)}" if isinstance(answer, Tensor) else type(answer).__name__
        raise ConfigError(f"reward {name!r} must return a torch.float32 tensor [{len(batch)}], got {got}")
    bad = ~answer.isfinite()
    failure = f"{name}: returned {float(answer[bad][0])}" if bad.any() else None
    return torch.where(bad, torch.nan, answer), failure


def _ask_units(name: str, reward: Reward, everyone: RewardBatch, units: list[Tensor]) -> tuple[Tensor, str | None]:
    """Values of the samples of some units, in their order: asked together, and if that fails each unit alone."""
    rows = torch.cat(units)
    answer, failure = ask_once(name, reward, select(everyone, rows))
    if answer is not None:
        return answer.cpu(), failure
    if len(units) == 1:
        return torch.full((len(rows),), torch.nan), failure
    alone = [_ask_units(name, reward, everyone, [unit]) for unit in units]
    return torch.cat([values for values, _ in alone]), next((message for _, message in alone if message), None)
