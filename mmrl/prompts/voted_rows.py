"""Rows made of the votes of people, which `mmrl vote` writes: a vote may hold several pairs, or none."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from mmrl.core.data import Prompt
from mmrl.core.human_votes import Vote, vote_of
from mmrl.media.pictures import StoredPicture
from mmrl.media.video import StoredClip
from mmrl.prompts.layout import Example
from mmrl.prompts.offline_rows import offline_prompt, text_of
from mmrl.prompts.row import Row
from mmrl.prompts.row_clips import clip_of
from mmrl.prompts.row_pictures import BadRow

KIND = "vote_kind"  # of the outputs of a row: image, video or text


def checked_vote(values: Mapping[str, Any]) -> Vote:
    """Returns the vote of a row's fields. Raises BadRow."""
    try:
        return vote_of(values)
    except ValueError as error:
        raise BadRow(f"it is no vote as mmrl vote writes them: {error}") from error


def question_of(vote: Vote) -> dict[str, Any]:
    """Returns the fields of a row that are about the prompt."""
    fields: dict[str, Any] = {"prompt": vote.prompt, KIND: vote.kind}
    if vote.images:
        fields["images"] = list(vote.images)
    if vote.roles:
        fields["roles"] = list(vote.roles)
    return fields


def voted_prompt(row: Row) -> Prompt:
    """Returns the prompt of a row that a layout of votes made, with its outputs and their scores. Raises BadRow."""
    kind, roles = row.need(KIND), row.take("roles") or ()

    def read(row: Row, value: Any, name: str) -> StoredPicture | StoredClip | str:
        if kind == "text":
            return text_of(row, value, name)
        return clip_of(row.folder, value, name) if kind == "video" else row.folder.picture(value, name)

    return replace(offline_prompt(row, read), roles=tuple(roles))


def example_vote(example: Example) -> dict[str, Any]:
    """Returns a synthetic vote: of an image with itself mirrored, in base64, the first one is chosen."""
    import base64
    from io import BytesIO

    from PIL import Image, ImageOps

    mirrored = BytesIO()
    ImageOps.mirror(Image.open(BytesIO(example.content))).save(mirrored, format="PNG")
    pair = [base64.b64encode(content).decode("ascii") for content in (example.content, mirrored.getvalue())]
    return {
        "task": f"{example.number:04d}",
        "form": "pairs",
        "kind": "image",
        "prompt": f"{example.name} on grey",
        "images": [],
        "roles": [],
        "question": "synthetic",
        "shown": [{"output": one, "digest": f"{n}", "origin": "synthetic"} for n, one in enumerate(pair)],
        "chosen": [0],
        "seconds": 1.5,
        "voter": "nobody",
        "time": "2026-01-01T00:00:00+00:00",
    }
