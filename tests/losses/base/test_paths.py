"""Pairs and paths against slow loops, and properties of every loss on whole samples."""

from dataclasses import replace
from itertools import combinations, permutations
from typing import Any

import pytest
import torch
from torch.testing import assert_close

from mmrl.core.numerics import group_log_softmax
from mmrl.core.plugins import build, find, names
from mmrl.losses.base.paths import PairLoss, Pairs, PathLoss, every_pair, preferred_pairs
from mmrl.losses.dpo import Dpo
from mmrl.losses.gvpo import Gvpo
from mmrl.losses.rebel import Rebel
from tests.losses.path_batches import batch_of, column, normal, step_gradient, step_loss
from tests.parameters import in_one_test
from tests.toys import toy_rollout
from tests.training.test_update import gradient, moved

NAMES = [name for name in names("losses") if issubclass(find("losses", name), PathLoss)]
SCORES = [0.5, 1.0, 0.5, 0.0, 1.0, 0.25, 0.3, 0.3, 2.0, 0.9]
GROUP = [7, 7, 7, 7, 7, 7, 3, 3, 3, 12]
MEMBERS = [True, True, True, True, True, False, True, True, False, True]


def slow_pairs(which: str) -> set[tuple[int, int]]:
    found = set()
    for i, j in permutations(range(len(SCORES)), 2):
        if GROUP[i] != GROUP[j] or not (MEMBERS[i] and MEMBERS[j]) or SCORES[i] <= SCORES[j]:
            continue
        others = [s for s, g, m in zip(SCORES, GROUP, MEMBERS, strict=True) if g == GROUP[i] and m]
        is_extreme = SCORES[i] == max(others) and SCORES[j] == min(others)
        is_adjacent = not any(SCORES[j] < s < SCORES[i] for s in others)
        if which == "all" or (which == "extremes" and is_extreme) or (which == "adjacent" and is_adjacent):
            found.add((i, j))
    return found


@pytest.mark.parametrize("which", ["all", "extremes", "adjacent"])
def test_pairs_are_those_of_a_slow_loop(which: Pairs) -> None:
    better, worse = preferred_pairs(torch.tensor(SCORES), torch.tensor(GROUP), torch.tensor(MEMBERS), which)
    pairs = list(zip(better.tolist(), worse.tolist(), strict=True))
    assert set(pairs) == slow_pairs(which) and len(set(pairs)) == len(pairs) > 1


def test_every_pair_holds_equal_rewards_once_and_the_better_first() -> None:
    better, worse = every_pair(torch.tensor(SCORES), torch.tensor(GROUP), torch.tensor(MEMBERS))
    pairs = list(zip(better.tolist(), worse.tolist(), strict=True))
    members = [n for n in range(len(SCORES)) if MEMBERS[n]]
    expected = {frozenset(pair) for pair in combinations(members, 2) if GROUP[pair[0]] == GROUP[pair[1]]}
    assert {frozenset(pair) for pair in pairs} == expected and len(pairs) == len(expected)
    assert all(SCORES[i] >= SCORES[j] for i, j in pairs)


def test_scores_that_differ_in_their_last_bit_are_no_tie() -> None:
    scores = torch.tensor([1.0, 1.0])
    scores[0] = torch.nextafter(scores[0], torch.tensor(2.0))
    better, worse = preferred_pairs(scores, torch.tensor([1, 1]), torch.tensor([True, True]), "all")
    assert (better.tolist(), worse.tolist()) == ([0], [1])


def test_the_softmax_of_a_group_is_that_of_its_members() -> None:
    values, group, members = normal(0, 6) * 300, torch.tensor([4, 1, 4, 4, 1, 9]), torch.tensor([1, 1, 1, 0, 1, 0]) > 0
    got = group_log_softmax(values, group, members)
    assert_close(got[[0, 2]], values[[0, 2]].log_softmax(0))
    assert_close(got[[1, 4]], values[[1, 4]].log_softmax(0))
    assert (got[~members] == 0).all()


def test_a_path_is_the_sum_or_the_mean_of_its_decisions_shared_ones_counted_wholly() -> None:
    weight = torch.tensor([[0.5, 1.0, 0.0], [0.5, 1.0, 1.0]])
    batch, values = batch_of([1.0, 0.0], weight=weight), torch.tensor([[1.0, 2.0, 9.0], [1.0, 3.0, 5.0]]).double()
    assert Gvpo().of_samples(values, batch).tolist() == [3.0, 9.0]
    assert Gvpo(path="mean").of_samples(values, batch).tolist() == [1.5, 3.0]


@pytest.mark.parametrize("loss", [Dpo(pairs="all"), Rebel(), Gvpo()])
def test_samples_that_take_no_part_are_in_no_pair(loss: Any) -> None:
    """The loss of a group with an absent member is that of the group without it, whatever its numbers are."""
    weight = torch.tensor([[1.0], [1.0], [0.0], [1.0]])
    with_absent = batch_of([1.0, 0.2, 50.0, -1.0], weight=weight)
    got = step_loss(loss, (column([0.3, 0.1, 70.0, -0.4]),), with_absent)
    assert_close(got, step_loss(loss, (column([0.3, 0.1, -0.4]),), batch_of([1.0, 0.2, -1.0])))


@in_one_test("name", NAMES)
def test_a_group_without_a_pair_counts_nothing(name: str) -> None:
    """Groups of one, and for preferences groups of equal rewards."""
    loss = build("losses", {"name": name})
    batch = batch_of([1.0, 0.0, 3.0, 5.0, 5.0], [1, 1, 2, 3, 3])
    coefficients, denominator = loss.coefficients(batch)
    is_preference = isinstance(loss, PairLoss) and (not loss.has_ties or loss.pairs != "all")
    counted = [1, 1, 0, 0, 0] if is_preference else [1, 1, 0, 1, 1]
    assert coefficients[:, 0].tolist() == counted and float(denominator) == sum(counted)


@pytest.mark.parametrize("loss", [Dpo(), Rebel(), Gvpo()])
def test_groups_count_by_their_members_or_alike(loss: Any) -> None:
    ratios, scores, group = [0.3, 0.1, -0.2, 0.5, 0.9], [1.0, 0.2, -1.0, 0.4, 0.1], [0, 0, 0, 1, 1]
    parts = (slice(3), slice(3, 5))
    alone = [step_loss(loss, (column(ratios[part]),), batch_of(scores[part])).item() for part in parts]
    got = step_loss(loss, (column(ratios),), batch_of(scores, group)).item()
    assert got == pytest.approx((3 * alone[0] + 2 * alone[1]) / 5)
    alike = step_loss(type(loss)(normalise="group"), (column(ratios),), batch_of(scores, group)).item()
    assert alike == pytest.approx((alone[0] + alone[1]) / 2)


@pytest.mark.parametrize("old", ["recorded", "itself"])
@pytest.mark.parametrize("name", NAMES)
def test_micro_batches_give_the_gradient_and_metrics_of_the_whole(name: str, old: Any) -> None:
    policy, rollout = toy_rollout()
    loss = build("losses", {"name": name, "kl_coef": 0.1, "kl": "k2"})
    policy.weights.keep("reference")
    if old == "recorded":
        moved(policy)
    else:
        with torch.no_grad():
            policy.network.bias.add_(torch.tensor([0.3, -0.2, 0.1, 0.0, 0.5]))
    whole, seen = gradient(policy, rollout, loss, 100, old=old)
    assert whole.isfinite().all() and whole.abs().max() > 0
    scale = float(whole.abs().max())
    for size in (1, 3):
        parts, seen_in_parts = gradient(policy, rollout, loss, size, old=old)
        assert_close(parts / scale, whole / scale, atol=1e-5, rtol=1e-4)
        assert seen == pytest.approx(seen_in_parts, rel=1e-4, abs=1e-5)


@in_one_test("name", NAMES)
def test_the_penalty_is_the_mean_kl_of_the_samples(name: str) -> None:
    """Added to the loss at its weight, whatever the terms are."""
    plain, penalised = (build("losses", {"name": name, "kl_coef": coefficient, "kl": "k3"}) for coefficient in (0, 0.5))
    batch, kl = batch_of([1.0, 0.2, -1.0]), torch.tensor([[0.1], [0.4], [0.7]], dtype=torch.float64)
    batch = replace(batch, step_mean=torch.zeros(()))
    ratios = column([0.03, 0.01, -0.02])
    has_two = name == "disco" or ("old" in plain.needs and plain.anchor != "old")
    measures = (ratios, ratios.detach() * 2) if has_two else (ratios,)
    before = step_loss(plain, measures, batch).item()
    scale = max(1.0, abs(before))
    assert (step_loss(penalised, (*measures, kl), batch).item() - before) / scale == pytest.approx(
        0.2 / scale, abs=1e-9
    )


@in_one_test(
    ("settings", "message"),
    [
        ({"path": "max"}, "path must be one of sum, mean, got 'max'"),
        ({"anchor": "trained"}, "anchor must be one of old, reference, averaged"),
        ({"pairs": "random"}, "pairs must be one of all, extremes, adjacent"),
        ({"kl_coef": -1.0}, "kl_coef must be at least 0"),
    ],
)
def test_settings_out_of_range_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Rebel(**settings)


def test_the_anchor_says_which_weights_are_evaluated() -> None:
    assert Rebel().needs == {"old"}
    assert Rebel(anchor="averaged").needs == {"averaged"}
    assert Dpo().needs == {"reference"}
    assert Rebel(kl_coef=0.1).needs == {"old", "reference"}


def test_nothing_is_learned_from_pairs_across_groups() -> None:
    ratios = column([0.3, 0.1, -0.2, 0.5])
    got = step_gradient(Dpo(pairs="all"), (ratios,), batch_of([1.0, 0.0, 5.0, 5.0], [0, 0, 1, 1]))
    assert (got[:2] != 0).all() and (got[2:] == 0).all()
