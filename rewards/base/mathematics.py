"""Decides whether two mathematical answers are equal, in a process of its own that may be killed."""

from pathlib import Path

from .limited_process import LimitedProcess


class Mathematician(LimitedProcess):
    """Says of answers in LaTeX whether they can be read and are equal, `seconds` of processor time at most for each."""

    def __init__(self, seconds: float, float_rounding: int, is_strict: bool) -> None:
        settings = {"float_rounding": float_rounding, "strict": is_strict}
        super().__init__(Path(__file__).with_name("math_verify_process.py"), "math-verify", seconds, settings)

    def can_read(self, right: str) -> bool:
        """Whether this is mathematics that answers can be compared with, in time: it equals itself."""
        return self.ask({"right": right}) == "equal"

    def are_equal(self, right: str, answer: str) -> bool:
        """Whether the answer equals the right one. Not, where it cannot be read, or time or memory do not suffice."""
        return self.ask({"right": right, "answer": answer}) == "equal"
