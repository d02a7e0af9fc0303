"""Is the answer JSON of the wanted shape?"""

import json
import logging
import re
from dataclasses import dataclass
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from mmrl.core.contracts import ConfigError, Granularity, RewardBatch
from mmrl.parsing.answers import ParseError, extract, read_json

from ..base.answers import TagReward
from ..base.json_schema_process import grade, is_allowed, may_take_long, validator_of
from ..base.limited_process import FAILED, LimitedProcess

MAX_LETTERS = 10_000  # of an answer: `uniqueItems` compares all pairs

log = logging.getLogger(__name__)
_FENCED = re.compile(r"```(?:json)?+[ \t]*+\r?\n(.*)\n[ \t]*+```", re.DOTALL)


@dataclass(frozen=True)
class JsonSchema(TagReward):
    """A check: 1 where the text in the `tag` (None: the whole text) is JSON that the `schema` allows, else 0.

    `schema` is a JSON Schema (json-schema.org, draft 2020-12 unless its `$schema` says another), checked when the
    reward is made; nothing is fetched for a `$ref`. The JSON may stand in one ```json fence. Refused are a key twice in
    an object, more than 20 levels, numbers with an exponent or over 12 digits, more than 10,000 letters
    (`mmrl.parsing.answers.read_json`), and what takes over `seconds` of processor time, as a pattern such as "^(a+)+$"
    may. A schema with patterns or references is applied in a process of its own, as `math_answer` does with
    mathematics.

    With `is_graded` the score is the share of what holds: that it is JSON of the schema's own `type`, each property
    that the schema requires, present and allowed, and the whole. Further answers never raise it.
    """

    schema: dict[str, Any]  # the JSON Schema, as a section
    is_graded: bool = False  # whether JSON that is not allowed scores the share of what holds
    tag: str | None = "answer"  # the tag of the answer, `<tag>...</tag>`; null: the whole text
    # processor time for one answer by a schema with patterns or references
    seconds: Annotated[float, Field(ge=0.1, le=600)] = 1.0

    source: ClassVar[str] = "JSON Schema, draft 2020-12, json-schema.org"
    range: ClassVar[tuple[float, float]] = (0.0, 1.0)
    granularity: ClassVar[Granularity] = "sample"
    differentiable: ClassVar[bool] = False
    needs: ClassVar[frozenset[str]] = frozenset({"texts"})
    batch_size: ClassVar[int | None] = None

    def __post_init__(self) -> None:
        super().__post_init__()
        is_allowed(self._validator, None)  # a reference to nowhere, or to itself, is found where it is followed

    @cached_property
    def _validator(self) -> Any:
        if find_spec("jsonschema") is None:
            raise ConfigError("json_schema needs the package jsonschema: install the extra, `pip install 'mmrl[json]'`")
        return validator_of(self.schema)

    @cached_property
    def _process(self) -> LimitedProcess:
        settings = {"schema": self.schema, "is_graded": self.is_graded}
        return LimitedProcess(
            Path(__file__).parents[1] / "base" / "json_schema_process.py", "jsonschema", self.seconds, settings
        )

    def score(self, batch: RewardBatch) -> Tensor:
        """Returns the scores [B] float32; raises ValueError where the schema refers to what it does not hold."""
        assert batch.outputs.texts is not None, "scoring checks needs"
        return torch.tensor([self._judge(text) for text in batch.outputs.texts], dtype=torch.float32)

    def _judge(self, text: str) -> float:
        try:
            value = read_json(_inside(extract(text, self.tag)))
        except ParseError:
            return 0.0
        return self._graded(value) if may_take_long(self.schema) else grade(self._validator, value, self.is_graded)

    def _graded(self, value: object) -> float:
        """Returns the grade, by a process that may be stopped: a pattern of the schema may take any time."""
        word = self._process.ask({"value": value})
        if word in FAILED:
            log.warning("json_schema: an answer took over %g s of processor time, and counts as wrong", self.seconds)
            return 0.0
        result = json.loads(word)
        if isinstance(result, str):
            raise ValueError(result)
        return float(result)


def _inside(text: str) -> str:
    """Returns the JSON of a text: in one code fence, or as it is."""
    if len(text) > MAX_LETTERS:
        raise ParseError(f"an answer may have {MAX_LETTERS} letters, got {len(text)}")
    match = _FENCED.fullmatch(text.strip())
    return match[1] if match else text
