"""One or several judges that are asked the same questions, each once or with several votes."""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from statistics import fmean, pstdev
from typing import Protocol

from .memory import Ledger, Memory
from .questions import Question, Reply, UnansweredError
from .settings import Combine, JudgeModel

Reader = Callable[[Reply], float]  # the value of a reply; raises UnansweredError where it has none


class Asking(Protocol):
    """What a judge is here: an address, or a model on this machine."""

    def ask(self, questions: Sequence[Question], seeds: Sequence[int]) -> list[Reply | UnansweredError]:
        """Returns the reply to each question, or why there is none that counts."""
        ...


@dataclass
class Panel:
    """The judges of a reward. A question that was answered before is not asked again."""

    judges: Sequence[tuple[JudgeModel, Asking]]
    votes: int  # of each judge to each question
    combine: Combine
    memory: Memory
    ledger: Ledger
    # questions without an answer in the present iteration: the core calls a reward that raised again, for each sample
    _failed: dict[str, UnansweredError] = field(default_factory=dict, init=False)
    _iteration: int = field(default=-1, init=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False)

    def values(
        self, questions: Sequence[Question], readers: Sequence[Reader], iteration: int
    ) -> list[float | UnansweredError]:
        """Returns the combined value of each question, or why there is none.

        A question counts where more than half of its votes can be read; the others are left out.

        Raises:
            RunError: the budget is spent.
            ConfigError: an address refuses everything.
        """
        with self._lock:
            if iteration != self._iteration:
                self._iteration = iteration
                self._failed.clear()
        votes: list[list[float | UnansweredError]] = [[] for _ in questions]
        for judge in range(len(self.judges)):
            for vote in range(self.votes):
                replies = self._ask(judge, vote, questions)
                for place, (reply, reader) in enumerate(zip(replies, readers, strict=True)):
                    votes[place].append(_value(reply, reader))
        return [combined(one, self.combine) for one in votes]

    def _ask(self, number: int, vote: int, questions: Sequence[Question]) -> list[Reply | UnansweredError]:
        """Returns the replies of a judge, by its number, to questions that are asked for the nth time."""
        settings, judge = self.judges[number]
        names = [_name(settings, question, vote) for question in questions]
        known: dict[str, Reply | UnansweredError] = {}
        for name in names:
            with self._lock:
                kept = self._failed.get(name)
            if (reply := kept or self.memory.get(name)) is not None:
                known[name] = reply
        new = {name: question for name, question in zip(names, questions, strict=True) if name not in known}
        if new:
            self.ledger.check()
            # not of a judge's name, which may be a folder: wherever a model lies, it replies the same
            seeds = [_seed(number, vote, question) for question in new.values()]
            try:
                for name, reply in zip(new, judge.ask(list(new.values()), seeds), strict=True):
                    known[name] = reply
                    self._keep(name, reply, settings)
            finally:
                self.ledger.save()
        return [known[name] for name in names]

    def _keep(self, name: str, reply: Reply | UnansweredError, settings: JudgeModel) -> None:
        if isinstance(reply, UnansweredError):
            with self._lock:
                self._failed[name] = reply
        else:
            self.ledger.add(reply, settings)
            self.memory.keep(name, reply)


def combined(votes: Sequence[float | UnansweredError], combine: Combine) -> float | UnansweredError:
    """Returns the mean of votes, their minimum, or their mean minus their standard deviation (of all, not of a sample).

    An UnansweredError, the first one, where not more than half of the votes can be read.
    """
    read = [vote for vote in votes if not isinstance(vote, UnansweredError)]
    if 2 * len(read) <= len(votes):
        return next(vote for vote in votes if isinstance(vote, UnansweredError))
    if combine == "min":
        return min(read)
    return fmean(read) - (pstdev(read) if combine == "mean_minus_std" else 0.0)


def _value(reply: Reply | UnansweredError, reader: Reader) -> float | UnansweredError:
    if isinstance(reply, UnansweredError):
        return reply
    try:
        return reader(reply)
    except UnansweredError as error:
        return error


def _seed(judge: int, vote: int, question: Question) -> int:
    return int.from_bytes(blake2b(f"{judge} {vote} {question.digest()}".encode(), digest_size=4).digest())


def _name(settings: JudgeModel, question: Question, vote: int) -> str:
    said = f"{settings.identity} {vote if settings.temperature > 0 else 0} {question.digest()}"
    return blake2b(said.encode(), digest_size=20).hexdigest()
