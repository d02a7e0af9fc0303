"""The notebooks of the guide run, and what is committed of them is whole and says nothing of the machine."""

import os
import subprocess
import sys
from copy import deepcopy
from pathlib import Path
from typing import Any

import nbformat
import notebooks
import pytest
from nbformat import NotebookNode

from tests.parameters import in_one_test

ROOT = Path(__file__).parents[1]


def committed(name: str) -> NotebookNode:
    notebook: NotebookNode = nbformat.read(notebooks.FOLDER / f"{name}.ipynb", as_version=4)
    return notebook


def test_every_notebook_is_known() -> None:
    assert {path.stem for path in notebooks.FOLDER.glob("*.ipynb")} == set(notebooks.NAMES)


@pytest.mark.parametrize("name", notebooks.NAMES)
def test_the_committed_outputs_can_be_shown(name: str) -> None:
    notebook = committed(name)
    assert notebooks.problems(notebook) == []
    text = (notebooks.FOLDER / f"{name}.ipynb").read_text(encoding="utf-8")
    assert text == nbformat.writes(notebook) + "\n", "the same cells are the same bytes, so that changes are small"


@pytest.mark.parametrize("name", notebooks.NAMES)
def test_the_settings_can_be_made_small(name: str) -> None:
    (cell,) = [cell for cell in notebooks.small(committed(name))["cells"] if cell["metadata"].get("tags")]
    scope: dict[str, Any] = {}
    lines = [line for line in cell["source"].splitlines() if not line.startswith("shutil.rmtree")]
    exec(compile("\n".join(lines), name, "exec"), scope)
    assert scope["ITERATIONS"] == scope["OWN_ITERATIONS"] == 2 and "prompts_per_iteration=2" in scope["SMALLER"]


@in_one_test(
    ("output", "complaint"),
    [
        ({"output_type": "stream", "name": "stdout", "text": "/home/ada/runs/first\n"}, "a path of this machine"),
        ({"output_type": "stream", "name": "stdout", "text": "done in 12.5 s\n"}, "a time"),
        ({"output_type": "stream", "name": "stderr", "text": "a warning\n"}, "not as scripts/notebooks.py writes it"),
        (
            {"output_type": "display_data", "data": {"text/html": notebooks.RICH + ">2/2</pre>"}, "metadata": {}},
            "not as scripts/notebooks.py writes it",
        ),
        ({"output_type": "error", "ename": "ValueError", "evalue": "no", "traceback": []}, "ended with ValueError: no"),
        (
            {"output_type": "display_data", "data": {"text/plain": "<A at 0x7f00aa11bb22>"}, "metadata": {}},
            "the address of an object",
        ),
    ],
)
def test_what_must_not_be_committed_is_seen(output: dict[str, Any], complaint: str) -> None:
    notebook = deepcopy(committed("images"))
    cell = next(cell for cell in notebook["cells"] if cell["cell_type"] == "code")
    cell["outputs"].append(nbformat.from_dict(output))
    assert any(complaint in problem for problem in notebooks.problems(notebook))


def test_a_notebook_without_pictures_or_with_other_metadata_is_seen() -> None:
    notebook = deepcopy(committed("images"))
    notebook["metadata"] = {**notebook["metadata"], "language_info": {"name": "python", "version": "3.11.7"}}
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            cell["outputs"] = []
    text = "; ".join(notebooks.problems(notebook))
    assert "metadata" in text and "no cell has a picture" in text


@pytest.mark.slow  # four short runs in two kernels
@pytest.mark.parametrize("name", notebooks.NAMES)
def test_every_cell_runs(name: str, tmp_path: Path) -> None:
    script = ROOT / "scripts" / "notebooks.py"
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    done = subprocess.run(
        [sys.executable, str(script), name, "--small", "--out", str(tmp_path / "out")],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    executed = nbformat.read(tmp_path / "out" / f"{name}.ipynb", as_version=4)
    before = [cell["source"] for cell in notebooks.small(committed(name))["cells"]]
    assert [cell["source"] for cell in executed["cells"]] == before
    outputs = [output for cell in executed["cells"] for output in cell.get("outputs", ())]
    assert not [output for output in outputs if output["output_type"] == "error"]
    assert sum("image/png" in output.get("data", ()) for output in outputs) >= 4
