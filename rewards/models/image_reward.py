"""ImageReward: how much people would prefer an image for its prompt."""

from dataclasses import dataclass, field, replace
from pathlib import Path
from textwrap import shorten
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from mmrl.core.contracts import ConfigError, Granularity, License, Placement, RewardBatch

from ..base.networks.blip import WHAT, ImageRewardNetwork, load_image_reward, write_tiny_image_reward
from ..base.networks.checkpoints import check_suffix, find_file
from ..base.networks.resizing import fit_shorter_side, normalised

MEAN, STD = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)  # of pixels: CLIP's
SCORE_MEAN, SCORE_STD = 0.16717362830052426, 1.0333394966054072  # the published normaliser
TOKENS = 35  # a prompt is cut there, as in training


@dataclass
class ImageReward:
    """The score (head(BLIP(image, prompt)) - 0.16717) / 1.03334, trained on people's rankings of images.

    Xu et al. 2023, arXiv 2304.05977, github.com/THUDM/ImageReward, version 1.0: a ViT-L/16 at 224 pixels, BERT whose
    layers attend to its patches, and layers 768-1024-128-64-16-1 on the first token. The shorter side is resized
    (bicubic) and the middle cut out; a prompt is cut at 35 tokens. Mostly -2 to 2; unbounded, since a linear head has
    no ends.

    The code of ImageReward reads `[ENC]` and `[DEC]` in a prompt as its own marks, which no training prompt holds; here
    they are words like any other. The score has a gradient to the image, as in the paper's ReFL.
    """

    source: ClassVar[str] = "Xu et al. 2023 (ImageReward), arXiv 2304.05977, github.com/THUDM/ImageReward"
    range: ClassVar[tuple[float, float]] = (float("-inf"), float("inf"))
    granularity: ClassVar[Granularity] = "sample"
    differentiable: ClassVar[bool] = True
    needs: ClassVar[frozenset[str]] = frozenset({"images", "model"})
    batch_size: ClassVar[int | None] = 64
    license: ClassVar[License] = License("Apache-2.0", commercial=True)  # THUDM/ImageReward

    checkpoint: str = "THUDM/ImageReward/ImageReward.pt"  # a file, or owner/repository/file on the hub
    tokenizer: str = "google-bert/bert-base-uncased"  # hub name or folder of BERT's tokenizer
    _network: ImageRewardNetwork | None = field(default=None, init=False, repr=False, compare=False)
    _side: int = field(default=0, init=False, repr=False, compare=False)  # height and width that the network sees
    _tokenizer: Any = field(default=None, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_suffix("checkpoint", self.checkpoint)

    def tiny(self, seed: int, folder: Path) -> Self:
        """Returns the same reward on a random network of small sizes with the published names, written to `folder`."""
        file = write_tiny_image_reward(folder, seed)
        return replace(self, checkpoint=str(file), tokenizer=str(folder))

    def prepare(self, placement: Placement) -> None:
        """Loads checkpoint and tokenizer; raises ConfigError where one is missing or does not fit."""
        from transformers import BertTokenizer

        try:
            self._tokenizer = BertTokenizer.from_pretrained(self.tokenizer)
        except (OSError, ValueError) as error:  # no such folder or repository; no tokenizer in it
            raise ConfigError(
                f"no tokenizer {self.tokenizer!r}: {shorten(str(error), 300)}; allowed are a hub name or a folder"
            ) from error
        network, self._side = load_image_reward(find_file(WHAT, self.checkpoint))
        if len(self._tokenizer) > network.text.config.vocab_size:
            raise ConfigError(
                f"the tokenizer {self.tokenizer!r} has {len(self._tokenizer)} tokens, more than the"
                f" {network.text.config.vocab_size} of {self.checkpoint!r}; the published one is bert-base-uncased"
            )
        self._network = network.to(placement.device)

    def score(self, batch: RewardBatch) -> Tensor:
        """Returns the scores [B] float32; with a gradient to the images where they require one."""
        assert self._network is not None, "prepare comes before score"
        assert batch.outputs.images is not None, "scoring checks needs"
        device = self._network.image.device
        texts = [prompt.text for prompt in batch.prompts]
        words = self._tokenizer(
            texts, padding="max_length", truncation=True, max_length=TOKENS, return_tensors="pt"
        ).to(device)
        with torch.autocast(device.type, enabled=False):
            images = fit_shorter_side(batch.outputs.images.to(device, torch.float32), self._side)
            raw = self._network(normalised(images, MEAN, STD), words.input_ids, words.attention_mask)
        scores: Tensor = (raw - SCORE_MEAN) / SCORE_STD
        return scores
