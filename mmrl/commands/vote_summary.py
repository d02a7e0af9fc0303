"""The summary of votes: how many, the win rate of the newer outputs, and how far voters agree."""

from collections import Counter, defaultdict
from collections.abc import Hashable, Mapping, Sequence
from itertools import combinations
from statistics import fmean, median

from mmrl.commands.judge_agree import wilson
from mmrl.core.human_votes import Vote
from mmrl.reporting.formatting import counted


def summary(votes: Sequence[Vote], folders: Sequence[str] = ()) -> str:
    """Returns the summary in lines, apart for each criterion where there are several.

    `folders`: the two that were compared, the older one first.
    """
    criteria = sorted({vote.criterion for vote in votes})
    if len(criteria) < 2:
        return _summary(votes, folders)
    parts = ([vote for vote in votes if vote.criterion == criterion] for criterion in criteria)
    blocks = zip(criteria, parts, strict=True)
    return "\n".join(f"{criterion or 'no criterion given'}:\n{_summary(part, folders)}" for criterion, part in blocks)


def _summary(votes: Sequence[Vote], folders: Sequence[str]) -> str:
    judged = [vote for vote in votes if vote.chosen is not None]
    voters = Counter(vote.voter for vote in votes)
    by = ", ".join(f"{name} {count}" for name, count in sorted(voters.items())) or "nobody"
    num_ties = sum(vote.is_tie for vote in judged)
    counts = f"{counted(len(votes), 'answer')} ({by}): {counted(num_ties, 'tie')}"
    lines = [f"{counts}, {len(votes) - len(judged)} skipped"]
    if judged:
        lines.append(f"median time of an answer: {median(vote.seconds for vote in judged):.1f} s")
    if len(folders) == 2 and folders[0] != folders[1]:
        shares = newer_shares(judged, *folders)
        if shares:
            low, high = wilson(sum(shares), len(shares))
            rate = f"{fmean(shares):.3f}, 95% {low:.3f} to {high:.3f} (Wilson, {counted(len(shares), 'task')})"
            lines.append(f"win rate of {folders[1]} over {folders[0]}: {rate}")
    for (first, second), (labels, others) in sorted(compared_voters(judged).items()):
        kappa = cohens_kappa(labels, others)
        known = "undefined (both gave one answer alone)" if kappa is None else f"{kappa:.3f}"
        lines.append(f"agreement of {first} and {second}: Cohen's kappa {known} of {counted(len(labels), 'judgement')}")
    return "\n".join(lines)


def newer_shares(votes: Sequence[Vote], older: str, newer: str) -> list[float]:
    """Returns for each task the share of comparisons of both folders that the newer one wins, a tie as one half.

    A task counts once: the mean of its voters. So it is an observation in [0, 1], whose spread is at most that of a
    coin, and Wilson's interval over tasks is not too narrow for grids either.
    """
    of_tasks: defaultdict[str, list[float]] = defaultdict(list)
    for vote in votes:
        if vote.chosen is None:
            continue
        points = []
        for first, second in combinations(range(len(vote.shown)), 2):
            origins = vote.shown[first].origin, vote.shown[second].origin
            if set(origins) != {older, newer}:
                continue
            ahead = (first in vote.chosen) - (second in vote.chosen)  # 1, 0 or -1
            points.append(0.5 + 0.5 * (ahead if origins[0] == newer else -ahead))
        if points:
            of_tasks[vote.task].append(fmean(points))
    return [fmean(shares) for shares in of_tasks.values()]


def compared_voters(votes: Sequence[Vote]) -> Mapping[tuple[str, str], tuple[list[Hashable], list[Hashable]]]:
    """Returns the judgements of each two voters on the tasks that both judged, in one order.

    Of a pair the judgement is which output wins, in an order that the voters did not see, or a tie; of a grid there is
    one for each output: chosen or not.
    """
    by_task: defaultdict[str, dict[str, list[Hashable]]] = defaultdict(dict)
    for vote in votes:
        if vote.chosen is not None:
            by_task[vote.task].setdefault(vote.voter, _judgements(vote, vote.chosen))
    both: dict[tuple[str, str], tuple[list[Hashable], list[Hashable]]] = {}
    for judgements in by_task.values():
        for first, second in combinations(sorted(judgements), 2):
            labels, others = both.setdefault((first, second), ([], []))
            labels += judgements[first]
            others += judgements[second]
    return both


def _judgements(vote: Vote, chosen: Sequence[int]) -> list[Hashable]:
    order = sorted(range(len(vote.shown)), key=lambda place: vote.shown[place].digest)
    if vote.form == "pairs":
        return [order.index(chosen[0]) if chosen else None]
    return [place in chosen for place in order]


def cohens_kappa(labels: Sequence[Hashable], others: Sequence[Hashable]) -> float | None:
    """Returns (p - e) / (1 - e) of two raters' labels of the same things; None where it is 0 / 0, or for no label.

    Cohen 1960, "A Coefficient of Agreement for Nominal Scales", doi 10.1177/001316446002000104: p is the share of equal
    labels, e the share that would be equal by chance, the sum over labels of the product of both raters' shares.
    """
    count = len(labels)
    if not count:
        return None
    first, second = Counter(labels), Counter(others)
    equal = sum(one == other for one, other in zip(labels, others, strict=True)) / count
    chance = sum(first[label] * second[label] for label in first) / count**2
    return None if chance == 1 else (equal - chance) / (1 - chance)
