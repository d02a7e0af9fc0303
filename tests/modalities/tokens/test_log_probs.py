"""Log-probs and entropies in blocks against the dense computation, finite differences and torch.distributions."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.distributions import Categorical
from torch.utils._python_dispatch import TorchDispatchMode

from mmrl.modalities.tokens.log_probs import OutputHead, self_certainties, token_log_probs
from mmrl.modalities.tokens.sampling import SamplingDistribution, Support, sample_tokens, sampling_log_probs
from tests.parameters import in_one_test

ROWS, WIDTH, VOCABULARY = 13, 6, 17
HEADS: list[dict[str, Any]] = [{}, {"bias": True, "scale": 0.3}, {"bias": True, "softcap": 2.0, "scale": 1.7}]
DISTRIBUTIONS = [
    SamplingDistribution(1.0),
    SamplingDistribution(0.7, banned=(0, 5, 16)),
    SamplingDistribution(1.4, top_p=0.8, top_k=9, min_p=0.05, banned=(3,)),
]
CHUNKS = [1, 7, 40, ROWS * VOCABULARY, 10_000]


def tensors(dtype: torch.dtype = torch.float64, *, bias: bool = False, **settings: float) -> tuple[Tensor, OutputHead]:
    generator = torch.Generator().manual_seed(0)
    hidden, weight = (torch.randn(n, WIDTH, generator=generator).to(dtype) for n in (ROWS, VOCABULARY))
    offset = torch.randn(VOCABULARY, generator=generator).to(dtype).requires_grad_() if bias else None
    return hidden.requires_grad_(), OutputHead(weight.requires_grad_(), offset, **settings)


def sampled_tokens(
    hidden: Tensor, head: OutputHead, distribution: SamplingDistribution
) -> tuple[Tensor, Support | None]:
    """Tokens of a rollout, and their supports where the distribution is truncated."""
    log_probs = sampling_log_probs(head.logits(hidden.detach()).detach(), distribution)
    uniform = torch.rand(len(hidden), generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    return sample_tokens(log_probs, uniform), Support.of(log_probs) if distribution.is_truncated else None


def dense(
    hidden: Tensor, head: OutputHead, tokens: Tensor, distribution: SamplingDistribution, support: Support | None
) -> tuple[Tensor, Tensor]:
    """The same with all logits at once; differentiable by autograd."""
    logits = hidden @ head.weight.T
    logits = (logits if head.bias is None else logits + head.bias) * head.scale
    if head.softcap is not None:
        logits = head.softcap * torch.tanh(logits / head.softcap)
    is_possible = torch.ones(logits.shape, dtype=torch.bool)
    if support is not None:
        for row, ids in enumerate(support.ids.long().split(support.sizes.tolist())):
            is_possible[row] = False
            is_possible[row, ids] = True
    is_possible[:, list(distribution.banned)] = False
    log_p = (logits / distribution.temperature).masked_fill(~is_possible, -math.inf).log_softmax(1)
    finite = log_p.masked_fill(~is_possible, 0.0)
    return log_p.gather(1, tokens[:, None])[:, 0], -(finite.exp() * is_possible * finite).sum(1)


def gradients(results: tuple[Tensor, Tensor], hidden: Tensor, head: OutputHead) -> list[Tensor]:
    """Of a sum that weighs every log-prob and every entropy differently."""
    log_prob, entropy = results
    scale = torch.arange(1, len(log_prob) + 1).to(log_prob) / len(log_prob)
    leaves = [leaf for leaf in (hidden, head.weight, head.bias) if leaf is not None]
    return list(torch.autograd.grad((scale * log_prob).sum() + (scale.flip(0) * entropy).sin().sum(), leaves))


@pytest.mark.parametrize("chunk", CHUNKS)
@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
@pytest.mark.parametrize("settings", HEADS)
def test_blocks_of_any_size_compute_what_all_logits_at_once_do(
    settings: dict[str, Any], distribution: SamplingDistribution, chunk: int
) -> None:
    hidden, head = tensors(**settings)
    tokens, support = sampled_tokens(hidden, head, distribution)
    results = token_log_probs(hidden, head, tokens, distribution, chunk, support)
    expected = dense(hidden, head, tokens, distribution, support)
    for value, other in zip(results, expected, strict=True):
        torch.testing.assert_close(value, other, rtol=1e-12, atol=1e-12)
    for value, other in zip(gradients(results, hidden, head), gradients(expected, hidden, head), strict=True):
        torch.testing.assert_close(value, other, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
@pytest.mark.parametrize("settings", HEADS)
def test_gradients_are_finite_differences(settings: dict[str, Any], distribution: SamplingDistribution) -> None:
    hidden, head = tensors(**settings)
    tokens, support = sampled_tokens(hidden, head, distribution)
    leaves = [leaf for leaf in (hidden, head.weight, head.bias) if leaf is not None]

    def results(hidden: Tensor, weight: Tensor, bias: Tensor | None = None) -> tuple[Tensor, Tensor]:
        return token_log_probs(
            hidden, OutputHead(weight, bias, head.scale, head.softcap), tokens, distribution, 50, support
        )

    assert torch.autograd.gradcheck(results, leaves, fast_mode=True)


def test_log_probs_and_entropies_are_those_of_a_categorical_distribution() -> None:
    hidden, head = tensors()
    tokens, _ = sampled_tokens(hidden, head, DISTRIBUTIONS[0])
    log_prob, entropy = token_log_probs(hidden, head, tokens, SamplingDistribution(0.5), 30)
    oracle: Any = Categorical(logits=2 * hidden @ head.weight.T)
    torch.testing.assert_close(log_prob, oracle.log_prob(tokens))
    torch.testing.assert_close(entropy, oracle.entropy())


@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
def test_a_token_scores_what_it_was_drawn_with(distribution: SamplingDistribution) -> None:
    hidden, head = tensors(torch.float32, softcap=5.0)
    tokens, support = sampled_tokens(hidden, head, distribution)
    recorded = sampling_log_probs(head.logits(hidden), distribution).gather(1, tokens[:, None])[:, 0]
    torch.testing.assert_close(
        token_log_probs(hidden, head, tokens, distribution, 40, support)[0], recorded, rtol=0, atol=2e-6
    )


def test_over_its_support_a_truncated_distribution_sums_to_one_under_other_weights() -> None:
    distribution = DISTRIBUTIONS[2]
    hidden, head = tensors()
    support = sampled_tokens(hidden, head, distribution)[1]
    assert support is not None
    rows = torch.arange(ROWS).repeat_interleave(support.sizes)  # each draw once for each token of its support
    others = OutputHead(head.weight.flip(1))
    log_prob, _ = token_log_probs(hidden[rows], others, support.ids.long(), distribution, 40, support.select(rows))
    mass = torch.zeros(ROWS, dtype=torch.float64).index_add(0, rows, log_prob.exp())
    torch.testing.assert_close(mass, torch.ones_like(mass))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
def test_half_precision_inputs_are_summed_in_float32(distribution: SamplingDistribution, dtype: torch.dtype) -> None:
    hidden, head = tensors(dtype, bias=True)
    tokens, support = sampled_tokens(hidden, head, distribution)
    results = token_log_probs(hidden, head, tokens, distribution, 40, support)
    assert [value.dtype for value in results] == [torch.float32] * 2
    assert head.bias is not None
    wide_hidden, weight, offset = (x.detach().double().requires_grad_() for x in (hidden, head.weight, head.bias))
    wide = OutputHead(weight, offset)
    expected = dense(wide_hidden, wide, tokens, distribution, support)
    for value, other in zip(results, expected, strict=True):
        torch.testing.assert_close(value.double(), other, rtol=0, atol=3e-6)
    pairs = zip(gradients(results, hidden, head), gradients(expected, wide_hidden, wide), strict=True)
    for value, other in pairs:
        assert value.dtype == dtype
        torch.testing.assert_close(value, other.to(dtype), rtol=torch.finfo(dtype).eps, atol=1e-6)


def test_autocast_does_not_round_the_logits() -> None:
    hidden, head = tensors(torch.float32)
    tokens, _ = sampled_tokens(hidden, head, DISTRIBUTIONS[0])
    plain = token_log_probs(hidden, head, tokens, DISTRIBUTIONS[0], 40)
    with torch.autocast("cpu", torch.bfloat16):
        cast = token_log_probs(hidden, head, tokens, DISTRIBUTIONS[0], 40)
        assert torch.equal(head.logits(hidden), head.logits(hidden).float())
        of_cast = gradients(cast, hidden, head)
    assert all(torch.equal(one, other) for one, other in zip(plain, cast, strict=True))
    for one, other in zip(gradients(plain, hidden, head), of_cast, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0)


@pytest.mark.parametrize("chunk", [1, 40])
def test_one_result_alone_has_its_gradient(chunk: int) -> None:
    hidden, head = tensors()
    tokens, _ = sampled_tokens(hidden, head, DISTRIBUTIONS[1])
    for which in (0, 1):
        ours = torch.autograd.grad(token_log_probs(hidden, head, tokens, DISTRIBUTIONS[1], chunk)[which].sum(), hidden)[
            0
        ]
        theirs = torch.autograd.grad(dense(hidden, head, tokens, DISTRIBUTIONS[1], None)[which].sum(), hidden)[0]
        torch.testing.assert_close(ours, theirs)


def test_a_frozen_head_gets_no_gradient() -> None:
    hidden, head = tensors(bias=True)
    assert head.bias is not None
    frozen = OutputHead(head.weight.detach(), head.bias.detach())
    token_log_probs(hidden, frozen, torch.zeros(ROWS, dtype=torch.int64), SamplingDistribution(1.0), 40)[
        0
    ].sum().backward()
    assert hidden.grad is not None and frozen.weight.grad is None


@pytest.mark.slow
def test_edge_cases_have_the_values_of_the_limit() -> None:
    """One token in the vocabulary or the support: nothing is chosen. Certainty and no rows make no NaN."""
    hidden, head = tensors()
    single = OutputHead(head.weight[:1])
    certain = OutputHead(1e4 * head.weight)
    best = certain.logits(hidden).argmax(1)
    only = Support(torch.full((ROWS,), 4, dtype=torch.int32), torch.ones(ROWS, dtype=torch.int64))
    none = torch.zeros(ROWS, dtype=torch.int64)
    for results in (
        token_log_probs(hidden, single, none, SamplingDistribution(1.0), 3),
        token_log_probs(hidden, head, none + 4, SamplingDistribution(1.0, top_k=1), 3, only),
        token_log_probs(hidden, certain, best, SamplingDistribution(1.0), 3),
    ):
        for values in (*results, *torch.autograd.grad(results[0].sum() + results[1].sum(), hidden)):
            torch.testing.assert_close(values, torch.zeros_like(values))
    log_prob, entropy = token_log_probs(hidden[:0], head, none[:0], SamplingDistribution(1.0), 3)
    assert (log_prob.shape, entropy.shape) == ((0,), (0,))
    assert torch.autograd.grad(log_prob.sum(), head.weight)[0].eq(0).all()


@in_one_test(
    ("distribution", "tokens", "support", "message"),
    [
        (SamplingDistribution(1.0, banned=(3, 5)), [0, 5], None, "token 5 of row 1 cannot be sampled: it is banned"),
        (
            SamplingDistribution(1.0, banned=tuple(range(VOCABULARY))),
            [0, 5],
            None,
            "token 0 of row 0 cannot be sampled",
        ),
        (SamplingDistribution(1.0), [0, 17], None, "token 17 of row 1 .* or of the vocabulary of 17"),
        (SamplingDistribution(1.0), [-100, 1], None, "token -100 of row 0 cannot be sampled"),
        (
            SamplingDistribution(1.0, top_k=1),
            [0, 1],
            [[0], [2]],
            "token 1 of row 1 cannot be sampled: .* outside its support",
        ),
        (SamplingDistribution(1.0, top_p=0.5), [0, 1], None, "truncated distribution need the support"),
        (SamplingDistribution(1.0, top_k=1), [0, 1], [[0]], "2 tokens need 2 supports, got 1"),
        (SamplingDistribution(0.0), [0, 1], None, "temperatures above 0, got 0"),
    ],
)
def test_a_token_that_could_not_have_been_drawn_is_refused(
    distribution: SamplingDistribution, tokens: list[int], support: list[list[int]] | None, message: str
) -> None:
    hidden, head = tensors()
    given = None
    if support is not None:
        ids = torch.tensor([token for ids in support for token in ids], dtype=torch.int32)
        given = Support(ids, torch.tensor([len(ids) for ids in support]))
    with pytest.raises(ValueError, match=message):
        token_log_probs(hidden[:2], head, torch.tensor(tokens), distribution, 5, given)


def test_a_chunk_of_nothing_is_refused() -> None:
    hidden, head = tensors()
    with pytest.raises(ValueError, match="chunk must be at least 1, got 0"):
        token_log_probs(hidden, head, torch.zeros(ROWS, dtype=torch.int64), SamplingDistribution(1.0), 0)


class Largest(TorchDispatchMode):
    """Remembers the most elements of any tensor that an operation made."""

    elements = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        results = func(*args, **(kwargs or {}))
        for result in results if isinstance(results, tuple | list) else [results]:
            if isinstance(result, Tensor):
                self.elements = max(self.elements, result.numel())
        return results


@pytest.mark.slow
@pytest.mark.parametrize(("rows", "vocabulary"), [(600, 700), (1200, 700), (600, 1400)])
@pytest.mark.parametrize("is_truncated", [False, True])
def test_no_tensor_grows_with_rows_times_vocabulary(rows: int, vocabulary: int, is_truncated: bool) -> None:
    """The largest is the chunk, the hidden states or the weight."""
    chunk, width = 10_000, 4
    hidden, weight = torch.randn(rows, width, requires_grad=True), torch.randn(vocabulary, width, requires_grad=True)
    ids = torch.arange(3, dtype=torch.int32).repeat(rows)
    support = Support(ids, torch.full((rows,), 3)) if is_truncated else None
    distribution = SamplingDistribution(0.9, top_k=3 if is_truncated else None, banned=(vocabulary - 1,))
    with Largest() as largest:  # type: ignore[no-untyped-call]
        log_prob, entropy = token_log_probs(
            hidden, OutputHead(weight), torch.ones(rows, dtype=torch.int64), distribution, chunk, support
        )
        (log_prob.sum() + entropy.sum()).backward()
    assert chunk // 2 < largest.elements <= max(chunk, rows * width, vocabulary * width)


@in_one_test("head", HEADS)
@in_one_test("distribution", DISTRIBUTIONS)
def test_self_certainty_is_the_divergence_of_the_uniform_distribution(
    head: dict[str, Any], distribution: SamplingDistribution
) -> None:
    hidden, own = tensors(**head)
    every = [dense(hidden, own, torch.full((ROWS,), token), distribution, None)[0] for token in range(VOCABULARY)]
    log_p = torch.stack(every, 1).detach()  # [ROWS, VOCABULARY], whatever top-p and its kin leave out
    possible = log_p[:, log_p[0].isfinite()]
    uniform = Categorical(probs=torch.ones_like(possible))
    expected = torch.distributions.kl_divergence(uniform, Categorical(logits=possible))
    for chunk in CHUNKS:
        torch.testing.assert_close(self_certainties(hidden, own, distribution, chunk), expected, atol=1e-10, rtol=0)
