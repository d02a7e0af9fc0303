"""GRPO's loss: gradients against closed forms and finite differences, its clip, its views."""

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from mmrl.core.contracts import LossBatch, OutputsByWeights
from mmrl.core.data import DecisionBlock, Outputs, Prompt, Rollout
from mmrl.core.forward_outputs import GaussianDecisions
from mmrl.core.keys import GroupKey
from mmrl.core.numerics import Reduction
from mmrl.losses.grpo import Grpo
from tests.losses.shared_states import (
    ADVANTAGES,
    OLD_WEIGHT,
    SAMPLE,
    STATE,
    STD,
    WEIGHT,
    D,
    batch_of,
    gradient_of,
    mean_terms,
    shared_call,
)
from tests.parameters import in_one_test


def member_call(weight: Tensor, member: int) -> GaussianDecisions:
    """Returns the outputs of the same network called for one member alone."""
    one, std = torch.zeros(1, dtype=torch.int64), torch.tensor([STD], dtype=torch.float64)
    return GaussianDecisions((STATE @ weight)[None], std, SAMPLE[member : member + 1], one, one[:, None], "mean")


def test_at_the_first_update_the_ratio_is_one_bit_for_bit_and_nothing_is_clipped() -> None:
    trained = shared_call(WEIGHT.clone().requires_grad_())
    loss = Grpo()
    result = loss(loss.measure(OutputsByWeights(trained, old=trained.detach())), batch_of(ADVANTAGES))
    assert (result.metrics["ratio"] == 1).all()
    assert (result.metrics["clip_fraction_low"] == 0).all() and (result.metrics["clip_fraction_high"] == 0).all()
    assert_close(result.terms.detach(), -ADVANTAGES, rtol=0, atol=0)


def test_at_the_first_update_the_gradient_is_that_of_minus_advantage_times_log_prob() -> None:
    weight = WEIGHT.clone().requires_grad_()
    trained = shared_call(weight)
    got = gradient_of(mean_terms(Grpo(), OutputsByWeights(trained, old=trained.detach())), weight)

    def objective(at: Tensor) -> float:
        log_prob = torch.distributions.Normal(STATE @ at, STD).log_prob(SAMPLE).mean(1)
        return float((-ADVANTAGES[:, 0] * log_prob).mean())

    expected, step = torch.zeros(D, D, dtype=torch.float64), 1e-5
    for i in range(D):
        for j in range(D):
            nudge = torch.zeros(D, D, dtype=torch.float64)
            nudge[i, j] = step
            expected[i, j] = (objective(WEIGHT + nudge) - objective(WEIGHT - nudge)) / (2 * step)
    assert_close(got, expected, rtol=1e-7, atol=1e-9)


def test_on_policy_gradient_of_a_shared_state_is_the_closed_form() -> None:
    """-mean_i(A_i z_i) / (std d) . d mean / d weight (docs/maths/group-relative-losses.md#shared-states)."""
    weight = WEIGHT.clone().requires_grad_()
    trained = shared_call(weight)
    z = (SAMPLE - STATE @ WEIGHT) / STD
    expected = torch.outer(STATE, -(ADVANTAGES * z).mean(0) / (STD * D))
    assert_close(gradient_of(mean_terms(Grpo(), OutputsByWeights(trained, old=trained.detach())), weight), expected)


@pytest.mark.parametrize("clip", [10.0, 0.002])
@pytest.mark.parametrize("old_weight", [WEIGHT, OLD_WEIGHT])
def test_the_gradient_of_a_shared_state_is_the_sum_of_its_members(old_weight: Tensor, clip: float) -> None:
    loss, weight = Grpo(clip_low=min(clip, 1.0), clip_high=clip), WEIGHT.clone().requires_grad_()
    shared = gradient_of(mean_terms(loss, OutputsByWeights(shared_call(weight), shared_call(old_weight))), weight)
    alone = torch.zeros(D, D, dtype=torch.float64)
    for member in range(4):
        forward_outputs = OutputsByWeights(member_call(weight, member), member_call(old_weight, member))
        alone += gradient_of(mean_terms(loss, forward_outputs, ADVANTAGES[member : member + 1]), weight) / 4
    assert_close(shared, alone)
    assert shared.norm() > 0


def test_off_policy_gradient_of_a_shared_state_is_the_closed_form_of_the_unclipped_members() -> None:
    """-mean_i(A_i rho_i (x_i - mean)) / (std^2 d) . d mean / d weight over the members that no clip holds."""
    weight, clip = WEIGHT.clone().requires_grad_(), 0.002
    got = gradient_of(
        mean_terms(Grpo(clip_low=clip, clip_high=clip), OutputsByWeights(shared_call(weight), shared_call(OLD_WEIGHT))),
        weight,
    )
    rho = [
        math.exp(
            (
                torch.distributions.Normal(STATE @ WEIGHT, STD).log_prob(sample)
                - torch.distributions.Normal(STATE @ OLD_WEIGHT, STD).log_prob(sample)
            ).mean()
        )
        for sample in SAMPLE
    ]
    held = [(a > 0 and r > 1 + clip) or (a < 0 and r < 1 - clip) for a, r in zip(ADVANTAGES[:, 0], rho, strict=True)]
    assert 0 < sum(held) < 4
    expected = torch.zeros(D, D, dtype=torch.float64)
    for sample, advantage, ratio, is_held in zip(SAMPLE, ADVANTAGES[:, 0], rho, held, strict=True):
        if not is_held:
            expected += torch.outer(STATE, -advantage * ratio * (sample - STATE @ WEIGHT) / (STD**2 * D)) / 4
    assert_close(got, expected)


@in_one_test(
    ("advantage", "ratio", "is_held"),
    [(1, 1.3, True), (1, 0.8, False), (-1, 1.3, False), (-1, 0.8, True), (1, 1.15, False), (-1, 0.95, False)],
)
def test_clip_truth_table(advantage: float, ratio: float, is_held: bool) -> None:
    """clip_low 0.1, clip_high 0.2; where nothing is held the gradient by log rho is -A rho."""
    loss = Grpo(clip_low=0.1, clip_high=0.2)
    log_ratio = torch.tensor([[math.log(ratio)]], dtype=torch.float64, requires_grad=True)
    result = loss((log_ratio,), batch_of(torch.tensor([[advantage]], dtype=torch.float64)))
    gradient = torch.autograd.grad(result.terms.sum(), log_ratio)[0].item()
    assert gradient == pytest.approx(0 if is_held else -advantage * ratio)
    assert result.metrics["clip_fraction_high"].item() == (is_held and advantage > 0)
    assert result.metrics["clip_fraction_low"].item() == (is_held and advantage < 0)


def test_terms_and_metrics_by_hand() -> None:
    log_ratio = torch.tensor([[math.log(1.5)], [math.log(0.5)]], dtype=torch.float64, requires_grad=True)
    kl = torch.tensor([[2.0], [3.0]], dtype=torch.float64, requires_grad=True)
    loss = Grpo(clip_low=0.2, clip_high=0.2, kl_coef=0.1)
    result = loss((log_ratio, kl), batch_of(torch.tensor([[2.0], [2.0]], dtype=torch.float64)))
    assert_close(result.terms.detach(), torch.tensor([[-2.4 + 0.2], [-1.0 + 0.3]], dtype=torch.float64))
    assert_close(result.metrics["ratio"], torch.tensor([[1.5], [0.5]], dtype=torch.float64))
    assert_close(result.metrics["log_ratio_size"][1], torch.tensor([math.log(2)], dtype=torch.float64))
    assert_close(result.metrics["kl"], kl.detach())
    assert not any(values.requires_grad for values in result.metrics.values())


def test_a_huge_ratio_leaves_a_finite_gradient() -> None:
    """With the sum over a latent's elements the log-ratio can pass 88, where exp is inf in float32."""
    log_ratio = torch.tensor([[200.0], [200.0]], requires_grad=True)
    loss = Grpo()
    terms = loss((log_ratio,), batch_of(torch.tensor([[1.0], [-1.0]]))).terms
    assert terms.isfinite().all()
    assert torch.autograd.grad(terms.sum(), log_ratio)[0].isfinite().all()


@pytest.mark.parametrize("reduction", ["sum", "rms"])
def test_the_reduction_is_only_the_unit_of_the_clip(reduction: Reduction) -> None:
    """A log-ratio n times larger, clipped at the n-th power of the bounds, holds the same decisions."""
    n, clip = {"sum": D, "rms": math.sqrt(D)}[reduction], 0.002
    mean_loss = Grpo(clip_low=clip, clip_high=clip)
    other_loss = Grpo(clip_low=1 - (1 - clip) ** n, clip_high=(1 + clip) ** n - 1)
    assert other_loss.clip_high == pytest.approx(n * clip, rel=0.01)
    held = []
    units: list[tuple[Grpo, Reduction]] = [(mean_loss, "mean"), (other_loss, reduction)]
    for loss, unit in units:
        measures = loss.measure(OutputsByWeights(shared_call(WEIGHT, unit), shared_call(OLD_WEIGHT, unit)))
        metrics = loss(measures, batch_of(ADVANTAGES)).metrics
        held.append((metrics["clip_fraction_low"] + metrics["clip_fraction_high"]).flatten().tolist())
    assert held[0] == held[1]
    assert 0 < sum(held[0]) < 4


def test_long_answers_weigh_as_the_normalisation_says() -> None:
    """Answers of 1 and 3 tokens with terms 1 and 5: (1 + 15) / 4, (1 + 5) / 2, and (1 + 15) / 8 / 2."""
    weight = torch.tensor([[1.0, 0.0, 0.0], [1.0, 1.0, 1.0]])
    batch = LossBatch(torch.zeros(2, 3), weight, torch.tensor([0, 0]), torch.zeros(2))
    terms = torch.tensor([[1.0, 7.0, 7.0], [5.0, 5.0, 5.0]])
    values = []
    for loss in (Grpo(normalise="decision"), Grpo(), Grpo(normalise="constant", constant=8.0)):
        coefficients, denominator = loss.coefficients(batch)
        values.append(((coefficients * terms).sum() / denominator).item())
    assert values == [4.0, 3.0, 1.0]


def test_views_hold_each_call_behind_the_rows_once_for_each_block() -> None:
    texts = torch.tensor([[0, 0, 1], [2, 2, -1], [3, -1, -1]])
    steps = torch.tensor([[1, 0], [1, 2], [-1, -1]])
    blocks = tuple(DecisionBlock(call, call, (call >= 0).float()) for call in (texts, steps))
    index, outputs = torch.zeros(3, dtype=torch.int64), Outputs(texts=("a", "b", "c"))
    rollout = Rollout((Prompt("x"),), (GroupKey(0, 0, 0),), index, index, index, index, outputs, blocks, None, 0)
    views = Grpo().views(rollout, torch.tensor([1, 2]), GroupKey(0, 0, 0))
    assert [(view.block, view.calls.tolist()) for view in views] == [(0, [2, 3]), (1, [1, 2])]
    nothing = Grpo().views(replace(rollout, blocks=blocks[1:]), torch.tensor([2]), GroupKey(0, 0, 0))
    assert [view.num_calls for view in nothing] == [0]


@in_one_test(
    ("settings", "message"),
    [
        ({"clip_low": 0.0}, "clip_low must be above 0 and at most 1, got 0.0"),
        ({"clip_low": 1.5}, "clip_low"),
        ({"clip_high": 0.0}, "clip_high must be above 0"),
        ({"kl_coef": -1.0}, "kl_coef must be at least 0"),
        ({"entropy_coef": -1.0}, "entropy_coef must be at least 0, got -1.0"),
        ({"kl_to": "old"}, "kl_to must be one of reference, averaged, got 'old'"),
        ({"dual_clip": 1.0}, "dual_clip must be at least 1 . clip_high = 1.0001, got 1.0"),
        ({"constant": 0.0}, "constant must be above 0"),
        ({"kl": "k4"}, "kl must be one of exact, velocity, k1, k2, k3, low_var, got 'k4'"),
        ({"normalise": "token"}, "normalise must be one of decision, sample, group, constant"),
    ],
)
def test_settings_out_of_range_are_refused(settings: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Grpo(**settings)  # type: ignore[arg-type]
