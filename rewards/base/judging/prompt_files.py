"""What a judge is asked, as a file: the question in words, the scale and the form of the reply."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from mmrl.core.checked import Checked
from mmrl.core.contracts import ConfigError
from mmrl.core.plugins import checked
from mmrl.system.spelling import near
from mmrl.system.yaml_text import parse_yaml

FOLDER = Path(__file__).parents[2] / "judges" / "prompts"
Form = Literal["number", "yes_no", "rubric", "constraints", "pairwise", "ranking", "group_scores"]
LABELS: Mapping[str, str] = {  # by form: what a verdict is called where the file says nothing
    "number": "Score",
    "yes_no": "Verdict",
    "rubric": "Grades",
    "constraints": "Verdicts",
    "pairwise": "Better",
    "ranking": "Ranking",
    "group_scores": "Scores",
}
OF_GROUPS = ("ranking", "group_scores")  # forms whose question shows a whole group
OF_LISTS = ("rubric", "constraints")  # forms whose question lists criteria
_PLACE = re.compile(r"\{(prompt|answer|before|reference|criteria|answers|count|first|second|target\.\w+)\}")


@dataclass(frozen=True)
class Criterion(Checked):
    """One item of a rubric, or one constraint."""

    text: str  # what is asked for
    # how much it counts; below 0 for a fault, which is subtracted where it is there
    weight: Annotated[float, Field(ge=-1e6, le=1e6)] = 1.0
    # the largest score in [0, 1] of a sample that misses it (one with a grade below one half); null: no cap
    cap: Annotated[float, Field(ge=0, le=1)] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.text.strip():
            raise ValueError("text of a criterion must not be empty")


@dataclass(frozen=True)
class JudgePrompt(Checked):
    """The content of a prompt file.

    The question may hold {prompt}, {answer}, {reference}, {target.FIELD}, {criteria} (a numbered list), and of whole
    groups {answers} (a numbered list) and {count}; of pairs {first} and {second}; of steps of an answer {before}, empty
    where the answer is judged as a whole. They are filled in one pass: what stands in an answer fills nothing.

    Raises ValueError for settings that do not go together.
    """

    form: Form  # of the verdict
    question: str | dict[str, str]  # the text after the images; by the value of a field: see `vlm_judge.choose_by`
    about: str  # one line: what it judges, and for which model or paper it was written
    system: str = ""  # the system message; empty: none
    scale: tuple[float, float] = (0.0, 1.0)  # of numbers and grades: the worst and the best
    levels: tuple[str, ...] = ()  # of form number: words instead of numbers (Likert), the worst first; then no scale
    words: tuple[str, ...] = ("yes", "no")  # of yes_no: its two answers; of pairwise: first, second and tie
    label: str = ""  # what the verdict is called in the reply; empty: by the form
    critique: bool = False  # whether the judge writes its reasons before the verdict
    ending: str | None = None  # last lines of the question, which ask for the verdict; null: by the form
    criteria: tuple[Criterion, ...] = ()  # of rubric and constraints, where the rows bring none
    published: str = ""  # where the wording stands that a published judge was trained with; empty: there is none
    variants: tuple[str, ...] = field(init=False)  # all questions

    def __post_init__(self) -> None:
        super().__post_init__()
        variants = tuple(self.question.values()) if isinstance(self.question, Mapping) else (self.question,)
        object.__setattr__(self, "variants", variants)
        if not variants or not all(text.strip() for text in variants):
            raise ValueError("question must not be empty")
        if not self.scale[0] < self.scale[1]:
            raise ValueError(f"scale must be [worst, best] with worst < best, got {list(self.scale)}")
        if not self.label:
            object.__setattr__(self, "label", LABELS[self.form])
        if self.form == "pairwise" and self.words == ("yes", "no"):
            object.__setattr__(self, "words", ("1", "2", "tie"))
        count = {"yes_no": 2, "pairwise": 3}.get(self.form, len(self.words))
        if len({word.casefold() for word in self.words}) != count or not all(self.words):
            raise ValueError(f"words of form {self.form} must be {count} different texts, got {list(self.words)}")
        if self.levels and (self.form != "number" or len({one.casefold() for one in self.levels}) < 2):
            raise ValueError(f"levels are two words or more, of form number, got {list(self.levels)} of {self.form}")
        if self.criteria and self.form not in OF_LISTS:
            raise ValueError(f"criteria go with the forms {' and '.join(OF_LISTS)}, got {self.form}")
        if self.form in OF_LISTS and not all("{criteria}" in text for text in variants):
            raise ValueError(f"the question of form {self.form} must hold {{criteria}}")

    @property
    def places(self) -> set[str]:
        """Returns the places that the questions have, such as "reference"."""
        return {place for text in (*self.variants, self.system) for place in _PLACE.findall(text)}

    def ask(self, variant: str | None, values: Mapping[str, str], *, is_structured: bool = False) -> str:
        """Returns the question with its places filled. `variant`: which one, where there are several.

        Raises ValueError for a variant that the file does not have.
        """
        if isinstance(self.question, Mapping):
            if variant not in self.question:
                raise ValueError(
                    f"the judge's prompt has no question for {variant!r}; it has {', '.join(self.question)}"
                )
            text = self.question[variant]
        else:
            text = self.question
        ending = self._ending(values, is_structured) if self.ending is None else fill(self.ending, values)
        return f"{fill(text, values).rstrip()}\n\n{ending}".rstrip()

    def _ending(self, values: Mapping[str, str], is_structured: bool) -> str:
        if self.form == "yes_no" and not self.critique:
            return f"Answer with {self.words[0]} or {self.words[1]}, and nothing else."
        what = {
            "number": f"one of these words, from worst to best: {', '.join(self.levels)}"
            if self.levels
            else f"one number from {self.scale[0]:g} (worst) to {self.scale[1]:g} (best)",
            "yes_no": " or ".join(self.words),
            "rubric": f"a list of one number from {self.scale[0]:g} to {self.scale[1]:g} for each criterion, in order",
            "constraints": "a list of yes or no for each criterion, in order",
            "pairwise": f"{self.words[0]} for the first, {self.words[1]} for the second, or {self.words[-1]}",
            "ranking": "a list of all numbers, the best first",
            "group_scores": f"a list of one number from {self.scale[0]:g} to {self.scale[1]:g} for each, in order",
        }[self.form]
        reasons = "First write your reasons in a few sentences. " if self.critique else ""
        if is_structured:
            return f"{reasons}The field {self.json_field} of your JSON holds {what}."
        only = "Then end with" if self.critique else "Answer with nothing but"
        is_list = self.form in (*OF_LISTS, *OF_GROUPS)
        return f"{reasons}{only} one line that begins with '{self.label}:', then {what}{', in brackets' * is_list}."

    @property
    def json_field(self) -> str:
        """Returns the label as the field of a JSON object."""
        return self.label.lower().replace(" ", "_")

    def schema(self, count: int) -> dict[str, Any]:
        """Returns the JSON schema of a reply about `count` criteria or samples."""
        number: dict[str, Any] = {"type": "number", "minimum": self.scale[0], "maximum": self.scale[1]}
        several: dict[str, Any] = {"type": "array", "minItems": count, "maxItems": count}
        verdict: dict[str, Any] = {
            "number": {"type": "string", "enum": list(self.levels)} if self.levels else number,
            "yes_no": {"type": "string", "enum": list(self.words)},
            "rubric": several | {"items": number},
            "constraints": several | {"items": {"type": "string", "enum": ["yes", "no"]}},
            "pairwise": {"type": "string", "enum": list(self.words)},
            "ranking": several | {"items": {"type": "integer", "minimum": 1, "maximum": count}},
            "group_scores": several | {"items": number},
        }[self.form]
        fields = ({"reasons": {"type": "string"}} if self.critique else {}) | {self.json_field: verdict}
        return {"type": "object", "properties": fields, "required": list(fields), "additionalProperties": False}


def fill(text: str, values: Mapping[str, str]) -> str:
    """Returns a text with its places filled, all in one pass. Raises ValueError for a place without a value."""

    def value(match: re.Match[str]) -> str:
        if match[1] not in values:
            raise ValueError(f"the judge's question holds {match[0]}, which there is not; there are {sorted(values)}")
        return values[match[1]]

    return _PLACE.sub(value, text)


def numbered(texts: Sequence[str]) -> str:
    """Returns texts as a numbered list."""
    return "\n".join(f"{number}. {text}" for number, text in enumerate(texts, 1))


def prompt_names() -> list[str]:
    """Returns the names of the shipped prompt files."""
    return sorted(path.stem for path in FOLDER.glob("*.yaml"))


def load_prompt(name: str) -> JudgePrompt:
    """Returns a shipped prompt by its name, or that of a file `.../NAME.yaml`.

    Raises ConfigError for an unknown name, a file that cannot be read, and content that is wrong.
    """
    is_file = name.endswith((".yaml", ".yml")) or "/" in name
    if not is_file and name not in prompt_names():
        hint = near(name, prompt_names()) or f"; there are {', '.join(prompt_names())}, and paths of YAML files"
        raise ConfigError(f"there is no prompt of a judge with the name {name!r}{hint}")
    path = Path(name) if is_file else FOLDER / f"{name}.yaml"
    try:
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read the prompt of a judge {str(path)!r}: {error}") from error
    content = parse_yaml(text, f"the prompt of a judge {str(path)!r}")
    if not isinstance(content, dict):
        raise ConfigError(f"the prompt of a judge {str(path)!r} must be a YAML mapping, got {type(content).__name__}")
    made = checked(JudgePrompt, content, f"prompt {name}")
    assert isinstance(made, JudgePrompt)
    return made


def criteria_of(value: Any) -> tuple[Criterion, ...]:
    """Returns the criteria of a row: texts, or mappings with text, weight (or points) and cap.

    Raises ValueError where the value is none of these, or holds none.
    """
    items = [value] if isinstance(value, str) else value
    if not isinstance(items, list | tuple) or not items:
        raise ValueError(f"criteria must be a list of texts or of {{text, weight, cap}}, got {value!r}")
    return tuple(map(_criterion, items))


def _criterion(item: Any) -> Criterion:
    if isinstance(item, str):
        return Criterion(item)
    if not isinstance(item, Mapping):
        raise ValueError(f"a criterion must be a text or {{text, weight, cap}}, got {item!r}")
    named = {{"criterion": "text", "points": "weight"}.get(str(key), str(key)): value for key, value in item.items()}
    if not {"text"} <= set(named) <= {"text", "weight", "cap"} or not isinstance(named["text"], str):
        raise ValueError(f"a criterion has text, weight (or points) and cap, got {item!r}")
    for key in ("weight", "cap"):
        if isinstance(named.get(key), bool) or not isinstance(named.get(key, 0.0), int | float | None):
            raise ValueError(f"{key} of a criterion must be a number, got {item!r}")
    return Criterion(**named)
