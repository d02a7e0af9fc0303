"""The ground truth of every layout of data earns full marks."""

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
FINE: tuple[Convention, ...] = ("original", "unit")  # a grid that small boxes survive


def score(make_batch: Make, name: str, prompts: list[Prompt], texts: list[str], canvases: Any = None) -> list[float]:
    batch = make_batch(
        Outputs(texts=tuple(texts), canvases=canvases), [p.text for p in prompts], [p.target for p in prompts]
    )
    scores: list[float] = build("rewards", {"name": name}).score(batch).tolist()
    return scores


@pytest.mark.parametrize("layout", layout_names())
def test_the_ground_truth_of_every_layout_earns_full_marks(layout: str, make_batch: Make, tmp_path: Path) -> None:
    prompts = load_dataset_prompts(write_synthetic(layout, tmp_path, 6, 1))
    boxed = [prompt for prompt in prompts if "box" in prompt.target]
    answered = [prompt for prompt in prompts if "answer" in prompt.target]
    spanned = [prompt for prompt in prompts if "span" in prompt.target]
    acted = [prompt for prompt in prompts if "point" in prompt.target and "box" not in prompt.target]
    judged = [prompt for prompt in prompts if "given_scores" in prompt.target]  # outputs that the data brings
    conditioned = [prompt for prompt in prompts if prompt.roles]  # a picture to edit: no answer is the true one
    assert boxed or answered or spanned or acted or judged or conditioned
    for convention in FINE:
        canvases = tuple(Canvas(prompt.media[0].load().size, (84, 56), convention) for prompt in boxed)
        pairs = list(zip((prompt.target["box"] for prompt in boxed), canvases, strict=True))
        boxes = [f"[{format_box(box, canvas)}]" for box, canvas in pairs]
        centres = [f"({format_point(((x1 + x2) / 2, (y1 + y2) / 2), canvas)})" for (x1, y1, x2, y2), canvas in pairs]
        if boxed:
            answers = [f"<answer>{box}</answer>" for box in boxes]
            assert score(make_batch, "box_iou", boxed, answers, canvases) == pytest.approx([1] * len(boxed), abs=0.03)
            clicks = score(make_batch, "gaussian_click", boxed, boxes, canvases)
            assert clicks == pytest.approx([1] * len(boxed), abs=0.03)
            assert score(make_batch, "point_in_box", boxed, centres, canvases) == [1] * len(boxed)
    if spanned:
        spans = ["<answer>{} to {}</answer>".format(*prompt.target["span"]) for prompt in spanned]
        assert score(make_batch, "temporal_iou", spanned, spans) == [1] * len(spanned)
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
    if answered:
        texts = [f"<answer>{prompt.target['answer']}</answer>" for prompt in answered]
        assert score(make_batch, "exact_answer", answered, texts) == [1] * len(answered)
