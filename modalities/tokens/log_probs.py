"""Log-probs and entropies of chosen tokens from hidden states, in blocks: logits [n, V] are never held.

Maths: docs/maths/token-policies.md#log-probs-without-holding-the-logits
"""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from .sampling import SamplingDistribution, Support, banned_mask

IMPOSSIBLE = -1e30  # logit of an impossible token: finite, so that a block of such tokens alone makes no NaN


@dataclass(frozen=True)
class OutputHead:
    """The last layer of a language model: logits = softcap(scale * (hidden @ weight.T + bias)).

    softcap(x) = c * tanh(x / c) (Gemma 2, arXiv 2408.00118); `scale` is Cohere's logit_scale or 1 / Granite's scaling.
    """

    weight: Tensor  # [V, H]
    bias: Tensor | None = None  # [V]
    scale: float = 1.0
    softcap: float | None = None

    def logits(self, hidden: Tensor) -> Tensor:
        """Returns logits [n, V] of hidden [n, H] for sampling, summed in float32 at least, as in `token_log_probs`."""
        with torch.autocast(hidden.device.type, enabled=False):
            return self.cap(self.raw(hidden, self.weight, self.bias))

    def raw(self, hidden: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Returns logits before the cap, for a part of the rows and of the vocabulary."""
        raw = _product(hidden, weight.T)
        if bias is not None:
            raw = raw + bias
        return raw * self.scale if self.scale != 1 else raw

    def cap(self, raw: Tensor) -> Tensor:
        """Returns the logits after the softcap."""
        return raw if self.softcap is None else (raw / self.softcap).tanh() * self.softcap


def token_log_probs(
    hidden: Tensor,
    head: OutputHead,
    tokens: Tensor,
    distribution: SamplingDistribution,
    chunk: int,
    support: Support | None = None,
) -> tuple[Tensor, Tensor]:
    """Returns the log-prob [n] of each token and the entropy [n] in nats of its sampling distribution.

    Both are differentiable in `hidden`, `head.weight` and `head.bias`; the backward pass computes the logits
    again. Sums are in float32 (float64 for float64), whatever the inputs' type.

    hidden: [n, H]; tokens: [n] int64; chunk: logits held at once (a few tensors of that size), at least 1.
    support: of each token, needed for a truncated distribution; the truncation is taken from it, not computed anew.
    Raises ValueError for a token outside its distribution, for temperature 0, and for a truncated distribution without
    support.
    """
    if distribution.temperature <= 0:
        raise ValueError(f"a token has a log-prob for temperatures above 0, got {distribution.temperature}")
    if distribution.is_truncated and support is None:
        raise ValueError("log-probs of a truncated distribution need the support that the tokens were sampled from")
    if support is not None and len(support) != len(tokens):
        raise ValueError(f"{len(tokens)} tokens need {len(tokens)} supports, got {len(support)}")
    if chunk < 1:
        raise ValueError(f"chunk must be at least 1, got {chunk}")
    _refuse_impossible(tokens, distribution, support, len(head.weight))
    blocks = _Blocks.of(hidden, head, distribution, chunk, support)
    log_prob, entropy = _TokenLogProbs.apply(hidden, head.weight, head.bias, tokens.to(hidden.device), blocks)
    return log_prob, entropy


@torch.no_grad()
def self_certainties(hidden: Tensor, head: OutputHead, distribution: SamplingDistribution, chunk: int) -> Tensor:
    """Returns the self-certainty [n] in nats of the distributions behind states [n, H]: KL(uniform || p).

    Kang et al. 2025, "Scalable Best-of-N Selection via Self-Certainty", arXiv 2502.18581: -(1 / V) sum_j log(V p_j)
    over all V tokens but the banned ones, at the temperature of the distribution and without its truncation, by which
    the surest token alone would be left, with a divergence of 0. Arguments as for `token_log_probs`.
    """
    blocks = _Blocks.of(hidden, head, distribution, chunk, None)
    like = hidden.new_empty((), dtype=torch.promote_types(hidden.dtype, torch.float32))
    total, count = like.new_zeros(2, len(hidden)).unbind()
    normaliser = like.new_full((len(hidden),), -math.inf)
    heights, widths = blocks.cut(len(hidden), len(head.weight))
    with torch.autocast(hidden.device.type, enabled=False):
        for columns in widths:
            part, offset = head.weight[_slice(columns)], None if head.bias is None else head.bias[_slice(columns)]
            for rows in heights:
                here = _slice(rows)
                logits = blocks.logits(head.raw(hidden[here], part, offset), rows, columns)
                is_possible = logits > IMPOSSIBLE
                normaliser[here] = torch.logaddexp(normaliser[here], logits.logsumexp(1))
                total[here] += torch.where(is_possible, logits, 0.0).sum(1)
                count[here] += is_possible.sum(1)
    return normaliser - total / count - count.log()


def _refuse_impossible(
    tokens: Tensor, distribution: SamplingDistribution, support: Support | None, vocabulary: int
) -> None:
    """Raises ValueError for a token outside its distribution; rollouts are on the CPU, and nobody waits for a GPU."""
    is_impossible = (tokens < 0) | (tokens >= vocabulary)
    if distribution.banned:
        is_impossible |= torch.isin(tokens, torch.tensor(distribution.banned, device=tokens.device))
    if support is not None:
        rows = torch.arange(len(tokens)).repeat_interleave(support.sizes.cpu())
        is_taken = support.ids == tokens.to(support.ids.device)[rows]
        is_impossible |= torch.zeros(len(tokens)).index_add(0, rows, is_taken.float().cpu()).to(tokens.device) == 0
    if is_impossible.any():
        row = int(is_impossible.nonzero()[0])
        raise ValueError(
            f"token {tokens[row].item()} of row {row} cannot be sampled: it is banned, or outside its support or "
            f"of the vocabulary of {vocabulary}"
        )


def _product(left: Tensor, right: Tensor) -> Tensor:
    """Returns left @ right, summed in float32 at least and not rounded to the inputs' type."""
    if right.is_cuda and right.dtype == torch.bfloat16:
        return torch.mm(left.to(right.dtype), right, out_dtype=torch.float32)
    dtype = torch.promote_types(torch.promote_types(left.dtype, right.dtype), torch.float32)
    return left.to(dtype) @ right.to(dtype)


@dataclass(frozen=True)
class _Masks:
    """The masks of impossible tokens, block by block."""

    banned: tuple[int, ...]
    is_banned: Tensor | None  # [1, V] bool, on the device; None where no token is banned
    support: Support | None
    starts: tuple[int, ...]  # n + 1: where the support of each token starts

    @classmethod
    def of(
        cls, distribution: SamplingDistribution, support: Support | None, vocabulary: int, device: torch.device
    ) -> "_Masks":
        mask = banned_mask(distribution, vocabulary, device)
        is_banned = None if mask is None else mask[None]
        if support is None:
            return cls(distribution.banned, is_banned, None, ())
        starts = (0, *support.sizes.cumsum(0).tolist())
        return cls(distribution.banned, is_banned, support.to(device), starts)

    def impossible(self, rows: range, columns: range) -> Tensor | None:
        """Returns the mask [1 or rows, columns] of impossible tokens in a block; None where every token is possible."""
        has_banned = self.is_banned is not None and any(token in columns for token in self.banned)
        is_banned = self.is_banned[:, _slice(columns)] if has_banned and self.is_banned is not None else None
        if self.support is None:
            return is_banned
        is_impossible = ~self._possible(self.support, rows, columns)
        return is_impossible if is_banned is None else is_impossible | is_banned

    def _possible(self, support: Support, rows: range, columns: range) -> Tensor:
        start, stop = self.starts[rows.start], self.starts[rows.stop]
        ids = support.ids[start:stop].long() - columns.start
        sizes = support.sizes[rows.start : rows.stop]
        # with the size of the result, the host need not read how large it is
        row = torch.arange(len(rows), device=ids.device).repeat_interleave(sizes, output_size=stop - start)
        is_inside = (ids >= 0) & (ids < len(columns))
        counts = torch.zeros(len(rows), len(columns), dtype=torch.uint8, device=ids.device)
        place = (row, ids.clamp(0, len(columns) - 1))  # what is outside adds 0 at an edge
        return counts.index_put_(place, is_inside.to(counts.dtype), accumulate=True).bool()


@dataclass(frozen=True)
class _Blocks:
    """The logits of all rows and tokens, cut into blocks of at most `chunk`."""

    head: OutputHead  # its tensors are not used: autograd's own arguments stand for them
    temperature: float
    masks: _Masks
    chunk: int

    @classmethod
    def of(
        cls, hidden: Tensor, head: OutputHead, distribution: SamplingDistribution, chunk: int, support: Support | None
    ) -> "_Blocks":
        masks = _Masks.of(distribution, support, len(head.weight), hidden.device)
        return cls(head, distribution.temperature, masks, chunk)

    def cut(self, num_rows: int, vocabulary: int) -> tuple[list[range], list[range]]:
        """Returns the rows and columns of the blocks: about square, which is fast for matrix products."""
        width = min(vocabulary, math.isqrt(self.chunk))
        height = max(1, min(num_rows, self.chunk // width))
        return _ranges(num_rows, height), _ranges(vocabulary, min(vocabulary, self.chunk // height))

    def logits(self, raw: Tensor, rows: range, columns: range) -> Tensor:
        """Returns the logits of a block, capped, divided by the temperature and masked; may overwrite `raw`."""
        capped = self.head.cap(raw)
        logits = capped if self.temperature == 1 else capped / self.temperature
        mask = self.masks.impossible(rows, columns)
        return logits if mask is None else logits.masked_fill_(mask, IMPOSSIBLE)

    def slope(self, raw: Tensor) -> Tensor | float:
        """Returns d logit / d (hidden @ weight.T) where nothing is masked."""
        slope = self.head.scale / self.temperature
        if self.head.softcap is None:
            return slope
        return (raw / self.head.softcap).tanh_().square_().neg_().add_(1).mul_(slope)


def _ranges(length: int, size: int) -> list[range]:
    return [range(start, min(start + size, length)) for start in range(0, length, size)]


def _slice(part: range) -> slice:
    return slice(part.start, part.stop)


def _places(tokens: Tensor, columns: range) -> tuple[Tensor, Tensor]:
    """Returns the column [n, 1] of each token in a block, and whether the token is in the block [n]."""
    place = tokens - columns.start
    return place.clamp(0, len(columns) - 1)[:, None], (place >= 0) & (place < len(columns))


def _reduce(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, tokens: Tensor, blocks: _Blocks
) -> tuple[Tensor, Tensor, Tensor]:
    """Returns the logit of each token, log of the sum of exp(logits), and entropy, all [n], in one pass over blocks."""
    like = hidden.new_empty((), dtype=torch.promote_types(hidden.dtype, torch.float32))
    token_logit, best = like.new_full((2, len(hidden)), IMPOSSIBLE).unbind()
    total, moment = like.new_zeros(2, len(hidden)).unbind()
    heights, widths = blocks.cut(len(hidden), len(weight))
    for columns in widths:
        part, offset = weight[_slice(columns)], None if bias is None else bias[_slice(columns)]
        for rows in heights:
            here = _slice(rows)
            logits = blocks.logits(blocks.head.raw(hidden[here], part, offset), rows, columns)
            place, is_here = _places(tokens[here], columns)
            token_logit[here] = torch.where(is_here, logits.gather(1, place)[:, 0], token_logit[here])
            largest = torch.maximum(best[here], logits.amax(1))
            shift = best[here] - largest
            weights = logits.sub_(largest[:, None]).exp()
            shifted = (moment[here] + total[here] * shift) * shift.exp()
            total[here] = total[here] * shift.exp() + weights.sum(1)
            moment[here] = shifted + weights.mul_(logits).sum(1)
            best[here] = largest
    return token_logit, best + total.log(), total.log() - moment / total


@dataclass(frozen=True)
class _Upstream:
    """The gradients with respect to the results, and the results that the backward pass needs; each [n]."""

    tokens: Tensor
    normaliser: Tensor
    entropy: Tensor
    of_log_prob: Tensor
    of_entropy: Tensor | None

    def gradient(self, blocks: _Blocks, raw: Tensor, rows: range, columns: range) -> Tensor:
        """Returns the gradient with respect to hidden @ weight.T in one block; may overwrite `raw`."""
        here = _slice(rows)
        slope = blocks.slope(raw)
        log_p = blocks.logits(raw, rows, columns).sub_(self.normaliser[here, None])
        gradient = log_p.exp()
        of_log_prob = self.of_log_prob[here, None]
        if self.of_entropy is None:
            gradient.mul_(-of_log_prob)
        else:
            of_entropy, entropy = self.of_entropy[here, None], self.entropy[here, None]
            gradient.mul_(log_p.add_(entropy).mul_(of_entropy).add_(of_log_prob)).neg_()
        place, is_here = _places(self.tokens[here], columns)
        return gradient.scatter_add_(1, place, of_log_prob * is_here[:, None]).mul_(slope)


class _TokenLogProbs(torch.autograd.Function):
    """The online softmax (Milakov and Gimelshein 2018, arXiv 1805.02867), with the entropy's moment beside the total.

    With z the logits, m their maximum, s = sum exp(z - m) and u = sum exp(z - m) (z - m):
    log p_t = z_t - m - log s and H = log s - u / s;
    d log p_t / dz_j = [j = t] - p_j and dH / dz_j = -p_j (log p_j + H).
    """

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None, tokens: Tensor, blocks: _Blocks
    ) -> tuple[Tensor, Tensor]:
        with torch.autocast(hidden.device.type, enabled=False):
            token_logit, normaliser, entropy = _reduce(hidden, weight, bias, tokens, blocks)
        ctx.save_for_backward(hidden, weight, bias, tokens, normaliser, entropy)
        ctx.blocks = blocks
        ctx.set_materialize_grads(False)
        return token_logit - normaliser, entropy

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, of_log_prob: Tensor | None, of_entropy: Tensor | None) -> tuple[Tensor | None, ...]:
        hidden, weight, bias, tokens, normaliser, entropy = ctx.saved_tensors
        blocks, needs = ctx.blocks, ctx.needs_input_grad
        if of_log_prob is None:
            of_log_prob = torch.zeros_like(entropy)
        upstream = _Upstream(tokens, normaliser, entropy, of_log_prob, of_entropy)
        of_hidden = torch.zeros_like(hidden, dtype=entropy.dtype)
        of_weight = torch.empty_like(weight) if needs[1] else None
        of_bias = torch.empty_like(bias) if needs[2] else None
        heights, widths = blocks.cut(len(hidden), len(weight))
        with torch.autocast(hidden.device.type, enabled=False):
            for columns in widths:
                part, offset = weight[_slice(columns)], None if bias is None else bias[_slice(columns)]
                of_part = torch.zeros_like(part, dtype=entropy.dtype)
                of_offset = entropy.new_zeros(len(columns))
                for rows in heights:
                    here = _slice(rows)
                    raw = blocks.head.raw(hidden[here], part, offset)
                    gradient = upstream.gradient(blocks, raw, rows, columns)
                    of_hidden[here] += _product(gradient, part)
                    of_offset += gradient.sum(0)
                    if of_weight is not None:
                        of_part += _product(gradient.T, hidden[here])
                if of_weight is not None:
                    of_weight[_slice(columns)] = of_part
                if of_bias is not None:
                    of_bias[_slice(columns)] = of_offset
        return of_hidden.to(hidden.dtype), of_weight, of_bias, None, None
