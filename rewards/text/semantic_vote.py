"""The share of its group that means the same as an answer: a reward without labels (EMPO)."""

from dataclasses import dataclass, field, replace
from itertools import permutations
from pathlib import Path
from typing import Annotated, ClassVar, Self

import torch
from pydantic import Field
from torch import Tensor

from mmrl.core.contracts import Granularity, License, Placement, RewardBatch
from mmrl.core.data import Prompt

from ..base.answers import TagReward
from ..base.networks.entailment import EntailmentModel, load_entailment_model, write_tiny_entailment_model
from ..base.votes import clusters, plain, voted_answer


@dataclass
class SemanticVote(TagReward):
    r"""The share of a group's votes that the cluster of an answer has: n_c / n, in [0, 1]; no target is read.

    EMPO (Zhang et al. 2025, arXiv 2504.05812): answers that mean the same are one cluster, and a cluster's share stands
    for its likelihood, so that the semantic entropy of the group falls. Two answers mean the same where each follows
    from the other, by the likeliest class of a model of natural language inference (Kuhn et al. 2023, arXiv 2302.09664,
    algorithm 1). With `question` both texts of a pair begin with the prompt, as there: "blue" and "red" alone
    contradict nothing. Answers that differ in white space and capitals only, or that are one number, need no model.
    `majority_vote` with `soft` is this reward without the model.

    Answers are read from the `tag` (None: the whole text), with `boxed` from the one `\boxed{...}` in it. A text
    without exactly one answer, with an empty one, or with one of which the model cannot read two at once does not vote
    and scores 0; so do controls. Below `min_majority` for the largest cluster the whole group scores 0 (0.2 in EMPO's
    code): where all answer otherwise, there is nothing to learn.

    Clusters grow by pairs, and a chain of pairs is one (single linkage), so that the order of samples does not matter;
    the papers compare with the first member of each cluster alone. EMPO's code asks a verifier of answers, in one
    direction, in the place of the model of its paper; it gives -0.5 for no answer and counts such texts in n, and gives
    0 for answers that repeat the question.
    """

    source: ClassVar[str] = "Zhang et al. 2025 (EMPO), arXiv 2504.05812; Kuhn et al. 2023, arXiv 2302.09664"
    range: ClassVar[tuple[float, float]] = (0.0, 1.0)
    granularity: ClassVar[Granularity] = "group"
    differentiable: ClassVar[bool] = False
    needs: ClassVar[frozenset[str]] = frozenset({"texts", "model"})
    batch_size: ClassVar[int | None] = None
    license: ClassVar[License] = License("MIT", commercial=True)  # the model card

    # hub name or folder of the model of natural language inference; EMPO's code names this one
    model: str = "microsoft/deberta-v2-xlarge-mnli"
    question: bool = True  # whether both texts of a pair begin with the prompt
    # share of the votes that the largest cluster needs; the paper's own filter is of entropies
    min_majority: Annotated[float, Field(ge=0, le=1)] = 0.0
    # whether the answer stands in the one `\boxed{...}` of that text; EMPO's, with `tag` null
    boxed: bool = False
    tag: str | None = "answer"  # the tag of the answer, `<tag>...</tag>`; null: the whole text
    _entailment: EntailmentModel | None = field(default=None, init=False, repr=False, compare=False)

    def tiny(self, seed: int, folder: Path) -> Self:
        """Returns the same reward on a random DeBERTa of small sizes, written to `folder`."""
        write_tiny_entailment_model(folder, seed)
        return replace(self, model=str(folder))

    def prepare(self, placement: Placement) -> None:
        """Loads the model; raises ConfigError where it cannot be loaded."""
        self._entailment = load_entailment_model(self.model, placement.device)

    def _check_room(self, prompt: Prompt) -> None:
        """Raises ValueError for a question that leaves the model no room for two answers."""
        assert self._entailment is not None, "prepare comes before score"
        start = self._text(prompt, "?")
        if not self._entailment.fits(start, start):
            raise ValueError(
                f"twice the prompt {prompt.text[:80]!r} and an answer are more than the {self._entailment.context} "
                f"tokens that {self.model} reads; set question: false, or take another model"
            )

    def score(self, batch: RewardBatch) -> Tensor:
        """Returns the scores [B] float32; 0 for the controls.

        Raises ValueError for a prompt of which the model cannot read two answers.
        """
        assert batch.outputs.texts is not None, "scoring checks needs"
        answers = [voted_answer(text, self.tag, boxed=self.boxed) for text in batch.outputs.texts]
        scores = torch.zeros(len(batch))
        for rows in batch.members():
            for prompt in {id(batch.prompts[row]): batch.prompts[row] for row in rows.tolist()}.values():
                self._check_room(prompt)
            given = {row: answer for row in rows.tolist() if (answer := answers[row]) is not None}
            texts = {row: self._text(batch.prompts[row], answer) for row, answer in given.items()}
            for cluster, share in self._shares(texts, {row: plain(answer) for row, answer in given.items()}):
                scores[cluster] = share
        return scores

    def _shares(self, texts: dict[int, str], forms: dict[int, str]) -> list[tuple[list[int], float]]:
        """Returns the clusters of a group with their shares of the votes.

        Args:
            texts: what the model reads of each answer, by its row. forms: of answers that are the same without it.
        """
        assert self._entailment is not None, "prepare comes before score"
        # one text for all answers of a form, whichever sample of them comes first
        text_of = {form: min(texts[row] for row in texts if forms[row] == form) for form in forms.values()}
        readable = {form for form, text in text_of.items() if self._entailment.fits(text, text)}
        pairs = sorted(permutations(sorted(readable), 2))
        follows = self._entailment.entails([(text_of[one], text_of[other]) for one, other in pairs])
        entailed = {pair for pair, does in zip(pairs, follows, strict=True) if does}
        voters = [row for row in texts if forms[row] in readable]

        def is_same(one: int, other: int) -> bool:
            pair = forms[one], forms[other]
            return pair[0] == pair[1] or {pair, pair[::-1]} <= entailed

        found = [(cluster, len(cluster) / len(voters)) for cluster in clusters(voters, is_same)]
        return found if max((share for _, share in found), default=0.0) >= self.min_majority else []

    def _text(self, prompt: Prompt, answer: str) -> str:
        """Returns what the model reads of an answer."""
        return f"{prompt.text} {answer}" if self.question else answer
