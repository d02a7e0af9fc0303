"""Encodings in files: whole, by content, made again where they are broken."""

import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from mmrl.core.contracts import ConfigError
from mmrl.modalities.encoding.encoded_files import EncodedFiles, folder_of, identity_of

CPU = torch.device("cpu")


class Encoder:
    def __init__(self, value: Any) -> None:
        self.value, self.num_calls = value, 0

    def __call__(self) -> Any:
        self.num_calls += 1
        return self.value


def test_what_was_encoded_is_read_with_every_bit_and_form(tmp_path: Path) -> None:
    states = torch.randn(2, 3).bfloat16()
    value = (states, [None, {"mask": torch.tensor([True, False]), "length": 3}], torch.empty(0, 4))
    encoder, files = Encoder(value), EncodedFiles(tmp_path, "a model")
    for found in (files.get("a cat", encoder, CPU), EncodedFiles(tmp_path, "a model").get("a cat", encoder, CPU)):
        assert type(found) is tuple and type(found[1]) is list and found[1][0] is None and found[1][1]["length"] == 3
        assert found[0].dtype == torch.bfloat16 and torch.equal(found[0], states) and found[2].shape == (0, 4)
        assert found[1][1]["mask"].tolist() == [True, False]
    assert encoder.num_calls == 1


@pytest.mark.parametrize(("model", "key"), [("another model", ("a cat", 1)), ("a model", ("a dog", 1)),
                                            ("a model", ("a cat", 2))])  # fmt: skip
def test_another_model_text_or_setting_is_a_miss(model: str, key: Any, tmp_path: Path) -> None:
    EncodedFiles(tmp_path, "a model").get(("a cat", 1), Encoder(torch.zeros(1)), CPU)
    encoder = Encoder(torch.ones(1))
    assert EncodedFiles(tmp_path, model).get(key, encoder, CPU).item() == 1 and encoder.num_calls == 1


@pytest.mark.parametrize("break_it", [lambda content: content[:-3], lambda content: b"", lambda content: b"x" * 90])
def test_a_broken_file_is_named_and_made_again(
    break_it: Callable[[bytes], bytes], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    files, encoder = EncodedFiles(tmp_path, "a model"), Encoder(torch.arange(4.0))
    files.get("a cat", encoder, CPU)
    (path,) = tmp_path.rglob("*.safetensors")
    path.write_bytes(break_it(path.read_bytes()))
    with caplog.at_level(logging.WARNING):
        assert torch.equal(files.get("a cat", encoder, CPU), torch.arange(4.0))
    assert f"{path} is broken" in caplog.text and encoder.num_calls == 2
    files.get("a cat", encoder, CPU)
    assert encoder.num_calls == 2


def test_writers_of_one_file_at_a_time_leave_one_whole_file(tmp_path: Path) -> None:
    values = torch.randn(1000)
    with ThreadPoolExecutor(4) as pool:
        jobs = [pool.submit(EncodedFiles(tmp_path, "m").get, "a cat", lambda: values, CPU) for _ in range(16)]
        assert all(torch.equal(job.result(), values) for job in jobs)
    (path,) = (one for one in tmp_path.rglob("*") if one.is_file())
    assert path.suffix == ".safetensors"


def test_an_encoding_of_other_things_than_tensors_is_not_kept(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    encoder = Encoder([torch.zeros(1), {1, 2}])
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            EncodedFiles(tmp_path, "m").get("a cat", encoder, CPU)
    assert encoder.num_calls == 2 and "it holds a set" in caplog.text and not list(tmp_path.rglob("*.safetensors"))


def test_a_folder_that_cannot_be_made_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"encodings: cannot make the folder .*file/below"):
        folder_of(str(tmp_path / "file" / "below"), "encodings")


def _identity(change: Callable[[dict[str, Any]], Any] = lambda parts: None) -> str:
    torch.manual_seed(0)
    parts: dict[str, Any] = {"text_encoder": nn.Linear(40, 40), "tokenizer": SimpleNamespace(
        get_vocab=lambda: {"a": 0, "cat": 1}, chat_template="{prompt}")}  # fmt: skip
    change(parts)
    return identity_of(SimpleNamespace(config={"length": 7}, components=parts), sorted(parts), torch.float32)


def test_the_identity_of_a_model_is_that_of_its_weights_and_its_tokenizer() -> None:
    assert _identity() == _identity()

    def trained(parts: dict[str, Any]) -> None:
        with torch.no_grad():
            parts["text_encoder"].weight.add_(1e-3 * torch.randn(40, 40))

    def other_words(parts: dict[str, Any]) -> None:
        parts["tokenizer"].get_vocab = lambda: {"a": 1, "cat": 0}

    def other_template(parts: dict[str, Any]) -> None:
        parts["tokenizer"].chat_template = "Draw {prompt}"

    changed = [_identity(change) for change in (trained, other_words, other_template)]
    assert len({_identity(), *changed}) == 4
