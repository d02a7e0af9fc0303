"""Replies that are kept, in memory and on the disk, and what the questions have cost."""

import json
import os
import threading
from collections import OrderedDict
from dataclasses import asdict, astuple, dataclass, replace
from pathlib import Path
from uuid import uuid4

from mmrl.core.contracts import ConfigError, RunError
from mmrl.system.files import read_json, replace_file

from .questions import Reply
from .settings import JudgeModel

KEPT = 4096  # replies in memory, the last ones


@dataclass(frozen=True)
class Spent:
    """What the questions of a judge have cost, replies from the memory not counted."""

    requests: int = 0
    prompt_tokens: int = 0
    reply_tokens: int = 0
    cost: float = 0.0  # in the unit of the prices

    @property
    def tokens(self) -> int:
        return self.prompt_tokens + self.reply_tokens

    def __add__(self, other: "Spent") -> "Spent":
        return Spent(*(mine + its for mine, its in zip(astuple(self), astuple(other), strict=True)))


class Ledger:
    """The spending of a reward. It refuses to go on where a budget is spent; with a folder it survives the process.

    Each process writes a file of its own; what the others spend meanwhile, it does not see.
    """

    def __init__(self, folder: Path | None, max_tokens: int | None, max_cost: float | None) -> None:
        """Raises ConfigError where a file does not say what was spent.

        Args:
            folder: of the files with what was spent before; None: it begins at nothing.
            max_tokens: after which nothing more is asked; None: no bound.
            max_cost: the same, of the cost.
        """
        self._max_tokens, self._max_cost, self._lock = max_tokens, max_cost, threading.Lock()
        earlier = [] if folder is None else sorted(folder.glob("spent-*.json"))
        self._earlier = sum(map(_read_spending, earlier), Spent())
        self._path = None if folder is None else folder / f"spent-{uuid4().hex}.json"
        self._own = Spent()

    @property
    def spent(self) -> Spent:
        """Returns what was spent, also by earlier processes."""
        return self._earlier + self._own

    def check(self) -> None:
        """Raises RunError where a budget is spent: the run can be resumed with a larger one, and nothing is lost."""
        spent = self.spent
        for name, most, used in (
            ("max_tokens_spent", self._max_tokens, spent.tokens),
            ("max_cost", self._max_cost, spent.cost),
        ):
            if most is not None and used >= most:
                raise RunError(
                    f"the judge's budget is spent: {used:,.6g} of {name} {most:,.6g} after {spent.requests:,} "
                    f"requests; give a larger {name} and resume"
                )

    def add(self, reply: Reply, judge: JudgeModel) -> None:
        """Counts a reply of a judge."""
        cost = (reply.prompt_tokens * judge.price[0] + reply.reply_tokens * judge.price[1]) / 1e6
        with self._lock:
            self._own += Spent(1, reply.prompt_tokens, reply.reply_tokens, cost)

    def save(self) -> None:
        """Writes what this process has spent."""
        with self._lock:
            if self._path is not None and self._own != Spent():
                replace_file(self._path, json.dumps(asdict(self._own)).encode())


class Memory:
    """Replies by the judge and its question: the last `KEPT` in memory, all of them in a folder where it has one."""

    def __init__(self, folder: Path | None) -> None:
        """Raises ConfigError where the folder cannot be made."""
        self._folder = folder
        self._known: OrderedDict[str, Reply] = OrderedDict()
        self._lock = threading.Lock()
        if folder is not None:
            try:
                folder.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise ConfigError(f"cache: cannot make the folder {str(folder)!r}: {error}") from error

    def get(self, name: str) -> Reply | None:
        """Returns a kept reply; None where there is none, or its file is broken."""
        with self._lock:
            if (known := self._known.get(name)) is not None:
                return known
        if self._folder is None or not self._file(name).exists():
            return None
        try:
            content = read_json(self._file(name))
            log_probs = content["log_probs"]
            return Reply(str(content["text"]), None if log_probs is None else tuple(map(float, log_probs)))
        except (ConfigError, ValueError, KeyError, TypeError):  # cut short by a crash: it is asked again
            return None

    def keep(self, name: str, reply: Reply) -> None:
        """Keeps a reply."""
        with self._lock:
            self._known[name] = replace(reply, prompt_tokens=0, reply_tokens=0)
            while len(self._known) > KEPT:
                self._known.popitem(last=False)
        if self._folder is not None:
            path = self._file(name)
            path.parent.mkdir(exist_ok=True)
            temporary = path.with_name(f".{uuid4().hex}")  # several processes may keep the same reply
            temporary.write_text(json.dumps({"text": reply.text, "log_probs": reply.log_probs}), "utf-8")
            os.replace(temporary, path)

    def _file(self, name: str) -> Path:
        assert self._folder is not None
        return self._folder / name[:2] / f"{name}.json"


def _read_spending(path: Path) -> Spent:
    """Raises ConfigError for a file that does not hold what was spent: nobody would know how much is left."""
    try:
        content = read_json(path)
        requests, prompt, written = (int(content[name]) for name in ("requests", "prompt_tokens", "reply_tokens"))
        return Spent(requests, prompt, written, float(content["cost"]))
    except (ConfigError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"cache: {str(path)!r} does not say what was spent ({error}); remove it to forget") from error
