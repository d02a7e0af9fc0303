"""`mmrl score`: what rewards say of the outputs in a folder or a file."""

import json
import logging
import math
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
import yaml
from torch import Tensor

from mmrl._score_files.items import Item, Reading, read_items
from mmrl.actions import DIALECTS, DialectName
from mmrl.config import NOT_YAML
from mmrl.contracts import ConfigError
from mmrl.coordinates import Convention
from mmrl.data import Outputs, Scores
from mmrl.judging import answered, groups_of, judge, scorer_of
from mmrl.media import StoredPicture, as_tensor
from mmrl.plugins import did_you_mean
from mmrl.scoring import Judgement, Scorer
from mmrl.video import FrameSampling, StoredClip

log = logging.getLogger(__name__)
CHUNK = 64  # pictures that are in memory at once, where groups allow it


@dataclass(frozen=True)
class Reckoning:
    """The outputs of a folder or file and what the rewards say of them."""

    items: list[Item]
    scores: Scores  # values NaN where a reward could not judge
    first_failures: tuple[str | None, ...]  # R

    @property
    def total(self) -> list[float | None]:
        """The rewards mixed; None for an output that a reward which counts could not judge."""
        pairs = zip(self.scores.total.tolist(), self.scores.valid.tolist(), strict=True)
        return [value if is_valid else None for value, is_valid in pairs]

    def __str__(self) -> str:
        """A table for a terminal."""
        shown = self.summary()
        heads = ("mean", "std", "min", "max", "failed")
        width = max(len("reward"), *map(len, shown["scores"]))
        lines = [f"{shown['outputs']} outputs in {shown['groups']} groups", ""]
        lines.append(f"{'reward':{width}}" + "".join(f"{head:>10}" for head in heads))
        for name, said in shown["scores"].items():
            cells = [f"{said[h]:10.4g}" if isinstance(said[h], float) else f"{said[h] or 0:>10}" for h in heads]
            lines.append(f"{name:{width}}" + "".join(cells))
        for failure in filter(None, self.first_failures):
            lines.append(f"could not be judged, the first: {failure}")
        return "\n".join(lines)

    def summary(self) -> dict[str, Any]:
        """For each reward, and for their total where there are several: mean, std, ends, and how many it failed on."""
        columns = dict(zip(self.scores.names, self.scores.values.unbind(1), strict=True))
        found = {name: _statistics(values) for name, values in columns.items()}
        if len(columns) > 1:
            found["total"] = _statistics(torch.where(self.scores.valid, self.scores.total, torch.nan))
        return {"outputs": len(self.items), "groups": len(self.scores.group.unique()), "scores": found}

    def rows(self) -> list[dict[str, Any]]:
        """One object for each output, as JSON has it."""
        listed = []
        for row, (item, total) in enumerate(zip(self.items, self.total, strict=True)):
            values = self.scores.values[row].tolist()
            scores = {n: v if math.isfinite(v) else None for n, v in zip(self.scores.names, values, strict=True)}
            said = {} if item.text is None else {"response": item.text}
            group = int(self.scores.group[row])
            listed.append(
                {
                    "name": item.name,
                    "prompt": item.prompt.text,
                    **said,
                    "group": group,
                    "scores": scores,
                    "total": total,
                }
            )
        return listed

    def best(self) -> list[int]:
        """The row of the best output of each group, the first of several that are equally good (best of n)."""
        found: dict[int, int] = {}
        totals = [-math.inf if total is None else total for total in self.total]
        for row, group in enumerate(self.scores.group.tolist()):
            if totals[row] > -math.inf and (group not in found or totals[row] > totals[found[group]]):
                found[group] = row
        return [found[group] for group in sorted(found)]


@dataclass(frozen=True)
class Seeing:
    """How outputs become what rewards see."""

    coordinates: Convention = "original"
    dialect: DialectName | None = None
    num_frames: int = 16  # of a video, evenly spread

    @classmethod
    def checked(cls, coordinates: str, dialect: str | None, num_frames: int) -> "Seeing":
        """Of texts from a user. Raises ConfigError for an unknown unit or dialect."""
        for name, given, known in (
            ("coordinates", coordinates, ("original", "thousand", "unit")),
            ("dialect", dialect, tuple(DIALECTS)),
        ):
            if given is not None and given not in known:
                raise ConfigError(f"--{name}: unknown {given!r}{did_you_mean(given, known)}")
        return cls(cast(Convention, coordinates), cast("DialectName | None", dialect), num_frames)


def reward_section(text: str) -> dict[str, Any]:
    """`box_iou kind=giou weight=0.5` as the section of a config; values are YAML. Raises ConfigError."""
    try:
        name, *settings = shlex.split(text)
        pairs = [one.partition("=") for one in settings]
        if wrong := [key for key, is_assignment, _ in pairs if not is_assignment]:
            raise ConfigError(f"--reward {text!r}: a setting looks like key=value, got {wrong[0]!r}")
        return {"name": name} | {key: yaml.safe_load(value) for key, _, value in pairs}
    except NOT_YAML as error:
        raise ConfigError(f"--reward needs a name, and settings as key=value, got {text!r}: {error}") from error


def score_path(
    path: Path,
    rewards: Sequence[Mapping[str, Any]],
    *,
    prompt: str | None = None,
    response: str | None = None,
    seeing: Seeing | None = None,
    limit: int | None = None,
    device: str = "cpu",
) -> Reckoning:
    """What the rewards say of the outputs in a folder of pictures or videos, or in a file of answers.

    Args:
        rewards: sections as in a config. prompt: of all outputs that have none of their own.
        response: the field of a file's answers. limit: outputs at most, the first ones.
    Raises:
        ConfigError: unknown rewards, nothing to score, or outputs that lack what a reward needs.
    """
    scorer = scorer_of(rewards, device=device)
    items = read_items(path, Reading(prompt, response, scorer.demands))[:limit]
    group = groups_of([item.prompt for item in items])
    judgements: list[tuple[list[int], Judgement]] = []
    for rows, outputs in _chunks(items, group, seeing or Seeing(), scorer):
        prompts, numbers = [items[row].prompt for row in rows], [group[row] for row in rows]
        judgements.append((rows, judge(scorer, prompts, outputs, group=numbers)))
    _warn_without_tags(scorer, items)
    joined = Judgement.join([judgement for _, judgement in judgements])
    order = torch.tensor([row for rows, _ in judgements for row in rows]).argsort()
    return Reckoning(items, joined.scores.select(order), joined.first_failures)


def _chunks(
    items: Sequence[Item], group: Sequence[int], seeing: Seeing, scorer: Scorer
) -> Iterator[tuple[list[int], Outputs]]:
    """Rows and their outputs, whole groups together; pictures and videos of one size in a chunk."""
    if items[0].file is None:
        everyone = list(range(len(items)))
        prompts, texts = [item.prompt for item in items], [item.text or "" for item in items]
        yield everyone, answered(prompts, texts, coordinates=seeing.coordinates, dialect=seeing.dialect)
        return
    for rows in _packs(items, group, any(term.reward.granularity == "group" for term in scorer.terms)):
        media = [_media(items[row], seeing) for row in rows]
        sizes = {tuple(one.shape[-2:]) for one in media}
        if len(sizes) > 1:
            names = ", ".join(f"{width} x {height}" for height, width in sorted(sizes))
            raise ConfigError(f"pictures that are compared must have one size, those of a group have {names}")
        stacked = torch.stack(media)
        yield rows, Outputs(videos=stacked) if items[rows[0]].is_video else Outputs(images=stacked)


def _packs(items: Sequence[Item], group: Sequence[int], is_whole: bool) -> Iterator[list[int]]:
    """Rows of pictures of one size, at most CHUNK of them unless a group is larger that must stay whole."""
    units: dict[Any, list[int]] = {}
    for row, item in enumerate(items):
        units.setdefault(group[row] if is_whole else _size(item), []).append(row)
    for rows in units.values():
        step = len(rows) if is_whole else CHUNK
        for start in range(0, len(rows), step):
            yield rows[start : start + step]


def _size(item: Item) -> tuple[int, ...]:
    """What must agree for pictures to be in one tensor, from headers alone."""
    assert item.file is not None
    if item.is_video:
        return 1, *(StoredClip(item.file.name, path=item.file).header().size or (id(item),))
    return 0, *StoredPicture(item.file.name, path=item.file).size


def _media(item: Item, seeing: Seeing) -> Tensor:
    """[3, H, W] of a picture, [F, 3, H, W] of a video, in [0, 1]."""
    assert item.file is not None
    if not item.is_video:
        return as_tensor(StoredPicture(item.file.name, path=item.file).load())
    clip = StoredClip(item.file.name, path=item.file)
    return clip.load(FrameSampling(num_frames=seeing.num_frames)).pixels.float() / 255


def _warn_without_tags(scorer: Scorer, items: Sequence[Item]) -> None:
    """Says where a reward looks into a tag that no answer has: all of them then score as if they said nothing."""
    for term in scorer.terms:
        tag = getattr(term.reward, "tag", None)
        if isinstance(tag, str) and items[0].text is not None and not any(f"<{tag}>" in (i.text or "") for i in items):
            log.warning(
                "reward %r reads what stands in <%s>...</%s>, which no answer has; '%s tag=null' reads whole answers",
                *(term.name, tag, tag, term.name),
            )


def _statistics(values: Tensor) -> dict[str, Any]:
    judged = values[~values.isnan()].double()
    if not len(judged):
        return {"mean": None, "std": None, "min": None, "max": None, "failed": len(values)}
    return {
        "mean": float(judged.mean()),
        "std": float(judged.std(unbiased=False)),
        "min": float(judged.min()),
        "max": float(judged.max()),
        "failed": len(values) - len(judged),
    }


def write(
    found: Reckoning, source: str, seeing: Seeing, *, out: Path | None, best: Path | None, html: Path | None
) -> list[Path]:
    """Writes what is asked for: the scores of each output, the best of each group, a page; returns these files."""
    rows = found.rows()
    if out is not None:
        write_rows(rows, out)
    if best is not None:
        write_rows([rows[row] for row in found.best()], best)
    if html is not None:
        from mmrl._score_files.page import write_page

        write_page(found, html, source, seeing)
    return [file for file in (out, best, html) if file is not None]


def write_rows(rows: Sequence[Mapping[str, Any]], file: Path) -> None:
    """One line of JSON for each row."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
