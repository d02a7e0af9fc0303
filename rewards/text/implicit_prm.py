"""Log-ratios of two sets of the policy's weights as rewards of tokens or steps (Implicit PRM)."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from mmrl.core.checked import Checked
from mmrl.core.contracts import Granularity, RewardBatch
from mmrl.core.likelihoods import LikelihoodsName


@dataclass(frozen=True)
class ImplicitPrm(Checked):
    """r_t = beta log(pi(y_t | y_<t) / pi_reference(y_t | y_<t)) of each token, or its sum over each step.

    Yuan et al. 2024, "Free Process Rewards without Process Labels", arXiv 2412.01981: a model that was trained on
    outcomes alone, with beta times the log-ratio of a whole answer as its reward r, scores the answer's parts by their
    own log-ratios. Up to token t they add up to beta log E exp(r / beta), the mean over the reference's completions
    (the paper's proposition, as the model card of PRIME-RL/EurusPRM-Stage2 repeats it). Cui et al. 2025, "Process
    Reinforcement through Implicit Rewards" (PRIME), arXiv 2502.01456, trains it beside the policy. 0.05 is
    `beta_train` of PRIME's scripts; the beta of the first paper could not be verified. The advantage for it is
    `process`.

    pi is the policy itself under `weights`: there is no second model, and no pass of its own where the weights are
    those of sampling. So it learns what the run learns. Give it outcomes as the other rewards, and a loss in which the
    log-ratio is the reward, such as `nca` or `dpo`, or a KL penalty: of a policy that is the best for a reward less
    beta KL, the log-ratios are that reward (Rafailov et al. 2024, arXiv 2404.12358; RTO, arXiv 2404.18922, takes the
    log-ratios of a policy trained by DPO). PRIME's own model has a cross-entropy on right and wrong answers, which is
    not here, and neither is a model apart from the policy.

    It is unbounded: a policy raises it by leaving its reference, right or wrong, and in the beginning both are the same
    and all is 0. `averaged` weights lag behind the policy, which then cannot raise the reward at once. Log-probs are
    under the distribution that the answers were sampled from, temperature and truncation included.
    """

    source: ClassVar[str] = "Yuan et al. 2024, arXiv 2412.01981; Cui et al. 2025 (PRIME), arXiv 2502.01456"
    range: ClassVar[tuple[float, float]] = (-torch.inf, torch.inf)
    granularity: ClassVar[Granularity] = "token"  # or segment, with a separator
    differentiable: ClassVar[bool] = False
    needs: ClassVar[frozenset[str]] = frozenset({"likelihoods.averaged", "likelihoods.reference"})  # as `weights` says
    batch_size: ClassVar[int | None] = None

    weights: LikelihoodsName = "averaged"  # pi: which weights of the policy; `sampled` costs no reading
    beta: Annotated[float, Field(gt=0)] = 0.05  # times the log-ratio; 0.05 as in PRIME
    # what ends a step, such as "\n\n": the step's reward stands at the token in which it ends; null: each token is one
    separator: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.weights == "reference" or self.separator == "":
            raise ValueError(
                f"weights must not be the reference and separator not empty, got {self.weights}, {self.separator!r}"
            )
        needs = {f"likelihoods.{self.weights}", "likelihoods.reference"}
        if self.separator is not None:
            needs |= {"pieces"}
            object.__setattr__(self, "granularity", "segment")
        object.__setattr__(self, "needs", frozenset(needs))

    def score(self, batch: RewardBatch) -> Tensor:
        """Returns the scores [B, K] float32; of steps at their ends, 0 elsewhere."""
        is_token = batch.is_decision.cpu()
        own, reference = (batch.likelihoods[name].log_prob.cpu() for name in (self.weights, "reference"))
        ratio = (own.double() - reference.double())[:, : is_token.shape[1]]
        values = torch.where(is_token, self.beta * ratio, 0.0)
        if self.separator is None:
            return values.float()
        ends = self.ends(batch)
        step = ends.long().cumsum(1) - ends.long()  # [B, K]: the number of each token's step
        sums = torch.zeros_like(values).scatter_add(1, step.clamp(max=max(0, values.shape[1] - 1)), values)
        return torch.where(ends, sums.gather(1, step), 0.0).float()

    def ends(self, batch: RewardBatch) -> Tensor:
        """Returns [B, K] bool: the tokens in which a separator ends, and the last token of each sample."""
        assert self.separator is not None and batch.outputs.pieces is not None, "scoring checks needs"
        is_token = batch.is_decision.cpu()
        count = is_token.sum(1, keepdim=True)
        found = is_token & (torch.arange(is_token.shape[1]) == count - 1)
        for row, pieces in enumerate(batch.outputs.pieces):
            text, start, place, end = "".join(pieces), 0, 0, 0
            while (start := text.find(self.separator, start)) >= 0:
                start += len(self.separator)
                while end < start:  # the token that holds the separator's last character
                    end += len(pieces[place])
                    place += 1
                if place <= int(count[row]):
                    found[row, place - 1] = True
        return found
