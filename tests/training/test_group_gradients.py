"""What the gradients of groups say of each other, against NumPy; some of their values give the same on average."""

import numpy as np
import pytest
import torch
from torch import Tensor

from mmrl.training import group_gradients
from mmrl.training.group_gradients import GroupGradients, evenness, noise_scale, signal_to_noise
from mmrl.training.processes import Processes


def test_signal_to_noise_is_the_square_of_the_mean_over_its_variance() -> None:
    gradients = np.random.default_rng(0).normal(0.3, 1.0, (8, 50))
    mean, variance = gradients.mean(0), gradients.var(0, ddof=1).sum() / 8
    found = signal_to_noise(float((gradients.sum(0) ** 2).sum()), [float((one**2).sum()) for one in gradients])
    assert found == pytest.approx(float((mean**2).sum() / variance))


def test_pure_noise_has_a_signal_to_noise_of_one_on_average() -> None:
    rng = np.random.default_rng(1)
    found = []
    for _ in range(200):
        gradients = rng.normal(0.0, 1.0, (8, 200))
        found.append(
            signal_to_noise(float((gradients.sum(0) ** 2).sum()), [float((one**2).sum()) for one in gradients])
        )
    assert np.mean([one for one in found if one is not None]) == pytest.approx(1.0, abs=0.03)


def test_equal_gradients_have_no_noise() -> None:
    assert signal_to_noise(64 * 5.0, [5.0] * 8) is None


def test_the_noise_scale_is_the_variance_of_a_group_over_the_square_of_the_true_gradient() -> None:
    rng, true = np.random.default_rng(2), np.full(400, 0.25)  # |true|^2 = 25; the variance is 400 * 4
    found = []
    for _ in range(100):
        gradients = true + rng.normal(0.0, 2.0, (64, 400))
        squares = [float((one**2).sum()) for one in gradients]
        found.append(noise_scale(float((gradients.sum(0) ** 2).sum()), squares))
    assert np.mean([one for one in found if one is not None]) == pytest.approx(1600 / 25, rel=0.05)
    assert noise_scale(0.0, [1.0, 1.0]) is None  # opposite gradients


def test_the_evenness_of_gradients_is_the_share_of_groups_that_count() -> None:
    assert evenness([3.0] * 8) == pytest.approx(1) and evenness([0.0, 5.0, 0.0, 0.0]) == pytest.approx(1 / 4)
    assert evenness([1e-300, 1e-300]) == pytest.approx(1) and evenness([0.0, 0.0]) == 0
    squares = np.array([0.1, 2.0, 0.7])
    assert evenness(list(squares)) == pytest.approx(squares.sum() ** 2 / (3 * (squares**2).sum()))


SHAPES = {"bias": (3,), "weight": (40, 25), "scale": (), "nothing": (0, 4), "unused": (6,)}


def gradients_of(count: int, scale: float = 1.0) -> list[dict[str, Tensor]]:
    """Returns gradients of groups with a mean of 0.3 that differ by `scale`; `unused` has none."""
    rng = np.random.default_rng(3)
    return [
        {
            name: torch.tensor(rng.normal(0.3, scale, shape), dtype=torch.float32)
            for name, shape in SHAPES.items()
            if name != "unused"
        }
        for _ in range(count)
    ]


def added(groups: list[dict[str, Tensor]], seed: int = 0) -> GroupGradients:
    parameters = {name: torch.zeros(shape) for name, shape in SHAPES.items()}
    sums = GroupGradients(parameters, seed)
    for one in groups:
        for name, parameter in parameters.items():
            parameter.grad = one[name].clone() if name in one else None
        sums.add()
    return sums


def test_sums_of_gradients_that_fit_are_those_of_all_their_values() -> None:
    groups = gradients_of(4)
    sums = added(groups)
    table = np.stack([np.concatenate([one[name].numpy().ravel() for name in one]) for one in groups]).astype(np.float64)
    assert sums.squares == pytest.approx(list((table**2).sum(1)), rel=1e-6)
    assert sums.sum_square(Processes()) == pytest.approx((table.sum(0) ** 2).sum(), rel=1e-6)
    assert sums.reached() == ["bias", "weight", "scale"]


def test_some_values_of_large_gradients_are_right_on_average_and_take_little_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    groups = gradients_of(4, scale=0.5)
    every = added(groups)
    exact = np.array([every.sum_square(Processes()), *every.squares])
    monkeypatch.setattr(group_gradients, "SAMPLED", 50)
    found = [added(groups, seed) for seed in range(36)]
    assert all(sum(one.numel() for one in some._total.values()) <= 50 + len(SHAPES) for some in found)
    squares = np.array([[some.sum_square(Processes()), *some.squares] for some in found])
    assert (np.abs(squares.mean(0) - exact) < 4 * squares.std(0) / 6).all() and (squares.std(0) > 0).all()
    ratios = [signal_to_noise(one[0], one[1:]) for one in squares.tolist()]
    assert np.mean([one for one in ratios if one is not None]) == pytest.approx(
        signal_to_noise(exact[0], exact[1:].tolist()), rel=0.1
    )


def test_every_group_is_sampled_at_the_same_places(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_gradients, "SAMPLED", 50)
    (one,) = gradients_of(1)
    sums = added([one] * 3)
    assert sums.sum_square(Processes()) == pytest.approx(9 * sums.squares[0])
    assert sums.squares[0] == sums.squares[2] != added([one], seed=1).squares[0]


def test_a_tensor_with_one_value_that_is_not_0_has_a_gradient_wherever_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_gradients, "SAMPLED", 2)
    alone = torch.zeros(40, 25)
    alone[39, 24] = 1e-3
    assert added([{"weight": torch.zeros(40, 25)}, {"weight": alone}]).reached() == ["weight"]
    assert added([{"weight": torch.zeros(40, 25)}]).reached() == []


def test_a_gradient_that_is_not_finite_is_left_out() -> None:
    good, bad = gradients_of(2)
    bad["bias"][1] = torch.inf
    sums = added([bad, good])
    assert len(sums.squares) == 1 and sums.sum_square(Processes()) == pytest.approx(sums.squares[0])
