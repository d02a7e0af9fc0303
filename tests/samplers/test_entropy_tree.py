"""Settings of answers that fork, and the plan they become; neither is drawn by another engine or by shards."""

from typing import Any

import pytest

from mmrl.assembly.build import build as build_parts
from mmrl.core.config import load_config
from mmrl.core.contracts import ConfigError
from mmrl.core.keys import GroupKey
from mmrl.core.plugins import build
from mmrl.plans.answers import ForkTree
from tests.parameters import in_one_test


def plan(group_size: int, **settings: Any) -> ForkTree:
    made = {"name": "entropy_tree", "max_tokens": 64, "forks": 2, "rounds": 1, "branch": 2, **settings}
    planned: ForkTree = build("samplers", made).plan(None, GroupKey(0, 1, 2), group_size)
    return planned


def test_the_size_of_the_group_says_how_many_answers_there_are_at_first() -> None:
    assert plan(30) == ForkTree(30, 64, chains=6, rounds=1, forks=2, branch=2)
    assert plan(5, by="probability", top_k=9) == ForkTree(
        5, 64, top_k=9, chains=1, rounds=1, forks=2, branch=2, by="probability"
    )
    assert plan(7, rounds=0).chains == 7
    with pytest.raises(ValueError, match=r"a multiple of .* 1 \+ 1 x 2 x 2 = 5, got 8"):
        plan(8)


@in_one_test(
    ("settings", "message"),
    [
        ({"forks": 0}, "forks must be at least 1, got 0"),
        ({"branch": 0}, "branch must be at least 1, got 0"),
        ({"rounds": -1}, "rounds must be at least 0, got -1"),
        ({"by": "length"}, "by"),
        ({"temperature": 0}, "temperature must be above 0"),
    ],
)
def test_settings_out_of_range_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        plan(5, **settings)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("override", "other"),
    [
        ("modality.engine={name: vllm, url: 'http://127.0.0.1:9'}", "modality.engine samples"),
        ("sharding=full", "processes that share the weights sample"),
    ],
)
@pytest.mark.parametrize("name", ["lab/tree_rl", "lab/tree_rpo"])
def test_another_engine_and_shared_weights_are_refused_when_the_config_is_read(
    name: str, override: str, other: str
) -> None:
    with pytest.raises(ConfigError, match=f"sampler is a tree of answers, and {other} none; use sampler 'autoreg"):
        build_parts(load_config(name, [override]))
