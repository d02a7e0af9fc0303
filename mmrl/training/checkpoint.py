"""Checkpoints that survive a kill at any moment: safetensors and JSON in a folder that appears whole or not at all.

`<folder>/<iteration>/` holds one flat safetensors file per group of tensors, `state.json` for all the rest and
`manifest.json` with the checksums of these. It is written as `.tmp-<iteration>`, flushed to the disk and renamed. One
process writes; any may read.
"""

import json
import os
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from mmrl.core.contracts import ConfigError, RunError
from mmrl.core.data import WeightsName
from mmrl.core.weights import Weights, shard_of
from mmrl.run_directory.checkpoint_files import (
    FORMAT,
    REPLACED,
    TEMPORARY,
    discard,
    latest,
    path_of,
    read_state_file,
    recover,
    saved,
)
from mmrl.run_directory.manifest import MANIFEST, DamagedError, check_files, write_manifest
from mmrl.system.errors import describe
from mmrl.system.files import flush

__all__ = ["latest", "recover", "saved"]  # which most look for here

TENSOR = "$tensor"  # in a plug-in's state: the name of a tensor in plugins.safetensors


@dataclass(frozen=True)
class Checkpoint:
    """The whole state of a run at one iteration: a run that is restored from it goes on as if it had not stopped."""

    iteration: int  # at least 0
    tensors: Mapping[str, Mapping[str, Tensor]]  # file name without its ending -> name -> tensor
    state: Mapping[str, Any]  # as JSON has it: str, int, finite float, bool, None, list, dict with keys of type str
    path: Path | None = None  # where it was read from


def save(folder: Path, checkpoint: Checkpoint) -> Path:
    """Writes the checkpoint to `folder/<iteration>`, in place of one of the same iteration; returns that path.

    A kill at any moment leaves the earlier checkpoints whole, and the old or the new one of this iteration. Equal
    checkpoints give equal bytes. Tensors keep dtype and shape, not memory that they shared.

    Raises:
        RunError: the disk is full or cannot be written; nothing that was saved before is touched.
        ValueError: the state is not plain JSON (NaN, a tuple, a key that is a number ...).
    """
    text = _state_text(checkpoint)
    path = path_of(folder, checkpoint.iteration)
    unfinished = folder / f"{TEMPORARY}{path.name}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        recover(folder)
        _write(unfinished, checkpoint.tensors, text)
        _put_in_place(unfinished, path)
    except (OSError, SafetensorError) as error:  # safetensors reports a full disk as its own error
        with suppress(OSError):
            recover(folder)
        kept = ", ".join(str(iteration) for iteration in sorted(saved(folder))) or "none"
        raise RunError(
            f"cannot save iteration {checkpoint.iteration} in {folder}: {error}. Saved iterations, untouched: {kept}. "
            "Make room on the disk (or set a smaller checkpoint.keep), then resume the run"
        ) from error
    return path


def load(path: Path, device: str | torch.device = "cpu", *, is_checked: bool = False) -> Checkpoint:
    """Reads a checkpoint's folder, tensors onto `device`.

    Args:
        is_checked: whether another process compared the files with their checksums a moment ago; then they are not
            compared again.
    Raises:
        DamagedError: a file is missing, or differs from what was written; the message names it.
        ConfigError: there is no checkpoint, or it has a format that this version does not read.
    """
    if not path.is_dir():
        raise ConfigError(f"there is no checkpoint {path}")
    if (path / MANIFEST).exists() and not is_checked:
        check_files(path)
    content = read_state_file(path)
    tensors = {}
    for name in content.tensors:
        file = path / f"{name}.safetensors"
        try:
            tensors[name] = load_file(file, device=str(device))
        except FileNotFoundError as error:
            raise DamagedError(f"{file} is damaged: it is missing") from error
        except (OSError, ValueError, SafetensorError) as error:
            raise DamagedError(f"{file} is damaged: {error}") from error
    return Checkpoint(content.iteration, tensors, content.state, path)


def newest_whole(folder: Path) -> tuple[Checkpoint | None, dict[Path, DamagedError]]:
    """Returns the newest undamaged checkpoint, None where there is none, and the newer ones with their damage.

    Raises ConfigError for a newer one of a format that this version does not read.
    """
    damaged: dict[Path, DamagedError] = {}
    checkpoints = saved(folder)
    for iteration in sorted(checkpoints, reverse=True):
        try:
            return load(checkpoints[iteration]), damaged
        except DamagedError as error:
            damaged[checkpoints[iteration]] = error
    return None, damaged


def prune(folder: Path, keep: int, protect: Collection[int] = ()) -> None:
    """Deletes all checkpoints but the newest `keep` (at least 1) and the iterations in `protect` (the best one)."""
    if keep < 1:
        raise ValueError(f"checkpoint.keep must be at least 1, got {keep}")
    recover(folder)
    checkpoints = saved(folder)
    for iteration in sorted(checkpoints)[:-keep]:
        if iteration not in protect:
            discard(checkpoints[iteration])


def flatten_optimizer(
    optimizer: torch.optim.Optimizer, names: Sequence[str]
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Returns an optimizer's state as flat tensors `<key>/<parameter name>` (the live ones, not copies) and as JSON.

    Args:
        names: one unique name per parameter, in the order of `optimizer.param_groups`.
    Raises:
        ValueError: the optimizer keeps something other than tensors, numbers, bools, text or None.
    """
    state = optimizer.state_dict()
    _check_names(optimizer, names)
    tensors: dict[str, Tensor] = {}
    scalars: dict[str, dict[str, Any]] = {name: {} for name in names}
    for index, entries in state["state"].items():
        for key, value in entries.items():
            if isinstance(value, Tensor):
                tensors[f"{key}/{names[index]}"] = value
            elif value is None or isinstance(value, int | float | str):
                scalars[names[index]][key] = value
            else:
                raise ValueError(f"{type(optimizer).__name__} keeps {key!r} as {type(value)}, which cannot be saved")
    groups = [
        {key: _as_json(value) for key, value in group.items() if key != "params"} for group in state["param_groups"]
    ]
    return tensors, {"class": type(optimizer).__name__, "scalars": scalars, "groups": groups}


def flatten_records(records: Sequence[Mapping[str, Tensor]], what: str) -> dict[str, Tensor]:
    """Returns records of tensors of one dimension, each with the same names, as flat tensors.

    `length/<name>` [n] are the lengths, and `<what>/<name>` the tensors one after the other. Without records there are
    none.
    """
    tensors: dict[str, Tensor] = {}
    for name in records[0] if records else ():
        parts = [record[name] for record in records]
        tensors[f"length/{name}"] = torch.tensor([len(part) for part in parts])
        tensors[f"{what}/{name}"] = torch.cat(parts)
    return tensors


def restore_records(tensors: Mapping[str, Tensor], what: str) -> list[dict[str, Tensor]]:
    """Returns the records of `flatten_records`."""
    names = [name.removeprefix(f"{what}/") for name in tensors if name.startswith(f"{what}/")]
    cut = {name: tensors[f"{what}/{name}"].split(tensors[f"length/{name}"].tolist()) for name in names}
    return [
        {name: part.clone() for name, part in zip(cut, parts, strict=True)} for parts in zip(*cut.values(), strict=True)
    ]


def without_tensors(state: Any, path: str) -> tuple[Any, dict[str, Tensor]]:
    """Returns a state with names in the place of the tensors in its dictionaries, and the tensors by these names.

    `path`: how the names begin.
    """
    if isinstance(state, Tensor):
        return {TENSOR: path}, {path: state}
    if not isinstance(state, Mapping):
        return state, {}
    parts = {key: without_tensors(value, f"{path}/{key}") for key, value in state.items()}
    tensors = {name: tensor for _, held in parts.values() for name, tensor in held.items()}
    return {key: plain for key, (plain, _) in parts.items()}, tensors


def with_tensors(state: Any, tensors: Mapping[str, Tensor]) -> Any:
    """Returns the state of `without_tensors` with its tensors. Raises ConfigError where one is missing."""
    if not isinstance(state, Mapping):
        return state
    if set(state) == {TENSOR}:
        if state[TENSOR] not in tensors:
            raise ConfigError(f"the checkpoint has no tensor {state[TENSOR]!r}; is it of another run?")
        return tensors[state[TENSOR]].clone()
    return {key: with_tensors(value, tensors) for key, value in state.items()}


def check_plain(key: str, value: Any) -> None:
    """Raises ValueError where JSON cannot hold a value of a state unchanged: NaN, a tuple, a key that is no text."""
    try:
        is_faithful = json.loads(json.dumps(value, allow_nan=False)) == value
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"state {key!r} of a checkpoint cannot be written as JSON: {error}") from error
    if not is_faithful:
        raise ValueError(f"state {key!r} of a checkpoint may hold lists and dicts with str keys, got {value!r:.200}")


def restore_weights(weights: Weights, saved: Checkpoint) -> None:
    """Loads all weights that a checkpoint has. Raises ConfigError where they are of another model."""
    try:
        for which in get_args(WeightsName):
            if which in saved.tensors:
                weights.load(which, saved.tensors[which])
    except ValueError as error:
        raise ConfigError(f"the checkpoint is of another model: {error}") from error


def restore_plugins(stateful: Mapping[str, Any], states: Mapping[str, Any]) -> None:
    """Restores the states of a run's rewards and other plug-ins; raises ConfigError where the run has others.

    An older checkpoint may name a reward of the user's own with its module: `reward/my_rewards:Redness` for
    `reward/Redness`.
    """
    states = {name if name in stateful else _without_module(name): state for name, state in states.items()}
    if set(stateful) != set(states):
        saved, now = (", ".join(sorted(names)) or "none" for names in (states, stateful))
        raise ConfigError(
            f"the checkpoint is of other rewards, or another advantage: it holds the states of {saved}, "
            f"the settings are of {now}"
        )
    for name, plugin in stateful.items():
        try:
            plugin.load_state_dict(states[name])
        except (AttributeError, KeyError, IndexError, TypeError, ValueError, RuntimeError) as error:
            raise ConfigError(
                f"{name} cannot read the state that the checkpoint holds of it ({describe(error)})"
            ) from error


def _without_module(name: str) -> str:
    kind, separator, rest = name.partition("/")
    return f"{kind}{separator}{rest.rpartition(':')[2]}"


def restore_optimizer(
    optimizer: torch.optim.Optimizer, names: Sequence[str], tensors: Mapping[str, Tensor], state: Mapping[str, Any]
) -> None:
    """Restores the result of `flatten_optimizer`, bit for bit, into an optimizer of the same class over the same names.

    Raises ConfigError where class, parameters or groups differ.
    """
    _check_names(optimizer, names)
    present = {"class": type(optimizer).__name__, "names": sorted(names), "groups": len(optimizer.param_groups)}
    stored = {"class": state["class"], "names": sorted(state["scalars"]), "groups": len(state["groups"])}
    for what, value in present.items():
        if value != stored[what]:
            raise ConfigError(f"the optimizer's {what} in the checkpoint do not fit: saved {stored[what]}, now {value}")
    shards = dict(zip(names, _parameters(optimizer), strict=True))
    _check_tensors(optimizer, shards, tensors)
    entries: dict[str, dict[str, Any]] = {name: dict(state["scalars"][name]) for name in names}
    for path, tensor in tensors.items():
        key, _, name = path.partition("/")
        like = shards[name] if tensor.shape == shards[name].shape else tensor
        # a copy: the optimizer changes its state in place, the checkpoint stays as it is
        entries[name][key] = shard_of(tensor, like).clone()
    groups = []
    for group, numbers in zip(optimizer.state_dict()["param_groups"], state["groups"], strict=True):
        groups.append(group | {key: _like(value, group.get(key)) for key, value in numbers.items()})
    by_index = {index: entries[name] for index, name in enumerate(names) if entries[name]}
    optimizer.load_state_dict({"state": by_index, "param_groups": groups})
    for parameter, name in zip(_parameters(optimizer), names, strict=True):
        for key, value in optimizer.state.get(parameter, {}).items():
            # torch casts the state to the parameter's dtype, which loses bits of a float32 average of a bf16 weight
            if isinstance(value, Tensor) and value.dtype != entries[name][key].dtype:
                optimizer.state[parameter][key] = entries[name][key].to(value.device)


def _state_text(checkpoint: Checkpoint) -> str:
    for key, value in checkpoint.state.items():
        check_plain(key, value)
    content = {"format": FORMAT, "iteration": checkpoint.iteration, "tensors": sorted(checkpoint.tensors)}
    return json.dumps(content | {"state": dict(checkpoint.state)}, allow_nan=False, indent=1) + "\n"


def _write(folder: Path, tensors: Mapping[str, Mapping[str, Tensor]], text: str) -> None:
    folder.mkdir()
    for name, group in tensors.items():
        save_file(_storable(group), folder / f"{name}.safetensors")
    (folder / "state.json").write_text(text, encoding="utf-8")
    write_manifest(folder)
    for path in [*sorted(folder.iterdir()), folder]:
        flush(path)


def _storable(group: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Returns the tensors on the CPU, contiguous, each with memory of its own, as safetensors requires."""
    stored: dict[str, Tensor] = {}
    used = set()
    for name, tensor in group.items():
        tensor = tensor.detach().cpu().contiguous()
        memory = tensor.untyped_storage().data_ptr()
        stored[name] = tensor.clone() if memory in used else tensor
        used.add(memory)
    return stored


def _put_in_place(temporary: Path, target: Path) -> None:
    replaced = target.with_name(f"{REPLACED}{target.name}")
    if target.exists():  # a folder cannot be renamed over another; whoever finds only the replaced one takes that
        os.rename(target, replaced)
    os.rename(temporary, target)
    flush(target.parent)
    if replaced.exists():
        discard(replaced)


def _parameters(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _check_names(optimizer: torch.optim.Optimizer, names: Sequence[str]) -> None:
    assert len(names) == len(set(names)) == len(_parameters(optimizer)), "one unique name for each parameter"


def _check_tensors(
    optimizer: torch.optim.Optimizer, parameters: Mapping[str, Tensor], tensors: Mapping[str, Tensor]
) -> None:
    """Raises ConfigError for states of other parameters, or of another shape where torch's own optimizers keep one."""
    for path, tensor in tensors.items():
        key, _, name = path.partition("/")
        if name not in parameters:
            raise ConfigError(f"the optimizer's tensor {path!r} in the checkpoint is of no parameter of the model")
        is_alike = tensor.dim() == 0 or tensor.shape == parameters[name].shape
        if not is_alike and type(optimizer).__module__.startswith("torch."):  # those of 8 bits keep blocks
            raise ConfigError(
                f"the optimizer's {key} of {name!r} in the checkpoint has shape {list(tensor.shape)}, needed is "
                f"{list(parameters[name].shape)}"
            )


def _as_json(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.item()
    return list(value) if isinstance(value, tuple) else value


def _like(value: Any, present: Any) -> Any:
    """Returns a group's setting as the optimizer holds it: tuples and tensors are saved as lists and numbers."""
    if isinstance(present, Tensor):
        return torch.full_like(present, value)
    return tuple(value) if isinstance(present, tuple) else value
