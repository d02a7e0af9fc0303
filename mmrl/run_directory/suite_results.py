"""The results of a suite, sample by sample: a file that grows with every chunk, by which a killed suite goes on."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from mmrl.system.errors import ConfigError, RunError
from mmrl.system.files import NOT_JSON, flush, replace_file

FILE = "results.jsonl"


@dataclass(frozen=True)
class SampleResult:
    """What was measured of one sample of a prompt."""

    prompt: int  # the number of the prompt
    sample: int  # the number of the sample among those of its prompt
    text: str  # of the prompt
    scores: Mapping[str, float | None]  # by reward; None: it could not judge
    total: float | None  # the weighted sum; None where a reward that counts could not judge
    failure: str | None = None  # why, in words

    def score(self, reward: str | None) -> float | None:
        """Returns the score by a reward, or the weighted sum without one."""
        return self.total if reward is None else self.scores.get(reward)


@dataclass
class ResultsFile:
    """`results.jsonl` in the folder of a suite: its first line says what it is bound to, each other one is a sample.

    Rows that were written for another binding (other weights, another suite file, other prompts) are left behind.
    """

    folder: Path
    bound: Mapping[str, str]
    rows: dict[tuple[int, int], SampleResult] = field(default_factory=dict)  # by prompt and sample

    @property
    def path(self) -> Path:
        """Returns the path of the file."""
        return self.folder / FILE

    def open(self) -> list[str]:
        """Reads the rows that are there, or begins anew; returns which parts of an earlier binding are others now.

        Raises RunError where the folder cannot be written.
        """
        lines = self._lines()
        before = lines[0].get("bound", {}) if lines else dict(self.bound)
        others = sorted(name for name in {*before, *self.bound} if before.get(name) != self.bound.get(name))
        if not others:
            for line in lines[1:]:
                row = SampleResult(**line)
                self.rows[row.prompt, row.sample] = row
        content = [{"bound": dict(self.bound)}, *(asdict(row) for row in self.rows.values())]
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            replace_file(self.path, "".join(json.dumps(line) + "\n" for line in content).encode())
        except OSError as error:
            raise RunError(f"cannot write {self.path}: {error}") from error
        return others

    def add(self, rows: Sequence[SampleResult]) -> None:
        """Appends rows, whole on the disk when this returns. Raises RunError where they cannot be written."""
        try:
            with self.path.open("a", encoding="utf-8") as file:
                file.write("".join(json.dumps(asdict(row)) + "\n" for row in rows))
            flush(self.path)
        except OSError as error:
            raise RunError(f"cannot write {self.path}: {error}; make room on the disk and start again") from error
        self.rows |= {(row.prompt, row.sample): row for row in rows}

    def done(self, samples: int) -> list[int]:
        """Returns the numbers of the prompts of which so many samples were judged; others are to be sampled (again)."""
        judged: dict[int, int] = {}
        for row in self.rows.values():
            judged[row.prompt] = judged.get(row.prompt, 0) + (row.total is not None)
        return sorted(prompt for prompt, count in judged.items() if count >= samples)

    def _lines(self) -> list[dict[str, Any]]:
        """Returns the whole lines of the file; a killed process may have left the last one cut.

        Raises ConfigError for a damaged file.
        """
        if not self.path.is_file():
            return []
        lines: list[dict[str, Any]] = []
        *whole, _ = self.path.read_bytes().split(b"\n")
        for number, line in enumerate(whole, 1):
            try:
                value = json.loads(line)
            except NOT_JSON as error:
                raise ConfigError(f"{self.path}, line {number} is damaged: {error}; remove the file") from error
            known = SampleResult.__dataclass_fields__ if number > 1 else {"bound": None}
            if not isinstance(value, dict) or value.keys() != known.keys():
                raise ConfigError(f"{self.path}, line {number} is no result of a suite; remove the file")
            lines.append(value)
        return lines
