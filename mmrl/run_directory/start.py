"""The start of a run, before anything heavy is imported: its settings and its directory."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any

from mmrl.core.config import RunConfig, check_config, dump_yaml, load_config, read_yaml, to_yaml
from mmrl.run_directory import checkpoint_files
from mmrl.run_directory.lock import LOCK, RunLock
from mmrl.run_directory.manifest import DamagedError
from mmrl.run_directory.resumed_settings import MAY_CHANGE, differences, kept_settings, may_change, put_at, value_at
from mmrl.system.errors import ConfigError
from mmrl.system.files import replace_file

CONFIG_LINE = "# config: "  # how config.yaml begins, before the name of the config that the run was started with
# what a start that was killed in its first moment leaves
LEFT = {LOCK, ".tmp-config.yaml", ".tmp-clock"}


def new_run(
    config: str | Path | Mapping[str, Any], overrides: Sequence[str], out: str | Path | None, *, is_main: bool = True
) -> tuple[RunConfig, Path]:
    """Returns the checked settings and the new run directory with its config.yaml, whose lock this process then holds.

    `out`: by default runs/<config>-<time>, with a number behind it where that exists already.
    Raises ConfigError for wrong settings, and for a directory that holds something already or is locked by another
    process.
    """
    is_mapping = isinstance(config, Mapping)
    checked = check_config(config, overrides) if isinstance(config, Mapping) else load_config(config, overrides)
    name = "run" if is_mapping else Path(str(config)).stem
    folder = Path(out) if out is not None else Path("runs") / f"{name}-{datetime.now():%Y%m%d-%H%M%S}"
    if not is_main:
        return checked, folder
    try:
        folder = folder if out is not None else _unused(folder)
        _refuse_taken(folder)
        folder.mkdir(parents=True, exist_ok=True)
        lock = RunLock(folder.absolute())
        lock.take()
        try:
            _refuse_taken(folder)  # another one may have been faster, and be done
            of = "" if is_mapping else name if Path(str(config)).is_file() else str(config)
            replace_file(folder / "config.yaml", (_comment(of) + to_yaml(checked)).encode())
        except (ConfigError, OSError):
            lock.give_back()
            raise
    except OSError as error:
        raise ConfigError(f"cannot write the run directory {folder}: {error}") from error
    return checked, folder


def _refuse_taken(folder: Path) -> None:
    """Raises ConfigError for a folder with another process, or with more than a killed start leaves."""
    if not folder.exists():
        return
    if folder.is_dir():
        RunLock(folder.absolute()).refuse_other()
    if not folder.is_dir() or {path.name for path in folder.iterdir()} - LEFT:
        hint = f", or go on with: mmrl train --resume {folder}" if (folder / "config.yaml").is_file() else ""
        raise ConfigError(f"{folder} exists already; give another --out{hint}")


def update_config(folder: Path, config: RunConfig) -> None:
    """Writes the settings that a resumed run changed into its config.yaml, whole or not at all.

    The rest of the file is unchanged.
    """
    path = folder / "config.yaml"
    tree = read_yaml(path)
    before, now = (one.model_dump(mode="json") for one in (check_config(tree), config))
    changed = {key: value_at(now, key) for key in MAY_CHANGE if value_at(before, key) != value_at(now, key)}
    if changed:
        write_settings(folder, changed)


def write_settings(folder: Path, changed: Mapping[str, Any]) -> None:
    """Writes settings into a run's config.yaml, by their keys, whole or not at all; the rest of the file stays."""
    path = folder / "config.yaml"
    tree = read_yaml(path)
    for key, value in changed.items():
        put_at(tree, key, value)
    replace_file(path, (_comment(config_name(folder)) + dump_yaml(tree)).encode())


def config_name(folder: Path) -> str:
    """Returns the config that a run was started with, from the first line of config.yaml; '' where it is not there."""
    with (folder / "config.yaml").open(encoding="utf-8") as file:
        first = file.readline().rstrip("\n")
    return first.removeprefix(CONFIG_LINE) if first.startswith(CONFIG_LINE) else ""


def _comment(name: str) -> str:
    """Returns the first line of config.yaml; '' for a name that is no single line."""
    return f"{CONFIG_LINE}{name}\n" if name.isprintable() and name.strip() else ""


def settings_of(folder: Path, config: RunConfig) -> dict[str, Any]:
    """Returns the settings of a run's config.yaml that may not change, as its checkpoints keep them.

    Raises ConfigError where they differ from those of `config`, which was read from the file a moment ago.
    """
    tree = read_yaml(folder / "config.yaml")
    read, now = (kept_settings(one.model_dump(mode="json")) for one in (config, check_config(tree)))
    if found := differences(read, now):
        raise ConfigError("\n  ".join([f"{folder / 'config.yaml'} was changed while the run started:", *found]))
    return kept_settings(tree)


def forget(folder: Path) -> None:
    """Removes a run directory with a config.yaml and no metrics yet, so that a mended command can use it again."""
    lock = RunLock(folder.absolute())
    if lock.holder not in (None, lock.me):
        return
    with suppress(FileNotFoundError):  # another process of the run was faster
        files = {path.name: path for path in folder.iterdir()}
        if "config.yaml" in files and not set(files) - {"config.yaml", "metrics.jsonl", "failure.json", *LEFT}:
            if "metrics.jsonl" in files and files["metrics.jsonl"].stat().st_size > 0:
                return
            for path in files.values():
                path.unlink()
            folder.rmdir()


def resumed_run(folder: Path, overrides: Sequence[str], *, is_main: bool = True) -> RunConfig:
    """Returns the settings of a run that goes on, with overrides that do not change its numbers; takes its lock.

    Raises ConfigError where there is no run, where another process trains in it, for other overrides, and where
    config.yaml differs from what the newest checkpoint was trained with.
    """
    path = folder / "config.yaml"
    if not path.is_file():
        raise ConfigError(f"there is no run to resume in {folder}: it has no config.yaml")
    for override in overrides:
        if not may_change(override.partition("=")[0].strip()):
            raise ConfigError(f"on resume only {', '.join(MAY_CHANGE)} may be overridden, got {override!r}")
    lock = RunLock(folder.absolute())
    if is_main:
        lock.take()
    try:
        saved = checkpoint_files.saved(folder / "checkpoints")
        for iteration in sorted(saved, reverse=True):
            with suppress(DamagedError):  # training sets it aside, and goes on from the one before
                refuse_edits(folder, saved[iteration])
                break
        tree = read_yaml(path)
        for override in overrides:
            if override.strip().startswith("modality.engine.") and value_at(tree, "modality.engine") is None:
                raise ConfigError(
                    f"the run has no modality.engine whose settings could be overridden, got {override!r}"
                )
        return check_config(tree, overrides)
    except ConfigError:
        if is_main:
            lock.give_back()
        raise


def refuse_edits(folder: Path, path: Path, may_differ: tuple[str, ...] = ()) -> None:
    """Raises ConfigError, with the keys, where a run's config.yaml differs from what a checkpoint was trained with.

    Args:
        path: the checkpoint; an older one may have kept no settings, and is accepted. may_differ: how keys begin that
            may differ too.
    Raises:
        DamagedError: the checkpoint's state is damaged.
    """
    before, now = checkpoint_files.read_state(path).get("settings"), kept_settings(read_yaml(folder / "config.yaml"))
    if not isinstance(before, Mapping):
        return
    # what may change now may be kept in a checkpoint of before it might
    before, now = (
        {key: value for key, value in one.items() if not key.startswith(may_differ) and not may_change(key)}
        for one in (before, now)
    )
    if found := differences(before, now):
        what = f"{folder / 'config.yaml'} is not what the checkpoint {path.name} was trained with"
        allowed = f"only {', '.join(MAY_CHANGE)} may change"
        raise ConfigError("\n  ".join([f"{what}:", *found]) + f"\nput that back, or train anew; {allowed}")


def _unused(folder: Path) -> Path:
    """Makes and returns the folder; with `-2`, `-3` ... behind its name where that exists already."""
    number, made = 1, folder
    while True:
        try:
            made.mkdir(parents=True)
        except FileExistsError:
            number += 1
            made = folder.with_name(f"{folder.name}-{number}")
        else:
            return made


def left_behind(folder: Path, name: Path) -> str:
    """Returns the end of a message that says what a stopped run leaves in its directory, called `name`."""
    if not (folder / "config.yaml").is_file():
        return f" before the first iteration; nothing is left in {name}"
    if not any(folder.glob("checkpoints/*")):
        return f" before the first checkpoint; begin again with: mmrl train --resume {name}"
    return f"; go on from the last checkpoint with: mmrl train --resume {name}"
