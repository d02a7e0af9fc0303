"""Your own columns: `prompt` (text or messages), `images`, `videos`, `system`, and the target's fields by name."""

from dataclasses import dataclass
from typing import Any, ClassVar

from mmrl.core.data import Prompt
from mmrl.prompts import row_clips, row_values
from mmrl.prompts.layout import Example, FileType
from mmrl.prompts.messages import media_of, question
from mmrl.prompts.row import Row
from mmrl.prompts.row_pictures import BadRow


@dataclass(frozen=True)
class Columns:
    """Plain columns; boxes and points are in pixels of the first image, times in seconds."""

    file: ClassVar[FileType] = "jsonl"
    fields: ClassVar[tuple[str, ...]] = (
        "prompt", "messages", "images", "image", "videos", "video", "system",
        "span", "duration", "box", "boxes", "labels", "point", "answer", "answers", "count", "action", "input_text",
    )  # fmt: skip

    def prompt(self, row: Row) -> Prompt:
        name = "messages" if "prompt" not in row.values and "messages" in row.values else "prompt"
        conversation = question(row.need(name), name)
        media, clips = media_of(row, conversation), row.clips(["videos", "video"])
        if not media and not clips and (null := row.nulls & {"videos", "video"}):
            # a table gives rows about images this column too; a question about nothing was meant to have its video
            called = row.columns.get(min(null), min(null))
            raise BadRow(f"the field {called!r} is null, and the row has no image either")
        duration = row_clips.seconds(row.take("duration"), "duration") if "duration" in row.values else None
        system = row.take("system")
        if not isinstance(system, str | None):
            raise BadRow(f"the field 'system' must be a text, got {system!r:.80}")
        target: dict[str, Any] = {
            "answer": row_values.answers(row.take("answer") if "answer" in row.values else conversation.answer),
            "box": row.box("box", media) if "box" in row.values else None,
            "point": row.point("point", media) if "point" in row.values else None,
            "input_text": row.text("input_text") if "input_text" in row.values else None,
            "span": row_clips.span(row.take("span"), "span", duration, clips) if "span" in row.values else None,
            "duration": duration,
        }
        if "action" in row.values:
            target["action"] = row_values.action(row.take("action"))
        if "boxes" in row.values:
            target["boxes"] = row.boxes("boxes", media)
        if "labels" in row.values:
            target["labels"] = row_values.texts(row.take("labels"), "labels")
            row_values.detections(target.get("boxes", ()), target["labels"])
        if "count" in row.values:
            target["count"] = row_values.parsed(row.take("count"))  # also a number that is written as text
        if "answers" in row.values:
            target["answers"] = row_values.texts(row.take("answers"), "answers")
        return row.prompt(
            conversation.text, media, target, conversation.system if system is None else system, clips=clips
        )

    def row(self, example: Example) -> dict[str, Any]:
        return {
            "prompt": f"Where is the {example.name}?",
            "images": [example.image],
            "system": "Answer in one word.",
            "box": list(example.box),
            "boxes": [list(box) for box in example.boxes],
            "labels": list(example.names),
            "point": list(example.point),
            "answer": example.answer,
            "answers": [example.answer] * 10,
            "count": int(example.answer),
            "action": "click",
            "input_text": example.name,
            "label": [example.name],
            "faults": {example.name: ["colour"]},
            "findings": {example.name: "present"},
            "calls": [{"name": "click", "arguments": {"x": example.point[0], "y": example.point[1]}}],
            "include": [{"class": "apple", "count": 1 + example.number % 4}],
            "vqa_list": [[f"Is there an {example.name}?", "Yes"], ["How many?", example.answer]],
            "questions": [f"Is there a {example.name}?", "Is it on the left?"],
            "parents": [[], [0]],
            "page": f"A page that says {example.answer}.",
            "checks": ["body", ["body", "p"]],
            # in both markups, of which each reader takes its own
            "table": (
                f"<table><tr><td>{example.answer}</td></tr></table> "
                rf"\begin{{tabular}}{{c}}{example.answer}\end{{tabular}}"
            ),
            "reference_scores": [-0.5, 0.5],
            "principle": "Short answers are better than long ones.",
            "criteria": [{"text": f"It says {example.answer}.", "weight": 3}, {"text": "It is polite."}],
        }
