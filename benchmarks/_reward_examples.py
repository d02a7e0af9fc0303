"""What each cheap reward is asked about in a benchmark: many of the random answers that its own test file draws."""

import random
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import interpolate

from mmrl.core.contracts import Reward, RewardBatch
from mmrl.core.data import Outputs, Scores
from mmrl.core.keys import generator
from mmrl.core.plugins import build, names
from tests.rewards.example import Example, example_of
from tests.rewards.pictures import Shown

OF_ONE_SIZE = {"shapes", "soft_shapes"}  # judge images of their lab and no others: 32 x 32
LAB_MIXES: dict[str, dict[str, Any]] = {"gate": {"by": "a"}, "lexicographic": {"order": ["a", "b"]}}


def cheap_rewards(selected: list[str] | None) -> Iterator[tuple[str, Reward, Example]]:
    """Every shipped reward that loads no weights and asks no server, as its test file sets it."""
    for name in names("rewards") if selected is None else selected:
        example = example_of(name)
        reward = build("rewards", {"name": name} | dict(example.settings))
        if not {"model", "service"} & reward.needs:
            yield name, reward, example


def batch_for(name: str, reward: Reward, example: Example, answers: int, images: int, side: int) -> RewardBatch:
    """At least `answers` samples; for media `images` of them, pictures of side x side pixels and clips of a quarter."""
    has_media = bool({"images", "videos"} & reward.needs)
    parts: list[RewardBatch] = []
    while sum(map(len, parts)) < (images if has_media else answers):
        parts.append(example.random_batch(random.Random(len(parts))))
    batch = _join(parts)
    return _enlarged(batch, side) if has_media and name not in OF_ONE_SIZE else batch


def scores_for(samples: int, mix: Any) -> Scores:
    """`samples` samples of three rewards in groups of eight."""
    number = torch.arange(samples)
    values = torch.rand(samples, 3, generator=torch.Generator().manual_seed(0))
    return Scores(
        values=values,
        names=("a", "b", "c"),
        weights=(1.0, 0.5, 0.25),
        valid=torch.ones(samples, dtype=torch.bool),
        group=number // 8,
        episode=number,
        turn=torch.zeros_like(number),
        mix=mix,
    )


def all_mixes() -> Iterator[tuple[str, Any]]:
    """Every shipped mix."""
    for name in names("mixes"):
        yield name, build("mixes", {"name": name} | LAB_MIXES.get(name, {}))


def _join(parts: list[RewardBatch]) -> RewardBatch:
    """One batch of all samples; groups and episodes of different parts stay apart."""
    sizes = [1 + int(torch.cat([part.group, part.episode]).max()) for part in parts]
    shifts = [sum(sizes[:number]) for number in range(len(parts))]
    count = sum(map(len, parts))
    controls = [part.is_control for part in parts if part.is_control is not None]
    return RewardBatch(
        prompts=tuple(prompt for part in parts for prompt in part.prompts),
        outputs=Outputs.join([part.outputs for part in parts]),
        group=torch.cat([part.group + shift for part, shift in zip(parts, shifts, strict=True)]),
        episode=torch.cat([part.episode + shift for part, shift in zip(parts, shifts, strict=True)]),
        turn=torch.cat([part.turn for part in parts]),
        seeds=tuple(range(count)),
        iteration=parts[0].iteration,
        generator=generator(*range(count)),
        is_control=torch.cat(controls) if controls else None,
    )


def _enlarged(batch: RewardBatch, side: int) -> RewardBatch:
    """The same pictures with side x side pixels, clips with a quarter of that a side."""
    outputs, quarter = batch.outputs, max(1, side // 4)
    if outputs.images is not None:
        outputs = replace(outputs, images=_resized(outputs.images, side))
    if outputs.videos is not None:
        count, frames = outputs.videos.shape[:2]
        videos = _resized(outputs.videos.flatten(0, 1), quarter).unflatten(0, (count, frames))
        outputs = replace(outputs, videos=videos)
    prompts = (
        replace(prompt, media=tuple(Shown(picture.load().resize((side, side))) for picture in prompt.media))
        for prompt in batch.prompts
    )
    return replace(batch, outputs=outputs, prompts=tuple(prompts))


def _resized(images: Tensor, side: int) -> Tensor:
    return interpolate(images, (side, side), mode="bilinear", align_corners=False)
