"""Video language models: a vision-language policy whose prompts hold clips beside images."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self

from pydantic import Field

from mmrl.core.contracts import ConfigError, Placement
from mmrl.core.data import Prompt
from mmrl.core.keys import GroupKey
from mmrl.media.frame_sizes import FrameSize
from mmrl.media.video import FrameSampling, ShuffledClip

from .encoding.families import is_tested
from .encoding.frames import FrameCache
from .language.probes import CLIPS
from .language.usage import Clips
from .vision_language import VisionLanguage

ONE_SIZE = ("internvl",)  # families that read each frame as an image, all of one size


@dataclass(kw_only=True)
class Video(VisionLanguage):
    """A vision-language model whose processor takes video (Qwen2-VL, Qwen2.5-VL, Qwen3-VL, InternVL).

    Frames are chosen and resized by the rules of qwen-vl-utils. The settings in pixels are for families with a pixel
    budget.
    """

    compared: ClassVar[tuple[Prompt, ...]] = CLIPS
    task: ClassVar[str] = "video-text-to-text"

    # Frames a second, rounded down to a multiple of 2; null: 2, unless `num_frames` is set.
    fps: Annotated[float, Field(gt=0)] | None = None
    # Instead of `fps`: so many frames of every clip, rounded to the nearest multiple of 2.
    num_frames: Annotated[int, Field(ge=2)] | None = None
    min_frames: Annotated[int, Field(ge=1)] = 4  # with `fps`: at least so many, or all that there are
    max_frames: Annotated[int, Field(ge=2)] = 768  # with `fps`: at most so many
    frame_min_pixels: Annotated[int, Field(ge=1)] | None = None  # of a frame after resizing; null: 128 tokens
    frame_max_pixels: Annotated[int, Field(ge=1)] | None = None  # the same; null: 768 tokens
    # For all pairs of frames of a clip together, so that frames of long clips are smaller; null: 0.9 x 128,000 tokens.
    total_pixels: Annotated[int, Field(ge=1)] | None = None
    frame_cache_bytes: Annotated[int, Field(ge=0)] = (
        2**30
    )  # decoded frames that are kept, the least recently used leave
    # How many prompts are kept with their frames resized: float32 patches, four times the size of the frames.
    prompt_cache: Annotated[int, Field(ge=1)] = 8

    def __post_init__(self) -> None:
        """Raises ValueError for settings out of range, and for bounds or ways of choosing frames that conflict."""
        super().__post_init__()
        if (self.frame_min_pixels or 0) > (self.frame_max_pixels or float("inf")):
            raise ValueError(
                f"frame_min_pixels must be at most frame_max_pixels ({self.frame_max_pixels}), "
                f"got {self.frame_min_pixels}"
            )
        self._sampling(None)

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
            videos.cap_pixels_per_frame = False  # it warns where it is not set; frames have their size by then

    def _probe(self) -> None:
        super()._probe()
        if self.encoder.resizes_clips:  # nothing shows that clips of other lengths can be joined
            self.use(replace(self.backbone, one_at_a_time=True))

    def tiny(self, seed: int, folder: Path) -> Self:
        """Returns the same settings on a random twin, with at most 8 frames of at most 56 x 56 pixels."""
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
        """Returns the prompt with the chosen frames of each clip in disorder; None without clips."""
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
        """Returns how frames are resized; None: by the model's own processor, to one size.

        Raises ConfigError for a family whose videos are not supported, and for bounds that it does not have.
        """
        bounds = self.frame_min_pixels, self.frame_max_pixels, self.total_pixels
        if hasattr(videos, "merge_size") and hasattr(videos, "patch_size"):
            return FrameSize(videos.patch_size * videos.merge_size, *bounds)
        kind = self._model.config.model_type
        if kind not in ONE_SIZE and is_tested(self._model.config):
            raise ConfigError(
                f"modality.model: videos of {kind} are not supported, as clips of different lengths do not fit into "
                f"one batch; those of families with grids of patches (Qwen) and of {', '.join(ONE_SIZE)} are"
            )
        if any(bound is not None for bound in bounds):
            raise ConfigError(
                f"modality.frame_min_pixels, frame_max_pixels, total_pixels: {type(videos).__name__} has no pixel "
                "budget; remove them"
            )
        return None

    def _sampling(self, size: FrameSize | None) -> FrameSampling:
        fps = 2.0 if self.fps is None and self.num_frames is None else self.fps
        return FrameSampling(fps, self.num_frames, self.min_frames, self.max_frames, size)
