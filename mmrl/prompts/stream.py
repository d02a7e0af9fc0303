"""Prompt sets: where prompts come from, and in which order a run takes them."""

import hashlib
import importlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import torch

from mmrl.core.config import DatasetSettings, MixedPrompts, PromptSettings
from mmrl.core.contracts import ConfigError
from mmrl.core.data import Prompt
from mmrl.core.keys import generator
from mmrl.core.reward_batches import Demands
from mmrl.core.templates import template_digest
from mmrl.media.pictures import Picture, Role, StoredPicture
from mmrl.prompts import datasets
from mmrl.prompts.curriculum import Curriculum
from mmrl.prompts.row_files import rows_with_progress
from mmrl.system.spelling import near


def load_prompts(source: str | DatasetSettings, needed: Demands | None = None) -> tuple[Prompt, ...]:
    """Returns the prompts of `lab:NAME/SPLIT`, a .txt or .jsonl file (working folder, else shipped) or a data set.

    A .jsonl row is an object with `prompt` (text); its other keys become the prompt's `target`. `needed`: what
    rewards need in the target of every row.
    Raises ConfigError for a missing or empty source, and for a bad row, by file and line.
    """
    needed = needed or Demands()
    if isinstance(source, DatasetSettings):
        return datasets.load_dataset_prompts(source, needed)
    if source.startswith("lab:"):
        return needed.checked(_lab_prompts(source))
    path, shipped = Path(source).expanduser(), files("mmrl.configs").joinpath(source)
    if path.suffix not in (".txt", ".jsonl"):
        raise ConfigError(
            f"prompts: needs lab:NAME/SPLIT, or a .txt or .jsonl file, got {source!r}; "
            "other files and hub names are given as a section: {path: ..., layout: ...}"
        )
    if not path.is_file() and not shipped.is_file():
        raise ConfigError(f"prompts: there is no file {source!r}, neither in the working folder nor shipped with mmrl")
    try:
        text = (path if path.is_file() else shipped).read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"prompts: cannot read {source!r}: {error}") from error
    # not splitlines(), which also cuts at characters that may stand inside a JSON text
    lines = [(number, line.strip()) for number, line in enumerate(text.split("\n"), 1) if line.strip()]
    if not lines:
        raise ConfigError(f"prompts: {source!r} holds no prompt")
    if path.suffix == ".jsonl":
        return tuple(_row(source, number, line, needed) for number, line in rows_with_progress(lines, source))
    return needed.checked(
        tuple(Prompt(line, source=f"{source}, line {number}") for number, line in rows_with_progress(lines, source))
    )


def counted(prompts: Sequence[Prompt]) -> str:
    """Returns in words how many prompts there are, and how many have media: a misspelt column of images shows here."""
    images, videos = (sum(map(bool, media)) for media in ([p.media for p in prompts], [p.clips for p in prompts]))
    has = [f"{count} with {what}" for what, count in (("images", images), ("videos", videos)) if count]
    return f"{len(prompts)}, {', '.join(has) or 'all of text alone'}"


def mixture(train: str | DatasetSettings | Sequence[MixedPrompts]) -> list[tuple[str | DatasetSettings, float]]:
    """Returns the sources of a run and their weights. Raises ConfigError for an empty list."""
    if isinstance(train, str | DatasetSettings):
        return [(train, 1.0)]
    if not train:
        raise ConfigError("prompts.train: needs at least one source, got an empty list")
    return [(part.source, part.weight) for part in train]


def template_metrics(settings: PromptSettings) -> dict[str, float]:
    """Returns the digests of the templates that a run trains with, so that runs with another text can be told apart.

    `prompts/template` of one source; `prompts/template_0` ... of those of a mixture that have one.
    """
    sources = [source for source, _ in mixture(settings.train)]
    names = (
        [f"prompts/template_{number}" for number in range(len(sources))] if len(sources) > 1 else ["prompts/template"]
    )
    return {
        name: float(template_digest(source.template))
        for name, source in zip(names, sources, strict=True)
        if isinstance(source, DatasetSettings) and source.template is not None
    }


def tiny_prompts(
    settings: PromptSettings, folder: Path, seed: int, *, roles: Sequence[Role] = ("image",)
) -> PromptSettings:
    """Returns the same sources with few rows: synthetic rows in `folder` where a data set is not on this machine.

    `roles`: of the images of a synthetic row, where its layout leaves them open.
    """

    def tiny(source: DatasetSettings, name: str) -> DatasetSettings:
        if datasets.is_here(source):
            return datasets.shrunk(source)
        return datasets.stand_in(source, folder / name, seed, roles=roles)

    return _replaced(settings, tiny)


def with_stand_ins(
    settings: PromptSettings, folder: Path, seed: int, *, roles: Sequence[Role] = ("image",)
) -> tuple[PromptSettings, list[str]]:
    """Returns the same sources, with synthetic rows in `folder` for data sets with missing files; and these files.

    `roles`: as in `tiny_prompts`.
    """
    missing: list[str] = []

    def present(source: DatasetSettings, name: str) -> DatasetSettings:
        files = datasets.missing_files(source)
        missing.extend(file for file in files if file not in missing)
        return datasets.stand_in(source, folder / name, seed, roles=roles) if files else source

    return _replaced(settings, present), missing


def _replaced(settings: PromptSettings, change: Callable[[DatasetSettings, str], DatasetSettings]) -> PromptSettings:
    """Returns the settings with every data set changed; `change` also gets a name for each data set."""

    def changed(source: str | DatasetSettings, name: str) -> str | DatasetSettings:
        return source if isinstance(source, str) else change(source, name)

    train, held_out = settings.train, settings.held_out
    if isinstance(train, str | DatasetSettings):
        other: Any = changed(train, "train")
    else:
        other = tuple(
            part.model_copy(update={"source": changed(part.source, f"train_{number}")})
            for number, part in enumerate(train)
        )
    return settings.model_copy(
        update={"train": other, "held_out": None if held_out is None else changed(held_out, "held_out")}
    )


@dataclass
class PromptStream:
    """An endless stream of prompts from weighted sets; each set is shuffled anew in every pass.

    The order is a function of the seed alone, but for a curriculum. The state is `counts` (how many prompts came from
    each set), how many prompts could not be read, and how many were repeated.
    """

    sets: Sequence[tuple[Prompt, ...]]
    weights: Sequence[float]
    seed: int
    curriculum: Curriculum | None = None  # has a state of its own, and the last word on the weights
    counts: list[int] = field(init=False)
    num_unread: int = field(init=False, default=0)
    num_again: int = field(init=False, default=0)  # prompts that were taken once more
    _orders: dict[int, tuple[int, torch.Tensor]] = field(init=False, default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        self.counts = [0] * len(self.sets)

    @property
    def num_taken(self) -> int:
        """The number of prompts taken so far, which is the number of the next prompt."""
        return sum(self.counts) + self.num_again

    @property
    def every(self) -> list[Prompt]:
        """Returns the prompts of all sets."""
        return [prompt for prompts in self.sets for prompt in prompts]

    @property
    def num_prompts(self) -> int:
        """The number of different prompts of all sets."""
        return sum(map(len, self.sets))

    @property
    def passes(self) -> float:
        """How often each prompt was taken so far, in the mean; what was taken again with a hint does not count."""
        return sum(self.counts) / max(1, self.num_prompts)

    def take(self, count: int) -> list[tuple[int, Prompt]]:
        """Returns the next `count` prompts with their numbers."""
        return [self._take_one() for _ in range(count)]

    def upcoming(self, count: int) -> list[tuple[int, Prompt]]:
        """Returns what `take` returns next, and takes nothing; with a curriculum, unless scores change it before."""
        before = list(self.counts)
        try:
            return [(number, prompt) for number, _, prompt in (self._next() for _ in range(count))]
        finally:
            self.counts = before

    def again(self, prompts: Sequence[Prompt]) -> list[tuple[int, Prompt]]:
        """Returns these prompts once more, under new numbers."""
        first = self.num_taken
        self.num_again += len(prompts)
        return list(enumerate(prompts, first))

    def _take_one(self) -> tuple[int, Prompt]:
        number, chosen, prompt = self._next()
        if self.curriculum is not None:
            self.curriculum.note(number, chosen)
        return number, prompt

    def _next(self) -> tuple[int, int, Prompt]:
        """Counts one prompt more; returns its number, its set and itself."""
        number, weights = self.num_taken, self.weights
        if self.curriculum is not None:
            weights = self.curriculum.weights(weights)
        chosen = 0
        if len(self.sets) > 1:
            shares = torch.tensor(weights, dtype=torch.float64)
            chosen = int(torch.multinomial(shares, 1, generator=generator(self.seed, "set", number)))
        prompts, position = self.sets[chosen], self.counts[chosen]
        turn, place = divmod(position, len(prompts))
        self.counts[chosen] += 1
        return number, chosen, prompts[int(self._order(chosen, turn)[place])]

    def _order(self, chosen: int, turn: int) -> torch.Tensor:
        """Returns the order of a set in one of its passes; keeps that of the current pass, since sets may be large."""
        if self._orders.get(chosen, (-1, None))[0] != turn:
            fresh = torch.randperm(len(self.sets[chosen]), generator=generator(self.seed, "order", chosen, turn))
            self._orders[chosen] = (turn, fresh)
        return self._orders[chosen][1]

    def state_dict(self) -> dict[str, Any]:
        sizes = [len(prompts) for prompts in self.sets]
        numbers = {"num_unread": self.num_unread, "num_again": self.num_again}
        return {"counts": list(self.counts), **numbers, "sizes": sizes, "digest": self._digest}

    def check_same(self, state: Mapping[str, Any]) -> None:
        """Raises ConfigError where these are not the prompts of a saved state: draws from others are another run."""
        sizes = [len(prompts) for prompts in self.sets]
        if state["sizes"] == sizes and state["digest"] == self._digest:
            return
        if state["sizes"] == sizes and state["digest"] == self._digest_by(_size):  # of an older mmrl, which read all
            return
        before, now = (" + ".join(map(str, each)) for each in (state["sizes"], sizes))
        how = f"there are {now} of them, {before} when it was saved" if before != now else "some of them changed"
        raise ConfigError(f"prompts.train: not the prompts that the run began with: {how}; put them back or train anew")

    @cached_property
    def _digest(self) -> str:
        """Returns a digest of texts, targets, and names, sizes and roles of images, but not of the images' contents.

        Of an image of a data set no size enters, since its header may not have been read.
        """
        return self._digest_by(_size_at_start)

    def _digest_by(self, size: Callable[[Picture], Any]) -> str:
        digest = hashlib.sha256()
        for prompt in (prompt for prompts in self.sets for prompt in prompts):
            names = [getattr(one, "name", type(one).__name__) for one in (*prompt.media, *prompt.clips)]
            parts: list[Any] = [prompt.text, prompt.system, dict(prompt.target), names, [*map(size, prompt.media)]]
            parts += [list(prompt.roles)] if prompt.roles else []  # none: as in older checkpoints, which stay valid
            text = json.dumps(parts, default=lambda one: getattr(one, "name", type(one).__name__), skipkeys=True)
            digest.update(text.encode() + b"\n")
        return digest.hexdigest()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.counts, self.num_unread = list(state["counts"]), state["num_unread"]
        self.num_again = state["num_again"]


def digest_of(prompts: Sequence[Prompt]) -> str:
    """Returns a digest of prompts, by which results that were measured on other ones are known."""
    return PromptStream([tuple(prompts)], [1.0], 0)._digest


def _size(picture: Picture) -> tuple[int, int]:
    return picture.size


def _size_at_start(picture: Picture) -> tuple[int, int] | int | None:
    """Returns the size of an image; of one of a data set its number of bytes, or nothing where it is a file."""
    if not isinstance(picture, StoredPicture) or picture.index is None:
        return picture.size
    return None if picture.content is None else len(picture.content)


@lru_cache(maxsize=8)  # thousands of screens or clips, made anew for each use otherwise
def _lab_prompts(source: str) -> tuple[Prompt, ...]:
    """Returns the prompts of a lab, whose world has texts, or questions with `text`, `target`, and `media` or `clips`.

    `lab:NAME/pairs`: the training prompts with a good and a bad output for each, of labs that have a file `pairs`.
    `lab:NAME/SPLIT[:n]`: the first n prompts, such as the one prompt of a run that overfits.
    """
    from mmrl import labs

    whole, bracket, end = source.removeprefix("lab:").partition("[:")
    if bracket and not re.fullmatch(r"[1-9]\d{0,6}\]", end):
        raise ConfigError(f"prompts: {source!r}: behind a split stands nothing, or [:n] for its first n prompts")
    lab, _, split = whole.partition("/")
    try:
        labs.folder(lab)
        if split == "pairs" and (labs.folder(lab) / "pairs.py").is_file():
            questions = importlib.import_module(f"mmrl.labs.{lab}.pairs").pairs("train")
        else:
            questions = importlib.import_module(f"mmrl.labs.{lab}.world").prompts(split or "train")
    except (KeyError, ValueError) as error:
        raise ConfigError(f"prompts: {source!r}: {error}") from error
    chosen = questions[: int(end[:-1])] if bracket else questions
    return tuple(Prompt(one) if isinstance(one, str) else _prompt_of(one) for one in chosen)


def _prompt_of(question: Any) -> Prompt:
    media, clips = getattr(question, "media", ()), getattr(question, "clips", ())
    return Prompt(question.text, media, question.target, clips=clips)


def _row(source: str, number: int, line: str, needed: Demands) -> Prompt:
    try:
        row = datasets.read_json(line)
    except ConfigError as error:
        raise ConfigError(f"prompts: {source}, line {number} {error}") from error
    if not isinstance(row, dict) or not isinstance(row.get("prompt"), str) or not row["prompt"].strip():
        raise ConfigError(
            f"prompts: {source}, line {number} needs an object with the text field 'prompt', got {line[:80]!r}"
        )
    if row.get("image") or row.get("images"):
        raise ConfigError(
            f"prompts: {source}, line {number} has images; give such a file as a section: "
            f"{{path: {source}, layout: columns}}"
        )
    target = {key: value for key, value in row.items() if key != "prompt"}
    prompt = Prompt(row["prompt"], target=target, source=f"{source}, line {number}")
    if missing := needed.lacking(prompt):
        lacking, reward = missing
        hint = near(lacking, row)
        mend = f"; give the file as a section: {{path: {source}, columns: {{{lacking}: ...}}}}" if hint else ""
        raise ConfigError(
            f"prompts: {source}, line {number}: reward {reward!r} needs {lacking!r} in the target, which this "
            f"row does not give; its fields are {', '.join(row)}{hint}{mend}"
        )
    if wrong := needed.fault(prompt):
        raise ConfigError(f"prompts: {source}, line {number}: {wrong}")
    if wrong := datasets.fault_of(prompt):
        raise ConfigError(f"prompts: {source}, line {number}: {wrong}")
    return prompt
