"""How likely the policy finds an answer, its own or the right one, behind the thought before it."""

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from mmrl.core.checked import Checked
from mmrl.core.contracts import Granularity, RewardBatch, WeightsName
from mmrl.core.data import Prompt
from mmrl.core.likelihoods import ANSWER_TAG, right_answer_of, tokens_between
from mmrl.parsing.answers import ParseError, tagged


@dataclass(frozen=True)
class AnswerLikelihood(Checked):
    """exp of the mean log-prob of an answer's tokens, at most `ceiling`, under some of the policy's weights.

      own    the sample's own answer: the consistency of GRPO-CARE (Chen et al. 2025, arXiv 2506.16141, section 4.2),
             whose reference is an average of the policy's weights (`averaged`). Put it into `answer_consistency`, which
             rewards right answers alone: a policy that is sure of any answer gains by it as it stands
      right  the target's answer in the place of the sample's own, as DRO (Xu et al. 2025, arXiv 2506.13351) and
             VeriFree (arXiv 2505.21493) judge thoughts without a verifier; of several right answers the first

    The policy sees all that it saw as it answered: images, videos, the conversation. An answer stands in
    `<answer>...</answer>`; of the own one only the text inside counts, of the right one the closing tag too. A sample
    without exactly one such tag scores 0; for `right` an opening tag is enough. The own answer is judged at the
    sampling temperature, the right one at 1.
    """

    source: ClassVar[str] = "Chen et al. 2025 (GRPO-CARE), arXiv 2506.16141; Xu et al. 2025 (DRO), arXiv 2506.13351"
    range: ClassVar[tuple[float, float]] = (0.0, 1.0)
    granularity: ClassVar[Granularity] = "sample"
    differentiable: ClassVar[bool] = False
    needs: ClassVar[frozenset[str]] = frozenset(
        {"texts", "pieces", "likelihoods.averaged"}
    )  # as `of` and `weights` say
    batch_size: ClassVar[int | None] = None

    of: Literal["own", "right"] = "own"  # whose answer
    weights: WeightsName = "averaged"  # under which weights of the policy
    ceiling: Annotated[float, Field(gt=0, le=1)] = 0.95  # the largest likelihood that counts

    def __post_init__(self) -> None:
        super().__post_init__()
        own = {"texts", "pieces", f"likelihoods.{self.weights}"}
        right = {"texts", "target.answer", f"right_answer.{self.weights}"}
        object.__setattr__(self, "needs", frozenset(own if self.of == "own" else right))
        object.__setattr__(self, "range", (0.0, self.ceiling))

    def check(self, prompt: Prompt) -> None:
        """Raises ValueError where the right answer is needed, and the target holds no text or list of texts."""
        if self.of == "right" and right_answer_of(prompt) is None:
            given = prompt.target.get("answer")
            raise ValueError(f"target.answer must be a text or a list of texts, got {given!r} for {prompt.text!r}")

    def score(self, batch: RewardBatch) -> Tensor:
        """Returns the scores [B] float32."""
        means = self._own(batch) if self.of == "own" else batch.right_answer[self.weights].cpu()
        return torch.where(means.isnan(), 0.0, means.exp().clamp(max=self.ceiling)).float()

    def _own(self, batch: RewardBatch) -> Tensor:
        """Returns the mean log-probs [B] of the samples' own answers, NaN where there is none."""
        texts, pieces = batch.outputs.texts, batch.outputs.pieces
        assert texts is not None and pieces is not None, "scoring checks needs"
        log_prob = batch.likelihoods[self.weights].log_prob.cpu()
        means = torch.full((len(batch),), torch.nan)
        for row, text in enumerate(texts):
            try:
                (answer,) = tagged(text, (ANSWER_TAG,)).contents
            except ParseError:
                continue
            start = text.index(f"<{ANSWER_TAG}>") + len(f"<{ANSWER_TAG}>")
            if places := tokens_between(pieces[row], start, start + len(answer)):
                means[row] = log_prob[row, places].mean()
        return means
