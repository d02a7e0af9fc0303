"""Advantages that lack what they compare with, or cannot compare the rewards, are refused before weights are loaded."""

import pytest

from mmrl.assembly.build import build
from mmrl.core.config import load_config
from mmrl.core.contracts import ConfigError


def refused(name: str, *overrides: str) -> str:
    with pytest.raises(ConfigError) as error:
        build(load_config(name, overrides))
    return str(error.value)


@pytest.mark.slow
def test_remax_needs_a_greedy_answer() -> None:
    build(load_config("lab/remax"))
    assert "advantage 'remax' compares with the likeliest answer: set sampler.greedy" in refused(
        "lab/remax", "sampler.greedy=false"
    )
    assert "if the sampler has it" in refused("quickstart_policy_gradient", "advantage={name: remax}")


@pytest.mark.slow
def test_a_wrapped_advantage_needs_what_the_inner_one_needs() -> None:
    inner = "advantage={name: entropy_advantage, inner: {name: remax}}"
    assert "compares with the likeliest answer" in refused("lab/remax", inner, "sampler.greedy=false")
    build(load_config("lab/remax", [inner]))
    inner = "advantage={name: entropy_advantage, inner: {name: pass_at_k, k: 8}}"
    assert "group_size must be at least 9, got 8" in refused("quickstart_gui", inner)


@pytest.mark.slow
def test_maxrl_refuses_rewards_below_zero() -> None:
    build(load_config("lab/maxrl"))
    negative = "rewards=[{name: point_in_box, weight: -1}]"
    assert "'point_in_box' goes down to 0 with a weight of -1" in refused("lab/maxrl", negative)


@pytest.mark.slow
def test_an_advantage_with_a_state_of_totals_is_refused_in_a_mix_of_advantages() -> None:
    given = ["advantage={name: value_at_risk, bundle: 1}", "mix={name: advantage_weighted}"]
    assert "advantage 'value_at_risk' learns from the totals of a run" in refused("lab/gdpo", *given)


UNBOUNDED = "[{name: running_normalised, reward: {name: point_in_box}}]"
BOXES = "[{name: point_in_box, weight: 3}, {name: repetition, weight: 0.5}, {name: format_tags, weight: 0}]"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["rewards.0.weight=5"], "best is 1, and the largest total that can be is 5.55"),
        (["advantage.best=0.9"], "best is 0.9, and the largest total that can be is 1, "),
        (["rewards.0.weight={start: 0, end: 1, last: 5}"], "the largest total changes from 0.55 to 1.55, and best"),
        (["rewards=[{name: click_distance, weight: -1}]"], "the largest total that can be is 0,"),
        ([f"rewards={UNBOUNDED}"], "there is no largest total to compare with"),
        (["mix={name: gdpo}"], "there is no largest mix to compare with"),
        (["mix={name: gate, by: format_tags}", "rewards.2.weight=0.5"], "the largest total that can be is 1.4,"),
        (["mix={name: product}", "rewards.0.weight=2"], None),  # 1 to any power
        (["mix={name: advantage_weighted}", "advantage.best=2"], "the largest reward 'point_in_box' that can be is 1,"),
        ([f"rewards={BOXES}", "advantage.best=3"], None),  # repetition runs from -1 to 0
        (
            ["advantage={name: entropy_advantage, inner: {name: ngrpo, best: 7}}"],
            "best is 7, and the largest",
        ),
        (
            ["advantage={name: dra, diversity: format_tags, inner: {name: ngrpo}}"],
            "inner compares with the best total",
        ),
        (["advantage={name: ngrpo, best: 7, virtual: 0}"], None),
    ],
)
def test_the_best_total_of_ngrpo_is_the_largest_that_can_be(overrides: list[str], message: str | None) -> None:
    if message is None:
        build(load_config("lab/ngrpo", overrides))
    else:
        assert message in refused("lab/ngrpo", *overrides)


def test_pass_at_k_needs_a_group_above_k() -> None:
    assert "group_size must be at least 5, got 4" in refused("lab/pass_at_k", "group_size=4")


def test_pass_at_k_needs_as_many_children_of_one_seed() -> None:
    best = ["advantage={name: pass_at_k, k: 4}", "loss.normalise=sample"]
    said = "group_size must be at least 20, got 16, of which 4 are compared with each other"
    assert said in refused("lab/tempflow", *best)
    build(load_config("lab/tempflow", [*best, "sampler.compare=prompt"]))


@pytest.mark.slow
def test_the_turns_of_an_episode_are_no_k_tries() -> None:
    message = "advantage 'pass_at_k' is of single answers; for episodes there are 'turn_returns' and 'gigpo'"
    assert message in refused("quickstart_agent", "advantage={name: pass_at_k, k: 2}")
    inner = "advantage={name: ngrpo, inner: {name: pass_at_k, k: 2}}"
    assert "advantage 'ngrpo' is of single answers" in refused("quickstart_agent", inner)


@pytest.mark.parametrize("name", ["tree", "tree_rl", "tree_rpo", "granular", "timestep_weighted, by: discount"])
def test_losses_on_whole_samples_take_no_advantages_of_decisions(name: str) -> None:
    said = "is one for each decision, and loss 'nft' learns from whole samples"
    assert said in refused("quickstart", f"advantage={{name: {name}}}")
    if not name.startswith("tree"):  # which ngrpo refuses itself
        assert said in refused("quickstart", f"advantage={{name: ngrpo, inner: {{name: {name}}}}}")


def test_entropy_is_not_known_of_denoising_steps() -> None:
    assert "requires entropy of each decision" in refused(
        "quickstart_policy_gradient", "advantage={name: entropy_advantage}"
    )


@pytest.mark.slow
def test_one_answer_and_its_greedy_one_are_a_group() -> None:
    build(load_config("lab/remax", ["group_size=1"]))
    build(load_config("lab/reinforce_pp", ["group_size=1"]))
    assert "group_size must be at least 2" in refused("lab/reinforce_pp_baseline", "group_size=1")


def test_a_mix_that_compares_within_groups_has_no_size_to_divide_by() -> None:
    assert (
        "advantage 'maxrl': rewards are divided by their mean and must not be below 0, but 'gdpo' goes down"
        in refused("lab/maxrl", "mix={name: gdpo}")
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    "reward",
    [
        "{name: win_rate, reward: {name: soft_shapes}}",
        "{name: clip_range, reward: {name: win_rate, reward: {name: soft_shapes}}, low: 0, high: 1}",
        "{name: pairwise_judge}",
    ],
)
def test_an_evaluation_by_win_rates_alone_is_refused(reward: str) -> None:
    assert "has the same mean in all groups: an evaluation by it shows nothing" in refused(
        "lab/nft", f"rewards=[{reward}]", "evaluation.rewards=null"
    )
    build(load_config("lab/nft", [f"rewards=[{reward}]", "evaluation.rewards=[{name: soft_shapes}]"]))
    build(load_config("lab/nft", [f"rewards=[{reward}, {{name: soft_shapes}}]", "evaluation.rewards=null"]))
    build(load_config("lab/nft", [f"rewards=[{reward}]", "evaluation=null"]))
