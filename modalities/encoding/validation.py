"""The check of prompts before a run begins, by their texts and the headers of their media."""

from typing import Any

from mmrl.core.contracts import ConfigError
from mmrl.core.data import Prompt
from mmrl.media.pictures import Picture, StoredPicture
from mmrl.media.video import StoredClip

from .inputs import called, parts_of, refuse_media_tokens
from .prompt_encoder import PromptEncoder


def refusal(prompt: Prompt, encoder: PromptEncoder) -> str | None:
    """Returns why a prompt cannot be encoded; None where texts and headers give no reason: pixels may still be broken.

    Tokens are counted without those of the chat template, and only where they are limited. Without a limit, headers
    that a data set leaves for later are not read.
    """
    text, own = encoder.template.replace("{prompt}", prompt.text), prompt.system
    own = own if own is not None else encoder.system or ""
    try:
        pieces = [piece for _, piece in parts_of(text, len(prompt.media), len(prompt.clips)) if piece]
        for checked in (text, own):
            checked.encode()
        messages = [{"content": [{"type": "text", "text": piece} for piece in (own, *pieces)]}]
        refuse_media_tokens(prompt, messages, encoder.media_tokens)
        if prompt.clips and encoder.read_clip is None:
            raise ConfigError("has a video, which this modality does not read; 'video' does")
        for clip in prompt.clips:
            if isinstance(clip, StoredClip) and clip.index is None:
                clip.header()
        images = encoder.processor.image_processor
        is_limited = encoder.max_tokens is not None
        count = sum(_tokens(images, *picture.size) for picture in prompt.media if is_limited or _is_read(picture))
    except ValueError as error:  # a ConfigError, half a surrogate, an image of 1 x 300 pixels
        why = str(error)
        return why if why.startswith(called(prompt)) else f"{called(prompt)}: {why}"
    if encoder.max_tokens is not None:
        count += sum(len(encoder.processor.tokenizer(piece)["input_ids"]) for piece in (own, *pieces) if piece)
        if count > encoder.max_tokens:
            return (
                f"{called(prompt)} has at least {count} tokens with its {len(prompt.media)} images, more than "
                f"max_prompt_tokens {encoder.max_tokens}; raise it, or lower max_pixels"
            )
    return None


def _is_read(picture: Picture) -> bool:
    return not isinstance(picture, StoredPicture) or picture.is_read


def _tokens(images: Any, width: int, height: int) -> int:
    """Returns the tokens of an image in families with a pixel budget, else 0.

    Raises ValueError for an image that the processor refuses.
    """
    if not hasattr(images, "merge_size") or not hasattr(images, "get_number_of_image_patches"):
        return 0
    return int(images.get_number_of_image_patches(height, width, {})) // int(images.merge_size) ** 2
