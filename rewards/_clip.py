"""A frozen CLIP from transformers or open_clip behind one face, and random small twins of both."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from textwrap import shorten
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn.functional import normalize

from mmrl.contracts import ConfigError

Library = Literal["transformers", "open_clip"]
TINY_PIXELS = 32  # height and width that a tiny twin sees
TINY_WIDTH = 32


@dataclass(frozen=True)
class Clip:
    """A frozen CLIP (Radford et al. 2021, arXiv 2103.00020): images and texts to embeddings of length 1.

    It computes in float32 whatever the run's precision: the scores of a group often differ by less than bf16 resolves.
    """

    preprocess: Callable[[Tensor], Tensor]  # the library's own: [B, 3, H, W] in [0, 1] -> pixels of the model's size
    black: Tensor  # [3, 1, 1] what 0 becomes in pixels
    white: Tensor  # [3, 1, 1] what 1 becomes
    embed_pixels: Callable[[Tensor], Tensor]  # [B, 3, h, w] -> [B, D]
    embed_texts: Callable[[list[str]], Tensor]  # B texts -> [B, D]

    def images(self, images: Tensor) -> Tensor:
        """Embeddings [B, D] of images [B, 3, H, W] in [0, 1], with a gradient to the images where they ask for one."""
        with torch.autocast(self.black.device.type, enabled=False):
            pixels = self.preprocess(images.to(self.black.device, torch.float32))
            # Bicubic resizing overshoots at edges; 8-bit images, which CLIP was trained on, cut that off.
            pixels = pixels.clamp(self.black, self.white)
            return normalize(self.embed_pixels(pixels), dim=-1)

    @torch.no_grad()
    def texts(self, texts: Sequence[str]) -> Tensor:
        """Embeddings [B, D] of B texts, each different text encoded once, cut at the model's context length."""
        unique = list(dict.fromkeys(texts))
        row = {text: number for number, text in enumerate(unique)}
        with torch.autocast(self.black.device.type, enabled=False):
            embeddings = normalize(self.embed_texts(unique), dim=-1)
        return embeddings[[row[text] for text in texts]]


def load_clip(library: Library, model: str, pretrained: str | None, device: torch.device) -> Clip:
    """Loads a CLIP by hub name or folder; `pretrained` is open_clip's tag or weights file for its own model names.

    Raises ConfigError where there is no such model, or a package is missing.
    """
    # Without torchvision transformers would preprocess through Pillow, which has no gradients.
    for package in ("torchvision", "open_clip") if library == "open_clip" else ("torchvision",):
        if find_spec(package) is None:
            raise ConfigError(f"CLIP rewards need the package {package}: install the extra, `pip install 'mmrl[clip]'`")
    load = _load_transformers if library == "transformers" else _load_open_clip
    try:
        return load(model, pretrained, device)
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


def _load_transformers(model: str, pretrained: str | None, device: torch.device) -> Clip:
    from transformers import CLIPImageProcessor, CLIPModel, CLIPTokenizer

    clip: Any = CLIPModel.from_pretrained(model, dtype=torch.float32)  # Any: its `to` is not typed
    clip.to(device).eval().requires_grad_(False)
    processor, tokeniser = CLIPImageProcessor.from_pretrained(model), CLIPTokenizer.from_pretrained(model)
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
        black=-mean / std,
        white=(1 - mean) / std,
        embed_pixels=lambda pixels: clip.get_image_features(pixel_values=pixels).pooler_output,
        embed_texts=embed_texts,
    )


def _load_open_clip(model: str, pretrained: str | None, device: torch.device) -> Clip:
    import open_clip

    name = f"local-dir:{model}" if Path(model).is_dir() else model
    if ":" not in name and pretrained is None:
        raise ValueError("open_clip's own model names need pretrained weights, got none")  # it would draw random ones
    clip, preprocess = open_clip.create_model_from_pretrained(name, pretrained, device=device)
    clip.eval().requires_grad_(False)
    tokenise = open_clip.get_tokenizer(name)
    config = clip.visual.preprocess_cfg
    mean, std = _channels(config["mean"], device), _channels(config["std"], device)
    return Clip(
        preprocess=preprocess,
        black=-mean / std,
        white=(1 - mean) / std,
        embed_pixels=clip.encode_image,
        embed_texts=lambda texts: clip.encode_text(tokenise(texts).to(device)),
    )


def _channels(values: Sequence[float], device: torch.device) -> Tensor:
    return torch.tensor(values, device=device)[:, None, None]


def write_tiny_clip(library: Library, folder: Path, seed: int, *, embedding: int) -> None:
    """Writes a CLIP of random weights, tokeniser and processor included, as the library itself saves one.

    Args:
        embedding: length D of its embeddings.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        (_write_transformers if library == "transformers" else _write_open_clip)(folder, embedding)


def _write_transformers(folder: Path, embedding: int) -> None:
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
    CLIPModel(config).save_pretrained(folder)
    size = {"height": TINY_PIXELS, "width": TINY_PIXELS}
    CLIPImageProcessor(size={"shortest_edge": TINY_PIXELS}, crop_size=size).save_pretrained(folder)
    tokeniser.save_pretrained(folder)


def _write_open_clip(folder: Path, embedding: int) -> None:
    import open_clip
    from safetensors.torch import save_file

    vision = {"image_size": TINY_PIXELS, "patch_size": 8, "width": TINY_WIDTH, "layers": 2, "head_width": 16}
    text = {"context_length": 77, "vocab_size": 49408, "width": TINY_WIDTH, "heads": 2, "layers": 2}
    sizes = {"embed_dim": embedding, "vision_cfg": vision, "text_cfg": text}
    model = open_clip.CLIP(**{**sizes, "vision_cfg": dict(vision), "text_cfg": dict(text)})
    weights = {name: value.contiguous() for name, value in model.state_dict().items()}
    save_file(weights, folder / "open_clip_model.safetensors")
    (folder / "open_clip_config.json").write_text(json.dumps({"model_cfg": sizes, "preprocess_cfg": {}}))
