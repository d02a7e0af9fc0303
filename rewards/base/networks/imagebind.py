"""ImageBind's network for pictures, texts and sounds, from the published names; its preprocessing; a small twin."""

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, interpolate, normalize, pad

from mmrl.core.contracts import ConfigError

from .checkpoints import find_file, put_weights, read_weights
from .kaldi_fbank import kaldi_fbank
from .resizing import fit_shorter_side, normalised
from .tiny import randomise

WHAT = "ImageBind checkpoint"
Kind = Literal["vision", "text", "audio"]
KINDS: tuple[Kind, ...] = ("vision", "text", "audio")
MEAN, STD = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)  # of pixels: CLIP's
RATE = 16_000  # samples of sound a second
SECONDS = 2  # of a clip of sound or of frames
SOUND_CLIPS, VIDEO_CLIPS, CROPS = 3, 5, 3
MEL_BINS, MEL_FRAMES = 128, 204
SOUND_MEAN, SOUND_STD = -4.268, 9.138
KERNEL, STRIDE = 16, 10  # of patches of a spectrogram
CONTEXT, WORDS = 77, 49_408
MOST_SCALE = 100.0
PART = 16  # clips that are embedded at once


@dataclass(frozen=True)
class TrunkSizes:
    """The sizes of one transformer."""

    width: int
    num_blocks: int
    num_heads: int


@dataclass(frozen=True)
class Sizes:
    """The sizes of an ImageBind."""

    vision: TrunkSizes
    text: TrunkSizes
    audio: TrunkSizes
    embedding: int  # numbers of an embedding
    side: int  # height and width of a picture in pixels
    patch: int  # height and width of a patch in pixels

    def of(self, kind: Kind) -> TrunkSizes:
        """Returns the sizes of one transformer."""
        return {"vision": self.vision, "text": self.text, "audio": self.audio}[kind]


HUGE = Sizes(TrunkSizes(1280, 32, 16), TrunkSizes(1024, 24, 16), TrunkSizes(768, 12, 12), 1024, 224, 14)
TINY = Sizes(TrunkSizes(32, 2, 2), TrunkSizes(16, 2, 2), TrunkSizes(16, 2, 2), 8, 32, 8)


class Mlp(nn.Module):
    """Two layers, four times as wide between them."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, tokens: Tensor) -> Tensor:
        """Returns tokens [B, L, D] of the same shape."""
        found: Tensor = self.fc2(gelu(self.fc1(tokens)))
        return found


class Block(nn.Module):
    """Attention and two layers, each behind a normalisation and added; with a learned key and value for sounds."""

    def __init__(self, sizes: TrunkSizes, has_extra_key: bool) -> None:
        super().__init__()
        self.attn = nn.MultiheadAttention(sizes.width, sizes.num_heads, add_bias_kv=has_extra_key, batch_first=True)
        self.norm_1, self.norm_2 = nn.LayerNorm(sizes.width, eps=1e-6), nn.LayerNorm(sizes.width, eps=1e-6)
        self.mlp = Mlp(sizes.width)

    def forward(self, tokens: Tensor, mask: Tensor | None) -> Tensor:
        """Returns tokens [B, L, D] of the same shape; `mask` [L, L] is added to the products of queries and keys."""
        own = self.norm_1(tokens)
        tokens = tokens + self.attn(own, own, own, attn_mask=mask, need_weights=False)[0]
        found: Tensor = tokens + self.mlp(self.norm_2(tokens))
        return found


class Trunk(nn.Module):
    """Blocks one after the other; for pictures behind a normalisation."""

    def __init__(self, kind: Kind, sizes: TrunkSizes) -> None:
        super().__init__()
        first = nn.LayerNorm(sizes.width, eps=1e-6) if kind == "vision" else nn.Identity()
        self.pre_transformer_layer = nn.Sequential(first)
        self.blocks = nn.ModuleList(Block(sizes, has_extra_key=kind == "audio") for _ in range(sizes.num_blocks))

    def forward(self, tokens: Tensor, mask: Tensor | None) -> Tensor:
        """Returns tokens [B, L, D] of the same shape; see `Block`."""
        tokens = self.pre_transformer_layer(tokens)
        for block in self.blocks:
            tokens = block(tokens, mask)
        return tokens


class Stem(nn.Module):
    """A convolution that makes a token of each patch, and a normalisation for sounds."""

    def __init__(self, proj: nn.Module, norm: nn.Module | None) -> None:
        super().__init__()
        self.proj, self.norm_layer = proj, norm

    def forward(self, media: Tensor) -> Tensor:
        """Returns a token for each patch, [B, patches, D]."""
        tokens: Tensor = self.proj(media).flatten(2).transpose(1, 2)
        return tokens if self.norm_layer is None else self.norm_layer(tokens)


class PatchTokens(nn.Module):
    """The tokens of patches with their places, behind a first token that becomes the embedding."""

    def __init__(self, stem: Stem, num_patches: int, width: int) -> None:
        super().__init__()
        self.cls_token = nn.Parameter(torch.zeros(1, 1, width))
        self.rgbt_stem = stem
        self.pos_embedding_helper = nn.ParameterDict({"pos_embed": torch.zeros(1, 1 + num_patches, width)})

    def forward(self, media: Tensor) -> Tensor:
        """Returns the tokens [B, 1 + patches, D]."""
        patches = self.rgbt_stem(media)
        tokens = torch.cat([self.cls_token.expand(len(patches), -1, -1), patches], 1)
        placed: Tensor = tokens + self.pos_embedding_helper["pos_embed"]
        return placed


class TextTokens(nn.Module):
    """The tokens of texts with their places."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.token_embedding = nn.Embedding(WORDS, width)
        self.pos_embed = nn.Parameter(torch.zeros(1, CONTEXT, width))
        self.register_buffer("mask", torch.full((CONTEXT, CONTEXT), -math.inf).triu(1))

    def forward(self, words: Tensor) -> Tensor:
        """Returns the tokens [B, 77, D] of ids [B, 77]."""
        tokens: Tensor = self.token_embedding(words) + self.pos_embed
        return tokens


class Scale(nn.Module):
    """Multiplies with a stored temperature, of at most 100."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("log_logit_scale", torch.zeros(()))

    def forward(self, embeddings: Tensor) -> Tensor:
        """Returns embeddings of the same shape."""
        return embeddings * self.get_buffer("log_logit_scale").exp().clamp_max(MOST_SCALE)


class ImageBindNetwork(nn.Module):
    """The parts of ImageBind for some kinds of media, with the names of imagebind_huge.pth."""

    def __init__(self, sizes: Sizes, kinds: Collection[Kind] = KINDS) -> None:
        super().__init__()
        self.modality_preprocessors = nn.ModuleDict({kind: _tokens(kind, sizes) for kind in kinds})
        self.modality_trunks = nn.ModuleDict({kind: Trunk(kind, sizes.of(kind)) for kind in kinds})
        self.modality_heads = nn.ModuleDict({kind: _head(kind, sizes) for kind in kinds})
        self.modality_postprocessors = nn.ModuleDict(
            {kind: nn.Sequential(nn.Identity(), Scale()) for kind in kinds if kind != "vision"}
        )

    def forward(self, kind: Kind, media: Tensor) -> Tensor:
        """Returns embeddings [B, D]: of pictures of length 1, of texts and sounds times their temperatures.

        Args:
            media: clips [B, 3, 2, H, W] of two frames; ids of words [B, 77]; spectrograms [B, 1, mel bins, frames].
        """
        tokens = self.modality_preprocessors[kind](media)
        if kind == "text":
            mask = self.modality_preprocessors[kind].get_buffer("mask")
            states = self.modality_trunks[kind](tokens, mask)
            last = states[torch.arange(len(media), device=media.device), media.argmax(1)]  # the end has the largest id
            embeddings = self.modality_heads[kind].get_submodule("proj")(last)
        else:
            embeddings = self.modality_heads[kind](self.modality_trunks[kind](tokens, None)[:, 0])
        embeddings = normalize(embeddings, dim=-1)
        found: Tensor = embeddings if kind == "vision" else self.modality_postprocessors[kind](embeddings)
        return found


def _tokens(kind: Kind, sizes: Sizes) -> nn.Module:
    width = sizes.of(kind).width
    if kind == "text":
        return TextTokens(width)
    if kind == "vision":
        kernel = (2, sizes.patch, sizes.patch)
        pictures = nn.Conv3d(3, width, kernel, stride=kernel, bias=False)
        return PatchTokens(Stem(nn.Sequential(nn.Identity(), pictures), None), (sizes.side // sizes.patch) ** 2, width)
    places = [(length - KERNEL) // STRIDE + 1 for length in (MEL_BINS, MEL_FRAMES)]
    sounds = nn.Conv2d(1, width, KERNEL, stride=STRIDE, bias=False)
    return PatchTokens(Stem(sounds, nn.LayerNorm(width)), places[0] * places[1], width)


def _head(kind: Kind, sizes: Sizes) -> nn.Module:
    width = sizes.of(kind).width
    norm, linear = nn.LayerNorm(width, eps=1e-6), nn.Linear(width, sizes.embedding, bias=False)
    if kind == "text":
        return nn.ModuleDict({"proj": nn.Sequential(norm, linear)})
    return nn.Sequential(norm, nn.Identity(), linear)


@dataclass(frozen=True)
class ImageBind:
    """A frozen ImageBind (Girdhar et al. 2023, arXiv 2305.05665): media to float32 embeddings [B, D] of length 1."""

    network: ImageBindNetwork
    tokenizer: Callable[..., Tensor]  # CLIP's
    side: int  # height and width of a picture in pixels
    device: torch.device

    def texts(self, texts: Sequence[str]) -> Tensor:
        """Returns the embeddings of B texts, cut at 77 tokens; each different text is encoded once."""
        unique = list(dict.fromkeys(texts))
        row = {text: number for number, text in enumerate(unique)}
        embeddings = self._embedded("text", self.tokenizer(unique, context_length=CONTEXT)[:, None])
        return embeddings[[row[text] for text in texts]]

    def images(self, images: Tensor) -> Tensor:
        """Returns the embeddings of images [B, 3, H, W] in [0, 1]: the shorter side resized, the middle cut out."""
        fitted = normalised(fit_shorter_side(images.to(self.device, torch.float32), self.side), MEAN, STD)
        return self._embedded("vision", fitted[:, None, :, None].expand(-1, -1, -1, 2, -1, -1))

    def videos(self, videos: Tensor, rates: Sequence[float]) -> Tensor:
        """Returns the embeddings of videos [B, F, 3, H, W] in [0, 1] of `rates` frames a second."""
        clips = [video_clips(video.to(self.device), rate, self.side) for video, rate in zip(videos, rates, strict=True)]
        return torch.cat([self._embedded("vision", one[None]) for one in clips])

    def sounds(self, sounds: Sequence[Tensor]) -> Tensor:
        """Returns the embeddings of B sounds [S] of 16,000 samples a second."""
        return torch.cat([self._embedded("audio", sound_clips(sound.to(self.device))[None]) for sound in sounds])

    @torch.no_grad()
    def _embedded(self, kind: Kind, clips: Tensor) -> Tensor:
        """Returns the directions [B, D] of the means over clips of B media [B, clips, ...]."""
        with torch.autocast(self.device.type, enabled=False):
            parts = clips.flatten(0, 1).to(self.device).split(PART)
            embeddings = torch.cat([self.network(kind, part) for part in parts])
        return normalize(embeddings.unflatten(0, clips.shape[:2]).mean(1), dim=-1)


def clip_starts(length: Fraction, count: int) -> list[Fraction]:
    """Returns the seconds at which clips of two seconds start: evenly, the last at the end; one for a short medium."""
    last = max(length - SECONDS, Fraction(0))
    if last == 0:
        return [last]  # published code embeds the same clip `count` times
    return [last * place / (count - 1) for place in range(count)]


def sound_clips(sound: Tensor) -> Tensor:
    """Returns the spectrograms [clips, 1, 128, 204] of a sound [S] of 16,000 samples a second.

    A clip of two seconds has 198 frames; the others, and those of shorter sounds, are 0 before normalising. A sound of
    less than one frame is padded with silence to one.
    """
    sound = pad(sound.float(), (0, max(0, RATE // 40 - len(sound))))
    spectrograms = []
    for start in clip_starts(Fraction(len(sound), RATE), SOUND_CLIPS):
        clip = sound[int(start * RATE) : int((start + SECONDS) * RATE)]
        fbank = kaldi_fbank(clip - clip.mean(), RATE, MEL_BINS)[:MEL_FRAMES]
        spectrograms.append(pad(fbank.T, (0, MEL_FRAMES - len(fbank))))
    return (torch.stack(spectrograms)[:, None] - SOUND_MEAN) / SOUND_STD


def video_clips(video: Tensor, rate: float, side: int) -> Tensor:
    """Returns the clips [n, 3, 2, side, side] of a video [F, 3, H, W] in [0, 1] of `rate` frames a second.

    The first and the last frame of each of 5 clips of two seconds (one of a short video), each cut three times: at both
    ends of the longer side and in its middle. Resized (bilinear, not smoothed) so that the shorter side fits.
    """
    speed = Fraction(rate)
    pairs = []
    for start in clip_starts(len(video) / speed, VIDEO_CLIPS):
        first, end = math.ceil(start * speed), min(math.ceil((start + SECONDS) * speed), len(video))
        pairs.append([min(first, len(video) - 1), max(end - 1, first)])
    height, width = video.shape[-2:]
    size = [side * height // min(height, width), side * width // min(height, width)]
    frames = interpolate(video[[place for pair in pairs for place in pair]].float(), size, mode="bilinear")
    frames = normalised(frames, MEAN, STD).unflatten(0, (-1, 2)).transpose(1, 2)  # [clips, 3, 2, h, w]
    above, left = (math.ceil((length - side) / 2) for length in size)
    if height > width:
        corners = [(0, left), (above, left), (size[0] - side, left)]
    else:
        corners = [(above, 0), (above, left), (above, size[1] - side)]
    cut = [frames[..., top : top + side, begin : begin + side] for top, begin in corners]
    return torch.stack(cut, 1).flatten(0, 1)


def load_imagebind(
    checkpoint: str, num_heads: tuple[int, int, int], kinds: Collection[Kind], device: torch.device
) -> ImageBind:
    """Loads the parts of a frozen ImageBind that some kinds of media need, in float32.

    Args:
        checkpoint: file of the weights, here or owner/repository/file on the hub. num_heads: attention heads for
            pictures, texts and sounds, the only sizes that weights do not show.
    Raises ConfigError where the file is missing or does not hold the network.
    """
    from open_clip.tokenizer import SimpleTokenizer

    file = find_file(WHAT, checkpoint)
    weights = {
        name: value.float()
        for name, value in read_weights(WHAT, file).items()
        if len(parts := name.split(".")) > 1 and parts[1] in kinds
    }
    try:
        sizes = _sizes(weights, num_heads, kinds)
        with torch.device("meta"):
            network = ImageBindNetwork(sizes, kinds)
    except (KeyError, ValueError, AssertionError) as error:  # nn.MultiheadAttention asserts that heads divide the width
        raise ConfigError(f"{file} does not hold the {WHAT}: {type(error).__name__}: {error}") from error
    put_weights(WHAT, file, network.to_empty(device="cpu"), weights)
    tokenizer: Any = SimpleTokenizer(context_length=CONTEXT)
    return ImageBind(network.to(device), tokenizer, sizes.side, device)


def _sizes(weights: dict[str, Tensor], num_heads: tuple[int, int, int], kinds: Collection[Kind]) -> Sizes:
    """Reads the sizes of a network from its weights; those of kinds that are not there stay the published ones."""
    trunks = {}
    for kind, heads in zip(KINDS, num_heads, strict=True):
        trunks[kind] = HUGE.of(kind)
        if kind in kinds:
            begin = f"modality_trunks.{kind}.blocks."
            width = len(weights[f"{begin}0.norm_1.weight"])
            numbers = {name.removeprefix(begin).split(".")[0] for name in weights if name.startswith(begin)}
            trunks[kind] = TrunkSizes(width, len(numbers), heads)
    layer = "modality_heads.text.proj.1" if "text" in kinds else f"modality_heads.{next(iter(kinds))}.2"
    embedding = len(weights[f"{layer}.weight"])
    side, patch = HUGE.side, HUGE.patch
    if "vision" in kinds:
        patch = weights["modality_preprocessors.vision.rgbt_stem.proj.1.weight"].shape[-1]
        places = weights["modality_preprocessors.vision.pos_embedding_helper.pos_embed"].shape[1]
        side = patch * math.isqrt(places - 1)
    return Sizes(**trunks, embedding=embedding, side=side, patch=patch)


def write_tiny_imagebind(folder: Path, seed: int) -> Path:
    """Writes a random ImageBind of small sizes with the published names; returns its file."""
    from safetensors.torch import save_file

    with torch.random.fork_rng(devices=[]):  # the constructor draws weights that are drawn anew
        network = ImageBindNetwork(TINY)
    randomise(network, torch.Generator().manual_seed(seed))
    weights = network.state_dict()
    for kind in ("vision", "audio"):  # a large first token would look alike for all media
        weights[f"modality_preprocessors.{kind}.cls_token"] *= 0.1
        weights[f"modality_preprocessors.{kind}.pos_embedding_helper.pos_embed"][:, 0] *= 0.1
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "imagebind.safetensors"
    save_file(weights, file)
    return file
