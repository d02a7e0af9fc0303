"""Reinforcement-learning fine-tuning of multimodal and generative models, with one shared group-relative optimizer."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mmrl.commands.summary import Outcome
    from mmrl.scoring.standalone import score

__all__ = ["score", "train"]


def train(
    config: "str | Path | Mapping[str, Any]", overrides: Sequence[str] = (), *, out: str | Path | None = None
) -> "Outcome":
    """Trains a shipped config, a YAML file, or settings given as a mapping; the same as `mmrl train`.

    Args:
        overrides: `key.sub=value` texts. out: the run directory; by default runs/<name>-<time>.
    Raises:
        mmrl.system.errors.ConfigError: the input is wrong. mmrl.system.errors.RunError: the run failed.
    """
    from mmrl.run_directory import start

    checked, folder = start.new_run(config, overrides, out)
    from mmrl.commands import train as run

    return run.train(checked, folder)


def __getattr__(name: str) -> Any:
    """`score` is imported when it is first asked for: it needs torch, `mmrl --help` does not."""
    if name == "score":
        from mmrl.scoring.standalone import score

        return score
    raise AttributeError(f"module 'mmrl' has no attribute {name!r}")
