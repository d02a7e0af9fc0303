"""Images and videos for a server as tensors that its network takes, so that a video's frames are those of this run.

The server's own processor would choose the frames of a video by rules of its own. In the place of files it gets the
tensors of this run's processor (`features` of vLLM's `/inference/v1/generate`), each with the place of its tokens.

The binary form is vLLM's own (`vllm/v1/serial_utils.py`, the same in 0.32 and 0.33): a MessagePack dictionary of
fields; a tensor is its dtype, its shape, and its bytes as an extension of type 3. Beside a field stands how the server
joins it with that of other items: `flat` along the first axis, or `batched` along a new one, which stays on the host.
"""

import hashlib
from base64 import b64encode
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import groupby
from typing import Any, Literal

import msgpack
import torch
from torch import Tensor

from ...encoding.inputs import EncodedPrompt

MediaKind = Literal["image", "video"]
# of both kinds: the patches of all images or videos [n, H], and their sizes [m, 3] in patches: time, height, width
PIXELS = {"image": "pixel_values", "video": "pixel_values_videos"}
GRIDS = {"image": "image_grid_thw", "video": "video_grid_thw"}
SECONDS = "second_per_grid_ts"
RAW_BYTES = 3  # the extension of MessagePack that holds a tensor's bytes
_TYPES: dict[int, MediaKind] = {1: "image", 2: "video"}  # of tokens


@dataclass(frozen=True)
class MediaItem:
    """One run of media tokens: an image, a video, or one step of time of a video with texts between its steps.

    vLLM treats one step of time as it treats an image of as many patches, and its request has no place to say that
    texts stand between the steps of a video. So `kind` is that of the server: `video` for several steps in one run.
    """

    kind: MediaKind
    offset: int  # of its first token in the prompt
    length: int  # of its tokens
    pixels: Tensor = field(compare=False, repr=False)  # [n, H] its patches
    grid: tuple[int, int, int] = field(compare=False)  # in patches: time, height, width; n in all
    seconds: float | None = field(default=None, compare=False)  # between two steps of time, where positions need them

    @cached_property
    def content(self) -> bytes:
        """Returns its fields as vLLM reads them."""
        named = {PIXELS[self.kind]: (self.pixels, _flat(len(self.pixels)))}
        named[GRIDS[self.kind]] = (torch.tensor(self.grid), _BATCHED)
        if self.seconds is not None:
            named[SECONDS] = (torch.tensor(self.seconds, dtype=torch.float64), _BATCHED)
        content = {name: {"data": _tensor(tensor), "field": how} for name, (tensor, how) in named.items()}
        packed: bytes = msgpack.packb(content)
        return packed


_BATCHED: list[Any] = ["batched", {"keep_on_cpu": True}]


def _flat(count: int) -> list[Any]:
    return ["flat", {"keep_on_cpu": False, "slices": [[[0, count, None]]], "dim": 0}]


def _tensor(tensor: Tensor) -> list[Any]:
    content = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    return [str(tensor.dtype).removeprefix("torch."), list(tensor.shape), msgpack.ExtType(RAW_BYTES, content)]


def features_of(items: Sequence[MediaItem]) -> dict[str, Any]:
    """Returns the field `features` of a request: by kind, the items' names, places and contents, in their order.

    The server's caches go by the names, which are hashes of the contents.
    """
    kinds = sorted({item.kind for item in items})
    own = {kind: [item for item in items if item.kind == kind] for kind in kinds}
    return {
        "mm_hashes": {kind: [hashlib.sha256(item.content).hexdigest() for item in own[kind]] for kind in kinds},
        "mm_placeholders": {
            kind: [{"offset": item.offset, "length": item.length} for item in own[kind]] for kind in kinds
        },
        "kwargs_data": {kind: [b64encode(item.content).decode() for item in own[kind]] for kind in kinds},
    }


def items_of(encoded: EncodedPrompt, clock: float, dtype: torch.dtype) -> tuple[MediaItem, ...]:
    """Returns the images and videos of a prompt, in their order.

    Args:
        clock: how many positions a second of a video has; 1 where its steps count. dtype: in which the network reads
            pixels.
    Raises ValueError for media of other tensors than patches with sizes, and where tokens and sizes do not fit.
    """
    known = {*PIXELS.values(), *GRIDS.values()}
    if others := sorted(set(encoded.media) - known):
        raise ValueError(f"its media are also {', '.join(others)}")
    places = list(_runs(encoded.token_types))
    items: list[MediaItem] = []
    for kind in ("image", "video"):
        runs = [(start, end) for found, start, end in places if found == kind]
        grids = _grids_of_runs(encoded.media.get(GRIDS[kind], torch.zeros(0, 3, dtype=torch.int64)), len(runs), kind)
        counts = [time * height * width for time, height, width in grids]
        num_tokens, num_patches = sum(end - start for start, end in runs), sum(counts)
        if any((end - start) * num_patches != n * num_tokens for (start, end), n in zip(runs, counts, strict=True)):
            raise ValueError(f"its {kind}s have other numbers of tokens than patches")
        pixels = encoded.media[PIXELS[kind]].to(dtype).split(counts) if runs else ()
        for (start, end), grid, own in zip(runs, grids, pixels, strict=True):
            has_steps = grid[0] > 1
            seconds = seconds_of(encoded.positions[0, start:end], grid[0], clock) if has_steps else None
            items.append(MediaItem("video" if has_steps else "image", start, end - start, own, grid, seconds))
    return tuple(sorted(items, key=lambda item: item.offset))


def _runs(token_types: Tensor) -> Iterator[tuple[MediaKind, int, int]]:
    """Yields kind, start and end of each run of media tokens."""
    start = 0
    for number, group in groupby(token_types.tolist()):
        end = start + len(list(group))
        if number in _TYPES:
            yield _TYPES[number], start, end
        start = end


def _grids_of_runs(grids: Tensor, num_runs: int, kind: str) -> list[tuple[int, int, int]]:
    """Returns the size of what stands in each run: an image or video, or one step of time."""
    sizes = [(int(time), int(height), int(width)) for time, height, width in grids.tolist()]
    steps = [(1, height, width) for time, height, width in sizes for _ in range(time)]
    for found in (sizes, steps):
        if len(found) == num_runs:
            return found
    raise ValueError(f"its {len(sizes)} {kind}s of {len(steps)} steps of time are {num_runs} runs of tokens")


def seconds_of(positions: Tensor, num_steps: int, clock: float) -> float | None:
    """Returns seconds for which the server's steps of time have these positions; None where they count.

    The server takes floor(n * seconds * clock) for step n, in float64, where the trainer's own is in float32. The
    seconds from the middle of those that give the same positions are free of both roundings. They enter nothing else.

    Args:
        positions: [n] of a video's tokens on the axis of time.
    """
    times = positions[:: len(positions) // num_steps].to(torch.float64) - positions[0]
    number = torch.arange(num_steps, dtype=torch.float64)
    if clock == 1 and torch.equal(times, number):
        return None
    lowest, highest = float((times / number)[1:].max()), float(((times + 1) / number)[1:].min())
    if not lowest < highest:
        raise ValueError(f"its steps of time stand at {times.long().tolist()}, which no number of seconds gives")
    return (lowest + highest) / 2 / clock
