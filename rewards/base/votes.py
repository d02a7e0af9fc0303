"""Votes of a group: what an answer says, and which members of a group say the same."""

from collections.abc import Callable, Sequence

from mmrl.parsing.answers import ParseError, extract, read_boxed, read_numbers

from .references import answer_text


def voted_answer(text: str, tag: str | None, *, boxed: bool) -> str | None:
    r"""Returns the answer in the one `tag` (None: the whole text), with `boxed` in the one `\boxed{...}` there.

    None where there is none, or an empty one. Capitals are kept.
    """
    try:
        # What is bounded is the answer: the thoughts before a box may be long.
        return (answer_text(read_boxed(extract(text, tag)), None) if boxed else answer_text(text, tag)) or None
    except ParseError:
        return None


def plain(answer: str) -> str:
    """Returns a form that answers share which differ in white space and capitals only, or are one number."""
    try:
        numbers = read_numbers(answer)
    except ParseError:
        numbers = ()
    if len(numbers) == 1:
        return repr(numbers[0] + 0.0)  # -0 is 0
    return " ".join(answer.split()).casefold()


def clusters(members: Sequence[int], is_same: Callable[[int, int], bool]) -> list[list[int]]:
    """Returns the members in clusters that grow by pairs which are the same: a chain of such pairs is one cluster.

    So the order of members does not matter (single linkage), whether or not sameness is transitive.
    """
    left, found = list(members), []
    while left:
        cluster, place = [left.pop(0)], 0
        while place < len(cluster):  # the cluster grows while it is walked
            one = cluster[place]
            joined = [other for other in left if is_same(one, other)]
            left = [other for other in left if other not in joined]
            cluster, place = cluster + joined, place + 1
        found.append(cluster)
    return found
