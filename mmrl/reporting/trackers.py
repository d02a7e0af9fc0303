"""Trackers by name: tensorboard, wandb, trackio. Construction checks settings; `open` imports their package."""

import importlib
import re
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Protocol

from pydantic import BaseModel, PrivateAttr, ValidationError

from mmrl.core.plugins import explain
from mmrl.system.errors import ConfigError
from mmrl.system.spelling import did_you_mean


class Tracker(Protocol):
    """A tool that shows the metrics of a run. Iterations count from 1; 0 is before training."""

    def open(self, folder: Path, config: Mapping[str, Any], kept: int) -> None:
        """Starts the run of the directory `folder`, or goes on with it after iteration `kept` (-1: none is kept).

        Raises ConfigError where the package is missing, or refuses the run.
        """
        ...

    def log(self, iteration: int, metrics: Mapping[str, float]) -> None: ...
    def images(self, iteration: int, name: str, paths: Sequence[Path]) -> None: ...
    def close(self) -> None: ...


class TensorBoard(BaseModel, extra="forbid"):
    """A tracker that writes event files into `<run>/tensorboard`; a resumed run hides numbers after its checkpoint."""

    flush_seconds: int = 30  # between writes to the event files in `<run>/tensorboard`
    _writer: Any = PrivateAttr()

    def open(self, folder: Path, config: Mapping[str, Any], kept: int) -> None:
        package = _import("torch.utils.tensorboard", "tensorboard")
        self._writer = package.SummaryWriter(
            str(folder / "tensorboard"), purge_step=kept + 1, flush_secs=self.flush_seconds
        )

    def log(self, iteration: int, metrics: Mapping[str, float]) -> None:
        for name, value in metrics.items():
            self._writer.add_scalar(name, value, iteration)

    def images(self, iteration: int, name: str, paths: Sequence[Path]) -> None:
        import numpy as np
        from PIL import Image

        for number, path in enumerate(paths):
            with Image.open(path) as image:
                pixels = np.asarray(image.convert("RGB"))  # [H, W, 3]
            self._writer.add_image(f"{name}/{number}", pixels, iteration, dataformats="HWC")

    def close(self) -> None:
        self._writer.close()


class WandB(BaseModel, extra="forbid"):
    """A run of Weights & Biases, plotted over `iteration`: its own step may not go back after a resume."""

    project: str = "mmrl"  # where runs are listed together
    entity: str | None = None  # user or team; None: your default
    run: str | None = None  # shown name; None: the run directory's
    mode: Literal["online", "offline", "disabled"] = "online"  # offline runs are uploaded with `wandb sync`
    _wandb: Any = PrivateAttr()
    _run: Any = PrivateAttr()

    def open(self, folder: Path, config: Mapping[str, Any], kept: int) -> None:
        self._wandb = _import("wandb", "wandb")
        name = self.run or folder.resolve().name
        try:
            self._run = self._wandb.init(
                project=self.project,
                entity=self.entity,
                name=name,
                id=_identity(folder, name),
                resume="allow",
                dir=str(folder),
                config=dict(config),
                allow_val_change=True,  # a resumed run may have more iterations
                mode=self.mode,
            )
        except self._wandb.Error as error:
            raise ConfigError(
                f"wandb refused the run: {error}; run `wandb login`, or set the tracker's mode to offline"
            ) from error
        self._run.define_metric("iteration")
        self._run.define_metric("*", step_metric="iteration")

    def log(self, iteration: int, metrics: Mapping[str, float]) -> None:
        self._run.log({"iteration": iteration, **metrics})

    def images(self, iteration: int, name: str, paths: Sequence[Path]) -> None:
        pictures = [self._wandb.Image(str(path), caption=path.stem) for path in paths]
        self._run.log({"iteration": iteration, name: pictures})

    def close(self) -> None:
        self._run.finish()


class Trackio(BaseModel, extra="forbid"):
    """A run of trackio, on this machine or in a Space. Trackio knows a run by its name, so the name has a
    unique end.
    """

    project: str = "mmrl"  # where runs are listed together
    run: str | None = None  # how the run's name begins; None: with the run directory's
    space_id: str | None = None  # a Space on the hub; None: this machine
    _trackio: Any = PrivateAttr()
    _run: Any = PrivateAttr()

    def open(self, folder: Path, config: Mapping[str, Any], kept: int) -> None:
        self._trackio = _import("trackio", "trackio")
        name = _identity(folder, self.run or folder.resolve().name)
        self._run = self._trackio.init(
            project=self.project, name=name, space_id=self.space_id, config=dict(config), resume="allow"
        )

    def log(self, iteration: int, metrics: Mapping[str, float]) -> None:
        self._run.log(dict(metrics), step=iteration)

    def images(self, iteration: int, name: str, paths: Sequence[Path]) -> None:
        pictures = [self._trackio.Image(str(path), caption=path.stem) for path in paths]
        self._run.log({f"{name}/{number}": picture for number, picture in enumerate(pictures)}, step=iteration)

    def close(self) -> None:
        self._run.finish()


TRACKERS: Mapping[str, type[TensorBoard] | type[WandB] | type[Trackio]] = {
    "tensorboard": TensorBoard,
    "wandb": WandB,
    "trackio": Trackio,
}


def build(settings: str | Mapping[str, Any]) -> Tracker:
    """Returns the tracker that the settings name: `tensorboard`, or `{"name": "wandb", "project": ...}`.

    Raises ConfigError for an unknown name or setting, or a wrong type; imports no tracker's package.
    """
    section: dict[str, Any] = {"name": settings} if isinstance(settings, str) else dict(settings)
    name = str(section.pop("name", ""))
    if name not in TRACKERS:
        raise ConfigError(f"unknown tracker {name!r}{did_you_mean(name, TRACKERS)}")
    try:
        return TRACKERS[name].model_validate(section)
    except ValidationError as error:
        raise ConfigError(explain(error, f"trackers.{name}", TRACKERS[name])) from error


def _import(package: str, extra: str) -> Any:
    try:
        return importlib.import_module(package)
    except ImportError as error:
        raise ConfigError(f"tracker {extra!r} cannot start ({error}); pip install 'mmrl[{extra}]'") from error


def _identity(folder: Path, name: str) -> str:
    """Returns a unique name that stays in the run directory, by which a resumed run continues in the tracker."""
    file = folder / "tracking_id"
    if not file.exists():
        plain = re.sub(r"[^A-Za-z0-9_.-]", "-", name)[:48]  # wandb forbids / \ # ? % : and long ids
        file.write_text(f"{plain}-{secrets.token_hex(4)}\n", encoding="utf-8")
    return file.read_text(encoding="utf-8").strip()
