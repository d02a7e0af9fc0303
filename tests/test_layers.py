"""Who may import whom: from folder to folder downwards only, links resolved."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

from grimp import ImportGraph

from tests.parameters import in_one_test

ROOT = Path(__file__).parents[1]


def _script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("floor_plan", ROOT / "scripts" / "floor_plan.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["floor_plan"] = module
    spec.loader.exec_module(module)
    return module


plan = _script()
GRAPH = plan.imports()


def test_every_kind_of_folder_is_seen_and_imports_of_every_kind() -> None:
    one_of_each = {"mmrl.core.numerics", "mmrl.samplers.base.kernels", "mmrl.losses.grpo", "mmrl.labs.shapes.world"}
    assert {*one_of_each, "mmrl.rewards.boxes.box_iou", "mmrl"} <= GRAPH.modules
    assert GRAPH.direct_import_exists(importer="mmrl.cli", imported="mmrl.commands.train"), "one in a function"


def test_every_file_imports_only_what_its_layer_may() -> None:
    problems = plan.all_complaints(GRAPH)
    assert not problems, "\n".join(problems)


def test_nothing_imports_in_a_circle() -> None:
    for of_folders in (True, False):
        assert plan.circles(GRAPH, of_folders=of_folders) == []


def test_a_circle_is_seen() -> None:
    graph = ImportGraph()
    graph.add_import(importer="mmrl.samplers.one", imported="mmrl.samplers.base.two")
    graph.add_import(importer="mmrl.samplers.base.two", imported="mmrl.samplers.one")
    graph.add_import(importer="mmrl.samplers.three", imported="mmrl.samplers.one")
    assert plan.circles(graph, of_folders=True) == [["samplers", "samplers.base"]]
    assert plan.circles(graph, of_folders=False) == [["mmrl.samplers.base.two", "mmrl.samplers.one"]]


def test_the_floor_plan_stays_small() -> None:
    assert len(list((ROOT / "mmrl").glob("*.py"))) <= 8
    assert len(plan.LAYERS) <= 12
    assert len(plan.folders(GRAPH)) <= 57
    folders = {plan.folder_of(module, GRAPH) for module in GRAPH.modules}
    assert {folder for layer in plan.LAYERS for folder in layer} == folders, "folders without a place, or without files"


@in_one_test(
    ("module", "refused"),
    [
        ("mmrl.core.numerics", "mmrl.training.trainer"),
        ("mmrl.media.video", "mmrl.core.contracts"),
        ("mmrl.training.trainer", "mmrl.losses.grpo"),
        ("mmrl.training.trainer", "mmrl.rewards"),
        ("mmrl.core.keys", "mmrl"),
        ("mmrl.reporting.page", "mmrl.training.trainer"),
        ("mmrl.losses.grpo", "mmrl.scoring.scorer"),
        ("mmrl.losses.grpo", "mmrl.advantages.rloo"),
        ("mmrl.losses.base.ratio", "mmrl.losses.grpo"),
        ("mmrl.rewards.images.shapes", "mmrl.assembly.build"),
        ("mmrl.rewards.images.shapes", "mmrl.rewards.text.rouge"),
        ("mmrl.samplers.ode", "mmrl.modalities.flow.policy"),
        ("mmrl.labs.shapes.world", "mmrl.core.numerics"),
    ],
)
def test_an_import_across_layers_is_refused(module: str, refused: str) -> None:
    assert plan.complaints(module, {refused}, GRAPH) == [f"{module} imports {refused}"]


def test_a_new_folder_needs_a_place_in_the_order() -> None:
    (line,) = plan.complaints("mmrl.helpers.more", (), GRAPH)
    assert line == "mmrl.helpers.more: the folder helpers has no place in LAYERS of scripts/floor_plan.py"


@in_one_test(
    ("module", "targets"),
    [
        ("mmrl.training.trainer", {"mmrl.reporting.tracking", "mmrl.core.data"}),
        ("mmrl.reporting.page", {"mmrl.reporting.formatting", "mmrl.reporting.charts"}),
        ("mmrl.modalities.sd3", {"mmrl.core.weights", "mmrl.modalities.flow.policy"}),
        ("mmrl.rewards.images.shapes", {"mmrl.labs.shapes.world", "mmrl.rewards.base.networks.clip"}),
        ("mmrl.labs.clips.world", {"mmrl.media.video"}),
    ],
)
def test_an_import_from_below_or_from_the_own_folder_is_allowed(module: str, targets: set[str]) -> None:
    assert plan.complaints(module, targets, GRAPH) == []
