"""The text of a config that `mmrl init` writes: the recipe's own lines where nothing changed, comments where it did."""

import re
import textwrap
from collections.abc import Mapping
from typing import Any

import yaml

from mmrl.core.config import DESCRIBING, SHIPPED

ABOUT = {  # a comment above each section that is written anew
    "prompts": "Where prompts come from. `mmrl check` counts them.",
    "modality": "The model, what of it is trained, and how much is computed at once (memory only).",
    "rewards": "What judges the samples; several rewards are added by their weights. `mmrl list rewards` names all.",
    "updates": "The optimizer steps of an iteration. micro_batch changes memory and time, not the result.",
    "optimizer": "The learning rate is for LoRA.",
    "evaluation": "Held-out evaluation: the same prompts and noise each time.",
    "rollout_groups": "memory only",
    "iterations": "three passes over the data, at least 100 and at most the recipe's",
}


def written(recipe: str, tree: Mapping[str, Any], changed: frozenset[str]) -> str:
    """Returns the YAML of a config.

    Args:
        recipe: the shipped config whose lines stay where nothing changed.
        tree: all sections of the new config; a section that is None is left out.
        changed: the sections that differ from the recipe's.
    """
    blocks = blocks_of(SHIPPED.joinpath(f"{recipe}.yaml").read_text(encoding="utf-8"))
    about = tree["recipe"]
    title = f"{about['name']} on {tree['modality']['model']}, written by `mmrl init` from the recipe {recipe}."
    theirs = "Comments that say `theirs` compare the recipe with its authors' code."
    sentences = f"{title} {about['paper']}, arXiv {about['arxiv']}. {theirs}"
    lines = [f"# {line}" for line in textwrap.wrap(sentences, 110, break_long_words=False)]
    order = [name for name in blocks if name not in DESCRIBING] + [name for name in changed if name not in blocks]
    for name in order:
        if name not in changed:
            lines.append(blocks[name].rstrip("\n"))
        elif tree.get(name) is not None:
            lines += _section(name, tree[name])
        elif name == "evaluation":
            lines.append("# evaluation: needs prompts.held_out, prompts that are not trained on; see docs/configs.md")
    return "\n".join(lines) + "\n"


def blocks_of(text: str) -> dict[str, str]:
    """Returns the lines of each top-level section of a YAML text, by name, with their comments."""
    found = re.split(r"^(?=[a-z_]+:)", text, flags=re.MULTILINE)
    return {block.partition(":")[0]: block for block in found[1:]}


def _section(name: str, value: Any) -> list[str]:
    """Returns the lines of one section, under its comment; a single value has it behind."""
    if not isinstance(value, dict | list):
        return [f"{name}: {value}" + (f"  # {ABOUT[name]}" if name in ABOUT else "")]
    body = yaml.dump({name: value}, Dumper=_Indented, sort_keys=False, allow_unicode=True, width=110)
    return [*([f"# {ABOUT[name]}"] if name in ABOUT else []), *body.rstrip("\n").splitlines()]


class _Indented(yaml.SafeDumper):
    """Writes lists below their section indented, short mappings of numbers in one line, and long texts folded."""

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        super().increase_indent(flow, False)

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _mapping(dumper: yaml.SafeDumper, value: dict[str, Any]) -> yaml.Node:
    is_small = len(value) <= 3 and all(isinstance(one, int | float | str | bool | None) for one in value.values())
    is_small = is_small and len(str(value)) < 60 and "name" not in value
    return dumper.represent_mapping("tag:yaml.org,2002:map", value.items(), flow_style=is_small)


def _list(dumper: yaml.SafeDumper, value: list[Any] | tuple[Any, ...]) -> yaml.Node:
    is_small = all(isinstance(one, int | float | str) for one in value) and len(str(value)) < 60
    return dumper.represent_sequence("tag:yaml.org,2002:seq", value, flow_style=is_small)


def _text(dumper: yaml.SafeDumper, value: str) -> yaml.Node:
    style = ">" if len(value) > 80 else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=style)


def _number(dumper: yaml.SafeDumper, value: float) -> yaml.Node:
    text = repr(value)
    text = text.replace("e", ".0e") if "e" in text and "." not in text else text
    return dumper.represent_scalar("tag:yaml.org,2002:float", text)


_Indented.add_representer(dict, _mapping)
_Indented.add_representer(list, _list)
_Indented.add_representer(tuple, _list)
_Indented.add_representer(str, _text)
_Indented.add_representer(float, _number)
