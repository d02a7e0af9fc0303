"""Is the answer JSON of the wanted shape?"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from importlib.util import find_spec
from typing import Any, ClassVar

import torch
from torch import Tensor

from mmrl.answers import ParseError, check_tag, extract, read_json
from mmrl.contracts import ConfigError, Granularity, RewardBatch

MAX_LETTERS = 10_000  # of an answer: `uniqueItems` compares all pairs

_FENCED = re.compile(r"```(?:json)?+[ \t]*+\r?\n(.*)\n[ \t]*+```", re.DOTALL)


@dataclass(frozen=True)
class JsonSchema:
    """1 where the text in the `tag` (None: the whole text) is JSON that the `schema` allows, else 0.

    `schema` is a JSON Schema (json-schema.org, draft 2020-12 unless its `$schema` says another), checked when the
    reward is made; nothing is fetched for a `$ref`. The JSON may stand in one ```json fence; a key twice in an object,
    more than 20 levels, numbers with an exponent or over 12 digits, and more than 10,000 letters are refused
    (`mmrl.answers.read_json`).

    With `is_graded` the score is the share of what holds: that it is JSON of the schema's own `type`, each property
    that the schema requires, there and allowed, and the whole. Further answers never raise it.
    """

    schema: dict[str, Any]
    is_graded: bool = False
    tag: str | None = "answer"

    source: ClassVar[str] = "JSON Schema, draft 2020-12, json-schema.org"
    range: ClassVar[tuple[float, float]] = (0.0, 1.0)
    granularity: ClassVar[Granularity] = "sample"
    differentiable: ClassVar[bool] = False
    needs: ClassVar[frozenset[str]] = frozenset({"texts"})
    batch_size: ClassVar[int | None] = None

    def __post_init__(self) -> None:
        check_tag(self.tag)
        _is_allowed(self._validator, None)  # a reference to nowhere, or to itself, is found where it is followed

    @cached_property
    def _validator(self) -> Any:
        """jsonschema's, which knows the schema alone. Raises ValueError where it is no schema."""
        if find_spec("jsonschema") is None:
            raise ConfigError("json_schema needs the package jsonschema: install the extra, `pip install 'mmrl[json]'`")
        from jsonschema.exceptions import SchemaError
        from jsonschema.validators import Draft202012Validator, validator_for
        from referencing import Registry

        kind = validator_for(self.schema, default=Draft202012Validator)
        try:
            kind.check_schema(self.schema)
        except SchemaError as error:
            raise ValueError(f"schema is no JSON Schema: {error.message} at {error.json_path}") from None
        return kind(self.schema, registry=Registry())  # without a registry of its own it would fetch references

    def score(self, batch: RewardBatch) -> Tensor:
        """[B] float32; raises ValueError where the schema refers to what it does not hold."""
        assert batch.outputs.texts is not None, "scoring checks needs"
        return torch.tensor([self._judge(text) for text in batch.outputs.texts], dtype=torch.float32)

    def _judge(self, text: str) -> float:
        try:
            value = read_json(_inside(extract(text, self.tag)))
        except ParseError:
            return 0.0
        is_whole = _is_allowed(self._validator, value)
        if is_whole or not self.is_graded:
            return float(is_whole)
        required = self.schema.get("required", [])
        own_type = {"type": self.schema["type"]} if "type" in self.schema else {}
        parts = [_is_allowed(self._validator.evolve(schema=own_type), value)]
        parts += [isinstance(value, Mapping) and name in value and self._holds(name, value[name]) for name in required]
        return sum(parts) / (len(parts) + 1)

    def _holds(self, name: str, value: object) -> bool:
        """Whether the property is as the schema wants it, however its neighbours are."""
        return _is_allowed(self._validator.evolve(schema=self.schema.get("properties", {}).get(name, True)), value)


def _inside(text: str) -> str:
    """The JSON of a text: in one code fence, or as it is."""
    if len(text) > MAX_LETTERS:
        raise ParseError(f"an answer may have {MAX_LETTERS} letters, got {len(text)}")
    found = _FENCED.fullmatch(text.strip())
    return found[1] if found else text


def _is_allowed(validator: Any, value: object) -> bool:
    from referencing.exceptions import Unresolvable

    try:
        return bool(validator.is_valid(value))
    except Unresolvable as error:
        raise ValueError(f"schema refers to what it does not hold: {error}") from None
    except RecursionError:
        raise ValueError("schema refers to itself without an end") from None
