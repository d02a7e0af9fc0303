"""Generation of trees of answers: shared tokens are sampled once, and the network continues from its cache."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product

import torch
from torch import Tensor

from mmrl.plans.answers import AnswerTree, ForkTree, SegmentTree, Uncertainty

from ..encoding.inputs import EncodedPrompt
from .completions import Completions, uniforms
from .generation import AnswerGenerator, Names, PrefilledPrompts

Seeds = Callable[..., int]  # number of a root, path of a branch of its tree -> seed


@dataclass(frozen=True)
class TreeCompletions:
    """The leaves of some trees; the leaves of one root stand next to each other."""

    completions: Completions  # n answers
    root: Tensor  # [n] int64: the root of each leaf, an answer that begins at a prompt
    num_read_again: int  # tokens that the network read twice


@dataclass(frozen=True)
class _Forks:
    """m places at which finished answers fork, each with `branch` children."""

    row: Tensor  # [m] int64: the answer
    column: Tensor  # [m] int64: the token that is sampled anew, above 0
    rank: Tensor  # [m] int64: how many less certain forks its root has


@torch.no_grad()
def generate_trees(
    generator: AnswerGenerator, prompts: Sequence[EncodedPrompt], prompt_of: Tensor, seed_of: Seeds, plan: AnswerTree
) -> TreeCompletions:
    """Samples the trees of n roots, root i under prompt `prompt_of[i]` (ascending), by the plan.

    Each node has a random stream of its own, seeded by its path; the first child continues the stream of its parent,
    so that a tree without forks is the plain answers.
    """
    names, parts, read_again = Names(), list[tuple[Completions, Tensor]](), 0
    leaves = plan.num_samples // plan.num_roots
    for roots, prefilled in generator.prefills(prompts, prompt_of, leaves):
        prompt = prompt_of[roots] - prefilled.first
        if isinstance(plan, SegmentTree):
            uniform = uniforms(_segment_seeds(roots, seed_of, plan), plan.max_tokens)
            found = prefilled.answers(prompt, uniform, names, plan.splits)
        else:
            assert isinstance(plan, ForkTree), "a tree of segments or of forks"
            uniform = uniforms([seed_of(root) for root in roots.tolist()], plan.max_tokens)
            found = prefilled.answers(prompt, uniform, names)
            found, more = _forked(
                prefilled, found, prompt, names, lambda n, *path, of=roots: seed_of(int(of[n]), *path), plan
            )
            read_again += more
        parts += [(completions, roots[own]) for completions, own in found]
    completions, root = (
        Completions.stack([completions for completions, _ in parts]),
        torch.cat([own for _, own in parts]),
    )
    order = root.argsort(stable=True)
    return TreeCompletions(completions.select(order), root[order], read_again)


def _segment_seeds(roots: Tensor, seed_of: Seeds, plan: SegmentTree) -> list[int]:
    """Returns the seed of each slot: that of the last node on its path that is not a first child."""
    forks = [count for count in plan.branch[1:] if count > 1]
    paths = list(product(*(range(count) for count in forks)))
    return [seed_of(root, *_without_firsts(path)) for root in roots.tolist() for path in paths]


def _without_firsts(path: Sequence[int]) -> tuple[int, ...]:
    """Returns the path as far as its last node that is not a first child."""
    last = max((n for n, child in enumerate(path) if child > 0), default=-1)
    return tuple(path[: last + 1])


def _forked(
    prefilled: PrefilledPrompts,
    found: list[tuple[Completions, Tensor]],
    prompt: Tensor,
    names: Names,
    seed_of: Seeds,
    plan: ForkTree,
) -> tuple[list[tuple[Completions, Tensor]], int]:
    """Adds the forks of all rounds to the first answers of each root.

    Returns all answers, each part with the numbers of its roots, and how many tokens were read again.
    """
    used = torch.zeros(0, dtype=torch.int64)
    read_again, size = 0, max(1, prefilled.generator.batch_size // plan.branch)
    for turn in range(plan.rounds):
        tree, root = Completions.stack([completions for completions, _ in found]), torch.cat([own for _, own in found])
        forks = fork_points(tree, root, used, plan.forks, plan.by)
        if not len(forks.row):
            break
        assert tree.name is not None, "answers sampled here have names"
        used = torch.cat([used, tree.name[forks.row, forks.column]])
        for part in _batches(forks, size, is_free=prefilled.generator.backbone.goes_by_the_mask):
            own = root[forks.row[part]]
            before = _cut(tree, forks.row[part], forks.column[part])
            read_again += int(before.length.sum())
            seeds = [
                seed_of(n, turn + 1, rank, child)
                for n, rank in zip(own.tolist(), forks.rank[part].tolist(), strict=True)
                for child in range(plan.branch)
            ]
            completions, child = prefilled.continue_from_cache(
                prompt[own], before, plan.branch, uniforms(seeds, plan.max_tokens), names
            )
            found = [*found, (completions, own[child])]
            assert completions.name is not None, "answers sampled here have names"
            used = torch.cat([used, completions.name[torch.arange(len(child)), before.length[child]]])
    return found, read_again


def fork_points(completions: Completions, root: Tensor, used: Tensor, count: int, by: Uncertainty) -> _Forks:
    """Returns the `count` least certain tokens of each root's tree: those of highest entropy or of lowest probability.

    Left out are the first token of an answer, whose fork is another first answer, and the names `used` [k]. Of equally
    certain tokens the one sampled first is taken. A tree with fewer tokens has fewer forks.
    """
    assert completions.name is not None and completions.entropy is not None, (
        "answers sampled here have names and entropies"
    )
    column = torch.arange(completions.tokens.shape[1]).expand_as(completions.tokens)
    is_open = (column > 0) & (column < completions.length[:, None]) & ~torch.isin(completions.name, used)
    row, at = is_open.nonzero().unbind(1)
    uncertainty = (completions.entropy if by == "entropy" else -completions.log_prob)[row, at]
    name, order = completions.name[row, at], uncertainty.argsort(descending=True, stable=True)
    order = order[name[order].argsort(stable=True)]  # by name: the leaves that share a token next to each other
    first = torch.cat([torch.ones(min(1, len(order)), dtype=torch.bool), name[order][1:] != name[order][:-1]])
    order = order[first]
    order = order[uncertainty[order].argsort(descending=True, stable=True)]
    order = order[root[row[order]].argsort(stable=True)]
    owner = root[row[order]]
    rank = torch.arange(len(order)) - torch.searchsorted(owner, owner)
    kept = order[rank < count]
    return _Forks(row[kept], at[kept], rank[rank < count])


def _batches(forks: _Forks, size: int, *, is_free: bool) -> list[Tensor]:
    """Splits forks into batches [k] that are sampled side by side, at most `size`.

    Forks of a batch are at the same place, unless `is_free`: layers go by the mask alone.
    """
    everyone = torch.arange(len(forks.row))
    groups = [everyone] if is_free else [everyone[forks.column == at] for at in forks.column.unique()]
    return [part for group in groups for part in group.split(size)]


def _cut(completions: Completions, rows: Tensor, length: Tensor) -> Completions:
    """Returns the first `length` [m] tokens of the answers `rows` [m]."""
    assert completions.entropy is not None and completions.name is not None, (
        "answers sampled here have names and entropies"
    )
    width = int(length.max())
    is_there = torch.arange(width) < length[:, None]
    tokens, log_prob, entropy, name = (
        torch.where(is_there, table[rows, :width], 0)
        for table in (completions.tokens, completions.log_prob, completions.entropy, completions.name)
    )
    return Completions(tokens, length, log_prob, torch.zeros(len(rows), dtype=torch.bool), None, entropy, name)
