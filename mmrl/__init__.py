"""Reinforcement-learning fine-tuning of multimodal and generative models, with one shared group-relative optimizer."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mmrl.judging import score
    from mmrl.summary import Outcome

__all__ = ["score", "train"]


def train(
    config: "str | Path | Mapping[str, Any]", overrides: Sequence[str] = (), *, out: str | Path | None = None
) -> "Outcome":
    """Trains a shipped config, a YAML file, or settings given as a mapping; the same as `mmrl train`.

    Args:
        overrides: `key.sub=value` texts. out: the run directory; by default runs/<name>-<time>.
    Raises:
        mmrl.errors.ConfigError: the input is wrong. mmrl.errors.RunError: the run failed.
    """
    from mmrl import start

    checked, folder = start.new_run(config, overrides, out)
    from mmrl import run

    return run.train(checked, folder)


def __getattr__(name: str) -> Any:
    """`score` is imported when it is first asked for: it needs torch, `mmrl --help` does not."""
    if name == "score":
        from mmrl.judging import score

        return score
    raise AttributeError(f"module 'mmrl' has no attribute {name!r}")
