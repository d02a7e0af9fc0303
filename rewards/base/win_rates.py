"""The win rates of the members of a group, from comparisons of pairs."""

import torch
from torch import Tensor


def win_rates(wins: Tensor) -> Tensor:
    """Returns [n] in [0, 1]: the mean over the others of how far a member is preferred to them; 1/2 for one alone.

    Args:
        wins: [n, n] in [0, 1]; row i, column j: how far i is preferred to j where i is shown first, 1/2 for a tie. What
            the diagonal says counts in nothing.

    Both orders of a pair are averaged, so that what a judge gives to a place, and not to its member, cancels; the mean
    of all n is 1/2, and a judge that always says the opposite gives 1 - the rates.
    """
    num_others = len(wins) - 1
    if num_others < 1:
        return torch.full((len(wins),), 0.5)
    preferred = (wins + 1 - wins.T) / 2
    return (preferred.sum(1) - preferred.diagonal()) / num_others
