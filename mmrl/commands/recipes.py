"""The rows of `mmrl list recipes`: each shipped config with its algorithm, its paper and its parts."""

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

from mmrl.core.config import load_config, shipped_names

# The algorithms that people come for; all others follow by name.
FIRST = (
    "Flow-GRPO", "Flow-GRPO-Fast", "Flow-CPS", "DiffusionNFT", "MixGRPO", "DanceGRPO", "Flow-DPO", "GRPO", "DAPO",
    "GSPO", "GiGPO", "T-GRPO",
)  # fmt: skip


def rows() -> list[dict[str, Any]]:
    """Returns one row per shipped config that has a `recipe`: those of FIRST before others, configs by their names.

    The configs of families/ are left out: the algorithm is the same in all, and `mmrl list families` prints them.
    """
    names = [name for name in shipped_names() if not name.startswith("families/")]
    found = [row for name in names if (row := _row(name)) is not None]
    return sorted(found, key=lambda row: (*_place(row["name"]), row["config"]))


def _row(config: str) -> dict[str, Any] | None:
    settings = load_config(config)
    if settings.recipe is None:
        return None
    recipe = settings.recipe
    return {
        "name": recipe.name,
        "config": config,
        "paper": recipe.paper,
        "arxiv": recipe.arxiv,
        "level": recipe.level,
        "sampler": settings.sampler["name"],
        "loss": settings.loss["name"],
        "advantage": settings.advantage["name"],
    }


def _place(name: str) -> tuple[int, str]:
    """Returns what algorithms are sorted by."""
    return (FIRST.index(name) if name in FIRST else len(FIRST), name.lower())


def lines(rows: Sequence[Mapping[str, Any]], width: int) -> Iterator[str]:
    """Yields a block of lines for each algorithm: its paper, then its configs. `width`: letters of the longest line."""
    yield from textwrap.wrap("Each algorithm with its configs: level; sampler, loss, advantage.", width)
    for name, group in groupby(rows, key=lambda row: row["name"]):
        configs = list(group)
        papers = dict.fromkeys(f"{row['paper']}, arXiv {row['arxiv']}" for row in configs)
        yield ""
        yield from _wrapped(f"{name}: {'; '.join(papers)}", width, indent=4)
        longest = max(len(row["config"]) for row in configs)
        level = max(len(row["level"]) for row in configs)
        for row in configs:
            head = f"  {row['config']:{longest}}  {row['level']:{level}}  "
            yield from _wrapped(f"{head}{row['sampler']}, {row['loss']}, {row['advantage']}", width, indent=6)


def _wrapped(text: str, width: int, *, indent: int) -> list[str]:
    """Returns lines of at most `width` letters where words allow it; lines behind the first one are indented."""
    return textwrap.wrap(text, width, subsequent_indent=" " * indent, break_long_words=False, break_on_hyphens=False)
