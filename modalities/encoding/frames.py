"""The cache of decoded frames of clips."""

from dataclasses import dataclass, field

from mmrl.media.pictures import Clip
from mmrl.media.video import Frames, FrameSampling, ShuffledClip


@dataclass
class FrameCache:
    """A cache of decoded frames up to a number of bytes; the least recently used clips are dropped first.

    A clip in order and the same clip in disorder are decoded once.
    """

    sampling: FrameSampling
    capacity: int  # bytes of pixels
    num_decoded: int = field(default=0, init=False)
    _kept: dict[Clip, Frames] = field(default_factory=dict, init=False)  # oldest first

    def __call__(self, clip: Clip) -> Frames:
        """Returns the chosen frames of a clip. Raises ConfigError for a clip that cannot be read."""
        if isinstance(clip, ShuffledClip):
            return clip.shuffled(self(clip.clip))
        frames = self._kept.pop(clip, None)
        if frames is None:
            frames = clip.load(self.sampling)
            self.num_decoded += 1
        self._kept[clip] = frames
        while self._kept and self.num_bytes > self.capacity:
            del self._kept[next(iter(self._kept))]
        return frames

    @property
    def num_bytes(self) -> int:
        """Returns the bytes of all cached frames."""
        return sum(frames.pixels.nbytes for frames in self._kept.values())
