"""Writes docs/reward_reference.md from the rewards themselves: `python scripts/reward_reference.py`."""

import importlib
import inspect
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import page_tables
from settings_source import escaped, markdown, table

from mmrl.commands import listing
from mmrl.core import plugins
from mmrl.rewards.base.judging.settings import JudgeModel

FILE = Path(__file__).parents[1] / "docs" / "reward_reference.md"
LINKS: dict[type, str] = {JudgeModel: "judge_prompts.md#settings-of-a-judge"}
GROUPS: dict[str, tuple[str, ...]] = {
    "Geometry and GUI": (
        "box_count", "box_iou", "classification", "click_distance", "count", "detection", "gaussian_click",
        "gui_action", "gui_g1", "mask_iou", "point_in_box", "region_coverage", "seg_zero", "tracking_iou",
    ),
    "Time": ("temporal_contrast", "temporal_iou", "temporal_segments"),
    "Text and reasoning": (
        "anls", "answer_consistency", "answer_likelihood", "best_scored", "bleu", "cider", "code_similarity",
        "exact_answer", "finished", "format_tags", "grounded_boxes", "implicit_prm", "json_schema",
        "label_tree", "length_curve", "length_window", "listener", "majority_vote", "math_answer",
        "multiple_choice", "number", "overlong", "reference_steps", "repetition", "response_diversity", "rouge",
        "self_certainty", "semantic_similarity", "semantic_vote", "teds", "text_f1", "tool_call", "vqa_soft",
        "wer",
    ),
    "Images": (
        "aesthetic", "clip_score", "depth_consistency", "deqa", "diversity", "edge_consistency", "edit_reward",
        "face_similarity", "geneval", "geneval2", "hps_v2", "hps_v3", "image_reward", "image_similarity",
        "jpeg_size", "kept_outside_mask", "mask_consistency", "mps", "nsfw_penalty", "ocr_text",
        "pairwise_judge", "pick_score", "question_graph", "siglip_score", "vision_reward", "vqa_score",
    ),
    "Judges that write": ("segment_judge", "text_judge", "unified_reward", "vlm_judge"),
    "Video": (
        "dynamic_degree", "flicker", "frame_mean", "frame_similarity", "motion_smoothness",
        "subject_consistency", "video_align", "video_score",
    ),
    "Sound": ("clap", "imagebind"),
    "Sets of images, sounds or answers": ("exemplar", "frechet", "vendi"),
    "Episodes, labs and labels": (
        "curiosity", "edits", "episode_success", "given_score", "human", "information_gain", "invalid_action", "motion",
        "shapes", "soft_shapes", "step_reward",
    ),
    "Wrappers": (
        "annealed", "cached", "clip_and_delta", "clip_range", "conditional", "constrained", "delta", "dithered",
        "format_diversity",
        "gated", "generate_then_score", "group_gate", "latent_surrogate", "length_penalised", "par", "preference_head",
        "progress", "renormalised", "repeated", "router", "running_normalised", "text_norm", "threshold", "trusted",
        "uncertainty_weighted", "unlikeliness", "weighted", "win_rate",
    ),
    "A function of your own": ("python",),
    "On another machine": ("http",),
    "Judges with a head of one number": ("scalar_head",),
    "Reward models on the policy's base": ("adapter_score",),
}  # fmt: skip
HEAD = """# Every reward

Written from the code by `python scripts/reward_reference.py`; the guide to choosing and mixing is
[rewards.md](rewards.md). A setting whose default is *needed* must be given. `weight`, `label` and `device` go with
every reward ([configs.md](configs.md#every-reward)).

## At a glance

By what is judged. *Weights* is the licence of what a reward loads by default, as its model card says; a reward with an
empty cell loads nothing. Other weights, which a setting may name, have licences of their own.
"""
MIXES = """
## Mixes

Several rewards become one number by the run's [`mix`](configs.md#mix); their weights may change over the iterations.
"""


def reference() -> str:
    """Returns the page. Raises ValueError where GROUPS lacks a shipped reward, or holds a name of none."""
    grouped = [name for names in GROUPS.values() for name in names]
    shipped = plugins.names("rewards")
    if wrong := sorted(set(shipped).symmetric_difference(grouped)):
        raise ValueError(f"GROUPS of scripts/reward_reference.py must hold each shipped reward once; see {wrong}")
    known = {row["name"]: row for row in listing.rows("rewards")}
    parts = [HEAD, overview(known), MIXES, mixes() + "\n"]
    for group, names in GROUPS.items():
        parts += [f"## {group}\n", *(section(name, known[name]) for name in sorted(names))]
    return "\n".join(parts)


def overview(known: Mapping[str, Mapping[str, Any]]) -> str:
    """Returns the table of all rewards: what each says, its range, and the licence of its weights."""
    rows: list[tuple[str, ...]] = []
    for group, names in GROUPS.items():
        rows.append((f"**{group}**", "", "", ""))
        for name in sorted(names):
            row = known[name]
            span = "the inner one's" if row["holds"] else in_words(plugins.find("rewards", name).range)  # type: ignore[attr-defined]
            rows.append((f"[`{name}`](#{name})", escaped(row["summary"]), span, listing.weights(row)))
    return page_tables.table(("reward", "what it says", "range", "weights"), rows)


def in_words(ends: tuple[float, float]) -> str:
    """Returns a range in few words."""
    if math.isinf(ends[0]):
        return "any" if math.isinf(ends[1]) else f"up to {end(ends[1])}"
    return f"{end(ends[0])} to {end(ends[1])}"


def mixes() -> str:
    names = plugins.names("mixes")
    rows = [(page_tables.plugin_link("mixes", name), page_tables.summary("mixes", name)) for name in names]
    return page_tables.table(("mix", "the number"), rows)


def section(name: str, row: Mapping[str, Any]) -> str:
    """Returns what the code says of one reward. `row`: that of `mmrl list rewards`."""
    cls: Any = plugins.find("rewards", name)
    summary = inspect.cleandoc(importlib.import_module(cls.__module__).__doc__ or "")
    parts = [
        f"### {name}",
        escaped(summary),
        declared(cls, listing.weights(row)),
        markdown(inspect.cleandoc(cls.__doc__ or "")),
    ]
    return "\n\n".join([*parts, table(cls, LINKS)]) + "\n"


def declared(cls: Any, weights: str) -> str:
    """Returns one line: what the reward judges, its range, what it needs, and where it comes from.

    `weights`: the licence of its default weights in words; empty where it loads none.
    """
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
    said += [f"weights: {weights}"] if weights else []
    return "*" + "; ".join([*said, f"source: {escaped(cls.source)}"]) + ".*"


def end(number: float) -> str:
    return ("-" if number < 0 else "") + "infinity" if math.isinf(number) else f"{number:g}"


if __name__ == "__main__":
    FILE.write_text(reference(), encoding="utf-8")
    print(FILE)
