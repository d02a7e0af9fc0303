"""What a run records of its training groups for people: numbers of each group, and samples of three of them."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b

import torch
from PIL import Image
from torch import Tensor

from mmrl.core.data import Prompt, Scores
from mmrl.core.numerics import group_sum
from mmrl.reporting.group_log import Group
from mmrl.scoring.metrics import plain_total
from mmrl.training.held_out import STRIP, SavedSample, plain, saved_sample
from mmrl.training.rollouts import Collected

MEMBERS = 4  # samples of a group that are saved, at most
LARGEST, LARGEST_EPISODE = 768, 1536  # pixels of the longer side of a saved picture
TEXT = 160  # characters of a prompt


@dataclass(frozen=True)
class Chosen:
    """One sample that is saved, and why its group is."""

    row: int  # of the scores
    total: float
    places: tuple[str, ...]  # best, worst, widest


def prompt_name(prompt: Prompt) -> str:
    """Returns a name that is the same for the same prompt in every iteration, and after a resume."""
    known = [prompt.system, prompt.text, prompt.source, plain(prompt.target)]
    return blake2b(json.dumps(known, sort_keys=True).encode(), digest_size=6).hexdigest()


def shortened(text: str) -> str:
    """Returns the text in one line, its end left out where it is long."""
    text = " ".join(text[: 2 * TEXT].split())
    return text if len(text) <= TEXT else f"{text[: TEXT - 3]}..."


def named_prompts(collected: Collected) -> list[tuple[int, str, str]]:
    """Returns prompt index, name and shortened text of each group of this process; of an episode that of the task."""
    if collected.rollout is None:
        return []
    first = dict[int, Prompt]()
    for key, prompt in zip(collected.rollout.keys, collected.rollout.prompts, strict=True):
        first.setdefault(key.prompt_index, prompt)
    return [(index, prompt_name(prompt), shortened(prompt.text)) for index, prompt in first.items()]


def groups_of(scores: Scores, is_degenerate: Tensor, named: Sequence[tuple[int, str, str]]) -> list[Group]:
    """Returns the groups of an iteration by prompt index. Every episode counts alike, and controls do not.

    Args:
        is_degenerate: [B] bool. named: of all processes, see `named_prompts`.
    """
    index, member_of = scores.prompt_index.unique(return_inverse=True)
    means, stds, _ = _moments(plain_total(scores), scores.share, member_of, len(index))
    rewards = [
        _moments(column, scores.share_of(~column.isnan() & ~scores.is_control), member_of, len(index))[0]
        for column in scores.values.unbind(1)
    ]
    is_start = (scores.turn == 0) & ~scores.is_control
    sizes = member_of[is_start].bincount(minlength=len(index)).tolist()
    others = member_of[~is_degenerate].bincount(minlength=len(index)).tolist()
    known = {number: (name, text) for number, name, text in named}
    return [
        Group(
            prompt=number,
            name=known[number][0],
            text=known[number][1],
            size=sizes[place],
            mean=means[place],
            std=stds[place],
            rewards={name: column[place] for name, column in zip(scores.names, rewards, strict=True)},
            is_degenerate=others[place] == 0,
        )
        for place, number in enumerate(index.tolist())
        if number in known
    ]


def chosen_samples(scores: Scores) -> list[Chosen]:
    """Returns some samples of the group with the highest mean total, the lowest one, and the widest spread.

    Of each group at most `MEMBERS`, from the highest to the lowest total; an episode is its first turn. Groups without
    a valid sample are left out.
    """
    share = scores.share
    index, member_of = scores.prompt_index.unique(return_inverse=True)
    means, stds, counts = _moments(plain_total(scores), share, member_of, len(index))
    judged = [place for place, count in enumerate(counts) if count > 0]
    if not judged:
        return []
    places: dict[int, list[str]] = {}
    places.setdefault(max(judged, key=means.__getitem__), []).append("best")
    if len(judged) > 1:
        places.setdefault(min(judged, key=means.__getitem__), []).append("worst")
    if len(judged) > 2:
        places.setdefault(max(judged, key=stds.__getitem__), []).append("widest")
    worth = torch.where(share > 0, share * plain_total(scores).double(), 0.0)
    totals = group_sum(worth, scores.episode) / group_sum(share, scores.episode)  # [B]; NaN: not judged
    is_shown = (scores.turn == 0) & (group_sum(share, scores.episode) > 0) & ~scores.is_control
    chosen = []
    for place, words in places.items():
        rows = ((member_of == place) & is_shown).nonzero()[:, 0]
        rows = rows[totals[rows].argsort(descending=True, stable=True)]
        some = torch.linspace(0, len(rows) - 1, min(MEMBERS, len(rows))).round().long()
        chosen += [Chosen(row, float(totals[row]), tuple(words)) for row in rows[some].tolist()]
    return chosen


def saved_of(collected: Collected, chosen: Sequence[Chosen]) -> list[tuple[int, SavedSample]]:
    """Returns this process's part of the chosen samples, with their places among all of them."""
    rollout, scores = collected.rollout, collected.scores
    if rollout is None:
        return []
    local = {row: number for number, row in enumerate(collected.local_rows.tolist())}
    saved = []
    for place, one in enumerate(chosen):
        if one.row not in local:
            continue
        row = local[one.row]
        sample = saved_sample(rollout, row, dict(zip(scores.names, scores.values[one.row].tolist(), strict=True)))
        if len(collected.videos) == rollout.num_samples:
            video = collected.videos[row]
            sample = replace(sample, video=video, image=video.strip(STRIP))
        media = sample.media if sample.text is None else ()  # a screen of each answer would be large
        largest = LARGEST if rollout.outputs.outcomes is None else LARGEST_EPISODE
        image = None if sample.image is None else _shrunk(sample.image, largest)
        saved.append((place, replace(sample, image=image, media=media, total=one.total, places=one.places)))
    return saved


def _shrunk(image: Image.Image, largest: int) -> Image.Image:
    if max(image.size) <= largest:
        return image
    image = image.copy()
    image.thumbnail((largest, largest))
    return image


def _moments(
    values: Tensor, share: Tensor, member_of: Tensor, count: int
) -> tuple[list[float], list[float], list[float]]:
    """Returns mean and standard deviation of each group's values, counted by `share` [B], and the sums of shares."""
    share = share.double()
    values = torch.where(share > 0, values.double(), 0.0)
    whole = share.new_zeros(count).index_add(0, member_of, share)
    mean = share.new_zeros(count).index_add(0, member_of, share * values) / whole
    away = share * (values - mean[member_of]).square()
    away = torch.where(share > 0, away, 0.0)
    std = (share.new_zeros(count).index_add(0, member_of, away) / whole).sqrt()
    std = torch.where(std > 1e-9 * mean.abs(), std, 0.0 * std)  # equal values differ by the rounding of their mean
    return mean.tolist(), std.tolist(), whole.tolist()
