"""Prints the floor plan of mmrl: its folders layer by layer, and every import that leads upwards or in a circle.

    python scripts/floor_plan.py

Links are resolved: `modalities/`, `rewards/` and `samplers/` at the root are `mmrl.modalities`, `mmrl.rewards` and
`mmrl.samplers`. Imports inside functions and those for type checkers only count like all others. Exit code 1 where a
file imports from a folder above its own, where folders import each other in a circle, or where a folder has no place.
"""

import ast
import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path

import networkx

ROOT = Path(__file__).resolve().parents[1]
LINKED = ("modalities", "rewards", "samplers")  # folders at the root that are packages of mmrl

# From bottom to top: a file imports from its own folder and from folders of the layers above this line in the list.
LAYERS: tuple[tuple[str, ...], ...] = (
    ("system", "parsing", "labs"),
    ("parsing.actions", "media", "labs.screens", "labs.pages", "labs.shapes"),
    ("core", "labs.clips", "labs.edits", "labs.motion", "labs.rewriting", "labs.tasks"),
    (
        "plans",
        "scoring",
        "reporting",
        "run_directory",
        "advantages.base",
        "losses.base",
        "mixes",
        "environments.base",
        "rewards.base",
    ),
    (
        "advantages",
        "losses",
        "environments",
        "samplers.base",
        "rewards.base.networks",
        "modalities.encoding",
        "modalities.tiny",
    ),
    (
        "samplers",
        "rewards.base.judging",
        "modalities.loading",
        "modalities.tiny.pipelines",
        "modalities.tokens",
        "prompts",
    ),
    (
        "rewards",  # holds folders only
        "rewards.actions",
        "rewards.boxes",
        "rewards.episodes",
        "rewards.images",
        "rewards.judges",
        "rewards.models",
        "rewards.text",
        "rewards.video",
        "rewards.wrappers",
        "modalities.tokens.vllm",
        "prompts.layouts",
    ),
    ("modalities.flow", "modalities.language", "training", "interop"),
    ("modalities.flow.driven",),
    ("modalities", "assembly"),
    ("commands",),
    ("",),  # the package itself: its door for Python, and the command line
)
# What plug-ins of a kind and their shared folders may import beside their own kind. Nothing else imports a plug-in.
FOR_PLUGINS = {"system", "parsing", "parsing.actions", "media", "core", "plans"}
PLUGINS: Mapping[str, set[str]] = {
    "modalities": FOR_PLUGINS | {"labs", "scoring"},
    "samplers": FOR_PLUGINS | {"labs"},
    "rewards": FOR_PLUGINS | {"labs"},
    "mixes": FOR_PLUGINS,
    "losses": FOR_PLUGINS | {"labs"},
    "advantages": FOR_PLUGINS | {"labs"},
    "environments": FOR_PLUGINS | {"labs"},
}


def module_files(root: Path = ROOT) -> dict[str, Path]:
    """Returns the file of every module of mmrl, by its full name; links are resolved."""
    tops = {"mmrl": root / "mmrl", **{f"mmrl.{name}": root / name for name in LINKED}}
    files = {}
    for package, top in tops.items():
        for folder, subfolders, names in os.walk(top):
            subfolders[:] = [name for name in subfolders if not (Path(folder) / name).is_symlink()]
            inside = Path(folder).relative_to(top).parts
            for name in names:
                if name.endswith(".py"):
                    module = ".".join([package, *inside, name.removesuffix(".py")])
                    files[module.removesuffix(".__init__")] = Path(folder) / name
    return files


def statements(tree: ast.AST) -> Iterator[ast.AST]:
    """Yields what `ast.walk` yields, but without expressions, which are most of a file and import nothing."""
    yield tree
    for node in ast.iter_child_nodes(tree):
        if not isinstance(node, ast.expr):
            yield from statements(node)


def imported(tree: ast.AST, module: str, is_package: bool, known: Iterable[str]) -> set[str]:
    """Returns the modules that the statements of `module` import, by their full names; of others than mmrl, too."""
    targets, known = set(), set(known)
    for node in statements(tree):
        if isinstance(node, ast.Import):
            targets |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            above = module.split(".")[: len(module.split(".")) - node.level + is_package] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            targets |= {name if (name := f"{base}.{alias.name}") in known else base for alias in node.names}
    return targets


_parsed = cache(ast.parse)


def folder_of(module: str, files: Mapping[str, Path]) -> str:
    """Returns the folder of a module below mmrl, with dots; "" for the package itself."""
    is_package = module in files and files[module].name == "__init__.py"
    path = module.split(".") if is_package else module.split(".")[:-1]
    return ".".join(path[1:])


def layer_of(folder: str) -> int | None:
    """Returns the number of a folder's layer, 0 at the bottom; None for a folder without a place in `LAYERS`."""
    return next((number for number, layer in enumerate(LAYERS) if folder in layer), None)


def complaints(module: str, source: str, files: Mapping[str, Path]) -> list[str]:
    """Returns what is wrong with the imports of the file `module`, a line each."""
    own = folder_of(module, files)
    if (height := layer_of(own)) is None:
        return [f"{module}: the folder {own or 'mmrl'} has no place in LAYERS of scripts/floor_plan.py"]
    is_package = module in files and files[module].name == "__init__.py"
    wrong = []
    for target in sorted(imported(_parsed(source), module, is_package, files)):
        if target.split(".")[0] != "mmrl":
            continue
        other = folder_of(target, files)
        below = layer_of(other)
        kind = own.split(".")[0]
        is_allowed = other == own or (below is not None and below < height)
        if (of := other.split(".")[0]) != kind:
            may = PLUGINS.get(kind)
            is_allowed = is_allowed and (
                of not in PLUGINS if may is None else other in may or ("labs" in may and of == "labs")
            )
        if not is_allowed:
            wrong.append(f"{module} imports {target}")
    return wrong


def holds_code(folder: str, files: Mapping[str, Path]) -> bool:
    """Whether a file of the folder holds more than its docstring."""
    own = [path for module, path in files.items() if folder_of(module, files) == folder]
    return any(len(ast.parse(path.read_text("utf-8")).body) > 1 for path in own)


def circles(files: Mapping[str, Path], *, of_folders: bool) -> list[list[str]]:
    """Returns the folders, or the modules, that import each other in circles; each circle once."""
    graph: networkx.DiGraph[str] = networkx.DiGraph()
    for module, path in files.items():
        targets = imported(_parsed(path.read_text("utf-8")), module, path.name == "__init__.py", files)
        for name in targets & files.keys():
            graph.add_edge(*(folder_of(one, files) if of_folders else one for one in (module, name)))
    rings = networkx.strongly_connected_components(graph)
    return sorted(sorted(ring) for ring in rings if len(ring) > 1)


def main() -> int:
    files = module_files()
    folders = {folder for module in files if holds_code(folder := folder_of(module, files), files)}
    for number, layer in enumerate(LAYERS, 1):
        print(f"{number:3}  {'  '.join(name or 'mmrl' for name in layer)}")
    back = [line for module, path in files.items() for line in complaints(module, path.read_text("utf-8"), files)]
    rings = [*circles(files, of_folders=True), *circles(files, of_folders=False)]
    own = sorted(path.name for path in (ROOT / "mmrl").glob("*.py"))
    print(f"{len(folders)} folders with code in {len(LAYERS)} layers; mmrl/ itself: {', '.join(own)}")
    print(f"{len(rings)} circles", *(" <-> ".join(ring) for ring in rings), sep="\n  ")
    print(f"{len(back)} imports from above", *back, sep="\n  ")
    return 1 if back or rings else 0


if __name__ == "__main__":
    sys.exit(main())
