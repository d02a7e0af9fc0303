"""One or several judges that are asked the same questions, each once or with several votes, and who judges them."""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from statistics import fmean, pstdev
from typing import Protocol

from .memory import Ledger, Memory
from .prompt_files import JudgePrompt
from .questions import Question, Reply, UnansweredError
from .settings import Combine, JudgeModel

Reader = Callable[[Reply], float]  # the value of a reply; raises UnansweredError where it has none


class Asking(Protocol):
    """What a judge is here: an address, or a model on this machine."""

    def ask(self, questions: Sequence[Question], seeds: Sequence[int]) -> list[Reply | UnansweredError]:
        """Returns the reply to each question, or why there is none that counts."""
        ...


@dataclass(frozen=True)
class Meta:
    """Who judges the judges' replies, and how."""

    settings: JudgeModel
    judge: Asking
    file: JudgePrompt  # of the form yes_no
    reader: Reader  # of its replies: its trust in a vote, in [0, 1]
    kept: int  # votes on each question that count


@dataclass
class Panel:
    """The judges of a reward. A question that was answered before is not asked again."""

    judges: Sequence[tuple[JudgeModel, Asking]]
    votes: int  # of each judge to each question
    combine: Combine
    memory: Memory
    ledger: Ledger
    meta: Meta | None = None  # None: all votes count
    # questions without an answer in the present iteration: the core calls a reward that raised again, for each sample
    _failed: dict[str, UnansweredError] = field(default_factory=dict, init=False)
    _iteration: int = field(default=-1, init=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False)

    def values(
        self, questions: Sequence[Question], readers: Sequence[Reader], iteration: int
    ) -> list[float | UnansweredError]:
        """Returns the combined value of each question, or why there is none.

        A question counts where more than half of its votes can be read; the others are left out. A vote that the meta
        judge, where there is one, gives no trust that can be read counts as one that cannot be read.

        Raises:
            RunError: the budget is spent.
            ConfigError: an address refuses everything.
        """
        with self._lock:
            if iteration != self._iteration:
                self._iteration = iteration
                self._failed.clear()
        votes: list[list[float | UnansweredError]] = [[] for _ in questions]
        trusts: list[list[float | UnansweredError]] = [[] for _ in questions]
        for judge in range(len(self.judges)):
            for vote in range(self.votes):
                replies = self._ask(judge, vote, questions)
                found = [_value(reply, reader) for reply, reader in zip(replies, readers, strict=True)]
                for place, trust in enumerate(self._trust(questions, replies, found)):
                    votes[place].append(found[place])
                    trusts[place].append(trust)
        kept = len(self.judges) * self.votes if self.meta is None else self.meta.kept
        chosen = [most_trusted(*one, kept) for one in zip(votes, trusts, strict=True)]
        return [combined(one, self.combine) for one in chosen]

    def lowest(self, questions: Sequence[Question], readers: Sequence[Reader]) -> list[Reply | None]:
        """Returns, of all votes on each question, the reply with the lowest value, of equals the first.

        None where no vote can be read. A question that was answered before is not asked again.
        """
        lowest: list[tuple[float, Reply] | None] = [None] * len(questions)
        for judge in range(len(self.judges)):
            for vote in range(self.votes):
                for place, reply in enumerate(self._ask(judge, vote, questions)):
                    value = _value(reply, readers[place])
                    if isinstance(reply, UnansweredError) or isinstance(value, UnansweredError):
                        continue
                    known = lowest[place]
                    if known is None or value < known[0]:
                        lowest[place] = (value, reply)
        return [None if one is None else one[1] for one in lowest]

    def _trust(
        self,
        questions: Sequence[Question],
        replies: Sequence[Reply | UnansweredError],
        values: Sequence[float | UnansweredError],
    ) -> list[float | UnansweredError]:
        """Returns the meta judge's trust in each reply; of a reply without a value why there is none."""
        trusts: list[float | UnansweredError] = [v if isinstance(v, UnansweredError) else 1.0 for v in values]
        if self.meta is None:
            return trusts
        asked: dict[int, Question] = {}
        for place, (question, reply, value) in enumerate(zip(questions, replies, values, strict=True)):
            if not isinstance(reply, UnansweredError) and not isinstance(value, UnansweredError):
                asked[place] = _about(self.meta.file, question, reply)
        said = self._ask(len(self.judges), 0, list(asked.values())) if asked else []
        for place, one in zip(asked, said, strict=True):
            trusts[place] = _value(one, self.meta.reader)
        return trusts

    def _ask(self, number: int, vote: int, questions: Sequence[Question]) -> list[Reply | UnansweredError]:
        """Returns the replies of a judge, by its number, to questions that are asked for the nth time.

        The meta judge has the number after those of the judges.
        """
        meta = [] if self.meta is None else [(self.meta.settings, self.meta.judge)]
        settings, judge = [*self.judges, *meta][number]
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


def most_trusted(
    votes: Sequence[float | UnansweredError], trusts: Sequence[float | UnansweredError], kept: int
) -> list[float | UnansweredError]:
    """Returns the `kept` votes with the largest trust, of equal trust the first (arXiv 2504.02495).

    All votes, with an error in the place of those without a trust, where not more than half can be read.
    """
    known = [trust if isinstance(trust, UnansweredError) else vote for vote, trust in zip(votes, trusts, strict=True)]
    read = [
        (trust, vote)
        for vote, trust in zip(known, trusts, strict=True)
        if not isinstance(trust, UnansweredError) and not isinstance(vote, UnansweredError)
    ]
    if 2 * len(read) <= len(known):
        return known
    return [vote for _, vote in sorted(read, key=lambda one: -one[0])[:kept]]


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


def _about(file: JudgePrompt, question: Question, reply: Reply) -> Question:
    """Returns the question to a meta judge about the reply to a question, whose images it sees as well."""
    said = {"prompt": question.text, "answer": reply.text}
    words = () if file.critique else file.words
    return Question(file.ask(None, said), system=file.system, images=question.images, words=words)


def _seed(judge: int, vote: int, question: Question) -> int:
    return int.from_bytes(blake2b(f"{judge} {vote} {question.digest()}".encode(), digest_size=4).digest())


def _name(settings: JudgeModel, question: Question, vote: int) -> str:
    said = f"{settings.identity} {vote if settings.temperature > 0 else 0} {question.digest()}"
    return blake2b(said.encode(), digest_size=20).hexdigest()
