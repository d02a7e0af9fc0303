"""VideoChat-R1's tracking data on GOT-10k: `path` of a folder of frames, `object`, `gt` with eight boxes in 0..1."""

import json
from dataclasses import dataclass
from typing import Any, ClassVar

from mmrl.core.data import Prompt
from mmrl.media.pictures import StoredPicture
from mmrl.prompts import row_values
from mmrl.prompts.layout import Example, FileType
from mmrl.prompts.row import Row
from mmrl.prompts.row_pictures import BadRow

FRAMES = (".jpg", ".jpeg", ".png")


@dataclass(frozen=True)
class VideochatTracking:
    """Objects to follow: the prompt is the object, its media one frame for each box, from the first to the last.

    `target.track` has the boxes in 0..1, as the model is asked for them: `tracking_iou` with `units: target`.
    `{row.start}` in a template is the first box. The frames are images here, chosen evenly; the paper's code hands
    seven frames over as a video and asks for eight boxes.
    """

    file: ClassVar[FileType] = "json"
    fields: ClassVar[tuple[str, ...]] = ("path", "object", "gt")

    def prompt(self, row: Row) -> Prompt:
        boxes = [
            row_values.numbers(box, f"gt {n}", (4,)) for n, box in enumerate(row_values.many(row.need("gt"), "gt"), 1)
        ]
        if not boxes or any(not (x1 < x2 and y1 < y2) for x1, y1, x2, y2 in boxes):
            raise BadRow("the field 'gt' needs boxes with x1 < x2 and y1 < y2")
        media = _frames(row, row.text("path"), len(boxes))
        return row.prompt(row.text("object"), media, {"track": tuple(boxes), "start": json.dumps(boxes[0])})

    def row(self, example: Example) -> dict[str, Any]:
        (width, height), (x1, y1, x2, y2) = example.size, example.box
        box = [round(x1 / width, 3), round(y1 / height, 3), round(x2 / width, 3), round(y2 / height, 3)]
        return {"path": ".", "object": example.name, "gt": [box] * 2}


def _frames(row: Row, path: str, count: int) -> tuple[StoredPicture, ...]:
    """Returns `count` images of a folder, by the order of their names: the first, the last, and evenly between."""
    root = row.folder.root
    if root is None:
        raise BadRow(f"the folder {path!r} is a path; say with `images` which folder it is under")
    try:
        folder = (root / path).resolve()
        if not folder.is_relative_to(root.resolve()) and not row.folder.outside:
            raise BadRow(f"the folder {path!r} lies outside of {str(root)!r}; set `images`, or `outside: true`")
        names = sorted(file.name for file in folder.iterdir() if file.suffix.lower() in FRAMES)
    except OSError as error:
        raise BadRow(f"cannot look for the frames in {path[:80]!r}: {error}") from error
    if len(names) < count:
        raise BadRow(f"the folder {path!r} has {len(names)} frames, but there are {count} boxes")
    places = [round(n * (len(names) - 1) / max(1, count - 1)) for n in range(count)]
    return tuple(row.folder.picture(f"{path}/{names[place]}", f"frame {place}") for place in places)
