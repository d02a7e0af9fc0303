"""A small server in this process that speaks the protocols of reward servers, for dry runs of the reward `http`."""

import atexit
import json
import math
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import torch

from mmrl.core import plugins
from mmrl.core.contracts import ConfigError, Placement, Prepared, Reward, RewardBatch, Twinned
from mmrl.core.data import Outputs
from mmrl.core.keys import generator
from mmrl.core.wire import Limits, Sample, Score, WireError, read_request, write_response

_LIMITS = Limits(items=4096, item_bytes=2**30)


@dataclass(frozen=True)
class _Answer:
    """How the server makes scores."""

    name: str  # of the served reward; empty where the protocol has none
    reward: Reward | None  # None: numbers from the bytes of the samples
    low: float
    high: float

    def __call__(self, path: str, kind: str, content: bytes) -> bytes:
        """Returns the body of a response. Raises WireError for a request of no known protocol."""
        if path == f"/v1/rewards/{self.name}/scores":
            return self._of_mmrl(content, kind)
        body = json.loads(content)
        if path == "/compute":
            keys = ("image", "video", "prompt")
            return json.dumps({"rewards": self._of_lists([body[key] for key in keys if body.get(key)])}).encode()
        if path == "/":
            return json.dumps({"outputs": self._of_lists([body["images"], body["prompts"]])}).encode()
        raise WireError(f"nothing is served at {path}")

    def _of_mmrl(self, content: bytes, kind: str) -> bytes:
        read = read_request(content, kind, _LIMITS)
        samples = [sample for sample in read.samples if isinstance(sample, Sample)]
        if len(samples) < len(read.samples):
            raise WireError("an item cannot be read, and a dry run writes all of them rightly")
        if self.reward is None:
            values = [self._number(_bytes_of(sample)) for sample in samples]
        else:
            values = self.reward.score(_batch(samples, read.iteration)).tolist()
        pairs = zip(read.ids, values, strict=True)
        return write_response(self.name, [Score(name, value) for name, value in pairs])

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


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: "_Server"

    def do_GET(self) -> None:
        answer = self.server.answer
        reward = answer.reward
        card = {
            "name": answer.name,
            "granularity": self.server.granularity if reward is None else reward.granularity,
            "needs": [] if reward is None else sorted(reward.needs),
        }
        self._respond(200, json.dumps({"rewards": [card]}).encode())

    def do_POST(self) -> None:
        content = self.rfile.read(int(self.headers["Content-Length"]))
        try:
            with self.server.lock, torch.no_grad():
                self._respond(200, self.server.answer(self.path, self.headers["Content-Type"], content))
        except (WireError, KeyError, ValueError, TypeError) as error:
            self._respond(422, json.dumps({"detail": f"{type(error).__name__}: {error}"}).encode())

    def _respond(self, status: int, content: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:
        """Writes nothing to stderr."""


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def __init__(self, answer: _Answer, granularity: str) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.answer, self.granularity = answer, granularity
        self.lock = threading.Lock()


def serve_tiny(name: str, granularity: str, ends: tuple[float, float], seed: int, folder: Path) -> str:
    """Starts a server in a thread of this process, until it ends; returns its URL.

    It serves the twin of the shipped reward `name`, or else numbers from 0 to 1 (or between the finite `ends`).
    """
    low, high = ends if all(map(math.isfinite, ends)) else (0.0, 1.0)
    server = _Server(_Answer(name, _shipped(name, seed, folder), low, high), granularity)
    thread = threading.Thread(target=server.serve_forever, args=(0.1,), daemon=True)
    thread.start()

    def stop() -> None:
        server.shutdown()
        server.server_close()
        thread.join()

    atexit.register(stop)  # a thread that is still at work when Python ends is torn down in the middle of it
    return f"http://127.0.0.1:{server.server_port}"
