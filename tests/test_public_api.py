"""The public API changes on purpose only: names and signatures are those of tests/public_api.txt."""

import ast
import importlib
from difflib import unified_diff
from pathlib import Path

import public_api
import pytest

HOW = "if the change is meant: `python scripts/public_api.py --accept`, and a line in CHANGELOG.md for users"


def test_names_and_signatures_are_those_of_the_snapshot() -> None:
    before, now = (text.splitlines() for text in (public_api.SNAPSHOT.read_text("utf-8"), public_api.snapshot()))
    changes = [line for line in unified_diff(before, now, "accepted", "now", lineterm="", n=0) if line[0] in "+-"]
    assert not changes, "\n".join(["the public API has changed:", *changes[2:], HOW])


def test_the_page_is_what_the_script_writes() -> None:
    text = public_api.FILE.read_text(encoding="utf-8")
    assert text == public_api.reference(), "run: python scripts/public_api.py"


@pytest.mark.slow
def test_every_public_name_can_be_imported_and_says_what_it_is() -> None:
    for modules in public_api.modules().values():
        for module, names in modules.items():
            for name in names:
                if not name.is_member:
                    assert hasattr(importlib.import_module(module), name.path.removeprefix(f"{module}.")), name.path
                    assert name.summary, f"{name.path} has no docstring"


def test_every_name_that_mmrl_exports_is_public() -> None:
    import mmrl

    listed = {line.partition(":")[0].rpartition(".")[2] for line in public_api.snapshot().splitlines()}
    assert set(mmrl.__all__) <= listed


SOURCE = '''
class Base(Protocol, extra=1):
    """Is a base. It has more."""

    size: int = 3  # a setting
    _hidden: int

    @property
    @abstractmethod
    def weight(self) -> float: ...

    def __call__(self, scores: Scores, *, paths: Paths | None = None) -> Tensor:
        """Returns e.g. [B].

        More.
        """

    def _private(self) -> None: ...


def load(path: str) -> Base:
    """Reads it."""


def _hidden() -> None: ...
'''


@pytest.fixture
def invented(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file `part.py` as the only public module."""
    monkeypatch.setattr(public_api, "ROOT", tmp_path)
    monkeypatch.setattr(public_api, "PUBLIC", {"Parts": ("part",)})
    (tmp_path / "part.py").write_text(SOURCE, encoding="utf-8")
    return tmp_path / "part.py"


def test_the_snapshot_holds_public_names_with_fields_and_abstract_methods(invented: Path) -> None:
    assert public_api.snapshot().splitlines() == [
        "part.Base: class Base(Protocol, 1)",
        "part.Base.size: size: int = 3",
        "part.Base.weight: abstract property def weight(self) -> float",
        "part.Base.__call__: def __call__(self, scores: Scores, *, paths: Paths | None=None) -> Tensor",
        "part.load: def load(path: str) -> Base",
    ]


def test_the_page_holds_the_first_sentences(invented: Path) -> None:
    text = public_api.reference()
    assert "- `class Base(Protocol, 1)`: Is a base.\n" in text
    assert "Returns e.g. [B].\n" in text and "More" not in text


@pytest.mark.parametrize(
    ("place", "message"),
    [("gone", "names gone, which is no module"), ("part:Gone", "part:Gone holds no public class or function")],
)
def test_a_public_place_that_is_gone_is_named(
    place: str, message: str, invented: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(public_api, "PUBLIC", {"Parts": (place,)})
    with pytest.raises(ValueError, match=message):
        public_api.snapshot()


def test_every_base_class_that_two_shipped_plug_ins_share_is_public() -> None:
    """Of losses, samplers and advantages: what their own folders `base` hold."""
    public = {place for places in public_api.PUBLIC.values() for place in places}
    missing = set()
    for kind in ("losses", "samplers", "advantages"):
        folder = Path(public_api.__file__).parents[1] / "mmrl" / kind
        inherited: dict[str, int] = {}
        for file in folder.glob("*.py"):
            tree = ast.parse(file.read_text(encoding="utf-8"))
            bases = {ast.unparse(base) for node in tree.body if isinstance(node, ast.ClassDef) for base in node.bases}
            for node in tree.body:
                if isinstance(node, ast.ImportFrom) and node.module and bases & {name.name for name in node.names}:
                    module = f"mmrl.{kind}.{node.module.removeprefix('mmrl.').removeprefix(f'{kind}.')}"
                    inherited[module] = inherited.get(module, 0) + 1
        missing |= {module for module, count in inherited.items() if count > 1 and ".base." in module} - public
    assert not missing
