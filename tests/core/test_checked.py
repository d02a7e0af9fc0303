"""Ranges and choices on the fields of a dataclass: checked when an object is made, in Python and from a config."""

import math
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import pytest
from pydantic import Field

from mmrl.core import plugins
from mmrl.core.checked import Checked
from mmrl.system.errors import ConfigError
from tests.parameters import in_one_test


@dataclass(frozen=True)
class Settings(Checked):
    clip: Annotated[float, Field(ge=0)] = 1.0
    share: Annotated[float, Field(gt=0, le=1)] = 0.5
    height: Annotated[float, Field(gt=0)] | None = None
    mode: Literal["group", "batch"] = "group"
    size: Annotated[int, Field(ge=1)] | Literal["auto"] = "auto"
    weights: tuple[Annotated[float, Field(ge=0)], ...] = ()
    pair: tuple[Annotated[int, Field(lt=3)], Literal["a"]] = (0, "a")
    scales: dict[str, Annotated[float, Field(ge=0)]] = field(default_factory=dict)
    names: frozenset[Literal["x", "y"]] = frozenset()


@dataclass(frozen=True)
class Ordered(Settings):
    low: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.low > self.clip:
            raise ValueError(f"low must be at most clip, got {self.low} and {self.clip}")


WRONG = [
    ({"clip": -1}, "clip must be at least 0, got -1"),
    ({"clip": math.nan}, "clip must be at least 0, got nan"),
    ({"share": 0}, "share must be above 0 and at most 1, got 0"),
    ({"share": 1.5}, "share must be above 0 and at most 1, got 1.5"),
    ({"height": 0.0}, "height must be above 0, or null, got 0.0"),
    ({"mode": "grup"}, "mode must be one of group, batch, got 'grup' (did you mean 'group'?)"),
    ({"size": 0}, "size must be at least 1, got 0"),
    ({"size": "all"}, "size must be one of auto, got 'all'"),
    ({"weights": (1.0, -2.0)}, "weights.1 must be at least 0, got -2.0"),
    ({"pair": (3, "a")}, "pair.0 must be below 3, got 3"),
    ({"pair": (0, "b")}, "pair.1 must be one of a, got 'b'"),
    ({"scales": {"a": -1.0}}, "scales.a must be at least 0, got -1.0"),
    ({"names": frozenset({"x", "z"})}, "names must be one of x, y, got 'z'"),
]


@in_one_test(("settings", "message"), WRONG)
@in_one_test("cls", [Settings, Ordered])
def test_a_setting_out_of_range_is_refused_in_python(cls: Any, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError) as caught:
        cls(**settings)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    "settings",
    [
        {"clip": 0, "share": 1, "height": None, "size": 1, "weights": (0.0,), "pair": (2, "a"), "scales": {"a": 0.0}},
        {"height": 0.1, "size": "auto", "mode": "batch", "names": frozenset({"x", "y"})},
    ],
)
def test_the_ends_of_a_range_and_none_are_allowed(settings: dict[str, Any]) -> None:
    assert Settings(**settings)


def test_a_rule_between_fields_comes_after_the_ranges() -> None:
    with pytest.raises(ValueError, match="low must be at most clip, got 2"):
        Ordered(low=2.0)
    with pytest.raises(ValueError, match="clip must be at least 0"):
        Ordered(clip=-1, low=2.0)


@in_one_test(
    ("settings", "message"),
    [
        ({"clip": -1}, "HERE.clip must be at least 0, got -1"),
        ({"clip": "-1"}, "HERE.clip must be at least 0, got -1"),
        ({"share": 1.5}, "HERE.share must be above 0 and at most 1, got 1.5"),
        ({"height": 0.0}, "HERE.height must be above 0, or null, got 0.0"),
        ({"weights": [1, -2]}, "HERE.weights.1 must be at least 0, got -2"),
        ({"mode": "grup"}, "HERE.mode: should be 'group' or 'batch', got 'grup'"),
        ({"low": 2.0}, "HERE: low must be at most clip, got 2.0 and 1.0"),
    ],
)
def test_a_config_gets_the_same_words_behind_the_place(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        plugins.checked(Ordered, settings, "HERE")
    assert str(caught.value) == message
