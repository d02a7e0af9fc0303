"""Rows whose images have roles: a picture to edit, a mask, a control image, frames of a video."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from mmrl.core.data import Prompt
from mmrl.media.pictures import Role, StoredPicture
from mmrl.prompts.layout import Example, FileType
from mmrl.prompts.row import Row
from mmrl.prompts.row_pictures import BadRow

ROLES: tuple[Role, ...] = ("image", "reference", "last_image", "mask", "control")  # the order of a prompt's images


def condition_prompt(
    row: Row,
    text: str,
    images: Mapping[Role, Sequence[StoredPicture]],
    edited: Sequence[StoredPicture] = (),
    system: str | None = None,
) -> Prompt:
    """Returns the prompt of a row, its images in the order of `ROLES`.

    Args:
        edited: the picture after the edit, which offline samplers take as an output that scores 1.
    Raises:
        BadRow: there is no image at all, or a mask is not as large as the picture that it lies on.
    """
    listed = [(role, picture) for role in ROLES for picture in images.get(role, ())]
    if not listed:
        raise BadRow("it has no image")
    for role, picture in listed:
        if role == "mask" and listed[0][0] == "image" and picture.size != listed[0][1].size:
            (width, height), (own_width, own_height) = listed[0][1].size, picture.size
            raise BadRow(
                f"its mask has {own_width} x {own_height} pixels and its image {width} x {height}; a mask is as "
                "large as its image"
            )
    target = {"given": tuple(edited), "given_scores": (1.0,) * len(edited)} if edited else {}
    prompt = row.prompt(text, [picture for _, picture in listed], target, system)
    return replace(prompt, roles=tuple(role for role, _ in listed))


def instruction_of(row: Row, name: str) -> str:
    """Returns the instruction of a row: a text, or the first of several that say the same."""
    value = row.need(name)
    first = value[0] if isinstance(value, list) and value else value
    if not isinstance(first, str) or not first.strip():
        raise BadRow(f"the field {name!r} must be a text, got {value!r:.80}")
    return first


@dataclass(frozen=True)
class Published:
    """The base of layouts of published files: each says how its fields are called."""

    file: ClassVar[FileType] = "parquet"
    fields: ClassVar[tuple[str, ...]]
    text_field: ClassVar[str]
    image_fields: ClassVar[tuple[str, ...]]  # of the one image, the first that a row has
    mask_field: ClassVar[str | None] = None
    edited_field: ClassVar[str | None] = None  # the picture after the edit

    def prompt(self, row: Row) -> Prompt:
        images: dict[Role, Sequence[StoredPicture]] = {"image": [row.needed_image(self.image_fields)]}
        if self.mask_field is not None:
            images["mask"] = row.images([self.mask_field])
        edited = row.images([self.edited_field]) if self.edited_field is not None else ()
        return condition_prompt(row, instruction_of(row, self.text_field), images, edited)

    def row(self, example: Example) -> dict[str, Any]:
        is_table = self.file == "parquet"
        image: Any = {"bytes": example.content, "path": None} if is_table else example.image
        made: dict[str, Any] = {self.image_fields[0]: image, self.text_field: f"Make the {example.name} larger."}
        if self.mask_field is not None:
            made[self.mask_field] = {"bytes": example.mask, "path": None}
        if self.edited_field is not None:
            made[self.edited_field] = image
        return made
