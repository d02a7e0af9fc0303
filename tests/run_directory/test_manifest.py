"""Checkpoints that are not to the byte what was written are never read: the file is named, and what is wrong."""

import hashlib
import json
import random
import shutil
from pathlib import Path

import pytest
import torch

from mmrl.core.contracts import ConfigError
from mmrl.run_directory.checkpoint_files import read_state, set_aside
from mmrl.run_directory.manifest import DamagedError
from mmrl.training.checkpoint import Checkpoint, load, newest_whole, save, saved

NAMES = ("manifest.json", "state.json", "optimizer.safetensors", "trained.safetensors")


def small(iteration: int) -> Checkpoint:
    tensors = {"trained": {"weight": torch.arange(40.0)}, "optimizer": {"exp_avg/weight": torch.ones(40)}}
    return Checkpoint(iteration, tensors, {"progress": {"iteration": iteration}, "rate": 0.125})


def of_before(path: Path) -> Path:
    """The same checkpoint as mmrl wrote it before there were manifests."""
    (path / "manifest.json").unlink()
    content = json.loads((path / "state.json").read_text())
    (path / "state.json").write_text(json.dumps(content | {"format": 1}))
    return path


def test_the_manifest_holds_what_sha256sum_says(tmp_path: Path) -> None:
    path = save(tmp_path, small(1))
    files = json.loads((path / "manifest.json").read_text())["files"]
    assert sorted(files) == sorted(NAMES[1:])
    for name, facts in files.items():
        content = (path / name).read_bytes()
        assert facts == {"size": len(content), "sha256": hashlib.sha256(content).hexdigest()}


@pytest.mark.slow
def test_a_hundred_random_flips_of_a_bit_are_each_named(tmp_path: Path) -> None:
    source, path = random.Random(7), save(tmp_path, small(3))
    flipped = dict.fromkeys(NAMES, 0)
    for _ in range(100):
        file = path / source.choice(NAMES)
        whole = file.read_bytes()
        damaged = bytearray(whole)
        damaged[source.randrange(len(whole))] ^= 1 << source.randrange(8)
        file.write_bytes(damaged)
        with pytest.raises(DamagedError, match=rf"{file} is damaged: "):
            load(path)
        if file.name in NAMES[:2]:
            with pytest.raises(DamagedError, match=rf"{file} is damaged: "):
                read_state(path)
        file.write_bytes(whole)
        flipped[file.name] += 1
    assert load(path).iteration == 3 and min(flipped.values()) > 10


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("damage", ["cut", "longer", "empty", "missing", "folder"])
def test_a_damaged_file_is_named(tmp_path: Path, name: str, damage: str) -> None:
    file = save(tmp_path, small(1)) / name
    whole = file.read_bytes()
    file.unlink()
    if damage == "folder":
        file.mkdir()
    elif damage != "missing":
        file.write_bytes({"cut": whole[:-3], "longer": whole + b" ", "empty": b""}[damage])
    with pytest.raises(DamagedError, match=rf"{file} is damaged: "):
        load(file.parent)


def test_files_of_another_checkpoint_are_damage(tmp_path: Path) -> None:
    """Each is whole by itself: a state of one iteration beside weights of another, a folder under another number."""
    first, second = save(tmp_path, small(1)), save(tmp_path, Checkpoint(2, small(2).tensors, {"rate": 0.5}))
    shutil.copy(first / "state.json", second / "state.json")
    with pytest.raises(DamagedError, match=rf"{second / 'state.json'} is damaged: it has"):
        load(second)
    first.rename(tmp_path / "000007")
    with pytest.raises(DamagedError, match="is of iteration 1, not of that of its folder"):
        load(tmp_path / "000007")


@pytest.mark.parametrize(
    "text, what",
    [
        ("[" * 100_000, "brackets are nested too deep"),
        ("\\ud800", "it is not JSON"),
        ("[]", "its content: "),
        ('{"format": 1, "iteration": -1, "tensors": [], "state": {}}', "iteration: "),
        ('{"format": 1, "iteration": 1, "tensors": ["../../trained"], "state": {}}', "tensors.0: "),
        ('{"format": 1, "iteration": 1, "tensors": ["trained"]}', "state: "),
        ('{"format": "1", "iteration": 1, "tensors": ["trained"], "state": {}}', "format: "),
        (
            '{"format": 2, "iteration": 1, "tensors": ["trained"], "state": {}}',
            "manifest.json is damaged: it is missing",
        ),
    ],
)
def test_a_damaged_state_of_before_there_were_manifests_is_named(tmp_path: Path, text: str, what: str) -> None:
    path = of_before(save(tmp_path, small(1)))
    assert load(path).iteration == 1
    (path / "state.json").write_text(text)
    with pytest.raises(DamagedError) as error:
        load(path)
    assert what in str(error.value)
    (path / "state.json").write_bytes(b'{"format": 1, "\xff": 0}')
    with pytest.raises(DamagedError, match="it is not JSON"):
        load(path)


def test_weights_of_before_there_were_manifests_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    path = of_before(save(tmp_path, small(1)))
    (path / "trained.safetensors").write_bytes(b"\x00" * 7)
    with pytest.raises(DamagedError, match=r"trained.safetensors is damaged: "):
        load(path)


def test_the_newest_whole_checkpoint_is_found_and_damaged_ones_are_no_checkpoints_any_more(tmp_path: Path) -> None:
    paths = [save(tmp_path, small(iteration)) for iteration in (1, 2, 3)]
    whole, damaged = newest_whole(tmp_path)
    assert whole is not None and (whole.path, damaged) == (paths[2], {})
    for path in paths[1:]:
        (path / "trained.safetensors").write_bytes(b"")
    whole, damaged = newest_whole(tmp_path)
    assert whole is not None and whole.path == paths[0] and list(damaged) == [paths[2], paths[1]]
    assert set_aside(paths[2]).name == "damaged-000003"
    assert set_aside(save(tmp_path, small(3))).name == "damaged-000003-2"
    assert sorted(saved(tmp_path)) == [1, 2]
    (paths[0] / "state.json").unlink()
    assert newest_whole(tmp_path)[0] is None


def test_a_newer_format_is_no_damage(tmp_path: Path) -> None:
    path = save(tmp_path, small(1))
    (path / "manifest.json").unlink()
    (path / "state.json").write_text('{"format": 3}')
    with pytest.raises(ConfigError, match="written by a newer mmrl"):
        newest_whole(tmp_path)
