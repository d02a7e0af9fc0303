"""The correction between two engines: hand numbers, exactly 1 where they agree, and what reaches the advantages."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch

from mmrl.core.config import CorrectionSettings
from mmrl.core.contracts import ConfigError
from mmrl.core.forward_outputs import TokenDecisions
from mmrl.training.off_policy_correction import (
    correct,
    corrected,
    importance,
    is_sampled_elsewhere,
    mismatch,
    mismatch_metrics,
)
from mmrl.training.processes import Processes
from tests.toys import loss_batch, toy_rollout

RATIO = torch.tensor([[math.log(3), math.log(0.25), 9.0], [math.log(1.5), -7.0, float("nan")]])
IS_DECISION = torch.tensor([[True, True, False], [True, False, False]])


def test_the_weights_of_tokens_are_by_hand() -> None:
    weight = importance(RATIO, IS_DECISION, "token")
    torch.testing.assert_close(weight, torch.tensor([[3.0, 0.25, 1.0], [1.5, 1.0, 1.0]]))


def test_the_weight_of_a_sequence_is_the_product_of_its_tokens() -> None:
    weight = importance(RATIO, IS_DECISION, "sequence")
    torch.testing.assert_close(weight, torch.tensor([[0.75, 0.75, 1.0], [1.5, 1.0, 1.0]]))


def test_what_advantages_are_multiplied_by_is_by_hand() -> None:
    weight = torch.tensor([3.0, 2.0, 1.0, 0.5, 0.25, math.inf])
    assert corrected(weight, "none", 2.0, 0.5).tolist() == [1, 1, 1, 1, 1, 1]
    assert corrected(weight, "truncated", 2.0, 0.5).tolist() == [2, 2, 1, 0.5, 0.25, 2]
    assert corrected(weight, "masked", 2.0, 0.5).tolist() == [0, 2, 1, 0.5, 0, 0]


@pytest.mark.parametrize("kind", ["none", "truncated", "masked"])
@pytest.mark.parametrize("level", ["token", "sequence"])
def test_engines_that_agree_change_nothing(kind: Any, level: Any) -> None:
    weight = corrected(importance(torch.zeros(2, 3), IS_DECISION, level), kind, 2.0, 0.5)
    assert torch.equal(weight, torch.ones(2, 3))
    settings = CorrectionSettings(kind=kind, level=level)
    found = mismatch_metrics(*mismatch(torch.zeros(2, 3), IS_DECISION, settings))
    assert found.pop("engine/effective") == 1
    assert set(found.values()) == {0.0} and len(found) == 6


def metrics(**settings: Any) -> dict[str, float]:
    return mismatch_metrics(*mismatch(RATIO, IS_DECISION, CorrectionSettings(**settings)))


def test_the_mismatch_is_by_hand() -> None:
    found = metrics(kind="truncated")
    ratios = [math.log(3), math.log(0.25), math.log(1.5)]
    assert found["engine/difference"] == pytest.approx(sum(map(abs, ratios)) / 3)
    assert found["engine/difference_max"] == pytest.approx(math.log(4))
    assert found["engine/kl_k1"] == pytest.approx(-sum(ratios) / 3)
    assert found["engine/kl_k3"] == pytest.approx(sum(math.exp(r) - 1 - r for r in ratios) / 3)
    assert found["engine/truncated"] == pytest.approx(1 / 3) and found["engine/masked"] == 0
    assert found["engine/effective"] == pytest.approx((3 + 0.25 + 1.5) ** 2 / (3 * (9 + 0.0625 + 2.25)))


def test_shares_count_tokens_or_whole_answers() -> None:
    assert metrics(kind="masked")["engine/masked"] == pytest.approx(2 / 3)
    by_sequence = metrics(kind="masked", level="sequence", floor=0.8)
    assert by_sequence["engine/masked"] == 0.5
    assert by_sequence["engine/effective"] == pytest.approx(2.25**2 / (2 * (0.75**2 + 1.5**2)))
    assert metrics(kind="none")["engine/masked"] == metrics(kind="none")["engine/truncated"] == 0


def test_weights_too_large_for_a_float_are_still_numbers_in_the_metrics() -> None:
    ratio, there = torch.tensor([[200.0, 0.0]]), torch.ones(1, 2, dtype=torch.bool)
    found = mismatch_metrics(*mismatch(ratio, there, CorrectionSettings()))
    assert found["engine/truncated"] == 0.5 and found["engine/effective"] == pytest.approx(0.5)
    assert all(math.isfinite(value) for value in found.values())


def test_no_decision_gives_no_metrics() -> None:
    assert mismatch_metrics(*mismatch(RATIO, torch.zeros_like(IS_DECISION), CorrectionSettings())) == {}


def test_another_engines_rollout_is_recomputed_and_its_advantages_weighed() -> None:
    policy, rollout = toy_rollout()
    assert not is_sampled_elsewhere(policy)
    log_prob, shift = rollout.trace.log_prob, math.log(1.25)
    theirs = replace(rollout, trace=replace(rollout.trace, log_prob=log_prob - shift))  # less likely to them: w = 1.25
    policy.recompute = lambda rolled, size: rollout  # type: ignore[method-assign, assignment]
    batch = loss_batch(rollout)
    batch = replace(batch, weight=torch.ones_like(batch.weight))
    settings = CorrectionSettings(kind="truncated", level="token", cap=1.2)
    again, weighed, found = correct(policy, theirs, batch, settings, Processes(), sampled_by="trained", micro_batch=4)
    assert again is rollout and weighed is not None
    there = rollout.blocks[0].weight > 0
    torch.testing.assert_close(weighed.advantages, batch.advantages * torch.where(there, 1.2, 1.0))
    assert found["engine/difference"] == pytest.approx(shift, rel=1e-5) and found["engine/truncated"] == 1
    assert torch.equal(weighed.weight, batch.weight), "denominators stay"


def test_an_engine_is_compared_with_the_weights_that_drew() -> None:
    policy, rollout = toy_rollout()
    policy.weights.keep("old")
    with torch.no_grad():
        policy.network.weight.mul_(2)  # trained on since then
    batch = loss_batch(rollout)
    settings, differences = CorrectionSettings(), dict[str, float]()
    for which in ("old", "trained"):
        *_, found = correct(policy, rollout, batch, settings, Processes(), sampled_by=which, micro_batch=4)
        differences[which] = found["engine/difference"]
    assert differences["old"] < 1e-6 and differences["trained"] > 0.1


def test_samples_that_take_no_part_are_no_mismatch() -> None:
    policy, rollout = toy_rollout()
    log_prob = rollout.trace.log_prob.clone()
    log_prob[0] -= 1.0
    batch = loss_batch(rollout)
    weight = torch.ones_like(batch.weight)
    weight[0] = 0
    theirs, batch = replace(rollout, trace=replace(rollout.trace, log_prob=log_prob)), replace(batch, weight=weight)
    _, weighed, found = correct(
        policy, theirs, batch, CorrectionSettings(), Processes(), sampled_by="trained", micro_batch=4
    )
    assert found["engine/difference_max"] == pytest.approx(0, abs=1e-6)
    assert weighed is not None
    torch.testing.assert_close(weighed.advantages, batch.advantages.expand_as(weighed.advantages))


def test_a_process_without_a_rollout_takes_part() -> None:
    policy, _ = toy_rollout()
    none = correct(policy, None, None, CorrectionSettings(), Processes(), sampled_by="trained", micro_batch=4)
    assert none == (None, None, {})


def test_settings_out_of_range_are_refused() -> None:
    from mmrl.core.config import load_config

    for wrong in ("cap=0.5", "floor=1.5", "kind=clipped", "levle=token"):
        with pytest.raises(ConfigError, match=r"correction"):
            load_config("quickstart", [f"correction.{wrong}"])


def test_decisions_are_compared_by_their_own_log_ratio() -> None:
    ours, theirs = TokenDecisions(torch.tensor([[-1.0]])), TokenDecisions(torch.tensor([[-1.5]]))
    assert ours.log_ratio(theirs).tolist() == [[0.5]]
