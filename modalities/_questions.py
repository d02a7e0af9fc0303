"""Prompts as a server with a processor of its own is asked them: one token for each image, and the image."""

from collections.abc import Sequence

from mmrl.contracts import ConfigError
from mmrl.data import Prompt
from mmrl.modalities._data_urls import data_url
from mmrl.modalities._inputs import EncodedPrompt, called
from mmrl.modalities._vllm_protocol import Question


def clip_refusal(prompt: Prompt) -> str | None:
    """Why a server cannot be asked a prompt with videos; None for one without."""
    if not prompt.clips:
        return None
    return (
        f"{called(prompt)} has a video: modality.engine draws answers to images alone, since the server would "
        "choose frames by rules of its own; remove modality.engine"
    )


def question_of(prompt: Prompt, encoded: EncodedPrompt) -> Question:
    """The prompt with each image's run of tokens as one token, which the server's processor makes a run of again.

    Raises ConfigError for videos, of which the server would choose frames by its own rules, and for families that write
    an image as anything but one run of one token.
    """
    if why := clip_refusal(prompt):
        raise ConfigError(why)
    tokens, is_image = encoded.tokens.tolist(), (encoded.token_types == 1).tolist()
    sent = one_for_each_run(tokens, is_image)
    num_runs = len(sent) - is_image.count(False)
    if num_runs != len(prompt.media):
        raise ConfigError(
            f"{called(prompt)}: its {len(prompt.media)} images are {num_runs} runs of tokens; modality.engine can only "
            "draw for families that write an image as one run, such as Qwen2-VL, Qwen2.5-VL and Qwen3-VL"
        )
    return Question(tuple(sent), tuple(tokens), tuple(data_url(image.load()) for image in prompt.media))


def one_for_each_run(tokens: Sequence[int], is_image: Sequence[bool]) -> list[int]:
    """The tokens, with one in the place of each run of equal image tokens."""
    before = [None, *(token if image else None for token, image in zip(tokens, is_image, strict=True))]
    return [
        token for token, image, last in zip(tokens, is_image, before, strict=False) if not (image and token == last)
    ]
