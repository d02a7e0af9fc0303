"""One vocabulary: names are the words of the field, and each word means one thing.

The words below stood for something that a reader of the papers knows by another name, or for several things at once.
No class, function, method, declared field, module constant, metric or file is named by them; prose, and the names of
tests, which are sentences, may use them.
"""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.parameters import in_one_test

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ("mmrl", "modalities", "rewards", "samplers")

REPLACED = {  # the word: what says it
    "strand": "path state",
    "tick": "tree step",
    "front": "frontier, generation state",
    "company": "lockstep",
    "together": "lockstep",
    "idle": "dummy forward",
    "drawn": "completions, sampled, online",
    "draw": "render, sample_tokens, generate, take, prompt_index",
    "draws": "sample_kind, prompt_indices, num_noise_samples",
    "found": "what was found: completions, reward values, detected objects",
    "told": "requires, provides, with_instructions",
    "tells": "provides",
    "reads": "requires, requires_rewards",
    "watches": "requires_rewards",
    "watched": "statistics",
    "keeps": "update_mask",
    "dull": "degenerate",
    "mine": "local_rows",
    "says": "override, vocabulary",
    "adopt": "inherit",
    "asked": "request, question, prompt",
    "spy": "instrumented",
    "spies": "instrumented",
    "neighbour": "neighbor",
    "evaluations": "forward outputs",
}
FORMS = {form for word in REPLACED for form in (word, f"{word}s")} | {"neighbouring", "drawer"}

ALLOWED = {
    # settings, which configs have
    "Awm.draws",
    "DenoisingLoss.draws",
    "Dgpo.draws",
    "Nft.draws",
    "GivenScore.drawn",
    # saved in checkpoints
    "Progress.idle",
    # a plug-in is called as its file, whose name configs have
    "GivenAndDrawn",
    # passes over prompts, counted by the metric calls/prompt_reads
    "PROMPT_READS",
}
ALLOWED_FILES = {"given_and_drawn.py"}
METRIC = re.compile(r"[a-z_]+(/[a-z_]+)+/?")


parsed = cache(ast.parse)


@cache
def words_of(name: str) -> frozenset[str]:
    """A name cut at underscores and capitals, in small letters."""
    return frozenset(part.lower() for part in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", name))


def python_files(*folders: str) -> Iterator[Path]:
    """The files of the folders, each once: those behind links by the folder that the links name."""
    for folder in folders:
        for path in sorted((ROOT / folder).rglob("*.py")):
            if not any(parent.is_symlink() for parent in path.parents if parent.is_relative_to(ROOT)):
                yield path


def named_in(tree: ast.AST, owner: str = "") -> Iterator[tuple[str, str, int]]:
    """What a file names: the name, the name with its class, and the line."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.expr):  # an expression names nothing
            continue
        inside = owner
        names: list[str] = []
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names, inside = [node.name], node.name if isinstance(node, ast.ClassDef) else ""
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and (owner or _is_module(tree)):
            names = [node.target.id]
        elif isinstance(node, ast.Assign) and _is_module(tree):
            names = [target.id for target in node.targets if isinstance(target, ast.Name)]
        for name in names:
            yield name, f"{owner}.{name}" if owner else name, getattr(node, "lineno", 0)
        yield from named_in(node, inside)


def _is_module(tree: ast.AST) -> bool:
    return isinstance(tree, ast.Module)


# Lines that may declare a name: few of them have a replaced word, and only files with such a line are parsed.
DECLARING = re.compile(
    r"(?:(?:\b(?:def|class)[ \t]+)|^[ \t]*(?=\w+[ \t]*:)|(?:^|=[ \t]*)(?=\w+[ \t]*=(?!=)))(\w+)", re.MULTILINE
)
BETWEEN_LITERALS = re.compile(r"""["']\s*[a-zA-Z]{0,2}["']""")


def complaints(source: str) -> list[str]:
    """What is named in a file by words that are replaced."""
    if not any(words_of(name) & FORMS for name in DECLARING.findall(source) if not name.startswith("test_")):
        return []
    return [
        f"line {line}: {full} ({', '.join(sorted(wrong))})"
        for name, full, line in named_in(parsed(source))
        if not name.startswith("test_") and (wrong := words_of(name) & FORMS) and full not in ALLOWED
    ]


def metrics_in(source: str) -> list[str]:
    """The names of metrics, and the texts that look like such, with a word that is replaced."""
    joined = BETWEEN_LITERALS.sub("", source)  # as Python joins texts that follow each other
    if not any(words_of(text) & FORMS for text in re.findall(r"[a-z_]+(?:/[a-z_]+)+/?", f"{source}\n{joined}")):
        return []
    texts = [node.value for node in ast.walk(parsed(source)) if isinstance(node, ast.Constant)]
    found = [text for text in texts if isinstance(text, str) and METRIC.fullmatch(text)]
    return [text for text in found if words_of(text) & FORMS]


@pytest.mark.slow
def test_no_class_function_field_or_constant_has_a_word_that_is_replaced() -> None:
    problems = [
        f"{path.relative_to(ROOT)}, {text}"
        for path in python_files(*PACKAGE, "benchmarks", "tests")
        for text in complaints(path.read_text("utf-8"))
    ]
    assert not problems, "\n".join(problems)


@pytest.mark.slow
def test_no_metric_has_a_word_that_is_replaced() -> None:
    problems = {
        f"{path.relative_to(ROOT)}: {text}"
        for path in python_files(*PACKAGE)
        if path.stem != "metric_names"  # which translates them
        for text in metrics_in(path.read_text("utf-8"))
    }
    assert not problems, "\n".join(sorted(problems))


def test_no_file_or_folder_has_a_word_that_is_replaced() -> None:
    names = {part for path in python_files(*PACKAGE) for part in path.relative_to(ROOT).parts} - ALLOWED_FILES
    problems = sorted(name for name in names if words_of(name.removesuffix(".py")) & FORMS)
    assert not problems, ", ".join(problems)


@in_one_test(
    ("source", "name"),
    [
        ("class Strand: ...", "Strand"),
        ("class DrawnTokens: ...", "DrawnTokens"),
        ("def grow():\n    def _told(): ...", "_told"),
        ("class A:\n    def company(self): ...", "A.company"),
        ("class A:\n    num_ticks: int = 1", "A.num_ticks"),
        ("if True:\n    class B:\n        _neighbours: list[int]", "B._neighbours"),
        ("TOLD: int = 1", "TOLD"),
        ("DRAWN = 2", "DRAWN"),
    ],
)
def test_a_name_of_a_replaced_word_is_found_wherever_it_is_declared(source: str, name: str) -> None:
    (complaint,) = complaints(source)
    assert f": {name} (" in complaint


def test_what_is_no_name_of_its_own_passes() -> None:
    local = "def f(drawn):\n    told: int = drawn\n    front = told\n    return front"
    assert complaints(f'"""A strand."""\n{local}\nclass Foundation:\n    renderings: int') == []
    assert complaints("class Awm:\n    draws: int = 6") == [], "a setting"


def test_a_metric_of_a_replaced_word_is_found() -> None:
    source = 'm = {"tokens/drawn": 1, "groups/kept": 2}; f"groups/idle/{m}"'
    assert metrics_in(source) == ["tokens/drawn", "groups/idle/"]


@pytest.mark.slow
def test_what_is_allowed_is_still_there() -> None:
    last = {full.rpartition(".")[2] for full in ALLOWED}
    sources = [path.read_text("utf-8") for path in python_files(*PACKAGE)]
    declaring = [source for source in sources if last & set(DECLARING.findall(source))]
    named = {full for source in declaring for _, full, _ in named_in(parsed(source))}
    assert not ALLOWED - named and not ALLOWED_FILES - {path.name for path in python_files(*PACKAGE)}
