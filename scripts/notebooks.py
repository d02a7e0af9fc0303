"""Executes the notebooks of docs/notebooks and writes their outputs into them: `python scripts/notebooks.py [--small]`.

Both together take about three minutes on two cores. They run in a temporary folder, so that no run stays behind.
`--small` makes iterations few and batches small, to see that the cells still work; it writes to `--out` only.
Outputs are made equal from machine to machine as far as they can be: progress on stderr and the version of Python are
left out. `problems` says what must not be committed; tests/test_notebooks.py asks it.
"""

import argparse
import base64
import io
import re
import sys
import tempfile
from collections.abc import Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any

import nbformat
from nbformat import NotebookNode
from PIL import Image

FOLDER = Path(__file__).parents[1] / "docs" / "notebooks"
NAMES = ("images", "clicks")
LARGEST = 600_000  # bytes of a notebook with its outputs
METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}
TELLING = {  # what a committed output must not hold: the pattern, and why
    r"(?<![\w.])/(home|root|Users|tmp|var|opt|work|mnt|usr)/": "a path of this machine",
    r"[A-Za-z]:\\": "a path of this machine",
    r"\b\d+(\.\d+)? ?(s|ms|seconds)\b": "a time, which differs from machine to machine",
    r"\bs/iteration|iterations?/s\b": "a speed, which differs from machine to machine",
    r"0x[0-9a-f]{6,}": "the address of an object",
}
RICH = '<pre style="white-space:pre;overflow-x:auto'  # how rich begins its lines in a notebook
SMALL = {  # the lines of the settings that `--small` replaces, for each notebook
    "ITERATIONS": "2",
    "OWN_ITERATIONS": "2",
    "SMALLER": '["prompts_per_iteration=2", "evaluation.num_prompts=7", "evaluation.samples_per_prompt=1"]',
}


def small(notebook: NotebookNode) -> NotebookNode:
    """Returns the notebook with the settings of `SMALL` in the cell that is tagged `settings`."""
    copy = deepcopy(notebook)
    (cell,) = [cell for cell in copy["cells"] if "settings" in cell["metadata"].get("tags", ())]
    source = cell.source
    for name, value in SMALL.items():
        source, count = re.subn(rf"^{name}(: [^=]+)? = [^#\n]*", f"{name} = {value}  ", source, flags=re.M)
        if count != 1:
            raise ValueError(f"the cell of settings must set {name} once, got {count} times")
    cell.source = source
    return copy


def execute(notebook: NotebookNode, folder: Path) -> NotebookNode:
    """Returns the notebook with the outputs of its cells, executed in `folder`; raises where a cell does."""
    from nbclient import NotebookClient

    resources = {"metadata": {"path": str(folder)}}
    return NotebookClient(deepcopy(notebook), timeout=1200, kernel_name="python3", resources=resources).execute()


def normalised(notebook: NotebookNode) -> NotebookNode:
    """Returns the notebook without what differs between two executions of the same cells."""
    copy, count = deepcopy(notebook), 0
    copy.metadata, copy.nbformat, copy.nbformat_minor = METADATA, 4, 5
    for number, cell in enumerate(copy.cells):
        cell.id = f"cell-{number:02d}"
        cell.metadata = {"tags": cell.metadata.tags} if cell.metadata.get("tags") else {}
        if cell.cell_type == "code":
            count += 1
            cell.execution_count, cell.outputs = count, [_kept(one, count) for one in cell.outputs if _is_result(one)]
    return copy


def _is_result(output: NotebookNode) -> bool:
    """Returns whether an output is none of progress: stderr, and what rich shows in a notebook."""
    return output.get("name") != "stderr" and not output.get("data", {}).get("text/html", "").startswith(RICH)


def _kept(output: NotebookNode, count: int) -> NotebookNode:
    if "data" in output:
        output.data, output.metadata = _smaller(output.data), {}
    if "execution_count" in output:
        output.execution_count = count
    return output


def _smaller(data: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the data of an output, its picture with a palette of 256 colours."""
    smaller = dict(data)
    if "image/png" in data:
        buffer = io.BytesIO()
        with Image.open(io.BytesIO(base64.b64decode(data["image/png"]))) as picture:
            if picture.mode != "P":  # one with a palette is small already
                picture.convert("RGB").quantize(256, dither=Image.Dither.NONE).save(buffer, "PNG", optimize=True)
                smaller["image/png"] = base64.b64encode(buffer.getvalue()).decode() + "\n"
    return smaller


def problems(notebook: NotebookNode) -> list[str]:
    """Returns what is wrong with a notebook that is to be committed, in words; empty where nothing is."""
    found = []
    if notebook["metadata"] != METADATA:
        found.append("its metadata are not those of scripts/notebooks.py")
    if notebook != normalised(notebook):
        found.append("it is not as scripts/notebooks.py writes it")
    outputs = [output for cell in notebook["cells"] for output in cell.get("outputs", ())]
    if not any("image/png" in output.get("data", ()) for output in outputs):
        found.append("no cell has a picture")
    for output in outputs:
        if output["output_type"] == "error":
            found.append(f"a cell ended with {output['ename']}: {output['evalue']}")
        words = output.get("text", "") + output.get("data", {}).get("text/plain", "")
        found += [f"{why}: {match[0]!r}" for pattern, why in TELLING.items() if (match := re.search(pattern, words))]
    if (size := len(nbformat.writes(notebook).encode())) > LARGEST:
        found.append(f"it has {size} bytes, and at most {LARGEST} are allowed")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"{' or '.join(NAMES)}; both by default")
    parser.add_argument("--small", action="store_true", help="few iterations; needs --out")
    parser.add_argument("--out", type=Path, default=FOLDER, help="the folder to write; docs/notebooks by default")
    given = parser.parse_args()
    if given.small and given.out == FOLDER:
        parser.error("--small needs --out: its outputs are not for readers")
    if wrong := sorted(set(given.names) - set(NAMES)):
        parser.error(f"there is no notebook {wrong[0]!r}; allowed are {', '.join(NAMES)}")
    for name in given.names or NAMES:
        notebook = nbformat.read(FOLDER / f"{name}.ipynb", as_version=4)
        with tempfile.TemporaryDirectory() as folder:
            executed = normalised(execute(small(notebook) if given.small else notebook, Path(folder)))
        given.out.mkdir(parents=True, exist_ok=True)
        nbformat.write(executed, given.out / f"{name}.ipynb")
        wrong = [] if given.small else problems(executed)
        print(f"{given.out / name}.ipynb: {'; '.join(wrong) or 'good'}")
        if wrong:
            sys.exit(1)


if __name__ == "__main__":
    main()
