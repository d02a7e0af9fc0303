"""Groups that are too hard or too easy are left out or replaced."""

import pytest
import torch

from mmrl.assembly.build import build
from mmrl.core.config import GroupSettings, load_config
from mmrl.core.contracts import ConfigError
from mmrl.scoring.metrics import groups_outside
from tests.advantages.scored import NAN, scored
from tests.toy_runs import CountZeros, collector, stream


def test_means_are_compared_with_both_ends_by_hand() -> None:
    scores = scored([0, 1, 0.5, 0, 0, 1, 1, NAN, 1, NAN, NAN], [7, 7, 7, 2, 2, 3, 3, 5, 5, 9, 9])
    # means 0.5, 0, 1, 1 (of one that could be judged), and none
    assert groups_outside(scores, 0.25, 0.75).tolist() == [False] * 3 + [True] * 8
    assert groups_outside(scores, 0.0, 0.5).tolist() == [False] * 5 + [True] * 6
    assert groups_outside(scores, 0.0, 1.0).tolist() == [False] * 9 + [True] * 2


def test_an_episode_counts_once() -> None:
    scores = scored([1.0, 1.0, 1.0, 0.0], episode=torch.tensor([0, 0, 0, 1]))
    assert not groups_outside(scores, 0.5, 0.5).any()


@pytest.mark.parametrize("degenerate", ["drop", "refill"])
def test_the_groups_that_are_kept_are_inside(degenerate: str) -> None:
    groups = GroupSettings(degenerate=degenerate, mean_between=(1.0, 2.0), max_refills=9)  # type: ignore[arg-type]
    every = collector(stream(*(f"bright {n}" for n in range(12))), wanted=12)(0, "trained")
    means = {draw: float(every.scores.values[every.scores.prompt_index == draw].mean()) for draw in every.kept}
    inside = [draw for draw, mean in means.items() if 1.0 <= mean <= 2.0]
    assert 0 < len(inside) < 12
    kept = collector(stream(*(f"bright {n}" for n in range(12))), groups, wanted=12)(0, "trained")
    assert [draw for draw in kept.kept if draw < 12] == inside
    assert (len(kept.kept) == 12) is (degenerate == "refill")


def test_everything_inside_is_no_band() -> None:
    wide = GroupSettings(degenerate="drop", mean_between=(-1e9, 1e9))
    prompts = [f"{kind} {n}" for n in range(4) for kind in ("dull", "bright")]
    with_band = collector(stream(*prompts), wide, wanted=8, reward=CountZeros())(0, "trained")
    without = collector(stream(*prompts), GroupSettings(degenerate="drop"), wanted=8)(0, "trained")
    assert with_band.kept == without.kept


@pytest.mark.slow
@pytest.mark.parametrize(
    "wrong", [["groups.mean_between=[0.8, 0.2]", "groups.degenerate=drop"], ["groups.mean_between=[0.2, 0.8]"]]
)
def test_a_band_that_means_nothing_is_refused(wrong: list[str]) -> None:
    with pytest.raises(ConfigError, match=r"groups\.mean_between is two numbers, the smaller first"):
        build(load_config("quickstart_gui", wrong))
