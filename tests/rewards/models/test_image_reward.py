"""ImageReward against its forward pass written out by hand on the published names."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn.functional import conv2d, gelu, layer_norm, linear, softmax
from torchvision.transforms import CenterCrop, Compose, InterpolationMode, Normalize, Resize, ToTensor
from transformers import BertTokenizer

from mmrl.core.contracts import ConfigError, RewardBatch
from mmrl.core.data import Outputs
from mmrl.rewards.models.image_reward import ImageReward
from tests.rewards.example import Example
from tests.rewards.pictures import CPU, random_pictures, to_pil

EXAMPLE = Example(random_batch=random_pictures)  # no truth: a model of taste
TEXTS = ["a red circle", "two blue squares, please, and a very long list of other things", "naïve café 🙂"]
Weights = dict[str, Tensor]


@pytest.fixture(scope="module")
def twin(tmp_path_factory: pytest.TempPathFactory) -> ImageReward:
    return ImageReward().tiny(0, tmp_path_factory.mktemp("image_reward"))


def attend(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, heads: int = 2) -> Tensor:
    """Attention of [n, D] to [m, D] with mask [m], one head after the other."""
    found = []
    for q, k, v in zip(query.chunk(heads, 1), key.chunk(heads, 1), value.chunk(heads, 1), strict=True):
        scores = q @ k.T / q.shape[1] ** 0.5
        found.append(softmax(scores if mask is None else scores.masked_fill(mask == 0, -torch.inf), 1) @ v)
    return torch.cat(found, 1)


def apply(w: Weights, name: str, x: Tensor) -> Tensor:
    return linear(x, w[f"{name}.weight"], w[f"{name}.bias"])


def norm(w: Weights, name: str, x: Tensor, eps: float) -> Tensor:
    return layer_norm(x, x.shape[-1:], w[f"{name}.weight"], w[f"{name}.bias"], eps)


def see(w: Weights, pixels: Tensor) -> Tensor:
    """Patches [n + 1, D] of pixels [3, h, w]: a ViT that normalises before each layer, as timm's."""
    at = "blip.visual_encoder"
    kernel = w[f"{at}.patch_embed.proj.weight"]
    patches = conv2d(pixels[None], kernel, w[f"{at}.patch_embed.proj.bias"], stride=kernel.shape[-1])[0].flatten(1).T
    x = torch.cat([w[f"{at}.cls_token"][0], patches]) + w[f"{at}.pos_embed"][0]
    for block in (f"{at}.blocks.0", f"{at}.blocks.1"):
        query, key, value = apply(w, f"{block}.attn.qkv", norm(w, f"{block}.norm1", x, 1e-6)).chunk(3, 1)
        x = x + apply(w, f"{block}.attn.proj", attend(query, key, value, None))
        inner = gelu(apply(w, f"{block}.mlp.fc1", norm(w, f"{block}.norm2", x, 1e-6)))
        x = x + apply(w, f"{block}.mlp.fc2", inner)
    return norm(w, f"{at}.norm", x, 1e-6)


def read(w: Weights, tokens: Tensor, mask: Tensor, patches: Tensor) -> Tensor:
    """First token [D] of BERT that looks at itself, then at the patches, normalising after each layer."""
    at = "blip.text_encoder"
    x = w[f"{at}.embeddings.word_embeddings.weight"][tokens]
    x = x + w[f"{at}.embeddings.position_embeddings.weight"][: len(tokens)]
    x = norm(w, f"{at}.embeddings.LayerNorm", x, 1e-12)
    for layer in (f"{at}.encoder.layer.0", f"{at}.encoder.layer.1"):
        for kind, seen, visible in (("attention", None, mask), ("crossattention", patches, None)):
            source = x if seen is None else seen
            query = apply(w, f"{layer}.{kind}.self.query", x)
            key, value = (apply(w, f"{layer}.{kind}.self.{part}", source) for part in ("key", "value"))
            dense = apply(w, f"{layer}.{kind}.output.dense", attend(query, key, value, visible))
            x = norm(w, f"{layer}.{kind}.output.LayerNorm", dense + x, 1e-12)
        inner = gelu(apply(w, f"{layer}.intermediate.dense", x))
        x = norm(w, f"{layer}.output.LayerNorm", apply(w, f"{layer}.output.dense", inner) + x, 1e-12)
    return x[0]


def by_hand(w: Weights, tokens: Tensor, mask: Tensor, pixels: Tensor) -> Tensor:
    value = read(w, tokens, mask, see(w, pixels))
    for number in (0, 2, 4, 6, 7):
        value = apply(w, f"mlp.layers.{number}", value)
    return (value - 0.16717362830052426) / 1.0333394966054072


@pytest.mark.slow
@pytest.mark.parametrize(("height", "width"), [(32, 32), (48, 83), (95, 64), (20, 27)])
def test_the_score_is_the_published_forward_pass(
    height: int, width: int, twin: ImageReward, make_batch: Callable[..., RewardBatch]
) -> None:
    rough = torch.rand(3, 3, 4, 5, generator=torch.Generator().manual_seed(3))
    images = (torch.nn.functional.interpolate(rough, (height, width), mode="bilinear") * 255).round() / 255
    twin.prepare(CPU)
    found = twin.score(make_batch(Outputs(images=images), TEXTS))

    weights = torch.load(twin.checkpoint, weights_only=True)
    mean, std = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)
    bicubic = InterpolationMode.BICUBIC
    preprocess = Compose([Resize(32, interpolation=bicubic), CenterCrop(32), ToTensor(), Normalize(mean, std)])
    tokenizer = BertTokenizer.from_pretrained(twin.tokenizer)
    words = tokenizer(TEXTS, padding="max_length", truncation=True, max_length=35, return_tensors="pt")
    assert words.attention_mask.sum(1).min() < 35 == words.attention_mask.sum(1).max(), "one is padded, one is cut"
    expected = torch.cat(
        [
            by_hand(weights, tokens, mask, preprocess(image))
            for tokens, mask, image in zip(words.input_ids, words.attention_mask, to_pil(images), strict=True)
        ]
    )
    rounding = 0.0 if (height, width) == (32, 32) else 0.02  # Pillow rounds to 8 bits after each resize; we do not
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-6 + rounding * float(expected.std()))


@pytest.mark.slow
def test_what_the_published_file_holds_beside_the_network_is_not_read(twin: ImageReward, tmp_path: Path) -> None:
    weights = torch.load(twin.checkpoint, weights_only=True)
    weights |= {"blip.vision_proj.weight": torch.zeros(2, 2), "blip.text_proj.bias": torch.zeros(2)}
    weights["blip.text_encoder.embeddings.position_ids"] = torch.arange(64)[None]
    torch.save(weights, tmp_path / "ImageReward.pt")
    ImageReward(checkpoint=str(tmp_path / "ImageReward.pt"), tokenizer=twin.tokenizer).prepare(CPU)


@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        ("blip.text_encoder.encoder.layer.1.crossattention.self.key.bias", "Missing key"),
        ("blip.visual_encoder.cls_token", "Missing key"),
        ("blip.visual_encoder.pos_embed", "nothing in it is 'image.embeddings.position_embedding'"),
        ("mlp.layers.7.bias", "Missing key"),
    ],
)
def test_a_checkpoint_without_a_weight_is_the_users_error(
    name: str, complaint: str, twin: ImageReward, tmp_path: Path
) -> None:
    weights = torch.load(twin.checkpoint, weights_only=True)
    del weights[name]
    torch.save(weights, tmp_path / "ImageReward.pt")
    with pytest.raises(ConfigError, match=f"(?s)does not hold the ImageReward checkpoint.*{complaint}"):
        ImageReward(checkpoint=str(tmp_path / "ImageReward.pt"), tokenizer=twin.tokenizer).prepare(CPU)


def test_a_missing_file_or_tokenizer_is_the_users_error(twin: ImageReward, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no ImageReward checkpoint '/no/such"):
        ImageReward(checkpoint="/no/such.pt", tokenizer=twin.tokenizer).prepare(CPU)
    with pytest.raises(ConfigError, match="no tokenizer '/no/such"):
        ImageReward(checkpoint=twin.checkpoint, tokenizer="/no/such").prepare(CPU)
    words = {f"word{number}": number for number in range(200)} | {"[UNK]": 200, "[PAD]": 201}
    BertTokenizer(vocab=words).save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match=r"has \d+ tokens, more than the"):
        ImageReward(checkpoint=twin.checkpoint, tokenizer=str(tmp_path)).prepare(CPU)
    with pytest.raises(ValueError, match="checkpoint must be a file that ends in"):
        ImageReward(checkpoint="ImageReward.zip")
