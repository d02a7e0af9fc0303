"""A frozen CLAP of transformers: sounds and texts to embeddings that can be compared; and a random small twin."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mmrl.core.contracts import ConfigError

from .loading import loading
from .tiny import byte_tokenizer, randomise

TINY_SECONDS = 2  # of sound that a tiny twin hears at once
BATCH = 16  # windows of sound that are embedded at once


@dataclass(frozen=True)
class Clap:
    """A frozen CLAP (Wu et al. 2023, arXiv 2211.06687): sounds and texts to embeddings of length 1, in float32."""

    model: Any  # a ClapModel
    extractor: Any  # its ClapFeatureExtractor: log-mel spectrograms of windows of one length
    tokenizer: Any

    @property
    def rate(self) -> int:
        """Samples of sound a second."""
        return int(self.extractor.sampling_rate)

    @property
    def window(self) -> int:
        """Samples of sound that the model hears at once."""
        return int(self.extractor.nb_max_samples)

    @torch.no_grad()
    def sounds(self, windows: Sequence[Any]) -> Tensor:
        """Returns the embeddings [n, D] of n sounds, arrays of at most `window` samples at `rate`.

        A shorter sound is repeated as often as it fits as a whole, then padded with silence, as the model was trained.
        """
        parts = [windows[start : start + BATCH] for start in range(0, len(windows), BATCH)]
        with torch.autocast(self.model.device.type, enabled=False):
            return torch.cat([self._embedded(list(part)) for part in parts])

    def _embedded(self, windows: list[Any]) -> Tensor:
        spectrograms = self.extractor(windows, sampling_rate=self.rate, return_tensors="pt")["input_features"]
        found: Tensor = self.model.get_audio_features(spectrograms.to(self.model.device, torch.float32)).pooler_output
        return found

    @torch.no_grad()
    def texts(self, texts: Sequence[str]) -> Tensor:
        """Returns the embeddings [B, D] of B texts, cut at the context length; each different text is encoded once."""
        unique = list(dict.fromkeys(texts))
        row = {text: number for number, text in enumerate(unique)}
        sizes = self.model.config.text_config
        context = sizes.max_position_embeddings - sizes.pad_token_id - 1  # positions count from behind the padding's
        tokens = self.tokenizer(unique, padding=True, truncation=True, max_length=context, return_tensors="pt")
        with torch.autocast(self.model.device.type, enabled=False):
            found: Tensor = self.model.get_text_features(
                input_ids=tokens["input_ids"].to(self.model.device),
                attention_mask=tokens["attention_mask"].to(self.model.device),
            ).pooler_output
        return found[[row[text] for text in texts]]


def resampled(wave: Tensor, rate: int, wanted: int) -> Any:
    """Returns the samples of a mono sound [S] at another rate, as a numpy array; polyphase filtering of scipy."""
    from scipy.signal import resample_poly

    samples = wave.cpu().numpy()
    if rate == wanted:
        return samples
    common = math.gcd(rate, wanted)
    return resample_poly(samples, wanted // common, rate // common)


def windows_of(samples: Any, length: int) -> list[Any]:
    """Returns the fewest windows of `length` samples that cover a sound, evenly placed; the sound itself if it fits."""
    count = math.ceil(len(samples) / length)
    if count <= 1:
        return [samples]
    starts = [round(place * (len(samples) - length) / (count - 1)) for place in range(count)]
    return [samples[start : start + length] for start in starts]


def mono_at(audio: Tensor, rates: Sequence[int] | None, wanted: int) -> list[Any]:
    """Returns the means of the channels of B sounds [B, channels, S], at `wanted` samples a second, as numpy arrays.

    Raises ValueError for sound without samples or of an unknown rate, and for NaN or infinity.
    """
    if rates is None or min(rates) < 1:
        raise ValueError(f"needs the samples a second of every sound, got {rates}")
    if 0 in audio.shape[1:] or not audio.isfinite().all():
        raise ValueError(f"needs sounds of finite samples [B, channels, S], got the shape {tuple(audio.shape)}")
    mono = audio.detach().float().mean(1)  # [B, S]
    return [resampled(wave, rate, wanted) for wave, rate in zip(mono, rates, strict=True)]


def windows_at(audio: Tensor, rates: Sequence[int] | None, clap: Clap) -> list[list[Any]]:
    """Returns the windows of each of B sounds [B, channels, S] at the model's rate; raises as `mono_at` does."""
    return [windows_of(samples, clap.window) for samples in mono_at(audio, rates, clap.rate)]


def load_clap(model: str, device: torch.device) -> Clap:
    """Loads a CLAP by hub name or folder. Raises ConfigError where there is none, or one that picks random parts."""
    from transformers import AutoFeatureExtractor, AutoTokenizer, ClapModel

    with loading("CLAP", model, "a CLAP of transformers, with its feature extractor and tokenizer"):
        clap: Any = ClapModel.from_pretrained(model, dtype=torch.float32)
        parts = AutoFeatureExtractor.from_pretrained(model), AutoTokenizer.from_pretrained(model)
    if clap.config.audio_config.enable_fusion:
        raise ConfigError(
            f"the CLAP {model!r} fuses random parts of a sound, so that its scores are random; allowed are models"
            " without fusion, such as laion/clap-htsat-unfused"
        )
    return Clap(clap.to(device).eval().requires_grad_(False), *parts)


def write_tiny_clap(folder: Path, seed: int) -> None:
    """Writes a random CLAP of small sizes as transformers saves one."""
    from tokenizers.processors import RobertaProcessing
    from transformers import ClapConfig, ClapFeatureExtractor, ClapModel

    marks = ("<s>", "<pad>", "</s>")
    tokenizer = byte_tokenizer(marks, eos="</s>", pad="<pad>")
    first, pad, last = tokenizer.convert_tokens_to_ids(list(marks))
    tokenizer.backend_tokenizer.post_processor = RobertaProcessing(("</s>", last), ("<s>", first))
    text = {
        "vocab_size": len(tokenizer),
        "hidden_size": 16,
        "intermediate_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "max_position_embeddings": pad + 1 + 64,
        "bos_token_id": first,
        "pad_token_id": pad,
        "eos_token_id": last,
    }
    sound = {
        "num_mel_bins": 16,
        "spec_size": 64,
        "window_size": 4,
        "patch_embeds_hidden_size": 8,
        "hidden_size": 16,  # of the last stage: twice as many for each stage after the first
        "depths": [1, 1],
        "num_attention_heads": [2, 2],
    }
    with torch.random.fork_rng(devices=[]):  # the constructor draws weights that are drawn anew
        clap = ClapModel(ClapConfig(text_config=text, audio_config=sound, projection_dim=8))
    randomise(clap, torch.Generator().manual_seed(seed))
    clap.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    extractor = ClapFeatureExtractor(feature_size=16, max_length_s=TINY_SECONDS, truncation="rand_trunc")
    extractor.save_pretrained(folder)
