"""A frozen SigLIP of transformers behind the interface of `Clip`, and a random small twin."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .clip import TINY_PIXELS, TINY_WIDTH, Clip
from .loading import loading
from .tiny import byte_tokenizer, randomise

CONTEXT = 16  # tokens that a tiny twin reads


def load_siglip(model: str, device: torch.device) -> Clip:
    """Loads a SigLIP, or a SigLIP 2 of a fixed size, by hub name or folder.

    Texts are lower-cased and padded to the model's context, as in training: SigLIP looks at the last place, without a
    mask. Raises ConfigError where there is no such model; SigLIP 2 NaFlex, whose images have any size, is another one.
    """
    siglip, processor, tokenizer = _load_parts(model)
    siglip.to(device).eval().requires_grad_(False)
    context = siglip.config.text_config.max_position_embeddings

    def preprocess(images: Tensor) -> Tensor:
        pixels: Tensor = processor(images=images, do_rescale=False, return_tensors="pt")["pixel_values"]
        return pixels

    def embed_texts(texts: list[str]) -> Tensor:
        lower = [text.lower() for text in texts]  # tokenizers of SigLIP 2 on the hub do not do it themselves
        tokens = tokenizer(lower, padding="max_length", truncation=True, max_length=context, return_tensors="pt")
        embeddings: Tensor = siglip.get_text_features(input_ids=tokens["input_ids"].to(device)).pooler_output
        return embeddings

    mean, std = (
        torch.tensor(values, device=device)[:, None, None] for values in (processor.image_mean, processor.image_std)
    )
    return Clip(
        preprocess=preprocess,
        side=siglip.config.vision_config.image_size,
        black=-mean / std,
        white=(1 - mean) / std,
        embed_pixels=lambda pixels: siglip.get_image_features(pixel_values=pixels).pooler_output,
        embed_texts=embed_texts,
        logit_scale=float(siglip.logit_scale.exp()),
        logit_bias=float(siglip.logit_bias),
    )


def _load_parts(model: str) -> tuple[Any, Any, Any]:
    from transformers import AutoConfig, AutoTokenizer, SiglipImageProcessor, SiglipModel

    with loading("SigLIP", model, "a SigLIP, or of a SigLIP 2 of a fixed size, with tokenizer and image processor"):
        kind = AutoConfig.from_pretrained(model).model_type
        if kind != "siglip":
            raise ValueError(f"its model_type is {kind!r}, not 'siglip'")
        siglip: Any = SiglipModel.from_pretrained(model, dtype=torch.float32)  # Any: its `to` is not typed
        processor, tokenizer = SiglipImageProcessor.from_pretrained(model), AutoTokenizer.from_pretrained(model)
    return siglip, processor, tokenizer


def write_tiny_siglip(folder: Path, seed: int, *, logit_scale: float, logit_bias: float) -> None:
    """Writes a SigLIP of random weights as transformers saves one.

    Args:
        logit_scale: what cosines are multiplied with. logit_bias: what is added then.
    """
    from transformers import SiglipConfig, SiglipImageProcessor, SiglipModel

    tokenizer = byte_tokenizer(["<pad>", "</s>"], eos="</s>", pad="<pad>")
    tower = {"hidden_size": TINY_WIDTH, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    ends = {"pad_token_id": tokenizer.pad_token_id, "bos_token_id": None, "eos_token_id": tokenizer.eos_token_id}
    text = {**tower, **ends, "vocab_size": len(tokenizer), "max_position_embeddings": CONTEXT}
    config = SiglipConfig(text_config=text, vision_config={**tower, "image_size": TINY_PIXELS, "patch_size": 8})
    with torch.random.fork_rng(devices=[]):  # the constructor draws weights that are drawn anew
        siglip = SiglipModel(config)
    randomise(siglip, torch.Generator().manual_seed(seed))
    torch.nn.init.constant_(siglip.logit_scale, torch.tensor(logit_scale).log().item())
    torch.nn.init.constant_(siglip.logit_bias, logit_bias)
    siglip.save_pretrained(folder)
    SiglipImageProcessor(size={"height": TINY_PIXELS, "width": TINY_PIXELS}).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
