"""TEDS: tables of HTML and LaTeX as trees, and edit distances against the definition, by hand and by recursion."""

import random
import time
from functools import cache
from typing import Any

import pytest
from rapidfuzz.distance import Levenshtein

from mmrl.core.contracts import RewardBatch
from mmrl.core.data import Prompt
from mmrl.parsing.answers import ParseError
from mmrl.rewards.base.tables import Node, html_table, latex_table, tree_distance
from mmrl.rewards.text.teds import Teds
from tests.rewards.example import Example, answers

TRUTH = "<table><thead><tr><td>ab</td><td>c</td></tr></thead><tbody><tr><td colspan=2>def</td></tr></tbody></table>"
LATEX = r"\begin{tabular}{lc} \toprule ab & \textbf{c} \\ \midrule \multicolumn{2}{c}{d\%} \\ \bottomrule \end{tabular}"


def tables(source: random.Random) -> RewardBatch:
    def table() -> str:
        rows = [[source.choice(["ab", "c", "de"]) for _ in range(source.randint(1, 4))] for _ in range(3)]
        written = ["".join(f"<td>{cell}</td>" for cell in row) for row in rows]
        return f"<answer><table>{''.join(f'<tr>{row}</tr>' for row in written)}</table></answer>"

    texts = [f"<answer>{TRUTH}</answer>", "no table", *(table() for _ in range(6))]
    return answers(texts, {"table": TRUTH})


EXAMPLE = Example(
    random_batch=tables, best=lambda: answers([f"<answer>{TRUTH}</answer>"] * 4, {"table": TRUTH})
)  # fmt: skip


def judge(text: str, answer: Any, **settings: Any) -> float:
    found: float = Teds(**({"tag": None} | settings)).score(answers([text], {"table": answer})).item()
    return found


def sketch(node: Node) -> str:
    """A tree in one line: rows in brackets, cells by their text and spans."""
    if node.tag == "td":
        spans = "" if node.spans == (1, 1) else f":{node.spans[0]}x{node.spans[1]}"
        return "".join(node.content) + spans
    name = {"table": "", "tr": ""}.get(node.tag, node.tag)
    return f"{name}[{' '.join(map(sketch, node.children))}]"


def test_teds_by_hand() -> None:
    """Eight nodes: the table, two sections, two rows and three cells."""
    assert judge(TRUTH, TRUTH) == 1 and sketch(html_table(TRUTH)) == "[thead[[ab c]] tbody[[def:2x1]]]"
    assert judge(TRUTH.replace(">ab", ">ax"), TRUTH) == pytest.approx(1 - 0.5 / 8)
    assert judge(TRUTH.replace(">ab", ">ax"), TRUTH, structure_only=True) == 1
    assert judge(TRUTH.replace("colspan=2", ""), TRUTH) == pytest.approx(1 - 1 / 8)
    assert judge(TRUTH.replace("<td>c</td>", ""), TRUTH) == pytest.approx(1 - 1 / 8)
    assert judge(TRUTH.replace("<td>c</td>", "<td>c</td>" * 3), TRUTH) == pytest.approx(1 - 2 / 10)
    assert judge("<table><tr><td>ab</td></tr></table>", TRUTH) == pytest.approx(1 - 5 / 8)
    assert judge("<table><tr><td>x</td></tr></table>", [TRUTH, "<table><tr><td>x</td></tr></table>"]) == 1
    assert judge(LATEX, LATEX.replace(r"d\%", "d"), markup="latex") == pytest.approx(1 - 0.5 / 6)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "So: <table><tr><th>a <b>b</b>\n <td rowspan='2'>c<br/>d<tr><td></table>",
            "[[a <b>b</b> c<br></br>d:1x2] []]",
        ),
        ("<TABLE><caption>A x</caption><colgroup><col></colgroup><tr><td>1 &lt; 2</TD></tr></TABLE>", "[[1 < 2]]"),
        ("<table><tr><td>a<tbody><tr><td>b</tbody></table>", "[[a] tbody[[b]]]"),
    ],
)
def test_html_by_hand(text: str, expected: str) -> None:
    assert sketch(html_table(text)) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (LATEX, r"[[ab \textbf{c}] [d\%:2x1]]"),
        (
            r"\begin{tabular*}{3cm}[t]{@{}l>{\em}p{2cm}@{}}a\&b&{x & y}\\[2pt]\hline c&% d & e\\"
            "\nf\\\\\\end{tabular*}",
            r"[[a\&b {x & y}] [c f]]",
        ),
        (r"\begin{array}{cc}\multirow{2}{*}{a}&b\\&c\\\cmidrule(lr){1-2} d&\end{array}", "[[a:1x2 b] [c] [d ]]"),
        (
            r"\begin{tabular}{cc}\multicolumn{2}{c}{\multirow{2}*{a}}&x\\\multicolumn{2}{c}{}&y\\"
            r"a&b\tabularnewline\end{tabular}",
            "[[a:2x2 x] [y] [a b]]",
        ),
        (r"\begin{tabular}{c}a\\hline\end{tabular}", "[[a] [hline]]"),
        (r"\begin{tabular}{c}\multicolumn{1}{c}{a} b\end{tabular}", r"[[\multicolumn{1}{c}{a} b]]"),
    ],
)  # fmt: skip
def test_latex_by_hand(text: str, expected: str) -> None:
    assert sketch(latex_table(text)) == expected


@pytest.mark.parametrize(
    "text",
    [
        "", "a", "<table>", "<table></table>", "<table><tr><td>a</td></tr>", "<table><td>a</td></table>",
        "<table><tr>x<td>a</td></tr></table>", "<table><tr><td colspan=0>a</td></tr></table>",
        "<table><tr><td colspan=1e9>a</td></tr></table>", "<table><tr><td><table></table></td></tr></table>",
        "<table><tr><td>a</td></tr></table>" * 2, f"<table><tr>{'<td>' * 500}</table>",
        "<![x[ <table><tr><td>a</table>",
    ],
)  # fmt: skip
def test_what_is_not_one_html_table_scores_0(text: str) -> None:
    with pytest.raises(ParseError):
        html_table(text)
    assert judge(text, TRUTH) == 0
    with pytest.raises(ValueError, match=r"target\.table"):
        Teds().check(Prompt("q", target={"table": text}))


@pytest.mark.parametrize(
    "text",
    [
        "a & b", r"\begin{tabular}{c}a", r"\begin{tabular}c a\end{tabular}", r"\begin{tabular}{c}{a\end{tabular}",
        r"\begin{tabular}{c}a}{\end{tabular}", r"\begin{tabular}{c}\end{tabular}", LATEX * 2,
        r"\begin{tabular}{c}\multicolumn{x}{c}{a}\end{tabular}",
        r"\begin{tabular}{c}\multirow{9999}{*}{a}\end{tabular}",
        r"\begin{tabular}{c}\multirow{2}{*}\end{tabular}", r"\begin{tabular}{c}" + "&" * 600 + r"\end{tabular}",
    ],
)  # fmt: skip
def test_what_is_not_one_latex_table_scores_0(text: str) -> None:
    with pytest.raises(ParseError):
        latex_table(text)
    assert judge(text, LATEX, markup="latex") == 0


def random_tree(source: random.Random, depth: int = 0) -> Node:
    count = 0 if depth == 3 else source.randint(0 if depth else 1, 3)
    children = [random_tree(source, depth + 1) for _ in range(count)]
    content = tuple(source.choice("ab") for _ in range(source.randint(0, 3)))
    return Node(source.choice(["td", "tr"]), content=content, children=children)


def change(one: Node, other: Node) -> float:
    return 1.0 if one.tag != other.tag else float(Levenshtein.normalized_distance(one.content, other.content))


def slow_distance(one: Node, other: Node) -> float:
    """The distance of forests by its definition: the rightmost node of either goes, or both are one another."""
    known: dict[int, Node] = {}

    def plain(node: Node) -> Any:
        known[id(node)] = node
        return id(node), tuple(map(plain, node.children))

    @cache
    def between(left: Any, right: Any) -> float:
        if not left and not right:
            return 0.0
        found = []
        if left:
            found.append(between(left[:-1] + left[-1][1], right) + 1)
        if right:
            found.append(between(left, right[:-1] + right[-1][1]) + 1)
        if left and right:
            both = between(left[-1][1], right[-1][1]) + between(left[:-1], right[:-1])
            found.append(both + change(known[left[-1][0]], known[right[-1][0]]))
        return min(found)

    return between((plain(one),), (plain(other),))


def test_distances_are_those_of_the_definition() -> None:
    source = random.Random(0)
    for _ in range(60):
        one, other = random_tree(source), random_tree(source)
        assert tree_distance(one, other, change) == pytest.approx(slow_distance(one, other))
        assert tree_distance(one, other, change) == pytest.approx(tree_distance(other, one, change))
        assert tree_distance(one, one, change) == 0


@pytest.mark.slow  # the largest tables
def test_the_largest_tables_take_seconds() -> None:
    rows = [f"<tr>{''.join(f'<td>{row * column}</td>' for column in range(20))}</tr>" for row in range(23)]
    big = f"<table>{''.join(rows)}</table>"
    started = time.perf_counter()
    assert 0.9 < judge(big.replace("<td>21</td>", ""), big) < 1
    assert time.perf_counter() - started < 20


LONG = ["<" * 9_999, "<table>" + "<td " * 2_400, "&" * 9_999, "\\begin{tabular}{" + "{" * 9_000, "\\" * 9_999 + "%"]


@pytest.mark.parametrize("text", LONG)
def test_long_nonsense_takes_no_time(text: str) -> None:
    started = time.perf_counter()
    for markup, right in (("html", TRUTH), ("latex", LATEX)):
        assert judge(text, right, markup=markup) == 0
    assert time.perf_counter() - started < 2


def test_a_target_of_anything_but_texts_is_refused() -> None:
    for given in (None, [], [1], {"a": "b"}):
        with pytest.raises(ValueError, match=r"target\.table must be a text or a list of texts"):
            Teds().check(Prompt("q", target={"table": given}))
