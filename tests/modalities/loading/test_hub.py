"""Where a model comes from: a folder, the cache, the hub, or nowhere; no library is asked in the last case."""

from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
import torch
from huggingface_hub.errors import HfHubHTTPError
from torch import nn

from mmrl.core.contracts import ConfigError
from mmrl.modalities.loading.hub import cast_weights, moved, source_of
from tests.parameters import in_one_test

ConnectError: Any = HfHubHTTPError.__bases__[0]


@pytest.fixture
def requests(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What the hub was asked; it cannot be reached."""
    questions: list[str] = []

    def unreachable(url: str, **settings: Any) -> None:
        questions.append(url)
        raise ConnectError("Name or service not known")

    monkeypatch.setattr(huggingface_hub, "get_hf_file_metadata", unreachable)
    monkeypatch.setattr(huggingface_hub, "try_to_load_from_cache", lambda model, file: None)
    return questions


def test_a_model_that_nobody_has_is_asked_for_once(requests: list[str]) -> None:
    with pytest.raises(ConfigError, match=r"modality.model: there is no model 'own/typo'.*no config.json.*not known"):
        source_of("own/typo", "modality.model", "transformers", "config.json")
    assert len(requests) == 1 and requests[0].endswith("own/typo/resolve/main/config.json")


def test_a_folder_and_a_model_in_the_cache_are_not_asked_for(
    requests: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert source_of(str(tmp_path), "modality.model", "transformers", "config.json") == str(tmp_path)
    monkeypatch.setattr(huggingface_hub, "try_to_load_from_cache", lambda model, file: f"/cache/{model}/{file}")
    assert source_of("own/model", "modality.model", "transformers", "config.json") == "own/model"
    assert requests == []


@in_one_test("model", ["/nowhere", "./nowhere", "~/nowhere", "nowhere", "a/b/c"])
def test_what_can_be_no_hub_name_is_not_asked_for(requests: list[str], model: str) -> None:
    with pytest.raises(ConfigError, match="there is no folder"):
        source_of(model, "modality.model", "transformers", "config.json")
    assert requests == []


def test_only_what_a_checkpoint_holds_is_cast() -> None:
    module = nn.Linear(2, 2)
    module.register_buffer("mean", torch.ones(2))
    module.register_buffer("count", torch.ones(2, dtype=torch.int64))
    module.register_buffer("frequencies", torch.ones(2), persistent=False)
    module.register_buffer("turns", torch.full((2,), 1j), persistent=False)
    cast_weights(module, torch.bfloat16)
    found = {name: tensor.dtype for name, tensor in (*module.named_parameters(), *module.named_buffers())}
    assert found == {
        "weight": torch.bfloat16,
        "bias": torch.bfloat16,
        "mean": torch.bfloat16,
        "count": torch.int64,
        "frequencies": torch.float32,
        "turns": torch.complex64,
    }


def test_a_moved_module_is_afterwards_what_it_was_by_the_same_tensors() -> None:
    """A layer with a weight that two modules share, and a buffer; the device `meta` holds no numbers to copy back."""
    first, second = nn.Linear(3, 3), nn.Linear(3, 3)
    second.weight = first.weight
    module = nn.Sequential(first, second, nn.BatchNorm1d(3)).eval()
    given = torch.randn(2, 3)
    wanted, before = module(given), {name: tensor.data_ptr() for name, tensor in module.state_dict().items()}
    with moved(module, torch.device("meta")):
        assert {tensor.device.type for tensor in module.state_dict().values()} == {"meta"}
    torch.testing.assert_close(module(given), wanted, rtol=0, atol=0)
    assert {name: tensor.data_ptr() for name, tensor in module.state_dict().items()} == before
    assert second.weight is first.weight


def test_a_module_is_moved_back_after_an_error() -> None:
    module = nn.Linear(2, 2)
    with pytest.raises(RuntimeError, match="inside"), moved(module, torch.device("meta")):
        raise RuntimeError("inside")
    assert module.weight.device.type == "cpu"
