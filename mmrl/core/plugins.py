"""Plug-ins by name: one public dataclass in one file.

The file's name is the plug-in's name, its fields are settings.
"""

import importlib
import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model

from mmrl.core.checked import Checked, bound_in_words, refusal
from mmrl.core.declarations import DECLARATIONS
from mmrl.core.lab_models import resolve_lab
from mmrl.core.misspelt import refuse_misspelt
from mmrl.core.plugin_files import plugin_files
from mmrl.system.errors import ConfigError
from mmrl.system.spelling import near
from mmrl.system.user_modules import own_module

Kind = Literal["modalities", "samplers", "rewards", "mixes", "losses", "advantages", "environments"]
KINDS: tuple[Kind, ...] = get_args(Kind)
NESTED: Kind = "rewards"  # its files stand in folders by what they judge; those of another kind stand in one folder
INNER: dict[str, Kind] = {  # a field whose type is this protocol holds an inner plug-in of this kind
    "Advantage": "advantages",
    "Environment": "environments",
    "Modality": "modalities",
    "Reward": "rewards",
    "Sampler": "samplers",
}

# Former names of plug-ins, which older configs still have, and the names for them.
RENAMED: Mapping[tuple[Kind, str], str] = {
    ("advantages", "entropy_shaped"): "entropy_advantage",  # GTPO and GRPO-S (arXiv 2508.04349) shape by entropy, too
}

_LARGEST = 3.4028234663852886e38  # the largest finite number of float32
# What a user's own plug-in must have; a reward that is no inner one is checked where rewards are mixed.
_ATTRIBUTES: dict[Kind, tuple[str, ...]]
_ATTRIBUTES = {"samplers": ("sample_kind",), "losses": ("kind", "scope", "needs")}
_METHODS: dict[Kind, tuple[str, ...]] = {
    "environments": ("reset", "step", "state_key", "close"),
    "rewards": ("score",),
    "samplers": ("plan",),
    "advantages": ("__call__",),
    "losses": ("old_decay", "views", "coefficients", "measure", "__call__"),
}

# Members whose values are words of mmrl; those of `mmrl.core.contracts`, which imports torch.
_CHOICES: dict[Kind, dict[str, tuple[str, ...]]] = {
    "losses": {
        "kind": ("decisions", "denoising", "outputs"),
        "needs": ("old", "reference", "averaged"),
        "scope": ("decision", "path", "group"),
    },
    "rewards": {"granularity": ("sample", "turn", "episode", "group", "step", "segment", "token")},
    "samplers": {"sample_kind": ("latents", "tokens", "turns", "given")},
}

log = logging.getLogger(__name__)


def names(kind: Kind) -> list[str]:
    """Returns the names of the shipped plug-ins of a kind, sorted, without an import of any of them."""
    return list(_modules(kind))


@cache
def _modules(kind: Kind) -> dict[str, str]:
    """Returns the modules of the shipped plug-ins of a kind, by name."""
    package = f"mmrl.{kind}"
    folder = Path(next(iter(importlib.import_module(package).__path__)))
    return {name: f"{package}.{file}" for name, file in plugin_files(folder, is_nested=kind == NESTED).items()}


def find(kind: Kind, name: str) -> type:
    """Returns the class of a plug-in by its name, its former name, or `module:Class` of the user's own.

    Raises ConfigError where there is no such plug-in.
    """
    if ":" in name:
        return _own(kind, name)
    if (renamed := RENAMED.get((kind, name))) is not None:
        log.warning("%s %r is now called %r; write the new name in the config", singular(kind), name, renamed)
        name = renamed
    known = _modules(kind)
    if name not in known:
        hint = near(name, known) or f"; known are {', '.join(known)}, and module:Class of your own"
        raise ConfigError(f"unknown {singular(kind)} {name!r}{hint}")
    module = importlib.import_module(known[name])
    public = [
        value
        for key, value in vars(module).items()
        if isinstance(value, type)
        and is_dataclass(value)
        and value.__module__ == module.__name__
        and not key.startswith("_")
    ]
    assert len(public) == 1, f"{module.__name__} must hold one public dataclass, has {[c.__name__ for c in public]}"
    return public[0]


def build(kind: Kind, settings: Mapping[str, Any], *, beside: Sequence[str] = ()) -> Any:
    """Builds a plug-in from its section of a config, after all settings are checked.

    Args:
        kind: the kind of the plug-in.
        settings: `{"name": ..., field: value ...}`.
        beside: names of settings that the caller handles, which errors list next to the plug-in's own.

    Raises:
        ConfigError: an unknown name or field, a wrong type, or a value that the plug-in refuses.
    """
    name = settings.get("name")
    if not isinstance(name, str):
        raise ConfigError(f"{kind}: a plug-in needs a name, got {dict(settings)}; known are {', '.join(names(kind))}")
    cls, place = find(kind, name), f"{kind}.{name}"
    given = {key: value for key, value in settings.items() if key != "name"}
    with_inner = given | _inner_settings(cls, given, place)
    try:
        plugin = checked(cls, with_inner, place, beside=beside)
    except ConfigError as error:
        if hint := _of_another(kind, name, [key for key in given if key not in (*_settings(cls), *beside)]):
            raise ConfigError(f"{error}\n{hint}") from error
        raise
    if kind in DECLARATIONS:
        _check_declaration(kind, plugin, place)
    return plugin


def _check_declaration(kind: Kind, plugin: Any, place: str) -> None:
    """Raises ConfigError where the declaration of a plug-in cannot be read, or is of another kind."""
    try:
        DECLARATIONS[kind].of(plugin)
    except ConfigError as error:
        raise ConfigError(f"{place}: {error}") from error


def _of_another(kind: Kind, name: str, unknown: Sequence[str]) -> str:
    """Returns advice where all unknown settings are those of another plug-in: then the user changed only the name."""
    if not unknown or not any(set(unknown) <= _settings(find(kind, other)).keys() for other in names(kind)):
        return ""
    section = {"rewards": "rewards.0", "environments": "modality.environment"}.get(kind, singular(kind))
    return (
        f"settings differ between {kind}, and a change of the name alone keeps those of the plug-in before: give the "
        f"whole section, {section}={{name: {name}, ...}}"
    )


def checked(cls: type, given: Mapping[str, Any], place: str, *, beside: Sequence[str] = ()) -> Any:
    """Returns an instance of a dataclass from settings, whose names and types it checks. Raises as `build` does."""
    try:
        model = _model(cls).model_validate(given)
    except ValidationError as error:
        raise ConfigError(explain(error, place, cls, beside)) from error
    values = {key: getattr(model, _model_name(key)) for key in given}
    check_numbers(given, values, place)
    try:
        return cls(**values)
    except ConfigError:
        raise
    except ValueError as error:
        raise ConfigError(f"{place}: {error}") from error


def _inner_settings(cls: type, given: Mapping[str, Any], place: str) -> dict[str, Any]:
    """Returns the inner plug-ins of a plug-in by field, built from their own sections."""
    hints = _settings(cls)
    return {
        name: _built(hints[name], kind, given[name], f"{place}.{name}")
        for name, kind in inner_kinds(cls).items()
        if name in given
    }


def inner_kinds(cls: type) -> dict[str, Kind]:
    """Returns the fields of a plug-in that hold inner plug-ins, and the kind of these."""
    return {name: kind for name, hint in _settings(cls).items() if (kind := _inner_kind(hint)) is not None}


def _inner_kind(hint: Any) -> Kind | None:
    """Returns the kind of the inner plug-ins in a field of this type: one, or None, or a tuple or dict of them."""
    if (kind := INNER.get(getattr(hint, "__name__", ""))) is not None:
        return kind
    return next((kind for part in get_args(hint) if (kind := _inner_kind(part)) is not None), None)


def _built(hint: Any, kind: Kind, value: Any, place: str) -> Any:
    """Builds the inner plug-ins in the value of a field: one, a list, or a dict of them."""
    if get_origin(hint) is tuple and isinstance(value, list | tuple):
        return tuple(_built(get_args(hint)[0], kind, one, f"{place}.{number}") for number, one in enumerate(value))
    if get_origin(hint) is dict and isinstance(value, Mapping):
        return {str(key): _built(get_args(hint)[1], kind, one, f"{place}.{key}") for key, one in value.items()}
    if not (value is None or isinstance(value, Mapping | str | list | tuple | int | float)):
        return value  # a plug-in that was built by hand
    if value is None and type(None) in get_args(hint):
        return None
    shape = {tuple: "a list of sections", dict: "a section of sections"}.get(get_origin(hint), "a section")
    if not isinstance(value, Mapping) or get_origin(hint) in (tuple, dict):
        raise ConfigError(f"{place} is {shape} such as {{name: ...}} of {kind}, got {value!r}")
    try:
        built = build(kind, resolve_lab(value) if kind == "modalities" else value)
    except ConfigError as error:
        raise ConfigError(f"{place}: {error}") from error
    refuse_half(kind, value["name"], built, f"{place}: ")
    return built


def refuse_half(kind: Kind, name: str, plugin: Any, where: str = "") -> None:
    """Raises ConfigError, which begins with `where`, for a plug-in that lacks a needed member of its kind.

    Raises ConfigError as well where a member is not one of the words that mmrl knows, with the nearest right one.
    """
    lacking = [part for part in _ATTRIBUTES.get(kind, ()) if not hasattr(plugin, part)]
    lacking += [part for part in _METHODS.get(kind, ()) if not callable(getattr(plugin, part, None))]
    if lacking:
        wrong = f"{where}{name!r} is no {singular(kind)}: it has no {', '.join(lacking)}"
        raise ConfigError(f"{wrong} (see mmrl/core/contracts.py)")
    for part, allowed in _CHOICES.get(kind, {}).items():
        value = getattr(plugin, part)
        for got in sorted({value} if isinstance(value, str) else set(value)):
            if got not in allowed:
                wrong = f"{where}{singular(kind)} {name!r}: {part} must be of {', '.join(allowed)}, got {got!r}"
                raise ConfigError(f"{wrong}{near(got, allowed)}")


_PLAIN = ("float_type", "int_type", "bool_type", "string_type")  # of values that are no sections


def explain(error: ValidationError, place: str, owner: type, beside: Sequence[str] = ()) -> str:
    """Returns one line per problem: what was wrong, what was got, what is allowed.

    Args:
        error: the error of pydantic.
        place: the user's name for the section that was checked.
        owner: the dataclass or pydantic model that was checked.
        beside: settings that are allowed next to the fields of `owner`.
    """
    lines: list[str] = []
    unknown: dict[tuple[str, str], list[str]] = {}  # unknown names, by the section and its fields in words
    problems = error.errors(include_url=False)
    for problem in problems:
        location = problem["loc"]
        if (
            isinstance(problem["input"], Mapping)
            and problem["type"] in _PLAIN
            and _has_inner(location, problems, owner)
        ):
            continue  # a section was meant, of which something else is wrong
        if problem["type"] == "too_short" and any(location == other["loc"][:-1] for other in problems):
            continue  # pydantic counts only the valid items
        if problem["type"] in ("extra_forbidden", "unexpected_keyword_argument"):
            path, classes = _locate(location[:-1], owner)
            wrong, known = str(location[-1]), [*_settings(classes[0]), *(() if path else beside)]
            section = ".".join([place, *path]), ", ".join(known) or "none"
            unknown.setdefault(section, []).append(f"{wrong!r}{near(wrong, known)}")
            continue
        where = ".".join([place, *_locate(location, owner)[0]])
        if problem["type"] == "missing":
            lines.append(f"{where} is needed")
        elif issubclass(owner, Checked) and (outside := _range_refusal(where, owner, problem)) is not None:
            lines.append(outside)
        else:
            message = _in_yaml(problem["msg"])
            is_of_all_fields = problem["type"] == "value_error" and isinstance(problem["input"], Mapping)
            is_said = ", got " in message or is_of_all_fields
            lines.append(f"{where}: {message}" + ("" if is_said else f", got {problem['input']!r}"))
    for (where, allowed), all_wrong in unknown.items():
        lines.append(f"{where} has no field {' and no '.join(all_wrong)}; its fields are {allowed}")
    return "\n".join(lines)


def _has_inner(location: tuple[int | str, ...], problems: Sequence[Any], owner: type) -> bool:
    """Returns whether a problem lies inside of the section at a location."""
    path = _locate(location, owner)[0]
    inner = (_locate(other["loc"][:-1], owner)[0] for other in problems if other["loc"] != location)
    return any(other[: len(path)] == path for other in inner)


def _range_refusal(where: str, owner: type, problem: Any) -> str | None:
    """Returns the message of `Checked` for a number outside of its range; None where something else is wrong."""
    words = bound_in_words(problem.get("ctx", {}))
    if not words:
        return None
    message = None
    if len(problem["loc"]) == 1:  # the annotation also has the other bound, and null
        message = refusal(where, _settings(owner)[str(problem["loc"][0])], float(problem["input"]))
    text = f"{where} must be {words}, got " if message is None else message.rpartition(", got ")[0] + ", got "
    return text + (problem["input"] if isinstance(problem["input"], str) else repr(problem["input"]))


def _in_yaml(message: str) -> str:
    """Returns a message of pydantic in the words of a config, where a tuple is a list and a dictionary a section."""
    message = message.removeprefix("Value error, ").replace("Input should", "should", 1)
    message = re.sub(r"a valid dictionary( or instance of \w+)?", "a section such as {name: value}", message)
    message = message.replace(", got a number with a fractional part", "")
    return message.replace("a valid tuple", "a list").replace("Tuple should", "should").replace(" after validation", "")


def check_numbers(given: Any, checked: Any, place: str) -> None:
    """Raises ConfigError for a number that was given as true or false, or that is too large.

    Pydantic reads true and false as 1 and 0. Too large are numbers that are not finite in float32, and integers of more
    than 64 bits.
    """
    if isinstance(given, bool) and not isinstance(checked, bool):
        raise ConfigError(f"{place}: should be a number, got {given}")
    if isinstance(checked, float) and abs(checked) > _LARGEST:
        raise ConfigError(f"{place}: should be at most {_LARGEST:.4g} in size, the largest of float32, got {given}")
    if isinstance(checked, int) and not -(2**63) <= checked < 2**63:
        raise ConfigError(f"{place}: should be an integer of 64 bits, got {given}")
    if isinstance(given, Mapping):
        for key, value in given.items():
            part = checked.get(key, value) if isinstance(checked, Mapping) else getattr(checked, key, value)
            check_numbers(value, part, f"{place}.{key}")
    elif isinstance(given, list) and isinstance(checked, Sequence):
        for index, (value, part) in enumerate(zip(given, checked, strict=False)):
            check_numbers(value, part, f"{place}.{index}")


def singular(kind: Kind) -> str:
    """Returns the name of a kind in the singular, such as "loss"."""
    return {"modalities": "modality", "losses": "loss", "mixes": "mix"}.get(kind, kind[:-1])


def _own(kind: Kind, name: str) -> type:
    """Returns the class of a user's own plug-in, named `module:Class`."""
    module_name, _, class_name = name.partition(":")
    what = f"{singular(kind)} {name!r}"
    if not all(part.isidentifier() for part in [*module_name.split("."), class_name]):
        raise ConfigError(f"{what}: a user's plug-in is named module:Class")
    module = own_module(module_name, what)
    cls = getattr(module, class_name, None)
    if not (isinstance(cls, type) and is_dataclass(cls)):
        why = "" if cls is None else f": {class_name} lacks @dataclass"
        raise ConfigError(f"{what}: {module_name} has no dataclass {class_name!r}{why}")
    try:
        refuse_misspelt(kind, cls)
    except ConfigError as error:
        raise ConfigError(f"{what}: {error}") from error
    return cls


@cache
def _model(cls: type) -> type[BaseModel]:
    """Returns a pydantic model of a dataclass, which checks types and reads the text `1e-4` as a number."""
    defaults = {item.name: item for item in fields(cls) if item.init}
    model_fields: dict[str, Any] = {}
    for name, hint in _settings(cls).items():
        is_needed = defaults[name].default is MISSING and defaults[name].default_factory is MISSING
        if _inner_kind(hint) is not None:
            hint = Any  # an inner plug-in, already built and checked
        # Settings that the user left out are not passed to the constructor: the model's own default is never read.
        model_fields[_model_name(name)] = (hint, Field(... if is_needed else None, alias=name))
    config = ConfigDict(extra="forbid", arbitrary_types_allowed=True, allow_inf_nan=False)
    return create_model(cls.__name__, __config__=config, **model_fields)


def _model_name(field: str) -> str:
    """Returns a name for a field that no attribute of pydantic has; users see the alias."""
    return f"setting_{field}"


def _settings(owner: type) -> dict[str, Any]:
    """Returns the names and the types of the settings of a dataclass or a pydantic model."""
    hints = get_type_hints(owner, include_extras=True)
    if issubclass(owner, BaseModel):
        return {name: hints[name] for name in owner.model_fields}
    assert is_dataclass(owner), owner
    return {item.name: hints[item.name] for item in fields(owner) if item.init}


def _locate(location: tuple[int | str, ...], owner: type) -> tuple[list[str], list[type]]:
    """Returns the path in the user's config, and the classes whose fields may stand at its end.

    Pydantic's location also holds the branches of unions that it tried, such as `list[float]`; these are left out.
    """
    path: list[str] = []
    classes, is_key = [owner], False  # whether the next part is a name in a section of names
    for part in location:
        if is_key:
            path.append(str(part))
            is_key = False
            continue
        holder = next((cls for cls in classes if part in _settings(cls)), None)
        if holder is not None:
            hint = _settings(holder)[str(part)]
            classes, is_key = _classes_in(hint), get_origin(hint) in (dict, Mapping)
        if holder is not None or isinstance(part, int):
            path.append(str(part))
        else:
            classes = [cls for cls in classes if cls.__name__ == part] or classes
    return path, classes


def _classes_in(hint: Any) -> list[type]:
    """Returns the dataclasses and pydantic models inside of a type."""
    if isinstance(hint, type) and (is_dataclass(hint) or issubclass(hint, BaseModel)):
        return [hint]
    return [cls for part in get_args(hint) for cls in _classes_in(part)]
