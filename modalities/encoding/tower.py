"""The features of images and videos, made ahead of the network's own forward pass, and kept where the tower is frozen.

For the Qwen-VL families. What depends on the sizes of images alone (positions, windows, ends of segments) is computed
on the host, which knows them, so that no tower reads them back from the device. The network takes features that are
there (`mm_encoder_outputs` of transformers).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from .inputs import EncodedPrompt, join_media, runs
from .network import arguments_of, network_of
from .segment_attention import NAME, Segments

_KNOWN = ("qwen2_vl", "qwen2_5_vl", "qwen3_vl")  # the types whose towers compute from sizes what `sized` does
_PASS = 2**14  # patches that a frozen tower computes in one pass: more gain nothing, and take memory
_MEDIA = {"image": ("pixel_values", "image_grid_thw"), "video": ("pixel_values_videos", "video_grid_thw")}


@dataclass(frozen=True)
class Features:
    """What a tower makes of the images or videos of one prompt: of each [t, H], t its tokens."""

    pooled: tuple[Tensor, ...]
    deepstack: tuple[
        tuple[Tensor, ...], ...
    ]  # of some of its layers, for early layers of the language model (Qwen3-VL)

    @property
    def size(self) -> int:
        """Returns the bytes."""
        tensors = [*self.pooled, *(one for layer in self.deepstack for one in layer)]
        return sum(one.numel() * one.element_size() for one in tensors)


@dataclass
class KeptFeatures:
    """The features of prompts, kept until they are dropped, as many as the bytes allow: those of the first prompts."""

    most: int  # bytes
    size: int = 0
    _kept: dict[tuple[int, str], tuple[Any, Features]] = field(default_factory=dict)  # the media live as long

    def of(self, prompt: EncodedPrompt, kind: str) -> Features | None:
        """Returns what is kept of the images or videos of a prompt."""
        kept = self._kept.get((id(prompt.media), kind))
        return None if kept is None else kept[1]

    def keep(self, prompt: EncodedPrompt, kind: str, features: Features) -> None:
        """Keeps features where the bytes allow."""
        if self.size + features.size <= self.most:
            self._kept[id(prompt.media), kind] = prompt.media, features
            self.size += features.size

    def drop(self) -> None:
        """Frees all."""
        self._kept.clear()
        self.size = 0


def makes_features(model: Any) -> bool:
    """Returns whether the features of a model can be made ahead of its forward pass, and what that takes is known."""
    return model.config.model_type in _KNOWN and "mm_encoder_outputs" in arguments_of(model)


@dataclass(frozen=True)
class Tower:
    """The vision tower of a model for which `makes_features` holds."""

    model: Any
    # of a frozen tower, whose features are the same in all passes of an iteration; None: it is trained
    kept: KeptFeatures | None = None

    def __call__(self, prompts: Sequence[EncodedPrompt]) -> dict[str, Any]:
        """Returns the network's arguments for the media of prompts, in their order; each distinct prompt runs once.

        A trained tower runs all prompts in one pass. A frozen one runs without gradients, and small prompts together.
        """
        outputs = {}
        for kind, (_, grid) in _MEDIA.items():
            own = [prompt for prompt in prompts if grid in prompt.media]
            if own:
                distinct = {id(prompt.media): prompt for prompt in own}
                made = self._trained(kind, distinct) if self.kept is None else self._frozen(kind, distinct)
                outputs[kind] = _joined([made[id(prompt.media)] for prompt in own])
        return {"mm_encoder_outputs": outputs} if outputs else {}

    def _trained(self, kind: str, prompts: Mapping[int, EncodedPrompt]) -> dict[int, Features]:
        found = self._features(kind, list(prompts.values()))
        return dict(zip(prompts, found, strict=True))

    def _frozen(self, kind: str, prompts: Mapping[int, EncodedPrompt]) -> dict[int, Features]:
        assert self.kept is not None, "the tower is frozen"
        found = {name: self.kept.of(prompt, kind) for name, prompt in prompts.items()}
        made = {name: own for name, own in found.items() if own is not None}
        lacking = [name for name in prompts if name not in made]
        for run in runs([_patches(prompts[name], kind) for name in lacking], _PASS):
            names = [lacking[number] for number in run]
            with torch.no_grad():
                features = self._features(kind, [prompts[name] for name in names])
            for name, own in zip(names, features, strict=True):
                self.kept.keep(prompts[name], kind, own)
                made[name] = own
        return made

    def _features(self, kind: str, prompts: Sequence[EncodedPrompt]) -> list[Features]:
        """Runs the tower on the images or videos of prompts; returns the features of each prompt."""
        media, (pixels, grid) = join_media([prompt.media for prompt in prompts]), _MEDIA[kind]
        network, device = network_of(self.model), self.model.device
        run = network.get_image_features if kind == "image" else network.get_video_features
        sizes = media[grid]
        output = run(media[pixels].to(device), sizes, return_dict=True, **sized(network.visual, sizes, device))
        counts = [len(prompt.media[grid]) for prompt in prompts]
        deepstack = getattr(output, "deepstack_features", None) or ()
        pooled, layers = _split(output.pooler_output, counts), [_split(layer, counts) for layer in deepstack]
        return [Features(own, tuple(layer[n] for layer in layers)) for n, own in enumerate(pooled)]


def _patches(prompt: EncodedPrompt, kind: str) -> int:
    return int(prompt.media[_MEDIA[kind][1]].prod(1).sum())


def sized(visual: Any, grid: Tensor, device: torch.device) -> dict[str, Any]:
    """Returns what a tower computes of the sizes [n, 3] of images, in patches: time, height, width; `grid` on the host.

    With the names under which the towers of transformers 5.23 take it (`transformers.vision_utils`).
    """
    from transformers import vision_utils

    config, merge = visual.config, visual.config.spatial_merge_size
    ends = {"": vision_utils.get_vision_cu_seqlens(grid)}
    found = {"position_ids": vision_utils.get_vision_position_ids(grid, merge).to(device)}
    if hasattr(visual, "window_size"):
        window = (config.window_size, config.patch_size)
        index, ends["window_"] = vision_utils.get_vision_window_index(grid, merge, *window)
        found["window_index"] = index.to(device)
    if hasattr(visual, "num_grid_per_side"):
        indices, weights = vision_utils.get_vision_interpolation_indices_and_weights(
            grid,
            visual.num_grid_per_side,
            mode=visual.interpolation_mode,
            align_corners=visual.interpolation_align_corners,
            spatial_merge_size=merge,
        )
        found |= {"interp_indices": indices.to(device), "interp_weights": weights.to(device)}
    segments = {name: Segments.of(own, device) for name, own in ends.items()}
    found |= {f"cu_{name}seqlens": one.ends for name, one in segments.items()}
    longest = {f"max_{name}seqlen": one.longest for name, one in segments.items()}
    shared = {"segments": tuple(segments.values())} if config._attn_implementation == NAME else {}
    return found | longest | shared


def _split(parts: Sequence[Tensor], counts: Sequence[int]) -> list[tuple[Tensor, ...]]:
    """Cuts a list of images into those of each prompt."""
    ends = torch.tensor([0, *counts]).cumsum(0).tolist()
    return [tuple(parts[start:end]) for start, end in pairwise(ends)]


def _joined(features: Sequence[Features]) -> Any:
    """Returns features of several prompts as the output of a tower."""
    from transformers.modeling_outputs import BaseModelOutputWithPooling

    output: Any = BaseModelOutputWithPooling(pooler_output=tuple(image for one in features for image in one.pooled))
    layers = zip(*(one.deepstack for one in features), strict=True)
    output.deepstack_features = [tuple(image for own in layer for image in own) for layer in layers]
    return output
