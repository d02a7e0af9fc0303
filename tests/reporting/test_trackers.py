import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from PIL import Image

from mmrl.core.contracts import ConfigError
from mmrl.reporting import trackers
from mmrl.reporting.trackers import TensorBoard, Trackio, WandB, build
from tests.parameters import in_one_test


@pytest.fixture
def pictures(tmp_path: Path) -> list[Path]:
    """A red 3 x 2 picture and a blue 2 x 2 picture."""
    paths = [tmp_path / "a cat.png", tmp_path / "a dog.png"]
    Image.new("RGB", (3, 2), (255, 0, 0)).save(paths[0])
    Image.new("RGB", (2, 2), (0, 0, 255)).save(paths[1])
    return paths


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = tmp_path / "cats & dogs"
    folder.mkdir()
    return folder


@pytest.fixture
def wandb(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A module with the calls of wandb 0.22 that are used here, which remembers what it was given."""
    module: Any = ModuleType("wandb")
    module.calls = []

    class Error(Exception):
        pass

    class Run:
        def define_metric(self, name: str, step_metric: str | None = None) -> None:
            module.calls.append(("define_metric", name, step_metric))

        def log(self, data: dict[str, Any], step: int | None = None, commit: bool | None = None) -> None:
            module.calls.append(("log", data, step))

        def finish(self, exit_code: int | None = None) -> None:
            module.calls.append(("finish",))

    def init(
        entity: str | None = None,
        project: str | None = None,
        dir: str | None = None,
        id: str | None = None,
        name: str | None = None,
        config: dict[str, Any] | None = None,
        allow_val_change: bool | None = None,
        mode: str | None = None,
        resume: bool | str | None = None,
    ) -> Run:
        if mode == "online" and entity == "stranger":
            raise Error("permission denied")
        module.calls.append(("init", entity, project, dir, id, name, config, allow_val_change, mode, resume))
        return Run()

    def picture(data_or_path: Any, mode: str | None = None, caption: str | None = None) -> SimpleNamespace:
        return SimpleNamespace(path=data_or_path, caption=caption)

    module.Error, module.init, module.Image = Error, init, picture
    monkeypatch.setitem(sys.modules, "wandb", module)
    return module


@pytest.fixture
def trackio(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A module with the calls of trackio that are used here, which remembers what it was given."""
    module: Any = ModuleType("trackio")
    module.calls = []

    class Run:
        def log(self, metrics: dict[str, Any], step: int | None = None) -> None:
            module.calls.append(("log", metrics, step))

        def finish(self) -> None:
            module.calls.append(("finish",))

    def init(
        project: str,
        name: str | None = None,
        group: str | None = None,
        space_id: str | None = None,
        config: dict[str, Any] | None = None,
        resume: str = "never",
    ) -> Run:
        module.calls.append(("init", project, name, space_id, config, resume))
        return Run()

    def picture(value: Any, caption: str | None = None) -> SimpleNamespace:
        return SimpleNamespace(path=value, caption=caption)

    module.init, module.Image = init, picture
    monkeypatch.setitem(sys.modules, "trackio", module)
    return module


def events(run: Path) -> Any:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    return EventAccumulator(str(run / "tensorboard"), purge_orphaned_data=True).Reload()


def scalars(run: Path, name: str) -> list[tuple[int, float]]:
    return [(event.step, event.value) for event in events(run).Scalars(name)]


@pytest.mark.slow
def test_tensorboard_holds_every_number_at_its_iteration(run: Path) -> None:
    tracker = build("tensorboard")
    tracker.open(run, {}, -1)
    tracker.log(0, {"held_out/score": 0.25})
    tracker.log(1, {"reward/mean": 0.5, "held_out/score": 0.75})
    tracker.close()
    assert scalars(run, "reward/mean") == [(1, 0.5)]
    assert scalars(run, "held_out/score") == [(0, 0.25), (1, 0.75)]


@pytest.mark.slow
def test_tensorboard_hides_what_came_after_the_checkpoint(run: Path) -> None:
    for kept, values in ((-1, {1: 1.0, 2: 2.0, 3: 3.0}), (1, {2: 2.5})):
        tracker = build("tensorboard")
        tracker.open(run, {}, kept)
        for iteration, value in values.items():
            tracker.log(iteration, {"loss": value})
        tracker.close()
    assert scalars(run, "loss") == [(1, 1.0), (2, 2.5)]


@pytest.mark.slow
def test_tensorboard_shows_pictures_unchanged(run: Path, pictures: list[Path]) -> None:
    tracker = build({"name": "tensorboard", "flush_seconds": 5})
    tracker.open(run, {}, -1)
    tracker.images(4, "samples", pictures)
    tracker.close()
    found = events(run)
    for number, path in enumerate(pictures):
        (event,) = found.Images(f"samples/{number}")
        shown = run / "shown.png"
        shown.write_bytes(event.encoded_image_string)
        assert event.step == 4
        with Image.open(shown) as got, Image.open(path) as wanted:
            assert np.array_equal(np.asarray(got), np.asarray(wanted))


def test_wandb_plots_over_iterations_and_finds_its_run_again(run: Path, pictures: list[Path], wandb: Any) -> None:
    for kept in (-1, 1):
        tracker = build({"name": "wandb", "project": "animals", "mode": "offline"})
        tracker.open(run, {"seed": 1}, kept)
        tracker.log(2, {"loss": 0.5})
        tracker.images(2, "samples", pictures)
        tracker.close()

    first, second = wandb.calls[:6], wandb.calls[6:]
    assert [call[0] for call in first] == ["init", "define_metric", "define_metric", "log", "log", "finish"]
    identity = first[0][4]
    assert first[0] == (
        *("init", None, "animals", str(run), identity, "cats & dogs"),
        *({"seed": 1}, True, "offline", "allow"),
    )
    assert second[0] == first[0]
    assert identity.startswith("cats---dogs-") and not set(identity) & set("/\\#?%:")
    assert first[1:3] == [("define_metric", "iteration", None), ("define_metric", "*", "iteration")]
    assert first[3] == ("log", {"iteration": 2, "loss": 0.5}, None)  # no step: wandb drops steps that go back
    shown = first[4][1]["samples"]
    assert [(picture.path, picture.caption) for picture in shown] == [(str(p), p.stem) for p in pictures]


def test_trackio_finds_its_run_again_by_name(run: Path, pictures: list[Path], trackio: Any) -> None:
    for kept in (-1, 1):
        tracker = build({"name": "trackio", "space_id": "me/space", "run": "mine"})
        tracker.open(run, {"seed": 1}, kept)
        tracker.log(2, {"loss": 0.5})
        tracker.images(2, "samples", pictures)
        tracker.close()

    first, second = trackio.calls[:4], trackio.calls[4:]
    name = first[0][2]
    assert first[0] == ("init", "mmrl", name, "me/space", {"seed": 1}, "allow") == second[0]
    assert name.startswith("mine-")
    assert first[1] == ("log", {"loss": 0.5}, 2)
    _, shown, step = first[2]
    assert step == 2 and list(shown) == ["samples/0", "samples/1"]
    assert shown["samples/1"].path == str(pictures[1]) and shown["samples/1"].caption == "a dog"
    assert first[3] == ("finish",)


def test_two_runs_of_one_name_are_two_runs(tmp_path: Path, trackio: Any) -> None:
    for parent in ("mine", "yours"):
        folder = tmp_path / parent / "run"
        folder.mkdir(parents=True)
        build("trackio").open(folder, {}, -1)
    assert trackio.calls[0][2] != trackio.calls[1][2]


def test_a_run_that_wandb_refuses_is_the_users_error(run: Path, wandb: Any) -> None:
    with pytest.raises(ConfigError, match="permission denied; run `wandb login`, or set the tracker's mode to offline"):
        build({"name": "wandb", "entity": "stranger"}).open(run, {}, -1)


@pytest.mark.parametrize(
    "name, package", [("wandb", "wandb"), ("trackio", "trackio"), ("tensorboard", "torch.utils.tensorboard")]
)
def test_a_missing_package_names_the_extra(run: Path, monkeypatch: pytest.MonkeyPatch, name: str, package: str) -> None:
    tracker = build(name)  # settings are checked without the package
    monkeypatch.setitem(sys.modules, package, cast(Any, None))  # importing it now fails
    with pytest.raises(ConfigError, match=rf"tracker '{name}' cannot start .* pip install 'mmrl\[{name}\]'"):
        tracker.open(run, {}, -1)


@in_one_test(
    "settings, message",
    [
        ("tensorbord", r"unknown tracker 'tensorbord' \(did you mean 'tensorboard'\?\)"),
        ({"project": "x"}, "unknown tracker ''; known are tensorboard, wandb, trackio"),
        ({"name": "wandb", "projekt": "x"}, r"trackers.wandb has no field 'projekt' \(did you mean 'project'\?\)"),
        ({"name": "trackio", "spce_id": "x"}, r"trackers.trackio has no field 'spce_id' \(did you mean 'space_id'\?\)"),
        ({"name": "tensorboard", "a": 1}, "trackers.tensorboard has no field 'a'; its fields are flush_seconds"),
        ({"name": "wandb", "mode": "sometimes"}, r"trackers.wandb.mode.*'online', 'offline'.* got 'sometimes'"),
        ({"name": "tensorboard", "flush_seconds": "soon"}, r"trackers.tensorboard.flush_seconds.* got 'soon'"),
        ({"name": "trackio", "project": 3}, r"trackers.trackio.project.* got 3"),
    ],
)
def test_wrong_settings_are_errors_with_the_nearest_right_name(settings: str | Mapping[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build(settings)


def test_every_tracker_is_built_by_its_name() -> None:
    built = {name: type(build(name)) for name in trackers.TRACKERS}
    assert built == {"tensorboard": TensorBoard, "wandb": WandB, "trackio": Trackio}
