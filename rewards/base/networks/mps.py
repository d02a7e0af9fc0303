"""The network of MPS: CLIP's tokens of an image, which look at those tokens of the prompt that a condition is about."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize, scaled_dot_product_attention, silu

from mmrl.core.contracts import ConfigError

from .checkpoints import find_file, put_weights, read_weights
from .clip import write_tiny_clip
from .loading import loading
from .tiny import randomise

WHAT = "MPS checkpoint"
# How published names go on behind `cross_model.layers.N.`, and those of `Layer`.
_NAMES = {
    "0.fn.norm.": "looking.norm.",
    "0.fn.to_q.": "looking.query.",
    "0.fn.to_kv.": "looking.key_value.",
    "0.fn.to_out.": "looking.out.",
    "0.fn.ff.0.": "looking.up.",
    "0.fn.ff.2.": "looking.down.",
    "1.fn.norm.": "mixing.norm.",
    "1.fn.fused_attn_ff_proj.": "mixing.fused.",
    "1.fn.attn_out.": "mixing.out.",
    "1.fn.ff_out.1.": "mixing.down.",
}
_UNUSED = (".position_ids", ".rotary_emb.inv_freq")  # constants that older versions of packages saved

MOST_SCALE = 100.0  # CLIP's bound; the stored logarithm is rounded


class CrossAttention(nn.Module):
    """Attention of image tokens to prompt tokens, keys and values shared by all heads, beside a feed-forward part."""

    def __init__(self, width: int, head: int) -> None:
        super().__init__()
        self.head = head
        self.norm = nn.LayerNorm(width)
        self.query = nn.Linear(width, width, bias=False)
        self.key_value = nn.Linear(width, 2 * head, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.up = nn.Linear(width, 8 * width, bias=False)
        self.down = nn.Linear(4 * width, width, bias=False)

    def forward(self, image: Tensor, prompt: Tensor, is_seen: Tensor) -> Tensor:
        """Returns what is added to the tokens [B, N, D] of images.

        Args:
            prompt: [B, M, D], the tokens of prompts. is_seen: [B, M] bool, which of them are looked at.
        """
        image = self.norm(image)
        keys, values = self.key_value(prompt).chunk(2, -1)
        attended = attend(self.query(image), keys, values, self.head, is_seen)
        found: Tensor = self.out(attended) + self.down(gated(self.up(image)))
        return found


class SelfAttention(nn.Module):
    """Attention of image tokens to each other with rotary places, likewise, beside a feed-forward part."""

    def __init__(self, width: int, head: int) -> None:
        super().__init__()
        self.head = head
        self.norm = nn.LayerNorm(width)
        self.fused = nn.Linear(width, width + 2 * head + 8 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.down = nn.Linear(4 * width, width, bias=False)

    def forward(self, image: Tensor) -> Tensor:
        """Returns what is added to the tokens [B, N, D] of images."""
        width = image.shape[-1]
        queries, keys, values, up = self.fused(self.norm(image)).split([width, self.head, self.head, 8 * width], -1)
        heads = rotated(queries.unflatten(-1, (-1, self.head)).transpose(1, 2)).transpose(1, 2).flatten(2)
        attended = attend(heads, rotated(keys), values, self.head, None)
        found: Tensor = self.out(attended) + self.down(gated(up))
        return found


class Layer(nn.Module):
    """A look at the prompt, then one at the image."""

    def __init__(self, width: int, head: int) -> None:
        super().__init__()
        self.looking, self.mixing = CrossAttention(width, head), SelfAttention(width, head)

    def forward(self, image: Tensor, prompt: Tensor, is_seen: Tensor) -> Tensor:
        """Returns the tokens [B, N, D] of images; see `CrossAttention`."""
        image = image + self.looking(image, prompt, is_seen)
        found: Tensor = image + self.mixing(image)
        return found


class MpsNetwork(nn.Module):
    """CLIP with layers that make one embedding of an image's tokens, for a prompt and a condition."""

    def __init__(self, config: Any, num_layers: int, head: int) -> None:
        """Makes the network of a CLIPConfig."""
        from transformers import CLIPModel

        super().__init__()
        self.clip: Any = CLIPModel(config)
        self.layers = nn.ModuleList(Layer(config.projection_dim, head) for _ in range(num_layers))

    def texts(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the embeddings of all tokens [B, M, D] of texts [B, M], and of the texts [B, D]."""
        states = self.clip.text_model(input_ids=tokens)
        every: Tensor = self.clip.text_projection(states.last_hidden_state)
        return every, self.clip.text_projection(states.pooler_output)

    def images(self, pixels: Tensor, prompt: Tensor, is_seen: Tensor) -> Tensor:
        """Returns the embeddings [B, D] of images [B, 3, h, w], with all tokens [B, M, D] of their prompts."""
        states = self.clip.vision_model(pixel_values=pixels).last_hidden_state
        tokens: Tensor = self.clip.visual_projection(states)  # [B, 1 + patches, D]
        for layer in self.layers:
            tokens = layer(tokens, prompt, is_seen)
        return tokens[:, 0]


def attend(queries: Tensor, keys: Tensor, values: Tensor, head: int, is_seen: Tensor | None) -> Tensor:
    """Returns [B, N, D] of queries [B, N, D], whose heads share the keys and values [B, M, head].

    `is_seen`: [B, M] bool, which keys count; None: all.
    """
    heads = queries.unflatten(-1, (-1, head)).transpose(1, 2)  # [B, h, N, head]
    keys, values = (one[:, None].expand(-1, heads.shape[1], -1, -1) for one in (keys, values))
    mask = None if is_seen is None else is_seen[:, None, None]
    return scaled_dot_product_attention(heads, keys, values, attn_mask=mask).transpose(1, 2).flatten(2)


def gated(numbers: Tensor) -> Tensor:
    """Returns silu(right half) * left half (SwiGLU, arXiv 2002.05202)."""
    left, right = numbers.chunk(2, -1)
    return silu(right) * left


def rotated(tokens: Tensor) -> Tensor:
    """Returns tokens [..., N, d] with rotary places 0 .. N - 1 (arXiv 2104.09864), halves of d as pairs."""
    half = tokens.shape[-1] // 2
    rates = 10000.0 ** (-torch.arange(half, device=tokens.device) / half)
    angles = torch.arange(tokens.shape[-2], device=tokens.device)[:, None] * rates  # [N, d / 2]
    cos, sin = angles.cos(), angles.sin()
    left, right = tokens.chunk(2, -1)
    return torch.cat([left * cos - right * sin, right * cos + left * sin], -1)


def seen_tokens(prompt: Tensor, condition: Tensor, threshold: float) -> Tensor:
    """Returns [B, M] bool: the tokens of prompts [B, M, D] that are near to a condition [C, D].

    Their largest product with its tokens is above `threshold` of that of the prompt's nearest token.
    """
    nearest = (prompt @ condition.T).amax(2)  # [B, M]
    return nearest / nearest.amax(1, keepdim=True) > threshold


@dataclass(frozen=True)
class Mps:
    """A frozen MPS with its tokenizer and its preprocessing."""

    network: MpsNetwork
    tokenizer: Any
    processor: Any
    condition: Tensor  # [C, D]: all tokens of the condition
    black: Tensor  # [3, 1, 1] what 0 becomes in pixels
    white: Tensor  # [3, 1, 1] what 1 becomes

    def scores(self, images: Tensor, texts: Sequence[str], threshold: float) -> Tensor:
        """Returns exp(t) cos [B] of images [B, 3, H, W] in [0, 1] and their texts; t is learned."""
        device = self.black.device
        with torch.autocast(device.type, enabled=False):
            with torch.no_grad():
                every, whole = self.network.texts(token_ids(self.tokenizer, texts).to(device))
                is_seen = seen_tokens(every, self.condition, threshold)
            pixels = self.processor(images=images.to(device, torch.float32), do_rescale=False, return_tensors="pt")
            pixels = pixels["pixel_values"].clamp(self.black, self.white)  # bicubic resizing overshoots at edges
            embedded = self.network.images(pixels, every, is_seen)
            cosines = (normalize(embedded, dim=-1) * normalize(whole, dim=-1)).sum(-1).clamp(-1, 1)
            scores: Tensor = cosines * self.network.clip.logit_scale.exp().clamp_max(MOST_SCALE)
        return scores


def token_ids(tokenizer: Any, texts: Sequence[str]) -> Tensor:
    """Returns the tokens [B, M] of texts, cut at and padded to the context of CLIP."""
    tokens: Tensor = tokenizer(
        list(texts), padding="max_length", truncation=True, max_length=tokenizer.model_max_length, return_tensors="pt"
    ).input_ids
    return tokens


def load_mps(checkpoint: str, base: str, condition: str, device: torch.device) -> Mps:
    """Loads the frozen network in float32.

    Args:
        checkpoint: file of the weights, here or owner/repository/file on the hub. base: hub name or folder of the CLIP,
            for its sizes, its tokenizer and its preprocessing. condition: the text that prompts are held against.
    Raises ConfigError where a part is missing or does not fit.
    """
    from transformers import CLIPConfig, CLIPImageProcessor, CLIPTokenizer

    with loading("CLIP", base, "a CLIP, with its tokenizer and image processor"):
        config: Any = CLIPConfig.from_pretrained(base)
        tokenizer: Any = CLIPTokenizer.from_pretrained(base)
        processor: Any = CLIPImageProcessor.from_pretrained(base)
    file = find_file(WHAT, checkpoint)
    weights = own_names(read_weights(WHAT, file))
    layers = {name.split(".")[1] for name in weights if name.startswith("layers.")}
    if not layers or "layers.0.looking.key_value.weight" not in weights:
        raise ConfigError(f"{file} does not hold the {WHAT}: it has no layers of cross-attention")
    head = len(weights["layers.0.looking.key_value.weight"]) // 2
    with torch.random.fork_rng(devices=[]):  # the constructor draws weights that are replaced
        network = MpsNetwork(config, len(layers), head)
    put_weights(WHAT, file, network, weights)
    network.to(device)
    mean, std = (
        torch.tensor(values, device=device)[:, None, None] for values in (processor.image_mean, processor.image_std)
    )
    with torch.no_grad():
        every, _ = network.texts(token_ids(tokenizer, [condition]).to(device))
    return Mps(network, tokenizer, processor, every[0], -mean / std, (1 - mean) / std)


def own_names(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Returns published weights by the names of `MpsNetwork`, in float32."""
    own: dict[str, Tensor] = {}
    for published, value in weights.items():
        if published.endswith(_UNUSED):
            continue
        if published.startswith("model."):
            own[f"clip.{published.removeprefix('model.')}"] = value.float()
            continue
        number, _, part = published.removeprefix("cross_model.layers.").partition(".")
        renamed = next((part.replace(old, new, 1) for old, new in _NAMES.items() if part.startswith(old)), part)
        own[f"layers.{number}.{renamed}"] = value.float()
    return own


def write_tiny_mps(folder: Path, seed: int, *, width: int, num_layers: int, head: int) -> Path:
    """Writes a random, small checkpoint with the published names, and the CLIP of its sizes; returns its file."""
    from safetensors.torch import save_file
    from transformers import CLIPModel

    write_tiny_clip("transformers", folder, seed, embedding=width)
    clip = CLIPModel.from_pretrained(folder)
    with torch.random.fork_rng(devices=[]):
        layers = nn.ModuleList(Layer(width, head) for _ in range(num_layers))
    randomise(layers, torch.Generator().manual_seed(seed))
    published = {f"model.{name}": value for name, value in clip.state_dict().items()}
    for name, value in layers.state_dict().items():
        number, _, part = name.partition(".")
        old = next(part.replace(new, old, 1) for old, new in _NAMES.items() if part.startswith(new))
        published[f"cross_model.layers.{number}.{old}"] = value
    file = folder / "mps.safetensors"
    save_file({name: value.contiguous() for name, value in published.items()}, file)
    (folder / "model.safetensors").unlink()  # as beside the published file, where nobody needs it
    return file
