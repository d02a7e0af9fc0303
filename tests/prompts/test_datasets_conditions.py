"""Rows of editing and image-to-video files: images by role, masks, and what is said of those that do not fit."""

import json
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from PIL import Image

from mmrl.core.config import DatasetSettings
from mmrl.core.data import Prompt
from mmrl.media.pictures import Picture
from mmrl.prompts.datasets import load_dataset_prompts, stand_in, write_synthetic
from mmrl.system.errors import ConfigError

SIZE = (80, 50)


def png(grey: int, size: tuple[int, int] = SIZE) -> bytes:
    """A picture of one colour; its grey level says which picture it is."""
    content = BytesIO()
    Image.new("RGB", size, (grey,) * 3).save(content, format="PNG")
    return content.getvalue()


def cell(grey: int) -> dict[str, Any]:
    """A picture as the data sets of the hub hold it."""
    return {"bytes": png(grey), "path": f"{grey}.png"}


def grey(picture: Picture) -> int:
    return int(np.asarray(picture.load())[0, 0, 0])


def read(folder: Path, layout: str, row: dict[str, Any], **settings: Any) -> Prompt:
    """The prompt of one row: in a table where it holds bytes, else beside the files 1.png .. 6.png."""
    for number in range(1, 7):
        (folder / f"{number}.png").write_bytes(png(number))
    if any(isinstance(value, dict) for value in row.values()):
        path = folder / "rows.parquet"
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist([row]), path)
    else:
        path = folder / "rows.jsonl"
        path.write_text(json.dumps(row) + "\n")
    (prompt,) = load_dataset_prompts(DatasetSettings(path=str(path), layout=layout, **settings))
    return prompt


PUBLISHED: dict[str, dict[str, Any]] = {
    "magic_brush": {
        "img_id": "100", "turn_index": 1, "source_img": cell(1), "mask_img": cell(2), "instruction": "Go",
        "target_img": cell(3),
    },
    "instruct_pix2pix": {
        "original_prompt": "a", "original_image": cell(1), "edit_prompt": "Go", "edited_prompt": "b",
        "edited_image": cell(3),
    },
    "ultra_edit": {
        "source_image": cell(1), "mask_image": cell(2), "edited_image": cell(3), "edit_prompt": "Go",
        "source_caption": "a",
    },
    "omni_edit": {
        "omni_edit_id": "7", "task": "addition", "src_img": cell(1), "edited_img": cell(3),
        "edited_prompt_list": ["Go", "Do go"],
    },
    "gedit_bench": {
        "task_type": "color_alter", "key": "k", "instruction": "Go", "instruction_language": "en",
        "input_image": cell(1), "input_image_raw": cell(2), "Intersection_exist": True,
    },
    "pico_banana": {
        "open_image_input_url": "https://a.b/c.jpg", "text": "Go", "output_image": "images/positive-edit/1.png",
        "edit_type": "Remove an existing object", "summarized_text": "g", "local_input_image": "1.png",
    },
    "flow_grpo_edit": {"tag": "counting", "prompt": "Go", "image": "1.png", "include": [{"class": "dog", "count": 2}]},
    "vbench_i2v": {
        "file_name": "1.png", "url": "www.pexels.com/photo", "type": "animal", "origin_width": 80, "caption": "Go"
    },
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("layout", PUBLISHED)
def test_a_row_as_it_is_published_is_read(layout: str, tmp_path: Path) -> None:
    prompt = read(tmp_path, layout, PUBLISHED[layout])
    has_mask = layout == "ultra_edit"
    assert prompt.text == "Go" and prompt.roles == (("image", "mask") if has_mask else ("image",))
    assert [grey(picture) for picture in prompt.media] == ([1, 2] if has_mask else [1])
    after = [grey(picture) for picture in prompt.target.get("given", ())]
    assert after == ([3] if layout in ("magic_brush", "instruct_pix2pix", "ultra_edit", "omni_edit") else [])
    assert prompt.target.get("given_scores") == ((1.0,) if after else None)
    assert not any(isinstance(value, bytes | dict) for value in prompt.target.values())  # no pictures in the target


def test_an_address_in_place_of_a_file_is_refused(tmp_path: Path) -> None:
    row = {key: value for key, value in PUBLISHED["pico_banana"].items() if key != "local_input_image"}
    with pytest.raises(
        ConfigError, match=r"rows\.jsonl.*1: 'https://a\.b/c\.jpg' is an address; images are not fetched"
    ):
        read(tmp_path, "pico_banana", row)


def test_columns_of_the_layout_edit_come_in_the_order_of_roles(tmp_path: Path) -> None:
    row = {"prompt": "Go", "pose": "5.png", "where": "4.png", "images": ["1.png", "2.png"], "last_image": "3.png",
           "reference": "6.png", "edited": "3.png", "system": "You draw."}  # fmt: skip
    prompt = read(tmp_path, "edit", row, columns={"control": "pose", "mask": "where"})
    assert prompt.roles == ("image", "image", "reference", "last_image", "mask", "control")
    assert [grey(picture) for picture in prompt.media] == [1, 2, 6, 3, 4, 5] and prompt.system == "You draw."
    assert [grey(picture) for picture in prompt.target["given"]] == [3]


@pytest.mark.parametrize(
    ("row", "fault"),
    [
        ({"prompt": "Go", "image": "missing.png"}, "there is no image file 'missing.png'"),
        ({"prompt": "Go", "image": "broken.png"}, "cannot read the image broken.png"),
        ({"prompt": "Go", "image": "1.png", "mask": "broken.png"}, "cannot read the image broken.png"),
        ({"prompt": "Go", "image": "1.png", "mask": "small.png"}, "its mask has 8 x 8 pixels and its image 80 x 50"),
        ({"prompt": "Go", "image": "1.png", "mask": ["1.png", "2.png"]}, "it has 2 masks, at most 1"),
        ({"prompt": "Go"}, "it has no image"),
        ({"image": "1.png"}, "it has no field 'prompt'"),
        ({"prompt": ["", "Go"], "image": "1.png"}, "the field 'prompt' must be a text"),
        ({"prompt": "Go", "image": "1.png", "system": 3}, "the field 'system' must be a text"),
        ({"prompt": "Go", "image": "1.png", "video": "a.mp4"}, "it has video, which this layout does not read"),
        ({"prompt": "Go", "image": "../x.png"}, "lies outside of"),
        ({"prompt": "Go", "image": "bomb.png"}, "cannot read the image bomb.png: Image size (100000000"),
    ],
)
def test_a_bad_row_is_named_with_its_file_and_line(row: dict[str, Any], fault: str, tmp_path: Path) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    (tmp_path / "x.png").write_bytes(png(1))
    (folder / "broken.png").write_bytes(b"no picture")
    (folder / "small.png").write_bytes(png(1, (8, 8)))
    if "bomb" in str(row):
        Image.new("1", (10000, 10000)).save(folder / "bomb.png")
    with pytest.raises(ConfigError) as caught:
        read(folder, "edit", row)
    message = str(caught.value)
    assert fault in message and "rows.jsonl" in message and ("line 1" in message or ":1" in message), message


def test_synthetic_rows_have_a_mask_over_the_first_box(tmp_path: Path) -> None:
    for prompt in load_dataset_prompts(write_synthetic("edit", tmp_path, 4, 0)):
        image, mask = (picture.load() for picture in prompt.media)
        colour = prompt.text.split()[2]
        assert image.size == mask.size and colour in ("red", "green", "blue", "yellow")
        x1, y1, x2, y2 = mask.convert("L").getbbox() or (0, 0, 0, 0)
        assert x2 > x1 and len(image.crop((x1, y1, x2, y2)).getcolors() or []) == 1
        assert image.getpixel((x1, y1)) != (235, 235, 235)


@pytest.mark.parametrize(
    ("roles", "expected"),
    [
        (["image", "mask"], ("image", "mask")),
        (["image", "image", "control"], ("image", "image", "mask", "control")),
        (["image", "last_image"], ("image", "last_image", "mask")),
        (["control"], ("mask", "control")),
    ],
)
def test_a_stand_in_has_the_images_that_the_policy_takes(roles: Any, expected: Any, tmp_path: Path) -> None:
    """A mask is left to rewards where no argument takes it."""
    settings = DatasetSettings(path="none.jsonl", layout="edit", columns={"control": "pose"})
    prompts = load_dataset_prompts(stand_in(settings, tmp_path, 0, roles=roles))
    assert {prompt.roles for prompt in prompts} == {expected}
