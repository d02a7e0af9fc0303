"""The distribution that tokens are sampled from: temperature, banned tokens, top-k, top-p, min-p; and its support.

Maths: docs/maths/token-policies.md#the-distribution-of-a-token
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from mmrl.core.contracts import DivergedError


@dataclass(frozen=True)
class SamplingDistribution:
    """The settings that turn logits into the distribution that tokens are sampled from.

    In this order: `banned` ids are removed; logits are divided by `temperature` (0: the likeliest token alone); the
    `top_k` likeliest tokens are kept; of those the smallest set that holds `top_p` of the probability (Holtzman et al.
    2019, arXiv 1904.09751); of those the tokens at least `min_p` times as likely as the likeliest (Nguyen et al. 2024,
    arXiv 2407.01082). The rest is normalised. Of equally likely tokens the lower id is kept first.
    """

    temperature: float
    top_p: float = 1.0
    top_k: int | None = None
    min_p: float = 0.0
    banned: tuple[int, ...] = ()

    @property
    def is_truncated(self) -> bool:
        """Returns whether tokens beside the banned ones are impossible; which ones depends on the weights."""
        return self.temperature == 0 or self.top_k is not None or self.top_p < 1 or self.min_p > 0


def sampling_log_probs(logits: Tensor, distribution: SamplingDistribution) -> Tensor:
    """Returns the log-probs [n, V] in float32 of the sampling distribution of logits [n, V]; -inf outside its support.

    Raises DivergedError where a row has no possible token, or holds NaN or +inf.
    """
    log_probs, largest = unchecked_log_probs(
        logits, distribution, banned_mask(distribution, logits.shape[1], logits.device)
    )
    require_finite(largest, logits.shape[1], distribution)
    return log_probs


def banned_mask(distribution: SamplingDistribution, vocabulary: int, device: torch.device) -> Tensor | None:
    """Returns the mask [V] of the banned tokens; None where no token is banned."""
    if not distribution.banned:
        return None
    mask = torch.zeros(vocabulary, dtype=torch.bool)
    mask[list(distribution.banned)] = True
    return mask.to(device)


def unchecked_log_probs(
    logits: Tensor, distribution: SamplingDistribution, is_banned: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Returns what `sampling_log_probs` does, [n, V], and the largest logit of each row [n], which is not checked.

    The host reads nothing, so that an accelerator is never waited for. is_banned: [V], by `banned_mask`.
    """
    scores = logits.to(torch.float32, copy=True)
    if is_banned is not None:
        scores.masked_fill_(is_banned, -math.inf)
    best = scores.amax(1, keepdim=True)  # [n, 1]
    if distribution.temperature == 0:
        likeliest = torch.full_like(scores, -math.inf).scatter_(1, scores.argmax(1, keepdim=True), 0.0)
        return likeliest, best[:, 0]
    scores.sub_(best).div_(distribution.temperature)  # largest 0: a small temperature cannot overflow
    if distribution.top_k is not None and distribution.top_k < scores.shape[1]:
        scores = _keep_top_k(scores, distribution.top_k)
    if distribution.top_p < 1:
        scores = _keep_top_p(scores, distribution.top_p, distribution.top_k or scores.shape[1])
    if distribution.min_p > 0:
        scores = scores.masked_fill(scores < math.log(distribution.min_p), -math.inf)
    return scores.log_softmax(1), best[:, 0]


def require_finite(largest: Tensor, vocabulary: int, distribution: SamplingDistribution) -> None:
    """Raises DivergedError where the largest logit of a row [n] is no finite number; the host reads `largest`."""
    is_finite = largest.isfinite()
    if is_finite.all():
        return
    row = int((~is_finite).nonzero()[0])
    banned = len(set(distribution.banned))
    raise DivergedError(
        f"no token can be sampled in row {row}: the largest of its {vocabulary} logits, without {banned} "
        f"banned ones, is {largest[row].item()}; it must be a finite number"
    )


def _keep_top_k(scores: Tensor, top_k: int) -> Tensor:
    """Keeps the `top_k` largest scores of each row; others become -inf."""
    last = scores.topk(top_k).values[:, -1:]  # [n, 1] the smallest that is kept
    is_above, is_level = scores > last, scores == last
    is_kept = is_above | (is_level & (is_level.cumsum(1) <= top_k - is_above.sum(1, keepdim=True)))
    return scores.masked_fill(~is_kept, -math.inf)


def _keep_top_p(scores: Tensor, top_p: float, num_candidates: int) -> Tensor:
    """Keeps the fewest likeliest tokens whose probability reaches `top_p`; scores of others become -inf.

    At most `num_candidates` scores of a row are finite.
    """
    if num_candidates < scores.shape[1]:  # saves the sort of the whole vocabulary
        ids = scores.topk(num_candidates).indices.sort(1).values
    else:
        ids = torch.arange(scores.shape[1], device=scores.device).expand_as(scores)
    ranked, order = scores.gather(1, ids).sort(dim=1, descending=True, stable=True)
    mass = ranked.double().softmax(1)
    before = mass.cumsum(1) - mass  # of the likelier tokens
    ranked = ranked.masked_fill(before >= top_p, -math.inf)
    return torch.full_like(scores, -math.inf).scatter_(1, ids.gather(1, order), ranked)


def sample_tokens(log_probs: Tensor, uniform: Tensor) -> Tensor:
    """Samples tokens [n] int64 by inverse CDF: the first whose cumulative probability exceeds `uniform` [n] in [0, 1).

    A `uniform` below 0 takes the likeliest token. Probabilities are cumulated by ascending id in float64; each row
    depends on its own numbers alone. A token of probability 0 is never sampled. `log_probs` [n, V] need not be
    normalised.
    """
    probability = log_probs.double().exp_()
    is_possible = probability > 0
    # A parallel sum may change in its last bit where 0 is added, so only possible tokens take part.
    reached = probability.cumsum_(1).masked_fill_(~is_possible, 0.0)
    below_one = uniform.to(reached).clamp(max=1 - 2**-53)  # a number that was rounded to 1 still gives a token
    threshold = below_one * reached.amax(1)  # rounds to less than the total, whatever the total
    sampled = (reached > threshold[:, None]).to(torch.uint8).argmax(1)  # the first of the largest
    return torch.where(uniform.to(sampled.device) < 0, log_probs.argmax(1), sampled)


@dataclass(frozen=True)
class Support:
    """The possible tokens at the sampling of each of n tokens, ragged.

    The support of a truncated distribution changes with the weights. Log-probs by new weights are taken over the
    support at sampling, or the token might lie outside (DeepSeek-V3.2 2025, arXiv 2512.02556, "keep sampling mask").
    """

    ids: Tensor  # [m] int32: the possible tokens, one sampled token after the other, ascending for each
    sizes: Tensor  # [n] int64: the number of possible tokens of each

    @classmethod
    def of(cls, log_probs: Tensor) -> "Support":
        """Returns the support of the log-probs [n, V] of a sampling distribution; on the CPU."""
        is_possible = log_probs > -math.inf
        sizes = is_possible.sum(1).cpu()
        return cls.among([is_possible], [sizes])[0]

    @classmethod
    def among(cls, is_possible: "Sequence[Tensor]", sizes: Sequence[Tensor]) -> "list[Support]":
        """Returns the support of each mask [n_i, V] of possible tokens; the host reads the device once.

        sizes: the number of possible tokens in each row, [n_i] int64 on the CPU.
        """
        totals = [int(part.sum()) for part in sizes]
        ids = [
            mask.nonzero_static(size=total)[:, 1].to(torch.int32)
            for mask, total in zip(is_possible, totals, strict=True)
        ]
        return [cls(own, part) for own, part in zip(torch.cat(ids).cpu().split(totals), sizes, strict=True)]

    @classmethod
    def join(cls, parts: "Sequence[Support]") -> "Support":
        """Joins supports in order."""
        return cls(torch.cat([part.ids for part in parts]), torch.cat([part.sizes for part in parts]))

    def select(self, rows: Tensor) -> "Support":
        """Returns the support of the tokens `rows` [k] (indices, in any order)."""
        rows = rows.to(self.sizes.device)
        sizes = self.sizes[rows]
        # of the place of each token's support: from - to
        shifts = (self.sizes.cumsum(0) - self.sizes)[rows] - (sizes.cumsum(0) - sizes)
        places = torch.arange(int(sizes.sum()), device=sizes.device) + shifts.repeat_interleave(sizes)
        return Support(self.ids[places], sizes)

    def to(self, device: torch.device) -> "Support":
        return Support(self.ids.to(device), self.sizes.to(device))

    def __len__(self) -> int:
        return len(self.sizes)
