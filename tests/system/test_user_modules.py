"""A user's own modules: what their imports lack is named, and where it is now."""

import importlib
from pathlib import Path

import pytest

from mmrl.system.errors import ConfigError
from mmrl.system.user_modules import MOVED, own_module


def test_every_moved_module_exists_under_its_new_name() -> None:
    for module in MOVED.values():
        importlib.import_module(f"mmrl.{module}")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("from mmrl.contracts import Reward", "imports from mmrl.contracts; what it had is in mmrl.core.contracts now"),
        ("from mmrl.media import Picture", "imports from mmrl.media; what it had is in mmrl.media.pictures now"),
        ("from mmrl.losses._ratio import RatioLoss", "what it had is in mmrl.losses.base.ratio now"),
        ("from mmrl.rewards.box_iou import BoxIou", "stand in folders by what they judge, such as mmrl.rewards.boxes"),
        ("import rewards.nowhere", "'; a user's own modules are looked up in the working folder"),
        ("import nowhere_at_all", "cannot import 'nowhere_at_all'; a user's own modules are looked up in the working"),
        ("from mmrl.core.keys import GroupKeys", "failed: ImportError: cannot import name 'GroupKeys'"),
        ("1 / 0", "failed: ZeroDivisionError: division by zero"),
    ],
)
def test_an_import_that_fails_is_named(
    line: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"own_{abs(hash(line))}"
    (tmp_path / f"{name}.py").write_text(line + "\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError) as caught:
        own_module(name, f"reward '{name}:Mine'")
    assert str(caught.value).startswith(f"reward '{name}:Mine': ") and message in str(caught.value)
