"""Rows of every layout, written by hand: what they are read as, and what is said of those that do not fit."""

import json
from pathlib import Path
from typing import Any

import pytest

from mmrl.core.config import DatasetSettings
from mmrl.core.data import Prompt
from mmrl.prompts.datasets import load_dataset_prompts
from mmrl.system.errors import ConfigError

WIDTH, HEIGHT = 80, 50  # of the image of rows by hand


def by_hand(folder: Path, layout: str, row: dict[str, Any], **settings: Any) -> Prompt:
    """The prompt of one row, beside an image of 80 x 50 pixels."""
    from PIL import Image

    Image.new("RGB", (WIDTH, HEIGHT)).save(folder / "a.png")
    (folder / "rows.jsonl").write_text(json.dumps(row) + "\n")
    (prompt,) = load_dataset_prompts(DatasetSettings(path=str(folder / "rows.jsonl"), layout=layout, **settings))
    return prompt


HUMAN = {"from": "human", "value": "<image>Where?"}
BOXES = '```json\n[{"bbox_2d": [1, 2, 3, 4], "label": "cat"}, {"bbox_2d": [5, 6, 7, 8], "label": "dog"}]\n```'
CLICK = {"image": "a.png", "instruction": "Go", "gt_action": "CLICK", "gt_input_text": "no input text"}
MASK = [[1 <= y < 3 and 3 <= x < 5 for x in range(WIDTH)] for y in range(HEIGHT)]
POINTS = {
    "Primary Categories": "Design", "Secondary Categories": "Space Design", "Subjects": "Object",
    "Sentence Structure": "Descriptive", "Testpoints": ["Attribute - Color", "Attribute - Quantity"],
    "Testpoint Description": ["red", "two cubes"],
}  # fmt: skip
UNIGENBENCH = json.dumps(POINTS)  # as in data/test_prompts_en_long.csv, 202e371
VISTA = {  # fields as on the card of AI4Math/MathVista
    "query": "Hint: answer with a letter.\nQuestion: How long?", "image": "images/1.jpg",
    "decoded_image": "a.png", "choices": None, "unit": None,
    "metadata": {"task": "geometry problem solving", "grade": "high school"},
}  # fmt: skip
OSWORLD = {"image_path": "a.png", "instruction": "Go", "box_type": "polygon"}
MMMU = {"id": "validation_Art_Theory_3", "question": "Which <image 1>?", "image_1": "a.png", "image_2": None,
        "subfield": "x"}  # fmt: skip
PARTS = [{"type": "image", "image": "a.png"}, {"type": "text", "text": "What?"}]


@pytest.mark.parametrize(
    ("layout", "row", "expected"),
    [
        ("columns", {"prompt": "How many?", "answer": "4", "count": "4"}, {"answer": "4", "count": 4}),
        ("geneval", {"tag": "counting", "include": [{"class": "bench", "count": 2}], "prompt": "two benches"},
         {"tag": "counting", "include": [{"class": "bench", "count": 2}]}),
        ("drawbench", {"prompts": "a red cat", "category": "Colors"}, {"category": "Colors"}),
        ("geneval2", {"prompt": "two cows", "atom_count": 2, "vqa_list": [["How many cows?", "two"]],
                      "skills": ["count"]},
         {"atom_count": 2, "vqa_list": [["How many cows?", "two"]], "skills": ["count"]}),
        ("vbench", {"prompt_en": "a stop sign", "dimension": ["temporal_flickering"]},
         {"dimensions": ("temporal_flickering",)}),
        ("lines", {"line": "A sign with the text OPEN"}, {}),
        ("unigenbench", {"index": 3, "prompt_en": "Two red cubes", "sub_dims_en": UNIGENBENCH},
         {"index": 3, "theme": "Design", "subtheme": "Space Design",
          "criteria": ("Attribute - Color: red", "Attribute - Quantity: two cubes")}),
        # of test_files/gui_s.jsonl, 42c2724: `\\n` in two letters stands before the quotation mark
        ("gui_critic", {"images": ["a.png"], "problem": "<image>\nRight?",
                        "solution": 'Incorrect \n"Press the back button.\\n"', "chinese_info": "x"},
         {"label": "Incorrect", "suggestion": "Press the back button.", "chinese_info": "x"}),
        ("gui_critic", {"images": ["a.png"], "problem": "Right?", "solution": "correct\nTap 'OK' now"},
         {"label": "Correct", "suggestion": "Tap 'OK' now"}),
        ("screenspot", {"img_filename": "a.png", "instruction": "Go", "bbox": [10, 20, 30, 5]},
         {"box": (10.0, 20.0, 40.0, 25.0)}),
        ("screenspot", {"img_filename": "a.png", "instruction": "Go", "bbox": [10, 20, 30, 5], "data_source": "gitlab",
                        "data_type": "text"},
         {"box": (10.0, 20.0, 40.0, 25.0), "data_source": "gitlab", "data_type": "text", "platform": "web",
          "kind": "web text"}),
        ("osworld_g", {"id": "a-0", "image_path": "a.png", "instruction": "Go", "box_type": "bbox",
                       "box_coordinates": [10, 20, 30, 5], "GUI_types": ["Icon"]},
         {"id": "a-0", "box": (10.0, 20.0, 40.0, 25.0), "box_type": "bbox", "GUI_types": ["Icon"],
          "polygon": ((10.0, 20.0), (40.0, 20.0), (40.0, 25.0), (10.0, 25.0))}),
        ("osworld_g", {"image_path": "a.png", "instruction": "Go", "box_type": "polygon",
                       "box_coordinates": [10, 20, 30, 5, 50, 40.5]},
         {"box": (10.0, 5.0, 50.0, 40.5), "polygon": ((10.0, 20.0), (30.0, 5.0), (50.0, 40.5)),
          "box_type": "polygon"}),
        ("refcoco", {"image": "a.png", "sent": "left cat", "bbox": [1.5, 2, 30, 40], "height": 50, "width": 80},
         {"box": (1.5, 2.0, 30.0, 40.0)}),
        ("math_vista", VISTA | {"question_type": "multi_choice", "answer_type": "text", "answer": "4 cm",
                                "choices": ["3 cm", "4 cm"]},
         {"kind": "choice", "answer": "B", "options": ("3 cm", "4 cm"), "question_type": "multi_choice",
          "answer_type": "text", "task": "geometry problem solving", "grade": "high school"}),
        ("math_vista", VISTA | {"question_type": "free_form", "answer_type": "float", "answer": "1.20",
                                "precision": 2.0},
         {"kind": "number", "answer": "1.20", "question_type": "free_form", "answer_type": "float", "precision": 2.0,
          "task": "geometry problem solving", "grade": "high school"}),
        ("math_vista", VISTA | {"question_type": "free_form", "answer_type": "list", "answer": "[1, 2]"},
         {"kind": "text", "answer": "[1, 2]", "question_type": "free_form", "answer_type": "list",
          "task": "geometry problem solving", "grade": "high school"}),
        ("mmmu", MMMU | {"options": "['$6', \"Bob's\"]", "answer": "B", "question_type": "multiple-choice"},
         {"id": "validation_Art_Theory_3", "subject": "Art_Theory", "kind": "choice", "options": ("$6", "Bob's"),
          "answer": "B", "question_type": "multiple-choice", "subfield": "x"}),
        ("mmmu", MMMU | {"options": "[]", "answer": "1,234.5", "question_type": "open"},
         {"id": "validation_Art_Theory_3", "subject": "Art_Theory", "kind": "number", "answer": "1,234.5",
          "question_type": "open", "subfield": "x"}),
        ("mmmu", MMMU | {"options": "[]", "answer": "['24/7', '3.429']", "question_type": "open"},
         {"id": "validation_Art_Theory_3", "subject": "Art_Theory", "kind": "text", "answer": ("24/7", "3.429"),
          "question_type": "open", "subfield": "x"}),
        ("screenspot_hf", {"image": "a.png", "instruction": "Go", "bbox": [0.25, 0.5, 0.5, 1.0]},
         {"box": (20.0, 25.0, 40.0, 50.0)}),
        ("screenspot_pro", {"img_filename": "a.png", "instruction": "Go", "bbox": [1, 2, 3, 4], "img_size": [80, 50]},
         {"box": (1.0, 2.0, 3.0, 4.0)}),
        ("gui_g2", {"image_path": "a.png", "instruction": "Go", "abs_box": [1.5, 2, 80, 50]},
         {"box": (1.5, 2.0, 80.0, 50.0)}),
        ("gui_r1", CLICK | {"gt_bbox": [0.5, 0.2]}, {"action": "click", "point": (40.0, 10.0)}),
        ("gui_r1", CLICK | {"gt_bbox": [0.5, 0.2, 0.75, 0.4]}, {"action": "click", "box": (40.0, 10.0, 60.0, 20.0)}),
        ("gui_r1", CLICK | {"gt_bbox": [-100, -100], "gt_action": "complete"}, {"action": "finish"}),
        ("gui_r1", CLICK | {"gt_bbox": [-1, -1], "gt_action": "PRESS_BACK"}, {"action": "press_back"}),
        ("gui_r1", CLICK | {"gt_bbox": [-100, -100, -100, -100], "gt_action": "type", "gt_input_text": "a b"},
         {"action": "type", "input_text": "a b"}),
        ("ui_r1", {"img_filename": "a.png", "instruction": "Go", "bbox": [1, 2, 3, 4]},
         {"action": "click", "box": (1.0, 2.0, 3.0, 4.0)}),
        ("ui_r1", {"img_filename": "a.png", "instruction": "Go", "bbox": [1, 2, 3, 4], "action": "scroll"},
         {"action": "click", "box": (1.0, 2.0, 3.0, 4.0)}),  # its loader asks for the box first
        ("ui_r1", {"img_filename": "a.png", "instruction": "Go", "action": "navigate_back"},
         {"action": "navigate_back"}),
        ("ui_r1", {"img_filename": "a.png", "instruction": "Go", "action": "input_text"}, {"action": "type"}),
        ("gui_r1_pixels", CLICK | {"gt_bbox": [40, 10]}, {"action": "click", "point": (40.0, 10.0)}),
        ("visual_rft", {"image": "a.png", "problem": "Find",
                        "solution": "<answer>[{'Position': [500, 200, 750, 1000], 'Confidence': 1}]</answer>"},
         {"boxes": ((40.0, 10.0, 60.0, 50.0),), "box": (40.0, 10.0, 60.0, 50.0)}),
        ("visual_rft", {"image": "a.png", "problem": "Find", "solution": "<answer>No Objects</answer>"}, {"boxes": ()}),
        ("vlm_r1", {"image": "a.png", "conversations": [HUMAN, {"from": "gpt", "value": [1, 2, 3, 4]}]},
         {"answer": "[1, 2, 3, 4]", "box": (1.0, 2.0, 3.0, 4.0)}),
        ("vlm_r1", {"image": "a.png", "conversations": [HUMAN, {"from": "gpt", "value": "[9, 7, 5, 3]"}]},
         {"answer": "[9, 7, 5, 3]"}),
        ("vlm_r1", {"image": ["a.png"], "conversations": [HUMAN, {"from": "gpt", "value": BOXES}],
                    "accu_reward_method": "od_ap"},
         {"answer": BOXES, "boxes": ((1.0, 2.0, 3.0, 4.0), (5.0, 6.0, 7.0, 8.0)), "labels": ("cat", "dog"),
          "accu_reward_method": "od_ap"}),
        ("vlm_r1_ovd", {"image": "a.png", "accu_reward_method": "odLength", "conversations": [
            HUMAN, {"from": "gpt", "value": "```json\nNone\n```"}]},
         {"answer": "```json\nNone\n```", "boxes": (), "labels": (), "accu_reward_method": "odLength"}),
        ("vlm_r1_ovd", {"image": "a.png", "conversations": [
            HUMAN, {"from": "gpt", "value": '```json\n[{"bbox_2d": [1, 2, 3, 4], "label": "cat"}]\n```'}]},
         {"answer": '```json\n[{"bbox_2d": [1, 2, 3, 4], "label": "cat"}]\n```', "boxes": ((1.0, 2.0, 3.0, 4.0),),
          "labels": ("cat",), "box": (1.0, 2.0, 3.0, 4.0)}),
        ("vlm_r1_rec", {"image": "a.png", "problem": "?", "solution": [1, 2, 3, 4]}, {"box": (1.0, 2.0, 3.0, 4.0)}),
        ("r1_v", {"image": "a.png", "problem": "How many?", "solution": "<answer> 3 </answer>"}, {"answer": "3"}),
        ("verl", {"prompt": [{"role": "user", "content": "<image>What?"}], "images": ["a.png"], "data_source": "x",
                  "reward_model": {"style": "rule", "ground_truth": 2.5}}, {"data_source": "x", "answer": "2.5"}),
        ("easyr1", {"prompt": "<image><image>Which?", "images": ["a.png", "a.png"], "answer": 7}, {"answer": "7"}),
        ("trl", {"prompt": [{"role": "user", "content": PARTS}], "solution": "<answer>x</answer>", "level": 3},
         {"level": 3, "answer": "x"}),
        ("trl", {"prompt": "What?", "image": "a.png", "answer": "<think>5</think> <answer>\n4\n</answer>"},
         {"answer": "4"}),
        ("ms_swift", {"messages": [{"role": "user", "content": "<image>Where is the <ref-object>?"}],
                      "images": ["a.png"],
                      "objects": {"ref": ["cat"], "bbox": [[0.5, 0.2, 0.75, 0.4]], "bbox_type": "norm1"}},
         {"boxes": ((40.0, 10.0, 60.0, 20.0),), "labels": ("cat",), "box": (40.0, 10.0, 60.0, 20.0)}),
        ("ms_swift", {"messages": [{"role": "user", "content": "Where?"}, {"role": "assistant", "content": "<bbox>"}],
                      "images": ["a.png"], "objects": {"bbox": [[3, 4]]}}, {"point": (3.0, 4.0)}),
        ("columns", {"prompt": "Where?", "image": "a.png", "box": "[1, 2, 3, 4]", "action": "doubleclick"},
         {"box": (1.0, 2.0, 3.0, 4.0), "action": "double_click"}),
        ("columns", {"messages": [{"role": "user", "content": "A?"}, {"role": "assistant", "content": "B"}]},
         {"answer": "B"}),
        # several right answers are a list for exact_answer and its kin, and no exponent is 1 * e - 5 for math_answer
        ("columns", {"prompt": "Who?", "answer": ["Ada", "<answer> Ada L. </answer>"]}, {"answer": ("Ada", "Ada L.")}),
        ("easyr1", {"problem": "Where?", "answer": [1, 2]}, {"answer": "[1, 2]"}),
        ("verl", {"prompt": [{"role": "user", "content": "What?"}], "reward_model": {"ground_truth": ["a", "b"]}},
         {"answer": ("a", "b")}),
        ("trl", {"prompt": "What?", "solution": 0.00001}, {"answer": "0.00001"}),
        ("columns", {"prompt": "What?", "answer": 1e16}, {"answer": "10000000000000000"}),
        ("visual_rft_labels", {"image": "a.png", "problem": "What?", "solution": "<answer>Boeing_737-200</answer>"},
         {"label": "Boeing_737-200"}),
        ("seg_zero", {"id": "x_1", "image": "a.png", "problem": "the cat", "img_height": 480, "img_width": 640,
                      "solution": "<box>(1,2),(30,40)</box><points>(5,6),(7,8)</points>"},
         {"box": (1.0, 2.0, 30.0, 40.0), "points": ((5.0, 6.0), (7.0, 8.0)), "id": "x_1", "img_height": 480,
          "img_width": 640}),
        ("reason_seg", {"image": "a.png", "text": "Who sleeps?", "mask": MASK, "ann_id": "0"},
         {"mask": {"size": [50, 80], "counts": [50 * 3 + 1, 2, 48, 2, 50 * 80 - 50 * 4 - 3]},
          "box": (3.0, 1.0, 5.0, 3.0), "ann_id": "0"}),
        ("crowd_vlm_r1", {"image": "a.png", "problem": "How many?", "solution": 12}, {"count": 12}),
        ("vision_r1", {"image": "a.png", "problem": "Locate every cat", "width": 80, "height": 50, "num_instances": 2,
                       "solution": '[["cat", [1.5, 2, 3, 4]], ["cat", [5, 6, 7, 8]]]', "target_id_maps": '{"cat": 17}'},
         {"boxes": ((1.5, 2.0, 3.0, 4.0), (5.0, 6.0, 7.0, 8.0)), "labels": ("cat", "cat"), "width": 80, "height": 50,
          "num_instances": 2}),
        ("gui_g1", {"image": "a.png", "problem": "click", "solution": [1.5, 2.75, 3, 4], "rate": 1.5},
         {"box": (1.5, 2.75, 3.0, 4.0), "rate": 1.5}),
        ("agentcpm_gui", {"id": "0", "image": {"<image_00>": "a.png"}, "conversations": [
            {"role": "system", "content": "s"}, {"role": "user", "content": "<Question>Go</Question>\n<image_00>"},
            {"role": "assistant", "content": '{"thought":"t","POINT":[500,200]}'}]},
         {"action": "click", "point": (40.0, 10.0), "id": "0"}),
        ("agentcpm_gui", {"image": "a.png", "conversations": [
            {"role": "user", "content": "Go"}, {"role": "assistant", "content": '{"POINT":[197,634],"to":"right"}'}]},
         {"action": "scroll", "input_text": "left"}),
        ("agentcpm_gui", {"image": "a.png", "conversations": [
            {"role": "user", "content": "Go"}, {"role": "assistant", "content": '{"PRESS":"HOME"}'}]},
         {"action": "press_home"}),
        ("videochat_tracking", {"path": ".", "object": "duck", "gt": [[0.49, 0.585, 0.677, 0.867]]},
         {"track": ((0.49, 0.585, 0.677, 0.867),), "start": "[0.49, 0.585, 0.677, 0.867]"}),
    ],
)  # fmt: skip
def test_a_row_by_hand_has_this_target(tmp_path: Path, layout: str, row: dict[str, Any], expected: Any) -> None:
    prompt = by_hand(tmp_path, layout, row)
    assert prompt.target == expected


def test_messages_are_a_system_text_and_a_marked_question(tmp_path: Path) -> None:
    messages = [
        {"role": "system", "content": [{"type": "text", "text": "Be brief."}]},
        {"role": "user", "content": [*PARTS, {"type": "image", "path": "a.png"}, {"type": "text", "text": " Why?"}]},
    ]
    prompt = by_hand(tmp_path, "trl", {"prompt": messages})
    assert (prompt.system, prompt.text, len(prompt.media)) == ("Be brief.", "<image>What?<image> Why?", 2)


def test_images_of_mmmu_stand_where_their_marks_are(tmp_path: Path) -> None:
    """Those without a mark come first, and an option may be an image."""
    from PIL import Image

    sizes = {"image_1": (10, 20), "image_2": (30, 40), "image_3": (50, 60)}
    for name, size in sizes.items():
        Image.new("RGB", size).save(tmp_path / f"{name}.png")
    row = {name: f"{name}.png" for name in sizes} | {
        "id": "test_Music_7", "question": "Like <image 3>?", "options": "['<image 2>', '<image 3>', 'none']",
        "answer": "A", "question_type": "multiple-choice",
    }  # fmt: skip
    prompt = by_hand(tmp_path, "mmmu", row)
    assert prompt.text == "<image>Like <image>?\nA. <image>\nB. <image>\nC. none"
    assert [one.size for one in prompt.media] == [sizes[f"image_{n}"] for n in (1, 3, 2, 3)]


def test_texts_join_the_target_of_every_row(tmp_path: Path) -> None:
    row = {"image": "a.png", "problem": "How many?", "solution": 12}
    prompt = by_hand(tmp_path, "crowd_vlm_r1", row, target={"task": "count"}, template="{prompt} ({row.task})")
    assert prompt.target == {"count": 12, "task": "count"} and prompt.text == "How many? (count)"
    with pytest.raises(ConfigError, match="target: the row has task already"):
        by_hand(tmp_path, "crowd_vlm_r1", row | {"task": "x"}, target={"task": "count"})


def test_columns_of_another_name_are_read(tmp_path: Path) -> None:
    row = {"question": "Where?", "prompt": "not this", "picture": "a.png", "label": "here", "where": [1, 2, 3, 4]}
    columns = {"prompt": "question", "image": "picture", "answer": "label", "box": "where"}
    prompt = by_hand(tmp_path, "columns", row, columns=columns)
    assert (prompt.text, prompt.target) == ("Where?", {"answer": "here", "box": (1.0, 2.0, 3.0, 4.0)})
    renamed = by_hand(tmp_path, "r1_v", {"image": "a.png", "q": "?", "solution": "1"}, columns={"problem": "q"})
    assert (renamed.text, renamed.target) == ("?", {"answer": "1"})


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["columns", "easyr1", "gui_r1", "screenspot"])
def test_synthetic_rows_use_the_users_names(tmp_path: Path, layout: str) -> None:
    from mmrl.prompts.datasets import stand_in

    own = {"columns": {"prompt": "q", "answer": "a", "box": "b"}, "easyr1": {"problem": "q"}}.get(
        layout, {"instruction": "q"}
    )
    settings = stand_in(DatasetSettings(path="missing.parquet", layout=layout, columns=own), tmp_path, 0)
    prompts = load_dataset_prompts(settings)
    assert len(prompts) == 8 and all(prompt.media for prompt in prompts)
    if layout == "columns":
        assert all(set(prompt.target) == {"answer", "box"} for prompt in prompts)


TEXT_ROW = {"prompt": "Where?", "image": "a.png"}
SPOT = {"img_filename": "a.png", "instruction": "Go", "bbox": [1, 2, 3, 4]}
REC = {"image": "a.png", "problem": "Where?", "solution": [1, 2, 3, 4]}


@pytest.mark.parametrize(
    ("layout", "row", "message"),
    [
        ("columns", {}, "it has no field 'prompt'; its fields are none"),
        ("columns", {"prompt": None}, "its field 'prompt' is null"),
        ("columns", {"prompt": 3}, "'prompt' must be a text or a list of messages, got 3"),
        ("columns", {"prompt": "  "}, "its prompt is empty"),
        ("columns", {"prompt": [{"role": "user"}]}, "needs a role .* and content"),
        ("columns", {"prompt": [{"role": "tool", "content": "x"}]}, "needs a role"),
        ("columns", {"prompt": [{"role": "user", "content": "a"}] * 2}, "one message of the user .*, got user, user"),
        ("columns", {"prompt": [{"role": "user", "content": [{"type": "video"}]}]}, "must be a text or an image"),
        ("columns", {"prompt": "<image><image>?", "image": "a.png"}, "text has 2 marks <image>, but it has 1 images"),
        ("columns", {"prompt": "<video>?"}, "1 marks <video>, but it has 0 videos"),
        ("columns", {"prompt": "?", "videos": ["a.mp4"]}, "there is no video file 'a.mp4'"),
        ("r1_v", {"problem": "?", "solution": "3", "video": "a.mp4"}, "it has video, which this layout does not read"),
        ("columns", {"prompt": "?", "span": [3, 2]}, r"span needs start < end, got \[3, 2\]"),
        ("time_r1", {"video": "x.mp4", "timestamp": [0, 1], "sentence": "a"}, "there is no video file 'x.mp4'"),
        ("charades_sta", {"line": "AB 3.0##someone sits"}, "a line is `VIDEO start end##sentence`"),
        ("video_r1", {"problem": "?", "data_type": "audio", "solution": "1"}, "data_type must be 'image' or 'video'"),
        ("android_control", {"screenshot": "a.png", "goal": "g", "action": "tap"}, "an object with 'action_type'"),
        ("columns", {"prompt": [{"role": "user", "content": PARTS}], "image": "a.png"}, "images in its messages and"),
        ("columns", {"prompt": "?", "box": [1, 2, 3, 4]}, "box needs an image to lie on"),
        ("columns", TEXT_ROW | {"box": [1, 2, 3]}, r"box needs 4 numbers, got \[1, 2, 3\]"),
        ("columns", TEXT_ROW | {"box": [1, 2, "3", 4]}, "box needs 4 finite numbers"),
        ("columns", TEXT_ROW | {"box": [1, 2, True, 4]}, "box needs 4 finite numbers"),
        ("columns", TEXT_ROW | {"box": [1, 2, float("inf"), 4]}, "box needs 4 finite numbers"),
        ("columns", TEXT_ROW | {"box": "here"}, "box needs 4 numbers, got 'here'"),
        ("columns", TEXT_ROW | {"box": [30, 2, 10, 4]}, "box needs x1 < x2 and y1 < y2"),
        ("columns", TEXT_ROW | {"box": [1, 4, 3, 4]}, "box needs x1 < x2 and y1 < y2"),
        ("columns", TEXT_ROW | {"box": [1, 2, 82, 4]}, "lies outside of the image of 80 x 50 pixels"),
        ("columns", TEXT_ROW | {"box": [-2, 2, 5, 4]}, "lies outside of the image"),
        ("columns", TEXT_ROW | {"point": [1, 52]}, "lies outside of the image"),
        ("columns", TEXT_ROW | {"boxes": [[1, 2, 3, 4]], "labels": ["a", "b"]}, "there are 1 boxes and 2 labels"),
        ("columns", TEXT_ROW | {"boxes": 3}, "boxes needs a list, got 3"),
        ("columns", TEXT_ROW | {"labels": [1]}, "labels needs a list of texts"),
        ("columns", TEXT_ROW | {"action": 3}, "an action needs a name"),
        ("columns", TEXT_ROW | {"action": "clik"}, r"unknown action 'clik' \(did you mean 'click'\?\)"),
        ("columns", {"prompt": "?", "image": "b.png"}, "there is no image file 'b.png'"),
        ("verl", {"prompt": "?", "reward_model": "rule"}, "'reward_model' must hold 'ground_truth'"),
        ("easyr1", {"problem": "?"}, "it has no field 'answer'; its fields are problem"),
        ("r1_v", {"problem": "?", "solution": 3}, "the field 'solution' must be a text, got 3"),
        ("vlm_r1", {"conversations": [HUMAN], "image": "a.png"}, "its conversation has no answer of gpt"),
        ("vlm_r1", {"image": "a.png", "conversations": [HUMAN, {"from": "gpt", "value": [9, 7, 5, 3]}]}, "x1 < x2"),
        ("vlm_r1_rec", REC | {"solution": [0.1, 0.2, 0.3]}, "solution needs 4 numbers"),
        ("vlm_r1_rec", REC | {"image": ["a.png", "a.png"]}, "it needs one image in 'image', got 2"),
        ("vlm_r1_rec", {"problem": "?", "solution": [1, 2, 3, 4]}, "it needs one image in 'image', got 0"),
        ("screenspot", SPOT | {"bbox": [10, 20, 0, 5]}, "needs x1 < x2"),
        ("screenspot", SPOT | {"bbox": [60, 20, 70, 25]}, "outside of the image"),  # corners, taken for x, y, w, h
        ("screenspot_hf", {"image": "a.png", "instruction": "Go", "bbox": [10, 20, 30, 40]}, "outside of the image"),
        ("screenspot_pro", SPOT | {"img_size": [50, 80]}, r"img_size is \[50, 80\], but the image has 80 x 50 pixels"),
        ("osworld_g", OSWORLD | {"box_type": "refusal", "box_coordinates": [-1, -1, -1, -1]}, "got 'refusal'"),
        ("osworld_g", OSWORLD | {"box_coordinates": [1, 2, 3, 4]}, "x, y of three corners or more, got 4 numbers"),
        ("osworld_g", OSWORLD | {"box_coordinates": [1, 2, 3, 4, 500, 6]}, "corner 3 .* lies outside of the image"),
        ("refcoco", {"image": "a.png", "sent": "cat", "bbox": [1, 2, 3, 4], "width": 40, "height": 25},
         r"width and height are \(40, 25\), but the image has 80 x 50 pixels"),
        ("math_vista", VISTA | {"question_type": "free_form", "answer_type": "float", "answer": ""}, "must be a text"),
        ("math_vista", VISTA | {"question_type": "multi_choice", "answer_type": "text", "answer": "c",
                                "choices": ["a", "b"]}, "answer must be one of the choices"),
        ("mmmu", MMMU | {"options": "['a', 'b']", "answer": "A", "question_type": "multiple-choice",
                         "question": "Which <image 2>?"}, "it shows <image 2>, but has no field 'image_2'"),
        ("mmmu", MMMU | {"options": "['a', 3]", "answer": "A", "question_type": "multiple-choice"}, "list of texts"),
        ("mmmu", MMMU | {"id": "3", "answer": "A", "question_type": "open"}, "id must be SPLIT_SUBJECT_NUMBER"),
        ("gui_r1", CLICK | {"gt_bbox": [40, 10]}, "outside of the image"),  # pixels, taken for shares
        ("gui_r1", CLICK | {"gt_bbox": [0.1, 0.2, 0.3]}, "gt_bbox needs 2 or 4 numbers"),
        ("gui_g2", {"image_path": "a.png", "abs_box": [1, 2, 3, 4]}, "it has no field 'instruction'"),
        ("visual_rft", {"image": "a.png", "problem": "?", "solution": "<answer>many</answer>"}, "list of objects with"),
        ("visual_rft", {"image": "a.png", "problem": "?", "solution": "<answer>[{'Position': [1, 2]}]</answer>"},
         "Position 1 needs 4 numbers"),
        ("visual_rft_labels", {"image": "a.png", "problem": "?", "solution": "<answer> </answer>"}, "holds no label"),
        ("vlm_r1_ovd", {"image": "a.png", "conversations": [HUMAN, {"from": "gpt", "value": "cat"}]}, "a JSON list"),
        ("seg_zero", {"image": "a.png", "problem": "?", "solution": "<box>(1,2),(3,4)</box>"}, "needs <box>"),
        ("reason_seg", {"image": "a.png", "text": "?", "mask": [[True]]}, "the mask is of 1 x 1 pixels, the image"),
        ("reason_seg", {"image": "a.png", "text": "?", "mask": [[True], []]}, "rows of one length"),
        ("reason_seg", {"image": "a.png", "text": "?", "mask": [[False] * 80] * 50}, "the mask is empty"),
        ("refspatial", {"image": "a.png", "prompt": "?", "mask": "a.png"}, "the mask is empty"),
        ("crowd_vlm_r1", {"image": "a.png", "problem": "?", "solution": 2.5}, "a whole number of at least 0"),
        ("vision_r1", {"image": "a.png", "problem": "?", "solution": [[1, 2, 3, 4]]}, "pairs of a label and a box"),
        ("agentcpm_gui", {"image": "a.png", "conversations": [HUMAN]}, "no answer of the assistant"),
        ("agentcpm_gui", {"image": "a.png", "conversations": [HUMAN, {"from": "gpt", "value": "{}"}]}, "cannot be"),
        ("videochat_tracking", {"path": "..", "object": "duck", "gt": [[0, 0, 1, 1]]}, "lies outside of"),
        ("videochat_tracking", {"path": ".", "object": "duck", "gt": [[0, 0, 1, 1]] * 2}, "1 frames, but there are 2"),
        ("nextgqa", {"video": "x.mp4", "question": "?"}, "there is no video file 'x.mp4'"),
        ("ms_swift", {"messages": [{"role": "user", "content": "<ref-object>?"}], "objects": {}}, "more marks <ref-"),
        ("ms_swift", {"messages": [{"role": "user", "content": "<bbox>?"}]}, "a mark <bbox>"),
        ("ms_swift", {"messages": [{"role": "user", "content": "?"}], "images": ["a.png"],
                      "objects": {"bbox": [[1, 2, 3, 4]], "bbox_type": "norm1000"}}, "must be 'real' or 'norm1'"),
    ],
)  # fmt: skip
def test_a_row_that_does_not_fit_is_named(tmp_path: Path, layout: str, row: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=rf"prompts: .*rows\.jsonl, line 1: .*{message}"):
        by_hand(tmp_path, layout, row)


def test_a_missing_column_is_named_as_the_file_calls_it(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"it has no field 'question' \(for 'prompt'\); its fields are text"):
        by_hand(tmp_path, "columns", {"text": "?"}, columns={"prompt": "question"})


def test_rounding_may_push_a_box_over_the_edge_by_a_pixel(tmp_path: Path) -> None:
    prompt = by_hand(tmp_path, "columns", TEXT_ROW | {"box": [-0.6, 2, 80.9, 51]})
    assert prompt.target["box"] == (0.0, 2.0, 80.0, 50.0)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"Testpoint Description": ["red"]}, "it has 2 test points and 1 descriptions"),
        ({"Testpoints": [], "Testpoint Description": []}, "it has 0 test points"),
        ({"Testpoints": "Style"}, "Testpoints needs a list of texts"),
        ({"Primary Categories": None}, "Primary Categories and Secondary Categories must be texts"),
    ],
)
def test_broken_test_points_are_named(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    row = {"prompt_en": "Two red cubes", "sub_dims_en": json.dumps(POINTS | changes)}
    with pytest.raises(ConfigError, match=message):
        by_hand(tmp_path, "unigenbench", row)


def test_test_points_that_are_no_json_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="the field 'sub_dims_en' needs a JSON object, got 'Style'"):
        by_hand(tmp_path, "unigenbench", {"prompt_en": "a", "sub_dims_en": "Style"})


@pytest.mark.parametrize(
    ("solution", "message"),
    [("Yes\nTap OK", "must begin with Correct or Incorrect, got 'Yes"), ('Correct \n"\\n"', "holds no right action")],
)
def test_critiques_without_a_verdict_or_an_action_are_named(solution: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        by_hand(tmp_path, "gui_critic", {"images": ["a.png"], "problem": "Right?", "solution": solution})
