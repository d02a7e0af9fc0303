"""The outputs in a folder or a file, with the prompts that they answer."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from mmrl.core.config import DatasetSettings
from mmrl.core.data import Prompt
from mmrl.core.reward_batches import Demands
from mmrl.media.pictures import Role, StoredPicture
from mmrl.parsing.actions.action import Action
from mmrl.parsing.coordinates import Canvas
from mmrl.prompts.datasets import load_dataset_prompts
from mmrl.prompts.row_files import FILES, METADATA, Source
from mmrl.reporting.samples import roles_of
from mmrl.system.errors import ConfigError
from mmrl.system.files import read_json

IMAGES = (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".avif")
VIDEOS = (".mp4", ".webm", ".mov", ".mkv", ".avi")
QUESTIONS = "questions"  # the folder of the images that a run's samples are about
RESPONSES = ("response", "completion", "output", "prediction")  # what a file of answers may call them
ABOUT = ("prompt", "text", "caption")  # what the metadata of an image folder may call the prompt


@dataclass(frozen=True)
class Item:
    """One output: a picture, a video, or a text."""

    name: str  # the file, or the line
    prompt: Prompt
    file: Path | None = None  # the picture or video
    text: str | None = None
    canvas: Canvas | None = None  # what coordinates in a run's answer are counted in
    actions: tuple[Action | None] | None = None  # the one a run read in its answer; None: answers are no actions
    question: int | None = None  # the number of the prompt in its run; other prompts may have the same words

    @property
    def is_video(self) -> bool:
        return self.file is not None and self.file.suffix.lower() in VIDEOS


@dataclass(frozen=True)
class InputSettings:
    """The settings of how outputs are read."""

    prompt: str | None = None  # of all outputs that have none of their own
    response: str | None = None  # the field of an answer; None: the first of RESPONSES
    demands: Demands = field(default_factory=Demands)  # what rewards need of targets


def read_items(path: Path, reading: InputSettings) -> list[Item]:
    """Returns the outputs of a folder (pictures or videos) or of a file (answers).

    A folder's prompts are those of its `samples.json` (as `mmrl sample` and runs write it), of its `metadata.jsonl`
    (`file_name` and `prompt`; `images` and `roles` say what the picture was made from; other fields are the target), or
    of a text file beside each picture (`cat.png`, `cat.txt`). A file's rows are prompts in the layout `columns`, each
    with an answer or a list of answers.

    Raises ConfigError where there is nothing to read, or a row cannot be read.
    """
    if path.is_dir():
        if (path / "samples.json").is_file():
            items = list(_of_run(path, reading))
        elif any((path / name).is_file() for name in METADATA):
            items = list(_of_metadata(path, reading))
        else:
            items = list(_of_folder(path, reading))
    elif path.suffix.lower() in FILES and path.suffix.lower() != ".txt":
        items = list(_of_file(path, reading))
    else:
        problem = "there is no such file or folder" if not path.exists() else "it is neither"
        raise ConfigError(
            f"score needs a folder of pictures or videos, or a file of answers (.jsonl, .json, .csv, .parquet), "
            f"got {str(path)!r}: {problem}"
        )
    if not items:
        raise ConfigError(f"there is nothing to score in {path}")
    kinds = {item.is_video: item.name for item in items if item.file is not None}
    if len(kinds) > 1:
        raise ConfigError(
            f"{path} holds pictures and videos, such as {kinds[False]!r} and {kinds[True]!r}; "
            "they are scored apart, each in a folder of their own"
        )
    return items


def is_input(path: Path, file: Path) -> bool:
    """Returns whether the existing `file` is one of those that `read_items` reads in the folder `path`."""
    is_of_kind = file.name in ("samples.json", *METADATA) or file.suffix.lower() in (*IMAGES, *VIDEOS, ".txt")
    return is_of_kind and file.resolve().parent == path.resolve()


def _of_folder(path: Path, reading: InputSettings) -> Iterator[Item]:
    files = sorted(file for file in path.iterdir() if file.suffix.lower() in (*IMAGES, *VIDEOS))
    for file in files:
        beside = file.with_suffix(".txt")
        text = _text_of(beside) if beside.is_file() else reading.prompt
        yield Item(file.name, Prompt(text or "", source=str(file)), file)


def _of_metadata(path: Path, reading: InputSettings) -> Iterator[Item]:
    for row in Source(str(path)).rows():
        if row.fault is not None:
            raise ConfigError(f"{row.place}: {row.fault}")
        values = {key: value for key, value in row.values.items() if value is not None}
        name = values.pop("image", None)
        if not isinstance(name, str) or not _is_inside(path / name, path):
            raise ConfigError(f"{row.place}: file_name must be a file of the folder, got {name!r}")
        key = next((key for key in ABOUT if isinstance(values.get(key), str)), None)
        if key is None and "prompt" in values:
            raise ConfigError(f"{row.place}: the field 'prompt' must be a text, got {values['prompt']!r:.80}")
        text = values.pop(key) if key is not None else reading.prompt
        try:
            images, roles = _metadata_images(path, values)
        except ValueError as error:
            raise ConfigError(f"{row.place}: {error}") from error
        prompt = Prompt(text or "", images, values, source=row.place, roles=roles)
        yield Item(name, prompt, path / name)


def _metadata_images(path: Path, values: dict[str, Any]) -> tuple[tuple[StoredPicture, ...], tuple[Role, ...]]:
    """Takes the fields `images` and `roles` out of a row: the pictures that an output was made from.

    Raises ValueError for names that are no files of the folder, and for unknown roles.
    """
    if isinstance(values.get("images"), str):  # one picture, also in a table
        values["images"] = [values["images"]]
    names = values.get("images") or []
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ValueError(f"images must be a file or a list of files, got {names!r:.80}")
    if wrong := [name for name in names if not _is_inside(path / name, path)]:
        raise ValueError(f"images must be files of the folder, got {wrong[0]!r:.80}")
    roles = roles_of(values)
    for name in ("images", "roles"):
        values.pop(name, None)
    return tuple(StoredPicture(name, path=path / name) for name in names), roles


def _of_run(path: Path, reading: InputSettings) -> Iterator[Item]:
    content = read_json(path / "samples.json")
    try:
        for number, sample in enumerate(content["samples"]):
            yield _sample(path, number, sample, is_text=content["kind"] == "text")
    except KeyError as error:
        raise ConfigError(f"{path / 'samples.json'} is not what mmrl writes: it lacks {error}") from error
    except (ValueError, TypeError, AttributeError) as error:
        raise ConfigError(f"{path / 'samples.json'} is not what mmrl writes: {error}") from error


def _sample(path: Path, number: int, sample: Any, *, is_text: bool) -> Item:
    """Returns an entry of samples.json as an output. Raises KeyError or ValueError for missing and wrong fields."""
    if not isinstance(sample, dict):
        raise ValueError(f"sample {number} must be an object, got {sample!r:.80}")
    for name in ("prompt", "text" if is_text else "file"):
        if not isinstance(sample[name], str):
            raise ValueError(f"the {name} of sample {number} must be a text, got {sample[name]!r:.80}")
    target = sample.get("target") or {}
    if not isinstance(target, dict):
        raise ValueError(f"the target of sample {number} must be an object, got {target!r:.80}")
    images, source = _questions(path, sample, number), f"samples.json, {number}"
    prompt = Prompt(sample["prompt"], images, target, source=source, roles=_roles(sample, number))
    if is_text:
        return Item(
            f"sample {number}",
            prompt,
            text=sample["text"],
            canvas=_canvas(sample.get("canvas")),
            actions=(_action(sample["action"]),) if "action" in sample else None,
            question=sample["seed"] if isinstance(sample.get("seed"), int) else None,
        )
    file = path / sample["file"]
    if not _is_inside(file, path):
        raise ValueError(f"{sample['file']!r} is no file of the folder")
    return Item(file.name, prompt, file)


def _questions(path: Path, sample: dict[str, Any], number: int) -> tuple[StoredPicture, ...]:
    """Returns the images of the question of a run's sample, which lie in the folder or beside it."""
    names = sample.get("images") or []
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ValueError(f"the images of sample {number} must be a list of files, got {names!r:.80}")
    for name in names:
        if not any(_is_inside(path / name, folder) for folder in (path, path.resolve().parent / QUESTIONS)):
            raise ValueError(
                f"{name!r}, an image of sample {number}, is no file of the folder or of {QUESTIONS!r} beside it"
            )
    return tuple(StoredPicture(name, path=path / name) for name in names)


def _roles(sample: dict[str, Any], number: int) -> tuple[Role, ...]:
    try:
        return roles_of(sample)
    except ValueError as error:
        raise ValueError(f"of sample {number} {error}") from error


def _canvas(entry: Any) -> Canvas | None:
    if entry is None:
        return None
    (width, height), (own_width, own_height) = entry["original"], entry["resized"]
    return Canvas((width, height), (own_width, own_height), entry["convention"])


def _action(entry: Any) -> Action | None:
    """Returns an action of JSON, its lists as tuples."""
    if entry is None:
        return None
    parts: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in entry.items()}
    return Action(**parts)


def _of_file(path: Path, reading: InputSettings) -> Iterator[Item]:
    rows = load_dataset_prompts(DatasetSettings(path=str(path)), reading.demands)
    for prompt in rows:
        key, answers = _response(prompt.target, reading.response, prompt.source)
        target = {name: value for name, value in prompt.target.items() if name != key}
        plain = replace(prompt, target=target)
        for number, text in enumerate(answers, 1):
            yield Item(prompt.source if len(answers) == 1 else f"{prompt.source}, answer {number}", plain, text=text)


def _response(target: Mapping[str, Any], wanted: str | None, place: str) -> tuple[str, list[str]]:
    """Returns the field of the answers of a row, and the answers."""
    key = wanted or next((name for name in RESPONSES if name in target), None)
    answers = target.get(key or "")
    texts = [answers] if isinstance(answers, str) else answers
    if key is None or not isinstance(texts, list | tuple) or not all(isinstance(text, str) for text in texts):
        names = wanted or " or ".join(RESPONSES)
        raise ConfigError(
            f"{place}: needs a text or a list of texts in {names}, got {answers!r:.80}; --response names it"
        )
    return key, list(texts)


def _is_inside(file: Path, folder: Path) -> bool:
    """Returns whether a path is a file below the folder, links resolved."""
    try:
        return file.is_file() and file.resolve().is_relative_to(folder.resolve())
    except OSError:  # a name that is longer than names of files are
        return False


def _text_of(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read the prompt {file}: {error}") from error
