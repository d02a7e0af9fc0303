"""What samples are like, in cheap numbers taken while their outputs are in memory, and which rewards follow them.

A property is a tensor [B] float32 on the CPU, NaN for a sample that has none. Answers have a length, lines, and boxes
or points; images and videos sharpness, saturation and brightness; videos motion and frames; groups a diversity.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import interpolate, pad

from mmrl.core.data import Outputs, Rollout, Scores
from mmrl.core.numerics import group_numbers
from mmrl.parsing.answers import ParseError, count_places
from mmrl.scoring.metrics import mean_and_std, plain_total

Properties = Mapping[str, Tensor]  # by name: [B] float32 each

SIDE = 128  # pixels of the longer side at which pictures are measured
THUMBNAIL = 16  # pixels of a side at which the pictures of a group are compared
FRAMES = 8  # of a video that are measured, and pairs of frames; all where it has no more
AT_ONCE = 8  # pictures that are made smaller together: their copies are held in memory
LUMA = (0.299, 0.587, 0.114)  # of red, green and blue: ITU-R BT.601
FEWEST = 8  # samples that a correlation is computed of
LEVEL = 1e-4  # a spread within groups below this share of the values is none: rounding differs by machine
DIVERSITY = "diversity"  # of a group: a correlation within groups says nothing of it


def properties_of(rollout: Rollout) -> dict[str, Tensor]:
    """Returns the properties of the samples of a rollout that holds whole groups, by name."""
    outputs = rollout.outputs
    if rollout.num_samples == 0:
        return {}
    measured = _joined([_measured(one) for one in outputs.each or (outputs,)])
    thumbnails = measured.pop("thumbnails", None)  # [B, D]
    place = group_numbers(rollout.group) * (int(rollout.turn.max()) + 1) + rollout.turn
    members = [((place == one) & ~rollout.is_control).nonzero()[:, 0] for one in place.unique()]
    if thumbnails is not None:
        measured[DIVERSITY] = distances(thumbnails, members)
    elif texts := _texts(outputs):
        measured[DIVERSITY] = distinct(texts, members)
    return measured


def _texts(outputs: Outputs) -> tuple[str, ...]:
    return tuple(text for one in outputs.each or (outputs,) for text in one.texts or ())


def _measured(outputs: Outputs) -> dict[str, Tensor]:
    """Returns the properties of samples of one size, and `thumbnails` [B, D] of their pictures."""
    measured = {}
    if outputs.texts is not None:
        words = torch.tensor([len(text.split()) for text in outputs.texts])
        measured["length"] = words if outputs.num_tokens is None else outputs.num_tokens
        measured["lines"] = torch.tensor([sum(map(bool, text.splitlines())) for text in outputs.texts])
        measured["boxes"] = torch.tensor([_boxes(text) for text in outputs.texts])
    if outputs.images is not None and outputs.images.dim() == 4 and outputs.images.shape[1] == 3:  # RGB
        small = _made_smaller(outputs.images)
        measured |= _looks(small[:, None]) | {"thumbnails": _thumbnails(small)}
    if outputs.videos is not None:
        each = [_of_video(video) for video in outputs.videos]  # one by one: some frames of all would be copied at once
        measured |= {name: torch.stack([one[name] for one in each]) for name in (each[0] if each else ())}
    return {name: values.float().cpu() for name, values in measured.items()}


def _boxes(text: str) -> float:
    try:
        return float(count_places(text))
    except ParseError:  # a text that is too long to look at
        return float("nan")


def _of_video(video: Tensor) -> dict[str, Tensor]:
    """Returns the looks, motion and thumbnails of one video [F, 3, H, W] in [0, 1]."""
    firsts = _spread(len(video) - 1)  # of pairs of neighbouring frames
    chosen = torch.cat([firsts, firsts + 1, _spread(len(video))]).unique()
    frames = torch.cat([_made_smaller(video[some.to(video.device)]) for some in chosen.split(AT_ONCE)])
    looks = _looks(frames[torch.isin(chosen, _spread(len(video))).to(frames.device)][None])
    measured = {name: values[0] for name, values in looks.items()}
    ends = torch.tensor([0, len(chosen) // 2, len(chosen) - 1], device=frames.device)
    measured["thumbnails"] = _thumbnails(frames[ends]).flatten()
    measured["frames"] = torch.tensor(len(video))
    if len(firsts):
        one, two = (torch.searchsorted(chosen, which).to(frames.device) for which in (firsts, firsts + 1))
        measured["motion"] = (frames[two] - frames[one]).abs().mean()
    return measured


def _spread(count: int) -> Tensor:
    """Returns at most FRAMES of the numbers 0 to `count` - 1, evenly spaced, ends included; ascending."""
    return torch.linspace(0, max(count - 1, 0), min(count, FRAMES), dtype=torch.float64).round().long()


def _made_smaller(pictures: Tensor) -> Tensor:
    """Returns pictures [N, 3, H, W] as float32 with at most SIDE pixels a side, each the mean of what it covers."""
    height, width = pictures.shape[-2:]
    scale = max(height, width) / SIDE
    if scale <= 1:
        return pictures.float()
    size = max(1, round(height / scale)), max(1, round(width / scale))
    return torch.cat([interpolate(some.float(), size, mode="area") for some in pictures.split(AT_ONCE)])


def _thumbnails(pictures: Tensor) -> Tensor:
    """Returns [N, D] of pictures [N, 3, H, W]."""
    return interpolate(pictures, (THUMBNAIL, THUMBNAIL), mode="area").flatten(1)


def _looks(frames: Tensor) -> dict[str, Tensor]:
    """Returns sharpness, saturation and brightness, [B] each, as means over the frames [B, F, 3, H, W]."""
    brightness = luma(frames)
    return {
        "sharpness": laplacian(brightness).flatten(2).var(2, correction=0).mean(1),
        "saturation": (frames.amax(2) - frames.amin(2)).flatten(1).mean(1),
        "brightness": brightness.flatten(1).mean(1),
    }


def luma(pictures: Tensor) -> Tensor:
    """Returns the luma [..., H, W] in [0, 1] of pictures [..., 3, H, W] in [0, 1], RGB."""
    red, green, blue = pictures.unbind(-3)
    return LUMA[0] * red + LUMA[1] * green + LUMA[2] * blue


def laplacian(values: Tensor) -> Tensor:
    """Returns the sum of the four neighbours less 4 times the value, [A, B, H, W]; the border is repeated outwards.

    Its variance is a measure of sharpness (Pech-Pacheco et al. 2000, "Diatom autofocusing in brightfield microscopy").
    """
    wide = pad(values, (1, 1, 1, 1), mode="replicate")
    beside = wide[..., 1:-1, :-2] + wide[..., 1:-1, 2:] + wide[..., :-2, 1:-1] + wide[..., 2:, 1:-1]
    return beside - 4 * values


def distances(thumbnails: Tensor, members: Sequence[Tensor]) -> Tensor:
    """Returns [B]: the mean distance of a sample to the others of its group; NaN without others.

    The distance is the root mean square difference of two thumbnails, in [0, 1]. The mean over a group is that over
    its pairs.

    Args:
        thumbnails: [B, D]. members: the rows [n] of each group.
    """
    values = torch.full((len(thumbnails),), float("nan"))
    for rows in members:
        if len(rows) > 1:
            own = thumbnails[rows].double()
            apart = torch.cdist(own, own, compute_mode="donot_use_mm_for_euclid_dist") / thumbnails.shape[1] ** 0.5
            values[rows] = (apart.sum(1) / (len(rows) - 1)).float()
    return values


def distinct(texts: Sequence[str], members: Sequence[Tensor]) -> Tensor:
    """Returns [B]: the share of distinct answers among those of the sample's group; NaN for a group of one."""
    values = torch.full((len(texts),), float("nan"))
    for rows in members:
        if len(rows) > 1:
            values[rows] = len({texts[row].strip() for row in rows.tolist()}) / len(rows)
    return values


def join_properties(parts: Sequence[Properties], counts: Sequence[int]) -> dict[str, Tensor]:
    """Returns the properties of all samples of the parts, in order; NaN where a part has no such property.

    `counts`: the samples of each part.
    """
    names = dict.fromkeys(name for part in parts for name in part)
    pairs = list(zip(parts, counts, strict=True))
    return {
        name: torch.cat([part[name] if name in part else torch.full((count,), float("nan")) for part, count in pairs])
        for name in names
    }


def _joined(parts: Sequence[dict[str, Tensor]]) -> dict[str, Tensor]:
    """Returns the properties of parts that have at least one sample each."""
    return join_properties(parts, [len(next(iter(part.values()), ())) for part in parts])


def property_metrics(scores: Scores, properties: Properties) -> dict[str, float]:
    """Returns mean and spread of each property over the samples that are not controls, and what the rewards follow.

    `follows/REWARD/NAME` and, of the total, `follows/NAME` are the correlations of `within_groups`.
    """
    rewards = {f"{name}/": values for name, values in zip(scores.names, scores.values.unbind(1), strict=True)}
    rewards = {"": plain_total(scores), **rewards}
    group, metrics = group_numbers(scores.group), dict[str, float]()
    members = ~scores.is_control
    share = scores.share_of(members)
    for name, values in properties.items():
        measured = ~values.isnan() & members
        own = share if torch.equal(measured, members) else scores.share_of(measured)
        numbers = mean_and_std(f"samples/{name}", values, own)
        if name == DIVERSITY:
            if numbers:  # a group's number has no spread of its own
                metrics[f"samples/{name}"] = numbers[f"samples/{name}/mean"]
            continue
        metrics |= numbers
        for reward, scored in rewards.items():
            counted = measured & ~scored.isnan() & (scores.valid if reward == "" else members)
            follows = within_groups(scored, values, group, counted)
            if follows is not None:
                metrics[f"follows/{reward}{name}"] = follows
    return metrics


def within_groups(one: Tensor, two: Tensor, group: Tensor, counted: Tensor) -> float | None:
    """Returns Pearson's correlation of `one` and `two`, each centred by its group's mean, over the counted samples.

    Prompts that score high and have long answers confound nothing so. None for fewer than FEWEST samples, or where
    one of the two has no spread within groups.

    Args:
        one, two: [B]; those of samples that are not counted may be NaN. group: [B] numbers from 0. counted: [B] bool.
    """
    if int(counted.sum()) < FEWEST:
        return None
    place, centred = group[counted].numpy(), []
    sizes = np.bincount(place).clip(min=1)
    for values in (one[counted].double().numpy(), two[counted].double().numpy()):
        deviations = values - (np.bincount(place, values) / sizes)[place]  # exactly 0 where float32 values are equal
        if np.abs(deviations).max() <= LEVEL * np.abs(values).max():
            return None
        centred.append(deviations / np.linalg.norm(deviations))
    return float(np.clip(centred[0] @ centred[1], -1, 1))
