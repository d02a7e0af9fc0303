"""The start of a run, before anything heavy is imported: its settings and its directory."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any

from mmrl.config import RunConfig, check_config, load_config, read_yaml, to_yaml
from mmrl.errors import ConfigError

# on resume; the rest decides the numbers
MAY_CHANGE = ("iterations", "max_seconds", "checkpoint", "trackers", "sharding")
UNFINISHED = ".config.yaml.tmp"  # all that a kill in the first moment leaves


def new_run(
    config: str | Path | Mapping[str, Any], overrides: Sequence[str], out: str | Path | None, *, is_main: bool = True
) -> tuple[RunConfig, Path]:
    """The checked settings and the new run directory with its config.yaml.

    `out`: by default runs/<config>-<time>, with a number behind it where that is taken.
    Raises ConfigError for wrong settings, and for a directory that holds something already.
    """
    is_mapping = isinstance(config, Mapping)
    checked = check_config(config, overrides) if isinstance(config, Mapping) else load_config(config, overrides)
    name = "run" if is_mapping else Path(str(config)).stem
    folder = Path(out) if out is not None else Path("runs") / f"{name}-{datetime.now():%Y%m%d-%H%M%S}"
    if not is_main:
        return checked, folder
    try:
        folder = folder if out is not None else _unused(folder)
        if folder.exists() and (not folder.is_dir() or {path.name for path in folder.iterdir()} - {UNFINISHED}):
            is_run = (folder / "config.yaml").is_file()
            hint = f", or go on with: mmrl train --resume {folder}" if is_run else ""
            raise ConfigError(f"{folder} exists already; give another --out{hint}")
        write_config(folder, checked)
    except OSError as error:
        raise ConfigError(f"cannot write the run directory {folder}: {error}") from error
    return checked, folder


def write_config(folder: Path, config: RunConfig) -> None:
    """Writes the run directory's config.yaml, whole or not at all."""
    folder.mkdir(parents=True, exist_ok=True)
    temporary = folder / UNFINISHED
    temporary.write_text(to_yaml(config), encoding="utf-8")
    temporary.replace(folder / "config.yaml")


def forget(folder: Path) -> None:
    """Removes a run directory with a config.yaml and no number yet, so that a mended command can use it again."""
    with suppress(FileNotFoundError):  # another process of the run was faster
        files = {path.name: path for path in folder.iterdir()}
        if "config.yaml" in files and not set(files) - {"config.yaml", "metrics.jsonl"}:
            if "metrics.jsonl" in files and files["metrics.jsonl"].stat().st_size > 0:
                return
            for path in files.values():
                path.unlink()
            folder.rmdir()


def resumed_run(folder: Path, overrides: Sequence[str]) -> RunConfig:
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
    return check_config(read_yaml(path), overrides)


def _unused(folder: Path) -> Path:
    """The folder, made; `-2`, `-3` ... behind its name where another run of the same second was faster."""
    number, made = 1, folder
    while True:
        try:
            made.mkdir(parents=True)
        except FileExistsError:
            number += 1
            made = folder.with_name(f"{folder.name}-{number}")
        else:
            return made


def left_behind(folder: Path) -> str:
    """What a run that was stopped at once leaves, as the end of a message."""
    if not (folder / "config.yaml").is_file():
        return f" before the first iteration; nothing is left in {folder}"
    if not any(folder.glob("checkpoints/*")):
        return f" before the first checkpoint; begin again with: mmrl train --resume {folder}"
    return f"; go on from the last checkpoint with: mmrl train --resume {folder}"
