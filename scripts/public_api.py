"""Writes docs/api.md, what users may import and inherit from: `python scripts/public_api.py`.

With `--accept` it also writes tests/public_api.txt, the snapshot of names and signatures that tests/test_public_api.py
compares with the code. Files are read, not imported.
"""

import ast
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from settings_source import escaped

ROOT = Path(__file__).parents[1]
FILE, SNAPSHOT = ROOT / "docs" / "api.md", ROOT / "tests" / "public_api.txt"
# What is public, by subject: a module with all its public names, or `module:name`.
PUBLIC: dict[str, tuple[str, ...]] = {
    "Functions": ("mmrl:train", "mmrl:resume", "mmrl.scoring.standalone:score", "mmrl.commands.summary:Outcome"),
    "Callbacks": ("mmrl.training.callbacks",),
    "Errors": ("mmrl.system.errors:ConfigError", "mmrl.system.errors:RunError", "mmrl.system.errors:DivergedError"),
    "Contracts of plug-ins": ("mmrl.core.contracts", "mmrl.core.rewards"),
    "Declarations": ("mmrl.core.declarations",),
    "Settings": ("mmrl.core.checked:Checked", "mmrl.core.schedules"),
    "What flows": (
        "mmrl.core.data",
        "mmrl.core.views",
        "mmrl.core.forward_outputs",
        "mmrl.core.keys",
    ),
    "Maths": ("mmrl.core.numerics",),
    "Advantages": ("mmrl.advantages.base.wrapper", "mmrl.advantages.base.episodes"),
    "Losses": (
        "mmrl.losses.base.decisions",
        "mmrl.losses.base.log_ratios",
        "mmrl.losses.base.ratio",
        "mmrl.losses.base.paths",
        "mmrl.losses.base.denoising",
        "mmrl.losses.base.old_decay",
        "mmrl.losses.base.outputs",
        "mmrl.losses.base.divergence",
    ),
    "Samplers": (
        "mmrl.samplers.base.flow",
        "mmrl.samplers.base.kernels",
        "mmrl.samplers.base.fans",
        "mmrl.samplers.base.steering",
        "mmrl.samplers.base.tail",
        "mmrl.samplers.base.tokens",
        "mmrl.samplers.base.window",
        "mmrl.plans.flow",
        "mmrl.plans.answers",
    ),
    "Rewards": ("mmrl.rewards.base.wrapper", "mmrl.rewards.base.answers", "mmrl.rewards.base.boxes"),
    "Mixes": ("mmrl.core.mixes",),
    "Modalities": (
        "mmrl.modalities.flow.policy",
        "mmrl.modalities.flow.diffusers_policy",
        "mmrl.modalities.language.policy",
        "mmrl.modalities.language.rollout",
        "mmrl.modalities.loading.lora",
    ),
    "Layouts of data sets": ("mmrl.prompts.layout", "mmrl.prompts.row"),
    "Actions": ("mmrl.parsing.actions.action", "mmrl.parsing.actions.dialect"),
    "Other libraries": ("mmrl.interop.trl", "mmrl.interop.verl"),
}
HEAD = """# Public API

Written from the code by `python scripts/public_api.py`: what you may import, call and inherit from. All else may change
without notice. `tests/public_api.txt` holds the names and signatures; a change of it stands in the CHANGELOG. Shipped
plug-ins (`mmrl.losses.grpo` ...) may be inherited from too: their names and [settings](settings.md) are kept, their
methods are those of the contracts. [architecture.md](architecture.md#to-add-something) says where a new plug-in goes.

A name in *abstract* must be written by whoever inherits. Inherited methods stand with the class that declares them.
"""
Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Name:
    """A public class or function, or one public member of a class."""

    path: str  # module.name, or module.Class.member
    signature: str  # as the source has it, on one line
    summary: str  # the first sentence of its docstring, "" where there is none
    is_member: bool = False


def modules() -> dict[str, dict[str, list[Name]]]:
    """Returns the public names by subject and module."""
    found: dict[str, dict[str, list[Name]]] = {}
    for subject, places in PUBLIC.items():
        for place in places:
            module, _, name = place.partition(":")
            names = list(_names(module, name))
            if not names:
                raise ValueError(f"PUBLIC of scripts/public_api.py: {place} holds no public class or function")
            found.setdefault(subject, {}).setdefault(module, []).extend(names)
    return found


def _names(module: str, wanted: str) -> Iterator[Name]:
    for node in ast.parse(_file(module).read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ClassDef | Function) and _is_public(node.name) and wanted in ("", node.name):
            path = f"{module}.{node.name}"
            if isinstance(node, ast.ClassDef):
                bases = ", ".join(ast.unparse(base) for base in [*node.bases, *(word.value for word in node.keywords)])
                yield Name(path, f"class {node.name}" + f"({bases})" * bool(bases), _summary(node))
                yield from _members(path, node)
            else:
                yield Name(path, f"def {node.name}{_call(node)}", _summary(node))


def _file(module: str) -> Path:
    folder = ROOT.joinpath(*module.split("."))
    for file in (folder / "__init__.py", folder.with_suffix(".py")):
        if file.is_file():
            return file
    raise ValueError(f"PUBLIC of scripts/public_api.py names {module}, which is no module of mmrl")


def _members(path: str, definition: ast.ClassDef) -> Iterator[Name]:
    """Returns the fields and the methods that a class declares itself."""
    for node in definition.body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and _is_public(node.target.id):
            yield Name(f"{path}.{node.target.id}", ast.unparse(node), "", is_member=True)
        elif isinstance(node, Function) and (_is_public(node.name) or node.name == "__call__"):
            marks = [ast.unparse(mark).rpartition(".")[2].removesuffix("method") for mark in node.decorator_list]
            signature = " ".join([*sorted(marks), f"def {node.name}{_call(node)}"])
            yield Name(f"{path}.{node.name}", signature, _summary(node), is_member=True)


def _call(node: Function) -> str:
    returned = f" -> {ast.unparse(node.returns)}" if node.returns else ""
    return f"({ast.unparse(node.args)}){returned}"


def _is_public(name: str) -> bool:
    return not name.startswith("_") and name != "formerly"  # names of before, which only the loader reads


def _summary(node: ast.ClassDef | Function) -> str:
    """Returns the first sentence of a docstring."""
    paragraph = " ".join((ast.get_docstring(node) or "").split("\n\n")[0].split())
    return re.split(r"(?<=[a-z)`\]][.])\s(?=[A-Z`])", paragraph)[0]


def reference() -> str:
    """Returns the page."""
    parts = [HEAD]
    for subject, found in modules().items():
        parts.append(f"## {subject}\n")
        for module, names in found.items():
            lines = [f"### {module}\n"]
            for name in names:
                summary = f": {escaped(name.summary)}" if name.summary else ""
                lines.append(f"{'  ' * name.is_member}- `{name.signature}`{summary}")
            parts.append("\n".join(lines) + "\n")
    return "\n".join(parts)


def snapshot() -> str:
    """Returns one line for each public name: its path and signature."""
    names = [name for found in modules().values() for names in found.values() for name in names]
    return "".join(f"{name.path}: {name.signature}\n" for name in names)


if __name__ == "__main__":
    FILE.write_text(reference(), encoding="utf-8")
    print(FILE)
    if sys.argv[1:] == ["--accept"]:
        SNAPSHOT.write_text(snapshot(), encoding="utf-8")
        print(SNAPSHOT)
