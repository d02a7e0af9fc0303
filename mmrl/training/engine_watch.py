"""A watch over the difference between an inference engine and the trainer: it says once that the engine is wrong."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass

log = logging.getLogger(__name__)
# Mean nats per token. A real vLLM (docs/real_vllm.md) stays below 0.004 where it has the weights, in float32 and in
# bfloat16, and is above 0.08 where all of them were moved and none was sent.
FAR = 0.05
# A bfloat16 server's difference doubled over 50 iterations of training, and one that kept an old head went from 7e-7 to
# 1.6e-3 with the first weights that it was sent.
RISE, LEAST = 4.0, 1e-3


@dataclass
class EngineWatch:
    """Watches `engine/difference` of a run whose answers are sampled by the present weights."""

    first: float | None = None  # of the first iteration that it saw
    has_warned: bool = False

    def see(self, metrics: Mapping[str, float]) -> None:
        """Warns once where the difference is far too large, or rose with the weights that were sent."""
        difference = metrics.get("engine/difference")
        if difference is None or self.has_warned:
            return
        self.first = difference if self.first is None else self.first
        if difference > FAR:
            what = (
                f"is {difference:.2g} nats, and engines of the same weights stay below {FAR}; look for another model, "
                "a quantised server, or other limits of pixels"
            )
        elif difference > max(LEAST, RISE * self.first):
            what = (
                f"rose from {self.first:.2g} to {difference:.2g} nats since the first iteration; the server does not "
                "take all of the weights that it is sent"
            )
        else:
            return
        self.has_warned = True
        log.warning("engine/difference, between the server's log-probs and the trainer's, %s", what)
