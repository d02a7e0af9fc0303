"""A small server in this process that speaks the protocols of reward servers, for dry runs of the reward `http`."""

import json
import math
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

import torch
from werkzeug import Request, Response

from mmrl.core import plugins
from mmrl.core.contracts import ConfigError, Placement, Prepared, Reward, RewardBatch, Twinned
from mmrl.core.data import Outputs
from mmrl.core.keys import generator
from mmrl.core.wire import Limits, Sample, Score, WireError, read_request, write_response
from mmrl.system.local_server import in_json, serve

_LIMITS = Limits(items=4096, item_bytes=2**30)


@dataclass(frozen=True)
class _Answer:
    """How the server makes scores."""

    name: str  # of the served reward; empty where the protocol has none
    reward: Reward | None  # None: numbers from the bytes of the samples
    low: float
    high: float

    def __call__(self, path: str, kind: str, content: bytes) -> Any:
        """Returns the JSON of a response. Raises WireError for a request of no known protocol."""
        if path == f"/v1/rewards/{self.name}/scores":
            return self._of_mmrl(content, kind)
        body = json.loads(content)
        if path == "/compute":
            keys = ("image", "video", "prompt")
            return {"rewards": self._of_lists([body[key] for key in keys if body.get(key)])}
        if path == "/":
            return {"outputs": self._of_lists([body["images"], body["prompts"]])}
        raise WireError(f"nothing is served at {path}")

    def _of_mmrl(self, content: bytes, kind: str) -> Any:
        read = read_request(content, kind, _LIMITS)
        samples = [sample for sample in read.samples if isinstance(sample, Sample)]
        if len(samples) < len(read.samples):
            raise WireError("an item cannot be read, and a dry run writes all of them rightly")
        if self.reward is None:
            values = [self._number(_bytes_of(sample)) for sample in samples]
        else:
            values = self.reward.score(_batch(samples, read.iteration)).tolist()
        pairs = zip(read.ids, values, strict=True)
        return json.loads(write_response(self.name, [Score(name, value) for name, value in pairs]))

    def _of_lists(self, lists: Sequence[Sequence[Any]]) -> list[float]:
        return [self._number(json.dumps(one).encode()) for one in zip(*lists, strict=True)]

    def _number(self, content: bytes) -> float:
        """Returns a number in the range, the same for the same bytes."""
        share = int.from_bytes(blake2b(content, digest_size=6).digest()) / 2**48
        return self.low + (self.high - self.low) * share


def _bytes_of(sample: Sample) -> bytes:
    outputs = sample.outputs
    media = [one for one in (outputs.images, outputs.videos, outputs.audio) if one is not None]
    texts = (sample.prompt.text, outputs.texts, outputs.actions, outputs.outcomes)
    return repr(texts).encode() + b"".join(one.numpy().tobytes() for one in media)


def _batch(samples: Sequence[Sample], iteration: int) -> RewardBatch:
    number = torch.arange(len(samples))

    def named(names: Sequence[int | None]) -> torch.Tensor:
        return number if None in names else torch.tensor(names)

    seeds = tuple(sample.seed for sample in samples)
    return RewardBatch(
        prompts=tuple(sample.prompt for sample in samples),
        outputs=Outputs.join([sample.outputs for sample in samples]),
        group=named([sample.group for sample in samples]),
        episode=named([sample.episode for sample in samples]),
        turn=torch.tensor([sample.turn for sample in samples]),
        seeds=seeds,
        iteration=iteration,
        generator=generator(*seeds),
        is_control=torch.tensor([sample.is_control for sample in samples]),
    )


def _shipped(name: str, seed: int, folder: Path) -> Reward | None:
    """Returns the twin of the shipped reward of a name; None where there is none, or it needs settings."""
    if name not in plugins.names("rewards"):
        return None
    try:
        reward: Reward = plugins.build("rewards", {"name": name})
    except ConfigError:
        return None
    if isinstance(reward, Twinned):
        reward = reward.tiny(seed, folder)
    if isinstance(reward, Prepared):
        reward.prepare(Placement(torch.device("cpu"), torch.float32))
    return reward


def serve_tiny(name: str, granularity: str, ends: tuple[float, float], seed: int, folder: Path) -> str:
    """Starts a server in a thread of this process, until it ends; returns its URL.

    It serves the twin of the shipped reward `name`, or else numbers from 0 to 1 (or between the finite `ends`).
    """
    low, high = ends if all(map(math.isfinite, ends)) else (0.0, 1.0)
    reward, lock = _shipped(name, seed, folder), threading.Lock()
    answer = _Answer(name, reward, low, high)
    needs = [] if reward is None else sorted(reward.needs)
    card = {"name": name, "granularity": granularity if reward is None else reward.granularity, "needs": needs}

    def respond(request: Request) -> Response:
        if request.method == "GET":
            return in_json({"rewards": [card]})
        try:
            with lock, torch.no_grad():
                return in_json(answer(request.path, request.mimetype, request.data))
        except (WireError, KeyError, ValueError, TypeError) as error:
            return in_json({"detail": f"{type(error).__name__}: {error}"}, 422)

    return serve(respond)
