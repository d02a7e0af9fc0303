"""Votes of people on outputs: the lines of their file, what they imply, and the digests by which outputs are known."""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from mmrl.media.pictures import Picture, Role, as_tensor
from mmrl.system.errors import ConfigError
from mmrl.system.files import parse_json, read_plain

Form = Literal["pairs", "grid"]
Kind = Literal["image", "video", "text"]
LONGEST = 86400.0  # seconds of an answer: a day
MOST_SHOWN = 9  # outputs of a grid: the digits of a keyboard


@dataclass(frozen=True)
class Shown:
    """An output as it was shown."""

    output: str  # the answer itself, or a file below the folder of the votes
    digest: str  # of its pixels or its text
    origin: str  # the folder that it comes from, which the voter does not see


@dataclass(frozen=True)
class Vote:
    """An answer of a person: of these outputs for one prompt, in the order from left to right, those are good.

    Raises ValueError for fields that do not fit each other.
    """

    task: str  # the same for the same outputs, whoever votes and in whatever order they stand
    form: Form
    kind: Kind
    prompt: str
    images: tuple[str, ...]  # files of the prompt's images
    roles: tuple[Role, ...]  # of these images; (): they have none
    question: str  # digest of the prompt and its images
    shown: tuple[Shown, ...]
    chosen: tuple[int, ...] | None  # places in `shown`, counted from 0; (): a tie, or none is good; None: skipped
    seconds: float  # from when it was shown to the answer
    voter: str
    time: str  # when it was answered, ISO 8601 in UTC
    criterion: str = ""  # by what outputs were compared, in words; "": by the page's own words

    def __post_init__(self) -> None:
        least, most = (2, 2) if self.form == "pairs" else (2, MOST_SHOWN)
        if not least <= len(self.shown) <= most:
            raise ValueError(f"{self.form} shows {least} to {most} outputs, got {len(self.shown)}")
        chosen = self.chosen or ()
        if len(set(chosen)) < len(chosen) or not all(0 <= place < len(self.shown) for place in chosen):
            raise ValueError(f"chosen must be different places from 0 to {len(self.shown) - 1}, got {list(chosen)}")
        if self.form == "pairs" and len(chosen) > 1:
            raise ValueError(f"one of a pair is chosen, or none in a tie, got {list(chosen)}")
        if not 0 <= self.seconds <= LONGEST:  # NaN is not
            raise ValueError(f"seconds must be from 0 to {LONGEST:g}, got {self.seconds}")
        if len(self.roles) not in (0, len(self.images)):
            raise ValueError(f"each of {len(self.images)} images has a role, or none has, got {len(self.roles)}")

    @property
    def is_tie(self) -> bool:
        """Whether it prefers no output: none is chosen, or all are."""
        return self.chosen is not None and len(self.chosen) in (0, len(self.shown))

    def pairs(self) -> list[tuple[int, int]]:
        """Returns the places of the winner and the loser of each pair that it implies; none for a tie.

        A chosen output beats each that is not chosen; among the chosen ones, and among the others, nothing is known.
        """
        chosen = self.chosen or ()
        others = [place for place in range(len(self.shown)) if place not in chosen]
        return [(winner, loser) for winner in chosen for loser in others]

    def labels(self) -> list[float]:
        """Returns 1 for each chosen output and 0 for each other one; [] where none is known.

        That is where it was skipped, and for a tie of a pair: both may be good, or both bad.
        """
        if self.chosen is None or (self.form == "pairs" and not self.chosen):
            return []
        return [float(place in self.chosen) for place in range(len(self.shown))]

    def line(self) -> bytes:
        """Returns it as a line of strict JSON."""
        return json.dumps(asdict(self), allow_nan=False).encode() + b"\n"


def vote_of(values: Any) -> Vote:
    """Returns the vote of a line's object. Raises ValueError, which says what is wrong, for any other value."""
    if not isinstance(values, Mapping):
        raise ValueError(f"a vote is an object of fields, got {values!r:.80}")
    shown = _need(values, "shown", list)
    if wrong := [one for one in shown if not isinstance(one, Mapping)]:
        raise ValueError(f"each of 'shown' must be an object, got {wrong[0]!r:.80}")
    chosen = values.get("chosen", ...)
    if chosen is not None and (not isinstance(chosen, list) or any(type(place) is not int for place in chosen)):
        raise ValueError(f"'chosen' must be a list of places, or null where it was skipped, got {chosen!r:.80}")
    seconds = values.get("seconds")
    if type(seconds) not in (int, float) or not math.isfinite(float(seconds)):  # type: ignore[arg-type]  # a number
        raise ValueError(f"'seconds' must be a number, got {seconds!r:.80}")
    return Vote(
        task=_need(values, "task", str),
        form=_choice(values, "form", get_args(Form)),
        kind=_choice(values, "kind", get_args(Kind)),
        prompt=_need(values, "prompt", str),
        images=_texts(values, "images"),
        roles=_texts(values, "roles", get_args(Role)),
        question=_need(values, "question", str),
        shown=tuple(Shown(*(_need(one, name, str) for name in ("output", "digest", "origin"))) for one in shown),
        chosen=None if chosen is None else tuple(chosen),
        seconds=float(seconds),  # type: ignore[arg-type]  # a number
        voter=_need(values, "voter", str),
        time=_need(values, "time", str),
        criterion=_need({"criterion": "", **values}, "criterion", str),
    )


def read_votes(path: Path) -> list[Vote]:
    """Returns the votes of a file, oldest first. A last line that a kill cut short is left out.

    Raises ConfigError, with the line's number, for any other damage, and where the file cannot be read.
    """
    try:
        content = read_plain(path)
    except OSError as error:
        raise ConfigError(f"cannot read the votes {path}: {error.strerror or error}") from error
    return list(_parsed(content[: whole_length(content)], path))


def whole_length(content: bytes) -> int:
    """Returns the number of bytes of the whole lines of a file of votes: all but a last line that was cut short."""
    last = content[content.rfind(b"\n") + 1 :]
    try:
        is_whole = isinstance(json.loads(last), dict)
    except (ValueError, RecursionError):
        is_whole = False
    return len(content) if is_whole else len(content) - len(last)


def _parsed(content: bytes, path: Path) -> Iterator[Vote]:
    for number, line in enumerate(content.split(b"\n"), 1):
        if line.strip():
            where = f"{path}, line {number}"
            try:
                yield vote_of(parse_json(line, where))
            except ValueError as error:
                if isinstance(error, ConfigError):
                    raise
                raise ConfigError(f"{where} is no vote: {error}") from error


def question_digest(text: str, media: Sequence[Picture]) -> str:
    """Returns the digest of a prompt: of its text and the pixels of its images, in order."""
    parts = [text_digest(text), *(pixel_digest(as_tensor(one.load())) for one in media)]
    return text_digest("\n".join(parts))


def text_digest(text: str) -> str:
    """Returns the digest of a text."""
    return blake2b(b"text" + text.encode("utf-8", "surrogatepass"), digest_size=12).hexdigest()


def pixel_digest(pixels: Tensor) -> str:
    """Returns the digest of a picture [3, H, W] or a video [F, 3, H, W], in 8 bits: in [0, 1], or already uint8."""
    if pixels.dtype != torch.uint8:
        pixels = (pixels.detach().float() * 255).round().clamp(0, 255).to(torch.uint8)
    content = pixels.cpu().contiguous().numpy().tobytes()
    return blake2b(repr(tuple(pixels.shape)).encode() + content, digest_size=12).hexdigest()


def _need(values: Mapping[str, Any], name: str, kind: type) -> Any:
    value = values.get(name)
    if not isinstance(value, kind):
        raise ValueError(f"{name!r} must be a {'text' if kind is str else 'list'}, got {value!r:.80}")
    return value


def _choice(values: Mapping[str, Any], name: str, known: Sequence[str]) -> Any:
    value = values.get(name)
    if value not in known:
        raise ValueError(f"{name!r} must be one of {', '.join(known)}, got {value!r:.80}")
    return value


def _texts(values: Mapping[str, Any], name: str, known: Sequence[str] = ()) -> Any:
    listed = _need(values, name, list)
    if wrong := [one for one in listed if not isinstance(one, str) or (known and one not in known)]:
        of = f", each one of {', '.join(known)}" if known else ""
        raise ValueError(f"{name!r} must be a list of texts{of}, got {wrong[0]!r:.80}")
    return tuple(listed)
