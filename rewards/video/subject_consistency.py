"""Does the subject of a video stay the same? DINO's features of each frame against the first and the previous one."""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import ClassVar, Self

from torch import Tensor

from mmrl.core.checked import Checked
from mmrl.core.contracts import Granularity, License, Placement, RewardBatch

from ..base.frames import frames_of
from ..base.networks.clip import cosines
from ..base.networks.dino_vit import load_dino_vit, write_tiny_dino_vit
from ..base.networks.image_embedders import Embed


@dataclass
class SubjectConsistency(Checked):
    """The mean over frames t >= 1 of (max(0, cos(f_0, f_t)) + max(0, cos(f_(t-1), f_t))) / 2, f DINO's features.

    VBench's subject consistency (Huang et al. 2023, arXiv 2311.17982, section 3.1; vbench/subject_consistency.py), in
    [0, 1]; VBench writes it in percent. f is the first token of DINO ViT-B/16 (Caron et al. 2021, arXiv 2104.14294).
    A still video has 1: VBench reads it beside its dynamic degree, and a run that trains by it needs a reward of motion
    too, such as `dynamic_degree`.
    """

    source: ClassVar[str] = "Huang et al. 2023 (VBench), arXiv 2311.17982; github.com/Vchitect/VBench"
    range: ClassVar[tuple[float, float]] = (0.0, 1.0)
    granularity: ClassVar[Granularity] = "sample"
    differentiable: ClassVar[bool] = True
    needs: ClassVar[frozenset[str]] = frozenset({"videos", "model"})
    batch_size: ClassVar[int | None] = 4
    license: ClassVar[License] = License("Apache-2.0", commercial=True)  # facebook/dino-vitb16

    model: str = "facebook/dino-vitb16"  # hub name or folder of a DINO of transformers; VBench's
    _embed: Embed | None = field(default=None, init=False, repr=False, compare=False)

    def tiny(self, seed: int, folder: Path) -> Self:
        """Returns the same reward on a random DINO of small sizes, written to `folder`."""
        write_tiny_dino_vit(folder, seed)
        return replace(self, model=str(folder))

    def prepare(self, placement: Placement) -> None:
        """Loads the model; raises ConfigError where it cannot be loaded."""
        self._embed = load_dino_vit(self.model, placement.device)

    def score(self, batch: RewardBatch) -> Tensor:
        """Returns the scores [B] float32, with a gradient to the videos where they require one.

        Raises ValueError for videos of fewer than two frames, and for NaN or infinity.
        """
        assert self._embed is not None, "prepare comes before score"
        frames = frames_of(batch, fewest=2).clamp(0, 1)
        features = self._embed(frames.flatten(0, 1)).unflatten(0, frames.shape[:2])  # [B, F, D]
        to_first = cosines(features[:, :1], features[:, 1:]).clamp_min(0)  # [B, F - 1]
        to_previous = cosines(features[:, :-1], features[:, 1:]).clamp_min(0)
        return ((to_first + to_previous) / 2).mean(1)
