"""Video language models: a vision-language policy whose prompts hold clips beside images."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Self

from mmrl.core.contracts import ConfigError, Placement
from mmrl.core.data import Prompt
from mmrl.core.keys import GroupKey
from mmrl.media.frame_sizes import FrameSize
from mmrl.media.readers import Reader, usable
from mmrl.media.video import FrameSampling, ShuffledClip

from .encoding.frames import FrameCache
from .language.own_forward import CLIPS
from .language.usage import Clips
from .vision_language import VisionLanguage

_ONE_SIZE = ("internvl",)  # families whose frames are as many images of one size


@dataclass(kw_only=True)
class Video(VisionLanguage):
    """A vision-language model whose processor takes video (Qwen2-VL, Qwen2.5-VL, Qwen3-VL, InternVL).

    Frames are chosen and resized by the rules of qwen-vl-utils: `fps` frames a second (2 by default), at least
    `min_frames`, at most `max_frames`; or `num_frames`. A frame has `frame_min_pixels` to `frame_max_pixels` after
    resizing (by default 128 to 768 tokens), a clip at most `total_pixels / 2` (0.9 x 128,000 tokens), for families with
    a pixel budget. `reader` decodes: `torchcodec`, `pyav`, `decord`, or the first of them that can be loaded. Decoded
    frames are kept up to `frame_cache_bytes`, encoded prompts up to `prompt_cache` of them.
    """

    compared: ClassVar[tuple[Prompt, ...]] = CLIPS
    task: ClassVar[str] = "video-text-to-text"

    fps: float | None = None
    num_frames: int | None = None
    min_frames: int = 4
    max_frames: int = 768
    frame_min_pixels: int | None = None
    frame_max_pixels: int | None = None
    total_pixels: int | None = None
    reader: Reader = "auto"
    frame_cache_bytes: int = 2**30
    prompt_cache: int = 8  # a prompt's patches are float32, four times its frames

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("frame_min_pixels", "frame_max_pixels", "total_pixels"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}")
        if (self.frame_min_pixels or 0) > (self.frame_max_pixels or float("inf")):
            raise ValueError(
                f"frame_min_pixels {self.frame_min_pixels} is above frame_max_pixels {self.frame_max_pixels}"
            )
        if self.frame_cache_bytes < 0:
            raise ValueError(f"frame_cache_bytes must be 0 or more, got {self.frame_cache_bytes}")
        self._sampling(None)

    def prepare(self, placement: Placement) -> None:
        """Loads model and processor. Raises ConfigError as for images, and for a model that takes no video."""
        if self.reader != "auto":
            usable(self.reader)
        super().prepare(placement)

    def _set_up(self, processor: Any, placement: Placement) -> None:
        super()._set_up(processor, placement)
        videos = getattr(self.encoder.processor, "video_processor", None)
        if videos is None:
            kind = type(self.encoder.processor).__name__
            raise ConfigError(f"modality.model: {self.model!r} takes no video: its {kind} has no processor of videos")
        size = self._frame_size(videos)
        self.encoder.resizes_clips = size is None
        self.encoder.read_clip = FrameCache(self._sampling(size), self.frame_cache_bytes)
        if hasattr(videos, "cap_pixels_per_frame"):
            videos.cap_pixels_per_frame = False  # it warns where nothing is said; frames have their size by then

    def tiny(self, seed: int, folder: Path) -> Self:
        """The same settings on a random twin; frames shrink to at most 56 x 56 pixels, and are 8 at most."""
        small = super().tiny(seed, folder)
        return replace(
            small,
            num_frames=None if self.num_frames is None else min(self.num_frames, 8),
            min_frames=min(self.min_frames, 8),
            max_frames=min(self.max_frames, 8),
            frame_min_pixels=28 * 28,
            frame_max_pixels=56 * 56,
            total_pixels=None,
        )

    def control(self, prompt: Prompt, key: GroupKey) -> Prompt | None:
        """The prompt with the chosen frames of each clip in disorder; None without clips."""
        if not prompt.clips:
            return None
        clips = (ShuffledClip(clip, key.seed_for("control", number)) for number, clip in enumerate(prompt.clips))
        return replace(prompt, clips=tuple(clips))

    def clips_usage(self) -> Clips:
        processor = self.encoder.processor
        return Clips(
            self._sampling(self._frame_size(processor.video_processor)),
            is_resized=self.encoder.resizes_clips,
            has_inner_marks=hasattr(processor, "vision_start_token"),
        )

    def _frame_size(self, videos: Any) -> FrameSize | None:
        """How frames are resized; None: by the model's own processor, to one size."""
        bounds = self.frame_min_pixels, self.frame_max_pixels, self.total_pixels
        if hasattr(videos, "merge_size") and hasattr(videos, "patch_size"):
            return FrameSize(videos.patch_size * videos.merge_size, *bounds)
        kind = self._model.config.model_type
        if kind not in _ONE_SIZE:
            raise ConfigError(
                f"modality.model: videos of {kind} are not supported, as clips of different lengths do not fit into "
                f"one batch; those of families with grids of patches (Qwen) and of {', '.join(_ONE_SIZE)} are"
            )
        if any(bound is not None for bound in bounds):
            raise ConfigError(
                f"modality.frame_min_pixels, frame_max_pixels, total_pixels: {type(videos).__name__} has no pixel "
                "budget; remove them"
            )
        return None

    def _sampling(self, size: FrameSize | None) -> FrameSampling:
        fps = 2.0 if self.fps is None and self.num_frames is None else self.fps
        return FrameSampling(fps, self.num_frames, self.min_frames, self.max_frames, size, self.reader)
