"""ms-swift's data: `messages`, `images`, `solution`, and `objects` with `ref` and `bbox` for grounding."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from mmrl.core.data import Prompt
from mmrl.media.pictures import StoredPicture
from mmrl.parsing.coordinates import Convention
from mmrl.prompts import row_values
from mmrl.prompts.layout import Example, FileType
from mmrl.prompts.messages import media_of, question
from mmrl.prompts.row import Row, size_of
from mmrl.prompts.row_pictures import BadRow

REF, BOX = "<ref-object>", "<bbox>"


@dataclass(frozen=True)
class MsSwift:
    """Rows with boxes in pixels (`bbox_type: real`, the default) or in 0..1 (`norm1`); `<ref-object>` is filled in.

    Without `solution` the assistant's last message is the answer. A row with a box in the question is a bad row: the
    unit in which a policy reads boxes depends on its family.
    """

    file: ClassVar[FileType] = "jsonl"
    fields: ClassVar[tuple[str, ...]] = ("messages", "images", "solution", "objects")

    def prompt(self, row: Row) -> Prompt:
        conversation = question(row.need("messages"), "messages")
        media = media_of(row, conversation)
        objects, solution = row.take("objects"), row.take("solution")
        target: dict[str, Any] = {}
        text = conversation.text
        if objects is not None:
            if not isinstance(objects, dict):
                raise BadRow(f"the field 'objects' must hold 'ref' and 'bbox', got {objects!r:.80}")
            refs = row_values.texts(objects.get("ref", []), "objects.ref")
            text = _filled(text, refs)
            target = _located(objects, refs, media)
        if BOX in text:
            raise BadRow(f"its question has a mark {BOX}; write the box into the text")
        answer = solution if solution is not None else conversation.answer
        if answer is not None and BOX not in str(answer):
            target["answer"] = row_values.answers(answer)
        return row.prompt(text, media, target, conversation.system)

    def row(self, example: Example) -> dict[str, Any]:
        return {
            "messages": [
                {"role": "user", "content": f"<image>Find the {REF}."},
                {"role": "assistant", "content": BOX},
            ],
            "images": [example.image],
            "solution": example.answer,
            "objects": {"ref": [example.name], "bbox": [list(example.box)]},
        }


def _filled(text: str, refs: Sequence[str]) -> str:
    for ref in refs:
        text = text.replace(REF, ref, 1)
    if REF in text:
        raise BadRow(f"its question has more marks {REF} than objects.ref has names")
    return text


def _located(objects: dict[str, Any], refs: Sequence[str], media: Sequence[StoredPicture]) -> dict[str, Any]:
    """Returns boxes (four numbers each) or a single point (two numbers) as fields of the target."""
    places = row_values.many(objects.get("bbox", []), "objects.bbox")
    if not places:
        return {}
    kind = objects.get("bbox_type", "real")
    if kind not in ("real", "norm1"):
        raise BadRow(f"objects.bbox_type must be 'real' or 'norm1', got {kind!r}")
    convention: Convention = "unit" if kind == "norm1" else "original"
    size = size_of(media, "objects.bbox")
    if len(places) == 1 and isinstance(places[0], list) and len(places[0]) == 2:
        return {"point": row_values.point(places[0], "objects.bbox", size, convention)}
    boxes = [row_values.box(one, f"objects.bbox {n}", size, convention) for n, one in enumerate(places, 1)]
    return row_values.detections(boxes, refs if len(refs) == len(boxes) else None)
