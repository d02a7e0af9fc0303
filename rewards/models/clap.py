"""The fit of a sound to its prompt: the cosine similarity of their CLAP embeddings."""

from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import ClassVar, Self

import torch
from torch import Tensor

from mmrl.core.checked import Checked
from mmrl.core.contracts import Granularity, License, Placement, RewardBatch

from ..base.networks.clap import Clap as Network
from ..base.networks.clap import load_clap, windows_at, write_tiny_clap
from ..base.networks.clip import cosines


@dataclass
class Clap(Checked):
    """cos(sound, prompt) in CLAP's embedding space; of a long sound the mean over windows of 10 seconds.

    Wu et al. 2023, "Large-scale Contrastive Language-Audio Pretraining", arXiv 2211.06687; the text-audio CLAP score
    that DRAGON (Bai et al. 2025, arXiv 2504.15217) trains music by. Channels are averaged, and the sound is resampled
    to 48 kHz; spectrograms are those of transformers' feature extractor. A sound that is shorter than a window is
    repeated and padded, as in training.

    Different: LAION's code and transformers pick one random window of a longer sound; here the fewest windows that
    cover it, evenly placed, are all heard, so that a score is no matter of luck. LAION's code also rounds samples to
    16 bits. Prompts that describe pictures are judged as they are: CLAP knows captions of sounds.
    """

    source: ClassVar[str] = "Wu et al. 2023 (CLAP), arXiv 2211.06687; Bai et al. 2025 (DRAGON), arXiv 2504.15217"
    range: ClassVar[tuple[float, float]] = (-1.0, 1.0)
    granularity: ClassVar[Granularity] = "sample"
    differentiable: ClassVar[bool] = False  # the feature extractor computes in numpy
    needs: ClassVar[frozenset[str]] = frozenset({"audio", "model"})
    batch_size: ClassVar[int | None] = 16
    license: ClassVar[License] = License("Apache-2.0", commercial=True)  # laion/clap-htsat-unfused

    model: str = "laion/clap-htsat-unfused"  # hub name or folder of a CLAP of transformers without fusion
    _clap: Network | None = field(default=None, init=False, repr=False, compare=False)

    def tiny(self, seed: int, folder: Path) -> Self:
        """Returns the same reward on a random CLAP of small sizes that hears 2 seconds, written to `folder`."""
        write_tiny_clap(folder, seed)
        return replace(self, model=str(folder))

    def prepare(self, placement: Placement) -> None:
        """Loads the model; raises ConfigError where it cannot be loaded."""
        self._clap = load_clap(self.model, placement.device)

    def score(self, batch: RewardBatch) -> Tensor:
        """Returns the scores [B] float32.

        Raises ValueError for sound without samples or of an unknown rate, and for NaN or infinity.
        """
        assert self._clap is not None, "prepare comes before score"
        assert batch.outputs.audio is not None, "scoring checks needs"
        sounds = windows_at(batch.outputs.audio, batch.outputs.audio_rate, self._clap)
        ends = [0]
        for windows in sounds:
            ends.append(ends[-1] + len(windows))
        embeddings = self._clap.sounds([window for windows in sounds for window in windows])
        texts = self._clap.texts([prompt.text for prompt in batch.prompts])
        means = [cosines(embeddings[start:end], texts[row]).mean() for row, (start, end) in enumerate(pairwise(ends))]
        return torch.stack(means)
