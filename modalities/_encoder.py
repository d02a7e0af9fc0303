"""From prompts to tensors by a model's own processor and chat template, each distinct prompt once."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from mmrl.contracts import ConfigError
from mmrl.coordinates import Canvas, Convention
from mmrl.data import Prompt
from mmrl.modalities._inputs import EncodedPrompt, called, messages_of, refuse_media_tokens

_TEXT = ("input_ids", "attention_mask", "token_type_ids", "mm_token_type_ids")  # the rest is media


@dataclass
class PromptEncoder:
    """Encodes prompts one by one, so that no prompt's media ever mix with another's; keeps the last `capacity`."""

    processor: Any
    model: Any  # for the positions of its family
    template: str
    system: str | None
    convention: Convention
    media_tokens: Mapping[str, int]
    max_tokens: int | None
    capacity: int
    _kept: dict[Any, EncodedPrompt] = field(default_factory=dict)  # oldest first

    def __call__(self, prompts: Sequence[Prompt]) -> list[EncodedPrompt]:
        """Each distinct prompt once, whatever its target. Raises ConfigError for one that cannot be encoded."""
        fresh: dict[Any, EncodedPrompt] = {}
        for prompt in prompts:
            key = (prompt.system, prompt.text, prompt.media)
            if key not in fresh:
                fresh[key] = self._kept.pop(key) if key in self._kept else self._encode(prompt)
        self._kept.update(fresh)
        for key in list(self._kept)[: max(0, len(self._kept) - self.capacity)]:
            del self._kept[key]
        return [fresh[prompt.system, prompt.text, prompt.media] for prompt in prompts]

    def set_pixels(self, least: int | None, most: int | None) -> None:
        """Bounds of an image's area after resizing. Raises ConfigError where the family has no pixel budget."""
        if least is None and most is None:
            return
        images = self.processor.image_processor
        size = dict(images.size)
        if not {"shortest_edge", "longest_edge"} <= {key for key, value in size.items() if value is not None} or (
            not hasattr(images, "merge_size")
        ):
            raise ConfigError(
                f"modality.min_pixels, max_pixels: {type(images).__name__} has no pixel budget; remove them"
            )
        images.size = {
            "shortest_edge": least if least is not None else min(size["shortest_edge"], most or size["shortest_edge"]),
            "longest_edge": most if most is not None else max(size["longest_edge"], least or size["longest_edge"]),
        }

    def _encode(self, prompt: Prompt) -> EncodedPrompt:
        try:
            messages = messages_of(prompt, self.template, self.system)
        except ValueError as error:
            raise ConfigError(f"{called(prompt)}: {error}") from error
        refuse_media_tokens(prompt, messages, self.media_tokens)
        images = [part["image"] for part in messages[-1]["content"] if part["type"] == "image"]
        try:
            with torch.no_grad():
                encoded = self.processor.apply_chat_template(
                    messages, tokenize=True, return_dict=True, add_generation_prompt=True, return_tensors="pt"
                )
        except ValueError as error:  # an image of 1 x 300 pixels
            raise ConfigError(f"{called(prompt)}: the model's processor refuses it: {error}") from error
        tokens = encoded["input_ids"][0]
        if self.max_tokens is not None and len(tokens) > self.max_tokens:
            raise ConfigError(
                f"{called(prompt)} has {len(tokens)} tokens with its {len(images)} images, more than "
                f"max_prompt_tokens {self.max_tokens}; raise it, or lower max_pixels"
            )
        media = {name: value for name, value in encoded.items() if isinstance(value, Tensor) and name not in _TEXT}
        token_types = self._token_types(encoded, tokens)
        self._check_grid(prompt, token_types, media)
        positions, next_position = self._positions(tokens, token_types, media)
        return EncodedPrompt(tokens, token_types, positions, next_position, media, self._canvas(images, media))

    def _token_types(self, encoded: Mapping[str, Tensor], tokens: Tensor) -> Tensor:
        """[L] 1 where an image stands: the processor says so, or the image token does."""
        for name in ("mm_token_type_ids", "token_type_ids"):
            if name in encoded:
                return encoded[name][0].to(torch.int64)
        return torch.eq(tokens, self.model.config.image_token_id).to(torch.int64)

    def _check_grid(self, prompt: Prompt, token_types: Tensor, media: Mapping[str, Tensor]) -> None:
        """Raises ConfigError where a family with grids has other numbers of image tokens and patches."""
        grid = media.get("image_grid_thw")
        if grid is None:
            return
        merged = int(grid.prod(1).sum()) // self.processor.image_processor.merge_size**2
        if merged != int(token_types.sum()):
            raise ConfigError(
                f"{called(prompt)} has {int(token_types.sum())} image tokens for {merged} image features of "
                f"{len(grid)} images"
            )

    def _positions(self, tokens: Tensor, token_types: Tensor, media: Mapping[str, Tensor]) -> tuple[Tensor, int]:
        """[A, L] and the position of the token that follows: by the model's own rule where it has one (M-RoPE)."""
        if not hasattr(self.model.model, "get_rope_index"):
            return torch.arange(len(tokens))[None], len(tokens)
        positions, _ = self.model.model.get_rope_index(
            input_ids=tokens[None],
            mm_token_type_ids=token_types[None],
            image_grid_thw=media.get("image_grid_thw"),
            attention_mask=torch.ones_like(tokens)[None],
        )
        return positions[:, 0], int(positions.max()) + 1

    def _canvas(self, images: Sequence[Any], media: Mapping[str, Tensor]) -> Canvas | None:
        """The first image before and after the processor; families without a grid write no pixels of the latter."""
        if not images:
            return None
        original = resized = (images[0].width, images[0].height)
        if "image_grid_thw" in media:
            _, rows, columns = media["image_grid_thw"][0].tolist()
            patch = self.processor.image_processor.patch_size
            resized = (columns * patch, rows * patch)
        return Canvas(original, resized, self.convention)
