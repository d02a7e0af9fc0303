"""What the call of a stock pipeline returns, as tensors: images or videos, and the sound of videos."""

import inspect
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

FRAME_RATES = ("frame_rate", "fps")  # arguments that say for which frames per second a video is made
DEFAULT_FPS = 16.0  # of videos of a pipeline without such an argument, as Wan's are
SOUND = "audio"  # the output of modular pipelines that is the sound


def media_of(result: Any) -> Tensor:
    """Returns the images [n, 3, H, W] or videos [n, F, 3, H, W] in [0, 1] of a result, as one tensor."""
    if isinstance(result, Mapping):
        result = next(value for name, value in result.items() if name != SOUND)
    made = result[0] if isinstance(result, tuple) else result
    return _stacked(made)


def sound_of(result: Any) -> Tensor | None:
    """Returns the sound [n, channels, S] float32 in [-1, 1] of a result; None where it has none."""
    if isinstance(result, Mapping):
        made = result.get(SOUND)
    else:
        made = result[1] if isinstance(result, tuple) and len(result) > 1 else None
    if made is None:
        return None
    sound = _stacked(made).float().clamp(-1, 1)
    return sound if sound.dim() == 3 else sound[:, None]


def sound_rate(pipeline: Any) -> int | None:
    """Returns the samples per second of a pipeline's sound; None where no part of the pipeline makes sound.

    The vocoder has the last word: some write more samples per second than the autoencoder of sound reads.
    """
    known = (("vocoder", "output_sampling_rate"), ("audio_vae", "sample_rate"), ("audio_vae", "sampling_rate"))
    for name, field in known:
        part = pipeline.components.get(name)
        rate = None if part is None else part.config.get(field)
        if rate is not None:
            return int(rate)
    return None


def default_fps(pipeline: Any, is_modular: bool) -> float:
    """Returns the frames per second for which a pipeline makes videos where its call is given none."""
    if is_modular:
        defaults = {item.name: item.default for item in pipeline._blocks.inputs}
    else:
        parameters = inspect.signature(type(pipeline).__call__).parameters
        defaults = {name: parameter.default for name, parameter in parameters.items()}
    rates = (defaults.get(name) for name in FRAME_RATES)
    return next((float(rate) for rate in rates if isinstance(rate, int | float)), DEFAULT_FPS)


def _stacked(made: Any) -> Tensor:
    return made if isinstance(made, Tensor) else torch.stack(list(made))
