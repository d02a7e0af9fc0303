"""Every layout: rows that are written are read again as they were."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from mmrl.core.data import Prompt
from mmrl.media.video import FrameSampling, StoredClip
from mmrl.prompts import synthetic_rows
from mmrl.prompts.datasets import layout_names, load_dataset_prompts, write_synthetic
from mmrl.prompts.layout import Example

ROWS, SEED = 5, 3
GROUNDING = (
    "columns",
    "ms_swift",
    "vlm_r1",
    "vlm_r1_rec",
    "gui_g1",
    "gui_g2",
    "screenspot",
    "screenspot_hf",
    "screenspot_pro",
    "osworld_g",
    "refcoco",
)
ANSWERS = ("columns", "trl", "easyr1", "geometry3k", "verl", "ms_swift", "r1_v")
CLIPS = ("time_r1", "tvgbench", "charades_sta", "videochat_r1_charades", "video_r1", "nextgqa", "video_mme", "tw_grpo")
SUITES = ("drawbench", "dsg", "geneval", "geneval2", "lines", "vbench")  # of text alone
PICTURELESS = ("given_images", "given_videos", "pick_a_pic", "unigenbench", "votes", "vote_labels", *SUITES)
GIVEN = ("given_images", "given_videos", "given_answers", "pick_a_pic", "votes", "vote_labels")
EDITS = (
    "edit", "magic_brush", "instruct_pix2pix", "ultra_edit", "omni_edit", "gedit_bench", "pico_banana",
    "flow_grpo_edit", "vbench_i2v",
)  # fmt: skip


@pytest.fixture
def written(tmp_path: Path) -> Any:
    return lambda layout: load_dataset_prompts(write_synthetic(layout, tmp_path, ROWS, SEED))


def coloured(prompt: Prompt, colour: str) -> list[float]:
    """The box of a colour by the pixels of the image: x1, y1, x2, y2, half-open."""
    pixels = np.asarray(prompt.media[0].load()).astype(int)
    rows, columns = np.nonzero(np.abs(pixels - synthetic_rows.COLOURS[colour]).sum(2) == 0)
    return [columns.min(), rows.min(), columns.max() + 1, rows.max() + 1]


def tasks() -> list[Example]:
    return list(synthetic_rows.examples(ROWS, SEED))


def test_these_are_the_layouts() -> None:
    assert layout_names() == sorted(
        {
            *GROUNDING,
            *ANSWERS,
            "gui_r1",
            "gui_r1_pixels",
            "ui_r1",
            "visual_rft",
            "visual_rft_labels",
            "seg_zero",
            "reason_seg",
            "refspatial",
            "crowd_vlm_r1",
            "vision_r1",
            "vlm_r1_ovd",
            "agentcpm_gui",
            "videochat_tracking",
            *CLIPS,
            *GIVEN,
            *EDITS,
            "android_control",
            "math_vista",
            "mmmu",
            "unigenbench",
            *SUITES,
            "gui_critic",
        }
    )  # a new one needs a line here, rows in test_datasets_by_hand.py, and docs/data.md


def test_the_guide_has_every_layout() -> None:
    guide = (Path(__file__).parents[2] / "docs" / "data.md").read_text("utf-8")
    assert [name for name in layout_names() if f"| `{name}` |" not in guide] == []


@pytest.mark.parametrize("layout", layout_names())
def test_rows_are_read_as_they_were_written(written: Any, layout: str) -> None:
    prompts = written(layout)
    assert len(prompts) == ROWS
    for prompt, task in zip(prompts, tasks(), strict=True):
        if not prompt.clips and layout not in (*PICTURELESS, "videochat_tracking"):
            assert {picture.size for picture in prompt.media} == {task.size}
        assert prompt.text.count("<image>") in (0, 1)
        assert layout in CLIPS or not prompt.clips
        assert task.name.split()[0] in prompt.text or task.number % 3 == 2 or layout == "video_r1"
        assert not {"images", "image", "videos", "video", "messages", "conversations"} & set(prompt.target)


@pytest.mark.parametrize("layout", GROUNDING)
def test_the_box_is_where_the_pixels_say(written: Any, layout: str) -> None:
    for prompt, task in zip(written(layout), tasks(), strict=True):
        box = prompt.target["box"]
        assert isinstance(box, tuple) and all(isinstance(x, float) for x in box)
        assert box == pytest.approx(coloured(prompt, task.name.split()[0]), abs=1e-9)
        assert 0 <= box[0] < box[2] <= task.size[0] and 0 <= box[1] < box[3] <= task.size[1]


@pytest.mark.parametrize("layout", ANSWERS)
def test_the_answer_is_a_text_without_tags(written: Any, layout: str) -> None:
    assert [prompt.target["answer"] for prompt in written(layout)] == [task.answer for task in tasks()]


@pytest.mark.slow  # most of a second each, or more
@pytest.mark.parametrize("layout", ["time_r1", "tvgbench", "charades_sta", "videochat_r1_charades"])
def test_the_span_is_when_the_frames_say(written: Any, layout: str) -> None:
    """By the colour in the middle of every frame of the file; a frame of 1/8 second begins at its own time."""
    for prompt, task in zip(written(layout), tasks(), strict=True):
        (clip,) = prompt.clips
        frames = clip.load(FrameSampling(fps=8))
        away = frames.pixels[:, :, 24, 24].double() - torch.tensor(synthetic_rows.COLOURS[task.name.split()[0]])
        shown = frames.seconds[away.abs().sum(1) < 60]
        assert prompt.target["span"] == pytest.approx((float(shown.min()), float(shown.max()) + 1 / 8))
        assert prompt.target.get("duration") == (None if layout == "charades_sta" else 4.0)


def test_part_of_a_video_counts_from_its_own_start(tmp_path: Path) -> None:
    row = {"video": "0000.mp4", "timestamp": [0.5, 1], "sentence": " A red square is shown. ", "duration": 2}
    settings = write_synthetic("time_r1", tmp_path, 1, 0)
    path = tmp_path / "own.json"
    path.write_text(json.dumps([row | {"video_start": 1, "video_end": 3}]))
    (prompt,) = load_dataset_prompts(settings.model_copy(update={"path": str(path)}))
    assert prompt.text == "a red square is shown" and prompt.target == {"span": (0.5, 1.0), "duration": 2.0}
    assert isinstance(prompt.clips[0], StoredClip) and (prompt.clips[0].start, prompt.clips[0].end) == (1.0, 3.0)


def test_video_r1_has_videos_and_images_and_the_options_below_a_choice(written: Any) -> None:
    for prompt, task in zip(written("video_r1"), tasks(), strict=True):
        assert (len(prompt.clips), len(prompt.media)) == ((1, 0) if task.number % 2 == 0 else (0, 1))
        is_choice = task.number % 3 == 0
        assert prompt.target["answer"] == ("A" if is_choice else task.answer)
        assert prompt.text.endswith(f"Options:\nA. {task.names[0]}\nB. {task.names[1]}") == is_choice
        assert prompt.target["problem_type"] == ("multiple choice" if is_choice else "numerical")


def test_android_control_has_a_place_a_text_or_a_kind_alone(written: Any) -> None:
    found = [prompt.target for prompt in written("android_control")]
    assert [target["action"] for target in found] == ["click", "scroll", "type", "navigate_back", "open"]
    assert [target.get("input_text") for target in found] == [None, "down", tasks()[2].answer, None, "Clock"]
    x, y = tasks()[0].point
    assert found[0]["point"] == (round(x), round(y)) and "point" not in found[1]
    assert found[0]["step_instruction"] == f"click on the {tasks()[0].name}"


@pytest.mark.parametrize("layout", ["gui_r1", "gui_r1_pixels"])
def test_gui_r1_has_an_action_with_a_box_a_point_or_a_text(written: Any, layout: str) -> None:
    for prompt, task in zip(written(layout), tasks(), strict=True):
        x1, y1, x2, y2 = coloured(prompt, task.name.split()[0])
        kind, target = task.number % 3, prompt.target
        assert target["action"] == ("type" if kind == 2 else "click")
        assert (set(target) & {"box", "point", "input_text"}) == {("box", "point", "input_text")[kind]}
        if kind == 0:
            assert target["box"] == pytest.approx((x1, y1, x2, y2))
        if kind == 1:
            assert target["point"] == pytest.approx(((x1 + x2) / 2, (y1 + y2) / 2))
        if kind == 2:
            assert target["input_text"] == task.answer
        assert target["history"] == "None" and target["task_type"] == "high"


def test_visual_rft_has_boxes_from_thousandths(written: Any) -> None:
    for prompt, task in zip(written("visual_rft"), tasks(), strict=True):
        names = task.names[: 1 + task.number % 2]
        expected = [coloured(prompt, name.split()[0]) for name in names]
        half = [side / 2000 + 1e-9 for side in (*task.size, *task.size)]  # of a thousandth, in pixels
        assert (np.abs(np.subtract(prompt.target["boxes"], expected)) <= half).all()
        assert ("box" in prompt.target) == (len(names) == 1)


@pytest.mark.parametrize("layout", ["seg_zero", "reason_seg"])
def test_a_segmented_object_has_the_box_of_its_pixels(written: Any, layout: str) -> None:
    for prompt, task in zip(written(layout), tasks(), strict=True):
        assert prompt.target["box"] == tuple(coloured(prompt, task.name.split()[0]))


@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # of pycocotools itself
def test_reason_seg_has_the_run_lengths_of_pycocotools(written: Any) -> None:
    mask = pytest.importorskip("pycocotools.mask")
    for prompt, task in zip(written("reason_seg"), tasks(), strict=True):
        height, width = prompt.target["mask"]["size"]
        packed = mask.frPyObjects(prompt.target["mask"], height, width)
        rows, columns = np.nonzero(mask.decode(packed))
        box = [columns.min(), rows.min(), columns.max() + 1, rows.max() + 1]
        assert box == coloured(prompt, task.name.split()[0]) and len(rows) == (box[2] - box[0]) * (box[3] - box[1])


@pytest.mark.slow
def test_refspatial_has_the_mask_of_reason_seg_and_the_depth_behind_the_picture(written: Any) -> None:
    for prompt, other in zip(written("refspatial"), written("reason_seg"), strict=True):
        assert prompt.target["mask"] == other.target["mask"] and len(prompt.media) == 2


@pytest.mark.parametrize("layout", ["vision_r1", "vlm_r1_ovd"])
def test_detections_have_boxes_with_labels(written: Any, layout: str) -> None:
    for prompt, task in zip(written(layout), tasks(), strict=True):
        names = task.names[: 1 + task.number % 2]
        assert prompt.target["labels"] == names
        assert [list(box) for box in prompt.target["boxes"]] == [coloured(prompt, name.split()[0]) for name in names]


def test_tracking_has_a_frame_for_each_box(written: Any) -> None:
    prompts = written("videochat_tracking")  # whose folder holds the five images of all rows
    assert [picture.name.rpartition("/")[2] for picture in prompts[0].media] == ["0000.png", "0004.png"]
    assert all(len(prompt.target["track"]) == 2 for prompt in prompts)


def test_agentcpm_gui_has_the_actions_of_its_dialect(written: Any) -> None:
    found = [prompt.target for prompt in written("agentcpm_gui")]
    assert [target["action"] for target in found] == ["click", "scroll", "type", "press_back", "finish"]
    assert [target.get("input_text") for target in found] == [None, "down", tasks()[2].answer, None, None]
    assert np.abs(np.subtract(found[0]["point"], tasks()[0].point)).max() <= 96 / 2000 + 1e-9


def test_nextgqa_has_the_times_and_the_options(written: Any) -> None:
    for prompt, task in zip(written("nextgqa"), tasks(), strict=True):
        assert prompt.target["spans"] == (task.span,) and prompt.target["span"] == task.span
        assert prompt.text.endswith(f"(A) {task.names[0]}\n(B) {task.names[1]}") and prompt.target["answer"] == "(A)"


def test_tw_grpo_has_one_right_letter_or_several(written: Any) -> None:
    prompts = written("tw_grpo")
    assert {prompt.target["answer"] for prompt in prompts} == {"A", "A,B"}
    assert prompts[0].text == f"What can be seen?\nA {tasks()[0].names[0]}\nB {tasks()[0].names[1]}"


def test_columns_has_all_fields_of_a_target(written: Any) -> None:
    for prompt, task in zip(written("columns"), tasks(), strict=True):
        x1, y1, x2, y2 = prompt.target["box"]
        assert prompt.target["point"] == ((x1 + x2) / 2, (y1 + y2) / 2)
        assert [list(box) for box in prompt.target["boxes"]] == [
            coloured(prompt, name.split()[0]) for name in task.names
        ]
        assert prompt.target["labels"] == task.names
        assert (prompt.target["action"], prompt.target["input_text"]) == ("click", task.name)
        assert prompt.system == "Answer in one word."
