"""How many bytes a pipeline's autoencoder needs to decode videos: counted on tensors without content, before any weight
is loaded."""

import json
import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from mmrl.core.contracts import VideoMemory
from mmrl.system.live_tensors import LiveTensors

_log = logging.getLogger(__name__)
_DECODERS = ("diffusion_decoder",)  # parts that decode in place of the autoencoder


@dataclass(frozen=True)
class Clips:
    """The videos that are decoded at once."""

    count: int
    num_frames: int
    height: int  # pixels
    width: int  # pixels


def memory_of(folder: Path, index: str, clips: Clips, is_tiled: bool) -> VideoMemory:
    """Returns the memory of decoded videos, float32 and RGB, and that of their decoding by a pipeline in a folder.

    `index`: the file that the folder of a pipeline holds; a model that is not on this disk has none.
    """
    decoding = decoding_bytes(folder, index, clips, is_tiled) if (folder / index).is_file() else None
    return VideoMemory(4 * 3 * clips.num_frames * clips.height * clips.width, decoding)


def decoding_bytes(folder: Path, index: str, clips: Clips, is_tiled: bool) -> int | None:
    """Returns the largest bytes of live tensors while the pipeline in a folder decodes videos, the videos included.

    The autoencoder runs on the device `meta`, in float32, and the stock code that turns its output to pixels in [0, 1]
    after it. Tensors of a batch grow with its size, so the autoencoder is run on one video. None where that cannot be
    counted: the folder has no autoencoder of videos, something else decodes, or stock code asks for content.
    """
    parts = json.loads((folder / index).read_text(encoding="utf-8"))
    config = folder / "vae" / "config.json"
    if any(name in parts for name in _DECODERS) or not config.is_file():
        return None
    try:
        one, post = _measured(json.loads(config.read_text(encoding="utf-8")), clips, is_tiled)
    except Exception as error:  # whatever stock code raises for tensors without content
        _log.debug("the memory of decoding cannot be counted: %s", error)
        return None
    return max(one * clips.count, post)


def _measured(config: dict[str, Any], clips: Clips, is_tiled: bool) -> tuple[int, int]:
    """Returns the peak of the autoencoder for one video, and the peak of what follows for all."""
    import diffusers
    from diffusers.video_processor import VideoProcessor

    kind: Any = getattr(diffusers, config["_class_name"])
    with torch.device("meta"):
        vae = kind.from_config(config).eval().requires_grad_(False)
    if is_tiled:
        vae.enable_tiling()
    with torch.no_grad():
        first = torch.empty(1, 3, clips.num_frames, clips.height, clips.width, device="meta")
        latents = torch.empty_like(vae.encode(first).latent_dist.mean)
        more = [latents.new_empty(1)] if config.get("timestep_conditioning") else []
        with LiveTensors() as decoding:
            video = vae.decode(latents, *more, return_dict=False)[0]
        whole = video.new_empty(clips.count, *video.shape[1:])
        with LiveTensors() as following:
            made: Any = VideoProcessor().postprocess_video(whole, output_type="pt")
            made.contiguous()
    return decoding.peak, following.peak + whole.untyped_storage().nbytes()
