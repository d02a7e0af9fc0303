"""Validation by jsonschema; the process of `json_schema` loads this file alone."""

import json
from collections.abc import Callable, Mapping
from typing import Any

UNBOUNDED = {"pattern", "patternProperties", "$ref", "$dynamicRef", "$recursiveRef"}


def validator_of(schema: dict[str, Any]) -> Any:
    """Returns jsonschema's validator, which fetches nothing. Raises ValueError where `schema` is no JSON Schema."""
    from jsonschema.exceptions import SchemaError
    from jsonschema.validators import Draft202012Validator, validator_for
    from referencing import Registry

    kind = validator_for(schema, default=Draft202012Validator)
    try:
        kind.check_schema(schema)
    except SchemaError as error:
        raise ValueError(f"schema is no JSON Schema: {error.message} at {error.json_path}") from None
    return kind(schema, registry=Registry())  # without a registry of its own it would fetch references


def is_allowed(validator: Any, value: object) -> bool:
    """Returns whether the schema allows a value.

    Raises ValueError for a reference to nowhere, or to itself without an end.
    """
    from referencing.exceptions import Unresolvable

    try:
        return bool(validator.is_valid(value))
    except Unresolvable as error:
        raise ValueError(f"schema refers to what it does not hold: {error}") from None
    except RecursionError:
        raise ValueError("schema refers to itself without an end") from None


def grade(validator: Any, value: object, is_graded: bool) -> float:
    """Returns 1 for a value that is allowed, else 0 or the share of what holds. Raises as `is_allowed` does."""
    is_whole = is_allowed(validator, value)
    if is_whole or not is_graded:
        return float(is_whole)
    schema = validator.schema
    required = schema.get("required", [])
    own_type = {"type": schema["type"]} if "type" in schema else {}
    parts = [is_allowed(validator.evolve(schema=own_type), value)]
    parts += [
        isinstance(value, Mapping) and name in value and _holds(validator, name, value[name]) for name in required
    ]
    return sum(parts) / (len(parts) + 1)


def _holds(validator: Any, name: str, value: object) -> bool:
    """Returns whether the schema allows this property, whatever the other properties are."""
    return is_allowed(validator.evolve(schema=validator.schema.get("properties", {}).get(name, True)), value)


def may_take_long(schema: object) -> bool:
    """Returns whether a short text may take long: for a pattern, or a reference to what is tried more than once."""
    if isinstance(schema, Mapping):
        return bool(UNBOUNDED & set(schema)) or any(map(may_take_long, schema.values()))
    return isinstance(schema, list | tuple) and any(map(may_take_long, schema))


def answerer(settings: dict[str, Any]) -> Callable[[dict[str, Any]], str]:
    """Returns a function of {value} that gives its grade, or the reason why there is none, as a text in JSON."""
    validator = validator_of(settings["schema"])

    def judge(question: dict[str, Any]) -> str:
        try:
            return str(grade(validator, question["value"], settings["is_graded"]))
        except ValueError as error:
            return json.dumps(str(error))

    return judge
