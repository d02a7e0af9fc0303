"""Pico-Banana-400K: `local_input_image` (or `open_image_input_url`), `text`."""

from dataclasses import dataclass
from typing import ClassVar

from mmrl.prompts.condition_rows import Published
from mmrl.prompts.layout import FileType


@dataclass(frozen=True)
class PicoBanana(Published):
    """The layout of the manifests of apple/pico-banana-400k (Qian et al. 2025, arXiv 2510.19808).

    Addresses are not fetched: `local_input_image` is what the script of its repository adds, which maps them to files.
    `output_image` joins the target as a text.
    """

    file: ClassVar[FileType] = "jsonl"
    fields: ClassVar[tuple[str, ...]] = ("local_input_image", "open_image_input_url", "text")
    text_field: ClassVar[str] = "text"
    image_fields: ClassVar[tuple[str, ...]] = ("local_input_image", "open_image_input_url")
