"""Prompts for a server: images for its own processor, and one token for each; or, with videos, this run's tensors."""

from base64 import b64decode, b64encode
from collections.abc import Sequence
from io import BytesIO
from typing import Any

import torch

from mmrl.core.contracts import ConfigError
from mmrl.core.data import Prompt

from ...encoding.inputs import EncodedPrompt, called
from .features import items_of
from .launch import Served
from .protocol import Question

_START = "data:image/png;base64,"


def data_url(image: Any) -> str:
    """Returns the data URL of an RGB image of Pillow: the same pixels, as a PNG."""
    content = BytesIO()
    image.save(content, "PNG", compress_level=1)
    return _START + b64encode(content.getvalue()).decode()


def content_of(url: str) -> bytes:
    """Returns the PNG in a data URL. Raises ValueError for any other address."""
    if not url.startswith(_START):
        raise ValueError(f"an image must begin with {_START!r}, got {url[:40]!r}")
    return b64decode(url.removeprefix(_START), validate=True)


def clip_refusal(prompt: Prompt, clock: float | None) -> str | None:
    """Returns why a prompt with videos cannot be sent to a server; None where it can, and for a prompt without."""
    if not prompt.clips or clock is not None:
        return None
    return (
        f"{called(prompt)} has a video: modality.engine is given the videos of Qwen2-VL, Qwen2.5-VL and Qwen3-VL "
        "alone; remove modality.engine"
    )


def question_of(prompt: Prompt, encoded: EncodedPrompt, served: Served) -> Question:
    """Returns the prompt with one token for each image, which the server's processor expands to a run of tokens.

    A prompt with videos is returned as it is, with its images and videos as tensors. Raises ConfigError for videos of
    families whose tensors no server is given, and for families that write an image as anything but one run of one
    token.
    """
    if why := clip_refusal(prompt, served.video_clock):
        raise ConfigError(why)
    if prompt.clips and served.video_clock is not None:
        read = tuple(encoded.tokens.tolist())
        try:
            return Question(read, read, (), items_of(encoded, served.video_clock, getattr(torch, served.dtype)))
        except ValueError as error:
            raise ConfigError(f"{called(prompt)} cannot be sent to modality.engine: {error}") from error
    tokens, is_image = encoded.tokens.tolist(), (encoded.token_types == 1).tolist()
    sent = one_for_each_run(tokens, is_image)
    num_runs = len(sent) - is_image.count(False)
    if num_runs != len(prompt.media):
        raise ConfigError(
            f"{called(prompt)}: its {len(prompt.media)} images are {num_runs} runs of tokens; modality.engine can only "
            "sample for families that write an image as one run, such as Qwen2-VL, Qwen2.5-VL and Qwen3-VL"
        )
    return Question(tuple(sent), tuple(tokens), tuple(data_url(image.load()) for image in prompt.media))


def one_for_each_run(tokens: Sequence[int], is_image: Sequence[bool]) -> list[int]:
    """Returns the tokens with one in place of each run of equal image tokens."""
    before = [None, *(token if image else None for token, image in zip(tokens, is_image, strict=True))]
    return [
        token for token, image, last in zip(tokens, is_image, before, strict=False) if not (image and token == last)
    ]
