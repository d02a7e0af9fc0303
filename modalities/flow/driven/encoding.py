"""The clean state of an image or clip of the data: the latents of the pipeline's VAE, scaled and packed as it does."""

from typing import Any

import torch
from torch import Tensor

from mmrl.core.contracts import ConfigError
from mmrl.core.keys import normal

from .driver import Key
from .latent_map import LatentMap, NoEncoding
from .pipeline import DrivenPipeline
from .stand_ins import PartStandIn

_VAE = "vae"
_PIXELS = 1e-3  # of pixels in [0, 1]
_SEED = 37


def encoded(driven: DrivenPipeline, media: Tensor) -> Tensor:
    """Returns the clean states [n, ...] of images [n, 3, H, W] or clips [n, F, 3, H, W] in [0, 1].

    They are the means of the VAE's posterior.

    How the pipeline scales and packs latents is found at the first call. Raises ConfigError, with the reason, where
    it cannot be found.
    """
    try:
        if driven.latent_map is None:
            with torch.no_grad(), driven.driving():
                driven.latent_map = _map_of(driven)
        return driven.latent_map.states_of(_latents_of(driven, media, driven.latent_map.latents))
    except NoEncoding as reason:
        settings = driven.settings
        raise ConfigError(
            f"{settings.where}.model: {settings.model!r} cannot train on given {settings.output}s: {reason}"
        ) from reason


def _map_of(driven: DrivenPipeline) -> LatentMap:
    """Finds the map by what the VAE is given to decode, and checks that images or videos are what it decodes."""
    if len(driven.driver.shapes) > 1:
        raise NoEncoding("its state has several parts")
    if not hasattr(getattr(driven.pipeline, _VAE, None), "encode"):
        raise NoEncoding("it has no VAE that encodes")
    device = driven.placement.device
    found = LatentMap.of(lambda states: _decoded(driven, states)[0], driven.driver.latent_shape, device)
    _, pixels, media = _decoded(driven, normal(_SEED, (1, *found.state)).to(device))
    if media.shape[-3] != 3:
        raise NoEncoding(f"its VAE makes pictures of {media.shape[-3]} channels, and those of the data have 3")
    if driven.settings.output == "video" and pixels.dim() == 5:
        pixels = pixels.transpose(1, 2)  # [1, F, 3, H, W]
    # in the dtype of the VAE, whose rounding is then that of the pipeline
    wanted = (pixels.reshape(media.shape) / 2 + 0.5).clamp(0, 1) if pixels.numel() == media.numel() else None
    if wanted is None or not float((wanted.float() - media.float()).abs().max()) <= _PIXELS:
        raise NoEncoding(f"its {driven.settings.output}s are not the output of its VAE, scaled from [-1, 1] to [0, 1]")
    try:
        _latents_of(driven, media, found.latents)
    except (RuntimeError, ValueError, TypeError) as error:  # whatever a VAE raises for what it does not expect
        raise NoEncoding(f"its VAE does not encode pictures of red, green and blue: {error}") from error
    return found


def _decoded(driven: DrivenPipeline, states: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Returns what the VAE is given for states [1, ...], what it returns, and the images or videos."""
    driver = driven.driver
    pipeline, given = driver.inputs(*Key(driven.probes()[0], None, 1), driver.seed)
    recorded = pipeline.__dict__[_VAE] = _RecordedVae(getattr(pipeline, _VAE))
    call = driver.opened(pipeline, given, driver.learned[False].blank)
    try:
        media = driver.results_of(call.finish(driver.split(states)))[0]
    finally:
        call.close()
    if len(recorded.calls) != 1:
        made = driven.settings.output
        raise NoEncoding(f"it calls the decoder of its VAE {len(recorded.calls)} times for each {made}")
    latents, pixels = recorded.calls[0]
    return latents.float(), pixels, media


def _latents_of(driven: DrivenPipeline, media: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Returns the VAE's latents [n, *shape] of images or clips; a VAE of videos gets images as videos of one frame."""
    pixels = media.to(driven.placement.device).float() * 2 - 1
    if media.dim() == 5:
        pixels = pixels.transpose(1, 2)  # [n, 3, F, H, W]
    elif len(shape) == 4:
        pixels = pixels.unsqueeze(2)
    vae = getattr(driven.pipeline, _VAE)
    found = _mean_of(vae.encode(pixels.to(vae.dtype))).float()
    if tuple(found.shape[1:]) != shape:
        what = "clips" if media.dim() == 5 else "images"
        raise NoEncoding(f"its VAE encodes {what} to {list(found.shape[1:])} and decodes {list(shape)}")
    return found


class _RecordedVae(PartStandIn):
    """A VAE to the pipeline: everything of the real one; what it decodes is kept.

    It says that it is one of float32, so that the pipeline scales the latents without rounding.
    """

    dtype = torch.float32

    def __init__(self, real: Any) -> None:
        super().__init__(real)
        self.calls: list[tuple[Tensor, Tensor]] = []

    def decode(self, latents: Tensor, *args: Any, **kwargs: Any) -> Any:
        """Returns what the VAE's own method returns."""
        output = self._real.decode(latents.to(self._real.dtype), *args, **kwargs)
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
