"""`mmrl score`: the scores of the outputs in a folder or a file."""

import json
import logging
import math
import os
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mmrl.commands.score_items import InputSettings, Item, is_input, read_items
from mmrl.commands.score_page import write_page
from mmrl.commands.score_results import Reckoning, Seeing, outputs_of
from mmrl.core.contracts import ConfigError
from mmrl.core.data import Outputs
from mmrl.core.declarations import RewardDeclaration
from mmrl.media.mp4 import Sound, read_frames, read_sound, video_size
from mmrl.media.pictures import StoredPicture, as_tensor
from mmrl.media.video import FrameSampling, StoredClip
from mmrl.scoring.scorer import Judgement, Scorer
from mmrl.scoring.standalone import groups_of, judge, scorer_of
from mmrl.system.progress_bars import Counter
from mmrl.system.yaml_text import parse_yaml

__all__ = ["Reckoning", "Seeing", "check_written", "reward_section", "score_path", "write", "write_rows"]

log = logging.getLogger(__name__)
CHUNK = 64  # pictures that are in memory at once, where groups allow it
PIXELS = CHUNK * 1024**2  # of them at most, 800 MB: a folder of screenshots of 8K or of videos is judged in more parts


@dataclass(frozen=True)
class Media:
    """A picture, or the frames of a video that are judged."""

    pixels: Tensor  # [3, H, W] or [F, 3, H, W], in [0, 1]
    fps: float = 0.0  # of a video: frames per second of these frames


def reward_section(text: str) -> dict[str, Any]:
    """Returns `box_iou kind=giou weight=0.5` as the section of a config; values are YAML. Raises ConfigError.

    Values in braces or brackets may hold spaces: `win_rate reward={name: number} margin=0.1`. Quotes around a whole
    value are not part of it; quotes inside are YAML's, as in `json_schema schema={"type": "object"}`.
    """
    try:
        words = _with_spaces(_words(text))
        pairs = [one.partition("=") for one in words[1:]]
        values = [parse_yaml(value, f"the value of {key!r}") for key, _, value in pairs]
    except ValueError as error:  # also a quote that is not closed
        raise ConfigError(f"--reward needs a name, and settings as key=value, got {text!r}: {error}") from error
    if not words:
        raise ConfigError(f"--reward needs a name, and settings as key=value, got {text!r}")
    keys = ["name", *(key for key, _, _ in pairs)]
    if wrong := [key for key, is_assignment, _ in pairs if not (key and is_assignment)]:
        raise ConfigError(f"--reward {text!r}: a setting looks like key=value, got {wrong[0] or '='!r}")
    if twice := [key for key in keys if keys.count(key) > 1]:
        raise ConfigError(f"--reward {text!r}: {twice[0]!r} is given twice (the first word is the name)")
    return dict(zip(keys, [words[0], *values], strict=True))


def _words(text: str) -> list[str]:
    """Returns the words of a text, quoted parts whole. Raises ValueError for a quote that is not closed."""
    shlex.split(text)  # raises it
    return list(map(_unquoted, re.findall(r"""(?:"[^"]*"|'[^']*'|[^\s"'])+""", text)))


def _unquoted(word: str) -> str:
    """Returns a word, or its value behind `=`, without the quotes around the whole of it."""
    key, assigned, value = word.partition("=") if word[0] not in "\"'" else ("", "", word)
    is_quoted = len(value) > 1 and value[0] in "\"'" and value[0] == value[-1] and value[0] not in value[1:-1]
    return f"{key}{assigned}{value[1:-1]}" if is_quoted else word


def _with_spaces(words: Sequence[str]) -> list[str]:
    """Returns the words; those behind a value whose first brace or bracket is still open are joined to it."""
    joined: list[str] = []
    for word in words:
        value = joined[-1].partition("=")[2] if joined else ""
        is_open = value.startswith(("{", "[")) and sum(map(value.count, "{[")) > sum(map(value.count, "}]"))
        if is_open:
            joined[-1] += f" {word}"
        else:
            joined.append(word)
    return joined


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
    """Returns the scores of the outputs in a folder of pictures or videos, or in a file of answers.

    Args:
        rewards: sections as in a config. prompt: of all outputs that have none of their own.
        response: the field of a file's answers. limit: outputs at most, the first ones.
    Raises:
        ConfigError: unknown rewards, nothing to score, or outputs that lack what a reward needs.
    """
    scorer = scorer_of(rewards, device=device)
    if len(scorer.names) > 1 and "total" in scorer.names:
        raise ConfigError("a reward cannot be labelled 'total', which is the name of the mixed rewards")
    items = read_items(path, InputSettings(prompt, response, scorer.demands))[:limit]
    group = _groups(items)
    judgements: list[tuple[list[int], Judgement]] = []
    with Counter.on_stderr("scoring", len(items), unit="outputs") as counter:
        for rows, outputs in _chunks(items, group, seeing or Seeing(), scorer):
            prompts, numbers = [items[row].prompt for row in rows], [group[row] for row in rows]
            judgements.append((rows, judge(scorer, prompts, outputs, group=numbers)))
            counter.add(len(rows))
    _warn_without_tags(scorer, items)
    joined = Judgement.join([judgement for _, judgement in judgements])
    order = torch.tensor([row for rows, _ in judgements for row in rows]).argsort()
    return Reckoning(items, joined.scores.select(order), joined.first_failures)


def _groups(items: Sequence[Item]) -> list[int]:
    """Returns [B]: for each output the number of the first output to the same prompt (words, media, place)."""
    first: dict[tuple[int, int | None], int] = {}
    same = groups_of([item.prompt for item in items])
    return [
        first.setdefault((one, item.question), row) for row, (one, item) in enumerate(zip(same, items, strict=True))
    ]


def _chunks(
    items: Sequence[Item], group: Sequence[int], seeing: Seeing, scorer: Scorer
) -> Iterator[tuple[list[int], Outputs]]:
    """Yields rows and their outputs, groups kept whole; pictures and videos of one size in a chunk."""
    if items[0].file is None:
        everyone = list(range(len(items)))
        yield everyone, outputs_of(items, seeing)
        return
    is_whole = any(term.reward.granularity == "group" for term in scorer.terms)
    for rows in _packs(items, group, is_whole, seeing):
        media = [_media(items[row], seeing) for row in rows]
        yield rows, _stacked([items[row] for row in rows], media, scorer)


def _stacked(items: Sequence[Item], media: Sequence[Media], scorer: Scorer) -> Outputs:
    """Returns pictures or videos as outputs, with the sound of videos where a reward needs it.

    Raises ConfigError for different sizes or lengths, and where a video has no sound that is needed.
    """
    sizes = {tuple(one.pixels.shape) for one in media}
    if len(sizes) > 1:
        names = ", ".join(_shape_in_words(size) for size in sorted(sizes))
        kind = "videos" if items[0].is_video else "pictures"
        raise ConfigError(f"{kind} that are compared must have one size, those of a group have {names}")
    stacked = torch.stack([one.pixels for one in media])
    if not items[0].is_video:
        return Outputs(images=stacked)
    outputs = Outputs(videos=stacked, fps=tuple(one.fps for one in media))
    hearing = next((term.name for term in scorer.terms if "audio" in term.reward.needs), None)
    if hearing is None:
        return outputs
    sounds = [_sound(item, hearing) for item in items]
    if len({(sound.rate, sound.samples.shape) for sound in sounds}) > 1:
        raise ConfigError("videos that are compared must have sound of one length, those of a group differ")
    rates = tuple(sound.rate for sound in sounds)
    return replace(outputs, audio=torch.stack([sound.samples for sound in sounds]), audio_rate=rates)


def _shape_in_words(shape: tuple[int, ...]) -> str:
    *frames, _, height, width = shape
    return f"{width} x {height}" + (f" with {frames[0]} frames" if frames else "")


def _sound(item: Item, reward: str) -> Sound:
    assert item.file is not None
    sound = read_sound(item.file)
    if sound is None:
        raise ConfigError(f"reward {reward!r} needs audio, and {item.name!r} has no sound")
    return sound


def _packs(items: Sequence[Item], group: Sequence[int], is_whole: bool, seeing: Seeing) -> Iterator[list[int]]:
    """Yields rows of pictures of one size, at most CHUNK of them and PIXELS in all, unless one group is larger."""
    units: dict[Any, list[int]] = {}
    for row, item in enumerate(items):
        units.setdefault(group[row] if is_whole else _size(item, seeing.num_frames), []).append(row)
    for key, rows in units.items():
        step = len(rows) if is_whole else max(1, min(CHUNK, PIXELS // math.prod(key)))
        for start in range(0, len(rows), step):
            yield rows[start : start + step]


def _size(item: Item, num_frames: int | None) -> tuple[int, ...]:
    """Returns what must agree for pictures to be in one tensor, from headers alone: both sides, of a video its frames.

    `num_frames`: that are read of a video; None: all.
    """
    assert item.file is not None
    if item.is_video:
        return video_size(item.file) if num_frames is None else (num_frames, *video_size(item.file)[1:])
    return StoredPicture(item.file.name, path=item.file).size


def _media(item: Item, seeing: Seeing) -> Media:
    assert item.file is not None
    if not item.is_video:
        return Media(as_tensor(StoredPicture(item.file.name, path=item.file).load()))
    if seeing.num_frames is None:
        frames, fps = read_frames(item.file)
        return Media(frames.float() / 255, fps)
    clip = StoredClip(item.file.name, path=item.file).load(FrameSampling(num_frames=seeing.num_frames))
    return Media(clip.pixels.float() / 255, clip.sampled_fps)


def _warn_without_tags(scorer: Scorer, items: Sequence[Item]) -> None:
    """Warns where a reward reads a tag that no answer has: all answers then score like empty ones."""
    for term in scorer.terms:
        tag = RewardDeclaration.of(term.reward).answer_tag
        if tag is not None and items[0].text is not None and not any(f"<{tag}>" in (i.text or "") for i in items):
            log.warning(
                "reward %r reads what stands in <%s>...</%s>, which no answer has; '%s tag=null' reads whole answers",
                *(term.name, tag, tag, term.name),
            )


def check_written(path: Path, *files: Path | None) -> None:
    """Raises ConfigError, before anything is scored, for files that cannot be written or would replace others.

    `path`: what is scored, of which nothing is overwritten.
    """
    written = [file for file in files if file is not None]
    for number, file in enumerate(written):
        above = next(folder for folder in file.absolute().parents if folder.exists())
        if file.resolve() in [other.resolve() for other in written[:number]]:
            raise ConfigError(f"--out, --best and --html need files of their own, got {str(file)!r} twice")
        if file.resolve() == path.resolve() or (file.exists() and is_input(path, file)):
            raise ConfigError(f"{str(file)!r} is read here, and would be overwritten; name another file")
        if file.is_dir():
            raise ConfigError(f"cannot write {str(file)!r}: it is a folder")
        if not above.is_dir() or not os.access(file if file.exists() else above, os.W_OK):
            raise ConfigError(f"cannot write {str(file)!r}: {str(above)!r} is no folder that can be written to")


def write(
    reckoning: Reckoning, source: str, seeing: Seeing, *, out: Path | None, best: Path | None, html: Path | None
) -> list[Path]:
    """Writes the requested files and returns them: the scores of each output, the best of each group, a page."""
    rows = reckoning.rows()
    if out is not None:
        write_rows(rows, out)
    if best is not None:
        write_rows([rows[row] for row in reckoning.best()], best)
    if html is not None:
        write_page(reckoning, html, source, seeing)
    return [file for file in (out, best, html) if file is not None]


def write_rows(rows: Sequence[Mapping[str, Any]], file: Path) -> None:
    """Writes one line of JSON for each row."""
    file.parent.mkdir(parents=True, exist_ok=True)
    lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    # half a surrogate, as in the name of a file that is no UTF-8, is written as \udcff, which JSON reads back
    file.write_text(lines, encoding="utf-8", errors="backslashreplace")
