"""Settings of the shipped configs whose unit is not that of the paper's code, converted by hand."""

from itertools import pairwise
from math import pi, sin

import pytest

from mmrl.config import load_config

# reference/flow.md, section 3: the grid of the stock SD3 pipeline for 10 steps
PIPELINE = [1, 0.96013, 0.91335, 0.85769, 0.79037, 0.70728, 0.60215, 0.46488, 0.27805, 0.00893, 0]


def test_flow_grpos_kl_penalty_is_theirs_on_average_over_the_trained_steps() -> None:
    """yifan123/flow_grpo divides by 2 g^2, not by the variance 2 g^2 h: its 0.02 weighs KL * h."""
    steps = [sigma - sigma_next for sigma, sigma_next in pairwise(PIPELINE)][:-1]
    theirs = 0.02 * sum(steps) / len(steps)
    loss = load_config("flow_grpo_sd35").loss
    assert loss["kl"] == "exact"
    assert loss["kl_coef"] == pytest.approx(theirs, rel=0.15)


@pytest.mark.parametrize("name", ["flow_grpo_sd35", "flow_grpo_fast_sd35"])
def test_flow_grpos_average_forgets_as_slowly_as_theirs(name: str) -> None:
    """Theirs takes 0.9 once in 8 optimizer steps; DiffusionNFT's takes it in each."""
    averaging, every_step = load_config(name).averaging, load_config("nft_sd35").averaging
    assert averaging is not None and every_step is not None
    assert averaging.decay**8 == pytest.approx(0.9, abs=0.002)
    assert every_step.decay == 0.9


def test_flow_grpos_clip_run_starts_a_group_from_one_latent() -> None:
    assert load_config("flow_grpo_sd35").sampler["share_noise"] is True


def test_the_fast_runs_clip_range_is_near_theirs() -> None:
    """Their CPS log-prob lacks 1 / (2 std^2): the same range is 2 std^2 times narrower in it."""
    config = load_config("flow_grpo_fast_sd35")
    window, share = config.sampler["window"], sin(config.sampler["noise_level"] * pi / 2)
    factors = [2 * (share * PIPELINE[step + 1]) ** 2 for step in range(window["first"], window["last"])]
    assert [min(factors), max(factors)] == pytest.approx([0.9, 1.7], abs=0.05)
    assert config.loss["clip_low"] == config.loss["clip_high"] == pytest.approx(1e-5)
