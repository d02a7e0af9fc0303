"""A frozen CLIP of transformers or open_clip behind one interface, and random small twins of both."""

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from textwrap import shorten
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn.functional import normalize

from mmrl.core.contracts import ConfigError

from .checkpoints import put_weights, read_weights
from .tiny import randomise

Library = Literal["transformers", "open_clip"]
_PACKAGES = {"torchvision": "torchvision", "open_clip": "open_clip_torch"}  # both come with mmrl
TINY_PIXELS = 32  # height and width that a tiny twin sees
TINY_WIDTH = 32


@dataclass(frozen=True)
class Clip:
    """A frozen CLIP (Radford et al. 2021, arXiv 2103.00020): images and texts to embeddings of length 1.

    It computes in float32 whatever the run's precision: the scores of a group often differ by less than bf16 resolves.
    """

    preprocess: Callable[[Tensor], Tensor]  # the library's own: [B, 3, H, W] in [0, 1] -> pixels of the model's size
    side: int  # height and width of these pixels
    black: Tensor  # [3, 1, 1] what 0 becomes in pixels
    white: Tensor  # [3, 1, 1] what 1 becomes
    embed_pixels: Callable[[Tensor], Tensor]  # [B, 3, h, w] -> [B, D]
    embed_texts: Callable[[list[str]], Tensor]  # B texts -> [B, D]
    logit_scale: float = 1.0  # what it was trained to multiply cosines with, exp of the stored number
    logit_bias: float = 0.0  # and to add then

    def images(self, images: Tensor) -> Tensor:
        """Returns the embeddings [B, D] of images [B, 3, H, W] in [0, 1], with a gradient where images require one."""
        with torch.autocast(self.black.device.type, enabled=False):
            pixels = self.preprocess(images.to(self.black.device, torch.float32))
            # Bicubic resizing overshoots at edges; 8-bit images, which CLIP was trained on, cut that off.
            pixels = pixels.clamp(self.black, self.white)
            return normalize(self.embed_pixels(pixels), dim=-1)

    @torch.no_grad()
    def texts(self, texts: Sequence[str]) -> Tensor:
        """Returns the embeddings [B, D] of B texts, cut at the context length; each different text is encoded once."""
        unique = list(dict.fromkeys(texts))
        row = {text: number for number, text in enumerate(unique)}
        with torch.autocast(self.black.device.type, enabled=False):
            embeddings = normalize(self.embed_texts(unique), dim=-1)
        return embeddings[[row[text] for text in texts]]

    def cosines(self, images: Tensor, texts: Sequence[str]) -> Tensor:
        """Returns the cosines [B] in [-1, 1] of images [B, 3, H, W] and their texts."""
        return cosines(self.images(images), self.texts(texts))


def cosines(left: Tensor, right: Tensor) -> Tensor:
    """Returns the cosines [B] in [-1, 1] of embeddings [B, D] of length 1, whose product may round to more than 1."""
    return (left * right).sum(-1).clamp(-1, 1)


def load_clip(
    library: Library, model: str, pretrained: str | None, device: torch.device, *, processor: str | None = None
) -> Clip:
    """Loads a CLIP by hub name or folder.

    Args:
        pretrained: open_clip's tag or weights file for its own model names.
        processor: where transformers finds the tokeniser and the preprocessing of images; None: where the model is.
    Raises ConfigError where there is no such model, or a package is missing.
    """
    # Without torchvision transformers would preprocess through Pillow, which has no gradients.
    for package in ("torchvision", "open_clip") if library == "open_clip" else ("torchvision",):
        if find_spec(package) is None:
            raise ConfigError(f"CLIP rewards need the package {package}: `pip install {_PACKAGES[package]}`")
    try:
        if library == "open_clip":
            return _load_open_clip(model, pretrained, device)
        return _load_transformers(model, processor or model, device)
    except (
        OSError,
        RuntimeError,
        ValueError,
    ) as error:  # all that the two libraries raise for a model they cannot load
        source = model if pretrained is None else f"{model} with weights {pretrained}"
        raise ConfigError(
            f"cannot load the CLIP {source!r} with {library}: {shorten(str(error), 300)}; allowed are a hub name"
            f" {'(hf-hub:owner/name), a name and pretrained weights' if library == 'open_clip' else '(owner/name)'}"
            " or a folder that the library saved"
        ) from error


def _load_transformers(model: str, source: str, device: torch.device) -> Clip:
    from transformers import CLIPImageProcessor, CLIPModel, CLIPTokenizer

    clip: Any = CLIPModel.from_pretrained(model, dtype=torch.float32)  # Any: its `to` is not typed
    clip.to(device).eval().requires_grad_(False)
    processor, tokeniser = CLIPImageProcessor.from_pretrained(source), CLIPTokenizer.from_pretrained(source)
    context = clip.config.text_config.max_position_embeddings

    def preprocess(images: Tensor) -> Tensor:
        pixels: Tensor = processor(images=images, do_rescale=False, return_tensors="pt")["pixel_values"]
        return pixels

    def embed_texts(texts: list[str]) -> Tensor:
        tokens = tokeniser(texts, padding=True, truncation=True, max_length=context, return_tensors="pt")
        embeddings: Tensor = clip.get_text_features(**tokens.to(device)).pooler_output
        return embeddings

    mean, std = _channels(processor.image_mean, device), _channels(processor.image_std, device)
    return Clip(
        preprocess=preprocess,
        side=clip.config.vision_config.image_size,
        black=-mean / std,
        white=(1 - mean) / std,
        embed_pixels=lambda pixels: clip.get_image_features(pixel_values=pixels).pooler_output,
        embed_texts=embed_texts,
        logit_scale=float(clip.logit_scale.exp()),
    )


def _load_open_clip(model: str, pretrained: str | None, device: torch.device) -> Clip:
    import open_clip

    name = _open_clip_name(model)
    if ":" not in name and pretrained is None:
        raise ValueError("open_clip's own model names need pretrained weights, got none")  # it would draw random ones
    return _face_of_open_clip(open_clip.create_model(name, pretrained, device=device), name, device)


def load_checkpoint(what: str, model: str, file: Path, device: torch.device) -> Clip:
    """Loads weights from a file into an open_clip architecture, given by its name or a folder with its configuration.

    Raises ConfigError, which calls the file `what`, where there is no such architecture or the file holds another one.
    """
    if find_spec("open_clip") is None:
        raise ConfigError(f"the {what} needs the package open_clip: `pip install {_PACKAGES['open_clip']}`")
    import open_clip

    folder = Path(model)
    try:
        if folder.is_dir():
            sizes = json.loads((folder / "open_clip_config.json").read_text(encoding="utf-8"))["model_cfg"]
        else:
            sizes = open_clip.get_model_config(model)
        clip = open_clip.CLIP(**sizes)  # create_model would warn that there are no weights yet
    except (OSError, RuntimeError, ValueError, KeyError, TypeError) as error:  # unknown names; broken configurations
        raise ConfigError(
            f"open_clip has no CLIP of the architecture {model!r}: {shorten(str(error), 300)}; allowed are one of its"
            " own names, such as ViT-H-14, or a folder with an open_clip_config.json"
        ) from error
    clip.visual.preprocess_cfg = {"size": clip.visual.image_size}  # mean and std: OpenAI's
    put_weights(what, file, clip, read_weights(what, file))
    return _face_of_open_clip(clip.to(device), _open_clip_name(model), device)


def _open_clip_name(model: str) -> str:
    return f"local-dir:{model}" if Path(model).is_dir() else model


def _face_of_open_clip(clip: Any, name: str, device: torch.device) -> Clip:
    import open_clip
    from open_clip.transform import PreprocessCfg, image_transform_v2

    clip.eval().requires_grad_(False)
    tokenise = open_clip.get_tokenizer(name)
    config = PreprocessCfg(**clip.visual.preprocess_cfg)
    mean, std = _channels(config.mean, device), _channels(config.std, device)
    return Clip(
        preprocess=image_transform_v2(config, is_train=False),
        side=config.size if isinstance(config.size, int) else config.size[0],
        black=-mean / std,
        white=(1 - mean) / std,
        embed_pixels=clip.encode_image,
        embed_texts=lambda texts: clip.encode_text(tokenise(texts).to(device)),
        logit_scale=float(clip.logit_scale.exp()),
    )


def _channels(values: Sequence[float], device: torch.device) -> Tensor:
    return torch.tensor(values, device=device)[:, None, None]


def write_tiny_clip(
    library: Library, folder: Path, seed: int, *, embedding: int, logit_scale: float = math.log(1 / 0.07)
) -> None:
    """Writes a CLIP of random weights, tokeniser and processor included, as the library itself saves one.

    Args:
        embedding: length D of its embeddings.
        logit_scale: the logarithm of its temperature; CLIP's before training.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with torch.random.fork_rng(devices=[]):  # the constructors draw weights that are drawn anew
        torch.manual_seed(seed)
        write = _write_transformers if library == "transformers" else _write_open_clip
        write(folder, embedding, seed, logit_scale)


def _write_transformers(folder: Path, embedding: int, seed: int, logit_scale: float) -> None:
    from tokenizers.pre_tokenizers import ByteLevel
    from transformers import CLIPConfig, CLIPImageProcessor, CLIPModel, CLIPTokenizer

    letters = sorted(ByteLevel.alphabet())  # every byte, inside a word and at its end: no text is unknown
    words = [*letters, *(f"{letter}</w>" for letter in letters), "<|startoftext|>", "<|endoftext|>"]
    tokeniser = CLIPTokenizer(vocab={w: n for n, w in enumerate(words)}, merges=[], model_max_length=77)
    tower = {"hidden_size": TINY_WIDTH, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    first, last = len(words) - 2, len(words) - 1
    ends = {"bos_token_id": first, "eos_token_id": last, "pad_token_id": last}
    text = {**tower, **ends, "vocab_size": len(words), "max_position_embeddings": 77}
    vision = {**tower, "image_size": TINY_PIXELS, "patch_size": 8}
    config = CLIPConfig(text_config=text, vision_config=vision, projection_dim=embedding)
    clip = CLIPModel(config)
    randomise(clip, torch.Generator().manual_seed(seed))
    torch.nn.init.constant_(clip.logit_scale, logit_scale)
    clip.save_pretrained(folder)
    size = {"height": TINY_PIXELS, "width": TINY_PIXELS}
    CLIPImageProcessor(size={"shortest_edge": TINY_PIXELS}, crop_size=size).save_pretrained(folder)
    tokeniser.save_pretrained(folder)


def _write_open_clip(folder: Path, embedding: int, seed: int, logit_scale: float) -> None:
    import open_clip
    from safetensors.torch import save_file

    vision = {"image_size": TINY_PIXELS, "patch_size": 8, "width": TINY_WIDTH, "layers": 2, "head_width": 16}
    text = {"context_length": 77, "vocab_size": 49408, "width": TINY_WIDTH, "heads": 2, "layers": 2}
    sizes = {"embed_dim": embedding, "vision_cfg": vision, "text_cfg": text}
    model = open_clip.CLIP(**{**sizes, "vision_cfg": dict(vision), "text_cfg": dict(text)})
    randomise(model, torch.Generator().manual_seed(seed))
    torch.nn.init.constant_(model.logit_scale, logit_scale)
    weights = {name: value.contiguous() for name, value in model.state_dict().items()}
    save_file(weights, folder / "open_clip_model.safetensors")
    (folder / "open_clip_config.json").write_text(json.dumps({"model_cfg": sizes, "preprocess_cfg": {}}))
