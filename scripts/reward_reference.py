"""Writes docs/reward_reference.md from the rewards themselves: `python scripts/reward_reference.py`."""

import ast
import importlib
import inspect
import io
import json
import math
import re
import textwrap
import tokenize
from collections.abc import Iterator
from dataclasses import MISSING, Field, asdict, fields
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import yaml
from pydantic.fields import FieldInfo

from mmrl.core import plugins
from mmrl.core.checked import bound_in_words

FILE = Path(__file__).parents[1] / "docs" / "reward_reference.md"
GROUPS: dict[str, tuple[str, ...]] = {
    "Geometry and GUI": (
        "box_iou", "classification", "click_distance", "count", "detection", "gaussian_click", "gui_action", "gui_g1",
        "mask_iou", "point_in_box", "seg_zero", "tracking_iou",
    ),
    "Time": ("temporal_contrast", "temporal_iou", "temporal_segments"),
    "Text and reasoning": (
        "anls", "answer_consistency", "bleu", "cider", "exact_answer", "finished", "format_tags", "grounded_boxes",
        "json_schema", "length_window", "majority_vote", "math_answer", "multiple_choice", "number", "overlong",
        "repetition", "response_diversity", "rouge", "semantic_similarity", "text_f1", "vqa_soft", "wer",
    ),
    "Images": (
        "aesthetic", "clip_score", "diversity", "geneval", "hps_v2", "image_reward", "image_similarity", "jpeg_size",
        "ocr_text", "pairwise_judge", "pick_score", "siglip_score", "vqa_score",
    ),
    "Video": ("flicker", "frame_mean", "motion_smoothness"),
    "Episodes, labs and labels": ("episode_success", "given_score", "shapes", "soft_shapes", "step_reward"),
    "Wrappers": (
        "annealed", "cached", "clip_range", "delta", "dithered", "gated", "length_penalised", "router",
        "running_normalised", "text_norm", "trusted", "uncertainty_weighted", "win_rate",
    ),
    "A function of your own": ("python",),
}  # fmt: skip
HEAD = """# Every reward

Written from the code by `python scripts/reward_reference.py`; the guide to choosing and mixing is
[rewards.md](rewards.md). A setting whose default is *needed* must be given. `weight` and `label` go with every reward
([configs.md](configs.md#every-reward)).
"""
# emphasis, strikes, formulas, escapes, tags, links; an underscore inside of a word is no emphasis
MARKS = re.compile(r"[*~$]|\\(?=[{}\[\]()])|(?<!\w)_|_(?!\w)|<(?=[\w/!])|(?<=\])\(")


def reference() -> str:
    """Returns the page. Raises ValueError where a shipped reward is in no group, or a group holds an unknown name."""
    grouped = [name for names in GROUPS.values() for name in names]
    shipped = plugins.names("rewards")
    if wrong := sorted(set(shipped).symmetric_difference(grouped)):
        raise ValueError(f"GROUPS of scripts/reward_reference.py must hold each shipped reward once; see {wrong}")
    parts = [HEAD]
    for group, names in GROUPS.items():
        parts += [f"## {group}\n", *(section(name) for name in sorted(names))]
    return "\n".join(parts)


def section(name: str) -> str:
    """Returns the section of one reward."""
    cls: Any = plugins.find("rewards", name)
    summary = inspect.cleandoc(importlib.import_module(cls.__module__).__doc__ or "")
    parts = [f"### {name}", escaped(summary), declared(cls), markdown(inspect.cleandoc(cls.__doc__ or ""))]
    return "\n\n".join([*parts, table(cls)]) + "\n"


def declared(cls: Any) -> str:
    """Returns one line: what the reward judges, its range, its needs and its source."""
    needs = ", ".join(f"`{need}`" for need in sorted(cls.needs))
    if held := sorted(plugins.inner_kinds(cls)):
        where = " and ".join(f"`{name}`" for name in held)
        parts = [f"Wraps the rewards of {where}; its range and its needs follow from theirs"]
        parts += [] if cls.granularity == "sample" else [f"judges each {cls.granularity}"]
        parts += [f"needs {needs} too"] if needs else []
    else:
        parts = [f"Judges each {cls.granularity}", f"{end(cls.range[0])} to {end(cls.range[1])}"]
        parts += [f"needs {needs}"] if needs else []
        parts += ["differentiable"] if cls.differentiable else []
        parts += [f"{cls.batch_size} samples at once"] if cls.batch_size else []
    return "*" + "; ".join([*parts, f"source: {escaped(cls.source)}"]) + ".*"


def end(number: float) -> str:
    return ("-" if number < 0 else "") + "infinity" if math.isinf(number) else f"{number:g}"


def table(cls: Any) -> str:
    """Returns a row for each setting: its default in YAML, what it may be, and its comment in the source."""
    settings = [item for item in fields(cls) if item.init]
    if not settings:
        return "It has no settings."
    comments, hints = dict(comments_of(cls)), get_type_hints(cls, include_extras=True)
    rows = []
    for item in settings:
        parts = filter(None, (allowed(hints[item.name]), escaped(comments.get(item.name, ""))))
        cells = (f"`{item.name}`", default(item), "; ".join(parts))
        rows.append("|" + "|".join(f" {cell.replace('|', chr(92) + '|')} " if cell else " " for cell in cells) + "|")
    return "\n".join(["| setting | default | |", "|---|---|---|", *rows])


def allowed(hint: Any) -> str:
    """Returns the choices or the range that an annotation gives a setting; empty where it gives none."""
    if get_origin(hint) is Literal:
        return ", ".join(f"`{as_yaml(one)}`" for one in get_args(hint))
    if get_origin(hint) is Annotated:
        parts = [part for item in get_args(hint)[1:] for part in (item.metadata if isinstance(item, FieldInfo) else ())]
        return bound_in_words({key: bound for part in parts for key, bound in asdict(part).items()})
    is_optional = get_origin(hint) in (Union, UnionType)
    return next(filter(None, map(allowed, get_args(hint))), "") if is_optional else ""


def default(item: Field[Any]) -> str:
    """Returns the default as YAML, in backticks; `needed` without them where there is none."""
    value = item.default if item.default_factory is MISSING else item.default_factory()
    return "needed" if value is MISSING else f"`{as_yaml(value)}`"


def as_yaml(value: Any) -> str:
    """Returns a setting as a config writes it, on one line."""
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    if isinstance(value, float):
        return ("-" if value < 0 else "") + ".inf" if math.isinf(value) else repr(value)
    if isinstance(value, str):
        is_plain = bool(value) and "#" not in value and yaml.safe_load(value) == value
        return value if is_plain else json.dumps(value)
    if isinstance(value, tuple | list | frozenset):
        return f"[{', '.join(map(as_yaml, value))}]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {as_yaml(one)}" for key, one in value.items()) + "}"
    return str(value)


def comments_of(cls: type) -> Iterator[tuple[str, str]]:
    """Yields the fields that a class and its bases declare, each with the comment on its lines or directly above."""
    for owner in reversed(cls.__mro__[:-1]):
        source = textwrap.dedent(inspect.getsource(owner))
        tokens = tokenize.generate_tokens(io.StringIO(source).readline)
        comments = [one for one in tokens if one.type == tokenize.COMMENT]
        texts = {one.start[0]: one.string.lstrip("# ") for one in comments}
        alone = {one.start[0] for one in comments if one.line.lstrip().startswith("#")}
        (definition,) = ast.parse(source).body
        assert isinstance(definition, ast.ClassDef)
        for statement in definition.body:
            if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
                first = statement.lineno
                while first - 1 in alone:
                    first -= 1
                lines = range(first, (statement.end_lineno or statement.lineno) + 1)
                yield statement.target.id, " ".join(texts[line] for line in lines if line in texts)


def markdown(text: str) -> str:
    """Returns a docstring as Markdown: indented lines become a block of code."""
    blocks: list[tuple[bool, list[str]]] = []
    for line in text.splitlines():
        is_code = line.startswith(" ") or (not line and bool(blocks) and blocks[-1][0])
        if not blocks or blocks[-1][0] != is_code:
            blocks.append((is_code, []))
        blocks[-1][1].append(line)
    return "\n\n".join(written for is_code, lines in blocks if (written := _block(is_code, "\n".join(lines))))


def _block(is_code: bool, text: str) -> str:
    text = textwrap.dedent(text).strip("\n") if is_code else text.strip("\n")
    if not is_code:
        return escaped(text)
    return f"```text\n{text}\n```" if text else ""


def escaped(text: str) -> str:
    """Returns words escaped so that Markdown finds nothing but what stands in backticks."""
    parts = re.split(r"(`[^`]*`)", text)
    for number in range(0, len(parts), 2):
        parts[number] = re.sub(MARKS, r"\\\g<0>", parts[number])
    # what would begin a list, a heading, a rule or a quotation where it stands at the beginning of a line
    return re.sub(r"^([0-9]+(?=[.)]\s)|(?=[-+#=]\s|>))", r"\1\\", "".join(parts), flags=re.MULTILINE)


if __name__ == "__main__":
    FILE.write_text(reference(), encoding="utf-8")
    print(FILE)
