"""Embeddings of samples for rewards that look at sets: of images, of sounds or of texts."""

from collections.abc import Callable
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import adaptive_avg_pool2d, normalize

from mmrl.core.data import Outputs

from . import text_embedders
from .clap import load_clap, windows_at, write_tiny_clap
from .clip import load_clip
from .image_embedders import DEFAULTS, load_embedder, write_tiny_embedder

# dino, clip and pixels: of images; clap: of sounds; text: of answers
Features = Literal["dino", "clip", "pixels", "clap", "text"]
# Samples -> for each the embeddings [n, D] of length 1 of its parts: one of an image or a text (none of a text
# that cannot be embedded as a whole), one of each window of a sound. Of images with gradients.
EmbedSamples = Callable[[Outputs], list[Tensor]]

SOUND_MODEL = "laion/clap-htsat-unfused"
TEXT_MODEL = "sentence-transformers/all-MiniLM-L6-v2"
PIXEL_SIDE = 32  # height and width of the picture that `pixels` compares
DARKEST = 1 / 255
OUTPUTS: dict[Features, str] = {
    "dino": "images",
    "clip": "images",
    "pixels": "images",
    "clap": "audio",
    "text": "texts",
}


def needs_of(features: Features) -> frozenset[str]:
    """Returns what a reward needs to embed samples: an output, and a model unless `features` are pixels."""
    return frozenset({OUTPUTS[features]} | (set() if features == "pixels" else {"model"}))


def check_model(features: Features, model: str | None) -> None:
    """Raises ValueError for a model of features that have none."""
    if features == "pixels" and model is not None:
        raise ValueError(f"pixels are embedded without a model, got {model!r}")


def load_set_embedder(features: Features, model: str | None, device: torch.device) -> EmbedSamples:
    """Loads an embedder by hub name or folder; None: the default of `features`. Raises ConfigError where there is none.

    The embedder raises ValueError for sound without samples or of an unknown rate, and for NaN or infinity.
    """
    if features == "clap":
        return _of_sounds(model or SOUND_MODEL, device)
    if features == "text":
        return _of_texts(model or TEXT_MODEL, device)
    embed = pixel_embeddings if features == "pixels" else load_embedder(features, model, device)

    def of_images(outputs: Outputs) -> list[Tensor]:
        assert outputs.images is not None, "scoring checks needs"
        return list(embed(outputs.images).split(1))

    return of_images


def embedded_texts(
    features: Literal["clip", "clap"], model: str | None, texts: list[str], device: torch.device
) -> Tensor:
    """Returns the embeddings [n, D] of texts, of length 1, in the space of images or sounds; a long text is cut.

    Raises ConfigError where the model cannot be loaded.
    """
    if features == "clap":
        return normalize(load_clap(model or SOUND_MODEL, device).texts(texts), dim=-1)
    return load_clip("transformers", model or DEFAULTS["clip"], None, device).texts(texts)


def write_tiny_set_embedder(features: Features, folder: Path, seed: int) -> str | None:
    """Writes a random network of small sizes to `folder`; returns the `model` to load then, None for pixels."""
    if features == "pixels":
        return None
    if features == "clap":
        write_tiny_clap(folder, seed)
    elif features == "text":
        text_embedders.write_tiny_embedder(folder, seed)
    else:
        write_tiny_embedder(features, folder, seed)
    return str(folder)


def pixel_embeddings(images: Tensor) -> Tensor:
    """Returns the embeddings [B, 3072] of images [B, 3, H, W] in [0, 1]: their values at 32 x 32 places, of length 1.

    Larger images are averaged over each place. Cosines of pixels are those of vendi_score's examples with images
    (github.com/vertaix/Vendi-Score, `features = {"pixels": ...}`). Black counts as DARKEST, so that it has a direction.
    """
    small = adaptive_avg_pool2d(images.float(), PIXEL_SIDE).clamp_min(DARKEST)  # [B, 3, 32, 32]
    return normalize(small.flatten(1), dim=-1)


def _of_sounds(model: str, device: torch.device) -> EmbedSamples:
    clap = load_clap(model, device)

    def embed(outputs: Outputs) -> list[Tensor]:
        assert outputs.audio is not None, "scoring checks needs"
        sounds = windows_at(outputs.audio, outputs.audio_rate, clap)
        embeddings = clap.sounds([window for windows in sounds for window in windows])
        return list(normalize(embeddings, dim=-1).split([len(windows) for windows in sounds]))

    return embed


def _of_texts(model: str, device: torch.device) -> EmbedSamples:
    embedder = text_embedders.load_embedder(model, "model", device)

    def embed(outputs: Outputs) -> list[Tensor]:
        texts = outputs.texts
        assert texts is not None, "scoring checks needs"
        whole = [text if text.strip() and embedder.fits(text) else None for text in texts]
        known = embedder.sentences([text for text in whole if text is not None]) if any(whole) else {}
        width = embedder.model.get_embedding_dimension()
        return [torch.zeros(0, width) if text is None else known[text][None].cpu() for text in whole]

    return embed


def one_each(parts: list[Tensor]) -> list[Tensor | None]:
    """Returns one embedding [D] of length 1 for each sample, the mean direction of its parts; None without parts."""
    return [normalize(one.mean(0), dim=0) if len(one) else None for one in parts]
