"""`mmrl judge agree`: how often a reward prefers what people preferred, by aspect, with intervals."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from statistics import fmean
from typing import Any

import torch

from mmrl.core.contracts import ConfigError
from mmrl.core.data import Outputs, Prompt
from mmrl.core.human_votes import vote_of
from mmrl.media.pictures import StoredPicture, as_tensor
from mmrl.prompts.row_files import RawRow, Source
from mmrl.prompts.row_pictures import BadRow, PictureFolder
from mmrl.scoring.scorer import Scorer
from mmrl.scoring.standalone import judge, scorer_of
from mmrl.system.files import scratch_folder

Z = 1.959963984540054  # of an interval of 95%
_TIE = 1e-6  # up to which two scores are equal


@dataclass(frozen=True)
class Pair:
    """Two outputs for one prompt, and which one people prefer."""

    prompt: Prompt
    first: Any  # a text, or a picture
    second: Any
    preferred: int  # 0: the first, 1: the second
    aspect: str = "all"


@dataclass(frozen=True)
class Agreement:
    """How a reward agrees with people in an aspect; a pair of equal scores counts one half."""

    aspect: str
    pairs: int
    right: float
    unjudged: int

    @property
    def accuracy(self) -> float:
        """Returns the share of judged pairs in which the reward prefers what people prefer; 1/2 for none."""
        return self.right / self.pairs if self.pairs else 0.5

    @property
    def interval(self) -> tuple[float, float]:
        """Returns the ends of Wilson's interval of 95% (Wilson 1927, doi 10.1080/01621459.1927.10502953)."""
        return wilson(self.right, self.pairs)

    @property
    def is_below_chance(self) -> bool:
        """Returns whether the whole interval is below 1/2."""
        return self.pairs > 0 and self.interval[1] < 0.5


def wilson(right: float, count: int) -> tuple[float, float]:
    """Returns the interval of a share `right` / `count`; (0, 1) for a count of 0."""
    if not count:
        return 0.0, 1.0
    share, extra = right / count, Z * Z / count
    middle = (share + extra / 2) / (1 + extra)
    half = Z * ((share * (1 - share) + extra / 4) / count) ** 0.5 / (1 + extra)
    return max(middle - half, 0.0), min(middle + half, 1.0)


# ---- layouts: how published files write pairs


def _plain(row: RawRow) -> Pair | None:
    """prompt, chosen, rejected, aspect: texts, or files of pictures."""
    values = row.values
    return Pair(
        Prompt(_text(row, "prompt"), _media(row), target=values, source=row.place),
        _output(row, "chosen"),
        _output(row, "rejected"),
        0,
        str(values.get("aspect", "all")),
    )


def _mj_bench(row: RawRow) -> Pair | None:
    """MJ-Bench (arXiv 2407.04842): image0, image1, caption, label (the place of the better one).

    As `inference.py` of github.com/MJ-Bench/MJ-Bench (8a1f5db) reads them; its splits are the aspects.
    """
    label = row.values.get("label")
    if label not in (0, 1):
        raise ConfigError(f"{row.place}: label must be 0 or 1, got {label!r}")
    prompt = Prompt(_text(row, "caption"), target=row.values, source=row.place)
    aspect = row.values.get("subset", row.values.get("perspective", "all"))
    return Pair(prompt, _output(row, "image0"), _output(row, "image1"), int(label), str(aspect))


_SOURCES = {  # of VL-RewardBench, in three groups
    "vlfeedback": "general", "wildvision-battle": "general", "povid": "hallucination", "rlhf-v": "hallucination",
    "rlaif-v": "hallucination", "reasoning_tasks": "reasoning",
}  # fmt: skip


def _vl_rewardbench(row: RawRow) -> Pair | None:
    """VL-RewardBench (arXiv 2411.17451): query, image, response (two texts), human_ranking ([0, 1]: the first wins).

    As `inference_hf.py` of github.com/vl-rewardbench/VL_RewardBench (eb00f28) reads the data set of the hub, and
    `inference.py` its `data.jsonl`, which has `image_path`; groups by the source of the question as in its `cal.py`.
    """
    responses, ranking = row.values.get("response"), row.values.get("human_ranking")
    if not isinstance(responses, list) or len(responses) != 2 or not all(isinstance(one, str) for one in responses):
        raise ConfigError(f"{row.place}: response must be two texts, got {responses!r:.80}")
    if not isinstance(ranking, list) or sorted(ranking) != [0, 1]:
        raise ConfigError(f"{row.place}: human_ranking must be [0, 1] or [1, 0], got {ranking!r}")
    path = row.values.get("image_path")
    folders = path.split("/") if isinstance(path, str) else []
    source = str(row.values.get("query_source") or next(iter(folders[1:2]), "all"))
    media = _media(row) or ((_picture(row, "image_path"),) if path is not None else ())
    prompt = Prompt(_text(row, "query").removeprefix("<image>\n"), media, target=row.values, source=row.place)
    first, second = responses
    return Pair(prompt, first, second, ranking.index(0), _SOURCES.get(source.casefold(), source))


_CATEGORIES = ("mcq", "long", "short", "safety", "video")  # of MM-RLHF-RewardBench, words in the paths of its media


def _mm_rlhf(row: RawRow) -> Pair | None:
    """MM-RLHF-RewardBench (arXiv 2502.10391): prompt, image, chosen, rejected; rows about a video are left out.

    As `eval_mm_reward_bench.py` reads them, in the copy julyanghar/MM-RLHF (e103c40); categories by the paths of
    images, as `cal_performance_mmreweard_bench.py` there finds them, where the row has no `category`.
    """
    if row.values.get("video") and not row.values.get("image"):
        return None
    question = _text(row, "prompt" if "prompt" in row.values else "question").replace("<image>", " ").strip()
    prompt = Prompt(question, _media(row), target=row.values, source=row.place)
    image = row.values.get("image")
    path = str(image.get("path") or "") if isinstance(image, Mapping) else str(image or "")
    named = next((name for name in _CATEGORIES if name in path), "all")
    aspect = str(row.values.get("category") or named)
    return Pair(prompt, _output(row, "chosen"), _output(row, "rejected"), 0, aspect)


_VOTES: Mapping[Any, int | None] = {"leftvote": 0, "rightvote": 1, "tievote": None, "bothbad_vote": None}


def _genai_bench(row: RawRow) -> Pair | None:
    """GenAI-Bench (arXiv 2406.04485), images and edits by their columns; ties, and two that are bad, are left out.

    As `inference_configs.json` and `inference.py` of github.com/TIGER-AI-Lab/GenAI-Bench (32fff1f) read the data set
    TIGER-Lab/GenAI-Bench: `image_generation` has prompt, left_image and right_image; `image_edition` has
    instruct_prompt, source_image, left_output_image and right_output_image; both have vote_type. Its video_generation
    is refused: the videos are addresses.
    """
    values = row.values
    if "left_video" in values:
        raise ConfigError(f"{row.place}: pairs of videos are not compared; take image_generation or image_edition")
    if values.get("vote_type") not in _VOTES:
        raise ConfigError(f"{row.place}: vote_type must be one of {', '.join(_VOTES)}, got {values.get('vote_type')!r}")
    if (preferred := _VOTES[values["vote_type"]]) is None:
        return None
    is_edit = "instruct_prompt" in values
    question = _text(row, "instruct_prompt" if is_edit else "prompt")
    media = (_picture(row, "source_image"),) if is_edit else ()
    first, second = (f"{side}_output_image" if is_edit else f"{side}_image" for side in ("left", "right"))
    aspect = "image_edition" if is_edit else "image_generation"
    prompt = Prompt(question, media, target=values, source=row.place)
    return Pair(prompt, _output(row, first), _output(row, second), preferred, aspect)


LAYOUTS: Mapping[str, Callable[[RawRow], Pair | None]] = {
    "pairs": _plain,
    "mj_bench": _mj_bench,
    "vl_rewardbench": _vl_rewardbench,
    "mm_rlhf": _mm_rlhf,
    "genai_bench": _genai_bench,
}


VOTES = "votes"  # the layout whose rows may hold several pairs, or none


def _voted(row: RawRow) -> Iterator[Pair]:
    """Yields the pairs that a vote of `mmrl vote` implies. Raises ConfigError, also for videos."""
    try:
        vote = vote_of(row.values)
        folder = PictureFolder(row.images)
        media = tuple(folder.picture(name, "an image of the prompt") for name in vote.images)
        if vote.kind == "video":
            raise ValueError("it is about videos, and judges of pictures and texts are compared here")
        outputs = [one.output if vote.kind == "text" else folder.picture(one.output, "output") for one in vote.shown]
    except ValueError as error:
        raise ConfigError(f"{row.place}: {error}") from error
    prompt = Prompt(vote.prompt, media, source=row.place, roles=vote.roles)
    for winner, loser in vote.pairs():
        yield Pair(prompt, outputs[winner], outputs[loser], 0)


def _text(row: RawRow, name: str) -> str:
    value = row.values.get(name)
    if not isinstance(value, str):
        raise ConfigError(f"{row.place}: the field {name!r} must be a text, got {value!r:.80}")
    return value


def _media(row: RawRow) -> tuple[StoredPicture, ...]:
    """Returns the picture that the prompt is about, where the row has one."""
    return (_picture(row, "image"),) if row.values.get("image") is not None else ()


def _output(row: RawRow, name: str) -> Any:
    """Returns an output of a row: a picture, or a text that names no file of the row's folder."""
    value = row.values.get(name)
    try:
        return PictureFolder(row.images).picture(value, name)
    except BadRow as error:
        if isinstance(value, str):
            return value
        raise _no_picture(row, name, error) from error


def _picture(row: RawRow, name: str) -> StoredPicture:
    try:
        return PictureFolder(row.images).picture(row.values.get(name), name)
    except BadRow as error:
        raise _no_picture(row, name, error) from error


def _no_picture(row: RawRow, name: str, error: BadRow) -> ConfigError:
    return ConfigError(f"{row.place}: the field {name!r} must be a text, a picture or its file: {error}")


# ---- agreement


def agree(
    section: Mapping[str, Any],
    data: str,
    layout: str,
    *,
    subset: str | None = None,
    splits: Sequence[str] = (),
    limit: int | None = None,
    is_tiny: bool = False,
    device: str = "cpu",
) -> list[Agreement]:
    """Returns the agreement of a reward with the pairs of a file, a folder or a data set of the hub: all, by aspect.

    Args:
        subset: of a data set of the hub: the name of one of its configurations.
        splits: of a folder or a data set of the hub, each an aspect of its own (`train` where none is given).
            limit: pairs of each split at most.
    Raises:
        ConfigError: an unknown layout, rows that do not have it, and outputs that the reward does not judge.
    """
    if layout not in (*LAYOUTS, VOTES):
        raise ConfigError(f"layout must be one of {', '.join((*LAYOUTS, VOTES))}, got {layout!r}")
    pairs = [pair for split in splits or (None,) for pair in islice(_pairs(Source(data, subset, split), layout), limit)]
    if not pairs:
        raise ConfigError(f"there is no pair with a preference in {data!r}")
    with scratch_folder("judge") as folder:
        scorer = scorer_of([section], device=device, twins=folder if is_tiny else None)
        points = [_points(scorer, pair, number) for number, pair in enumerate(pairs)]
    aspects = list(dict.fromkeys(pair.aspect for pair in pairs))
    every = list(zip(pairs, points, strict=True))
    found = [_agreement("all", [point for _, point in every])]
    if aspects != ["all"]:
        found += [_agreement(aspect, [point for pair, point in every if pair.aspect == aspect]) for aspect in aspects]
    return found


def _pairs(source: Source, layout: str) -> Iterator[Pair]:
    """Yields the pairs of a file, or of a split, whose name is then their aspect and stands in their targets."""
    for row in source.rows():
        if row.fault is not None:
            raise ConfigError(f"{row.place}: {row.fault}")
        for pair in _voted(row) if layout == VOTES else filter(None, [LAYOUTS[layout](row)]):
            aspect = pair.aspect if source.split is None else source.split
            target = {**pair.prompt.target, "aspect": aspect}
            yield replace(pair, aspect=aspect, prompt=replace(pair.prompt, target=target))


def _points(scorer: Scorer, pair: Pair, number: int) -> float | None:
    """Returns 1 where the reward prefers what people prefer, 0 for the other, 1/2 for equal; None: not judged."""
    both = [pair.first, pair.second]
    if all(isinstance(one, str) for one in both):
        outputs = Outputs(texts=tuple(both), num_tokens=torch.tensor([max(1, len(one.split())) for one in both]))
    elif any(isinstance(one, str) for one in both):
        raise ConfigError(f"{pair.prompt.source}: both outputs must be texts, or both pictures")
    else:
        images = [as_tensor(one.load()) for one in both]
        outputs = Outputs.join([Outputs(images=image[None]) for image in images])
    is_group = scorer.terms[0].reward.granularity == "group"
    group = [number, number] if is_group else [2 * number, 2 * number + 1]
    first, second = judge(scorer, [pair.prompt] * 2, outputs, group=group).scores.values[:, 0].tolist()
    if first != first or second != second:
        return None
    if abs(first - second) <= _TIE:
        return 0.5
    return float((first > second) == (pair.preferred == 0))


def _agreement(aspect: str, points: Sequence[float | None]) -> Agreement:
    judged = [point for point in points if point is not None]
    return Agreement(aspect, len(judged), sum(judged), len(points) - len(judged))


def table(found: Sequence[Agreement]) -> str:
    """Returns the agreements in lines."""
    width = max(len("aspect"), *(len(one.aspect) for one in found))
    lines = [f"{'aspect':<{width}}  accuracy   interval of 95%  pairs  not judged"]
    for one in found:
        low, high = one.interval
        share = f"{one.aspect:<{width}}  {one.accuracy:>8.3f}    {low:.3f} to {high:.3f}"
        lines.append(f"{share}  {one.pairs:>5}  {one.unjudged:>10}")
    if len(found) > 2:
        lines.append(f"mean over the aspects: {fmean(one.accuracy for one in found[1:]):.3f}")
    return "\n".join(lines)
