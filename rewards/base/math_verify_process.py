"""Comparison of answers by math-verify; the process of `math_answer` loads this file alone.

math-verify's own limits are off: they are alarms of the main thread, whereas scoring runs on a worker thread.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import Any


def answerer(settings: dict[str, Any]) -> Callable[[dict[str, str]], str]:
    """Returns a function of {right, answer} that gives "equal" or "different".

    Without an answer, right is compared with itself.
    """
    from math_verify import LatexExtractionConfig, parse, verify

    # LaTeX alone: math-verify's plain expressions go through `eval`.
    latex = (LatexExtractionConfig(boxed_match_priority=0),)
    rounding, strict = settings["float_rounding"], settings["strict"]

    @lru_cache(1024)
    def read(text: str) -> Any:
        return parse(f"\\boxed{{{text}}}", latex, fallback_mode="no_fallback", parsing_timeout=None)

    def judge(question: dict[str, str]) -> str:
        right = question["right"]
        answered = read(question.get("answer", right))  # what does not equal itself, such as 1/0, judges nobody
        is_equal = verify(read(right), answered, rounding, strict=strict, timeout_seconds=None)
        return "equal" if is_equal else "different"

    return judge
