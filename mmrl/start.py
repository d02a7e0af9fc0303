"""The start of a run, before anything heavy is imported: its settings and its directory."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from mmrl.config import RunConfig, check_config, load_config, read_yaml, to_yaml
from mmrl.errors import ConfigError

MAY_CHANGE = ("iterations", "max_seconds", "checkpoint", "trackers")  # on resume; the rest decides the numbers


def new_run(
    config: str | Path | Mapping[str, Any], overrides: Sequence[str], out: str | Path | None, *, is_main: bool = True
) -> tuple[RunConfig, Path]:
    """The checked settings and the new run directory with its config.yaml.

    Raises ConfigError for wrong settings, and for a directory that holds something already.
    """
    is_mapping = isinstance(config, Mapping)
    checked = check_config(config, overrides) if isinstance(config, Mapping) else load_config(config, overrides)
    name = "run" if is_mapping else Path(str(config)).stem
    folder = Path(out) if out is not None else Path("runs") / f"{name}-{datetime.now():%Y%m%d-%H%M%S}"
    if not is_main:
        return checked, folder
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError(f"{folder} exists already; give another --out, or go on with: mmrl train --resume {folder}")
    _write(folder, checked)
    return checked, folder


def resumed_run(folder: Path, overrides: Sequence[str], *, is_main: bool = True) -> RunConfig:
    """The settings of a run that goes on, with the few overrides that do not change its numbers.

    Raises ConfigError where there is no run, and for other overrides.
    """
    path = folder / "config.yaml"
    if not path.is_file():
        raise ConfigError(f"there is no run to resume in {folder}: it has no config.yaml")
    for override in overrides:
        key = override.partition("=")[0].split(".")[0].strip()
        if key not in MAY_CHANGE:
            raise ConfigError(f"on resume only {', '.join(MAY_CHANGE)} may be overridden, got {override!r}")
    config = check_config(read_yaml(path), overrides)
    if overrides and is_main:
        _write(folder, config)
    return config


def _write(folder: Path, config: RunConfig) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        temporary = folder / ".config.yaml.tmp"
        temporary.write_text(to_yaml(config), encoding="utf-8")
        temporary.replace(folder / "config.yaml")
    except OSError as error:
        raise ConfigError(f"cannot write the run directory {folder}: {error}") from error
