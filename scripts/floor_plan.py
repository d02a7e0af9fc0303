"""Prints the floor plan of mmrl: its folders layer by layer, and every import that leads upwards or in a circle.

    python scripts/floor_plan.py

Links are resolved: `modalities/`, `rewards/` and `samplers/` at the root are `mmrl.modalities`, `mmrl.rewards` and
`mmrl.samplers`. Imports inside functions and those for type checkers only count like all others. Exit code 1 where a
file imports from a folder above its own, where folders import each other in a circle, or where a folder has no place.
"""

import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

import grimp
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
        "diagnosis",
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


def imports() -> grimp.ImportGraph:
    """Returns the modules of mmrl and what they import of each other."""
    return grimp.build_graph("mmrl", cache_dir=None)


def folder_of(module: str, graph: grimp.ImportGraph) -> str:
    """Returns the folder of a module below mmrl, with dots; "" for the package itself."""
    is_package = module in graph.modules and bool(graph.find_children(module))
    return module.removesuffix("" if is_package else f".{module.rpartition('.')[2]}").removeprefix("mmrl").lstrip(".")


def layer_of(folder: str) -> int | None:
    """Returns the number of a folder's layer, 0 at the bottom; None for a folder without a place in `LAYERS`."""
    return next((number for number, layer in enumerate(LAYERS) if folder in layer), None)


def complaints(module: str, targets: Iterable[str], graph: grimp.ImportGraph) -> list[str]:
    """Returns what is wrong with the modules that `module` imports, a line each."""
    own = folder_of(module, graph)
    if (height := layer_of(own)) is None:
        return [f"{module}: the folder {own or 'mmrl'} has no place in LAYERS of scripts/floor_plan.py"]
    wrong = []
    for target in sorted(targets):
        other = folder_of(target, graph)
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


def all_complaints(graph: grimp.ImportGraph) -> list[str]:
    """Returns what is wrong with the imports of all modules, a line each."""
    modules = sorted(graph.modules)
    return [line for one in modules for line in complaints(one, graph.find_modules_directly_imported_by(one), graph)]


def circles(graph: grimp.ImportGraph, *, of_folders: bool) -> list[list[str]]:
    """Returns the folders, or the modules, that import each other in circles; each circle once."""
    edges: networkx.DiGraph[str] = networkx.DiGraph()
    for module in graph.modules:
        for name in graph.find_modules_directly_imported_by(module):
            edges.add_edge(*(folder_of(one, graph) if of_folders else one for one in (module, name)))
    rings = networkx.strongly_connected_components(edges)
    return sorted(sorted(ring) for ring in rings if len(ring) > 1)


def folders(graph: grimp.ImportGraph) -> set[str]:
    """Returns the folders with modules."""
    return {folder_of(module, graph) for module in graph.modules if not graph.find_children(module)}


def main() -> int:
    graph = imports()
    for number, layer in enumerate(LAYERS, 1):
        print(f"{number:3}  {'  '.join(name or 'mmrl' for name in layer)}")
    back, rings = all_complaints(graph), [*circles(graph, of_folders=True), *circles(graph, of_folders=False)]
    own = sorted(path.name for path in (ROOT / "mmrl").glob("*.py"))
    print(f"{len(folders(graph))} folders with code in {len(LAYERS)} layers; mmrl/ itself: {', '.join(own)}")
    print(f"{len(rings)} circles", *(" <-> ".join(ring) for ring in rings), sep="\n  ")
    print(f"{len(back)} imports from above", *back, sep="\n  ")
    return 1 if back or rings else 0


if __name__ == "__main__":
    sys.exit(main())
