"""The cache of decoded frames of clips."""

import threading
from dataclasses import dataclass, field

from mmrl.media.pictures import Clip
from mmrl.media.video import ChangedClip, Frames, FrameSampling


@dataclass
class FrameCache:
    """A cache of decoded frames up to a number of bytes; the least recently used clips are dropped first.

    A clip and the same clip in disorder or with noise are decoded once. Several threads may ask at once; where two ask
    for the same clip, both decode it.
    """

    sampling: FrameSampling
    capacity: int  # bytes of pixels
    num_decoded: int = field(default=0, init=False)
    _kept: dict[Clip, Frames] = field(default_factory=dict, init=False)  # oldest first
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False, repr=False, compare=False)

    def __call__(self, clip: Clip) -> Frames:
        """Returns the chosen frames of a clip. Raises ConfigError for a clip that cannot be read."""
        if isinstance(clip, ChangedClip):
            return clip.changed(self(clip.clip))
        with self._lock:
            kept = self._kept.pop(clip, None)
        frames = clip.load(self.sampling) if kept is None else kept
        with self._lock:
            self.num_decoded += kept is None
            self._kept[clip] = frames
            while self._kept and self.num_bytes > self.capacity:
                del self._kept[next(iter(self._kept))]
        return frames

    @property
    def num_bytes(self) -> int:
        """Returns the bytes of all cached frames."""
        return sum(frames.pixels.nbytes for frames in self._kept.values())
