"""Plug-ins by name: found by their file, checked by their fields, and errors that help."""

import importlib
import inspect
import re
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, get_type_hints

import pytest
from pydantic import BaseModel, ConfigDict, ValidationError

from mmrl.assembly.build import build as build_run
from mmrl.core import plugins
from mmrl.core.config import load_config
from mmrl.core.contracts import ConfigError
from mmrl.system import spelling
from tests.parameters import in_one_test

SHIPPED = [(kind, name) for kind in plugins.KINDS for name in plugins.names(kind)]
OWN = """
from dataclasses import dataclass, field
from typing import Annotated, Literal
from pydantic import Field

@dataclass(frozen=True)
class Window:
    size: int
    mode: Literal["all", "range"] = "all"

    def __post_init__(self) -> None:
        if self.size < 1:
            raise ValueError(f"the size of a Window must be at least 1, got {self.size}")

@dataclass(frozen=True)
class Sharpness:
    noise_level: float
    num_steps: int = 10
    json: bool = False  # a name that pydantic's models have too
    window: Window | None = None
    sigmas: Literal["pipeline"] | tuple[float, ...] = "pipeline"
    scales: dict[str, float] = field(default_factory=dict)
    share: Annotated[float, Field(ge=0, le=1)] = 1.0
    loaded: object = field(init=False, default=None)

    def __post_init__(self) -> None:
        if self.noise_level < 0:
            raise ValueError(f"noise_level must be at least 0, got {self.noise_level}")

NOT_A_CLASS = 3
"""


@pytest.fixture(autouse=True)
def own_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A user's `my_plugins.py` in the working folder, as the command line sees it."""
    (tmp_path / "my_plugins.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(importlib.sys.modules, "my_plugins", raising=False)  # type: ignore[attr-defined]


def build(**settings: Any) -> Any:
    return plugins.build("samplers", {"name": "my_plugins:Sharpness", **settings})


def refusal(**settings: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        build(**settings)
    return str(caught.value).replace("samplers.my_plugins:Sharpness", "HERE")


def test_a_users_own_class_is_found_by_module_and_name() -> None:
    built = build(noise_level=0.5)
    assert (type(built).__name__, built.noise_level, built.num_steps) == ("Sharpness", 0.5, 10)


@in_one_test(
    ("name", "message"),
    [
        ("my_plugin:Sharpness", "sampler 'my_plugin:Sharpness': cannot import 'my_plugin'"),
        ("my_plugins:Sharpnes", "my_plugins has no dataclass 'Sharpnes'"),
        ("my_plugins:NOT_A_CLASS", "my_plugins has no dataclass 'NOT_A_CLASS'"),
        (":Sharpness", "a user's plug-in is named module:Class"),
        ("my_plugins:", "a user's plug-in is named module:Class"),
        ("../my_plugins:Sharpness", "a user's plug-in is named module:Class"),
    ],
)
def test_a_users_own_class_that_is_not_there_is_the_users_mistake(name: str, message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        plugins.find("samplers", name)


def test_an_unknown_name_brings_the_nearest() -> None:
    with pytest.raises(ConfigError, match=re.escape("unknown reward 'jpg_size' (did you mean 'jpeg_size'?)")):
        plugins.find("rewards", "jpg_size")


def test_a_name_unlike_all_others_brings_the_known_ones() -> None:
    with pytest.raises(ConfigError, match=r"unknown loss 'qqqqq'; known are .*grpo.*, nft"):
        plugins.find("losses", "qqqqq")


def test_a_shared_file_of_a_folder_is_no_plugin() -> None:
    with pytest.raises(ConfigError, match="unknown sampler '_kernels'"):
        plugins.find("samplers", "_kernels")


@pytest.mark.parametrize("name", [None, 3, ["grpo"]])
def test_a_missing_name_is_refused(name: Any) -> None:
    with pytest.raises(ConfigError, match=r"advantages: a plug-in needs a name, got .*; known are .*grpo"):
        plugins.build("advantages", {} if name is None else {"name": name})


def test_a_text_that_is_too_long_for_a_name_is_near_none() -> None:
    assert spelling.nearest("a" * 200, ["a" * 199]) == "a" * 199
    assert spelling.nearest("a" * 201, ["a" * 199]) is None and spelling.nearest("a" * 199, ["a" * 201]) is None


def test_an_unknown_field_brings_the_nearest_and_all_fields() -> None:
    fields_of_sharpness = "noise_level, num_steps, json, window, sigmas, scales, share"
    assert refusal(noise_level=1, nose_level=0.7) == (
        f"HERE has no field 'nose_level' (did you mean 'noise_level'?); its fields are {fields_of_sharpness}"
    )
    assert refusal(noise_level=1, nose_level=0.7, beta=1) == (
        "HERE has no field 'nose_level' (did you mean 'noise_level'?) and no 'beta'; "
        f"its fields are {fields_of_sharpness}"
    )
    assert refusal(noise_level=1, loaded=0) == f"HERE has no field 'loaded'; its fields are {fields_of_sharpness}"


def test_an_unknown_field_inside_a_field_is_looked_up_there() -> None:
    assert refusal(noise_level=1, window={"size": 2, "mod": "all"}) == (
        "HERE.window has no field 'mod' (did you mean 'mode'?); its fields are size, mode"
    )


def test_a_missing_field_is_named() -> None:
    assert refusal() == "HERE.noise_level is needed"
    assert refusal(noise_level=1, window={}) == "HERE.window.size is needed"


def test_all_problems_come_at_once() -> None:
    assert refusal(num_step=3, num_steps="many").splitlines() == [
        "HERE.noise_level is needed",
        "HERE.num_steps: should be a valid integer, unable to parse string as an integer, got 'many'",
        "HERE has no field 'num_step' (did you mean 'num_steps'?); "
        "its fields are noise_level, num_steps, json, window, sigmas, scales, share",
    ]


def test_a_number_that_yaml_reads_as_text_becomes_a_number() -> None:
    built = build(noise_level="1e-4", sigmas=["1", "5e-1", 0])
    assert (built.noise_level, built.sigmas) == (1e-4, (1.0, 0.5, 0.0))
    assert build(noise_level=1, num_steps=8.0).num_steps == 8


@in_one_test(
    ("settings", "message"),
    [
        ({"noise_level": "loud"}, "HERE.noise_level: should be a valid number"),
        ({"noise_level": None}, "HERE.noise_level: should be a valid number, got None"),
        ({"noise_level": float("nan")}, "HERE.noise_level: should be a finite number, got nan"),
        ({"noise_level": True}, "HERE.noise_level: should be a number, got True"),
        ({"num_steps": False}, "HERE.num_steps: should be a number, got False"),
        ({"num_steps": 2.5}, "HERE.num_steps: should be a valid integer"),
        ({"noise_level": "1e300"}, "HERE.noise_level: should be at most 3.403e+38 in size, the largest of"),
        ({"num_steps": 10**26}, "HERE.num_steps: should be an integer of 64 bits, got 1000"),
        ({"sigmas": [1, -1e39, 0]}, "HERE.sigmas.1: should be at most 3.403e"),
        ({"json": "perhaps"}, "HERE.json: should be a valid boolean"),
        ({"sigmas": [1, True, 0]}, "HERE.sigmas.1: should be a number, got True"),
        ({"scales": {"a": True}}, "HERE.scales.a: should be a number, got True"),
        ({"window": {"size": True}}, "HERE.window.size: should be a number, got True"),
        ({"window": {"size": 2, "mode": "al"}}, "HERE.window.mode: should be 'all' or 'range', got 'al'"),
        ({"window": 3}, "HERE.window: should be a dictionary"),
        ({"share": 1.5}, "HERE.share: should be less than or equal to 1, got 1.5"),
        ({"noise_level": -1}, "HERE: noise_level must be at least 0, got -1.0"),
        ({"window": {"size": 0}}, "HERE.window: the size of a Window must be at least 1, got 0"),
    ],
)
def test_a_wrong_value_is_refused_with_its_place(settings: dict[str, Any], message: str) -> None:
    assert refusal(**{"noise_level": 1, **settings}).startswith(message)


def test_a_value_that_fits_no_branch_of_a_union_is_named_by_its_field() -> None:
    lines = refusal(noise_level=1, sigmas="pipelin").splitlines()
    assert lines[0] == "HERE.sigmas: should be 'pipeline', got 'pipelin'"
    assert all(line.startswith("HERE.sigmas: ") for line in lines)


def test_a_mapping_becomes_the_dataclass_of_the_field() -> None:
    window = build(noise_level=1, window={"size": "3"}).window
    assert (type(window).__name__, window.size, window.mode) == ("Window", 3, "all")


def test_what_is_not_given_keeps_the_default_of_the_class() -> None:
    first, second = build(noise_level=1), build(noise_level=1)
    assert (first.json, first.window, first.sigmas, first.scales) == (False, None, "pipeline", {})
    assert first.scales is not second.scales


class Inner(BaseModel):
    model_config = ConfigDict(extra="forbid")
    size: int = 1


class Outer(BaseModel):
    model_config = ConfigDict(extra="forbid")
    parts: str | tuple[Inner, ...] = ()


def test_the_errors_of_a_pydantic_model_are_told_the_same_way() -> None:
    with pytest.raises(ValidationError) as caught:
        Outer.model_validate({"parts": [{"size": 1}, {"sizes": 2}]})
    assert plugins.explain(caught.value, "config", Outer).splitlines() == [
        "config.parts: should be a valid string, got [{'size': 1}, {'sizes': 2}]",
        "config.parts.1 has no field 'sizes' (did you mean 'size'?); its fields are size",
    ]


class Named(BaseModel):
    model_config = ConfigDict(extra="forbid")
    weight: float | Inner = 0.0
    others: dict[str, Inner] = {}


def test_of_a_section_in_place_of_a_number_its_own_problems_are_told_and_names_stand_in_the_path() -> None:
    with pytest.raises(ValidationError) as caught:
        Named.model_validate({"weight": {"size": "x"}, "others": {"a": {"size": "y"}, "size": {"sizes": 1}}})
    message = "should be a valid integer, unable to parse string as an integer, got"
    assert plugins.explain(caught.value, "config", Named).splitlines() == [
        f"config.weight.size: {message} 'x'",
        f"config.others.a.size: {message} 'y'",
        "config.others.size has no field 'sizes' (did you mean 'size'?); its fields are size",
    ]


def test_every_folder_holds_plugins() -> None:
    assert {kind for kind, _ in SHIPPED} == set(plugins.KINDS)


@in_one_test(("kind", "name"), SHIPPED)
def test_a_shipped_file_holds_one_public_dataclass_with_a_docstring(kind: plugins.Kind, name: str) -> None:
    cls = plugins.find(kind, name)
    module = importlib.import_module(cls.__module__)
    public = [
        value
        for key, value in vars(module).items()
        if inspect.isclass(value) and value.__module__ == module.__name__ and not key.startswith("_")
    ]
    assert public == [cls] and is_dataclass(cls)
    assert cls.__doc__ and not cls.__doc__.startswith(f"{cls.__name__}("), "a dataclass writes its own if there is none"


@pytest.mark.slow
def test_every_setting_of_a_shipped_plugin_has_a_type_that_can_be_checked() -> None:
    for kind, name in SHIPPED:
        cls = plugins.find(kind, name)
        settings, types = [field.name for field in fields(cls) if field.init], get_type_hints(cls)
        assert all(types[field] is not Any for field in settings), (kind, name)
        assert "name" not in settings, f"`name` is the plug-in's own name in a config: {kind}.{name}"
        with pytest.raises(ConfigError) as caught:
            plugins.build(kind, {"name": name, "no_such_setting": 1})
        assert f"{kind}.{name} has no field 'no_such_setting'" in str(caught.value)


def test_a_users_module_that_fails_while_it_is_imported_is_named(tmp_path: Path) -> None:
    (tmp_path / "broken_plugins.py").write_text("1 / 0\n")
    with pytest.raises(ConfigError, match="importing broken_plugins failed: ZeroDivisionError: division by zero"):
        plugins.build("samplers", {"name": "broken_plugins:Sharpness"})


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("rewards=[point_in_box]", "config.rewards.0: should be a section such as {name: value}, got 'point_in_box'"),
        ("seed=1.5", "config.seed: should be a valid integer, got 1.5"),
    ],
)
def test_one_mistake_is_said_once(override: str, message: str) -> None:
    with pytest.raises(ConfigError) as failure:
        load_config("quickstart", [override])
    assert str(failure.value) == message


def test_a_lora_names_the_setting_that_is_wrong() -> None:
    with pytest.raises(ConfigError) as failure:
        plugins.build("modalities", {"name": "vision_language", "model": "a/b", "lora": {"rank": 0}})
    assert str(failure.value) == "modalities.vision_language.lora.rank must be at least 1, got 0"


def test_a_name_that_is_far_from_all_is_no_guess() -> None:
    assert spelling.near("brightness", ["shapes", "jpeg_size", "finished"]) == ""
    assert spelling.near("shape", ["shapes", "jpeg_size"]) == " (did you mean 'shapes'?)"


@in_one_test(
    ("override", "section"),
    [
        ("loss.name=draft", "loss={name: draft, ...}"),
        ("sampler.name=given", "sampler={name: given, ...}"),
        ("advantage.name=rloo", "advantage={name: rloo, ...}"),
        ("rewards.0.name=box_iou", "rewards.0={name: box_iou, ...}"),
    ],
)
def test_where_only_the_name_was_changed_the_whole_section_is_asked_for(override: str, section: str) -> None:
    with pytest.raises(ConfigError) as caught:
        build_run(load_config("quickstart", [override]))
    assert "has no field" in str(caught.value)
    assert str(caught.value).endswith(
        f"a change of the name alone keeps those of the plug-in before: give the whole section, {section}"
    )


def test_a_wrong_setting_asks_for_no_other_section() -> None:
    with pytest.raises(ConfigError) as caught:
        build_run(load_config("quickstart", ["loss.betta=1", "loss.name=draft"]))
    assert "whole section" not in str(caught.value)


@pytest.mark.parametrize(("kind", "name"), list(plugins.RENAMED))
def test_a_name_of_before_is_understood_and_the_new_one_is_said(
    kind: plugins.Kind, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    new = plugins.RENAMED[kind, name]
    assert name not in plugins.names(kind)
    assert type(plugins.build(kind, {"name": name})) is plugins.find(kind, new)
    assert f"{name!r} is now called {new!r}" in caplog.text
