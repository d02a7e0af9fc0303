"""Who may import whom: the core from top to bottom, plug-ins the contracts, labs the reader of videos."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

# A file of the core imports only from those named before it. A folder `_name` belongs to `name`.
CORE = [
    "errors",
    "spelling",
    "checked",
    "declarations",
    "patience",
    "durable",
    "json_files",
    "metric_names",
    "machine",
    "versions",
    "yaml_text",
    "terminal",
    "last_resort",
    "screen",
    "bars",
    "own_modules",
    "numerics",
    "keys",
    "answer_plans",
    "steps",
    "neighbours",
    "tails",
    "coordinates",
    "answers",
    "actions",
    "media",
    "video",
    "dense",
    "outputs",
    "decisions",
    "data",
    "views",
    "weights",
    "evaluations",
    "reward_contracts",
    "choices",
    "group_plans",
    "plans",
    "answer_trees",
    "contracts",
    "given",
    "told",
    "demands",
    "misspelt",
    "plugin_files",
    "plugins",
    "settings",
    "group_settings",
    "config",
    "optimizer",
    "manifest",
    "checkpoint_files",
    "kept_settings",
    "run_lock",
    "start",
    "reading",
    "datasets",
    "catalogue",
    "curriculum",
    "prompts",
    "readable",
    "sharding",
    "engine",
    "correction",
    "gradients",
    "costs",
    "update",
    "reward_batches",
    "totals",
    "episodes",
    "schedules",
    "asking",
    "steering",
    "score_metrics",
    "scoring",
    "scorers",
    "judging",
    "interop",
    "drawing",
    "filmstrip",
    "timeline",
    "evaluation",
    "allocation",
    "collect",
    "batches",
    "replay",
    "checkpoint",
    "divergence",
    "progress",
    "saved_state",
    "trackers",
    "tracking",
    "report",
    "score_files",
    "trainer",
    "summary",
    "finished",
    "reward_checks",
    "pairs",
    "group_checks",
    "parts",
    "model_card",
    "run",
    "sampling",
    "spies",
    "checks",
    "cli_options",
    "cli",
    "__init__",
    "__main__",
]
CONTRACTS = {
    "errors",
    "checked",
    "declarations",
    "own_modules",
    "numerics",
    "keys",
    "answer_plans",
    "steps",
    "neighbours",
    "tails",
    "choices",
    "group_plans",
    "plans",
    "answer_trees",
    "coordinates",
    "answers",
    "actions",
    "media",
    "video",
    "dense",
    "outputs",
    "decisions",
    "data",
    "views",
    "evaluations",
    "reward_contracts",
    "contracts",
    "given",
}
PLUGINS = {
    "modalities": CONTRACTS | {"weights", "labs", "steering"},
    "samplers": CONTRACTS | {"labs"},
    "rewards": CONTRACTS | {"labs", "schedules", "reward_batches"},
    "mixes": CONTRACTS,
    "losses": CONTRACTS | {"labs"},
    "advantages": CONTRACTS | {"labs"},
    "environments": CONTRACTS | {"labs"},
}
HEAVY = {"torch", "torchvision", "diffusers", "transformers", "peft", "accelerate", "open_clip", "matplotlib", "scipy"}
HEAVY |= {"datasets", "pyarrow", "pandas"}
ROOT = Path(__file__).parents[1]


def imported(tree: ast.AST, module: str) -> set[str]:
    """Full names of the modules that the statements import; `module` is the importing file's, for relative ones."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            above = module.split(".")[: -node.level] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            found |= {f"{base}.{alias.name}" for alias in node.names} if base == "mmrl" else {base}
    return found


def layer_of(module: str) -> str:
    """The file of the core or the folder that a module of mmrl belongs to."""
    name = module.split(".")[1] if "." in module else "__init__"
    return name if name in CORE else name.removeprefix("_")


def complaints(module: str, source: str) -> list[str]:
    """The imports that the file `module` may not have."""
    own = layer_of(module)
    if own in CORE:
        allowed = {*CORE[: CORE.index(own)], "labs"}
    elif own in PLUGINS:
        allowed = PLUGINS[own]
    elif own == "labs":
        allowed = {"video"}  # a lab of clips is read by the real reader
    else:
        return [f"{module} has no place in the order of test_layers.py"]
    targets = {name for name in imported(ast.parse(source), module) if name.split(".")[0] == "mmrl"}
    return [f"{module} imports {name}" for name in sorted(targets) if layer_of(name) not in {own, *allowed}]


def module_files() -> dict[str, Path]:
    """Every module of mmrl, through the links: its full name and its file."""
    folders = [ROOT / "mmrl", *(ROOT / "mmrl" / name for name in PLUGINS)]
    files = {file for folder in folders for file in folder.rglob("*.py")}
    names = {file: ".".join(file.relative_to(ROOT).with_suffix("").parts) for file in files}
    return {name.removesuffix(".__init__") if name.count(".") > 1 else name: file for file, name in names.items()}


def test_the_walk_sees_the_core_the_linked_folders_and_the_labs() -> None:
    one_of_each = {"mmrl.core.numerics", "mmrl.samplers.base.kernels", "mmrl.losses.grpo", "mmrl.labs.shapes.world"}
    assert one_of_each <= set(module_files())


def test_every_file_imports_only_what_its_layer_may() -> None:
    problems = [text for name, file in module_files().items() for text in complaints(name, file.read_text("utf-8"))]
    assert not problems, "\n".join(problems)


@pytest.mark.parametrize(
    ("module", "source", "refused"),
    [
        ("mmrl.core.numerics", "from mmrl.core.data import Rollout", "mmrl.core.data"),
        ("mmrl.core.data", "def late():\n    import mmrl.training.trainer", "mmrl.training.trainer"),
        ("mmrl.core.data", "from .contracts import Loss", "mmrl.core.contracts"),
        ("mmrl.training.trainer", "from mmrl.losses.grpo import Grpo", "mmrl.losses.grpo"),
        ("mmrl.training.trainer", "from mmrl import rewards", "mmrl.rewards"),
        ("mmrl.core.keys", "import mmrl", "mmrl"),
        ("mmrl.reporting.page", "from mmrl.training.trainer import Trainer", "mmrl.training.trainer"),
        ("mmrl.losses.grpo", "from mmrl.core.weights import Weights", "mmrl.core.weights"),
        ("mmrl.losses.grpo", "from ..advantages.rloo import Rloo", "mmrl.advantages.rloo"),
        ("mmrl.rewards.images.shapes", "from mmrl import config", "mmrl.core.config"),
        ("mmrl.samplers.ode", "from mmrl.modalities.flow.policy import FlowPolicy", "mmrl.modalities.flow.policy"),
        ("mmrl.labs.shapes.world", "from mmrl.core.numerics import masked_mean", "mmrl.core.numerics"),
    ],
)
def test_an_import_across_layers_is_refused(module: str, source: str, refused: str) -> None:
    assert complaints(module, source) == [f"{module} imports {refused}"]


def test_a_new_file_of_the_core_needs_a_place_in_the_order() -> None:
    assert complaints("mmrl.helpers", "") == ["mmrl.helpers has no place in the order of test_layers.py"]


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("mmrl.training.trainer", "import torch\nfrom mmrl import engine, labs\nfrom mmrl.core.data import Rollout"),
        ("mmrl.reporting.page", "from mmrl.reporting.formatting import count\nfrom .charts import line_chart"),
        (
            "mmrl.modalities.sd3",
            "from mmrl.core.weights import Weights\nfrom mmrl.modalities.flow.policy import FlowPolicy",
        ),
        ("mmrl.rewards.images.shapes", "from mmrl.labs.shapes.world import verify\nfrom ._clip import Clip"),
        ("mmrl.labs.clips.world", "def load():\n    from mmrl.media.video import StoredClip"),
    ],
)
def test_an_import_from_above_or_from_the_own_folder_is_allowed(module: str, source: str) -> None:
    assert complaints(module, source) == []


def at_import_time(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """The import statements that run when a module is imported: not those in functions or for type checkers only."""
    for node in body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield node
        elif not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
                continue
            for part in ("body", "orelse", "finalbody"):
                yield from at_import_time(getattr(node, part, []))
            for handler in getattr(node, "handlers", []):
                yield from at_import_time(handler.body)


def loads(module: str, files: dict[str, Path]) -> dict[str, str]:
    """Everything that importing `module` imports, through all files of mmrl: its name and who asks for it."""
    asked: dict[str, str] = {}
    pending = [module, "mmrl.__init__"]
    while pending:
        name = pending.pop()
        if name not in files:
            continue
        body = ast.parse(files[name].read_text("utf-8")).body
        for target in {target for node in at_import_time(body) for target in imported(node, name)}:
            if target not in asked:
                asked[target] = name
                pending.append(target)
    return asked


def test_the_command_line_starts_without_heavy_libraries() -> None:
    asked = loads("mmrl.cli", module_files())
    assert "typer" in asked, "the walk must see the imports of mmrl/cli.py"
    heavy = [f"{by} imports {name}" for name, by in asked.items() if name.split(".")[0] in HEAVY]
    assert not heavy, "\n".join(heavy)


def test_a_heavy_import_behind_another_file_is_seen(tmp_path: Path) -> None:
    files = {"mmrl.cli": tmp_path / "cli.py", "mmrl.commands.train": tmp_path / "run.py"}
    files["mmrl.cli"].write_text("try:\n    from mmrl import run\nexcept ImportError:\n    pass\n")
    files["mmrl.commands.train"].write_text("import torch.nn\n\ndef late() -> None:\n    import diffusers\n")
    assert loads("mmrl.cli", files) == {"mmrl.commands.train": "mmrl.cli", "torch.nn": "mmrl.commands.train"}
