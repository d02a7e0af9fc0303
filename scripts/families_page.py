"""Compares every family of pipelines with its stock pipeline, and writes what was found.

python scripts/families_page.py            writes docs/families.md from what was found last
python scripts/families_page.py --prove [FAMILY ...]   compares the families (all: half an hour on two cores) before

Each family of modalities/tiny/pipelines is taken with all weights of its random small pipeline trained, in float32 on
the CPU, with the settings of its config. What was found stands in modalities/tiny/pipelines/proven.json, which `mmrl
list families` prints; the reasons of families that are refused stand in refused.json beside it.
"""

import json
import re
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from page_tables import plugin_link, table

from mmrl.core import plugins
from mmrl.core.config import load_config, shipped_names
from mmrl.core.contracts import Placement
from mmrl.core.data import Prompt
from mmrl.media.pictures import StoredPicture
from mmrl.modalities.diffusers_pipeline import DiffusersPipeline
from mmrl.modalities.tiny.pipelines.families import FAMILIES
from mmrl.system.errors import ConfigError

ROOT = Path(__file__).parents[1]
FILE, FOLDER = ROOT / "docs" / "families.md", ROOT / "modalities" / "tiny" / "pipelines"
FOUND, REFUSED = FOLDER / "proven.json", FOLDER / "refused.json"
STOCK, BATCH = 1e-5, 1e-4  # the largest differences of a family that is listed
TEXT = "a red dog"
HEAD = """# Families of diffusers pipelines

Written by `python scripts/families_page.py` from what it measured. {link} runs a pipeline's own code, so a family needs
no line of its own. These were compared with their stock pipelines, each on a random small pipeline of the same classes
that has every part, in float32: `mmrl list families` prints the rows, and `mmrl check --tiny families/NAME --json`
measures one again.

- *stock*: the largest difference of pixels in [0, 1] from what `pipeline(...)` of diffusers makes from the same noise,
  with guidance off and on, the worse of the two. The levels are those of FlowMatchEuler with the shipped shift.
- *batch*: four samples of two prompts of different lengths at two noise levels in one go, against one by one: the
  largest difference relative to the largest value. *gradient*: the same for all trained weights.
- *log-prob*: the largest difference between a velocity that a rollout records and the one that an update computes.
- *calls*: network calls for the four samples, with guidance where there is some.
"""

REFUSED_HEAD = """These have a random small pipeline too, and are refused, each with its reason. They have no config.
"""
TRIED = """
## Three families that nobody had tried

Written down before trying: AuraFlow (images), Mochi 1 (videos) and ChronoEdit (an edit as the end of a clip, from a
picture). Each got a small random pipeline of 8 to 14 lines and no line of its own elsewhere.

- *AuraFlow* and *ChronoEdit* were exact at the first try, with guidance and without.
- *Mochi 1* had the pictures of its stock pipeline at the first try, and would still have been trained wrongly: its
  noise levels rise from 0 to 1, so samplers would have taken the first level for the clean end. Nothing refused it.
  Levels that do not fall are refused now, and those of a scheduler with `invert_sigmas` are turned around
  (`modalities/flow/driven/scales.py`); pictures are equal as before.

Pictures of Cosmos pipelines are rounded to 256 levels by the stock code, so 0 means less than a level there.
"""


def prove(name: str) -> dict[str, Any]:
    """Returns the row of a family. Raises ConfigError for a family that cannot be driven, or not exactly."""
    family, proof = FAMILIES[name], proof_of(name)
    stock, batch = float(proof["stock_difference"]), float(proof["batch_difference"])
    if not (stock <= STOCK and batch <= BATCH):
        raise ConfigError(
            f"pixels differ from the stock pipeline's by {stock:.0e}, a batch from its samples alone by {batch:.0e}"
        )
    return {
        "name": name,
        "makes": family.makes,
        "condition": family.conditions > 0,
        **proof,
        "modular": family.modular,
        "config": f"families/{name}",
    }


def proof_of(name: str) -> dict[str, float | str]:
    """Returns the proof of a family. Raises ConfigError for a family that cannot be driven."""
    family = FAMILIES[name]
    settings = settings_of(name) | {"lora": None, "gradient_checkpointing": False, "replay": False}
    policy = plugins.build("modalities", settings)
    assert isinstance(policy, DiffusersPipeline), "it drives code of another library"
    with tempfile.TemporaryDirectory(prefix="mmrl-families-") as folder, policy.shrunk():
        twin = policy.tiny(0, Path(folder))
        twin.prepare(Placement(torch.device("cpu"), torch.float32))
        proof = dict(twin.proof(Prompt(TEXT, pictures(Path(folder), family.conditions, family.condition_side))))
        twin.close()
    return proof


def settings_of(name: str) -> dict[str, Any]:
    """Returns the modality's settings in a family's config, or for a family without one, those that it must have."""
    if f"families/{name}" in shipped_names():
        return dict(load_config(f"families/{name}").modality)
    family = FAMILIES[name]
    model: dict[str, Any] = {"name": "diffusers_pipeline", "family": name, "model": name, "output": family.makes}
    model |= {"modular": family.modular, "removed_blocks": family.removed_blocks, "height": 32, "width": 32}
    return model | {"conditions": family.condition_arguments}


def pictures(folder: Path, count: int, side: int) -> tuple[StoredPicture, ...]:
    """Returns pictures of random pixels."""
    from PIL import Image

    made = []
    for number in range(count):
        pixels = torch.rand(side, side, 3, generator=torch.Generator().manual_seed(number)).mul(255).byte()
        path = folder / f"picture_{number}.png"
        Image.fromarray(pixels.numpy()).save(path)
        made.append(StoredPicture(path.name, path))
    return tuple(made)


def page(rows: list[dict[str, Any]], refused: dict[str, str]) -> str:
    """Returns the page of rows, and of the families that are refused, with the reasons."""
    parts = [HEAD.format(link=plugin_link("modalities", "diffusers_pipeline"))]
    titles: dict[str, Callable[[dict[str, Any]], bool]] = {
        "Images": lambda row: row["makes"] == "image" and not row["condition"],
        "Edits of images": lambda row: row["makes"] == "image" and row["condition"],
        "Videos": lambda row: row["makes"] == "video",
    }
    for title, holds in titles.items():
        some = [row for row in rows if holds(row)]
        parts += [f"\n## {title}\n", table(_TITLES, [cells(row) for row in some])]
    if refused:
        parts += ["\n## Refused\n", REFUSED_HEAD, table(("family", "reason"), sorted(refused.items()))]
    return "\n".join([*parts, TRIED])


def reason_of(error: ConfigError) -> str:
    """Returns why a family is refused, without the setting and the folder of its small pipeline."""
    return re.sub(r"'[^']*mmrl-families-[^']*'", "it", str(error).removeprefix("modalities.diffusers_pipeline.model: "))


_TITLES = ("config", "model", "stock", "batch", "gradient", "log-prob", "calls")


def cells(row: dict[str, Any]) -> tuple[str, ...]:
    """Returns the cells of a row."""
    model = str(load_config(row["config"]).modality["model"])
    notes = ["from images"] if row["condition"] and row["makes"] == "video" else []
    notes += ["modular"] if row["modular"] else []
    differences = (f"{row[f'{name}_difference']:.0e}" for name in ("stock", "batch", "gradient", "log_prob"))
    shown = f"`{row['config']}`" + (f" ({', '.join(notes)})" if notes else "")
    return (shown, model, *differences, str(row["calls"]))


def main(arguments: list[str]) -> None:
    """Proves families where asked, keeps what was found, writes the page."""
    kept: dict[str, dict[str, Any]] = {row["name"]: row for row in json.loads(FOUND.read_text())}
    refused: dict[str, str] = json.loads(REFUSED.read_text())
    names = (arguments[1:] or list(FAMILIES)) if arguments[:1] == ["--prove"] else []
    for name in names:
        begun = time.perf_counter()
        for found in (kept, refused):
            found.pop(name, None)
        try:
            row = prove(name)
            text = ", ".join(f"{key} {value:.1e}" for key, value in row.items() if isinstance(value, float))
            if row["config"] in shipped_names():
                kept[name] = row
            else:
                text += "; it has no config"
        except ConfigError as error:
            refused[name] = reason_of(error)
            text = f"REFUSED: {refused[name]}"
        print(f"{name}: {text} [{time.perf_counter() - begun:.0f} s]", flush=True)
        FOUND.write_text(json.dumps([kept[one] for one in FAMILIES if one in kept], indent=1) + "\n")
        REFUSED.write_text(json.dumps(dict(sorted(refused.items())), indent=1) + "\n")
    FILE.write_text(page([kept[one] for one in FAMILIES if one in kept], refused), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
