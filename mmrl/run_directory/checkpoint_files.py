"""The folders and the state files of checkpoints, read and cleared without anything heavy."""

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, ValidationError

from mmrl.run_directory.manifest import MANIFEST, DamagedError, check_files
from mmrl.system.errors import ConfigError
from mmrl.system.files import read_json

FORMAT = 2  # of state.json; 1, of before, has no manifest beside it
REPLACED = ".replaced-"  # whole, moved aside while its successor of the same iteration is put in place
TEMPORARY = ".tmp-"  # being written or being deleted
_DAMAGED = "damaged-"  # set aside, for people to look at


class StateFile(BaseModel):
    """The content of state.json."""

    format: Literal[1, 2]
    iteration: Annotated[int, Field(ge=0)]
    tensors: list[Annotated[str, Field(pattern=r"^\w+$")]]  # the files, without their ending
    state: dict[str, Any]


def saved(folder: Path) -> dict[int, Path]:
    """Returns the checkpoints in `folder` by iteration, without those that were never finished."""
    if not folder.is_dir():
        return {}
    found = {}
    for path in sorted(folder.iterdir()):  # ".replaced-..." comes before digits, so the successor wins
        iteration = iteration_of(path)
        if iteration is not None and path.is_dir():
            found[iteration] = path
    return found


def path_of(folder: Path, iteration: int) -> Path:
    """Returns the path in `folder` of the checkpoint of an iteration."""
    return folder / f"{iteration:06d}"


def iteration_of(path: Path) -> int | None:
    """Returns the iteration in the name of a checkpoint's folder; None for any other name."""
    number = path.name.removeprefix(REPLACED)
    return int(number) if number.isdecimal() else None


def latest(folder: Path) -> Path | None:
    """Returns the checkpoint of the highest iteration; None where there is none."""
    found = saved(folder)
    return found[max(found)] if found else None


def recover(folder: Path) -> None:
    """Removes what a killed process left. Only the process that writes may call it (`save` and `prune` do)."""
    for replaced in folder.glob(f"{REPLACED}*"):
        successor = folder / replaced.name.removeprefix(REPLACED)
        if successor.exists():
            discard(replaced)
        else:
            os.rename(replaced, successor)
    for left in folder.glob(f"{TEMPORARY}*"):
        shutil.rmtree(left) if left.is_dir() else left.unlink()


def discard(path: Path) -> None:
    """Deletes a checkpoint; renamed first, so that a half-deleted one is never taken for whole."""
    doomed = path.with_name(f"{TEMPORARY}delete-{path.name}")
    os.rename(path, doomed)
    shutil.rmtree(doomed)


def set_aside(path: Path) -> Path:
    """Renames a damaged checkpoint, so that it no longer counts as one; returns its new path."""
    number, target = 1, path.with_name(f"{_DAMAGED}{path.name}")
    while target.exists():
        number += 1
        target = path.with_name(f"{_DAMAGED}{path.name}-{number}")
    os.rename(path, target)
    return target


def read_state(path: Path) -> Mapping[str, Any]:
    """Reads the state of a checkpoint's folder without its tensors; raises as `load` does."""
    if (path / MANIFEST).exists():
        check_files(path, "state.json")
    return read_state_file(path).state


def read_state_file(path: Path) -> StateFile:
    """Reads state.json of a checkpoint's folder without comparing its checksum. Raises as `read_state` does."""
    file = path / "state.json"
    if not file.exists():
        raise DamagedError(f"{file} is damaged: it is missing")
    try:
        content = read_json(file)
    except ConfigError as error:
        raise DamagedError(str(error)) from error
    known = isinstance(content, dict) and content.get("format")
    if isinstance(known, int) and known > FORMAT:
        raise ConfigError(f"{file} is of format {known}, written by a newer mmrl; this one reads up to {FORMAT}")
    try:
        found = StateFile.model_validate(content, strict=True)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "its content"
        raise DamagedError(f"{file} is damaged: {where}: {first['msg']}") from error
    if found.format > 1 and not (path / MANIFEST).exists():
        raise DamagedError(f"{path / MANIFEST} is damaged: it is missing")
    if iteration_of(path) not in (None, found.iteration):
        raise DamagedError(f"{file} is damaged: it is of iteration {found.iteration}, not of that of its folder")
    return found
