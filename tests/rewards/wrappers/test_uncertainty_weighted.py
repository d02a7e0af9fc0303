"""uncertainty_weighted by hand."""

import math

import pytest
import torch

from mmrl.core.contracts import ConfigError
from mmrl.core.plugins import build
from mmrl.rewards.base.disagreement import reduced
from tests.parameters import in_one_test
from tests.rewards.example import Example
from tests.rewards.inner import SECOND, WRITTEN, numbers, said

BOTH = [WRITTEN, SECOND]
EXAMPLE = Example(random_batch=numbers, best=lambda: said("1 1"), settings={"rewards": BOTH, "kind": "discount"})


def test_disagreement_is_taken_off() -> None:
    batch = said("0.2 0.6", "0.5 0.5")  # means 0.4 and 0.5, std 0.2 and 0
    lower = build("rewards", {"name": "uncertainty_weighted", "rewards": BOTH, "scale": 2.0})
    assert lower.score(batch).tolist() == pytest.approx([0.4 - 0.4, 0.5], abs=1e-6)
    assert lower.range == (-0.5, 1.0)
    discount = build("rewards", {"name": "uncertainty_weighted", "rewards": BOTH, "kind": "discount", "scale": 3.0})
    assert discount.score(batch).tolist() == pytest.approx([0.4 * math.exp(-0.6), 0.5])
    assert discount.range == (0.0, 1.0)
    uwo = build("rewards", {"name": "uncertainty_weighted", "rewards": BOTH, "kind": "variance", "scale": 5.0})
    assert uwo.score(batch).tolist() == pytest.approx([0.4 - 5 * 0.04, 0.5])
    assert uwo.range == (0.5 - 5 * 0.25, 1.0)


def test_a_weighted_loss_is_the_distance_to_the_largest_score_and_a_term_of_the_disagreement() -> None:
    weighted = {"name": "uncertainty_weighted", "rewards": BOTH, "kind": "weighted_loss", "scale": 3.0}
    reward = build("rewards", weighted | {"own_weight": 0.7})
    batch = said("0.2 0.6", "0.5 0.5", "1 1")  # means 0.4, 0.5 and 1, std 0.2, 0 and 0
    loss = [0.6 * math.exp(-0.6) + 0.7 * 0.2, 0.5, 0.0]
    assert reward.score(batch).tolist() == pytest.approx([1 - one for one in loss], abs=1e-6)
    assert reward.range == (-0.35, 1.0)
    plain = build("rewards", weighted)
    assert plain.score(batch)[0].item() == pytest.approx(1 - 0.6 * math.exp(-0.6), abs=1e-6)
    assert plain.range == (0.0, 1.0)


def test_the_gradient_of_a_weighted_loss_passes_through_its_weight_and_its_term() -> None:
    """Two scores a > b with top 0: d/da of -(L e^(-2 u) + 0.2 u) with L = -(a + b) / 2 and u = (a - b) / 2."""
    values = torch.tensor([[-0.2, -0.3], [-0.6, -0.3]], dtype=torch.float64, requires_grad=True)  # [n, B]
    scores = reduced(values, "weighted_loss", 2.0, top=0.0, own_weight=0.2)
    (gradient,) = torch.autograd.grad(scores.sum(), values)
    weight = math.exp(-0.4)
    expected = torch.tensor([[weight / 2 + 0.4 * weight - 0.1, 0.5], [weight / 2 - 0.4 * weight + 0.1, 0.5]])
    torch.testing.assert_close(gradient, expected.double())


def test_the_worst_judge_decides_and_disagreement_is_a_number_to_watch() -> None:
    batch = said("0.2 0.6", "0.5 0.5", "0 1")
    worst = build("rewards", {"name": "uncertainty_weighted", "rewards": BOTH, "kind": "worst"})
    assert worst.score(batch).tolist() == pytest.approx([0.2, 0.5, 0.0])
    assert worst.range == (0.0, 1.0)
    spread = build("rewards", {"name": "uncertainty_weighted", "rewards": BOTH, "kind": "disagreement"})
    assert spread.score(batch).tolist() == pytest.approx([-0.2, 0.0, -0.5], abs=1e-7)
    assert spread.range == (-0.5, 0.0)


def test_the_lower_end_of_the_range_is_reached() -> None:
    lower = build("rewards", {"name": "uncertainty_weighted", "rewards": [WRITTEN, SECOND, SECOND], "scale": 2.0})
    # one of three at 1, two at 0: 1/3 - 2 sqrt(2) / 3
    assert lower.range == pytest.approx(((1 - 2 * math.sqrt(2)) / 3, 1.0))
    assert lower.score(said("1 0")).item() == pytest.approx(lower.range[0])


def test_the_gradient_is_finite_where_all_agree() -> None:
    clips = {"name": "flicker"}
    reward = build("rewards", {"name": "uncertainty_weighted", "rewards": [clips, clips]})
    from mmrl.core.data import Outputs
    from tests.rewards.example import make_batch

    videos = torch.rand(2, 3, 3, 8, 8, generator=torch.Generator().manual_seed(0)).requires_grad_()
    (gradient,) = torch.autograd.grad(reward.score(make_batch(Outputs(videos=videos), ["a", "b"])).sum(), videos)
    assert gradient.isfinite().all() and gradient.abs().sum() > 0


@in_one_test(
    ("settings", "message"),
    [
        ({"rewards": [WRITTEN]}, "at least two, got 1"),
        ({"rewards": WRITTEN}, "a list of sections such as"),
        ({"rewards": BOTH, "scale": -1}, "scale must be at least 0"),
        (
            {"rewards": [{"name": "jpeg_size"}] * 2, "kind": "discount"},
            "for rewards of at least 0, got one that goes down to -inf",
        ),
        ({"rewards": BOTH, "own_weight": 0.1}, "own_weight is for kind 'weighted_loss', got 0.1 with 'lower_bound'"),
        ({"rewards": BOTH, "kind": "weighted_loss", "own_weight": -1}, "own_weight must be at least 0"),
        (
            {"rewards": [{"name": "self_certainty"}] * 2, "kind": "weighted_loss"},
            "for rewards with a largest score, got one without",
        ),
        ({"rewards": [WRITTEN, {"name": "episode_success"}]}, "must judge alike"),
    ],
)
def test_bad_settings_are_refused(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build("rewards", {"name": "uncertainty_weighted"} | settings)


def test_the_lower_end_of_a_discount_is_reached() -> None:
    held = [{"name": "clip_range", "reward": one, "low": 0.5} for one in BOTH]
    reward = build("rewards", {"name": "uncertainty_weighted", "rewards": held, "kind": "discount", "scale": 4.0})
    assert reward.range == pytest.approx((0.75 * math.exp(-1), 1.0))  # 0.5 and 1: mean 0.75, std 0.25
    assert reward.score(said("0 1")).item() == pytest.approx(reward.range[0])
    mild = build("rewards", {"name": "uncertainty_weighted", "rewards": held, "kind": "discount", "scale": 0.1})
    assert mild.range == (0.5, 1.0)
