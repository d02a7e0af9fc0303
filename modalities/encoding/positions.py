"""Positions of tokens on the three axes of M-RoPE: time, height, width (Qwen2-VL 2024, arXiv 2409.12191).

Maths: docs/maths/token-policies.md#positions-on-three-axes
"""

import inspect
from collections.abc import Iterator, Mapping
from itertools import groupby
from typing import Any

import torch
from torch import Tensor

_VIDEO = 2  # the type of its tokens


def rope_positions(
    model: Any, tokens: Tensor, token_types: Tensor, media: Mapping[str, Tensor], seconds: Tensor | None
) -> Tensor:
    """Returns positions [3, L] int64 of a prompt's tokens [L], by the model's own rule, corrected for videos.

    A video's steps of time are `tokens_per_second * seconds` apart, rounded down once for each step and not once for
    all (Qwen2.5-VL 2025, arXiv 2502.13923; transformers 5.0 to 5.22 round the seconds themselves down, to 0 for clips
    sampled above 2 frames a second). Tokens behind a video have positions behind all of the video's: transformers 5
    continues behind its height and width alone, so that text would stand in the middle of a long video; version 4, the
    inference engines and the models' training do not.

    Args:
        model: a network with `get_rope_index`, which gets what it names as an argument. token_types: [L] 1 image, 2
            video, 0 else.
        media: the processor's tensors, with `image_grid_thw` and `video_grid_thw` [n, 3] where there are any.
        seconds: [n] between two steps of time of each video, for models whose clock runs in seconds.
    """
    clock = getattr(model.config.vision_config, "tokens_per_second", None)
    given = {
        **media,
        "input_ids": tokens[None],
        "mm_token_type_ids": token_types[None],
        "attention_mask": torch.ones_like(tokens)[None],
    } | ({} if seconds is None else {"second_per_grid_ts": seconds})
    asked = inspect.signature(model.get_rope_index).parameters
    by_model, _ = model.get_rope_index(**{name: value for name, value in given.items() if name in asked})
    positions: Tensor = by_model[:, 0].clone()
    if "video_grid_thw" not in asked:  # a rule of another kind, to which the corrections do not apply
        return positions
    for number, (start, end) in enumerate(_runs(token_types)):
        if clock is not None and seconds is not None:
            steps = int(media["video_grid_thw"][number, 0])
            times = (torch.arange(steps) * (clock * seconds[number])).long()
            positions[0, start:end] = positions[1, start] + times.repeat_interleave((end - start) // steps)
        if end < len(tokens):
            positions[:, end:] += positions[:, start:end].max() + 1 - positions[0, end]
    return positions


def _runs(token_types: Tensor) -> Iterator[tuple[int, int]]:
    """Yields start and end of each run of video tokens: a video, or a step of time where texts stand between steps."""
    start = 0
    for kind, group in groupby(token_types.tolist()):
        end = start + len(list(group))
        if kind == _VIDEO:
            yield start, end
        start = end
