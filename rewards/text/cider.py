"""How much an answer says that references of its own picture say, and those of other pictures do not: CIDEr-D."""

import json
import math
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import ClassVar, Self

from torch import Tensor

from mmrl.core.contracts import Granularity, Placement, RewardBatch
from mmrl.core.data import Prompt

from ..base.answers import TagReward
from ..base.cider import Corpus, Vectors, clipped_cosine, read_corpus, vectors
from ..base.references import judge_answers, reference_words, words


@dataclass
class Cider(TagReward):
    """10 * mean over n = 1 .. 4, and over the references, of a clipped cosine with a penalty of length, in [0, 10].

      cos_n = exp(-(c - r)^2 / (2 sigma^2)) * sum_w min(g(w), h(w)) h(w) / (|g| |h|)

    with g and h the vectors of the n-grams w of answer and reference `target.answer`, c and r their lengths in words;
    an entry is count(w) * log(N / d(w)), where d(w) of the N pictures of a corpus have w in one of their references.
    CIDEr-D of Vedantam et al. 2015 (arXiv 1411.5726), as pycocoevalcap computes it.

    The corpus is the file `corpus`: JSON lines, one picture each, its references under the key `column`, a text or
    several; the training file itself is one. pycocoevalcap takes d and N from the texts that are scored together;
    then an answer's score changes with its neighbours, and a batch about one picture is worth 0 throughout, since
    log(1 / 1) = 0. Also different: words are those of `_references.words`, not of Stanford's tokeniser; lengths
    are in words, where it counts pairs of words, so that texts of no word and of one are equally long there.

    Only an answer to a prompt with one reference of at least four words can reach 10. 0 for an answer without
    exactly one `tag` (None: the whole text), or longer than 10,000 letters.
    """

    corpus: str  # path of a JSON lines file

    source: ClassVar[str] = "Vedantam et al. 2015 (CIDEr), arXiv 1411.5726; github.com/salaniz/pycocoevalcap"
    range: ClassVar[tuple[float, float]] = (0.0, 10.0)
    granularity: ClassVar[Granularity] = "sample"
    differentiable: ClassVar[bool] = False
    needs: ClassVar[frozenset[str]] = frozenset({"texts", "target.answer", "model"})
    batch_size: ClassVar[int | None] = None

    column: str = "answer"
    sigma: float = 6.0  # words; above 0
    tag: str | None = "answer"
    _corpus: Corpus | None = field(default=None, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.sigma < math.inf:
            raise ValueError(f"sigma must be a number of words above 0, got {self.sigma}")

    def tiny(self, seed: int, folder: Path) -> Self:
        """The same with a small corpus of random captions, written to `folder`."""
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / "corpus.jsonl"
        path.write_text("".join(json.dumps({self.column: caption}) + "\n" for caption in _captions(Random(seed))))
        return replace(self, corpus=str(path))

    def prepare(self, placement: Placement) -> None:
        """Counts the n-grams of the corpus; ConfigError where that cannot be read, or holds fewer than two pictures."""
        self._corpus = read_corpus(Path(self.corpus), self.column)

    def check(self, prompt: Prompt) -> None:
        """Raises ValueError for a target that is no text or texts with words, or whose words all pictures have."""
        self._references(prompt)

    def score(self, batch: RewardBatch) -> Tensor:
        """[B] float32; raises ValueError for a target that `check` refuses."""
        assert self._corpus is not None, "prepare comes before score"
        return judge_answers(batch, self.tag, self._references, self._score)

    def _references(self, prompt: Prompt) -> list[Vectors]:
        texts = reference_words(prompt)
        if self._corpus is None:  # the prompt is only checked
            return []
        found = [vectors(text, self._corpus) for text in texts]
        if not any(any(reference.norms) for reference in found):
            raise ValueError(f"every picture of {self.corpus} has the words of target.answer of {prompt.text!r}")
        return found

    def _score(self, answer: str, references: list[Vectors]) -> float:
        assert self._corpus is not None, "score checks it"
        answered = vectors(words(answer), self._corpus)
        total = sum(clipped_cosine(answered, reference, self.sigma) for reference in references)
        return min(10.0, 10 * total / len(references))  # rounding may leave it an ulp above


def _captions(random: Random) -> list[list[str]]:
    """Captions of eight pictures, two each."""
    things, places = ("cat", "dog", "bird", "boat", "bus"), ("table", "street", "lake", "roof")
    one = "a {} {} sits on the {}"
    colours = ("red", "blue", "small", "old")
    return [
        [one.format(random.choice(colours), random.choice(things), random.choice(places)) for _ in range(2)]
        for _ in range(8)
    ]
