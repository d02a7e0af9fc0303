"""Metrics of the scores: means, spreads, failures, and the groups that teach nothing."""

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
    """Returns the scores with all turns of an episode invalid where one of them could not be judged.

    What the actions of such an episode led to is unknown: a loss counts none of its turns, in its sum or in its
    divisor. Where every sample is an episode of its own, the scores are unchanged.
    """
    is_broken = group_sum(scores.has_failed.double(), scores.episode) > 0  # [B]
    return replace(scores, valid=scores.valid & ~is_broken)


def num_failed(scores: Scores) -> int:
    """Returns the number of episodes with a turn that could not be judged."""
    return len(scores.episode[scores.has_failed].unique())


def too_many_failed(scores: Scores, allowed: float) -> str | None:
    """Returns a sentence where the share of failed episodes is above `allowed` in [0, 1], controls not counted; else
    None.

    The sentence speaks of samples where every sample is an episode of its own.
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
    """Returns [B] bool: samples of groups with a standard deviation of at most `min_spread` (0: all equal).

    A group with fewer than two valid members is one of them.

    Args:
        values: [B]; those of invalid samples may be NaN. group: [B] integer ids. valid: [B] bool.
    """
    return group_std(values, group, valid) <= min_spread


def degenerate_groups(
    scores: Scores, advantage: Advantage, paths: Paths | None = None, min_spread: float = 0.0
) -> Tensor:
    """Returns [B] bool: samples of degenerate groups, with advantages that are all 0 or totals that all but agree.

    Advantages may depend on more than the totals, such as later turns. `min_spread`: the standard deviation of the
    totals up to which a group is degenerate as well; with 0 only the advantages decide.
    """
    advantages = advantages_of(scores, advantage, paths)
    worth = advantages.abs() if advantages.dim() == 1 else advantages.abs().sum(1)  # [B]
    is_idle = group_sum(worth.double(), scores.group) == 0
    if min_spread == 0:
        return is_idle
    return is_idle | constant_groups(scores.total, scores.group, scores.valid, min_spread)


def groups_outside(scores: Scores, low: float, high: float) -> Tensor:
    """Returns [B] bool: samples of groups with a mean total below `low` or above `high`, or without a valid member.

    Bae et al. 2025, "Online Difficulty Filtering for Reasoning Oriented Reinforcement Learning", arXiv 2504.03380.
    Episodes count once. The totals are weighted sums where a mix compares within groups.
    """
    share = scores.share
    sums = group_sum(torch.where(share > 0, share * plain_total(scores).double(), 0.0), scores.group)
    mean = sums / group_sum(share, scores.group)  # NaN without a valid member
    return ~((mean >= low) & (mean <= high))


def plain_total(scores: Scores) -> Tensor:
    """Returns the totals [B], or the weighted sums where a mix compares within groups, whose mean is then 0."""
    return scores.weighted_sum if MixDeclaration.of(scores.mix).is_relative else scores.total


def advantages_of(scores: Scores, advantage: Advantage, paths: Paths | None) -> Tensor:
    """Returns the advantages [B] or [B, K] of the totals, or the mix of the advantages of each reward alone."""
    if MixDeclaration.of(scores.mix).is_of_advantages:
        pairs = zip(scores.names, scores.weights, strict=True)
        own = [weight * _checked(advantage, scores.of(name), paths) for name, weight in pairs if weight != 0]
        # where no weight has risen from 0 yet, nothing is better than anything else
        return torch.stack(own).sum(0) if own else torch.zeros(len(scores.group))
    return _checked(advantage, scores, paths)


def _checked(advantage: Advantage, scores: Scores, paths: Paths | None) -> Tensor:
    """Raises RunError where an advantage of the user's own returns something else than advantages."""
    values: Any = advantage(scores, paths)
    number = len(scores.group)
    name = type(advantage).__name__
    if isinstance(values, Tensor) and values.is_floating_point() and values.dim() in (1, 2) and len(values) == number:
        if values.isfinite().all():
            return values
        row = int((~values.isfinite()).view(number, -1).any(1).nonzero()[0])
        wrong, total = values[row][~values[row].isfinite()].flatten()[0], scores.total[row]
        raise RunError(f"advantage {name} must give finite numbers, got {wrong:g} for a sample with total {total:g}")
    got = f"{values.dtype} {list(values.shape)}" if isinstance(values, Tensor) else type(values).__name__
    raise RunError(f"advantage {name} must give a float tensor [{number}], or [{number}, decisions], got {got}")


def score_metrics(scores: Scores, is_degenerate: Tensor) -> dict[str, float]:
    """Returns mean, standard deviation and failures of the total and of each reward, over the samples that could be
    judged.

    Where nothing could be judged there is no mean, and its key is left out. `is_degenerate`: [B] bool.
    """
    metrics = {
        **mean_and_std("reward", plain_total(scores), scores.share),
        "reward/failed": float(num_failed(scores)),
        "groups/degenerate": _share(is_degenerate, scores.group),
        "groups/difficulty_weight": difficulty_weight(scores),
    }
    metrics |= {f"reward/{name}/share": share for name, share in variance_shares(scores).items()}
    for name, values in zip(scores.names, scores.values.unbind(1), strict=True):
        judged = ~values.isnan() & ~scores.is_control
        metrics |= mean_and_std(f"reward/{name}", values, scores.share_of(judged))
        metrics[f"reward/{name}/failed"] = float((values.isnan() & ~scores.is_control).sum())
        metrics[f"reward/{name}/constant_groups"] = _share(constant_groups(values, scores.group, judged), scores.group)
    return metrics


def difficulty_weight(scores: Scores) -> float:
    """Returns the mean over groups of the variance of the total within the group.

    With rewards of 0 and 1 the variance is p (1 - p) at a share p of right answers, and GRPO weighs a prompt by its
    root: Li et al. 2025, "DisCO", arXiv 2505.12366, proposition 1. It is 0 where all answers are right or all wrong.
    """
    counted = scores.share > 0
    variance = group_std(plain_total(scores).double(), scores.group, counted).square()
    sizes = group_sum(torch.ones_like(variance), scores.group)
    return float((variance / sizes).sum() / (1 / sizes).sum()) if len(sizes) else 0.0


def variance_shares(scores: Scores) -> dict[str, float]:
    """Returns what each reward that counts makes of the variance of the weighted sum within groups, by its name.

    cov(w_k r_k, sum of w r) / var(sum of w r), both without their group's mean. The shares sum to 1; that of a reward
    that pulls against the others is negative. An episode counts once. Nothing where one reward counts, where a mix
    makes another total than the sum, and where nothing varies.
    """
    counted = [column for column, weight in enumerate(scores.weights) if weight != 0]
    if len(counted) < 2:
        return {}
    if scores.mix is not None and not torch.equal(scores.total[scores.valid], scores.weighted_sum[scores.valid]):
        return {}
    share = scores.share[:, None]  # [B, 1]
    worth = scores.values[:, counted].double() * torch.tensor([scores.weights[column] for column in counted]).double()
    worth = torch.where(share > 0, worth, 0.0)
    sums, sizes = (group_sum(values, scores.group) for values in (share * worth, share))
    away = torch.where(share > 0, worth - sums / sizes.clamp(min=1e-300), 0.0)  # [B, R]
    products = (share * away * away.sum(1, keepdim=True)).sum(0)
    whole, size = float(products.sum()), float((share * worth.square()).sum())
    if whole <= 1e-12 * size:  # the rounding of a mean
        return {}
    return {scores.names[column]: float(part) / whole for column, part in zip(counted, products, strict=True)}


def mean_and_std(name: str, values: Tensor, share: Tensor) -> dict[str, float]:
    """Returns mean and standard deviation of `values` [B], counted by `share` [B]; nothing where all shares are 0."""
    counted = share > 0
    values, share = values[counted].double(), share[counted] / share.sum().clamp(min=1e-300)
    if not len(values):
        return {}
    mean = (values * share).sum()
    return {f"{name}/mean": float(mean), f"{name}/std": float(((values - mean).square() * share).sum().sqrt())}


def _share(member_of: Tensor, group: Tensor) -> float:
    """Returns the share in [0, 1] of the groups whose members are marked."""
    return len(set(group[member_of].tolist())) / max(1, len(set(group.tolist())))
