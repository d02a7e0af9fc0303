"""Encoded prompts are kept while they have room, counted in prompts and in bytes; what is asked for is always there."""

from collections import OrderedDict
from typing import Any
from weakref import WeakMethod

import pytest
import torch

from mmrl.modalities.flow.decisions import Conditioning
from mmrl.modalities.flow.driven.remembered import Remembered, num_bytes
from tests.linear_flow import LinearFlow


class Counted(LinearFlow):
    """Texts of 100 numbers of float32 each; `texts` lists what was encoded."""

    texts: list[str]

    def encode_prompts(self, texts: list[str]) -> Conditioning:
        self.texts = [*getattr(self, "texts", []), *texts]
        return Conditioning((torch.stack([torch.full((100,), float(text)) for text in texts]),))


@pytest.mark.parametrize(
    ("settings", "encoded"),
    [
        ({}, "123"),
        ({"prompt_cache_gb": 1200 / 1e9}, "123"),  # all three
        ({"prompt_cache_gb": 1199 / 1e9}, "12312"),  # 3 began anew, with 2
        ({"prompt_cache": 2}, "12312"),
        ({"prompt_cache_gb": 0.0}, "123121"),  # those of the last call alone,
    ],
    ids=str,
)
def test_prompts_are_encoded_anew_where_they_had_no_room(settings: dict[str, Any], encoded: str) -> None:
    policy = Counted(**settings)
    for texts in (["1", "2"], ["2", "3"], ["1"], ["2"], ["1"]):
        found = policy.conditioning(texts).tensors[0]
        assert found[:, 0].tolist() == [float(text) for text in texts]
    assert "".join(policy.texts) == encoded


class Policy:
    def on_device(self) -> Any:
        raise AssertionError("nothing is moved")


def test_results_of_a_pipeline_are_kept_in_bytes_and_the_newest_always() -> None:
    assert num_bytes((torch.zeros(100), {"mask": [torch.zeros(25, dtype=torch.int64)]}, None, "text")) == 400 + 200
    policy = Policy()
    for max_bytes, kept in ((1500, 3), (1499, 2), (0, 1)):
        remembered = Remembered(64, max_bytes, WeakMethod(policy.on_device), torch.device("cpu"))
        remembered._results = OrderedDict((name, (torch.zeros(100), [torch.zeros(25)])) for name in "abc")
        remembered._drop_oldest()
        assert list(remembered._results) == list("abc")[3 - kept :]
