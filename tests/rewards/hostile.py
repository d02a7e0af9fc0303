"""Texts that try to be scored for what they are not, or never to be finished with: for the tests of text rewards.

A test file uses them so: any of TEXTS and HOSTILE has a score within the range (`check_scores`), and so have all three
`megabytes` of each piece of REPEATED, under `pytest.mark.timeout(60)`; `shown` names the cases.
"""

from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy
from torch import Tensor

from mmrl.core.contracts import Reward, RewardBatch

MEGABYTE = 1_000_000

# Pieces of what models write; joined at random they come near to every pattern.
PIECES: tuple[str, ...] = (
    *("<think>", "</think>", "<answer>", "</answer>", "<rethink>", "</rethink>", "<point>", "</point>"),
    *("<|box_start|>", "<|box_end|>", "\\boxed{", "\\frac{1}{2}", "\\left(", "\\right)", "\\text{", "$", "$$", "^{"),
    *("(", ")", "[", "]", "{", "}", ",", ", ", ";", " ", "\n", "\t", "\r\n", ".", "-", "+", "/", "*", "%", "=", "^"),
    *("0", "1", "23", "4.5", ".5", "1,000", "1e5", "1e999", "-0", "NaN", "Infinity", "null", "true", "9" * 30, "²"),
    *("A", "B", "(B)", "b.", "C)", "AB", "A, C", "option", "yes", "no", "not", "None", "the", "a", "an", "red", "cat"),
    *("is", "it", "answer", "two", "10 cm", "5 %", "dont", "don't", '"', "'", "`", "```", "```json", "\\", "\x00", ":"),
    *('"bbox_2d"', '"point_2d"', '"label"', "\u0661\u0662", "\uff22", "\u0412", "\u2003", "\u200b", "\u202e", "\u0301"),
    *("ß", "İ", "ﬁ", "日本", "🐈", "\ud800", " to ", "and", " s", "2.5", "click(start_box='", "__import__('os')"),
)
TEXTS: SearchStrategy[str] = (
    st.text(max_size=60)
    | st.lists(st.sampled_from(PIECES), max_size=30).map("".join)
    | st.lists(st.sampled_from(PIECES), max_size=20).map(" ".join)
    | st.lists(st.sampled_from(PIECES), max_size=20).map(lambda pieces: f"<answer>{''.join(pieces)}</answer>")
)

# Whole texts: those that got through, crashed, or hung the rewards of others (docs/maths/traps.md#groups-and-rewards).
HOSTILE: tuple[str, ...] = (
    *("", " ", "\n", "\x00", "\ud800", "\ufeff", "None", "nan", "-0", "0", "<", ">", "</", "{}", "[]", '""'),
    # answered several times: repeated, nested, unclosed, in the wrong order, in the thought
    "<think></think><answer></answer>",
    "<think>a</think><answer>1</answer> junk <answer>2</answer>",
    "<think>a</think><answer><answer>5</answer></answer>",
    "<think>a<answer>A</answer></think><answer>B</answer>",
    "<answer>A</answer><answer>A</answer>",
    "<answer>A</answer",
    "</answer>A<answer>",
    "<answer>A",
    "<Answer>A</Answer>",
    "<answer >A</answer >",
    "<answer\u200b>A</answer>",
    "<answer>A, B, C, D</answer>",
    "<answer>A B C D E F G H I J</answer>",
    "<answer>A or B or C or D</answer>",
    "<answer>ABCD</answer>",
    "<answer>(A)(B)(C)(D)</answer>",
    "<answer>not A</answer>",
    "<answer>I know that it is not B</answer>",
    "<answer>0 1 2 3 4 5 6 7 8 9</answer>",
    "<answer>yes no yes no</answer>",
    "<answer>\\boxed{1} \\boxed{2}</answer>",
    "\\boxed{\\boxed{1}}",
    "\\boxed{1",
    "\\boxed{}}",
    "<think>\\boxed{3}</think> I do not know",
    # numbers that are none here, and those that a float cannot hold
    "<answer>1e999</answer>",
    "<answer>-1e999</answer>",
    "<answer>NaN</answer>",
    "<answer>Infinity</answer>",
    f"<answer>{'9' * 400}</answer>",
    f"<answer>0.{'0' * 400}1</answer>",
    "<answer>1_000</answer>",
    "<answer>0x10</answer>",
    "<answer>\u0661\u0662</answer>",
    "<answer>\uff11\uff12</answer>",
    "<answer>1,0,0,0</answer>",
    "<answer>3.</answer>",
    "<answer>--3</answer>",
    "<answer>1/0</answer>",
    # what a computer algebra system never finishes
    "<answer>9**9**9**9</answer>",
    "<answer>$9^{9^{9^{9}}}$</answer>",
    "<answer>$10^{10^{10}}$</answer>",
    "<answer>$(10^9)!$</answer>",
    "<answer>$99999999!!!$</answer>",
    "<answer>$\\sum_{i=1}^{10^{100}} i^{i}$</answer>",
    "<answer>$\\binom{10^{10}}{5\\cdot 10^{9}}$</answer>",
    "<answer>$\\int_0^\\infty x^{x^x} dx$</answer>",
    "<answer>$(x+y+z)^{5000}$</answer>",
    "<answer>$0.1^{-10^{9}}$</answer>",
    "<answer>$\\frac{1}{0}$</answer>",
    # code, quotes, structures
    "<answer>__import__('os').system('true')</answer>",
    "<answer>[{'action': 'click'}]</answer>",
    "<answer>{'__class__': 1}</answer>",
    '<answer>{"a": 1, "a": 2}</answer>',
    '<answer>{"a": "\\ud800"}</answer>',
    "<answer>```json\n{}\n```</answer>",
    f"<answer>{'[' * 2000}{']' * 2000}</answer>",
    f"<answer>{'{' * 2000}{'}' * 2000}</answer>",
    "<answer>[10, 10, 0, 0]</answer>",
    "<answer>[0, 0, 1e999, 10]</answer>",
    "<think>[1,2,3,4] [1,2,3,4]</think><rethink>x</rethink>",
    # letters that look alike, marks that change the direction, letters that grow when folded
    "<answer>\u0410</answer>",
    "<answer>\uff21</answer>",
    "<answer>\u24b7</answer>",
    "<answer>\u202eA</answer>",
    "<answer>A\u0301\u0302\u0303</answer>",
    "<answer>ﬁ ß İ Ǆ</answer>",
    "<answer>\u1160\u200b\u2060</answer>",
)

# Repeated to a megabyte each; VLM-R1's own pattern takes 51 s for 6 kB of the first one.
FLOODS: tuple[str, ...] = (
    "<think></think><answer>{[1,1,1,1]",
    *("<think>", "<answer>", "</answer>", "<think></think>", "<answer></answer>", "<answer>A</answer>", "<", "</"),
    *("[", "]", "{", "}", "(", ")", "\\", '"', "'", '\\"', '"\\', '{"a":', "[]", "{}", "[1],", "[],", '"",'),
    *("[1,2,3,4]", "[1,2,3,4] ", "(1,2) ", "1 to 2 ", "<point>1 "),
    *("\\boxed{", "\\boxed{1}", "\\frac{", "\\frac{1}{2}", "\\sqrt{", "$", "$$", "$1$", "^", "_", "^{", "\\left("),
    *("9", "1+", "1 ", "1,", "1.", "0.", "-", "- ", "+", ".", ",", "1,000,", "1/", "1e", "9^", "9!", "!", "1,1,1,1 "),
    *(" ", "\n", "\t", "\r\n", "\u2003", "\u200b", "\x00", "\ud800", "\u0661", "\u0301", "🐈", "日", "ß", "İ"),
    *("A", "A ", "A, ", "(A) ", "A. ", "a b ", "the ", "an", "don't ", "word ", "is it ", "x'", "not ", "cat dog "),
)


# One of each kind of loop that a reader may fall into; all of them: `make exhaustive`.
OF_EACH_KIND: tuple[str, ...] = (
    *("<think></think><answer>{[1,1,1,1]", "<think>", "<answer>A</answer>", "</", "[", "}", "\\", '\\"', '{"a":'),
    *("[1,2,3,4]", "(1,2) ", "1 to 2 ", "\\boxed{", "\\frac{1}{2}", "$1$", "^{", "9", "1 ", "1.", "- ", "1,000,", "9!"),
    *("\n", "\ud800", "\u0301", "İ", "A, ", "a b ", "don't ", "x'"),
)
assert {*OF_EACH_KIND} <= {*FLOODS}
REPEATED: tuple[Any, ...] = tuple(
    pytest.param(piece, marks=[] if piece in OF_EACH_KIND else pytest.mark.exhaustive) for piece in FLOODS
)


def megabytes(piece: str) -> tuple[str, ...]:
    """A megabyte of the piece: alone, in an answer's tag, and behind a closed answer."""
    text = piece * (MEGABYTE // len(piece))
    return text, f"<answer>{text[: MEGABYTE - 17]}</answer>", f"<answer>1</answer>{text}"


def shown(text: str) -> str:
    """The text as the name of a test: short, ASCII, the same on every machine."""
    name = ascii(text)[1:-1]
    return name if len(name) <= 40 else f"{name[:40]}...{len(text)}"


def check_scores(reward: Reward, batch: RewardBatch) -> Tensor:
    """The scores [B] of the batch; fails where one is not finite or outside of the range that the reward declares."""
    scores = reward.score(batch)
    low, high = reward.range
    assert scores.shape == (len(batch),)
    assert scores.isfinite().all() and (scores >= low).all() and (scores <= high).all(), scores.tolist()
    return scores
