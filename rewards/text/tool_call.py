"""Are the tool calls of an answer the true ones, by names, parameters and values? (ToolRL)"""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from mmrl.core.checked import Checked
from mmrl.core.contracts import Granularity, RewardBatch
from mmrl.core.data import Prompt
from mmrl.parsing.answers import MAX_CHARACTERS, ParseError, read_json, shown

MAX_CALLS = 32  # of one answer

_OPENING, _CLOSING = "<tool_call>", "</tool_call>"


@dataclass(frozen=True)
class _Call:
    """A call of a tool."""

    name: str
    arguments: Mapping[str, str]  # the value of each parameter as JSON, written in one way


@dataclass(frozen=True)
class ToolCall(Checked):
    """The match of an answer's tool calls P with the true ones G of `target.calls`, in [-3, 3].

    Qian et al. 2025 (ToolRL), arXiv 2504.13958, section 3.3. With N the names of calls, and K the names of a call's
    parameters:
      name   r_name = |N_G and N_P| / |N_G or N_P|, where a name counts as often as it is called
      pair   r(g, p) = |K_g and K_p| / |K_g or K_p| + the number of k in K_g with p[k] = g[k]; 0 for different names
      score  6 (r_name + the largest sum of r over pairs of G and P, each call in one pair) / S - 3,
             where S = 1 + sum over G of (1 + |K_g|) is the sum for the true calls themselves
    Two calls without parameters agree in them: the quotient is 1. The order of calls does not matter. Values are equal
    where they are the same JSON: `1` is `1.0`, but neither "1" nor true.

    An answer writes `<tool_call>{"name": "...", "arguments": {...}}</tool_call>`, a tag for each call (Qwen, Hermes)
    or one tag with a call in each line (ToolRL); `arguments` may be called `parameters`. What stands before the last
    `</think>` calls nothing. Tags that are not paired, JSON that is no call or that `read_json` refuses, and
    more than 32 calls score -3. `target.calls` is a list of such objects, which may be empty, or a text that writes
    them like an answer.

    The paper adds a format of 0 or 1: `format_tags`. Its dynamic scale of both is a schedule of their weights. The
    paper's code differs: it pairs calls in their order, each with the best one that is left; it reads the first tag
    alone, from the thoughts too; and where nothing is to be called it gives 0, whatever is called. Here the
    formula holds there too: 3 for an answer without calls, -3 for any call.
    """

    source: ClassVar[str] = "Qian et al. 2025 (ToolRL), arXiv 2504.13958"
    range: ClassVar[tuple[float, float]] = (-3.0, 3.0)
    granularity: ClassVar[Granularity] = "sample"
    differentiable: ClassVar[bool] = False
    needs: ClassVar[frozenset[str]] = frozenset({"texts", "target.calls"})
    batch_size: ClassVar[int | None] = None

    def check(self, prompt: Prompt) -> None:
        """Raises ValueError where the target holds no calls that an answer could write."""
        _true_calls(prompt)

    def score(self, batch: RewardBatch) -> Tensor:
        """Returns the scores [B] float32. Raises ValueError as `check` does."""
        assert batch.outputs.texts is not None, "scoring checks needs"
        pairs = zip(batch.outputs.texts, map(_true_calls, batch.prompts), strict=True)
        return torch.tensor([6 * _share(text, true) - 3 for text, true in pairs], dtype=torch.float32)


def _share(text: str, true: Sequence[_Call]) -> float:
    """Returns the part of S that an answer earns."""
    try:
        calls = _read_calls(text)
    except ParseError:
        return 0.0
    most = 1 + sum(1 + len(call.arguments) for call in true)
    names = _jaccard(Counter(call.name for call in true), Counter(call.name for call in calls))
    return (names + _best_sum(true, calls)) / most


def _best_sum(true: Sequence[_Call], calls: Sequence[_Call]) -> float:
    """Returns the largest sum over pairs of a true and an answered call, each in one pair (the Hungarian method)."""
    from scipy.optimize import linear_sum_assignment

    if not true or not calls:
        return 0.0
    values = torch.tensor([[_pair(one, other) for other in calls] for one in true], dtype=torch.float64)
    return float(values[linear_sum_assignment(values.numpy(), maximize=True)].sum())


def _pair(true: _Call, call: _Call) -> float:
    """Returns r of a true and an answered call."""
    if true.name != call.name:
        return 0.0
    equal = sum(call.arguments.get(key) == value for key, value in true.arguments.items())
    return _jaccard(Counter(true.arguments.keys()), Counter(call.arguments.keys())) + equal


def _jaccard(one: Counter[str], other: Counter[str]) -> float:
    """Returns the size of the intersection over that of the union; 1 for two that are empty."""
    return (one & other).total() / (one | other).total() if one or other else 1.0


def _true_calls(prompt: Prompt) -> list[_Call]:
    """Reads `target.calls` of a prompt by the rules for answers; raises ValueError where these allow no such calls."""
    given = prompt.target["calls"]
    if not isinstance(given, str | list | tuple):
        raise ValueError(f"target.calls must be a list of calls, or a text of them, got {given!r} for {prompt.text!r}")
    try:
        text = given if isinstance(given, str) else "".join(f"{_OPENING}{json.dumps(one)}{_CLOSING}" for one in given)
        return _read_calls(text)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"target.calls must be calls that an answer can write, got {shown(str(given))} for {prompt.text!r}: {error}"
        ) from None


def _read_calls(text: str) -> list[_Call]:
    """Reads the calls behind the last `</think>` of a text; a text without tags calls nothing."""
    if len(text) > MAX_CHARACTERS:
        raise ParseError(f"a text may have {MAX_CHARACTERS} characters, got {len(text)}")
    before, *parts = text.rpartition("</think>")[2].split(_OPENING, MAX_CALLS + 1)
    calls: list[_Call] = []
    for part in parts:
        inner, closing, after = part.partition(_CLOSING)
        if not closing or _CLOSING in after:
            raise ParseError(f"each {_OPENING} needs one {_CLOSING}")
        calls += map(_call, _objects(inner))
    if _CLOSING in before or len(calls) > MAX_CALLS:
        raise ParseError(f"needs pairs of tags with at most {MAX_CALLS} calls, got {len(calls)}")
    return calls


def _objects(text: str) -> list[object]:
    """Reads the inside of one pair of tags: one JSON value, or one in each line."""
    lines = [line for line in text.split("\n", MAX_CALLS + 2) if line.strip()]
    try:
        return [read_json(text)]
    except ParseError:
        if len(lines) < 2:
            raise
        return [read_json(line) for line in lines]


def _call(value: object) -> _Call:
    """Returns the call that a JSON object is; raises ParseError for any other value."""
    if not isinstance(value, dict) or not isinstance(value.get("name"), str):
        raise ParseError(f"a call is an object with a name, got {shown(str(value))}")
    given = [value[key] for key in ("arguments", "parameters") if key in value]
    if len(given) != 1 or not isinstance(given[0], dict):
        raise ParseError(f"a call needs one object of arguments, got {shown(str(value))}")
    return _Call(value["name"], {key: json.dumps(_plain(one), sort_keys=True) for key, one in given[0].items()})


def _plain(value: object) -> object:
    """Returns a JSON value with whole numbers as integers, so that equal values are written alike."""
    if isinstance(value, dict):
        return {key: _plain(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_plain(one) for one in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value
