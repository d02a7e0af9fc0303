"""Curiosity: how far the next screen is from what a world model, fitted in the run, expected (ScreenExplorer)."""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, ClassVar, Literal, Self

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn.functional import normalize

from mmrl.core.checked import Checked
from mmrl.core.contracts import Action, Granularity, License, Placement, RewardBatch
from mmrl.core.declarations import RewardDeclaration
from mmrl.media.pictures import Picture, as_tensor

from ..base.fitted import FittedReward
from ..base.hashed_words import hashed_words
from ..base.networks.image_embedders import Embed, Encoder, load_embedder, write_tiny_embedder

LEVEL = 1 / 255  # of 8 bits
PLACES = 6  # numbers of an action beside its words: whether it has a point and an end, and both of them


@dataclass
class Curiosity(FittedReward, Checked):
    """1 - cos(predicted, actual) of the screen after a turn, in [0, 2].

    Niu et al. 2025, "ScreenExplorer", arXiv 2505.19095, its curiosity of what is seen: a world model predicts the
    embedding of the next screen from that of the screen before and the action, is fitted in the run, and where it is
    wrong there is something to learn. The world model is ours: a hidden layer that predicts the change of the
    embedding, from it and from the action's kind, words and place. Before it is ready (`warm_up`) it predicts that
    nothing changes: the score is then how far the screen changed, the paper's reward of an instantaneous change.

    Embeddings: DINO's, CLIP's, or `pixels`, the screen shrunk to `side` x `side` in grey, less its mean, which needs no
    model; all screens of one shade are alike. Where nothing is known of the screen before, nothing is expected: 1. A
    reward of its own makes agents that only explore: give it beside the task's. Raises ValueError for a turn in which
    the environment broke.
    """

    source: ClassVar[str] = "Niu et al. 2025 (ScreenExplorer), arXiv 2505.19095"
    range: ClassVar[tuple[float, float]] = (0.0, 2.0)
    granularity: ClassVar[Granularity] = "turn"
    differentiable: ClassVar[bool] = False
    needs: ClassVar[frozenset[str]] = frozenset({"screens", "actions", "model"})
    batch_size: ClassVar[int | None] = 64
    license: ClassVar[License] = License("Apache-2.0", commercial=True)  # DINOv2; CLIP has MIT
    declaration: ClassVar[RewardDeclaration] = RewardDeclaration(is_changing=True)

    encoder: Encoder | Literal["pixels"] = "dino"  # what embeds the screens
    model: str | None = None  # hub name or folder; null: facebook/dinov2-base or openai/clip-vit-large-patch14
    side: Annotated[int, Field(ge=2)] = 24  # of `pixels`
    words: Annotated[int, Field(ge=1)] = 64  # places of the hashed words of an action
    hidden: Annotated[int, Field(ge=1)] = 256  # width of the world model
    _embed: Embed | None = field(default=None, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.encoder == "pixels":
            if self.model is not None:
                raise ValueError(f"pixels are embedded without a model, got {self.model!r}")
            self.needs = type(self).needs - {"model"}  # type: ignore[misc]  # of this one, not of the class

    def tiny(self, seed: int, folder: Path) -> Self:
        """Returns the same reward on a random encoder of small sizes, written to `folder`."""
        if self.encoder == "pixels":
            return self.sooner()
        write_tiny_embedder(self.encoder, folder, seed)
        return replace(self.sooner(), model=str(folder))

    def prepare(self, placement: Placement) -> None:
        """Loads the encoder; raises ConfigError where it cannot be loaded."""
        if self.encoder == "pixels":
            self._embed = self._shrunk
        else:
            self._embed = load_embedder(self.encoder, self.model, placement.device)

    def score(self, batch: RewardBatch) -> Tensor:
        """Returns the scores [B] float32."""
        return self.score_with_examples(batch)[0]

    @torch.no_grad()
    def score_with_examples(self, batch: RewardBatch) -> tuple[Tensor, Tensor]:
        """Returns the scores [B], and the screen before, the action and the screen after of each turn."""
        outputs = batch.outputs
        assert outputs.screens is not None and outputs.actions is not None, "scoring checks needs"
        screens = [screen for screen in outputs.screens if screen is not None]
        if len(screens) < len(outputs.screens):
            raise ValueError("the environment broke in this turn")
        after = self._embedded(screens)
        before = torch.zeros_like(after)  # a turn whose prompt shows no screen expects nothing, and scores 1
        for row, prompt in enumerate(batch.prompts):
            if prompt.media:
                before[row] = self._embedded([prompt.media[0]])[0]  # the newest screen comes first
        sizes = [screen.size for screen in screens]
        actions = torch.stack([_places(one, size) for one, size in zip(outputs.actions, sizes, strict=True)])
        words = hashed_words([_words(action) for action in outputs.actions], self.words)
        examples = torch.cat([before, words, actions, after], 1)
        network = self.network_on(torch.device("cpu")) if self.is_ready else None
        return self._distances(network, examples), examples

    def _embedded(self, screens: list[Picture]) -> Tensor:
        """Returns the embeddings [n, D] of screens, each by itself since sizes may differ."""
        assert self._embed is not None, "prepare comes before score"
        return torch.cat([self._embed(as_tensor(screen.load())[None]).float().cpu() for screen in screens])

    def _shrunk(self, images: Tensor) -> Tensor:
        grey = nn.functional.adaptive_avg_pool2d(images.mean(1, keepdim=True), self.side).flatten(1)
        away = grey - grey.mean(1, keepdim=True)
        is_flat = away.abs().amax(1, keepdim=True) < LEVEL / 2  # what is left is rounding, and has no direction
        return normalize(torch.cat([torch.where(is_flat, 0.0, away), is_flat.float()], 1), dim=1)

    def make_network(self, width: int) -> nn.Module:
        """Makes the world model: from embedding and action to the change of the embedding."""
        size = self._size(width)
        return nn.Sequential(nn.Linear(width - size, self.hidden), nn.SiLU(), nn.Linear(self.hidden, size))

    def fit_loss(self, network: nn.Module, examples: Tensor) -> Tensor:
        """Returns the mean of 1 - cos(predicted, actual)."""
        return self._distances(network, examples).mean()

    def _size(self, width: int) -> int:
        return (width - self.words - PLACES) // 2

    def _distances(self, network: nn.Module | None, examples: Tensor) -> Tensor:
        """Returns 1 - cos(predicted, actual) [n]; without a network nothing changes."""
        size = self._size(examples.shape[1])
        given, after = examples[:, :-size], examples[:, -size:]
        predicted = given[:, :size] if network is None else given[:, :size] + network(given)
        return 1 - nn.functional.cosine_similarity(predicted, after, dim=1)


def _words(action: Action | None) -> str:
    """Returns what an action is in words: its kind, text, keys and direction."""
    if action is None:
        return "none"
    return " ".join(filter(None, (action.kind, action.text, *action.keys, action.direction)))


def _places(action: Action | None, size: tuple[int, int]) -> Tensor:
    """Returns whether an action has a point and an end, [2], and both in shares of the screen, [4]; 0 without."""
    numbers = []
    for place in (None, None) if action is None else (action.point, action.end):
        numbers += [0.0, 0.0, 0.0] if place is None else [1.0, place[0] / size[0], place[1] / size[1]]
    return torch.tensor(numbers)
