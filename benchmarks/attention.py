"""Counts attention calls of a tower for one image, and compilations of flex_attention over packed rows of 12 lengths.

python -m benchmarks.attention [--seconds]

Both are counted, not timed, on a CPU. The tower has the depth, windows and patches of Qwen2.5-VL-7B and narrow layers;
*before* is one call for each window, as transformers does under sdpa. Packed rows hold a prompt of 1,300 tokens and
4 answers of 100 + 37 n tokens, n = 0 ... 11; torch compiles with the backend `eager`, which makes a graph of each shape
that it would make a kernel of. *Before* is a function compiled anew for each row, of its own length, *after* one that
is kept, for rows padded to buckets. `--seconds` also times one pass of the tower in float32.
"""

import argparse
import time
from typing import Any

import torch
from torch._dynamo.utils import counters
from torch.nn.attention import flex_attention as flex
from torch.overrides import TorchFunctionMode

from mmrl.modalities.encoding.segment_attention import NAME, use_segments
from mmrl.modalities.encoding.tower import sized
from mmrl.modalities.tokens.attention import bucket
from mmrl.modalities.tokens.prefix_packing import PADDING, PROMPT, PackedRows

IMAGES = {"1 MP": (72, 72), "1080p": (78, 138)}  # in patches of 14 pixels, even
LENGTHS = [(1300, 4, 100 + 37 * number) for number in range(12)]


class Calls(TorchFunctionMode):
    """Counts calls of attention."""

    count = 0

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += function is torch.nn.functional.scaled_dot_product_attention
        return function(*args, **(kwargs or {}))


def tower(width: int = 32) -> Any:
    """Returns a tower as deep as that of Qwen2.5-VL-7B, with its windows."""
    from transformers import Qwen2_5_VLConfig
    from transformers.models.qwen2_5_vl import modeling_qwen2_5_vl as library

    narrow = {"hidden_size": width, "intermediate_size": width, "num_heads": 2, "out_hidden_size": width}
    config = Qwen2_5_VLConfig(vision_config=narrow).vision_config
    return library.Qwen2_5_VisionTransformerPretrainedModel._from_config(config).eval()


@torch.no_grad()
def calls(network: Any, size: tuple[int, int], attention: str) -> tuple[int, float]:
    """Returns the attention calls of one image, and the seconds."""
    network.config._attn_implementation = attention
    grid = torch.tensor([[1, *size]])
    pixels = torch.zeros(size[0] * size[1], 3 * 2 * 14 * 14)
    with Calls() as counted:
        start = time.perf_counter()
        network(pixels, grid, **sized(network, grid, torch.device("cpu")))
        return counted.count, time.perf_counter() - start


def packed(prompt: int, answers: int, length: int, total: int) -> PackedRows:
    """Returns one packed row, padded to `total`."""
    members = [PROMPT] * prompt + [number for number in range(answers) for _ in range(length)]
    steps = [*range(prompt), *[prompt + step for _ in range(answers) for step in range(length)]]
    more = total - len(members)
    member, step = torch.tensor([members + [PADDING] * more]), torch.tensor([steps + [0] * more])
    return PackedRows(member, member[None], torch.zeros_like(member), member, step)


def compiled() -> list[Any]:
    """Returns the functions that make a mask and that attend under it."""
    return [torch.compile(one, backend="eager") for one in (flex.create_block_mask, flex.flex_attention)]


def compilations(*, is_after: bool) -> tuple[int, int, int]:
    """Returns how many lengths of 12 rows differ, and the graphs of the mask and of the attention."""
    torch.compiler.reset()
    made, found, lengths = compiled(), [0, 0], set()
    for prompt, answers, length in LENGTHS:
        total = prompt + answers * length
        total, made = (bucket(total), made) if is_after else (total, compiled())
        rows = packed(prompt, answers, length, total)
        counters.clear()
        mask = made[0](rows.rule(), 1, None, total, total, "cpu")
        found[0] += counters["stats"]["unique_graphs"]
        counters.clear()
        query, key = torch.zeros(1, 4, total, 16), torch.zeros(1, 2, total, 16)
        with torch.no_grad():
            made[1](query, key, key, block_mask=mask, enable_gqa=True)
        found[1] += counters["stats"]["unique_graphs"]
        lengths.add(total)
    return len(lengths), found[0], found[1]


def main() -> None:
    """Prints both tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", action="store_true")
    is_timed = parser.parse_args().seconds
    network = tower()
    assert use_segments(network)
    print(f"attention calls of an image, {len(network.blocks)} layers")
    for name, size in IMAGES.items():
        (before, seconds), (after, seconds_after) = calls(network, size, "sdpa"), calls(network, size, NAME)
        timed = f"  {seconds:.1f} s, {seconds_after:.1f} s" if is_timed else ""
        print(f"  {name}: {before} before, {after} after{timed}")
    for name, is_after in (("before", False), ("after", True)):
        lengths, mask, attention = compilations(is_after=is_after)
        print(f"12 packed rows, {name}: {lengths} lengths, {mask} graphs of the mask, {attention} of the attention")


if __name__ == "__main__":
    main()
