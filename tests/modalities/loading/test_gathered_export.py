"""Weights that processes share, written tensor by tensor, make the folder that transformers writes of whole ones."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from mmrl.core.contracts import ConfigError, RunError
from mmrl.modalities.loading.gathered_export import saved_names, write_gathered
from tests.vision_twins import policy


def model_of(family: str) -> Any:
    return policy(family).modules()["model"]


def tensors_of(folder: Path) -> dict[str, Tensor]:
    return {name: tensor for file in folder.glob("*.safetensors") for name, tensor in load_file(file).items()}


@pytest.mark.slow
@pytest.mark.parametrize("family", ["qwen2_vl", "qwen2_5_vl", "qwen3_vl"])
def test_a_folder_holds_what_transformers_writes(family: str, tmp_path: Path) -> None:
    model = model_of(family)
    model.save_pretrained(tmp_path / "theirs")
    write_gathered(model, tmp_path / "ours", torch.float32, file_bytes=20_000)
    theirs, ours = (tensors_of(tmp_path / name) for name in ("theirs", "ours"))
    assert theirs.keys() == ours.keys()
    assert all(torch.equal(ours[name], tensor) for name, tensor in theirs.items())
    index = json.loads((tmp_path / "ours/model.safetensors.index.json").read_text())
    assert index["metadata"]["total_size"] == sum(tensor.nbytes for tensor in theirs.values())
    files = sorted((tmp_path / "ours").glob("*.safetensors"))
    assert len(files) > 3, "in parts"
    for file in files:
        own = load_file(file)
        assert all(index["weight_map"][name] == file.name for name in own)
        assert len(own) == 1 or sum(tensor.nbytes for tensor in own.values()) <= 20_000
    assert (tmp_path / "ours/config.json").read_text() == (tmp_path / "theirs/config.json").read_text()
    again = type(model).from_pretrained(tmp_path / "ours")
    for name, tensor in again.state_dict().items():
        assert torch.equal(tensor, model.state_dict()[name])


def test_numbers_are_written_in_the_servers_precision(tmp_path: Path) -> None:
    model = model_of("qwen2_5_vl")
    write_gathered(model, tmp_path / "model", torch.bfloat16)
    saved = saved_names(model)
    written = tensors_of(tmp_path / "model")
    for name, tensor in model.named_parameters():
        assert torch.equal(written[saved[name]], tensor.detach().bfloat16())


def test_a_disk_that_fails_is_said_when_everything_is_gathered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, gathered = model_of("qwen2_5_vl"), list[Tensor]()

    def noting(tensor: Tensor) -> Tensor:
        gathered.append(tensor)
        return tensor

    monkeypatch.setattr("mmrl.modalities.loading.gathered_export.whole", noting)
    (tmp_path / "model").write_text("no folder")
    with pytest.raises(RunError, match=r"cannot write weights to .*model"):
        write_gathered(model, tmp_path / "model", torch.float32, file_bytes=1)
    assert len(gathered) == len(list(model.parameters())), "the others wait for none of them"


def test_a_process_without_a_folder_takes_part_and_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_gathered(model_of("qwen2_5_vl"), None, torch.float32)
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_a_family_whose_checkpoints_hold_other_tensors_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"checkpoints of Qwen3VLMoe.* hold other tensors than the network"):
        saved_names(model_of("qwen3_vl_moe"))
