"""The fit of a sound to its prompt or to the pictures it comes with: the cosine of their ImageBind embeddings."""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, ClassVar, Literal, Self

import torch
from pydantic import Field
from torch import Tensor

from mmrl.core.checked import Checked
from mmrl.core.contracts import Granularity, License, Placement, RewardBatch

from ..base.frames import frames_of
from ..base.networks.checkpoints import check_suffix
from ..base.networks.clap import mono_at
from ..base.networks.clip import cosines
from ..base.networks.imagebind import RATE, TINY, ImageBind, Kind, load_imagebind, write_tiny_imagebind

Compare = Literal["sound_text", "sound_video", "image_text", "video_text"]
Medium = Literal["sound", "video", "image", "text"]
MEDIA: dict[Compare, tuple[Medium, Medium]] = {
    "sound_text": ("sound", "text"),
    "sound_video": ("sound", "video"),
    "image_text": ("image", "text"),
    "video_text": ("video", "text"),
}
NEEDS = {"sound": "audio", "video": "videos", "image": "images"}  # a text is the prompt's
KINDS: dict[Medium, Kind] = {"sound": "audio", "video": "vision", "image": "vision", "text": "text"}

NumHeads = Annotated[int, Field(ge=1)]


@dataclass
class Imagebind(Checked):
    """cos(left, right) in ImageBind's embedding space, of the two media that `compare` names.

    Girdhar et al. 2023, "ImageBind: One Embedding Space To Bind Them All", arXiv 2305.05665,
    github.com/facebookresearch/ImageBind. Sounds and texts were never seen together in training: both were learned
    beside pictures. The weights are dl.fbaipublicfiles.com/imagebind/imagebind_huge.pth, for research only.

    As in the published data.py: of a sound three clips of 2 seconds, evenly placed, as Kaldi's 128 log mel bins; of a
    video five clips of 2 seconds, the first and the last frame of each, three crops; of an image the shorter side
    resized (bicubic), the middle cut out; a text is the prompt, cut at 77 tokens of CLIP. An embedding is the mean over
    clips of embeddings of length 1. No published weights were at hand to compare scores with.

    Different: the channels of a sound are averaged, where the published code hears the left one; it is resampled by
    scipy's polyphase filter, theirs is torchaudio's; pictures are not rounded to 8 bits.
    """

    source: ClassVar[str] = "Girdhar et al. 2023 (ImageBind), arXiv 2305.05665, github.com/facebookresearch/ImageBind"
    range: ClassVar[tuple[float, float]] = (-1.0, 1.0)
    granularity: ClassVar[Granularity] = "sample"
    differentiable: ClassVar[bool] = False  # sounds are resampled in numpy
    needs: ClassVar[frozenset[str]] = frozenset({"audio", "model"})  # of the default media
    batch_size: ClassVar[int | None] = 8
    license: ClassVar[License] = License("CC-BY-NC-4.0", commercial=False)

    # the two media: the sound, the frames of the video, or the image; `text`: the prompt
    compare: Compare = "sound_text"
    checkpoint: str = "imagebind_huge.pth"  # file of the weights, see above, or owner/repository/file on the hub
    # attention heads for pictures, texts and sounds, which weights do not show; imagebind_huge's
    num_heads: tuple[NumHeads, NumHeads, NumHeads] = (16, 16, 12)
    video_fps: Annotated[float, Field(gt=0)] = 16.0  # frames a second of clips that do not say theirs; Wan's
    _network: ImageBind | None = field(default=None, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_suffix("checkpoint", self.checkpoint)
        media = {NEEDS[medium] for medium in MEDIA[self.compare] if medium != "text"}
        self.needs = frozenset(media | {"model"})  # type: ignore[misc]  # of this one

    def tiny(self, seed: int, folder: Path) -> Self:
        """Returns the same reward on a random network of small sizes with the published names, written to `folder`."""
        num_heads = TINY.vision.num_heads, TINY.text.num_heads, TINY.audio.num_heads
        return replace(self, checkpoint=str(write_tiny_imagebind(folder, seed)), num_heads=num_heads)

    def prepare(self, placement: Placement) -> None:
        """Loads what the two media need of the network; raises ConfigError where it is missing or does not fit."""
        kinds = {KINDS[medium] for medium in MEDIA[self.compare]}
        self._network = load_imagebind(self.checkpoint, self.num_heads, kinds, placement.device)

    @torch.no_grad()
    def score(self, batch: RewardBatch) -> Tensor:
        """Returns the scores [B] float32.

        Raises ValueError for sound without samples or of an unknown rate, and for NaN or infinity.
        """
        left, right = (self._embedded(medium, batch) for medium in MEDIA[self.compare])
        return cosines(left, right)

    def _embedded(self, medium: Medium, batch: RewardBatch) -> Tensor:
        """Returns the embeddings [B, D] of one of the media of a batch."""
        assert self._network is not None, "prepare comes before score"
        if medium == "text":
            return self._network.texts([prompt.text for prompt in batch.prompts])
        if medium == "sound":
            assert batch.outputs.audio is not None, "scoring checks needs"
            sounds = mono_at(batch.outputs.audio, batch.outputs.audio_rate, RATE)
            return self._network.sounds([torch.from_numpy(sound) for sound in sounds])
        if medium == "image":
            assert batch.outputs.images is not None, "scoring checks needs"
            return self._network.images(batch.outputs.images)
        frames = frames_of(batch, fewest=1).clamp(0, 1)
        return self._network.videos(frames, batch.outputs.fps or (self.video_fps,) * len(batch))
