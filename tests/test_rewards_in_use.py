"""Every shipped reward stands in a shipped config, so that someone can copy a line that works."""

from typing import Any

import pytest

from mmrl.core import plugins
from mmrl.core.config import read_yaml, shipped_names


def names_in(value: Any) -> set[str]:
    """All values under a key `name`, at any depth."""
    if isinstance(value, dict):
        own = {value["name"]} if isinstance(value.get("name"), str) else set()
        return own.union(*map(names_in, value.values()))
    return set[str]().union(*map(names_in, value)) if isinstance(value, list) else set()


@pytest.mark.slow
def test_every_reward_stands_in_a_config() -> None:
    used = set[str]().union(*(names_in(read_yaml(name)) for name in shipped_names()))
    unused = set(plugins.names("rewards")) - used
    assert unused == set(), f"write a config with {sorted(unused)}"
