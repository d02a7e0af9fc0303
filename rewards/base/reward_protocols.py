"""The protocols of reward servers that the reward `http` speaks: what is sent, and how the scores are read."""

import base64
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from typing import Any, Literal, Protocol

import torch
from PIL import Image
from torch import Tensor

from mmrl.core.contracts import RewardBatch
from mmrl.core.data import Prompt
from mmrl.core.reward_batches import IMAGE, select
from mmrl.core.wire import JSON, Score, WireError, read_response, target_message, write_request
from mmrl.core.wire_media import Pixels, picture_content, pixels_of

ProtocolName = Literal["mmrl", "flow_grpo", "flow_factory"]


class Unjudged(Exception):
    """Samples that the server could not judge, or a server that did not answer: the samples are masked and counted."""


@dataclass(frozen=True)
class Question:
    """One request: where it goes, its body, and which samples it asks about."""

    path: str
    content: bytes
    kind: str  # the media type of the body
    rows: list[int]  # of the batch


class ServerProtocol(Protocol):
    """What a kind of server is sent, and what it answers."""

    def questions(self, batch: RewardBatch) -> list[Question]:
        """Returns the requests for a batch. Raises ValueError for samples that the protocol has no words for."""
        ...

    def scores(self, reply: Any, count: int) -> list[Score]:
        """Returns the scores of the `count` samples of one request, in order. Raises WireError for another reply."""
        ...


@dataclass(frozen=True)
class MmrlProtocol:
    """The protocol of `mmrl serve` (docs/serving.md): scores are matched by id, and each may be missing by itself."""

    reward: str  # the name under which it is served
    needs: frozenset[str]
    pixels: Pixels
    timeout_seconds: float

    def questions(self, batch: RewardBatch) -> list[Question]:
        content, kind = write_request(batch, self.needs, pixels=self.pixels, timeout_seconds=self.timeout_seconds)
        return [Question(f"/v1/rewards/{self.reward}/scores", content, kind, list(range(len(batch))))]

    def scores(self, reply: Any, count: int) -> list[Score]:
        return read_response(reply, count)


@dataclass(frozen=True)
class FlowFactoryProtocol:
    """The protocol of Flow-Factory's reward server (github.com/X-GenGroup/Flow-Factory, reward_server/).

    `POST /compute` with the lists prompt, image, video and condition_images, pictures as PNG in base64, a video as the
    list of its frames; the answer is {"rewards": [...]}, in order. A reward of groups gets each group by itself.
    """

    needs: frozenset[str]
    granularity: str

    def questions(self, batch: RewardBatch) -> list[Question]:
        units = units_of_groups(self.granularity, batch)
        return [self._question(select(batch, rows), rows.tolist()) for rows in units]

    def _question(self, batch: RewardBatch, rows: list[int]) -> Question:
        images, videos = batch.outputs.images, batch.outputs.videos
        has_images, has_videos = "images" in self.needs, "videos" in self.needs
        body = {
            "prompt": [prompt.text for prompt in batch.prompts],
            "image": _files(images, "PNG") if has_images and images is not None else None,
            "video": [_files(one, "PNG") for one in videos] if has_videos and videos is not None else None,
            "condition_images": [_own_images(prompt) for prompt in batch.prompts] if IMAGE in self.needs else None,
            "condition_videos": None,
            "kwargs": None,
        }
        return Question("/compute", _json(body), JSON, rows)

    def scores(self, reply: Any, count: int) -> list[Score]:
        if isinstance(reply, dict) and reply.get("error"):
            raise WireError(f"the server says: {str(reply['error'])[:200]}")
        return _in_order(reply, "rewards", count)


@dataclass(frozen=True)
class FlowGrpoProtocol:
    """The fields of flow_grpo's reward servers (github.com/yifan123/reward-server) as JSON.

    As published these servers unpickle what they are sent, and mmrl pickles nothing: docs/serving.md has the file that
    stands beside such a server and answers JSON. `POST /` with images (JPEG in base64), prompts and meta_datas (each
    target with its prompt); the answer is {"outputs": [...]}, in order.
    """

    needs: frozenset[str]

    def questions(self, batch: RewardBatch) -> list[Question]:
        assert batch.outputs.images is not None, "scoring checks needs"
        body = {
            "images": _files(batch.outputs.images, "JPEG"),
            "prompts": [prompt.text for prompt in batch.prompts],
            "meta_datas": [{"prompt": one.text} | target_message(one, self.needs) for one in batch.prompts],
        }
        return [Question("/", _json(body), JSON, list(range(len(batch))))]

    def scores(self, reply: Any, count: int) -> list[Score]:
        return _in_order(reply, "outputs", count)


def units_of_groups(granularity: str, batch: RewardBatch) -> list[Tensor]:
    """Returns the rows of each request: those of a group where groups are judged, else all."""
    if granularity != "group":
        return [torch.arange(len(batch))]
    return [(batch.group == number).nonzero()[:, 0] for number in batch.group.unique()]


def _json(body: Mapping[str, Any]) -> bytes:
    return json.dumps(body).encode()


def _files(images: Tensor, kind: str) -> list[str]:
    """Returns images [N, 3, H, W] as files in base64."""
    files = []
    for pixels in pixels_of(images, "uint8"):
        file = BytesIO()
        Image.fromarray(pixels.permute(1, 2, 0).numpy()).save(file, format=kind)
        files.append(base64.b64encode(file.getvalue()).decode())
    return files


def _own_images(prompt: Prompt) -> list[str]:
    return [base64.b64encode(picture_content(picture)).decode() for picture in prompt.media]


def _in_order(reply: Any, name: str, count: int) -> list[Score]:
    """Returns the numbers of a list in a reply; None and NaN are samples that could not be judged."""
    values = reply.get(name) if isinstance(reply, dict) else None
    if not isinstance(values, list) or len(values) != count:
        got = f"{len(values)} numbers" if isinstance(values, list) else f"{str(reply)[:200]}"
        raise WireError(f"the response must have a list {name!r} of {count} numbers, got {got}")
    return [_score(row, value) for row, value in enumerate(values)]


def _score(row: int, value: Any) -> Score:
    if value is None:
        return Score(row, None, "the server gave no score")
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise WireError(f"a score is a number or null, got {value!r:.80}")
    return Score(row, float(value)) if math.isfinite(value) else Score(row, None, f"the server gave {value}")


def protocol_of(
    name: ProtocolName,
    *,
    reward: str,
    needs: frozenset[str],
    granularity: str,
    pixels: Pixels,
    timeout_seconds: float,
) -> ServerProtocol:
    """Returns the protocol of a name. Raises ValueError for needs or a granularity that it has no words for."""
    allowed: Sequence[str] = ("sample",) if name == "flow_grpo" else ("sample", "group")
    if name == "mmrl":
        return MmrlProtocol(reward, needs, pixels, timeout_seconds)
    if granularity not in allowed:
        raise ValueError(f"protocol {name} judges {' or '.join(allowed)}s, got granularity {granularity!r}")
    if name == "flow_grpo":
        if "images" not in needs:
            raise ValueError(f"protocol flow_grpo sends images: needs must hold images, got {sorted(needs)}")
        return FlowGrpoProtocol(needs)
    if not needs & {"images", "videos"}:
        raise ValueError(f"protocol flow_factory sends images or videos: needs must hold one, got {sorted(needs)}")
    return FlowFactoryProtocol(needs, granularity)
