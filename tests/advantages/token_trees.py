"""Trees of answers for tests of advantages: edges that leaves share, and their values worked out slowly."""

import random
from collections.abc import Iterator

import torch
from torch import Tensor

from mmrl.core.data import Paths, Scores

Node = tuple[list[int], list["Node"]]  # the edges of a stretch, and what follows it
HAND = torch.tensor([[0, 1, 2, 3], [0, 1, 4, -1], [5, 6, 7, 8], [5, 6, 9, -1]])  # two beginnings, two ends of each
REWARD = torch.tensor([1.0, 0.0, 1.0, 1.0])


def scores_of(reward: Tensor, group: Tensor | None = None, valid: Tensor | None = None) -> Scores:
    """Returns the scores of B samples with one reward."""
    count = torch.arange(len(reward))
    group = torch.zeros_like(count) if group is None else group
    valid = torch.ones(len(reward), dtype=torch.bool) if valid is None else valid
    return Scores(reward[:, None], ("r",), (1.0,), valid, group, count, torch.zeros_like(count))


def grown(pick: random.Random, depth: int = 0, first: int = 0) -> tuple[list[Node], int]:
    """Returns the subtree of a place, with at least one child of 1 to 3 tokens, and the first unused edge."""
    children: list[Node] = []
    for _ in range(pick.randint(2, 3)):
        stretch = list(range(first, first := first + pick.randint(1, 3)))
        below, first = grown(pick, depth + 1, first) if depth < 2 and pick.random() < 0.6 else ([], first)
        children.append((stretch, below))
    return children, first


def leaves_of(children: list[Node]) -> Iterator[list[int]]:
    """Returns the edges of each leaf, in order."""
    for stretch, below in children:
        if below:
            yield from (stretch + rest for rest in leaves_of(below))
        else:
            yield stretch


def paths_of(children: list[Node]) -> Paths:
    rows = list(leaves_of(children))
    longest = max(map(len, rows))
    return Paths(torch.tensor([row + [-1] * (longest - len(row)) for row in rows]))
