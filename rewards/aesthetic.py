"""How much people would like an image: LAION's aesthetic predictor on CLIP embeddings."""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import ClassVar, Self

import torch
from torch import Tensor, nn

from mmrl.contracts import ConfigError, Granularity, Placement, RewardBatch
from mmrl.rewards._clip import Clip, load_clip, write_tiny_clip

EMBEDDING = 768  # of CLIP ViT-L/14
SUFFIXES = (".safetensors", ".pth", ".pt")


class _Head(nn.Module):
    """The published head, names included: linear layers without activations between them."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(EMBEDDING, 1024),
            nn.Dropout(0.2),
            nn.Linear(1024, 128),
            nn.Dropout(0.2),
            nn.Linear(128, 64),
            nn.Dropout(0.1),
            nn.Linear(64, 16),
            nn.Linear(16, 1),
        )

    def forward(self, embeddings: Tensor) -> Tensor:
        scores: Tensor = self.layers(embeddings)
        return scores.squeeze(1)


@dataclass
class Aesthetic:
    """A linear head on the CLIP ViT-L/14 embedding of length 1, trained on human ratings from 1 to 10.

    Schuhmann 2022, github.com/christophschuhmann/improved-aesthetic-predictor, `sac+logos+ava1-l14-linearMSE`; the
    aesthetic reward of DDPO (Black et al. 2023, arXiv 2305.13301). Higher is better, about 4 to 7 in practice.
    """

    source: ClassVar[str] = "Schuhmann 2022, github.com/christophschuhmann/improved-aesthetic-predictor"
    range: ClassVar[tuple[float, float]] = (float("-inf"), float("inf"))  # a linear head has no ends
    granularity: ClassVar[Granularity] = "sample"
    differentiable: ClassVar[bool] = True
    needs: ClassVar[frozenset[str]] = frozenset({"images"})
    batch_size: ClassVar[int | None] = 64

    model: str = "openai/clip-vit-large-patch14"  # hub name or folder of the CLIP that the head was trained on
    head: str = "trl-lib/ddpo-aesthetic-predictor/aesthetic-model.pth"  # a file, or owner/repository/file on the hub
    _clip: Clip | None = field(default=None, init=False, repr=False, compare=False)
    _head: _Head | None = field(default=None, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not self.head.endswith(SUFFIXES):
            raise ValueError(f"head must be a file that ends in {', '.join(SUFFIXES)}, got {self.head!r}")

    def tiny(self, seed: int, folder: Path) -> Self:
        """The same reward on a random CLIP of small sizes and a random head, written to `folder`."""
        from safetensors.torch import save_file

        write_tiny_clip("transformers", folder / "clip", seed, embedding=EMBEDDING)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            save_file(_Head().state_dict(), folder / "head.safetensors")
        return replace(self, model=str(folder / "clip"), head=str(folder / "head.safetensors"))

    def prepare(self, placement: Placement) -> None:
        """Loads both parts; raises ConfigError where one is missing or does not fit."""
        self._head = _load_head(self.head).to(placement.device)
        self._clip = load_clip("transformers", self.model, None, placement.device)

    def score(self, batch: RewardBatch) -> Tensor:
        """[B] float32; with a gradient to the images where they ask for one."""
        assert self._clip is not None and self._head is not None, "prepare comes before score"
        assert batch.outputs.images is not None, "scoring checks needs"
        embeddings = self._clip.images(batch.outputs.images)  # [B, D]
        if embeddings.shape[1] != EMBEDDING:
            raise ConfigError(
                f"the aesthetic head needs embeddings of {EMBEDDING} numbers, got {embeddings.shape[1]}"
                f" from the CLIP {self.model!r}; the published head is for openai/clip-vit-large-patch14"
            )
        with torch.autocast(embeddings.device.type, enabled=False):
            scores: Tensor = self._head(embeddings)
        return scores


def _load_head(head: str) -> _Head:
    file = _find_head(head)
    try:
        if file.suffix == ".safetensors":
            from safetensors.torch import load_file

            weights = load_file(file)
        else:
            weights = torch.load(file, map_location="cpu", weights_only=True)
        module = _Head()
        module.load_state_dict(weights)
    except Exception as error:  # a damaged file raises a dozen classes; all say that this file is no such head
        raise ConfigError(
            f"{file} does not hold the aesthetic head (layers 768-1024-128-64-16-1, named layers.0.weight ...):"
            f" {type(error).__name__}: {error}"
        ) from error
    return module.eval().requires_grad_(False)


def _find_head(head: str) -> Path:
    if Path(head).is_file():
        return Path(head)
    parts = head.split("/")
    if len(parts) < 3 or Path(head).is_absolute():
        raise ConfigError(f"no aesthetic head {head!r}; allowed are a file or owner/repository/file on the hub")
    from huggingface_hub import hf_hub_download

    try:
        return Path(hf_hub_download("/".join(parts[:2]), "/".join(parts[2:])))
    except (OSError, ValueError) as error:  # no network, no such repository or file; a name that cannot be one
        raise ConfigError(f"no aesthetic head {head!r}: no such file, and the hub says: {error}") from error
