"""The list of planted faults fits the code, and its judge can tell a caught fault from one that survives."""

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[1]
SUM = "def total(values: list[int]) -> int:\n    return sum(values) + 0\n"
PROFILE = "from hypothesis import settings\n\nsettings.register_profile('thorough', max_examples=50)\n"
TEST = "from totals import total\n\ndef test_total() -> None:\n    assert total([1, 2]) == 3\n"


@pytest.fixture(scope="module")
def mutants() -> Iterator[ModuleType]:
    """scripts/mutants.py, which is no part of the package."""
    spec = importlib.util.spec_from_file_location("mutants", ROOT / "scripts" / "mutants.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["mutants"] = module  # where its dataclass looks for its own module
    spec.loader.exec_module(module)
    yield module
    del sys.modules["mutants"]


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A repository of one function and one test."""
    (tmp_path / "totals.py").write_text(SUM)
    (tmp_path / "test_totals.py").write_text(TEST)
    (tmp_path / "conftest.py").write_text(PROFILE)
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers =\n    slow\n    exhaustive\n    gpu\n")
    return tmp_path


def test_every_text_stands_in_its_file_once_and_its_tests_exist(mutants: ModuleType) -> None:
    faults = mutants.read_faults(ROOT / "scripts")
    assert len(faults) >= 20
    assert [fault.what for fault in faults if (ROOT / fault.file).read_text("utf-8").count(fault.old) != 1] == []
    assert [test for fault in faults for test in fault.tests if not (ROOT / test).is_file()] == []
    assert len({fault.what for fault in faults}) == len(faults)


@pytest.mark.slow  # pytest starts three times
def test_a_caught_fault_is_told_from_one_that_survives(mutants: ModuleType, copy: Path) -> None:
    caught = mutants.Fault("one too many", "totals.py", "+ 0", "+ 1", ("test_totals.py",))
    survives = mutants.Fault("the same in other words", "totals.py", "+ 0", "- 0", ("test_totals.py",))
    assert mutants.judge(caught, copy) == "test_total"
    assert mutants.judge(survives, copy) is None
    assert (copy / "totals.py").read_text() == SUM


@pytest.mark.slow  # pytest starts six times
def test_slow_tests_are_asked_where_no_fast_one_fails(mutants: ModuleType, copy: Path) -> None:
    slow = "import pytest\nfrom totals import total\n\n@pytest.mark.slow\ndef test_of_none():\n    assert total([]) == "
    fault = mutants.Fault("one for nothing", "totals.py", "+ 0", "+ (not values)", ("test_totals.py", "test_slow.py"))
    (copy / "test_slow.py").write_text(f"{slow}0\n")
    assert mutants.judge(fault, copy) == "test_of_none"
    (copy / "test_slow.py").write_text(f"{slow}2\n")
    with pytest.raises(ValueError, match="test_of_none fails without any fault"):
        mutants.judge(fault, copy)


@pytest.mark.slow  # most of a second each, or more
@pytest.mark.parametrize(
    ("old", "new", "message"),
    [("+ 7", "", r"totals.py holds 0 times '\+ 7'"), ("+ 0", "+", r"pytest did not run test_totals.py")],
    ids=["a text that is gone", "a module that cannot be imported"],
)
def test_a_fault_that_proves_nothing_is_an_error(
    mutants: ModuleType, copy: Path, old: str, new: str, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        mutants.judge(mutants.Fault("", "totals.py", old, new, ("test_totals.py",)), copy)
