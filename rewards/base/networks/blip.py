"""ImageReward's network, made of transformers' BLIP and loaded from a checkpoint with the published names."""

import re
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from mmrl.core.contracts import ConfigError

from .checkpoints import Head, put_weights, read_weights
from .tiny import randomise

WHAT = "ImageReward checkpoint"
HEAD_WIDTH = 64  # of an attention head of all published BLIPs: 16 in ViT-L (1024), 12 in BERT (768)
# How the published names begin, and those of `ImageRewardNetwork`; # is the number of a layer.
NAMES = (
    ("blip.visual_encoder.cls_token", "image.embeddings.class_embedding"),
    ("blip.visual_encoder.pos_embed", "image.embeddings.position_embedding"),
    ("blip.visual_encoder.patch_embed.proj.", "image.embeddings.patch_embedding."),
    ("blip.visual_encoder.blocks.#.norm", "image.encoder.layers.#.layer_norm"),
    ("blip.visual_encoder.blocks.#.attn.qkv.", "image.encoder.layers.#.self_attn.qkv."),
    ("blip.visual_encoder.blocks.#.attn.proj.", "image.encoder.layers.#.self_attn.projection."),
    ("blip.visual_encoder.blocks.#.mlp.", "image.encoder.layers.#.mlp."),
    ("blip.visual_encoder.norm.", "image.post_layernorm."),
    ("blip.text_encoder.", "text."),
    ("mlp.layers.", "head.layers."),
)
# Names that tell the sizes.
_PATCHES, _PLACES = "image.embeddings.patch_embedding.weight", "image.embeddings.position_embedding"
_IMAGE_MLP, _TEXT_MLP = "image.encoder.layers.0.mlp.fc1.weight", "text.encoder.layer.0.intermediate.dense.weight"
_WORDS, _TEXT_PLACES = "text.embeddings.word_embeddings.weight", "text.embeddings.position_embeddings.weight"

# Of the tiny twin, which has two attention heads.
PIXELS, PATCH, WIDTH, LAYERS = 32, 8, 128, 2
LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789.,;:!?'\"-()"

_UNUSED: dict[str, Any] = {"bos_token_id": None, "eos_token_id": None, "sep_token_id": None}  # for generation


class ImageRewardNetwork(nn.Module):
    """The network of ImageReward: an image tower, a BERT that attends to its patches, a head on BERT's first token."""

    def __init__(self, image: dict[str, Any], text: dict[str, Any]) -> None:
        """Makes the network; sizes by the names of transformers' BlipVisionConfig and BlipTextConfig."""
        from transformers import BlipTextConfig, BlipTextModel, BlipVisionConfig, BlipVisionModel

        super().__init__()
        # BLIP's image tower has timm's epsilon, its text tower BERT's; is_decoder is what gives it cross-attention.
        self.image = BlipVisionModel(BlipVisionConfig(**image, layer_norm_eps=1e-6, hidden_act="gelu"))
        self.text = BlipTextModel(
            BlipTextConfig(**text, **_UNUSED, layer_norm_eps=1e-12, hidden_act="gelu", is_decoder=True),
            add_pooling_layer=False,
        )
        self.head = Head(text["hidden_size"])

    def forward(self, pixels: Tensor, tokens: Tensor, mask: Tensor) -> Tensor:
        """Returns the raw scores [B] of pixels [B, 3, h, w] and tokens [B, L] where mask [B, L] is 1."""
        patches = self.image(pixel_values=pixels).last_hidden_state
        words: Any = self.text(  # is_decoder=False: every word sees all others
            input_ids=tokens, attention_mask=mask, encoder_hidden_states=patches, is_decoder=False
        )
        scores: Tensor = self.head(words.last_hidden_state[:, 0])
        return scores


def load_image_reward(file: Path) -> tuple[ImageRewardNetwork, int]:
    """Loads the frozen network of a checkpoint in float32; returns it with the side in pixels of its images.

    All sizes are those of the weights. Raises ConfigError where the file holds another network.
    """
    weights = read_weights(WHAT, file)
    own_weights = {renamed: value.float() for name, value in weights.items() if (renamed := own_name(name))}
    try:
        image, text = _sizes(own_weights)
    except (KeyError, ValueError) as error:
        raise ConfigError(f"{file} does not hold the {WHAT}: nothing in it is {error}") from error
    if image["hidden_size"] % HEAD_WIDTH or text["hidden_size"] % HEAD_WIDTH:
        raise ConfigError(f"{file} does not hold the {WHAT}: its layers are no multiple of {HEAD_WIDTH} wide")
    with torch.random.fork_rng(devices=[]):  # the constructor draws weights that are replaced
        network = ImageRewardNetwork(image, text)
    read = network.state_dict().keys()  # the file also holds projections and position numbers, which are not used
    put_weights(WHAT, file, network, {name: value for name, value in own_weights.items() if name in read})
    return network, image["image_size"]


def own_name(published: str) -> str | None:
    """Returns the name in `ImageRewardNetwork` of a published weight; None for one that is not used."""
    return _translated(published, NAMES)


def published_name(own: str) -> str:
    """Returns the published name of a weight of `ImageRewardNetwork`."""
    name = _translated(own, tuple((right, left) for left, right in NAMES))
    assert name is not None
    return name


def _translated(name: str, table: tuple[tuple[str, str], ...]) -> str | None:
    layer = re.search(r"(?<=\.blocks\.)\d+|(?<=image\.encoder\.layers\.)\d+", name)
    number = layer[0] if layer else "#"
    for left, right in table:
        if name.startswith(left.replace("#", number)):
            return right.replace("#", number) + name[len(left.replace("#", number)) :]
    return None


def _sizes(weights: dict[str, Tensor]) -> tuple[dict[str, Any], dict[str, Any]]:
    width, _, patch, _ = weights[_PATCHES].shape
    intermediate, hidden = weights[_TEXT_MLP].shape
    image = {
        "hidden_size": width,
        "patch_size": patch,
        "image_size": patch * round((weights[_PLACES].shape[1] - 1) ** 0.5),
        "intermediate_size": len(weights[_IMAGE_MLP]),
        "num_hidden_layers": _num_layers(weights, r"image\.encoder\.layers\.(\d+)\..*"),
        "num_attention_heads": max(1, width // HEAD_WIDTH),
    }
    text = {
        "hidden_size": hidden,
        "encoder_hidden_size": width,
        "intermediate_size": intermediate,
        "num_hidden_layers": _num_layers(weights, r"text\.encoder\.layer\.(\d+)\..*"),
        "num_attention_heads": max(1, hidden // HEAD_WIDTH),
        "vocab_size": len(weights[_WORDS]),
        "max_position_embeddings": len(weights[_TEXT_PLACES]),
    }
    return image, text


def _num_layers(weights: dict[str, Tensor], pattern: str) -> int:
    return 1 + max(int(match[1]) for name in weights if (match := re.fullmatch(pattern, name)))


def write_tiny_image_reward(folder: Path, seed: int) -> Path:
    """Writes checkpoint and tokenizer of a random, small network; returns the checkpoint's file."""
    from transformers import BertTokenizer

    folder.mkdir(parents=True, exist_ok=True)
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *LETTERS, *(f"##{letter}" for letter in LETTERS)]
    BertTokenizer(vocab={word: number for number, word in enumerate(words)}).save_pretrained(folder)
    tower = {
        "hidden_size": WIDTH,
        "intermediate_size": 4 * WIDTH,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": 2,
    }
    image = {**tower, "image_size": PIXELS, "patch_size": PATCH}
    text = {**tower, "encoder_hidden_size": WIDTH, "vocab_size": len(words) + 2, "max_position_embeddings": 64}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = ImageRewardNetwork(image, text)
    for part in (network.image, network.text):  # the head stays as it is: a larger one would enlarge rounding errors
        randomise(part, torch.Generator().manual_seed(seed))
    weights = {published_name(name): value for name, value in network.state_dict().items()}
    torch.save(weights, folder / "ImageReward.pt")
    return folder / "ImageReward.pt"
