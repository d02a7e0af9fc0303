"""The samples that a run saved: their pictures, videos and condition images."""

import math
from base64 import b64encode
from collections.abc import Mapping
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any, get_args

from PIL import Image

from mmrl.media.pictures import Role
from mmrl.reporting.record import read_bytes, read_object
from mmrl.system.errors import ConfigError

LARGEST = 512  # pixels of the longer side: twice what a page shows, enough for a sharp screen
LARGEST_ANSWERED = 768  # of a question's image: it is shown larger
MARK = "<image>"  # where an image stands in a prompt's text
PLACES = ("best", "worst", "widest")  # of a training group in its iteration
BROAD = 2.2  # widths of a height: a strip of frames, which cannot be seen in a narrow column
TINY = 128  # pixels: up to here every pixel is meant to be seen


@dataclass(frozen=True)
class SavedTurn:
    """One turn of an episode, as it was saved."""

    answer: str
    action: str  # in words
    reward: float | None
    screen: Path | None = None  # with the action on it


@dataclass(frozen=True)
class Sample:
    """One saved output: a picture, a video, a text, or a text and the picture of its question."""

    prompt: str
    seed: int
    file: Path | None  # the picture; of a video the strip of its frames
    text: str | None
    scores: Mapping[str, float | None]
    num_images: int = 0  # of the question; the picture is the first
    video: Path | None = None
    conditions: tuple[Path, ...] = ()  # the images that a picture or a video was made from
    roles: tuple[str, ...] = ()  # of these images, in order; (): the run does not say
    total: float | None = None  # of a training sample
    places: tuple[str, ...] = ()  # of a training sample's group: best, worst, widest
    turns: tuple[SavedTurn, ...] = ()  # of an episode
    outcome: str = ""  # of an episode
    recording: Path | None = None  # the video of an episode
    last_screen: Path | None = None  # of an episode

    @property
    def question(self) -> str:
        """Returns the prompt without the mark of a single image, which needs no mark beside the image."""
        is_single = self.num_images == 1 and self.prompt.count(MARK) == 1
        return self.prompt.replace(MARK, "").strip() if is_single else self.prompt

    def picture(self) -> Image.Image | None:
        """Returns the picture in RGB; None when the sample has none, or its file cannot be read any more."""
        return None if self.file is None else _opened(self.file)

    def condition_pictures(self) -> list[tuple[str, Image.Image]]:
        """Returns the condition images in RGB with their captions, without those that cannot be read any more."""
        named = [f"condition: {role.replace('_', ' ')}" for role in self.roles]
        captioned = zip(named or ["condition"] * len(self.conditions), self.conditions, strict=False)
        return [(caption, picture) for caption, file in captioned if (picture := _opened(file)) is not None]


@dataclass(frozen=True)
class Snapshot:
    """The samples of one iteration."""

    iteration: int
    samples: list[Sample]


@dataclass(frozen=True)
class Pairs:
    """The samples of the same prompts and seeds at the first and the last saved iteration."""

    before: int  # iteration
    after: int  # iteration
    pairs: list[tuple[Sample, Sample]]


def read_pairs(run: Path) -> Pairs | None:
    """Returns the pairs of `run`; None when fewer than two iterations saved samples, or they share no prompt and seed.

    Raises ConfigError when a samples.json is not what a run writes.
    """
    saved = saved_iterations(run)
    if len(saved) < 2:
        return None
    before, after = (read_snapshot(iteration, saved[iteration]) for iteration in (min(saved), max(saved)))
    later = {(sample.prompt, sample.seed): sample for sample in after.samples}
    pairs = [
        (sample, later[sample.prompt, sample.seed])
        for sample in before.samples
        if (sample.prompt, sample.seed) in later
    ]
    return Pairs(before.iteration, after.iteration, pairs) if pairs else None


def saved_iterations(run: Path, kind: str = "samples") -> dict[int, Path]:
    """Returns the files of samples by iteration, ascending; `kind`: `samples`, or `rollouts` of training."""
    saved = (path for path in run.glob(f"{kind}/*/samples.json") if path.parent.name.isdecimal())
    return dict(sorted((int(path.parent.name), path) for path in saved))


def read_snapshot(iteration: int, path: Path) -> Snapshot:
    """Returns the samples of a samples.json. Raises ConfigError where it is not what a run writes."""
    entries = read_object(path, read_bytes(path)).get("samples")
    if not isinstance(entries, list):
        raise ConfigError(f"{path} is damaged: it needs a list 'samples', got {type(entries).__name__}")
    return Snapshot(iteration, [_read_sample(path, entry) for entry in entries])


def data_uri(picture: Image.Image, largest: int = LARGEST) -> str:
    """Returns the picture as a data: URI, its longer side `largest` pixels at most.

    A tiny picture is exact (PNG), another is JPEG where that is smaller.
    """
    exact = _encoded(picture, "PNG") if max(picture.size) <= max(TINY, largest) else None
    if exact is not None and is_tiny(picture):
        return _uri("png", exact)
    fitted = picture.copy()
    fitted.thumbnail((largest, largest), Image.Resampling.LANCZOS)
    small = _encoded(fitted, "JPEG", quality=88)
    return _uri("jpeg", small) if exact is None or len(small) < len(exact) else _uri("png", exact)


def _opened(file: Path) -> Image.Image | None:
    try:
        with Image.open(file) as opened:
            return opened.convert("RGB")
    except OSError:
        return None


def _encoded(picture: Image.Image, kind: str, **settings: int) -> bytes:
    buffer = BytesIO()
    picture.save(buffer, kind, **settings)
    return buffer.getvalue()


def _uri(kind: str, content: bytes) -> str:
    return f"data:image/{kind};base64," + b64encode(content).decode()


def is_tiny(picture: Image.Image) -> bool:
    return max(picture.size) <= TINY


def look_of(size: tuple[int, int]) -> str:
    """Returns the attribute `class` of a picture: its pixels are meant to be seen, or it is as wide as a film strip."""
    names = (["crisp"] if max(size) <= TINY else []) + (["broad"] if size[0] > BROAD * size[1] else [])
    return f' class="{" ".join(names)}"' if names else ""


def _read_sample(path: Path, entry: Any) -> Sample:
    if (
        not isinstance(entry, dict)
        or not isinstance(entry.get("prompt"), str)
        or not isinstance(entry.get("seed"), int)
    ):
        raise ConfigError(f"{path}: a sample needs a text 'prompt' and a whole number 'seed', got {entry!r:.200}")
    file, text, scores = entry.get("file"), entry.get("text"), entry.get("scores") or {}
    num_images = entry.get("num_images")
    if not isinstance(scores, dict):
        raise ConfigError(f"{path}: 'scores' of a sample must be an object, got {scores!r:.200}")
    strip = entry.get("strip")
    for name in ("file", "strip", "recording", "last_screen"):
        _beside(path, entry, name)
    is_video = isinstance(file, str) and file.endswith(".mp4")
    picture = strip if is_video else file
    return Sample(
        prompt=entry["prompt"],
        seed=entry["seed"],
        file=None if picture is None else path.parent / picture,
        text=None if text is None else str(text),
        scores={str(name): _finite(value) for name, value in scores.items()},
        num_images=num_images if isinstance(num_images, int) else 0,
        video=path.parent / str(file) if is_video else None,
        conditions=_conditions(path, entry) if text is None else (),
        roles=_roles(path, entry),
        total=_finite(entry.get("total")),
        places=tuple(word for word in PLACES if word in (entry.get("places") or ())),
        turns=_turns(path, entry),
        outcome=str(entry.get("outcome") or ""),
        recording=_beside(path, entry, "recording"),
        last_screen=_beside(path, entry, "last_screen"),
    )


def _beside(path: Path, entry: Mapping[str, Any], name: str) -> Path | None:
    """Returns a file beside samples.json that an entry names; None where it names none."""
    value = entry.get(name)
    if value is None:
        return None
    if not isinstance(value, str) or Path(value).name != value:
        raise ConfigError(f"{path}: {name!r} must name a file beside samples.json, got {value!r:.200}")
    return path.parent / value


def _turns(path: Path, entry: Mapping[str, Any]) -> tuple[SavedTurn, ...]:
    """Returns the turns of an episode; none of another sample."""
    turns = entry.get("turns") or []
    if not isinstance(turns, list) or not all(isinstance(turn, dict) for turn in turns):
        raise ConfigError(f"{path}: 'turns' of a sample must be a list of objects, got {turns!r:.200}")
    return tuple(
        SavedTurn(
            answer=str(turn.get("answer") or ""),
            action=str(turn.get("action") or ""),
            reward=_finite(turn.get("reward")),
            screen=_beside(path, turn, "screen"),
        )
        for turn in turns
    )


def _conditions(path: Path, entry: Mapping[str, Any]) -> tuple[Path, ...]:
    """Returns the files of a sample's condition images, which lie in the folder of all samples."""
    names = entry.get("images") or []
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ConfigError(f"{path}: 'images' of a sample must be a list of files, got {names!r:.200}")
    folder = path.parent.parent.resolve()
    if outside := [name for name in names if not (path.parent / name).resolve().is_relative_to(folder)]:
        raise ConfigError(f"{path}: 'images' must name files of {folder.name!r}, got {outside[0]!r:.200}")
    return tuple(path.parent / name for name in names)


def roles_of(entry: Mapping[str, Any]) -> tuple[Role, ...]:
    """Returns the roles of the images of an entry of samples.json, one for each; () where it says none.

    Raises ValueError for a value that is no list, for another number of roles, and for unknown ones.
    """
    roles, count = entry.get("roles") or [], len(entry.get("images") or [])
    known = get_args(Role)
    if not isinstance(roles, list) or len(roles) not in (0, count) or not all(role in known for role in roles):
        raise ValueError(f"'roles' must be a list, one of {', '.join(known)} for each image, got {roles!r:.200}")
    return tuple(roles)


def _roles(path: Path, entry: Mapping[str, Any]) -> tuple[Role, ...]:
    try:
        return roles_of(entry)
    except ValueError as error:
        raise ConfigError(f"{path}: of a sample {error}") from error


def _finite(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None
