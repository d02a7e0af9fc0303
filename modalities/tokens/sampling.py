"""The distribution that a token is drawn from: temperature, banned tokens, top-k, top-p, min-p; draws and supports.

Maths: docs/maths/token-policies.md#the-distribution-of-a-token
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from mmrl.core.contracts import DivergedError


@dataclass(frozen=True)
class Shaping:
    """What turns logits into the distribution that tokens are drawn from; the settings of a plan and the banned ids.

    In this order: `banned` ids are taken out, logits are divided by `temperature` (0: the likeliest token alone), and
    the `top_k` likeliest, of those the smallest set that holds `top_p` of the mass (Holtzman et al. 2019, arXiv
    1904.09751), and of those the ones at least `min_p` times as likely as the likeliest (Nguyen et al. 2024, arXiv
    2407.01082) are kept and normalised. Of equally likely tokens the lower id is kept first.
    """

    temperature: float
    top_p: float = 1.0
    top_k: int | None = None
    min_p: float = 0.0
    banned: tuple[int, ...] = ()

    @property
    def is_truncated(self) -> bool:
        """Some tokens that are not banned cannot be drawn, and which depends on the weights."""
        return self.temperature == 0 or self.top_k is not None or self.top_p < 1 or self.min_p > 0


def shaped_log_probs(logits: Tensor, shaping: Shaping) -> Tensor:
    """Log-probs [n, V] in float32 of the shaped distribution of logits [n, V]; -inf outside of its support.

    Raises DivergedError where a row has no token left, or holds NaN or +inf.
    """
    scores = logits.to(torch.float32, copy=True)
    scores[:, list(shaping.banned)] = -math.inf
    best = scores.amax(1, keepdim=True)  # [n, 1]
    if not best.isfinite().all():
        row = int((~best.isfinite()).flatten().nonzero()[0])
        banned = len(set(shaping.banned))
        raise DivergedError(
            f"no token can be drawn in row {row}: the largest of its {scores.shape[1]} logits, without {banned} "
            f"banned ones, is {best[row].item()}; it must be a finite number"
        )
    if shaping.temperature == 0:
        return torch.full_like(scores, -math.inf).scatter_(1, scores.argmax(1, keepdim=True), 0.0)
    scores.sub_(best).div_(shaping.temperature)  # largest 0: a small temperature cannot overflow
    if shaping.top_k is not None and shaping.top_k < scores.shape[1]:
        scores = _keep_top_k(scores, shaping.top_k)
    if shaping.top_p < 1:
        scores = _keep_top_p(scores, shaping.top_p, shaping.top_k or scores.shape[1])
    if shaping.min_p > 0:
        scores = scores.masked_fill(scores < math.log(shaping.min_p), -math.inf)
    return scores.log_softmax(1)


def _keep_top_k(scores: Tensor, top_k: int) -> Tensor:
    """The `top_k` largest of each row, -inf elsewhere."""
    last = scores.topk(top_k).values[:, -1:]  # [n, 1] the smallest that is kept
    is_above, is_level = scores > last, scores == last
    is_kept = is_above | (is_level & (is_level.cumsum(1) <= top_k - is_above.sum(1, keepdim=True)))
    return scores.masked_fill(~is_kept, -math.inf)


def _keep_top_p(scores: Tensor, top_p: float, num_candidates: int) -> Tensor:
    """The shortest run of likeliest tokens whose mass reaches `top_p`, -inf elsewhere.

    At most `num_candidates` of a row are finite.
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
    """Tokens [n] int64 by inverse CDF: the first whose cumulated probability exceeds `uniform` [n] in [0, 1).

    A `uniform` below 0 takes the likeliest token.

    Tokens [n, V] are cumulated by ascending id in float64; each row depends on its own numbers alone. A token of
    probability 0 is never drawn. `log_probs` [n, V] need not be normalised.
    """
    probability = log_probs.double().exp_()
    is_possible = probability > 0
    # A parallel sum may waver in its last bit where nothing is added, so only possible tokens take part.
    reached = probability.cumsum_(1).masked_fill_(~is_possible, 0.0)
    below_one = uniform.to(reached).clamp(max=1 - 2**-53)  # one that was rounded to 1 still finds a token
    threshold = below_one * reached.amax(1)  # rounds to less than the total, whatever the total
    found = (reached > threshold[:, None]).to(torch.uint8).argmax(1)  # the first of the largest
    return torch.where(uniform.to(found.device) < 0, log_probs.argmax(1), found)


@dataclass(frozen=True)
class Support:
    """Which tokens each of n draws could have given, ragged.

    A truncated distribution's support moves with the weights; log-probs under new weights are taken over the support
    of the draw, or the token might fall outside of it (DeepSeek-V3.2 2025, arXiv 2512.02556, "keep sampling mask").
    """

    ids: Tensor  # [m] int32: the tokens of all draws, one draw after the other, ascending within a draw
    sizes: Tensor  # [n] int64: number of tokens of each draw

    @classmethod
    def of(cls, log_probs: Tensor) -> "Support":
        """That of shaped log-probs [n, V]; on the CPU."""
        is_possible = log_probs > -math.inf
        return cls(is_possible.nonzero()[:, 1].to("cpu", torch.int32), is_possible.sum(1).cpu())

    @classmethod
    def join(cls, parts: "Sequence[Support]") -> "Support":
        """The draws of all parts, in order."""
        return cls(torch.cat([part.ids for part in parts]), torch.cat([part.sizes for part in parts]))

    def select(self, rows: Tensor) -> "Support":
        """Those of the draws `rows` [k] (indices, in any order)."""
        rows = rows.to(self.sizes.device)
        sizes = self.sizes[rows]
        shifts = (self.sizes.cumsum(0) - self.sizes)[rows] - (sizes.cumsum(0) - sizes)  # of a draw's place: from - to
        places = torch.arange(int(sizes.sum()), device=sizes.device) + shifts.repeat_interleave(sizes)
        return Support(self.ids[places], sizes)

    def to(self, device: torch.device) -> "Support":
        return Support(self.ids.to(device), self.sizes.to(device))

    def __len__(self) -> int:
        return len(self.sizes)
