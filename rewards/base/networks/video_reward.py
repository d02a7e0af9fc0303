"""VideoReward's network: transformers' Qwen2-VL with a linear head, loaded from the published names."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from textwrap import shorten
from typing import Any

import torch
from torch import Tensor, nn

from mmrl.core.contracts import ConfigError, Placement

from .checkpoints import find_file, put_weights, read_weights
from .qwen_vl import as_patches, num_words, states_of
from .tiny import randomise
from .tiny_qwen import tiny_config, tiny_tokenizer

WHAT = "VideoReward checkpoint"
MARKS = ("<|VQ_reward|>", "<|MQ_reward|>", "<|TA_reward|>")  # where the head is read, in the order of the scores
QUESTION = "DETAILED_PROMPT_WITH_SPECIAL_TOKEN"  # its name in that file
ORIGIN = "prompt_template.py of github.com/KwaiVGI/VideoAlign"
_VIDEO = "<|video_pad|>"
# How the published names begin, behind `base_model.model.`, and those of `VideoRewardNetwork`.
_NAMES = (("visual.", "body.visual."), ("model.", "body.language_model."), ("rm_head.", "rm_head."))


class VideoRewardNetwork(nn.Module):
    """Qwen2-VL without the head that predicts tokens, and a linear head of one number for each token."""

    def __init__(self, config: Any) -> None:
        """Makes the network of a Qwen2VLConfig."""
        from transformers import Qwen2VLModel

        super().__init__()
        self.body: Any = Qwen2VLModel(config)
        self.rm_head = nn.Linear(config.text_config.hidden_size, 1, bias=False)

    def forward(self, frames: Tensor, tokens: Tensor, mask: Tensor, marks: Sequence[int]) -> Tensor:
        """Returns the raw scores [B, 3] at the three marks.

        Args:
            frames: [B, F, 3, H, W] in [0, 1], F even, H and W multiples of 28. tokens: [B, L]; mask: [B, L], 1 where
                they count, padded on the right.
        """
        config = self.body.config
        seen = as_patches(frames, config.vision_config)
        states = states_of(self.body, seen, tokens == config.video_token_id, tokens, mask)
        where = torch.stack([(tokens == mark).int().argmax(1) for mark in marks], 1)  # [B, 3]
        at_marks = states.gather(1, where[..., None].expand(-1, -1, states.shape[-1]))
        scores: Tensor = self.rm_head(at_marks)[..., 0].float()
        return scores


@dataclass(frozen=True)
class VideoReward:
    """A frozen VideoReward with its tokenizer."""

    network: VideoRewardNetwork
    tokenizer: Any
    marks: tuple[int, ...]  # ids of `MARKS`

    def scores(self, frames: Tensor, questions: Sequence[str]) -> Tensor:
        """Returns the raw scores [B, 3] of videos [B, F, 3, H, W] by B questions, each with all marks."""
        config = self.network.body.config.vision_config
        sides = frames.shape[-2] // config.patch_size, frames.shape[-1] // config.patch_size
        count = frames.shape[1] // config.temporal_patch_size * sides[0] * sides[1] // config.spatial_merge_size**2
        asked = [
            [{"role": "user", "content": [{"type": "video"}, {"type": "text", "text": question}]}]
            for question in questions
        ]
        texts = self.tokenizer.apply_chat_template(asked, tokenize=False, add_generation_prompt=True)
        texts = [text.replace(_VIDEO, _VIDEO * count) for text in texts]
        words = self.tokenizer(texts, padding=True, return_tensors="pt").to(frames.device)
        with torch.autocast(frames.device.type, enabled=False):
            scores: Tensor = self.network(frames, words.input_ids, words.attention_mask, self.marks)
        return scores


def load_video_reward(checkpoint: str, configuration: str, base: str, placement: Placement) -> VideoReward:
    """Loads the frozen network with its LoRA merged, in the precision of the run.

    Args:
        checkpoint: file of the weights, here or owner/repository/file on the hub. configuration: likewise, the JSON
            file beside it, which has the scale of the LoRA. base: hub name or folder of Qwen2-VL, for its sizes and
            its tokenizer.
    Raises ConfigError where a part is missing or does not fit.
    """
    from transformers import AutoConfig, AutoTokenizer

    try:
        tokenizer: Any = AutoTokenizer.from_pretrained(base)
        config: Any = AutoConfig.from_pretrained(base)
    except (OSError, ValueError) as error:  # no such folder or repository; no model in it
        raise ConfigError(
            f"no model {base!r}: {shorten(str(error), 300)}; allowed are a hub name or a folder of Qwen2-VL"
        ) from error
    if config.model_type != "qwen2_vl":
        raise ConfigError(f"{base!r} is no Qwen2-VL, on which VideoReward was trained")
    tokenizer.add_special_tokens({"additional_special_tokens": list(MARKS)}, replace_extra_special_tokens=False)
    tokenizer.padding_side = "right"
    file = find_file(WHAT, checkpoint)
    weights = merged(read_weights(WHAT, file), _lora_alpha(find_file("VideoReward configuration", configuration)))
    config.text_config.vocab_size = num_words(WHAT, file, weights, base, len(tokenizer))
    with torch.random.fork_rng(devices=[]):  # the constructor draws weights that are replaced
        network = VideoRewardNetwork(config)
    put_weights(WHAT, file, network, weights)
    return VideoReward(
        network.to(placement.device, placement.dtype), tokenizer, tuple(tokenizer.convert_tokens_to_ids(list(MARKS)))
    )


def merged(weights: dict[str, Tensor], alpha: float) -> dict[str, Tensor]:
    """Returns the weights by the names of `VideoRewardNetwork`, each LoRA added: W + (alpha / rank) B A.

    Names that it does not have, such as the head that predicts tokens, are left out.
    """
    own: dict[str, Tensor] = {}
    for published, value in weights.items():
        name = published.removeprefix("base_model.model.")
        if ".lora_" in name or (renamed := _renamed(name)) is None:
            continue
        weight = value.float()
        if (stem := published.removesuffix(".base_layer.weight")) != published:
            down, up = (weights[f"{stem}.lora_{side}.default.weight"].float() for side in "AB")
            weight = weight + alpha / len(down) * up @ down
        own[renamed] = weight
    return own


def _renamed(name: str) -> str | None:
    name = name.replace(".base_layer.", ".")
    return next((right + name.removeprefix(left) for left, right in _NAMES if name.startswith(left)), None)


def _lora_alpha(file: Path) -> float:
    try:
        return float(json.loads(file.read_text(encoding="utf-8"))["peft_lora_config"]["lora_alpha"])
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{file} is no configuration of VideoReward: nothing in it is {error}") from error


def write_tiny_video_reward(folder: Path, seed: int) -> tuple[Path, Path]:
    """Writes a random, small network with the published names, and tokenizer and configuration of its base.

    Returns the files of the checkpoint and of its configuration; the base is the folder itself.
    """
    tokenizer = tiny_tokenizer()
    config = tiny_config("qwen2_vl", tokenizer, len(MARKS))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = VideoRewardNetwork(config)
    randomise(network, torch.Generator().manual_seed(seed))
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save_pretrained(folder)
    config.save_pretrained(folder)
    checkpoint, configuration = folder / "model.pth", folder / "model_config.json"
    torch.save(published(network.state_dict(), seed), checkpoint)
    configuration.write_text(json.dumps({"peft_lora_config": {"lora_alpha": 4}}), encoding="utf-8")
    return checkpoint, configuration


def published(own: dict[str, Tensor], seed: int) -> dict[str, Tensor]:
    """Returns the weights of `VideoRewardNetwork` by published names, with a LoRA of rank 2 beside language layers."""
    generator, weights = torch.Generator().manual_seed(seed), {}
    for name, value in own.items():
        left, right = next((left, right) for left, right in _NAMES if name.startswith(right))
        stem = f"base_model.model.{left}{name.removeprefix(right)}".removesuffix(".weight")
        if left == "model." and "_proj." in name and value.ndim == 2:
            weights[f"{stem}.base_layer.weight"] = value
            weights[f"{stem}.lora_A.default.weight"] = torch.randn(2, value.shape[1], generator=generator) / 8
            weights[f"{stem}.lora_B.default.weight"] = torch.randn(len(value), 2, generator=generator) / 8
        elif left == "model." and "_proj." in name:
            weights[stem.removesuffix(".bias") + ".base_layer.bias"] = value
        else:
            weights[stem + (".weight" if name.endswith(".weight") else "")] = value
    return weights
