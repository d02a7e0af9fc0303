"""The difference of an answer from the others of its group."""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, ClassVar, Literal, Self

import torch
from pydantic import Field
from torch import Tensor

from mmrl.core.contracts import Granularity, License, Placement, RewardBatch
from mmrl.parsing.answers import ParseError

from ..base.answers import TagReward
from ..base.networks.text_embedders import Embedder, Pooling, load_embedder, write_tiny_embedder
from ..base.references import answer_text, ngrams, words
from .bleu import sacrebleu, sentence_bleu

Kind = Literal["distinct", "self_bleu", "embedding"]


@dataclass
class ResponseDiversity(TagReward):
    """The share that an answer adds to the variety of its group, in [0, 1]; 0 for one that others give word for word.

      distinct   of the answer's runs of n words, each counted as often as it stands there, the share of different
                 ones that no other answer has: what the answer adds to the distinct-n of Li et al. 2016
                 (arXiv 1510.03055), over its length; an answer of fewer than n words is one run
      self_bleu  1 - BLEU of the answer with the others as its references (Zhu et al. 2018, arXiv 1802.01886)
      embedding  1 - the mean over the others of the cosine of the two embeddings, cut off at 0 (`model`, `pooling`
                 and too long answers as in `semantic_similarity`)
    distinct-n and Self-BLEU as published are one number for a set of texts, the same for all in a group, so that no
    advantage depends on it; these are their terms for each answer.

    Nonsense is as different as can be: use it behind a gate, or with a small weight beside an accuracy. An answer that
    is empty, has no words, is longer than 10,000 letters, or lacks its one `tag` (None: the whole text) scores 0 and is
    not compared with; neither are controls, which score 0 too. An answer alone in its group scores 0: there is no other
    answer to compare with.
    """

    source: ClassVar[str] = "Li et al. 2016, arXiv 1510.03055; Zhu et al. 2018 (Texygen), arXiv 1802.01886"
    range: ClassVar[tuple[float, float]] = (0.0, 1.0)
    granularity: ClassVar[Granularity] = "group"
    differentiable: ClassVar[bool] = False
    needs: ClassVar[frozenset[str]] = frozenset({"texts"})  # and "model" of kind embedding
    batch_size: ClassVar[int | None] = None
    license: ClassVar[License] = License(
        "Apache-2.0", commercial=True
    )  # the model card of the encoder of `embedding`; other kinds load none

    kind: Kind = "distinct"  # how answers are compared
    # words in a run of `distinct`, or in the longest run of `self_bleu` (4 there is BLEU's own)
    n: Annotated[int, Field(ge=1, le=9)] = 2
    model: str = "sentence-transformers/all-MiniLM-L6-v2"  # of `embedding`: hub name or folder of the text encoder
    pooling: Pooling = "model"  # of `embedding`: how the encoder pools tokens; model: as its folder says
    tag: str | None = None  # the tag of the answer, `<tag>...</tag>`; null: the whole text
    _embedder: Embedder | None = field(default=None, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.kind == "embedding":
            object.__setattr__(self, "needs", self.needs | {"model"})  # of this one, not of the class

    def tiny(self, seed: int, folder: Path) -> Self:
        """Returns the same reward, with kind `embedding` on a random BERT of small sizes, written to `folder`."""
        if self.kind != "embedding":
            return self
        write_tiny_embedder(folder, seed)
        return replace(self, model=str(folder))

    def prepare(self, placement: Placement) -> None:
        """Loads the text encoder of kind `embedding`; raises ConfigError where it cannot be loaded."""
        if self.kind == "embedding":
            self._embedder = load_embedder(self.model, self.pooling, placement.device)

    def score(self, batch: RewardBatch) -> Tensor:
        """Returns the scores [B] float32; 0 for the controls."""
        texts = batch.outputs.texts
        assert texts is not None, "scoring checks needs"
        assert self._embedder is not None or self.kind != "embedding", "prepare comes before score"
        scores = torch.zeros(len(batch))
        judge = {"distinct": self._distinct, "self_bleu": self._self_bleu, "embedding": self._embedding}[self.kind]
        for rows in batch.members():
            answers = {row: answer for row in rows.tolist() if (answer := self._answer(texts[row])) is not None}
            if len(answers) > 1:
                scores[list(answers)] = torch.tensor(judge(list(answers.values())), dtype=torch.float32)
        return scores.clamp(0, 1)

    def _answer(self, text: str) -> str | None:
        """Returns the part of a text that is compared; None where there is nothing to compare."""
        try:
            answer = answer_text(text, self.tag)
        except ParseError:
            return None
        if self._embedder is not None:
            return answer if answer and self._embedder.fits(answer) else None
        return answer if words(answer) else None

    def _distinct(self, answers: list[str]) -> list[float]:
        runs = [ngrams(split, min(self.n, len(split))) for split in map(words, answers)]
        holders: dict[tuple[str, ...], int] = {}
        for counts in runs:
            for run in counts:
                holders[run] = holders.get(run, 0) + 1
        return [sum(holders[run] == 1 for run in counts) / counts.total() for counts in runs]

    def _self_bleu(self, answers: list[str]) -> list[float]:
        bleu = sacrebleu(max_ngram_order=self.n, tokenize="none")
        split = [" ".join(words(answer)) for answer in answers]
        return [1 - sentence_bleu(bleu, one, split[:row] + split[row + 1 :]) for row, one in enumerate(split)]

    def _embedding(self, answers: list[str]) -> list[float]:
        assert self._embedder is not None, "score checks it"
        known = self._embedder.sentences(answers)
        rows = torch.stack([known[answer] for answer in answers])
        with torch.autocast(rows.device.type, enabled=False):
            cosines = (rows @ rows.T).clamp(0, 1)
        scores: list[float] = (1 - (cosines.sum(1) - cosines.diagonal()) / (len(answers) - 1)).tolist()
        return scores
