"""The attention of towers in one call a layer gives what one call for each window gives."""

import importlib
import random
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from mmrl.modalities.encoding.segment_attention import (
    MOST_PADDING,
    NAME,
    Segments,
    alike,
    by_groups,
    by_varlen,
    takes_segments,
    use_segments,
)
from mmrl.modalities.encoding.tower import sized
from tests.parameters import in_one_test

SMALL = {"depth": 2, "hidden_size": 32, "num_heads": 2, "intermediate_size": 32, "out_hidden_size": 16}
TOWERS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "qwen2_vl": (
        "Qwen2VLVisionConfig",
        "Qwen2VisionTransformerPretrainedModel",
        {"depth": 2, "embed_dim": 32, "num_heads": 2, "hidden_size": 16},
    ),
    "qwen2_5_vl": (
        "Qwen2_5_VLVisionConfig",
        "Qwen2_5_VisionTransformerPretrainedModel",
        {**SMALL, "fullatt_block_indexes": [1], "window_size": 112},
    ),
    "qwen3_vl": (
        "Qwen3VLVisionConfig",
        "Qwen3VLVisionModel",
        {**SMALL, "deepstack_visual_indexes": [0], "num_position_embeddings": 64},
    ),
    "glm4v": ("Glm4vVisionConfig", "Glm4vVisionModel", {**SMALL, "image_size": 224}),
}
GRIDS = ([[1, 20, 34]], [[1, 20, 34], [1, 8, 12], [3, 4, 6], [1, 20, 34]])
OF_1080P = [[1, 78, 138]]  # 1092 x 1932 pixels: what the processors make of 1080 x 1920


def tower(family: str) -> Any:
    """A random tower of a family, small but for its windows."""
    config, network, settings = TOWERS[family]
    torch.manual_seed(0)
    library = importlib.import_module(f"transformers.models.{family}.modeling_{family}")
    return getattr(library, network)._from_config(getattr(library, config)(**settings)).eval()


def result(network: Any, grid: Tensor, **more: Any) -> list[Tensor]:
    """What a tower makes of noise at these sizes, and the gradients of its weights."""
    config, count = network.config, int(grid.prod(-1).sum())
    width = config.in_channels * config.temporal_patch_size * config.patch_size**2
    pixels = torch.randn(count, width, generator=torch.Generator().manual_seed(1))
    network.zero_grad()
    output = network(pixels, grid, **more)
    made = [output.pooler_output, *(getattr(output, "deepstack_features", None) or ())]
    torch.stack([one.square().mean() for one in made]).sum().backward()
    return [*(one.detach() for one in made), *(p.grad for p in network.parameters() if p.grad is not None)]


class Calls(TorchFunctionMode):
    """Counts calls of attention."""

    count = 0

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += function is torch.nn.functional.scaled_dot_product_attention
        return function(*args, **(kwargs or {}))


@pytest.mark.slow
@pytest.mark.parametrize("grid", GRIDS)
@pytest.mark.parametrize("family", TOWERS)
def test_a_tower_makes_what_it_makes_window_by_window_gradients_included(family: str, grid: list[list[int]]) -> None:
    network, sizes = tower(family), torch.tensor([one for one in grid if one[0] == 1 or family != "glm4v"])
    expected = result(network, sizes)
    assert network.config._attn_implementation == "sdpa"
    assert use_segments(network) and network.config._attn_implementation == NAME
    largest = max(float(one.norm()) for one in expected)
    ways: list[dict[str, Any]] = [{}] if family == "glm4v" else [{}, given(network, sizes)]
    for way in ways:
        found = result(network, sizes, **way)
        for one, other in zip(found, expected, strict=True):  # a bias of keys has no gradient but rounding
            assert float((one - other).norm()) <= 1e-5 * max(float(other.norm()), 1e-3 * largest)


def given(network: Any, sizes: Tensor) -> dict[str, Any]:
    return sized(network, sizes, torch.device("cpu"))


@pytest.mark.slow
@pytest.mark.parametrize("family", ["qwen2_vl", "qwen2_5_vl", "qwen3_vl"])
@pytest.mark.parametrize("attention", ["sdpa", NAME])
def test_what_the_host_computes_of_sizes_is_what_the_tower_computes(family: str, attention: str) -> None:
    network, sizes = tower(family), torch.tensor(GRIDS[1])
    use_segments(network)
    network.config._attn_implementation = attention
    made = given(network, sizes)
    for one, other in zip(result(network, sizes, **made), result(network, sizes), strict=True):
        assert torch.equal(one, other)
    assert ("segments" in made) == (attention == NAME)


@pytest.mark.slow
def test_an_image_of_1080p_takes_one_call_of_attention_in_each_layer() -> None:
    network, sizes = tower("qwen2_5_vl"), torch.tensor(OF_1080P)
    assert use_segments(network)
    width = 3 * 2 * 14 * 14
    with Calls() as calls, torch.no_grad():
        network(torch.zeros(int(sizes.prod()), width), sizes, **given(network, sizes))
    assert calls.count == len(network.blocks)


def test_layers_that_run_another_attention_keep_it() -> None:
    network = tower("qwen2_5_vl")
    network.config._attn_implementation = "eager"
    assert not use_segments(network)
    assert network.config._attn_implementation == "eager"
    assert not any(map(takes_segments, torch.nn.Sequential(torch.nn.Linear(2, 2)).modules()))


def random_lengths(seed: int) -> list[int]:
    pick = random.Random(seed)
    return [pick.choice([1, 3, 4, 16, 50]) for _ in range(pick.randint(1, 20))]


@in_one_test("seed", range(5))
def test_groups_hold_each_segment_once_with_little_padding(seed: int) -> None:
    lengths = random_lengths(seed)
    groups = list(alike(lengths))
    assert sorted(number for group in groups for number in group) == list(range(len(lengths)))
    for group in groups:
        own = [lengths[number] for number in group]
        assert len(own) * max(own) ** 2 <= MOST_PADDING * sum(length**2 for length in own)
    assert list(alike([7, 7, 7])) == [[0, 1, 2]]


def segment_by_segment(lengths: list[int], query: Tensor, key: Tensor, value: Tensor, scaling: float) -> Tensor:
    """softmax(q k^T scaling) v of each segment, written out."""
    parts, start = [], 0
    for length in lengths:
        own = slice(start, start + length)
        scores = torch.einsum("hqd,hkd->hqk", query[0, :, own], key[0, :, own]) * scaling
        parts.append(torch.einsum("hqk,hkd->qhd", scores.softmax(-1), value[0, :, own]))
        start += length
    return torch.cat(parts)[None]


@in_one_test("seed", range(5))
def test_attention_by_groups_is_the_formula_on_each_segment(seed: int) -> None:
    lengths = random_lengths(seed)
    generator = torch.Generator().manual_seed(seed)
    query, key, value = torch.randn(3, 1, 2, sum(lengths), 8, generator=generator, dtype=torch.float64).unbind()
    ends = torch.tensor([0, *lengths]).cumsum(0)
    found = by_groups(Segments.of(ends, torch.device("cpu")), query, key, value, 0.3)
    torch.testing.assert_close(found, segment_by_segment(lengths, query, key, value, 0.3))


def test_segments_are_those_between_the_ends() -> None:
    ends = torch.tensor([0, 3, 4, 9], dtype=torch.int32)
    segments = Segments.of(ends, torch.device("cpu"))
    assert segments.lengths == tuple(end - start for start, end in pairwise(ends.tolist()))
    assert segments.longest == 5 and segments.ends.dtype == torch.int32


def test_the_kernel_for_segments_takes_what_it_is_given() -> None:
    """On the device `meta`, where torch checks shapes and dtypes and computes nothing."""
    segments = Segments.of(torch.tensor([0, 64, 128, 160]), torch.device("meta"))
    query, key, value = torch.empty(3, 1, 2, 160, 80, dtype=torch.bfloat16, device="meta").requires_grad_().unbind()
    found = by_varlen(segments, query, key, value, 80**-0.5)
    assert found.shape == (1, 160, 2, 80) and found.dtype == torch.bfloat16
    found.sum().backward()
