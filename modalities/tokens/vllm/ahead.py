"""Answers that the servers sample ahead: for the next rollout, while the run learns from the present one."""

import hashlib
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass, field

import torch
from torch import Tensor

from .protocol import Answer, Question, SamplingParams


def request_name(question: Question, sampling: SamplingParams, seed: int) -> int:
    """Returns a number of 63 bits for the request of one answer: equal where prompt, sampling and seed are equal.

    The contents of images do not enter: the seed is that of a prompt's number in one iteration of a run.
    """
    text = repr((question.read, sampling, seed))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little") >> 1


@dataclass
class Ahead:
    """The answers that were sampled ahead, by their `request_name`, and the thread that samples them.

    One rollout at a time is sampled ahead. Each answer is taken at most once.
    """

    answers: dict[int, Answer] = field(default_factory=dict)
    num_taken: int = 0  # so far
    _job: "Future[Mapping[int, Answer]] | None" = None

    def begin(self, sample: Callable[[], Mapping[int, Answer]]) -> None:
        """Lets a thread sample answers, in the place of all that were not taken; returns at once.

        The thread does not keep the process alive.
        """
        self.settle()
        self.answers, self._job = {}, Future()
        threading.Thread(target=_do, args=(self._job, sample), daemon=True, name="ahead").start()

    def settle(self) -> None:
        """Waits for the thread, if there is one. Raises, once, what it raised, such as the error of a server."""
        if self._job is not None:
            wait([self._job])
            job, self._job = self._job, None
            self.answers = dict(job.result())

    def take(self, name: int) -> Answer | None:
        """Returns an answer that was sampled ahead, and forgets it; None where there is none of this name."""
        answer = self.answers.pop(name, None)
        self.num_taken += answer is not None
        return answer

    def abandon(self) -> None:
        """Forgets the thread and its answers, without waiting."""
        self.answers, self._job = {}, None

    def records(self) -> list[dict[str, Tensor]]:
        """Returns tensors of one dimension for each answer that was not taken, for a checkpoint.

        Waits for the thread. Where the servers failed there are none, and `settle` will raise why: the progress of the
        run is saved all the same.
        """
        if self._job is not None and self._job.exception() is not None:
            return []
        self.settle()
        return [_record(name, answer) for name, answer in self.answers.items()]

    def restore(self, records: Sequence[Mapping[str, Tensor]]) -> None:
        """Restores the answers of a checkpoint, maybe those of several processes."""
        self._job, self.answers = None, dict(map(_restored, records))


def _do(job: "Future[Mapping[int, Answer]]", sample: Callable[[], Mapping[int, Answer]]) -> None:
    try:
        job.set_result(sample())
    except BaseException as error:  # raised again by `settle`
        job.set_exception(error)


def _record(name: int, answer: Answer) -> dict[str, Tensor]:
    support = answer.support or []
    return {
        "name": torch.tensor([name]),
        "tokens": torch.tensor(answer.tokens),
        "log_prob": torch.tensor(answer.log_probs, dtype=torch.float32),  # as a rollout keeps them
        "is_finished": torch.tensor([answer.is_finished]),
        "support": torch.tensor([token for ids in support for token in ids], dtype=torch.int64),
        "support_sizes": torch.tensor([len(ids) for ids in support], dtype=torch.int64),
    }


def _restored(record: Mapping[str, Tensor]) -> tuple[int, Answer]:
    sizes = record["support_sizes"].tolist()
    support = [ids.tolist() for ids in record["support"].split(sizes)] if sizes else None
    tokens, log_probs = record["tokens"].tolist(), record["log_prob"].tolist()
    return int(record["name"]), Answer(tokens, log_probs, bool(record["is_finished"]), support)
