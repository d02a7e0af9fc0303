"""CIDEr-D: how much an answer shares with references of its own picture, and not with those of other pictures."""

import json
import math
from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import Annotated, ClassVar, Self

from pydantic import Field
from torch import Tensor

from mmrl.core.contracts import ConfigError, Granularity, License, Placement, RewardBatch
from mmrl.core.data import Prompt
from mmrl.parsing.answers import shown

from ..base.answers import TagReward, judge_answers
from ..base.references import ngrams, reference_words, words

# pycocoevalcap is what tests compare with and not what counts here: it takes the frequencies of n-grams from the texts
# that are scored together, and its package holds 100 MB of Java programs.
ORDERS = (1, 2, 3, 4)
Ngram = tuple[str, ...]


@dataclass(frozen=True)
class _Corpus:
    """The document frequencies of n-grams; a document is the references of one picture."""

    size: int  # documents
    frequency: Counter[Ngram]

    def weight(self, ngram: Ngram) -> float:
        """Returns log(size / documents that hold the n-gram); one that no document holds counts as in one document."""
        return math.log(self.size / max(1, self.frequency[ngram]))


@dataclass(frozen=True)
class _Vectors:
    """The weighted n-grams of a text, for each n of ORDERS."""

    weights: tuple[dict[Ngram, float], ...]
    norms: tuple[float, ...]
    length: int  # in words


@dataclass
class Cider(TagReward):
    """CIDEr-D: 10 * the mean over n = 1 .. 4 and over references of a cosine, clipped and with a penalty of length.

      cos_n = exp(-(c - r)^2 / (2 sigma^2)) * sum_w min(g(w), h(w)) h(w) / (|g| |h|)

    In [0, 10]. g and h are the vectors of the n-grams w of the answer and the reference `target.answer`, c and r their
    lengths in words; an entry is count(w) * log(N / d(w)), where d(w) of the N pictures of a corpus have w in one of
    their references. Vedantam et al. 2015 (arXiv 1411.5726), as pycocoevalcap computes it.

    The corpus is the file `corpus`: JSON lines, one picture each, its references under the key `column`, a text or
    several; the training file itself is one. pycocoevalcap takes d and N from the texts that are scored together; there
    an answer's score changes with its neighbours, and a batch about one picture is worth 0 throughout, since log(1 / 1)
    = 0. Also different: words are those of `references.words`, not of Stanford's tokeniser; and lengths are in words,
    where pycocoevalcap counts pairs of words, so that texts of no word and of one are equally long there.

    Only an answer to a prompt with one reference of at least four words can reach 10. The score is 0 for an answer
    without exactly one `tag` (None: the whole text), or longer than 10,000 letters.
    """

    corpus: str  # path of a JSON lines file, one picture a line

    source: ClassVar[str] = "Vedantam et al. 2015 (CIDEr), arXiv 1411.5726; github.com/salaniz/pycocoevalcap"
    range: ClassVar[tuple[float, float]] = (0.0, 10.0)
    granularity: ClassVar[Granularity] = "sample"
    differentiable: ClassVar[bool] = False
    needs: ClassVar[frozenset[str]] = frozenset({"texts", "target.answer", "model"})
    batch_size: ClassVar[int | None] = None
    license: ClassVar[License] = License("other", commercial=False)  # no weights: the terms of the file `corpus`

    column: str = "answer"  # key of the references in a line of the corpus
    # standard deviation of the penalty of length, in words; the paper's
    sigma: Annotated[float, Field(gt=0, lt=math.inf)] = 6.0
    tag: str | None = "answer"  # the tag of the answer, `<tag>...</tag>`; null: the whole text
    _corpus: _Corpus | None = field(default=None, init=False, repr=False, compare=False)

    def tiny(self, seed: int, folder: Path) -> Self:
        """Returns the same reward with a small corpus of random captions, written to `folder`."""
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / "corpus.jsonl"
        path.write_text("".join(json.dumps({self.column: caption}) + "\n" for caption in _captions(Random(seed))))
        return replace(self, corpus=str(path))

    def prepare(self, placement: Placement) -> None:
        """Counts the n-grams of the corpus.

        Raises ConfigError where the file cannot be read, or holds fewer than two pictures.
        """
        self._corpus = read_corpus(Path(self.corpus), self.column)

    def check(self, prompt: Prompt) -> None:
        """Raises ValueError for a target that is no text or texts with words, or whose words all pictures have."""
        self._references(prompt)

    def score(self, batch: RewardBatch) -> Tensor:
        """Returns the scores [B] float32; raises ValueError for a target that `check` refuses."""
        assert self._corpus is not None, "prepare comes before score"
        return judge_answers(batch, self.tag, self._references, self._score)

    def _references(self, prompt: Prompt) -> list[_Vectors]:
        texts = reference_words(prompt)
        if self._corpus is None:  # the prompt is only checked
            return []
        references = [vectors(text, self._corpus) for text in texts]
        if not any(any(reference.norms) for reference in references):
            raise ValueError(f"every picture of {self.corpus} has the words of target.answer of {prompt.text!r}")
        return references

    def _score(self, answer: str, references: list[_Vectors]) -> float:
        assert self._corpus is not None, "score checks it"
        answered = vectors(words(answer), self._corpus)
        total = sum(clipped_cosine(answered, reference, self.sigma) for reference in references)
        return min(10.0, 10 * total / len(references))  # rounding may leave it an ulp above


def _captions(random: Random) -> list[list[str]]:
    """Returns the captions of eight pictures, two each."""
    things, places = ("cat", "dog", "bird", "boat", "bus"), ("table", "street", "lake", "roof")
    one = "a {} {} sits on the {}"
    colours = ("red", "blue", "small", "old")
    return [
        [one.format(random.choice(colours), random.choice(things), random.choice(places)) for _ in range(2)]
        for _ in range(8)
    ]


def vectors(text: list[str], corpus: _Corpus) -> _Vectors:
    """Returns the weighted n-grams of a text's words."""
    weights = tuple({w: n * corpus.weight(w) for w, n in ngrams(text, order).items()} for order in ORDERS)
    return _Vectors(weights, tuple(math.hypot(*of_order.values()) for of_order in weights), len(text))


def clipped_cosine(answered: _Vectors, reference: _Vectors, sigma: float) -> float:
    """Returns the mean of cos_n over n, in [0, 1]; cos_n is 0 where one of the texts has no n-gram of weight."""
    total = 0.0
    for g, h, norms in zip(
        answered.weights, reference.weights, zip(answered.norms, reference.norms, strict=True), strict=True
    ):
        if all(norms):
            total += sum(min(value, h[w]) * h[w] for w, value in g.items() if w in h) / math.prod(norms)
    gap = answered.length - reference.length
    return math.exp(-(gap**2) / (2 * sigma**2)) * total / len(ORDERS)


def read_corpus(path: Path, column: str) -> _Corpus:
    """Reads the document frequencies of a JSON lines file; raises ConfigError for any other file."""
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
    return _Corpus(size, frequency)


def _document(line: str, column: str, place: str) -> set[Ngram]:
    """Reads the n-grams of one picture's references from a line of the corpus."""
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
