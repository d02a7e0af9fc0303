"""Who may import whom: from folder to folder downwards only, links resolved; and nothing heavy for light commands."""

import ast
import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

from tests.parameters import in_one_test

HEAVY = {"torch", "torchvision", "diffusers", "transformers", "peft", "accelerate", "open_clip", "matplotlib", "scipy"}
HEAVY |= {"datasets", "pyarrow", "pandas"}
ROOT = Path(__file__).parents[1]


def _script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("floor_plan", ROOT / "scripts" / "floor_plan.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["floor_plan"] = module
    spec.loader.exec_module(module)
    return module


plan = _script()
FILES: dict[str, Path] = plan.module_files()


def test_the_walk_sees_every_kind_of_folder_and_no_file_twice() -> None:
    one_of_each = {"mmrl.core.numerics", "mmrl.samplers.base.kernels", "mmrl.losses.grpo", "mmrl.labs.shapes.world"}
    assert {*one_of_each, "mmrl.rewards.boxes.box_iou", "mmrl"} <= set(FILES)
    assert len({path.resolve() for path in FILES.values()}) == len(FILES)


def test_every_file_imports_only_what_its_layer_may() -> None:
    problems = [line for name, file in FILES.items() for line in plan.complaints(name, file.read_text("utf-8"), FILES)]
    assert not problems, "\n".join(problems)


def test_nothing_imports_in_a_circle() -> None:
    for of_folders in (True, False):
        assert plan.circles(FILES, of_folders=of_folders) == []


def test_a_circle_is_seen_also_through_relative_imports_and_those_in_functions(tmp_path: Path) -> None:
    sources = {
        "mmrl.samplers.one": "from .base.two import x",
        "mmrl.samplers.base.two": "def late() -> None:\n    from ..one import y",
        "mmrl.samplers.three": "from .one import y",
    }
    files = {}
    for name, source in sources.items():
        files[name] = tmp_path / f"{name}.py"
        files[name].write_text(source)
    assert plan.circles(files, of_folders=True) == [["samplers", "samplers.base"]]
    assert plan.circles(files, of_folders=False) == [["mmrl.samplers.base.two", "mmrl.samplers.one"]]


def test_the_floor_plan_stays_small() -> None:
    assert len(list((ROOT / "mmrl").glob("*.py"))) <= 8
    assert len(plan.LAYERS) <= 12
    folders = {plan.folder_of(module, FILES) for module in FILES}
    assert len([folder for folder in folders if plan.holds_code(folder, FILES)]) <= 56
    assert {folder for layer in plan.LAYERS for folder in layer} == folders, "folders without a place, or without files"


@in_one_test(
    ("module", "source", "refused"),
    [
        ("mmrl.core.numerics", "from mmrl.training.trainer import Trainer", "mmrl.training.trainer"),
        ("mmrl.core.data", "def late():\n    import mmrl.training.trainer", "mmrl.training.trainer"),
        ("mmrl.media.video", "from ..core.contracts import Loss", "mmrl.core.contracts"),
        ("mmrl.training.trainer", "from mmrl.losses import grpo", "mmrl.losses.grpo"),
        ("mmrl.training.trainer", "from mmrl import rewards", "mmrl.rewards"),
        ("mmrl.core.keys", "import mmrl", "mmrl"),
        ("mmrl.reporting.page", "from mmrl.training.trainer import Trainer", "mmrl.training.trainer"),
        ("mmrl.losses.grpo", "from mmrl.scoring.scorer import Scorer", "mmrl.scoring.scorer"),
        ("mmrl.losses.grpo", "from ..advantages.rloo import Rloo", "mmrl.advantages.rloo"),
        ("mmrl.losses.base.ratio", "from ..grpo import Grpo", "mmrl.losses.grpo"),
        ("mmrl.rewards.images.shapes", "from mmrl.assembly import build", "mmrl.assembly.build"),
        ("mmrl.rewards.images.shapes", "from ..text.rouge import Rouge", "mmrl.rewards.text.rouge"),
        ("mmrl.samplers.ode", "from ..modalities.flow.policy import FlowPolicy", "mmrl.modalities.flow.policy"),
        ("mmrl.labs.shapes.world", "from mmrl.core.numerics import masked_mean", "mmrl.core.numerics"),
    ],
)
def test_an_import_across_layers_is_refused(module: str, source: str, refused: str) -> None:
    assert plan.complaints(module, source, FILES) == [f"{module} imports {refused}"]


def test_a_new_folder_needs_a_place_in_the_order() -> None:
    (line,) = plan.complaints("mmrl.helpers.more", "", FILES)
    assert line == "mmrl.helpers.more: the folder helpers has no place in LAYERS of scripts/floor_plan.py"


@in_one_test(
    ("module", "source"),
    [
        (
            "mmrl.training.trainer",
            "import torch\nfrom mmrl.reporting import tracking\nfrom mmrl.core.data import Rollout",
        ),
        ("mmrl.reporting.page", "from mmrl.reporting.formatting import count\nfrom .charts import line_chart"),
        ("mmrl.modalities.sd3", "from mmrl.core.weights import Weights\nfrom .flow.policy import FlowPolicy"),
        (
            "mmrl.rewards.images.shapes",
            "from mmrl.labs.shapes.world import verify\nfrom ..base.networks.clip import Clip",
        ),
        ("mmrl.labs.clips.world", "def load():\n    from mmrl.media.video import StoredClip"),
    ],
)
def test_an_import_from_below_or_from_the_own_folder_is_allowed(module: str, source: str) -> None:
    assert plan.complaints(module, source, FILES) == []


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
    pending = [module, "mmrl"]
    while pending:
        name = pending.pop()
        if name not in files:
            continue
        body = ast.parse(files[name].read_text("utf-8")).body
        is_package = files[name].name == "__init__.py"
        for target in {one for node in at_import_time(body) for one in plan.imported(node, name, is_package, files)}:
            if target not in asked:
                asked[target] = name
                pending.append(target)
    return asked


def test_the_command_line_starts_without_heavy_libraries() -> None:
    asked = loads("mmrl.cli", FILES)
    assert "typer" in asked, "the walk must see the imports of mmrl/cli.py"
    heavy = [f"{by} imports {name}" for name, by in asked.items() if name.split(".")[0] in HEAVY]
    assert not heavy, "\n".join(heavy)


def test_a_heavy_import_behind_another_file_is_seen(tmp_path: Path) -> None:
    files = {"mmrl.cli": tmp_path / "cli.py", "mmrl.commands.train": tmp_path / "run.py"}
    files["mmrl.cli"].write_text("try:\n    from mmrl.commands import train\nexcept ImportError:\n    pass\n")
    files["mmrl.commands.train"].write_text("import torch.nn\n\ndef late() -> None:\n    import diffusers\n")
    assert loads("mmrl.cli", files) == {"mmrl.commands.train": "mmrl.cli", "torch.nn": "mmrl.commands.train"}
