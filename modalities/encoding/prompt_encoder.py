"""The encoder of prompts: tensors by a model's own processor and chat template, each distinct prompt once."""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from mmrl.core.contracts import ConfigError
from mmrl.core.data import Prompt
from mmrl.media.pictures import Clip
from mmrl.media.video import Frames
from mmrl.parsing.coordinates import Canvas, Convention

from .encoding_workers import Encode, EncodingWorkers
from .inputs import EncodedPrompt, axis_of, called, messages_of, refuse_media_tokens
from .network import NO_INPUT, network_of
from .positions import rope_positions

log = logging.getLogger(__name__)
TEXT = ("input_ids", "attention_mask", "token_type_ids", "mm_token_type_ids")  # a column for each token
_SECONDS = "second_per_grid_ts"  # of Qwen2.5-VL: enters the positions alone; the rest is media


@dataclass
class PromptEncoder:
    """An encoder of single prompts, so that media of prompts never mix; it keeps the last `capacity` prompts,
    or as many of them as `max_bytes` allow."""

    processor: Any
    model: Any  # for the positions of its family
    template: str
    system: str | None
    convention: Convention | None
    media_tokens: Mapping[str, int]
    max_tokens: int | None
    capacity: int
    max_bytes: int
    read_clip: Callable[[Clip], Frames] | None = None  # None: a policy without video
    resizes_clips: bool = True  # the processor resizes frames; else they come in their final size
    workers: EncodingWorkers | None = None  # None: prompts are encoded by whoever calls, one after the other
    seconds: float = 0.0  # that callers have waited for prompts to be encoded so far
    _kept: dict[Any, EncodedPrompt] = field(default_factory=dict)  # oldest first
    _is_warned: bool = False  # about a prompt that is too long

    def __call__(self, prompts: Sequence[Prompt]) -> list[EncodedPrompt]:
        """Encodes each distinct prompt once, whatever its target. Raises ConfigError for one that cannot be encoded."""
        started = time.perf_counter()
        try:
            self._submit(prompts)
            fresh: dict[Any, EncodedPrompt] = {}
            for prompt in prompts:
                key = _key(prompt)
                if key not in fresh:
                    fresh[key] = self._kept.pop(key) if key in self._kept else self._encode(prompt)
        finally:
            self.seconds += time.perf_counter() - started
        self._kept.update(fresh)
        self._drop_oldest()
        return [fresh[_key(prompt)] for prompt in prompts]

    def _drop_oldest(self) -> None:
        """Drops the prompts that nobody asked for the longest, until the others are few enough and small enough."""
        held = sum(prompt.num_bytes for prompt in self._kept.values())
        while len(self._kept) > self.capacity or held > self.max_bytes:
            held -= self._kept.pop(next(iter(self._kept))).num_bytes

    def use_workers(self, count: int, max_bytes: int) -> None:
        """Lets up to `count` threads encode prompts with media, those ahead of their use in `max_bytes`; 0: none."""
        self.close()
        self.workers = EncodingWorkers(count, max_bytes, self._copied) if count else None

    def prefetch(self, prompts: Sequence[Prompt]) -> None:
        """Begins to encode prompts that the next calls ask for, and forgets those of earlier calls; returns at once."""
        if self.workers is not None:
            self.workers.forget_others({_key(prompt) for prompt in prompts})
            self._submit(prompts)

    def close(self) -> None:
        """Ends the threads, if there are any; the next prompts start them again."""
        if self.workers is not None:
            self.workers.close()

    def _submit(self, prompts: Sequence[Prompt]) -> None:
        """Hands prompts with media to the threads; text alone is encoded before a thread has begun it."""
        for prompt in prompts if self.workers is not None else ():
            if (prompt.media or prompt.clips) and (key := _key(prompt)) not in self._kept:
                assert self.workers is not None, "just seen"
                self.workers.submit(key, prompt)

    def _copied(self) -> Encode:
        """Returns how another thread encodes a prompt: with a copy of the processor, as tokenizers are not shared."""
        alone = replace(self, processor=deepcopy(self.processor), workers=None, _kept={})
        return alone._encoded

    def set_pixels(self, least: int | None, most: int | None) -> None:
        """Sets bounds of an image's area after resizing. Raises ConfigError where the family has no pixel budget."""
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

    def processed(self, prompt: Prompt) -> dict[str, Tensor]:
        """Returns all tensors that the model's processor makes of a prompt, as its own forward pass takes them."""
        messages, clips = self._messages(prompt)
        encoded = self._processed(prompt, messages, clips)
        return {name: value for name, value in encoded.items() if isinstance(value, Tensor) and name not in NO_INPUT}

    def columns_of_tokens(self, prompts: Sequence[Prompt]) -> list[str]:
        """Returns the tensors with a column for each token of a prompt whose columns for an answer are not known."""
        made = [self.processed(prompt) for prompt in prompts]
        lengths = [one["input_ids"].shape[1] for one in made]
        assert len(set(lengths)) > 1, "prompts of one length tell nothing"
        shared = set.intersection(*map(set, made)) - {*TEXT}
        return sorted(
            name
            for name in shared
            if all(one[name].ndim > 1 and one[name].shape[1] == n for one, n in zip(made, lengths, strict=True))
        )

    def joining_axes(self, prompts: Sequence[Prompt]) -> dict[str, int] | None:
        """Returns the axes along which the processor joins the media of two prompts; None where no axis explains it."""
        one, two = map(self.processed, prompts)
        messages = [self._messages(prompt)[0] for prompt in prompts]
        both = self._tokenized(messages, None, {"text_kwargs": {"padding": True}})
        found = {}
        for name in (set(one) & set(two)) - {*TEXT, _SECONDS}:
            axis = axis_of(one[name], two[name], both[name])
            if axis is None:
                return None
            found[name] = axis
        return found

    def _messages(self, prompt: Prompt) -> tuple[list[dict[str, Any]], list[Frames]]:
        """Returns the prompt in the form of chat templates, and the chosen frames of its videos."""
        clips = [self._frames(prompt, clip) for clip in prompt.clips]
        try:
            messages = messages_of(prompt, self.template, self.system, [frames.pixels for frames in clips])
        except ValueError as error:
            raise ConfigError(f"{called(prompt)}: {error}") from error
        refuse_media_tokens(prompt, messages, self.media_tokens)
        return messages, clips

    def _encode(self, prompt: Prompt) -> EncodedPrompt:
        encoded = None if self.workers is None else self.workers.take(_key(prompt))
        encoded = self._encoded(prompt) if encoded is None else encoded
        self._check_context(prompt, encoded.next_position)
        return encoded

    def _encoded(self, prompt: Prompt) -> EncodedPrompt:
        messages, clips = self._messages(prompt)
        images = [part["image"] for part in messages[-1]["content"] if part["type"] == "image"]
        encoded = self._processed(prompt, messages, clips)
        tokens = encoded["input_ids"][0]
        if self.max_tokens is not None and len(tokens) > self.max_tokens:
            raise ConfigError(
                f"{called(prompt)} has {len(tokens)} tokens with its {len(images)} images"
                + (f" and {len(clips)} videos" if clips else "")
                + f", more than max_prompt_tokens {self.max_tokens}; raise it, or lower max_pixels"
                + (", total_pixels or the number of frames" if clips else "")
            )
        media = {
            name: value
            for name, value in encoded.items()
            if isinstance(value, Tensor) and name not in (*TEXT, *NO_INPUT, _SECONDS)
        }
        token_types = self._token_types(encoded, tokens)
        self._check_grid(prompt, token_types, media)
        positions, next_position = torch.arange(len(tokens))[None], len(tokens)
        if hasattr(network_of(self.model), "get_rope_index"):
            positions = rope_positions(network_of(self.model), tokens, token_types, media, encoded.get(_SECONDS))
            next_position = int(positions.max()) + 1
        return EncodedPrompt(tokens, token_types, positions, next_position, media, self._canvas(images, media))

    def _check_context(self, prompt: Prompt, length: int) -> None:
        """Warns once where a prompt is longer than the network's context: it is read, but badly."""
        most = getattr(self.model.config.get_text_config(), "max_position_embeddings", None)
        if most is not None and length >= most and not self._is_warned:
            self._is_warned = True
            log.warning(
                "%s has %d positions of tokens, the model is made for %d with the answer: tokens beyond are read "
                "badly; shorten such prompts, or set max_prompt_tokens to refuse them (warned once)",
                *(called(prompt), length, most),
            )

    def _frames(self, prompt: Prompt, clip: Clip) -> Frames:
        if self.read_clip is None:
            raise ConfigError(f"{called(prompt)} has a video, which this modality does not read; 'video' does")
        return self.read_clip(clip)

    def _processed(self, prompt: Prompt, messages: list[dict[str, Any]], clips: Sequence[Frames]) -> Any:
        """Returns the tensors that the model's own processor makes of the messages and the chosen frames."""
        settings: dict[str, Any] = {}
        if clips:
            metadata = [{"total_num_frames": c.total, "fps": c.fps, "frames_indices": c.times} for c in clips]
            settings = {"videos_kwargs": {"do_sample_frames": False, "video_metadata": metadata}}
            if not self.resizes_clips:
                settings["videos_kwargs"]["do_resize"] = False
        try:
            return self._tokenized(messages, self._chat_template() if clips else None, settings)
        except ValueError as error:  # an image of 1 x 300 pixels
            raise ConfigError(f"{called(prompt)}: the model's processor refuses it: {error}") from error

    def _tokenized(self, messages: Sequence[Any], template: str | None, settings: Mapping[str, Any]) -> Any:
        """Returns what the processor makes of one conversation or several, its numbers in float32 at least."""
        with torch.no_grad():
            encoded = self.processor.apply_chat_template(
                messages,
                chat_template=template,
                tokenize=True,
                return_dict=True,
                add_generation_prompt=True,
                return_tensors="pt",
                processor_kwargs=dict(settings),
            )
        return {name: _widened(value) for name, value in encoded.items()}

    def _chat_template(self) -> str:
        """Returns the processor's chat template, without the tokens that Qwen3-VL's puts around a video.

        Each step of time has such a pair of tokens by itself, and the makers' processor removes the outer pair. So the
        models were trained, and so inference engines read them; transformers leaves the outer pair in since version 5
        (vllm-project/vllm#46817).
        """
        template, processor = str(self.processor.chat_template), self.processor
        if not hasattr(processor, "vision_start_token"):
            return template
        inner = processor.video_token
        return template.replace(f"{processor.vision_start_token}{inner}{processor.vision_end_token}", inner)

    def _token_types(self, encoded: Mapping[str, Tensor], tokens: Tensor) -> Tensor:
        """Returns [L]: 1 for tokens of images, 2 for tokens of videos, by the processor or by the tokens."""
        for name in ("mm_token_type_ids", "token_type_ids"):
            if name in encoded:
                return encoded[name][0].to(torch.int64)
        video = getattr(self.model.config, "video_token_id", None)
        is_video = torch.zeros_like(tokens) if video is None else torch.eq(tokens, video).to(torch.int64)
        return torch.eq(tokens, self.model.config.image_token_id).to(torch.int64) + 2 * is_video

    def _check_grid(self, prompt: Prompt, token_types: Tensor, media: Mapping[str, Tensor]) -> None:
        """Raises ConfigError where a family with grids has other numbers of image or video tokens and patches."""
        for number, kind in ((1, "image"), (2, "video")):
            grid = media.get(f"{kind}_grid_thw")
            if grid is None:
                continue
            processor = self.processor.image_processor if kind == "image" else self.processor.video_processor
            merged = int(grid.prod(1).sum()) // processor.merge_size**2
            found = int((token_types == number).sum())
            if merged != found:
                raise ConfigError(
                    f"{called(prompt)} has {found} {kind} tokens for {merged} {kind} features of {len(grid)} {kind}s"
                )

    def _canvas(self, images: Sequence[Any], media: Mapping[str, Tensor]) -> Canvas | None:
        """Returns the sizes of the first image before and after the processor.

        Families without a grid write no pixels of the resized image.
        """
        if not images:
            return None
        original = resized = (images[0].width, images[0].height)
        if "image_grid_thw" in media:
            _, rows, columns = media["image_grid_thw"][0].tolist()
            patch = self.processor.image_processor.patch_size
            resized = (columns * patch, rows * patch)
        return Canvas(original, resized, self.convention)


def _widened(value: Any) -> Any:
    """Returns a tensor of numbers below float32 in float32, in which weights are loaded; other values as they are."""
    is_narrow = isinstance(value, Tensor) and value.is_floating_point() and value.element_size() < 4
    return value.float() if is_narrow else value


def _key(prompt: Prompt) -> tuple[Any, ...]:
    """Returns the parts of a prompt that the network sees."""
    return prompt.system, prompt.text, prompt.media, prompt.clips
