"""Files as their projects publish them, row by row and field by field, read as the shipped configs read them.

Where a row says `seen`, its fields were read in the published file or its card; the others are from the loaders of the
projects' code and from memory, and no file was at hand. Values are our own where theirs are long.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from functools import cache
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest

from mmrl.core.config import DatasetSettings, RunConfig, load_config
from mmrl.core.data import Prompt
from mmrl.core.reward_batches import Demands
from mmrl.media.video import StoredClip
from mmrl.prompts.datasets import load_dataset_prompts
from mmrl.scoring.scorer import build_scorer
from mmrl.system.errors import ConfigError
from tests.clips import encoded

WIDTH, HEIGHT = 640, 480  # of the images


@cache
def image(kind: str = "PNG") -> bytes:
    from PIL import Image

    file = BytesIO()
    Image.new("RGB", (WIDTH, HEIGHT), (90, 120, 200)).save(file, format=kind)
    return file.getvalue()


@cache
def mask() -> bytes:
    """A picture as large as the image, white in a rectangle."""
    from PIL import Image

    file, picture = BytesIO(), Image.new("L", (WIDTH, HEIGHT))
    picture.paste(255, (100, 50, 300, 150))
    picture.save(file, format="PNG")
    return file.getvalue()


def square() -> list[list[bool]]:
    """The same rectangle as rows of truth values."""
    return [[100 <= x < 300 and 50 <= y < 150 for x in range(WIDTH)] for y in range(HEIGHT)]


@cache
def video(seconds: float) -> bytes:
    return encoded(round(seconds * 2), 2)


@cache
def shipped(config: str) -> RunConfig:
    return load_config(config)


@cache
def demands(config: str) -> Demands:
    """What the rewards of a config need of a row, but for a mathematician, who needs a process of his own."""
    rewards = [reward for reward in shipped(config).rewards if reward["name"] != "math_answer"]
    return build_scorer(rewards, shipped(config).scoring).demands


@dataclass(frozen=True)
class Published:
    """A published row: where its media are under `images`, what is needed of it, and what it becomes."""

    config: str
    split: str
    row: dict[str, Any] | str
    needs: tuple[str, ...]  # fields without which the row is refused, by name
    text: str  # how the prompt begins, without the template
    target: dict[str, Any]
    media: dict[str, float | None] = field(default_factory=dict)  # path -> seconds of a video, None of an image
    file: int = 0  # which of several files


def struct(content: bytes) -> dict[str, Any]:
    """An image as the hub's parquet files hold it."""
    return {"bytes": content, "path": None}


CARD = {  # seen: the card of yuvalkirstain/pickapic_v2
    "are_different": True, "best_image_uid": "b", "caption": "a fox in the snow", "created_at": datetime(2023, 3, 1),
    "has_label": True, "image_0_uid": "a", "image_0_url": "https://x/a.png", "image_1_uid": "b",
    "image_1_url": "https://x/b.png", "jpg_0": image("JPEG"), "jpg_1": image("PNG"), "label_0": 0.0, "label_1": 1.0,
    "model_0": "SDXL", "model_1": "SDXL", "ranking_id": 1, "user_id": 2, "num_example_per_prompt": 3,
    "__index_level_0__": 4,
}  # fmt: skip
ROWS = [
    Published(  # seen: xiaomi-research/time-r1, dataset/timer1/annotations/train_2k5.json, commit 6e92470
        "time_r1_qwen25vl_7b", "train",
        {"video": "./dataset/timer1/videos/timerft_data/QtWT8rxUuNk.mp4", "duration": 93.2932, "timestamp": [1.0, 4.0],
         "sentence": "A purple hanger on a purple background demonstrates how to hang a sweater.",
         "qid": "my|cosmo|QtWT8rxUuNk|A purple hanger", "video_start": None, "video_end": None, "difficulty": 50.0,
         "pred": [0.0, 3.0]},
        ("video", "timestamp", "sentence", "duration"), "a purple hanger on a purple background",
        {"span": (1.0, 4.0), "duration": 93.2932},
        {"dataset/timer1/videos/timerft_data/QtWT8rxUuNk.mp4": 93.5},
    ),
    Published(  # seen: the second row there, of a file that is cut already
        "time_r1_qwen25vl_7b", "train",
        {"video": "./dataset/timer1/videos/timerft_data/4jujhM5qhEc_00:00:39:000_00:01:24:700.mp4", "duration": 45.7,
         "timestamp": [34.9, 41.9], "sentence": "the statue of a man on horseback with four birds", "qid": "my|x",
         "video_start": 39.0, "video_end": 84.7, "difficulty": 41.046, "pred": [37.82, 44.84]},
        ("video", "timestamp", "sentence"), "the statue of a man on horseback", {"span": (34.9, 41.9)},
        {"dataset/timer1/videos/timerft_data/4jujhM5qhEc_00:00:39:000_00:01:24:700.mp4": 45.5},
    ),
    Published(  # seen: tvgbench.json beside it, commit 6e92470; the answer ends behind the video
        "time_r1_qwen25vl_7b", "held_out",
        {"path": "./dataset/timer1/videos/tvgbench_data/BLWIW.mp4", "question": "person looking out the window.",
         "answer": "13.0-19.0", "start": None, "end": None, "duration": 17.58,
         "question_type": "video temporal grounding", "source": "./x.json", "dataset_name": "charades",
         "qsemtype": "Human Pose", "bins": {"videolen": 0, "qcenter": 9, "qlen": 5}},
        ("path", "question", "answer"), "person looking out the window", {"span": (13.0, 19.0), "duration": 17.58},
        {"dataset/timer1/videos/tvgbench_data/BLWIW.mp4": 17.5},
    ),
    Published(  # Charades-STA of Gao et al. 2017
        "videochat_r1_qwen25vl_7b_temporal", "train", "3MSZA 24.3 30.4##person turn a light on.", (),
        "person turn a light on", {"span": (24.3, 30.4)}, {"3MSZA.mp4": 31},
    ),
    Published(  # seen: the fields of such rows on a copy of the card of Video-R1/Video-R1-data
        "video_r1_qwen25vl_7b", "train",
        {"problem_id": 2, "problem": "What appears on the screen before the person types?", "data_type": "video",
         "problem_type": "multiple choice", "options": ["A. A logo", "B. A map", "C. A cat"],
         "solution": "<answer>A</answer>", "path": "./LLaVA-Video-178K/0_30_s_academic_v0_1/cooking/a.mp4",
         "data_source": "LLaVA-Video-178K/0_30_s_academic_v0_1"},
        ("problem", "data_type", "path", "solution"),
        "What appears on the screen before the person types?\nOptions:\nA. A logo\nB. A map\nC. A cat",
        {"answer": "A", "problem_type": "multiple choice", "options": ("A. A logo", "B. A map", "C. A cat")},
        {"LLaVA-Video-178K/0_30_s_academic_v0_1/cooking/a.mp4": 4},
    ),
    *(
        Published(
            "video_r1_qwen25vl_7b", "train",
            {"problem_id": 3, "problem": "What is asked?", "data_type": "image", "problem_type": kind, "options": [],
             "solution": f"<answer>{answer}</answer>", "path": "./Math/Multimath-300k/1.png", "data_source": "Math"},
            (), "What is asked?", {"answer": answer, "problem_type": kind},
            {"Math/Multimath-300k/1.png": None},
        )
        for kind, answer in (("numerical", "3.5"), ("OCR", "BUS STOP"), ("free-form", "a red bus"), ("regression", "8"))
    ),
    Published(  # seen: the card of hiyouga/geometry3k
        "geometry3k_qwen25vl_7b", "train",
        {"images": [struct(image())], "problem": "<image>Find x.", "answer": "2 \\sqrt { 221 }", "id": 1,
         "choices": ["1", "2"], "ground_truth": "A"},
        ("images", "problem", "answer"), "<image>Find x.", {"answer": "2 \\sqrt { 221 }"},
    ),
    Published(  # rec_jsons_processed of omlab/VLM-R1
        "grpo_qwen25vl_3b_refcoco", "train",
        {"id": 1, "image": "train2014/COCO_train2014_000000581857.jpg", "conversations": [
            {"from": "human", "value": "<image>Please provide the bounding box coordinate of the region this sentence "
             "describes: the lady with the blue shirt."}, {"from": "gpt", "value": [103.93, 40.5, 380.2, 300.0]}],
         "accu_reward_method": "default"},
        ("image", "conversations"), "<image>Please provide the bounding box coordinate",
        {"box": (103.93, 40.5, 380.2, 300.0)}, {"train2014/COCO_train2014_000000581857.jpg": None},
    ),
    Published(
        "grpo_qwen25vl_3b_refcoco", "held_out",
        {"image": "train2014/COCO_train2014_000000000009.jpg", "problem": "Please provide the bounding box.",
         "solution": [10.0, 20.5, 300.0, 400.0], "normalized_solution": [15, 42, 468, 833], "dataset": "refcoco_val"},
        ("image", "problem", "solution"), "Please provide the bounding box.", {"box": (10.0, 20.5, 300.0, 400.0)},
        {"train2014/COCO_train2014_000000000009.jpg": None},
    ),
    Published(  # seen: image, problem and solution on the cards of laolao77's data sets of the same form
        "visual_rft_qwen2vl_2b_detection", "train",
        {"image": struct(image("JPEG")), "problem": "Detect all objects belonging to the category 'person' here.",
         "solution": "<answer>[{'Position': [120, 40, 560, 900], 'Confidence': 1}]</answer>"},
        ("image", "problem", "solution"), "Detect all objects belonging to the category 'person'",
        {"boxes": ((76.8, 19.2, 358.4, 432.0),)},
    ),
    Published(  # ZJU-REAL/GUI-G2, src/gui_g2/src/open_r1/gaussian_grpo.py, commit 3e5988e: what its loader reads
        "gui_g2_qwen25vl_7b", "train",
        {"image": "a/screen.png", "image_path": "/data/share/screens/a/screen.png", "instruction": "close the window",
         "abs_box": [600, 4, 630, 30]},
        ("instruction", "abs_box"), "close the window", {"box": (600.0, 4.0, 630.0, 30.0)}, {"a/screen.png": None},
    ),
    Published(  # OS-Copilot/ScreenSpot-v2
        "gui_g2_qwen25vl_7b", "held_out",
        {"img_filename": "pc_ede36f9b-1154-4f76-b7f8-c15d7d3f9b6e.png", "bbox": [600, 4, 30, 20],
         "instruction": "close this window", "data_type": "icon", "data_source": "windows"},
        ("img_filename", "bbox", "instruction"), "close this window", {"box": (600.0, 4.0, 630.0, 24.0)},
        {"pc_ede36f9b-1154-4f76-b7f8-c15d7d3f9b6e.png": None},
    ),
    Published(  # ritzzai/GUI-R1
        "gui_r1_qwen25vl_3b", "train",
        {"image": struct(image()), "gt_bbox": [0.5, 0.25], "instruction": "open the settings", "id": "1",
         "gt_action": "click", "gt_input_text": "no input text", "history": "None", "task_type": "high"},
        ("image", "instruction", "gt_action"), "open the settings", {"action": "click", "point": (320.0, 120.0)},
    ),
    Published(  # LZXzju/UI-R1-3B-Train
        "ui_r1_qwen25vl_3b", "train",
        {"img_filename": "screen_1.png", "instruction": "open the menu", "bbox": [10, 20, 60, 70]},
        ("img_filename", "instruction"), "open the menu", {"action": "click", "box": (10.0, 20.0, 60.0, 70.0)},
        {"screen_1.png": None},
    ),
    Published(  # seen: the card of BAAI/RefSpatial-Bench
        "roborefer_qwen25vl_3b", "held_out",
        {"id": 3, "image": struct(image()), "mask": struct(mask()), "object": "the cup behind the plate",
         "prompt": "Please point out the cup behind the plate.", "suffix": "Your answer should be one point.",
         "step": 2},
        ("image", "mask", "prompt"), "Please point out the cup behind the plate. Your answer should be one point.",
        {"object": "the cup behind the plate", "step": 2},
    ),
    Published(  # seen: dataset_info.json of JefferyZhan/Vision-R1-Data; visionr1_qwen.py (499aa8b) parses `solution`
        "vision_r1_qwen25vl_7b", "train",
        {"problem": "Locate every person in the image.", "image": struct(image()), "width": WIDTH, "height": HEIGHT,
         "solution": '[["person", [10.0, 20.0, 110.0, 220.0]]]', "num_instances": 1, "target_id_maps": '{"person": 1}',
         "source": "coco"},
        ("image", "problem", "solution"), "Locate every person in the image.",
        {"boxes": ((10.0, 20.0, 110.0, 220.0),), "labels": ("person",)},
    ),
    Published(  # seen: the card of a copy of Ricky06662/ReasonSeg_val (daehyeonchoi/ReasonSeg_val)
        "visual_rft_qwen2vl_2b_grounding", "held_out",
        {"image": struct(image()), "text": "what can be drunk from", "mask": square(), "image_id": "1", "ann_id": "0",
         "img_height": HEIGHT, "img_width": WIDTH},
        ("image", "text", "mask"), "what can be drunk from", {"box": (100.0, 50.0, 300.0, 150.0)},
    ),
    Published(  # seen: the card of a copy of lmms-lab/textvqa (pppop7/textvqa)
        "grpo_qwen25vl_3b_textvqa", "train",
        {"image_id": "0054c91397f2fe05", "question_id": 0, "question": "what is the brand of phone?",
         "question_tokens": ["what", "is", "the", "brand", "of", "phone"], "image": struct(image("JPEG")),
         "image_width": WIDTH, "image_height": HEIGHT, "flickr_original_url": "https://x/a_o.jpg",
         "flickr_300k_url": "https://x/a_z.jpg", "answers": ["nokia"] * 8 + ["toshiba", "nokia 3"],
         "image_classes": ["Mobile phone"], "set_name": "train", "ocr_tokens": ["NOKIA"]},
        ("question", "answers"), "what is the brand of phone?", {"answers": ("nokia",) * 8 + ("toshiba", "nokia 3")},
    ),
    Published(
        "diffusion_dpo_sd15", "train", CARD, ("caption", "jpg_0", "jpg_1", "label_0"), "a fox in the snow",
        {"given_scores": (1.0, 0.0)},
    ),
]  # fmt: skip
IDS = [f"{one.config}-{one.split}-{number}" for number, one in enumerate(ROWS)]


def written(one: Published, folder: Path, row: dict[str, Any] | str) -> DatasetSettings:
    """Writes the row and its media under `folder`, where the config looks for them; returns the config's settings."""
    settings = getattr(shipped(one.config).prompts, one.split)
    assert isinstance(settings, DatasetSettings)
    path = folder / (settings.path if isinstance(settings.path, str) else settings.path[one.file])
    root = folder / (settings.images or Path(path).parent)
    for name, seconds in one.media.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(image() if seconds is None else video(seconds))
    (path.parent if path.suffix else path / "data").mkdir(parents=True, exist_ok=True)
    root.mkdir(parents=True, exist_ok=True)
    WRITERS[path.suffix](path, row)
    return settings.model_copy(
        update={"path": str(path), "images": str(root), "cache": str(folder / "cache"), "bad_rows": "fail"}
    )


def parquet(path: Path, row: Any) -> None:
    import pyarrow
    import pyarrow.parquet

    pyarrow.parquet.write_table(pyarrow.Table.from_pylist([row]), path)


WRITERS: dict[str, Callable[[Path, Any], Any]] = {
    ".json": lambda path, row: path.write_text(json.dumps([row])),
    ".jsonl": lambda path, row: path.write_text(json.dumps(row) + "\n"),
    ".txt": lambda path, row: path.write_text(f"{row}\n"),
    ".parquet": parquet,
    "": lambda path, row: parquet(path / "data" / "train-00000-of-00001.parquet", row),
}


def read(one: Published, folder: Path, row: dict[str, Any] | str) -> Prompt:
    """The row as the config reads it."""
    (prompt,) = load_dataset_prompts(written(one, folder, row), demands(one.config))
    return prompt


PARQUET = ("geometry3k", "visual_rft", "gui_r1", "diffusion_dpo", "roborefer", "vision_r1", "textvqa")


def is_slow(one: Published) -> bool:
    """Whether `datasets` writes its copy of a parquet file, or a long video is encoded."""
    return any(name in one.config for name in PARQUET) or any(
        seconds is not None and seconds > 30 for seconds in one.media.values()
    )


CASES = [
    pytest.param(one, id=name, marks=[pytest.mark.slow] if is_slow(one) else [])
    for one, name in zip(ROWS, IDS, strict=True)
]


@pytest.mark.parametrize("one", CASES)
def test_a_published_row_is_read(one: Published, tmp_path: Path) -> None:
    prompt = read(one, tmp_path, one.row)
    template = getattr(shipped(one.config).prompts, one.split).template or "{prompt}"
    assert prompt.text.startswith(template.partition("{prompt}")[0] + one.text)
    for name, value in one.target.items():
        found, expected = prompt.target[name], value
        if name == "boxes":
            (found,), (expected,) = found, expected
        assert found == (pytest.approx(expected) if name in ("box", "boxes") else expected), name


@pytest.mark.parametrize("one", CASES)
def test_a_field_that_is_missing_is_named(one: Published, tmp_path: Path) -> None:
    for number, name in enumerate(one.needs):
        assert isinstance(one.row, dict)
        row = {key: value for key, value in one.row.items() if key != name}
        folder = tmp_path / str(number)
        with pytest.raises(ConfigError, match=f"'{name}'"):
            read(one, folder, row)


def part(prompt: Prompt) -> tuple[float | None, float | None]:
    """From where to where the video of a prompt is shown."""
    (clip,) = prompt.clips
    assert isinstance(clip, StoredClip)
    return clip.start, clip.end


@pytest.mark.slow
def test_a_part_of_a_whole_video_is_cut(tmp_path: Path) -> None:
    whole = ROWS[1]
    (name,) = whole.media
    prompt = read(Published(whole.config, "train", whole.row, (), "", {}, {name: 86}), tmp_path, whole.row)
    assert part(prompt) == (39.0, 84.7)
    cut = read(whole, tmp_path / "cut", whole.row)
    assert part(cut) == (None, None)


def charades(folder: Path, about: Any) -> tuple[Prompt, ...]:
    (folder / "AO8RW.mp4").write_bytes(video(33))
    (folder / "train.json").write_text(json.dumps({"AO8RW": about}))
    return load_dataset_prompts(DatasetSettings(path=str(folder / "train.json"), layout="videochat_r1_charades"))


def test_videochat_r1s_charades_has_several_sentences_for_a_video(tmp_path: Path) -> None:
    """The form of VideoChat-R1's and TimeZero's loaders; the file itself was not at hand."""
    about = {"duration": 33.67, "timestamps": [[0.0, 6.9], [30.0, 36.0]], "sentences": ["A person puts.", "She sits."]}
    prompts = charades(tmp_path, about)
    assert [prompt.text for prompt in prompts] == ["a person puts", "she sits"]
    assert [prompt.target for prompt in prompts] == [
        {"span": (0.0, 6.9), "duration": 33.67}, {"span": (30.0, 36.0), "duration": 33.67},
    ]  # fmt: skip
    assert prompts[1].source == f"{tmp_path}/train.json, video 'AO8RW', sentence 2"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"sentences": ["one"]}, "video 'AO8RW' needs as many timestamps as sentences"),
        ({"timestamps": None}, "needs as many timestamps as sentences, in lists"),
        ({"duration": None}, "sentence 1: its field 'duration' is null"),
        ({"timestamps": [[40, 50], [1, 2]]}, r"needs start < end, within 33 seconds of video, got \[40, 50\]"),
    ],
)
def test_a_broken_object_of_charades_is_named(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    about = {"duration": 33.0, "timestamps": [[0.0, 6.9], [30.0, 36.0]], "sentences": ["a", "b"]}
    with pytest.raises(ConfigError, match=message):
        charades(tmp_path, about | change)


@pytest.mark.slow  # `datasets` writes its copy
def test_ties_of_pick_a_pic_are_left_out_and_the_preferred_image_comes_first(tmp_path: Path) -> None:
    import pyarrow
    import pyarrow.parquet

    (tmp_path / "data").mkdir()
    rows = [CARD, CARD | {"label_0": 0.5, "label_1": 0.5}, CARD | {"label_0": 1.0, "label_1": 0.0}]
    for number, part in enumerate((rows[:2], rows[2:])):
        path = tmp_path / "data" / f"train-0000{number}-of-00002.parquet"
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(part), path)
    settings = shipped("diffusion_dpo_sd15").prompts.train
    assert isinstance(settings, DatasetSettings)
    changes = {"path": str(tmp_path), "cache": str(tmp_path / "cache")}
    prompts = load_dataset_prompts(settings.model_copy(update=changes))
    assert len(prompts) == 2
    contents = [[bytes(picture.content) for picture in prompt.target["given"]] for prompt in prompts]
    assert contents == [[image("PNG"), image("JPEG")], [image("JPEG"), image("PNG")]]
    with pytest.raises(ConfigError, match=r"label_0 must be 1 .* got 0\.5; 0\.5 is a tie"):
        load_dataset_prompts(settings.model_copy(update=changes | {"bad_rows": "fail"}))
