"""Text encoders that run once for each distinct text, whatever number of paused calls ask for it."""

from collections import OrderedDict
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakMethod

from .rows import fingerprint


@dataclass
class Remembered:
    """The results of a pipeline's `encode_prompt`, by the content of its arguments."""

    capacity: int
    # A weak method: within it, the text encoders are where they can run. Threads of paused calls hold this object, and
    # a strong one would hold its policy with them.
    on_device: "WeakMethod[Callable[[], AbstractContextManager[None]]]"
    _results: OrderedDict[Any, Any] = field(default_factory=OrderedDict)

    def install(self, pipeline: Any, scale: float | None) -> None:
        """Replaces the method of a pipeline's copy. `scale`: of guidance, which the method may read."""
        encode: Any = getattr(type(pipeline), "encode_prompt", None)
        if encode is None:
            return

        def encode_prompt(*args: Any, **kwargs: Any) -> Any:
            key = (scale, fingerprint(args), fingerprint(kwargs))
            if key not in self._results:
                on_device = self.on_device()
                assert on_device is not None, "the policy waits for this call"
                with on_device():
                    self._results[key] = encode(pipeline, *args, **kwargs)
                while len(self._results) > self.capacity:
                    self._results.popitem(last=False)
            self._results.move_to_end(key)
            return self._results[key]

        pipeline.__dict__["encode_prompt"] = encode_prompt
