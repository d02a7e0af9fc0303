"""The command line inside this process: its exit code and what it printed."""

import logging
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from mmrl import cli
from tests.tiny_runs import arguments

REWARDS = """
from dataclasses import dataclass
from typing import ClassVar
import torch

@dataclass(frozen=True)
class Constant:
    source: ClassVar[str] = "here"
    range: ClassVar[tuple[float, float]] = (0.0, 1.0)
    granularity: ClassVar[str] = "sample"
    differentiable: ClassVar[bool] = False
    needs: ClassVar[frozenset[str]] = frozenset()
    batch_size: ClassVar[int | None] = None
    value: float = 0.5

    def score(self, batch):
        return torch.full((len(batch),), self.value)

@dataclass(frozen=True)
class Raises(Constant):
    def score(self, batch):
        raise RuntimeError("the judge is away")

@dataclass(frozen=True)
class RaisesForSome(Constant):
    def score(self, batch):
        if any(seed % 5 == 0 for seed in batch.seeds):
            raise RuntimeError("this one is too hard")
        return torch.tensor([seed % 97 / 97 for seed in batch.seeds])

@dataclass(frozen=True)
class NanForSome(Constant):
    def score(self, batch):
        return torch.tensor([float("nan") if seed % 5 == 0 else seed % 97 / 97 for seed in batch.seeds])

@dataclass(frozen=True)
class AlwaysNan(Constant):
    def score(self, batch):
        return torch.full((len(batch),), float("nan"))

@dataclass(frozen=True)
class WrongShape(Constant):
    def score(self, batch):
        return torch.zeros(len(batch), 1)

@dataclass(frozen=True)
class WrongType(Constant):
    def score(self, batch):
        return [0.0] * len(batch)

@dataclass(frozen=True)
class NeedsAnswer(Constant):
    needs: ClassVar[frozenset[str]] = frozenset({"target.answer"})

@dataclass(frozen=True)
class Empty:
    value: float = 0.0

class NoDataclass:
    pass
"""


@dataclass(frozen=True)
class Ended:
    code: int
    out: str
    err: str


@dataclass(frozen=True)
class CommandLine:
    """`mmrl` in a working folder of its own, where `my_rewards.py` lies."""

    folder: Path
    patch: pytest.MonkeyPatch
    capture: pytest.CaptureFixture[str]

    def __call__(self, *given: str) -> Ended:
        self.patch.setattr(sys, "argv", ["mmrl", *given])
        self.capture.readouterr()
        with pytest.raises(SystemExit) as ended:
            cli.main()
        out, err = self.capture.readouterr()
        assert "Traceback" not in out + err
        assert isinstance(ended.value.code, int)
        return Ended(ended.value.code, out, err)

    def train(self, *overrides: str, kind: str = "nft", out: str = "run") -> Ended:
        """A small run into `out`."""
        return self(*arguments(kind, Path(out), "checkpoint.every=1", *overrides))


def command_line(folder: Path, patch: pytest.MonkeyPatch, capture: pytest.CaptureFixture[str]) -> CommandLine:
    (folder / "my_rewards.py").write_text(REWARDS)
    patch.chdir(folder)
    patch.setattr(sys, "path", [*sys.path])  # the command line adds the working folder
    patch.delitem(sys.modules, "my_rewards", raising=False)
    # diffusers logs to the stderr that it found when it was imported, maybe in a test that has ended
    patch.setattr(logging, "raiseExceptions", False)
    return CommandLine(folder, patch, capture)
