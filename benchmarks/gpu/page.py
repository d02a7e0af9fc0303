"""Writes docs/gpu.md from the result files: `python -m benchmarks.gpu.page`."""

import ast
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from .results import FOLDER, ROOT
from .running import CHECKS

FILE = ROOT / "docs" / "gpu.md"
HEAD = """# On a GPU

This page is written by `python -m benchmarks.gpu.page` from the result files in `benchmarks/gpu/results/`.

`make gpu`, or `python -m benchmarks.gpu`, measures mmrl on the GPU of a machine: twelve checks at the sizes of real
models, with random weights that are made on the device. Nothing is downloaded. Each check prints one JSON line with its
figures and fails where it raises, where two ways that must agree do not, or where a bar of speed is not met.
`--group N` runs one of the three groups, each in less than 8 minutes; names run single checks; `--tiny` runs the same
code small, on a CPU too. `python -m benchmarks.gpu.dry_runs` runs `mmrl check --tiny` of all shipped configs there.

A machine without a network may lack packages. `python -m benchmarks.gpu --versions` prints what it has,
`python scripts/gather_wheels.py there.json wheels/` gathers the rest where there is a network, and
`python -m benchmarks.gpu --wheels wheels/` uses the folder.
"""
NONE = """No result of a GPU is there: nobody has run the suite on one yet. All that is known of speed and memory at
real size is computed, not measured. A run writes its result into `benchmarks/gpu/results/`.
"""
LEARNED = """## What the first run taught

On 2026-11-26, an H200, torch 2.11. Matrix products alone reach 796 TFLOP/s there.

- **SD3.5-medium** draws 4.4 images a second at 512 pixels, 10 steps and guidance, at a quarter of the card's peak, with
  32 images as with 64. Matrix products are 27% of the time: the rest is norms in float32, which diffusers writes as
  many small kernels, copies and products of single numbers. A network without autocast took 12% less, and differed by
  0.5%. A merged adapter costs nothing, one beside the weights 11%.
- **Updates of SD3.5** by LoRA: 38 samples a second without checkpointing (90 GB at 32 a micro-batch), 23 with it (13
  GB). What stays in memory is within 1.3% of the formula of the forecast; fused AdamW takes 40% of foreach's time.
- **bf16** gives the same log-probs whatever the batch: differences of recomputed log-probs are 0. Against float32 a
  step's log-prob is off by 1e-5 at the first step to 2e-3 at the last, gradients by 1.2 degrees.
- **Decoding with Qwen2.5-VL-7B** (64 answers behind 1,300 tokens): 2,378 tokens a second, while the GPU waits for more
  than half of the time; `generate` of transformers gave 382 in a run before. The compiled step gave 2,240, for it
  repeated keys and values for each head, 77% of its time. It no longer does, which no GPU has seen yet.
- **Vision towers** in one call of attention: a third of the time of calls for each window (99 and 337 ms at 2.1 MP).
- **Log-probs of chosen tokens** need a tenth of the memory of logits that are held, and 0.4 of the time in bf16.
- **channels_last** is slower there, for autoencoders (10 to 20%) and UNets (8 to 18%). Scoring in a thread beside
  decoding hides nothing: both fill the GPU.
- **Not measured**: updates of packed rows at real size (the kernels of flex attention take minutes to compile), the
  compiled image network, dry runs of all configs. One of the first image configs, probably `dance_grpo_flux`, whose
  small twin trains in bf16, broke the device with an illegal memory access; which kernel is not known.
"""


def main() -> None:
    """Writes the page."""
    FILE.write_text(page(results_in(FOLDER)), encoding="utf-8")


def results_in(folder: Path) -> list[dict[str, Any]]:
    """Returns the results of GPUs at real size, by file name; runs at small sizes and on CPUs are none."""
    found = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*.json"))]
    return [one for one in found if one["type"] == "cuda" and not one["is_tiny"]]


def page(results: Sequence[Mapping[str, Any]]) -> str:
    """Returns the page on these results."""
    rows = [[f"`{c.name}`", str(c.group), f"{c.seconds:.0f} s", summary(c.place, c.name)] for c in CHECKS]
    parts = [HEAD, "## Checks\n", table(("check", "group", "budget", "what it does"), rows)]
    parts += [f"\n{LEARNED}"] * bool(results) + ["\n## Results\n", *([section(one) for one in results] or [NONE])]
    return "\n".join(part.rstrip("\n") + "\n" for part in parts)


def summary(place: str, name: str) -> str:
    """Returns the first line of the docstring of a check, without importing it."""
    tree = ast.parse((Path(__file__).parent / f"{place}.py").read_text(encoding="utf-8"))
    function = next(node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == name)
    return (ast.get_docstring(function) or "").partition("\n")[0]


def section(result: Mapping[str, Any]) -> str:
    """Returns the section of one device."""
    checks: Mapping[str, Any] = result["checks"]
    ran = [checks[check.name] for check in CHECKS if check.name in checks]
    head = ("check", "status", "seconds", "peak GB", "bars", "date", "commit")
    rows = [
        [f"`{line['check']}`", line["status"], f"{line['seconds']:g}", f"{line['peak_gb']:g}", bars(line),
         line["date"], f"`{line['versions']['commit']}`"]
        for line in ran
    ]  # fmt: skip
    versions = ", ".join(f"{name} {value}" for name, value in ran[-1]["versions"].items() if name != "commit")
    parts = [f"### {result['device']}\n", f"{versions}.\n", table(head, rows)]
    for line in ran:
        parts.append(f"\n#### {line['check']} on {result['device']}\n")
        parts.append(table(("figure", "value"), list(figures(line))))
    return "\n".join(parts)


def bars(line: Mapping[str, Any]) -> str:
    """Returns the bars of a check in one cell."""
    found = [
        f"{one['figure']} {one['value']:g} ({one['bar']}{'' if one['met'] else ', **not met**'})"
        for one in line.get("bars", [])
    ]
    return "; ".join(found)


def figures(line: Mapping[str, Any]) -> Iterator[list[str]]:
    """Yields the rows of a check's own figures; a list of cases gives a row for each."""
    known = {"check", "group", "status", "seconds", "peak_gb", "bars", "date", "versions"}
    for name, value in line.items():
        if name in known or value in ({}, []):
            continue
        if isinstance(value, list) and all(isinstance(one, Mapping) for one in value):
            for one in value:
                yield [escaped(name), escaped(", ".join(f"{key} {text(given)}" for key, given in one.items()))]
        else:
            yield [escaped(name), escaped(text(value))]


def text(value: Any) -> str:
    """Returns a figure as text."""
    if isinstance(value, Mapping):
        return ", ".join(f"{name}: {text(given)}" for name, given in value.items())
    if isinstance(value, list):
        return ", ".join(text(one) for one in value)
    return "-" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def escaped(cell: str) -> str:
    """Returns a text as a cell of a table."""
    return cell.replace("|", "\\|").replace("\n", " ")


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Returns a table of Markdown."""
    lines = [f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)])


if __name__ == "__main__":
    main()
