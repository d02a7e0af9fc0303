"""`mmrl judge rows`: judged answers as rows that a judge learns from, with openers that answer nothing among them."""

import json
import random
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from mmrl.core import plugins
from mmrl.core.contracts import ConfigError, Reward
from mmrl.core.data import Prompt
from mmrl.core.reward_batches import check_prompts
from mmrl.prompts.row_files import RawRow, Source
from mmrl.system.files import replace_file

SHARE = 0.125  # openers for one judged answer: 20,000 for 160,000 in the paper
_SENTENCE = re.compile(r"\A\s*([^\n.!?:]{1,1000}(?:[.!?:](?=\s|\Z)|(?=\n)))")
_VERDICTS = {True: ("yes", "true", "1"), False: ("no", "false", "0")}


@runtime_checkable
class Judge(Reward, Protocol):
    """A reward that can say what it asks, such as `text_judge`."""

    def exercise(self, prompt: Prompt, answer: str, is_right: bool) -> tuple[str, str]:
        """Returns what is asked about an answer, and the right verdict."""
        ...


def write_rows(section: Mapping[str, Any], data: str, out: Path, *, openers: float = SHARE, seed: int = 0) -> int:
    """Writes rows of the layout `given_answers`: what a judge is asked, and the verdict that it should give.

    Zhao et al. 2025, "One Token to Fool LLM-as-a-Judge", arXiv 2507.08794, section 4: a judge that learned that the
    first sentence of an answer ("To solve the problem, we need to find the mode.") is no answer is hardly fooled by
    openers. Sentences that are the whole answer, or that hold the reference, are left out.

    Args:
        section: the judge as a reward with its settings; it asks for one word, and loads no model here.
        data: rows with `prompt`, `answer` (the right one), `response`, and `label` (yes or no, as text, truth value or
            number). out: the file of JSON lines.
        openers: openers for one judged answer, drawn from all rows without repetition, in [0, 1]. seed: of the draw.
    Returns:
        The number of rows that were written.
    Raises:
        ConfigError: rows without these fields, or a reward that asks for something else.
    """
    judge = plugins.build("rewards", section)
    if not isinstance(judge, Judge):
        raise ConfigError(f"rows are made of the questions of a judge such as text_judge, got {section['name']!r}")
    if not 0 <= openers <= 1:
        raise ConfigError(f"openers must be from 0 to 1, got {openers:g}")
    rows = [_checked(row) for row in Source(data).rows()]
    if not rows:
        raise ConfigError(f"there is no row in {data!r}")
    judged = [_row(judge, row, row["response"], row["label"]) for row in rows]
    begun = [(row, opener) for row in rows if (opener := opener_of(row["response"], row["answer"])) is not None]
    count = min(round(openers * len(rows)), len(begun))
    negatives = [_row(judge, row, opener, False) for row, opener in random.Random(seed).sample(begun, count)]
    replace_file(out, "".join(json.dumps(one, ensure_ascii=False) + "\n" for one in (*judged, *negatives)).encode())
    return len(judged) + len(negatives)


def opener_of(response: str, reference: str) -> str | None:
    """Returns the first sentence of an answer; None where there is no more of it, or it holds the reference."""
    match = _SENTENCE.match(response)
    if match is None or not response[match.end() :].strip() or reference.casefold() in match[1].casefold():
        return None
    return match[1].strip()


def _row(judge: Judge, row: Mapping[str, Any], response: str, is_right: bool) -> dict[str, str]:
    """Returns what the judge is asked about a response, with the verdict. Raises ConfigError where it cannot be."""
    prompt = Prompt(row["prompt"], target=row["target"])
    try:
        check_prompts("it", judge, [prompt])
        question, verdict = judge.exercise(prompt, response, is_right)
    except (ConfigError, ValueError) as error:
        raise ConfigError(f"{row['place']}: {error}") from error
    return {"prompt": question, "output": verdict}


def _checked(row: RawRow) -> dict[str, Any]:
    """Returns the fields of a row, its label as a truth value. Raises ConfigError for one that is missing or wrong."""
    if row.fault is not None:
        raise ConfigError(f"{row.place}: {row.fault}")
    fields: dict[str, Any] = {}
    for name in ("prompt", "answer", "response"):
        fields[name] = row.values.get(name)
        if not isinstance(fields[name], str) or not (fields[name].strip() or name == "response"):
            raise ConfigError(f"{row.place}: the field {name!r} must be a text, got {fields[name]!r:.80}")
    label = _label(row.values.get("label"), row.place)
    return fields | {"label": label, "place": row.place, "target": row.values}


def _label(label: Any, place: str) -> bool:
    """Returns a label as a truth value."""
    said = str(label).strip().casefold()
    for verdict, words in _VERDICTS.items():
        if said in words:
            return verdict
    raise ConfigError(f"{place}: label must be yes or no, got {label!r:.80}")
