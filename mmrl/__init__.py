"""Reinforcement-learning fine-tuning of multimodal and generative models, with one shared group-relative optimizer."""

from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mmrl.commands.summary import Outcome
    from mmrl.scoring.standalone import score
    from mmrl.training.callbacks import Callback, TrainControl, TrainState

__all__ = ["Callback", "TrainControl", "TrainState", "resume", "score", "train"]
_LAZY = {  # imported at their first use, by module: `mmrl --help` needs none of them
    "Callback": "mmrl.training.callbacks",
    "TrainControl": "mmrl.training.callbacks",
    "TrainState": "mmrl.training.callbacks",
    "score": "mmrl.scoring.standalone",
}


def train(
    config: "str | Path | Mapping[str, Any]",
    overrides: Sequence[str] = (),
    *,
    out: str | Path | None = None,
    callbacks: "Sequence[Callback]" = (),
) -> "Outcome":
    """Trains a shipped config, a YAML file, or settings given as a mapping; the same as `mmrl train`.

    Args:
        config: the name of a shipped config, the path of a YAML file, or the settings.
        overrides: `key.sub=value` texts.
        out: the run directory; by default runs/NAME-TIME.
        callbacks: called at the events of the run, in this order.

    Raises:
        mmrl.system.errors.ConfigError: the input is wrong.
        mmrl.system.errors.RunError: the run failed, or a callback did.
    """
    from mmrl.commands.launcher import is_main
    from mmrl.run_directory.start import new_run

    checked, folder = new_run(config, overrides, out, is_main=is_main())
    from mmrl.commands.train import train as train_run

    return train_run(checked, folder, is_main=is_main(), callbacks=callbacks)


def resume(folder: str | Path, overrides: Sequence[str] = (), *, callbacks: "Sequence[Callback]" = ()) -> "Outcome":
    """Goes on with a run that was stopped, from its newest checkpoint; the same as `mmrl train --resume`.

    Args:
        folder: the run directory.
        overrides: `key.sub=value` texts, of the few settings that may change.
        callbacks: called at the events of the run, in this order.

    Raises:
        mmrl.system.errors.ConfigError: the input is wrong.
        mmrl.system.errors.RunError: the run failed, or a callback did.
    """
    from mmrl.commands.launcher import is_main
    from mmrl.run_directory.start import resumed_run

    checked = resumed_run(Path(folder), overrides, is_main=is_main())
    from mmrl.commands.train import train as train_run

    return train_run(checked, Path(folder), resume=True, is_main=is_main(), callbacks=callbacks)


def __getattr__(name: str) -> Any:
    """Imports a name of `_LAZY` when it is first used."""
    if name in _LAZY:
        return getattr(import_module(_LAZY[name]), name)
    raise AttributeError(f"module 'mmrl' has no attribute {name!r}")
