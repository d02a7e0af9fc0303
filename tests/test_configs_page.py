"""The config that docs/configs.md begins with is complete, and has no part that a run could do without."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from mmrl.assembly.build import build
from mmrl.core.config import check_config
from mmrl.system.errors import ConfigError

PAGE = (Path(__file__).parents[1] / "docs" / "configs.md").read_text(encoding="utf-8")


def example() -> dict[str, Any]:
    (code,) = re.findall(r"^```yaml\n(.*?)^```$", PAGE, re.M | re.S)
    settings: dict[str, Any] = yaml.safe_load(code)
    return settings


def test_the_config_of_the_page_can_be_built() -> None:
    built = build(check_config(example()))
    assert type(built.sampler).__name__ == "FlowSDE" and type(built.loss).__name__ == "Grpo"


def test_each_part_of_the_config_is_needed() -> None:
    for part in example():
        with pytest.raises(ConfigError, match=part):
            check_config({name: settings for name, settings in example().items() if name != part})
