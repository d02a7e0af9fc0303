"""The clean state of a given image: the latents of the pipeline's own VAE, scaled and packed as the pipeline does."""

from typing import Any

import torch
from torch import Tensor

from mmrl.core.contracts import ConfigError
from mmrl.core.keys import normal

from .driver import Key
from .latent_map import LatentMap, NoEncoding
from .paused_call import PausedCall
from .pipeline import DrivenPipeline

_VAE = "vae"
_PIXELS = 1e-3  # of pixels in [0, 1]
_SEED = 37


def encoded(driven: DrivenPipeline, images: Tensor) -> Tensor:
    """Returns the clean states [n, ...] of images [n, 3, H, W] in [0, 1], by the mean of the VAE's posterior.

    How the pipeline scales and packs latents is found at the first call. Raises ConfigError, with the reason, where
    it cannot be found.
    """
    try:
        if driven.latent_map is None:
            with torch.no_grad(), driven.driving():
                driven.latent_map = _map_of(driven)
        return driven.latent_map.states_of(_latents_of(driven, images, driven.latent_map.latents))
    except NoEncoding as reason:
        settings = driven.settings
        raise ConfigError(
            f"{settings.where}.model: {settings.model!r} cannot train on given images: {reason}"
        ) from reason


def _map_of(driven: DrivenPipeline) -> LatentMap:
    """Finds the map by what the VAE is given to decode, and checks that images are what it decodes."""
    if driven.settings.output == "video":
        raise NoEncoding("it makes videos, and data bring images only")
    if len(driven.driver.shapes) > 1:
        raise NoEncoding("its state has several parts")
    if not hasattr(getattr(driven.pipeline, _VAE, None), "encode"):
        raise NoEncoding("it has no VAE that encodes")
    device = driven.placement.device
    found = LatentMap.of(lambda states: _decoded(driven, states)[0], driven.driver.latent_shape, device)
    _, pixels, images = _decoded(driven, normal(_SEED, (1, *found.state)).to(device))
    if images.shape[1] != 3:
        raise NoEncoding(f"its VAE makes pictures of {images.shape[1]} channels, and those of the data have 3")
    wanted = (pixels.reshape(images.shape) / 2 + 0.5).clamp(0, 1) if pixels.numel() == images.numel() else None
    if wanted is None or not float((wanted - images).abs().max()) <= _PIXELS:
        raise NoEncoding("its images are not the output of its VAE, scaled from [-1, 1] to [0, 1]")
    try:
        _latents_of(driven, images, found.latents)
    except (RuntimeError, ValueError, TypeError) as error:  # whatever a VAE raises for what it does not expect
        raise NoEncoding(f"its VAE does not encode pictures of red, green and blue: {error}") from error
    return found


def _decoded(driven: DrivenPipeline, states: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Returns what the VAE is given for states [1, ...], what it returns, and the images."""
    driver = driven.driver
    pipeline, given = driver.inputs(*Key(driven.probes()[0], None, 1), driver.seed)
    recorded = pipeline.__dict__[_VAE] = _RecordedVae(getattr(pipeline, _VAE))
    call = PausedCall(pipeline, driven.networks, given, driver.learned[False].blank)
    try:
        images = driver.results_of(call.finish(driver.split(states)))[0]
    finally:
        call.close()
    if len(recorded.calls) != 1:
        raise NoEncoding(f"it calls the decoder of its VAE {len(recorded.calls)} times for an image")
    latents, pixels = recorded.calls[0]
    return latents.float(), pixels.float(), images.float()


def _latents_of(driven: DrivenPipeline, images: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Returns the VAE's latents [n, *shape] of images; a VAE of videos gets videos of one frame."""
    pixels = images.to(driven.placement.device).float() * 2 - 1
    if len(shape) == 4:
        pixels = pixels.unsqueeze(2)
    found = _mean_of(getattr(driven.pipeline, _VAE).encode(pixels))
    if tuple(found.shape[1:]) != shape:
        raise NoEncoding(f"its VAE encodes images to {list(found.shape[1:])} and decodes {list(shape)}")
    return found


class _RecordedVae:
    """A VAE to the pipeline: everything of the real one; what it decodes is kept."""

    def __init__(self, real: Any) -> None:
        self.__dict__.update(_real=real, calls=[])

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def decode(self, latents: Tensor, *args: Any, **kwargs: Any) -> Any:
        """Returns what the VAE's own method returns."""
        output = self._real.decode(latents, *args, **kwargs)
        self.calls.append((latents.detach().clone(), output[0].detach()))
        return output


def _mean_of(output: Any) -> Tensor:
    """Returns the mean of the posterior that a VAE's output holds, or its latents. Raises NoEncoding without both."""
    if (distribution := getattr(output, "latent_dist", None)) is not None:
        mean: Tensor = distribution.mode()
        return mean
    for name in ("latent", "latents"):
        if (found := getattr(output, name, None)) is not None:
            return found  # type: ignore[no-any-return]
    raise NoEncoding(f"its VAE returns a {type(output).__name__}")
