"""What a run logs of its scores: means, spreads, failures, and the groups that teach nothing."""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from mmrl.core.contracts import Advantage
from mmrl.core.data import Paths, Scores
from mmrl.core.declarations import MixDeclaration
from mmrl.core.numerics import group_std, group_sum
from mmrl.system.errors import RunError


def as_wholes(scores: Scores) -> Scores:
    """The scores with all turns of an episode invalid where one of them could not be judged.

    What its actions led to is then not known: a loss counts none of its turns, in its sum or in what divides it.
    Where every sample is an episode of its own, these are the scores as they were.
    """
    is_broken = group_sum(scores.has_failed.double(), scores.episode) > 0  # [B]
    return replace(scores, valid=scores.valid & ~is_broken)


def num_failed(scores: Scores) -> int:
    """Episodes with a turn that could not be judged."""
    return len(scores.episode[scores.has_failed].unique())


def too_many_failed(scores: Scores, allowed: float) -> str | None:
    """In words that the share of failed episodes is above `allowed` in [0, 1], controls not counted; None: it is not.

    They are called samples where every sample is an episode of its own.
    """
    failed, counted = num_failed(scores), scores.episode[~scores.is_control]
    total = len(counted.unique())
    if failed <= allowed * total:
        return None
    has_episodes = total < len(counted) or bool({"turn", "episode"} & set(scores.granularities))
    return (
        f"{failed} of {total} {'episodes' if has_episodes else 'samples'} could not be judged, which is "
        f"{100 * failed / total:.3g}%; scoring.max_failed_share allows {100 * allowed:.3g}%"
    )


def constant_groups(values: Tensor, group: Tensor, valid: Tensor, min_spread: float = 0.0) -> Tensor:
    """[B] bool: samples of groups with a standard deviation of at most `min_spread` (0: all equal).

    A group with fewer than two valid members is one of them.

    Args:
        values: [B]; those of invalid samples may be NaN. group: [B] integer ids. valid: [B] bool.
    """
    return group_std(values, group, valid) <= min_spread


def degenerate_groups(
    scores: Scores, advantage: Advantage, paths: Paths | None = None, min_spread: float = 0.0
) -> Tensor:
    """[B] bool: samples of groups that teach nothing: all their advantages are 0, or their totals all but agree.

    Advantages may come of more than the totals, such as what follows a turn. `min_spread`: the standard deviation of
    the totals up to which a group is left out as well; 0 leaves it to the advantages.
    """
    advantages = advantages_of(scores, advantage, paths)
    worth = advantages.abs() if advantages.dim() == 1 else advantages.abs().sum(1)  # [B]
    is_idle = group_sum(worth.double(), scores.group) == 0
    if min_spread == 0:
        return is_idle
    return is_idle | constant_groups(scores.total, scores.group, scores.valid, min_spread)


def groups_outside(scores: Scores, low: float, high: float) -> Tensor:
    """[B] bool: samples of groups whose mean total is below `low` or above `high`; those without a valid member, too.

    Bae et al. 2025, "Online Difficulty Filtering for Reasoning Oriented Reinforcement Learning", arXiv 2504.03380.
    Episodes count once. The totals are weighted sums where a mix compares within groups.
    """
    share = scores.share
    sums = group_sum(torch.where(share > 0, share * plain_total(scores).double(), 0.0), scores.group)
    mean = sums / group_sum(share, scores.group)  # NaN without a valid member
    return ~((mean >= low) & (mean <= high))


def plain_total(scores: Scores) -> Tensor:
    """[B] the totals; of a mix that compares within groups, whose mean is 0, the weighted sums, which say how good."""
    return scores.weighted_sum if MixDeclaration.of(scores.mix).is_relative else scores.total


def advantages_of(scores: Scores, advantage: Advantage, paths: Paths | None) -> Tensor:
    """[B] or [B, K]: advantages of the totals, or what the mix makes of the advantages of each reward alone."""
    if MixDeclaration.of(scores.mix).is_of_advantages:
        pairs = zip(scores.names, scores.weights, strict=True)
        own = [weight * _checked(advantage, scores.of(name), paths) for name, weight in pairs if weight != 0]
        # where no weight has risen from 0 yet, nothing is better than anything else
        return torch.stack(own).sum(0) if own else torch.zeros(len(scores.group))
    return _checked(advantage, scores, paths)


def _checked(advantage: Advantage, scores: Scores, paths: Paths | None) -> Tensor:
    """Raises RunError where a class that the user wrote gives something else than advantages."""
    found: Any = advantage(scores, paths)
    number = len(scores.group)
    name = type(advantage).__name__
    if isinstance(found, Tensor) and found.is_floating_point() and found.dim() in (1, 2) and len(found) == number:
        if found.isfinite().all():
            return found
        row = int((~found.isfinite()).view(number, -1).any(1).nonzero()[0])
        wrong, total = found[row][~found[row].isfinite()].flatten()[0], scores.total[row]
        raise RunError(f"advantage {name} must give finite numbers, got {wrong:g} for a sample with total {total:g}")
    got = f"{found.dtype} {list(found.shape)}" if isinstance(found, Tensor) else type(found).__name__
    raise RunError(f"advantage {name} must give a float tensor [{number}], or [{number}, decisions], got {got}")


def score_metrics(scores: Scores, is_degenerate: Tensor) -> dict[str, float]:
    """Mean, standard deviation and failures of the total and of each reward, over the samples that could be judged.

    Where nothing could be judged there is no mean, and its key is left out. `is_degenerate`: [B] bool.
    """
    metrics = {
        **mean_and_std("reward", plain_total(scores), scores.share),
        "reward/failed": float(num_failed(scores)),
        "groups/degenerate": _share(is_degenerate, scores.group),
    }
    for name, values in zip(scores.names, scores.values.unbind(1), strict=True):
        judged = ~values.isnan() & ~scores.is_control
        metrics |= mean_and_std(f"reward/{name}", values, scores.share_of(judged))
        metrics[f"reward/{name}/failed"] = float((values.isnan() & ~scores.is_control).sum())
        metrics[f"reward/{name}/constant_groups"] = _share(constant_groups(values, scores.group, judged), scores.group)
    return metrics


def mean_and_std(name: str, values: Tensor, share: Tensor) -> dict[str, float]:
    """Mean and standard deviation of `values` [B], each counted by its `share` [B]; nothing where all shares are 0."""
    counted = share > 0
    values, share = values[counted].double(), share[counted] / share.sum().clamp(min=1e-300)
    if not len(values):
        return {}
    mean = (values * share).sum()
    return {f"{name}/mean": float(mean), f"{name}/std": float(((values - mean).square() * share).sum().sqrt())}


def _share(member_of: Tensor, group: Tensor) -> float:
    """Share of the groups [0, 1] whose members are marked."""
    return len(set(group[member_of].tolist())) / max(1, len(set(group.tolist())))
