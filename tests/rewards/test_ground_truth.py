"""The ground truth of every layout of data earns full marks."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from mmrl.core.contracts import RewardBatch
from mmrl.core.data import Outputs, Prompt
from mmrl.core.plugins import build
from mmrl.parsing.actions.action import Action
from mmrl.parsing.coordinates import Canvas, Convention, format_box, format_point
from mmrl.prompts.datasets import layout_names, load_dataset_prompts, write_synthetic

Make = Callable[..., RewardBatch]
# of fields of a target: the reward that reads it, and the answer that it finds right
ANSWERS: dict[str, tuple[dict[str, Any], Callable[[Any], str]]] = {
    "answer": ({"name": "exact_answer"}, str),
    "count": ({"name": "count"}, str),
    "label": ({"name": "classification"}, lambda label: label if isinstance(label, str) else label[0]),
    "mask": ({"name": "mask_iou"}, json.dumps),
    "span": ({"name": "temporal_iou"}, lambda span: "{} to {}".format(*span)),
    "track": ({"name": "tracking_iou", "units": "target"}, json.dumps),
}
FINE: tuple[Convention, ...] = ("original", "unit")  # a grid that small boxes survive


def score(
    make_batch: Make, reward: dict[str, Any], prompts: list[Prompt], texts: list[str], canvases: Any = None
) -> list[float]:
    batch = make_batch(
        Outputs(texts=tuple(texts), canvases=canvases), [p.text for p in prompts], [p.target for p in prompts]
    )
    scores: list[float] = build("rewards", reward).score(batch).tolist()
    return scores


@pytest.mark.parametrize("layout", layout_names())
def test_the_ground_truth_of_every_layout_earns_full_marks(layout: str, make_batch: Make, tmp_path: Path) -> None:
    prompts = load_dataset_prompts(write_synthetic(layout, tmp_path, 6, 1))
    boxed = [prompt for prompt in prompts if "box" in prompt.target]
    answered = [(prompt, field) for prompt in prompts for field in ANSWERS if field in prompt.target]
    acted = [prompt for prompt in prompts if "point" in prompt.target and "box" not in prompt.target]
    judged = [prompt for prompt in prompts if "given_scores" in prompt.target]  # outputs that the data brings
    conditioned = [prompt for prompt in prompts if prompt.roles]  # a picture to edit: no answer is the true one
    asked = [prompt for prompt in prompts if "criteria" in prompt.target]  # of a picture to draw: a judge grades them
    is_of_pictures = layout in (
        "drawbench",
        "dsg",
        "geneval",
        "geneval2",
        "lines",
        "vbench",
    )  # texts that pictures are made from
    assert boxed or answered or acted or judged or conditioned or asked or is_of_pictures
    for convention in FINE:
        canvases = tuple(Canvas(prompt.media[0].load().size, (84, 56), convention) for prompt in boxed)
        pairs = list(zip((prompt.target["box"] for prompt in boxed), canvases, strict=True))
        boxes = [f"[{format_box(box, canvas)}]" for box, canvas in pairs]
        centres = [f"({format_point(((x1 + x2) / 2, (y1 + y2) / 2), canvas)})" for (x1, y1, x2, y2), canvas in pairs]
        if boxed:
            answers = [f"<answer>{box}</answer>" for box in boxes]
            assert score(make_batch, {"name": "box_iou"}, boxed, answers, canvases) == pytest.approx(
                [1] * len(boxed), abs=0.03
            )
            clicks = score(make_batch, {"name": "gaussian_click"}, boxed, boxes, canvases)
            assert clicks == pytest.approx([1] * len(boxed), abs=0.03)
            assert score(make_batch, {"name": "point_in_box"}, boxed, centres, canvases) == [1] * len(boxed)
    for prompt, field in answered:
        reward, written = ANSWERS[field]
        canvas = Canvas(prompt.media[0].load().size, (84, 56), "original") if prompt.media else None
        text = f"<answer>{written(prompt.target[field])}</answer>"
        assert score(make_batch, reward, [prompt], [text], (canvas,)) == [1], field
    for prompt in acted:
        clicked = Outputs(
            actions=(Action("click", point=prompt.target["point"]),),
            canvases=(Canvas(prompt.media[0].size, (84, 56), "original"),),
        )
        batch = make_batch(clicked, [prompt.text], [prompt.target])
        assert build("rewards", {"name": "gui_action"}).score(batch).tolist() == [1]
    for prompt in judged:
        scores = prompt.target["given_scores"]
        best = Outputs(given=torch.tensor([scores.index(max(scores))]))
        batch = make_batch(best, [prompt.text], [prompt.target])
        assert build("rewards", {"name": "given_score"}).score(batch).tolist() == [1]
