"""What the small server makes of media that come as tensors: read and placed by vLLM's rules, written a second time.

After `MultiModalFeatures`, `MsgpackDecoder` and `get_mrope_input_positions` of vLLM 0.32 and 0.33. What would end
vLLM's engine, or be read otherwise than meant, is an error here.
"""

from base64 import b64decode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgpack
import torch
from torch import Tensor

from ...encoding.inputs import EncodedPrompt
from .features import GRIDS, PIXELS, RAW_BYTES, SECONDS

_FIELDS = {"mm_hashes", "mm_placeholders", "kwargs_data"}


@dataclass(frozen=True)
class ReadItem:
    """An image or a video as the server reads it."""

    kind: str
    name: str  # in its caches
    offset: int
    length: int
    tensors: Mapping[str, Tensor]

    @property
    def grid(self) -> tuple[int, int, int]:
        """Returns its patches in time, height and width."""
        time, height, width = self.tensors[GRIDS[self.kind]].tolist()
        return time, height, width


def read_items(features: Mapping[str, Any]) -> list[ReadItem]:
    """Returns the items of a request in the order of their places. Raises ValueError for what vLLM would refuse."""
    if set(features) != _FIELDS:
        raise ValueError(f"features has {sorted(features)}, not {sorted(_FIELDS)}")
    names, places, contents = features["mm_hashes"], features["mm_placeholders"], features["kwargs_data"]
    if not set(names) == set(places) == set(contents) <= set(PIXELS):
        raise ValueError("mm_hashes, mm_placeholders and kwargs_data must use the same modalities")
    items = [
        ReadItem(kind, name, place["offset"], place["length"], _tensors(b64decode(content)))
        for kind in names
        for name, place, content in zip(names[kind], places[kind], contents[kind], strict=True)
    ]
    items.sort(key=lambda item: item.offset)
    ends = [0, *(item.offset + item.length for item in items)]
    if any(item.offset < end for item, end in zip(items, ends, strict=False)):
        raise ValueError("mm_placeholders must be globally non-overlapping and sorted")
    return items


def _tensors(content: bytes) -> dict[str, Tensor]:
    return {name: _tensor(element) for name, element in msgpack.unpackb(content).items()}


def _tensor(element: Mapping[str, Any]) -> Tensor:
    (dtype, shape, extension), (how, settings) = element["data"], element["field"]
    if extension.code != RAW_BYTES:
        raise ValueError(f"Extension type code {extension.code} is not supported")
    if set(settings) != {"batched": {"keep_on_cpu"}, "flat": {"keep_on_cpu", "slices", "dim"}}[how]:
        raise ValueError(f"a field that is {how} has settings {sorted(settings)}")
    return torch.frombuffer(bytearray(extension.data), dtype=torch.uint8).view(getattr(torch, dtype)).view(shape)


def read_prompt(tokens: Sequence[int], items: Sequence[ReadItem], config: Any) -> EncodedPrompt:
    """Returns a prompt whose items stand where the request says. `config`: that of a network of the Qwen-VL families.

    Raises ValueError for an item with other numbers of tokens than of embeddings, or at tokens of another kind.
    """
    merged = config.vision_config.spatial_merge_size**2
    read = torch.tensor(tokens)
    token_types = torch.eq(read, config.image_token_id).long() + 2 * torch.eq(read, config.video_token_id).long()
    media: dict[str, list[Tensor]] = {}
    covered = torch.zeros(len(read), dtype=torch.bool)
    for item in items:
        where = slice(item.offset, item.offset + item.length)
        covered[where] = True
        kinds = set(token_types[where].tolist())
        pixels, count = item.tensors[PIXELS[item.kind]], item.tensors[GRIDS[item.kind]].prod()
        if not len(pixels) == count == item.length * merged or len(kinds) > 1:
            raise ValueError(f"{len(pixels)} patches of {count} for {item.length} tokens of kinds {kinds}")
        kind = {1: "image", 2: "video"}[kinds.pop()]  # the network of transformers takes its media by tokens
        media.setdefault(PIXELS[kind], []).append(pixels)
        media.setdefault(GRIDS[kind], []).append(item.tensors[GRIDS[item.kind]][None])
    if not torch.equal(covered, token_types > 0):
        raise ValueError("tokens of images or videos stand outside of mm_placeholders")
    positions = _positions(len(read), items, config)
    joined = {name: torch.cat(parts) for name, parts in media.items()}
    return EncodedPrompt(read, token_types, positions, int(positions.max()) + 1, joined, None)


def _positions(count: int, items: Sequence[ReadItem], config: Any) -> Tensor:
    """Returns positions [3, count]: texts and items stand behind all that is before them.

    Raises ValueError for a video in a family that looks for the start of each of its steps.
    """
    clock, merge = getattr(config.vision_config, "tokens_per_second", 1.0), config.vision_config.spatial_merge_size
    parts: list[Tensor] = []
    done = 0

    def add(part: Tensor) -> None:
        parts.append(part + (parts[-1].max() + 1 if parts else 0))

    for item in items:
        time, height, width = item.grid
        if item.kind == "image" and time != 1:
            raise ValueError(f"Image must have 1 frame, got {time}")
        if item.kind == "video" and config.model_type == "qwen3_vl":
            raise ValueError("the steps of a video need places of their own")
        if item.offset > done:
            add(torch.arange(item.offset - done).expand(3, -1))
        seconds = float(item.tensors[SECONDS]) if SECONDS in item.tensors else 1.0
        factor = seconds * clock if item.kind == "video" else 1.0
        steps = [int(number * factor) for number in range(time)]
        sides = (torch.arange(side // merge) for side in (height, width))
        add(torch.stack(torch.meshgrid(torch.tensor(steps), *sides, indexing="ij")).flatten(1))
        done = item.offset + item.length
    if count > done:
        add(torch.arange(count - done).expand(3, -1))
    return torch.cat(parts, 1)
