"""Episodes as wholes: one that was judged in part is not learned from, and failures are counted by episodes."""

from dataclasses import replace

from mmrl.data import Scores
from mmrl.numerics import group_sum


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
