"""Writes docs/reward_reference.md from the rewards themselves: `python scripts/reward_reference.py`."""

import importlib
import inspect
import math
from pathlib import Path
from typing import Any

from settings_source import escaped, markdown, table

from mmrl.core import plugins

FILE = Path(__file__).parents[1] / "docs" / "reward_reference.md"
GROUPS: dict[str, tuple[str, ...]] = {
    "Geometry and GUI": (
        "box_iou", "classification", "click_distance", "count", "detection", "gaussian_click", "gui_action", "gui_g1",
        "mask_iou", "point_in_box", "seg_zero", "tracking_iou",
    ),
    "Time": ("temporal_contrast", "temporal_iou", "temporal_segments"),
    "Text and reasoning": (
        "anls", "answer_consistency", "bleu", "cider", "exact_answer", "finished", "format_tags", "grounded_boxes",
        "json_schema", "length_window", "majority_vote", "math_answer", "multiple_choice", "number", "overlong",
        "repetition", "response_diversity", "rouge", "semantic_similarity", "text_f1", "vqa_soft", "wer",
    ),
    "Images": (
        "aesthetic", "clip_score", "diversity", "geneval", "hps_v2", "image_reward", "image_similarity", "jpeg_size",
        "ocr_text", "pairwise_judge", "pick_score", "siglip_score", "vqa_score",
    ),
    "Video": ("flicker", "frame_mean", "motion_smoothness"),
    "Episodes, labs and labels": ("episode_success", "given_score", "shapes", "soft_shapes", "step_reward"),
    "Wrappers": (
        "annealed", "cached", "clip_range", "delta", "dithered", "gated", "length_penalised", "router",
        "running_normalised", "text_norm", "trusted", "uncertainty_weighted", "win_rate",
    ),
    "A function of your own": ("python",),
}  # fmt: skip
HEAD = """# Every reward

Written from the code by `python scripts/reward_reference.py`; the guide to choosing and mixing is
[rewards.md](rewards.md). A setting whose default is *needed* must be given. `weight` and `label` go with every reward
([configs.md](configs.md#every-reward)).
"""


def reference() -> str:
    """Returns the page. Raises ValueError where GROUPS lacks a shipped reward, or holds a name of none."""
    grouped = [name for names in GROUPS.values() for name in names]
    shipped = plugins.names("rewards")
    if wrong := sorted(set(shipped).symmetric_difference(grouped)):
        raise ValueError(f"GROUPS of scripts/reward_reference.py must hold each shipped reward once; see {wrong}")
    parts = [HEAD]
    for group, names in GROUPS.items():
        parts += [f"## {group}\n", *(section(name) for name in sorted(names))]
    return "\n".join(parts)


def section(name: str) -> str:
    """Returns what the code says of one reward."""
    cls: Any = plugins.find("rewards", name)
    summary = inspect.cleandoc(importlib.import_module(cls.__module__).__doc__ or "")
    parts = [f"### {name}", escaped(summary), declared(cls), markdown(inspect.cleandoc(cls.__doc__ or ""))]
    return "\n\n".join([*parts, table(cls, {})]) + "\n"


def declared(cls: Any) -> str:
    """Returns one line: what the reward judges, its range, what it needs, and where it comes from."""
    needs = ", ".join(f"`{need}`" for need in sorted(cls.needs))
    if held := sorted(plugins.inner_kinds(cls)):
        where = " and ".join(f"`{name}`" for name in held)
        said = [f"Holds what stands in {where}, and has the range and the needs that follow from it"]
        said += [] if cls.granularity == "sample" else [f"judges each {cls.granularity}"]
        said += [f"needs {needs} too"] if needs else []
    else:
        said = [f"Judges each {cls.granularity}", f"{end(cls.range[0])} to {end(cls.range[1])}"]
        said += [f"needs {needs}"] if needs else []
        said += ["differentiable"] if cls.differentiable else []
        said += [f"{cls.batch_size} samples at once"] if cls.batch_size else []
    return "*" + "; ".join([*said, f"source: {escaped(cls.source)}"]) + ".*"


def end(number: float) -> str:
    return ("-" if number < 0 else "") + "infinity" if math.isinf(number) else f"{number:g}"


if __name__ == "__main__":
    FILE.write_text(reference(), encoding="utf-8")
    print(FILE)
