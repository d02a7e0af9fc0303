"""Measures mmrl with a real vLLM on the CPU; one JSON line for each figure on stdout.

    python -m benchmarks.real_vllm install
    python -m benchmarks.real_vllm agreement
    python -m benchmarks.real_vllm learning --task clicks --seeds 0 1 2
    python -m benchmarks.real_vllm faults
    python -m benchmarks.real_vllm speed --against CHECKOUT
    python -m benchmarks.real_vllm page

vLLM has an environment of its own, below `--folder`, which the first command makes (3.5 GB, two minutes). Servers and
runs have one thread each. The page is made of the lines in `results/`, a file for each measurement.
"""

import argparse
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from . import agreement, environment, faults, learning, models, page


def main() -> None:
    """Prints the lines of a measurement as they are there."""
    options = _options()
    if options.what == "page":
        page.main()
        return
    environment.install(options.folder)
    os.environ |= environment.ON_ONE_THREAD
    torch.set_num_threads(1)
    for line in _lines(options):
        print(json.dumps(line), flush=True)


def _lines(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    if options.what == "agreement":
        yield from agreement.rows(options.folder, options.families, options.prompts)
    elif options.what == "learning":
        yield from learning.rows(options.folder, options.task, options.sides, options.seeds)
    elif options.what == "faults":
        yield from faults.rows(options.folder, options.faults)
    elif options.what == "speed":
        sys.path.append(str(Path(__file__).resolve().parents[1]))  # the other benchmarks, which import each other
        from . import speed

        yield from speed.rows(options.folder, options.pairs, options.against, options.models)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["install", "agreement", "learning", "faults", "speed", "page"])
    parser.add_argument("--folder", type=Path, default=environment.default_folder(), help="of vLLM's environment")
    parser.add_argument("--families", nargs="+", choices=list(models.FAMILIES), default=list(models.FAMILIES))
    parser.add_argument("--prompts", nargs="+", choices=list(agreement.PROMPTS), default=list(agreement.PROMPTS))
    parser.add_argument("--task", choices=list(learning.RUNS), default="clicks")
    parser.add_argument("--sides", nargs="+", choices=list(learning.SIDES), default=["own", "vllm"])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--faults", nargs="+", choices=list(faults.FAULTS), default=list(faults.FAULTS))
    parser.add_argument("--models", nargs="+", choices=["screens", "random"], default=["screens", "random"])
    parser.add_argument("--pairs", type=int, default=5, help="rounds of the speed")
    parser.add_argument("--against", type=Path, help="a checkout of an older commit, for the speed")
    return parser.parse_args()


if __name__ == "__main__":
    main()
