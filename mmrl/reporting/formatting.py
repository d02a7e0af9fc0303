"""Numbers, durations and ticks as people read them."""

import math
import re
from html import escape
from typing import Any

MINUS = "\N{MINUS SIGN}"
NOTHING = "\N{EN DASH}"
# marks of Unicode's bidirectional algorithm, and control characters but tabs and ends of lines
HIDDEN = re.compile("[\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")


def number(value: Any) -> str:
    """Returns three decimals for what is near 1, fewer for large numbers, powers of ten else; a dash for no number."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return NOTHING
    size = abs(value)
    if isinstance(value, int) and size < 1e6:
        return _signed(f"{value:,}")
    if size >= 1e6 or 0 < size < 1e-3:
        return scientific(value, 2)
    return _signed(f"{value:,.{0 if size >= 1000 else 1 if size >= 100 else 2 if size >= 10 else 3}f}")


def breakable(name: str) -> str:
    """Returns a name as HTML in which lines break behind `_`, `:`, `.` and `/`, and not elsewhere in a word
    that fits.
    """
    return re.sub("([_:./])", r"\1<wbr>", without_hidden(escape(name, quote=False)))


def shown_text(text: str) -> str:
    """Returns a text of anybody's as HTML; control characters, and marks that would turn the direction of
    the page's text, are written out."""
    return without_hidden(escape(text))


def without_hidden(text: str) -> str:
    """Returns a text with control characters and the marks of direction written out."""
    return HIDDEN.sub(lambda mark: f"\\u{ord(mark[0]):04x}", text)


def count(value: float) -> str:
    """Returns a whole number with its thousands apart."""
    return f"{value:,.0f}"


def counted(value: float, what: str) -> str:
    """Returns a whole number of things, whose word for one is `what`."""
    return f"{count(value)} {what}{'' if count(value) == '1' else 's'}"


def duration(seconds: float) -> str:
    """Returns seconds as `3 ms`, `4.20 s`, `27 s`, `3 min 12 s` or `4 h 05 min`."""
    if 0 < seconds < 0.0095:
        return "under 1 ms" if seconds < 0.0005 else f"{1000 * seconds:.0f} ms"
    if seconds < 9.995:
        return f"{seconds:.2f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    minutes = round(seconds / 60)
    return f"{minutes // 60:,} h {minutes % 60:02d} min"


def scientific(value: float, digits: int) -> str:
    """Returns `1.20e-5`: a mantissa with `digits` decimals, and no zeros in the exponent."""
    mantissa, exponent = f"{value:.{digits}e}".split("e")
    return _signed(mantissa) + "e" + _signed(str(int(exponent)))


def _signed(text: str) -> str:
    return text.replace("-", MINUS)
