"""The edit distance of two sequences, by the table of all their prefixes."""

from collections.abc import Sequence


def edits(left: Sequence[str], right: Sequence[str]) -> int:
    """The fewest insertions, deletions and substitutions from left to right."""
    row = list(range(len(right) + 1))
    for i, one in enumerate(left, 1):
        last, row = row, [i]
        for j, two in enumerate(right, 1):
            row.append(min(last[j - 1] + (one != two), last[j] + 1, row[j - 1] + 1))
    return row[-1]
