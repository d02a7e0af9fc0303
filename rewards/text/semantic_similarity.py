"""The similarity in meaning of an answer and a reference: the cosine of their embeddings."""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import ClassVar, Literal, Self

import torch
from torch import Tensor

from mmrl.core.contracts import Granularity, License, Placement, RewardBatch
from mmrl.core.data import Prompt
from mmrl.parsing.answers import ParseError

from ..base.answers import TagReward
from ..base.networks.text_embedders import Embedder, Pooling, load_embedder, write_tiny_embedder
from ..base.references import answer_text, reference_texts

Kind = Literal["sentence", "tokens"]
KEPT = 4096  # references whose embeddings stay; of 384 numbers each they take 6 MB


@dataclass
class SemanticSimilarity(TagReward):
    """The similarity of an answer to `target.answer` by embeddings, in [0, 1]: cut off at 0, 1 for the reference.

      sentence  cos of the two texts' embeddings (Reimers and Gurevych 2019, arXiv 1908.10084)
      tokens    (mean over i of max over j of cos_ij + mean over j of max over i of cos_ij) / 2 over the tokens i of the
                answer and j of the reference, by the model's table of token embeddings, without context: BMAS of
                Mixed-R1 (Xu et al. 2025, arXiv 2505.24164), whose table is the policy's own (`model` names it)
    Of several references the best counts. BMAS ignores order: the reference's tokens in any order, or written twice,
    score 1 as well; `sentence` does not let that through.

    `model` is an encoder of sentence-transformers (`mmrl[embeddings]`), or one of transformers; code of its own is not
    run. `prefix` stands before each text, such as "query: " for E5. An answer that is empty, has more tokens than the
    model reads or than 10,000 letters, or without exactly one `tag` (None: the whole text) scores 0: an answer that was
    cut to what the model reads could say anything behind the cut. The embeddings of the last 4,096 references are kept
    from batch to batch, so an epoch embeds each reference once; those of answers are not. The scores are bit by bit
    those without a memory.
    """

    source: ClassVar[str] = "Reimers and Gurevych 2019, arXiv 1908.10084; Xu et al. 2025 (Mixed-R1), arXiv 2505.24164"
    range: ClassVar[tuple[float, float]] = (0.0, 1.0)
    granularity: ClassVar[Granularity] = "sample"
    differentiable: ClassVar[bool] = False
    needs: ClassVar[frozenset[str]] = frozenset({"texts", "target.answer", "model"})
    batch_size: ClassVar[int | None] = None
    license: ClassVar[License] = License("Apache-2.0", commercial=True)  # the model card

    # hub name or folder of the text encoder; this one reads 256 tokens
    model: str = "sentence-transformers/all-MiniLM-L6-v2"
    kind: Kind = "sentence"  # what is compared: sentences, or their tokens
    # how the encoder pools tokens; model: as its folder says, or mean (last of a causal model) where it says nothing
    pooling: Pooling = "model"
    prefix: str = ""  # text before each answer and reference, such as "query: " for E5
    tag: str | None = "answer"  # the tag of the answer, `<tag>...</tag>`; null: the whole text
    _embedder: Embedder | None = field(default=None, init=False, repr=False, compare=False)
    _of_references: dict[str, Tensor] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )  # oldest first

    def tiny(self, seed: int, folder: Path) -> Self:
        """Returns the same reward on a random BERT of small sizes, written to `folder`."""
        write_tiny_embedder(folder, seed)
        return replace(self, model=str(folder))

    def prepare(self, placement: Placement) -> None:
        """Loads the model; raises ConfigError where it cannot be loaded."""
        self._of_references = {}
        self._embedder = load_embedder(self.model, self.pooling, placement.device)

    def check(self, prompt: Prompt) -> None:
        """Raises ValueError for a target that is no text or texts, or (once prepared) longer than the model reads."""
        self._references(prompt)

    def score(self, batch: RewardBatch) -> Tensor:
        """Returns the scores [B] float32; raises ValueError for a target that `check` refuses."""
        assert self._embedder is not None, "prepare comes before score"
        assert batch.outputs.texts is not None, "scoring checks needs"
        prompts = {id(prompt): prompt for prompt in batch.prompts}  # of each group one
        references = {name: self._references(prompt) for name, prompt in prompts.items()}
        answers = [self._answer(text) for text in batch.outputs.texts]
        pairs = [(answer, references[id(prompt)]) for answer, prompt in zip(answers, batch.prompts, strict=True)]
        needed = {text for answer, texts in pairs if answer is not None for text in texts}
        known = dict(self._of_references)
        for text in sorted(needed - known.keys()):
            # alone: beside other texts the last bits depend on these, and a run that is resumed would find others
            known |= self._embed({text})
        known |= self._embed({answer for answer, _ in pairs if answer is not None} - needed)
        newest = {text: one for text, one in self._of_references.items() if text not in needed}
        newest |= {text: known[text] for text in sorted(needed)}
        self._of_references = dict(list(newest.items())[-KEPT:])
        scores = [
            0.0 if answer is None else max(similarity(known[answer], known[text]) for text in texts)
            for answer, texts in pairs
        ]
        return torch.tensor(scores, dtype=torch.float32).clamp(0, 1)

    def _embed(self, texts: set[str]) -> dict[str, Tensor]:
        """Returns the embeddings [K, D] of each text; K is 1 for a sentence."""
        assert self._embedder is not None, "score checks it"
        if self.kind == "tokens":
            return {text: self._embedder.tokens(text) for text in texts}
        return {text: embedding[None] for text, embedding in self._embedder.sentences(list(texts)).items()}

    def _answer(self, text: str) -> str | None:
        """Returns the text of an answer that is embedded; None for a text without an answer."""
        assert self._embedder is not None, "score checks it"
        try:
            answer = answer_text(text, self.tag)
        except ParseError:
            return None
        return self.prefix + answer if answer and self._embedder.fits(self.prefix + answer) else None

    def _references(self, prompt: Prompt) -> list[str]:
        texts = [self.prefix + text for text in reference_texts(prompt)]
        if self._embedder is not None and not all(map(self._embedder.fits, texts)):
            most = self._embedder.context
            raise ValueError(
                f"target.answer of {prompt.text!r} has more than the {most} tokens that {self.model} reads"
            )
        return texts


def similarity(answered: Tensor, reference: Tensor) -> float:
    """Returns the mean of both directions' means of maxima of the cosines of [N, D] and [M, D], rows of length 1."""
    with torch.autocast(answered.device.type, enabled=False):
        cosines = answered @ reference.T
    return float((cosines.amax(1).mean() + cosines.amax(0).mean()) / 2)
