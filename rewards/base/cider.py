"""Texts as weighted n-grams: of how many documents of a corpus hold each, and how alike two texts are by them."""

import json
import math
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from mmrl.core.contracts import ConfigError
from mmrl.parsing.answers import shown

from .references import ngrams, words

ORDERS = (1, 2, 3, 4)
Ngram = tuple[str, ...]


@dataclass(frozen=True)
class Corpus:
    """Of how many documents, each the references of one picture, hold an n-gram."""

    size: int  # documents
    frequency: Counter[Ngram]

    def weight(self, ngram: Ngram) -> float:
        """log(size / documents that hold it), those that no document holds as those that one does."""
        return math.log(self.size / max(1, self.frequency[ngram]))


@dataclass(frozen=True)
class Vectors:
    """The n-grams of a text, weighted, for each n of ORDERS."""

    weights: tuple[dict[Ngram, float], ...]
    norms: tuple[float, ...]
    length: int  # in words


def vectors(text: list[str], corpus: Corpus) -> Vectors:
    """The weighted n-grams of a text's words."""
    weights = tuple({w: n * corpus.weight(w) for w, n in ngrams(text, order).items()} for order in ORDERS)
    return Vectors(weights, tuple(math.hypot(*of_order.values()) for of_order in weights), len(text))


def clipped_cosine(answered: Vectors, reference: Vectors, sigma: float) -> float:
    """The mean of cos_n over n, in [0, 1]; 0 for each n of which one of the texts has nothing."""
    total = 0.0
    for g, h, norms in zip(
        answered.weights, reference.weights, zip(answered.norms, reference.norms, strict=True), strict=True
    ):
        if all(norms):
            total += sum(min(value, h[w]) * h[w] for w, value in g.items() if w in h) / math.prod(norms)
    gap = answered.length - reference.length
    return math.exp(-(gap**2) / (2 * sigma**2)) * total / len(ORDERS)


def read_corpus(path: Path, column: str) -> Corpus:
    """The document frequencies of a JSON lines file; raises ConfigError where it is none."""
    frequency: Counter[Ngram] = Counter()
    size = 0
    try:
        with path.open(encoding="utf-8") as lines:
            for number, line in enumerate(lines, 1):
                if line.strip():
                    size += 1
                    frequency.update(_document(line, column, f"{path}:{number}"))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read the corpus of cider: {error}") from error
    if size < 2:
        raise ConfigError(f"the corpus of cider needs at least two pictures, {path} has {size}")
    return Corpus(size, frequency)


def _document(line: str, column: str, place: str) -> set[Ngram]:
    """The n-grams of one picture's references."""
    try:
        row = json.loads(line)
    except json.JSONDecodeError as error:
        raise ConfigError(f"{place} is not JSON: {error.msg} in {shown(line.strip())}") from error
    if not isinstance(row, dict) or column not in row:
        has = ", ".join(row) if isinstance(row, dict) else shown(line.strip())
        raise ConfigError(f"{place} needs references under {column!r}, got {has}")
    texts = [row[column]] if isinstance(row[column], str) else row[column]
    if not isinstance(texts, list) or not texts or not all(isinstance(text, str) for text in texts):
        raise ConfigError(f"{place}: {column!r} must be a text or a list of texts, got {shown(repr(row[column]))}")
    return {ngram for text in texts for order in ORDERS for ngram in ngrams(words(text), order)}
