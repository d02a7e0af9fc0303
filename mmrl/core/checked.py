"""Ranges and choices of settings: declared on the fields of a dataclass, checked whenever an object of it is made."""

import operator
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, fields, is_dataclass, replace
from functools import cache
from numbers import Real
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from pydantic.fields import FieldInfo

from mmrl.system.spelling import near

_COLLECTIONS = (tuple, list, set, frozenset)


class Checked:
    """A base of dataclasses that checks settings against the annotations of their fields, when an object is made.

    `Annotated[float, Field(ge=0, lt=1)]` declares a range, `Literal["a", "b"]` a choice. Both work inside of
    `tuple[..., ...]` and `dict[..., ...]` and beside None. A subclass with a rule between fields has a method
    `__post_init__`, which begins with `super().__post_init__()`.
    """

    def __post_init__(self) -> None:
        """Raises ValueError, such as "clip must be at least 0, got -1", for the first setting that is not allowed."""
        cls: type = type(self)
        for name, hint in _limited(cls).items():
            if (wrong := refusal(name, hint, object.__getattribute__(self, name))) is not None:
                raise ValueError(wrong)


def refusal(name: str, hint: Any, value: Any) -> str | None:
    """Returns why the annotation `hint` of the setting `name` does not allow a value; None where it is allowed.

    A range of numbers allows numbers only. Other types are checked where a config is read.
    """
    wrong = next(_wrong(name, hint, value), None)
    if wrong is None:
        return None
    better = near(wrong.value, wrong.choices) if isinstance(wrong.value, str) else ""
    return f"{wrong.name} must be {wrong.allowed}, got {wrong.value!r}{better}"


def bound_in_words(limits: Mapping[str, Any]) -> str:
    """Returns a bound such as {"ge": 0} in words: "at least 0"."""
    return " and ".join(f"{_BOUNDS[key].words} {_number(limits[key])}" for key in _BOUNDS if key in limits)


def _number(bound: float) -> str:
    return f"{bound:,}" if isinstance(bound, int) else f"{bound:g}"


@dataclass(frozen=True)
class _Bound:
    words: str
    holds: Callable[[Any, Any], bool]  # of a value and the bound


_BOUNDS = {  # lower bounds first, as messages name them
    "gt": _Bound("above", operator.gt),
    "ge": _Bound("at least", operator.ge),
    "lt": _Bound("below", operator.lt),
    "le": _Bound("at most", operator.le),
}


@dataclass(frozen=True)
class _Wrong:
    name: str  # of the setting, with the place of the value inside of the setting
    allowed: str  # in words
    value: Any
    choices: tuple[str, ...] = ()  # all allowed values, where they are few


@cache
def _limited(cls: type) -> dict[str, Any]:
    """Returns the annotations of those settings of a dataclass that have a range or a choice, by name."""
    hints = get_type_hints(cls, include_extras=True)
    names = [item.name for item in fields(cls) if item.init]
    return {name: hints[name] for name in names if _is_limited(hints[name])}


def _is_limited(hint: Any) -> bool:
    return get_origin(hint) is Literal or bool(_limits(hint)) or any(map(_is_limited, get_args(hint)))


def _limits(hint: Any) -> dict[str, Any]:
    """Returns the bounds of an annotation, such as {"ge": 0, "lt": 1}; an empty dict for an annotation without any."""
    if get_origin(hint) is not Annotated:
        return {}
    bounds: dict[str, Any] = {}
    for item in get_args(hint)[1:]:
        for part in item.metadata if isinstance(item, FieldInfo) else [item]:
            if is_dataclass(part) and not isinstance(part, type):  # pydantic's `Field(ge=0)` holds one with `ge`
                bounds |= {key: bound for key, bound in asdict(part).items() if key in _BOUNDS}
    return bounds


def _wrong(name: str, hint: Any, value: Any) -> Iterator[_Wrong]:
    """Yields what is wrong with a value and its items, in their order."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        bounds = _limits(hint)
        is_wrong = arguments[0] in (int, float) and not _is_number(value)
        if is_wrong or not all(_BOUNDS[key].holds(value, bound) for key, bound in bounds.items() if _is_number(value)):
            yield _Wrong(name, bound_in_words(bounds), value)
            return
        yield from _wrong(name, arguments[0], value)
    elif origin is Literal:
        if value not in arguments:
            choices = tuple(map(str, arguments))
            yield _Wrong(name, f"one of {', '.join(choices)}", value, choices)
    elif origin in (Union, UnionType):
        yield from _wrong_of_union(name, arguments, value)
    elif origin in _COLLECTIONS and isinstance(value, _COLLECTIONS):
        is_set = isinstance(value, set | frozenset)
        is_of_many = origin is not tuple or (len(arguments) == 2 and arguments[1] is Ellipsis)
        for number, item in enumerate(sorted(value, key=str) if is_set else value):
            if is_of_many or number < len(arguments):
                place = name if is_set else f"{name}.{number}"
                yield from _wrong(place, arguments[0 if is_of_many else number], item)
    elif isinstance(origin, type) and issubclass(origin, Mapping) and isinstance(value, Mapping):
        for key, item in value.items():
            yield from _wrong(f"{name}.{key}", arguments[1], item)


def _wrong_of_union(name: str, hints: tuple[Any, ...], value: Any) -> Iterator[_Wrong]:
    """Yields what is wrong with a value for which one of several annotations must hold.

    That is the first complaint by the first annotation of the value's type.
    """
    problems = [list(_wrong(name, hint, value)) for hint in hints if _fits(hint, value)]
    if problems and all(problems):
        first = problems[0][0]
        is_whole = NoneType in hints and first.name == name
        yield replace(first, allowed=first.allowed + (", or null" if is_whole else ""))


def _fits(hint: Any, value: Any) -> bool:
    """Returns whether a value is of the type of an annotation, whatever its items are."""
    origin = get_origin(hint)
    if origin is Annotated:
        return _fits(get_args(hint)[0], value)
    if origin is Literal:
        return type(value) in {type(choice) for choice in get_args(hint)}
    if origin in _COLLECTIONS:
        return isinstance(value, _COLLECTIONS)
    if hint in (int, float):
        return _is_number(value)
    kind = origin or hint
    return not isinstance(kind, type) or isinstance(value, kind)


def _is_number(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)
