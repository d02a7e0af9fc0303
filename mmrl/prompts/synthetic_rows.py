"""Small random tasks in any layout: an image with two coloured rectangles."""

import csv
import json
import random
from collections.abc import Iterator, Mapping, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

from mmrl.media.pictures import Role
from mmrl.prompts import row_clips
from mmrl.prompts.layout import ClipLayout, Example, IntBox, JoinedLayout, Layout, PartsLayout, find

COLOURS = {"red": (220, 40, 40), "green": (40, 160, 60), "blue": (50, 80, 220), "yellow": (240, 210, 50)}
SIDES = (64, 96)  # pixels: shortest and longest side; FLUX.2 edits no smaller images


def examples(rows: int, seed: int) -> Iterator[Example]:
    """Returns tasks on images of different sizes, so that swapped sides are noticed."""
    from PIL import Image, ImageDraw

    rng = random.Random(seed)
    for number in range(rows):
        size = rng.randint(*SIDES), rng.randint(*SIDES)
        names = rng.sample(sorted(COLOURS), 2)
        image = Image.new("RGB", size, (235, 235, 235))
        boxes = _box(rng, 0, size[0] // 2, size[1]), _box(rng, size[0] // 2, size[0], size[1])
        for name, (x1, y1, x2, y2) in zip(names, boxes, strict=True):
            ImageDraw.Draw(image).rectangle((x1, y1, x2 - 1, y2 - 1), fill=COLOURS[name])
        content = BytesIO()
        image.save(content, format="PNG")
        yield Example(
            number, f"{number:04d}.png", content.getvalue(), _mask(size, boxes[0]), size, boxes,
            (f"{names[0]} square", f"{names[1]} square"), str(rng.randint(1, 9)),
            f"{number:04d}.mp4", _span(rng),
        )  # fmt: skip


def write(
    layout: str,
    folder: Path,
    rows: int,
    seed: int,
    columns: Mapping[str, str],
    *,
    roles: Sequence[Role] = ("image",),
) -> Path:
    """Writes rows in exactly this layout, and their images under `images/`; returns the file.

    `columns`: fields that go by other names; of the layout `columns` only these are written, where there are any.
    `roles`: of the images of a row of the layouts `columns` and `edit`, the same image each; others have their own.
    """
    chosen = find(layout)
    tasks = list(examples(rows, seed))
    (folder / "images").mkdir(parents=True, exist_ok=True)
    for task in tasks:
        (folder / "images" / task.image).write_bytes(task.content)
        if isinstance(chosen, ClipLayout):
            colour = COLOURS[task.name.split()[0]]
            (folder / "images" / task.clip).write_bytes(row_clips.example_clip(colour, *task.span))
    path = folder / f"rows.{chosen.file}"
    made = [_renamed(chosen, layout, task, columns) for task in tasks]
    if layout == "columns" and len(roles) > 1:
        name = columns.get("images", "images")
        made = [{**row, name: [task.image] * len(roles)} for row, task in zip(made, tasks, strict=True)]
    if layout == "edit":
        made = [_with_roles(row, task.image, roles, columns) for row, task in zip(made, tasks, strict=True)]
    if isinstance(chosen, JoinedLayout):
        key = columns.get(chosen.joined_by, chosen.joined_by)
        made = [part for row in made for part in _parted(row, key)]
    _save(path, made, is_one=isinstance(chosen, PartsLayout))
    return path


def _with_roles(row: dict[str, Any], image: str, roles: Sequence[Role], columns: Mapping[str, str]) -> dict[str, Any]:
    """Returns a row of the layout `edit` with the same image for each role; a mask has its own."""
    made = dict(row)
    for role in {*roles} - {"mask"}:
        name = columns.get(role, role)
        made[name] = [image] * roles.count(role) if roles.count(role) > 1 else image
    if "image" not in roles:
        made.pop(columns.get("image", "image"))
    return made


def _renamed(chosen: Layout, layout: str, task: Example, columns: Mapping[str, str]) -> dict[str, Any]:
    row = chosen.row(task)
    if layout == "columns" and columns:
        kept = {"prompt": row["prompt"]} | {key: row[key] for key in columns if key in row}
        if not {"images", "image"} & set(columns) or "image" in columns:
            kept["image"] = task.image
        if "messages" in columns:
            kept["messages"] = [{"role": "user", "content": kept.pop("prompt")}]
        row = kept
    return {columns.get(key, key): value for key, value in row.items()}


def _parted(row: dict[str, Any], key: str) -> list[dict[str, Any]]:
    """Returns the rows that are read as this one, which has lists of their values."""
    names = [name for name in row if name != key]
    parts = zip(*(row[name] for name in names), strict=True)
    return [{key: row[key], **dict(zip(names, part, strict=True))} for part in parts]


def _save(path: Path, rows: list[dict[str, Any]], *, is_one: bool = False) -> None:
    """Writes rows to a file of their type; `is_one`: as one object that holds them all."""
    if path.suffix == ".parquet":
        import pyarrow
        import pyarrow.parquet

        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    elif path.suffix == ".csv":
        with path.open("w", encoding="utf-8", newline="") as file:
            table = csv.DictWriter(file, list(rows[0]))
            table.writeheader()
            table.writerows(rows)
    elif path.suffix == ".txt":
        path.write_text("".join(f"{row['line']}\n" for row in rows), encoding="utf-8")
    elif path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    else:
        content = dict(item for row in rows for item in row.items()) if is_one else rows
        path.write_text(json.dumps(content, ensure_ascii=False, indent=1), encoding="utf-8")


def _mask(size: tuple[int, int], box: IntBox) -> bytes:
    """Returns a PNG with one channel, white in a box."""
    from PIL import Image

    mask, content = Image.new("L", size), BytesIO()
    mask.paste(255, box)
    mask.save(content, format="PNG")
    return content.getvalue()


def _box(rng: random.Random, left: int, right: int, height: int) -> IntBox:
    """Returns a box of at least 8 pixels a side between two columns of the image."""
    x1, y1 = rng.randint(left, right - 8), rng.randint(0, height - 8)
    return x1, y1, rng.randint(x1 + 8, right), rng.randint(y1 + 8, height)


def _span(rng: random.Random) -> tuple[float, float]:
    """Returns a span in half seconds, at least one second long."""
    start = rng.randint(0, 2 * row_clips.SECONDS - 2)
    return start / 2, rng.randint(start + 2, 2 * row_clips.SECONDS) / 2
