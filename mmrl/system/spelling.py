"""The nearest right name to a wrong one, for messages."""

from collections.abc import Iterable
from difflib import get_close_matches

LONGEST_NAME = 200  # letters; to compare texts takes the square of their length


def nearest(wrong: str, known: Iterable[str], *, likeness: float = 0.6) -> str | None:
    """Returns the known name that is most similar to a wrong one; None where none is near.

    Args:
        wrong: the name that was written; for a text that is too long to be a name, the result is None.
        known: the names that are allowed.
        likeness: the smallest similarity of two names, in [0, 1].
    """
    names = [name for name in known if len(name) <= LONGEST_NAME]
    matches = get_close_matches(wrong, names, n=1, cutoff=likeness) if len(wrong) <= LONGEST_NAME else []
    return matches[0] if matches else None


def near(wrong: str, known: Iterable[str]) -> str:
    """Returns ' (did you mean ...?)' with the nearest name; an empty text where none is near."""
    name = nearest(wrong, known)
    return f" (did you mean {name!r}?)" if name else ""


def did_you_mean(wrong: str, known: Iterable[str]) -> str:
    """Returns ' (did you mean ...?)' with the nearest name, or the list of known names where none is near."""
    known = list(known)
    return near(wrong, known) or (f"; known are {', '.join(known)}" if known else "")
