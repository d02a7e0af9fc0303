import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from torch import Tensor

from mmrl.core.contracts import ConfigError
from mmrl.training.checkpoint import Checkpoint, latest, load, prune, restore_plugins, save, saved


def small(iteration: int, value: float = 0.0) -> Checkpoint:
    tensors = {"trained": {"weight": torch.full((5,), value)}, "optimizer": {"step": torch.tensor(value)}}
    return Checkpoint(iteration, tensors, {"value": value})


def value_of(checkpoint: Checkpoint) -> float:
    """The number that `small` put into every part; fails where the parts are not of one checkpoint."""
    value: float = checkpoint.state["value"]
    assert torch.equal(checkpoint.tensors["trained"]["weight"], torch.full((5,), value))
    assert checkpoint.tensors["optimizer"]["step"].item() == value
    return value


def bits(tensor: Tensor) -> bytes:
    return bytes(tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy())


def test_a_checkpoint_comes_back_with_the_same_tensors_and_state(tmp_path: Path) -> None:
    tensors = {
        "trained": {
            "bf16": torch.tensor([1.0, -0.0, float("nan"), 3.0e38], dtype=torch.bfloat16),
            "fp16": torch.tensor([[6e-8]], dtype=torch.float16),
            "fp64": torch.tensor(0.1, dtype=torch.float64),
            "int": torch.tensor([2**62, -1]),
            "bool": torch.tensor([True, False]),
            "empty": torch.zeros(0, 3),
        },
        "nothing": {},
    }
    state = {"rate": 0.1 + 0.2, "tiny": 5e-324, "big": 2**70, "text": "é\n", "list": [None, True, {"a": [1, 1.0]}]}

    loaded = load(save(tmp_path / "checkpoints", Checkpoint(12, tensors, state)))

    assert loaded.iteration == 12
    assert loaded.state == state and repr(loaded.state) == repr(state)  # repr tells 1 from 1.0 and from True
    assert loaded.tensors.keys() == tensors.keys()
    for group, named in tensors.items():
        assert loaded.tensors[group].keys() == named.keys()
        for name, tensor in named.items():
            back = loaded.tensors[group][name]
            assert (back.dtype, back.shape, bits(back)) == (tensor.dtype, tensor.shape, bits(tensor))


def test_shared_and_non_contiguous_tensors_keep_their_values(tmp_path: Path) -> None:
    table = torch.arange(12.0).reshape(3, 4)
    group = {"table": table, "tied": table, "transposed": table.t(), "row": table[1], "every_second": table[:, ::2]}
    loaded = load(save(tmp_path, Checkpoint(0, {"trained": group}, {})))
    torch.testing.assert_close(dict(loaded.tensors["trained"]), group, rtol=0, atol=0)
    loaded.tensors["trained"]["tied"].zero_()
    assert loaded.tensors["trained"]["table"][0, 1] == 1  # memory is no longer shared


def test_gradients_and_parameters_are_saved_as_plain_tensors(tmp_path: Path) -> None:
    weight = torch.nn.Parameter(torch.ones(2))
    loaded = load(save(tmp_path, Checkpoint(0, {"trained": {"weight": weight}}, {})))
    assert not loaded.tensors["trained"]["weight"].requires_grad


def test_equal_checkpoints_have_equal_bytes_and_no_header_metadata(tmp_path: Path) -> None:
    group = {"b": torch.ones(3, dtype=torch.bfloat16), "a": torch.zeros(2), "c": torch.tensor(1.0)}
    first = save(tmp_path / "first", Checkpoint(3, {"x": group, "y": {}}, {"n": 1}))
    second = save(tmp_path / "second", Checkpoint(3, {"y": {}, "x": dict(reversed(group.items()))}, {"n": 1}))
    assert sorted(file.name for file in first.iterdir()) == [
        "manifest.json",
        "state.json",
        "x.safetensors",
        "y.safetensors",
    ]
    for file in first.iterdir():
        assert file.read_bytes() == (second / file.name).read_bytes()
    with safe_open(first / "x.safetensors", "pt") as reader:
        assert reader.metadata() is None


@pytest.mark.parametrize("bad", [float("nan"), [float("inf")], {1: 2}, (1, 2), [{"a": (1,)}], torch.ones(1), {1, 2}])
def test_a_state_that_json_would_change_is_refused_by_name(tmp_path: Path, bad: Any) -> None:
    with pytest.raises(ValueError, match="'counter'"):
        save(tmp_path, Checkpoint(1, {}, {"fine": 1, "counter": bad}))
    assert list(tmp_path.iterdir()) == []


def test_latest_is_the_highest_number_and_none_without_a_checkpoint(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints"
    assert latest(folder) is None
    folder.mkdir()
    assert latest(folder) is None
    for iteration in (999_999, 1_000_000, 5):  # the longer number sorts before the shorter as text
        save(folder, small(iteration))
    assert latest(folder) == folder / "1000000"


def test_unfinished_and_foreign_folders_are_not_taken_for_checkpoints(tmp_path: Path) -> None:
    path = save(tmp_path, small(1))
    shutil.copytree(path, tmp_path / ".tmp-000009")
    (tmp_path / "notes").mkdir()
    (tmp_path / "000010").write_text("a file")
    assert latest(tmp_path) == path


def test_saving_an_iteration_again_replaces_it(tmp_path: Path) -> None:
    save(tmp_path, small(1, 0.25))
    path = save(tmp_path, small(1, 0.5))
    assert value_of(load(path)) == 0.5
    assert [entry.name for entry in tmp_path.iterdir()] == ["000001"]


def test_pruning_keeps_the_newest_and_the_protected(tmp_path: Path) -> None:
    for iteration in range(6):
        save(tmp_path, small(iteration))
    prune(tmp_path, keep=2, protect={1, 77})
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["000001", "000004", "000005"]
    prune(tmp_path, keep=9)
    assert sorted(saved(tmp_path)) == [1, 4, 5]
    with pytest.raises(ValueError, match="at least 1, got 0"):
        prune(tmp_path, keep=0)


def test_a_missing_folder_and_a_newer_format_are_errors(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no checkpoint"):
        load(tmp_path / "000001")
    path = save(tmp_path, small(1))
    (path / "manifest.json").unlink()
    (path / "state.json").write_text(json.dumps({"format": 3}))
    with pytest.raises(ConfigError, match="format 3, written by a newer mmrl; this one reads up to 2"):
        load(path)


class Kept:
    state: Any = None

    def load_state_dict(self, state: Any) -> None:
        self.state = state


def test_the_state_of_an_own_reward_is_found_under_its_name_of_before() -> None:
    reward, labelled = Kept(), Kept()
    restore_plugins({"reward/Redness": reward, "reward/a:b": labelled}, {"reward/mine:Redness": 1, "reward/a:b": 2})
    assert (reward.state, labelled.state) == (1, 2)


@pytest.mark.parametrize("names", [("reward/b",), ("reward/a", "reward/b"), ()], ids=["another", "more", "fewer"])
def test_states_of_other_rewards_are_refused(names: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError, match=r"holds the states of reward/a, the settings are of"):
        restore_plugins(dict.fromkeys(names), {"reward/a": {}})
