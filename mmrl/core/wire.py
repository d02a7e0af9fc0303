"""Samples as JSON: what a reward server is sent and what it answers, with media in base64 or in one safetensors file.

The schema stands in docs/serving.md. Nothing is unpickled, and one item that cannot be read spoils no other.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Annotated, Any

import safetensors.torch
import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from safetensors import SafetensorError
from torch import Tensor

from mmrl.core.data import Outcome, Outputs, Prompt
from mmrl.core.reward_batches import IMAGE
from mmrl.core.rewards import RewardBatch
from mmrl.core.wire_media import MediaReader, Pixels, Unreadable, file_medium, picture_content, pixels_of
from mmrl.media.pictures import Role
from mmrl.parsing.actions.action import Action
from mmrl.parsing.coordinates import Canvas
from mmrl.system.errors import shortened

JSON, SAFETENSORS = "application/json", "application/x-safetensors"  # kinds of a request's body
REQUEST = "request"  # the entry of a safetensors file's metadata that holds the JSON of the request
_HEADER = 8  # bytes of a safetensors file that say how long its header is
_MEDIA = {"images": "image", "videos": "video", "audio": "audio"}  # fields of `Outputs`, and what an item calls them
_VALUES = {
    "fps": "fps",
    "audio_rate": "audio_rate",
    "texts": "text",
    "is_finished": "is_finished",
    "num_tokens": "num_tokens",
    "pieces": "pieces",
    "canvases": "canvas",
    "actions": "action",
    "step_rewards": "step_reward",
    "outcomes": "outcome",
    "given": "given",
}
SENT = frozenset({*_MEDIA, *_VALUES, "screens"})  # the fields of `Outputs` that requests may hold
_BESIDE = {"fps": "videos", "audio_rate": "audio"}  # goes where the medium goes
_TENSORS = {
    "is_finished": torch.bool,
    "num_tokens": torch.int64,
    "step_rewards": torch.float32,
    "given": torch.int64,
}
_OPTIONAL = ("canvases", "actions", "outcomes")  # null is a value: no image, not understood, not ended


class WireError(ValueError):
    """A request or a response that cannot be read as a whole; the message says what is wrong."""


class _Message(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class WirePrompt(_Message):
    """A prompt: its text, its images, and the target that rewards judge its samples by."""

    text: str
    system: str | None = None
    target: dict[str, Any] = {}
    images: list[Any] = []  # media, in order
    roles: list[Role] = []  # of the images; empty: not said


class Item(_Message):
    """One sample. What is left out, the policy did not make."""

    id: str | int
    prompt: int | WirePrompt  # or its place in the request's list of prompts
    group: int | None = None  # samples of one number are compared with each other; of this request only
    episode: int | None = None  # turns of one number belong to one episode; of this request only
    turn: Annotated[int, Field(ge=0)] = 0
    seed: Annotated[int, Field(ge=0, lt=2**64)] = 0
    is_control: bool = False
    image: Any = None  # a medium
    video: Any = None  # a medium
    fps: Annotated[float, Field(gt=0)] | None = None
    audio: Any = None  # a medium
    audio_rate: Annotated[int, Field(gt=0)] | None = None
    screen: Any = None  # a file; null: the environment broke
    text: str | None = None
    is_finished: bool | None = None
    num_tokens: Annotated[int, Field(ge=0, lt=2**63)] | None = None
    pieces: tuple[str, ...] | None = None
    canvas: Canvas | None = None
    action: Action | None = None
    step_reward: float | None = None
    outcome: Outcome | None = None
    given: Annotated[int, Field(ge=-1, lt=2**63)] | None = None


class Request(_Message):
    """The samples of one request, still unread."""

    items: list[Any]
    prompts: list[Any] = []
    iteration: Annotated[int, Field(ge=0, lt=2**63)] = 0
    timeout_seconds: Annotated[float, Field(gt=0)] | None = None  # None: that of the server


@dataclass(frozen=True)
class Limits:
    """What a request may hold."""

    items: int  # of one request
    item_bytes: int  # media of one item, as they were sent and as rewards see them, in float32


@dataclass(frozen=True)
class Sample:
    """One sample as it was read."""

    prompt: Prompt
    outputs: Outputs  # of this sample alone
    group: int | None
    episode: int | None
    turn: int
    seed: int
    is_control: bool


@dataclass(frozen=True)
class UnreadItem:
    """An item that cannot be read, and what is known of it nevertheless."""

    reason: str
    group: int | None
    episode: int | None


@dataclass(frozen=True)
class ReadRequest:
    """A request of n items as it was read."""

    ids: tuple[str | int | None, ...]  # n; None: none that can be read
    samples: tuple[Sample | UnreadItem, ...]  # n
    iteration: int
    timeout_seconds: float | None


@dataclass(frozen=True)
class Score:
    """One number of a response."""

    id: str | int | None
    score: float | None  # None: the sample could not be judged
    reason: str | None = None  # why


# ---- what a client writes


def write_request(
    batch: RewardBatch, needs: frozenset[str], *, pixels: Pixels = "float32", timeout_seconds: float | None = None
) -> tuple[bytes, str]:
    """Returns the body of a request for all samples of a batch, and its kind; the id of a sample is its row.

    The body is JSON, or a safetensors file where there are media. It holds what `needs` names, the texts of the
    prompts, and what of their targets JSON has words for.

    Raises ValueError for a field of a target that is needed and is no JSON, ConfigError for an unreadable picture.
    """
    known = {id(prompt): prompt for prompt in batch.prompts}
    place = {key: number for number, key in enumerate(known)}
    tensors: dict[str, Tensor] = {}
    for name, item_name in _MEDIA.items():
        media = getattr(batch.outputs, name) if name in needs else None
        if media is not None:
            sent = media.detach().float().cpu() if name == "audio" else pixels_of(media, pixels)
            tensors |= {f"{item_name}.{row}": sent[row].contiguous() for row in range(len(batch))}
    request = {
        "prompts": [_prompt_message(prompt, needs) for prompt in known.values()],
        "items": [
            {"id": row, "prompt": place[id(prompt)], **_item_message(batch, row, needs)}
            for row, prompt in enumerate(batch.prompts)
        ],
        "iteration": batch.iteration,
        "timeout_seconds": timeout_seconds,
    }
    text = json.dumps(request)
    return (safetensors.torch.save(tensors, {REQUEST: text}), SAFETENSORS) if tensors else (text.encode(), JSON)


def _prompt_message(prompt: Prompt, needs: frozenset[str]) -> dict[str, Any]:
    has_images = IMAGE in needs
    return {
        "text": prompt.text,
        "system": prompt.system,
        "target": target_message(prompt, needs),
        "images": [file_medium(picture_content(picture)) for picture in prompt.media] if has_images else [],
        "roles": list(prompt.roles) if has_images else [],
    }


def target_message(prompt: Prompt, needs: frozenset[str]) -> dict[str, Any]:
    """Returns the fields of a target that JSON has words for.

    Raises ValueError for a field that is needed and for which it has none.
    """
    message = {}
    for key, value in prompt.target.items():
        try:
            message[key] = json.loads(json.dumps(value, default=_plain))
        except (TypeError, ValueError, RecursionError) as error:
            if f"target.{key}" in needs:
                raise ValueError(f"target.{key} of {prompt.text!r} cannot be sent as JSON: {error}") from error
    return message


def _plain(value: Any) -> Any:
    """Returns arrays and numbers of numpy, torch and Arrow as lists and numbers. Raises TypeError for other values."""
    name = next((name for name in ("tolist", "as_py") if hasattr(value, name)), None)
    if name is None:
        raise TypeError(f"{type(value).__name__} is no JSON")
    return getattr(value, name)()


def _item_message(batch: RewardBatch, row: int, needs: frozenset[str]) -> dict[str, Any]:
    """Returns what an item says beside its id and prompt."""
    message: dict[str, Any] = {
        "group": int(batch.group[row]),
        "episode": int(batch.episode[row]),
        "turn": int(batch.turn[row]),
        "seed": batch.seeds[row],
    }
    if batch.is_control is not None and bool(batch.is_control[row]):
        message["is_control"] = True
    for name, item_name in _MEDIA.items():
        if name in needs and getattr(batch.outputs, name) is not None:
            message[item_name] = {"tensor": f"{item_name}.{row}"}
    if "screens" in needs and batch.outputs.screens is not None:
        screen = batch.outputs.screens[row]
        message["screen"] = None if screen is None else file_medium(picture_content(screen))
    for name, item_name in _VALUES.items():
        values = getattr(batch.outputs, name) if _BESIDE.get(name, name) in needs else None
        if values is not None:
            message[item_name] = _value_message(values[row])
    return message


def _value_message(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.item()
    if isinstance(value, Action):
        return {key: part for key, part in asdict(value).items() if part is not None and part != ()}
    return asdict(value) if isinstance(value, Canvas) else value


# ---- what a server reads


def read_request(content: bytes, kind: str, limits: Limits) -> ReadRequest:
    """Returns the items of a body of this kind (its media type).

    Raises WireError for a body that is no such request, has too many items, or two items of one id.
    """
    text, tensors = (content, {}) if kind == JSON else _opened(content)
    try:
        request = Request.model_validate(json.loads(text))
    except (ValueError, RecursionError) as error:  # ValidationError and wrong UTF-8 are ValueErrors
        raise WireError(f"the body is no request: {_in_words(error)}") from error
    if len(request.items) > limits.items:
        raise WireError(f"a request may have {limits.items:,} items, got {len(request.items):,}")
    prompts = [_read_prompt(one, limits) for one in request.prompts]
    ids = tuple(map(_id_of, request.items))
    known = [one for one in ids if one is not None]
    if len(set(known)) < len(known):
        twice = next(one for one in known if known.count(one) > 1)
        raise WireError(f"each item needs an id of its own, got {twice!r} twice")
    samples = tuple(_read_item(one, prompts, tensors, limits) for one in request.items)
    return ReadRequest(ids, samples, request.iteration, request.timeout_seconds)


def _id_of(message: Any) -> str | int | None:
    """Returns the id of an item, also of one that cannot be read otherwise; None where it has none."""
    name = message.get("id") if isinstance(message, dict) else None
    return name if isinstance(name, str | int) and not isinstance(name, bool) else None


def _number_of(message: Any, key: str) -> int | None:
    """Returns the group or episode of an item that cannot be read otherwise."""
    number = message.get(key) if isinstance(message, dict) else None
    return number if isinstance(number, int) and not isinstance(number, bool) else None


def _opened(content: bytes) -> tuple[bytes, Mapping[str, Tensor]]:
    """Returns the JSON of a request in a safetensors file, and the file's tensors."""
    try:
        tensors = safetensors.torch.load(content)
        length = int.from_bytes(content[:_HEADER], "little")
        request = json.loads(content[_HEADER : _HEADER + length])["__metadata__"][REQUEST]
    except (SafetensorError, KeyError, TypeError, ValueError, RecursionError) as error:
        raise WireError(
            f"the body must be a safetensors file with the request in its metadata, under {REQUEST!r}: "
            f"{_in_words(error)}"
        ) from error
    return str(request).encode(), tensors


def _read_prompt(message: Any, limits: Limits) -> Prompt | str:
    """Returns a prompt, or why it cannot be read."""
    try:
        prompt = message if isinstance(message, WirePrompt) else WirePrompt.model_validate(message)
        reader = MediaReader({}, limits.item_bytes)
        media = tuple(reader.picture(one, f"image {number}") for number, one in enumerate(prompt.images))
    except (ValidationError, Unreadable) as error:
        return f"the prompt cannot be read: {_in_words(error)}"
    return Prompt(prompt.text, media, prompt.target, prompt.system, roles=tuple(prompt.roles))


def _read_item(
    message: Any, prompts: Sequence[Prompt | str], tensors: Mapping[str, Tensor], limits: Limits
) -> Sample | UnreadItem:
    """Returns the sample of an item, or why it cannot be read."""
    try:
        item = Item.model_validate(message)
        if isinstance(item.prompt, int) and not 0 <= item.prompt < len(prompts):
            raise Unreadable(f"prompt {item.prompt} is not among the {len(prompts)} prompts of the request")
        prompt = prompts[item.prompt] if isinstance(item.prompt, int) else _read_prompt(item.prompt, limits)
        if isinstance(prompt, str):
            raise Unreadable(prompt)
        outputs = _read_outputs(item, prompt, MediaReader(tensors, limits.item_bytes))
    except (ValidationError, Unreadable) as error:
        reason = f"the item cannot be read: {_in_words(error)}"
        return UnreadItem(reason, _number_of(message, "group"), _number_of(message, "episode"))
    return Sample(prompt, outputs, item.group, item.episode, item.turn, item.seed, item.is_control)


def _read_outputs(item: Item, prompt: Prompt, reader: MediaReader) -> Outputs:
    """Returns the outputs of one sample. Raises Unreadable."""
    values: dict[str, Any] = {}
    if item.image is not None:
        values["images"] = reader.image(item.image)[None]
    if item.video is not None:
        video, fps = reader.video(item.video)
        fps = item.fps or fps
        if fps is None:
            raise Unreadable("a video needs its fps, frames per second")
        values |= {"videos": video[None], "fps": (fps,)}
    if item.audio is not None:
        if item.audio_rate is None:
            raise Unreadable("audio needs its audio_rate, samples per second")
        values |= {"audio": reader.sound(item.audio)[None], "audio_rate": (item.audio_rate,)}
    if "screen" in item.model_fields_set:
        values["screens"] = (None if item.screen is None else reader.picture(item.screen, "the screen"),)
    for name, item_name in _VALUES.items():
        value = getattr(item, item_name)
        if name in _BESIDE or item_name not in item.model_fields_set or (value is None and name not in _OPTIONAL):
            continue
        values[name] = torch.tensor([value], dtype=_TENSORS[name]) if name in _TENSORS else (value,)
    if "texts" in values and "canvases" not in values:  # as where files are scored
        size = prompt.media[0].size if prompt.media else None
        values["canvases"] = (None if size is None else Canvas(size, size, "original"),)
    return Outputs(**values)


def _in_words(error: BaseException) -> str:
    """Returns an error of reading in one line."""
    if isinstance(error, ValidationError):
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(map(str, first["loc"]))
        return shortened(f"{place}: {first['msg']}" if place else first["msg"])
    return shortened(f"{error}" if str(error) else type(error).__name__)


# ---- what a server answers, and a client reads


def write_response(reward: str, scores: Sequence[Score]) -> bytes:
    """Returns the body of a response; scores are finite numbers or None."""
    return json.dumps({"reward": reward, "scores": [asdict(one) for one in scores]}, allow_nan=False).encode()


def read_response(reply: Any, count: int) -> list[Score]:
    """Returns the scores of `count` samples, whose ids are their rows, in the order of the rows.

    Raises WireError where it is another thing, or the ids are not these: a score is lost, or for another sample.
    """
    scores = reply.get("scores") if isinstance(reply, dict) else None
    names = [item.name for item in fields(Score)]
    if not isinstance(scores, list) or not all(isinstance(one, dict) and set(one) == set(names) for one in scores):
        raise WireError(f"a response has a list of scores with {', '.join(names)} each, got {str(reply)[:200]}")
    by_id = {one["id"]: Score(**one) for one in scores if isinstance(one["id"], int)}
    if len(scores) != count or set(by_id) != set(range(count)):
        raise WireError(f"the response has scores of other samples than the {count} of the request")
    for one in by_id.values():
        is_number = isinstance(one.score, int | float) and not isinstance(one.score, bool)
        if one.score is not None and not is_number:
            raise WireError(f"a score is a number or null, got {one.score!r:.80}")
    return [by_id[row] for row in range(count)]
