"""Draws the pictures of docs/concepts.md from the parts of mmrl themselves: `python scripts/concept_pictures.py`.

Plans are those of shipped configs, with smaller groups; the images, scores, advantages and decisions are a real rollout
of the shapes lab before training. Every picture has a white ground, so that it can be read on dark pages too.
"""

import base64
from collections.abc import Mapping, Sequence
from html import escape
from io import BytesIO
from itertools import count
from pathlib import Path
from statistics import fmean
from typing import Any

import networkx as nx
import torch
from PIL import Image

import mmrl
from mmrl.assembly.build import build
from mmrl.assembly.compatibility import Parts
from mmrl.core.config import load_config
from mmrl.core.contracts import Placement
from mmrl.core.data import Prompt, Scores
from mmrl.core.keys import GroupKey
from mmrl.plans.flow import Plan

FOLDER = Path(__file__).resolve().parents[1] / "docs" / "images" / "concepts"
INK, PALE, CHOSEN, SAMPLE = "#1f2933", "#9aa5b1", "#d9480f", "#1864ab"
KEY = GroupKey(seed=0, iteration=0, prompt_index=0)
# The picture's name, the config, and what is made smaller to fit a picture.
PLANS = {
    "flow_grpo": ("lab/flow_grpo", ("group_size=4",)),
    "mix_grpo": ("lab/mix_grpo", ("group_size=4",)),
    "branch_grpo": ("lab/branch_grpo", ("group_size=8", "sampler.splits=[0,1,2]")),
    "tempflow": ("lab/tempflow", ("group_size=4", "sampler.roots=2")),
}


def tree(plan: Plan) -> nx.DiGraph:
    """Returns the plan's tree: a state is (steps before it, number); an edge says whether its step `is_decision`."""
    grown, numbers = nx.DiGraph(), count()
    reached: list[list[list[tuple[int, int]]]] = []  # of each path, the states before each of its steps, and its ends
    for path in plan.paths:
        states = [[(0, next(numbers)) for _ in range(plan.roots)]]
        if path.parent is not None:
            states = [reached[path.parent][path.start - plan.paths[path.parent].start]]
        for column, step in enumerate(path.steps, path.start + 1):
            edges = [(state, (column, next(numbers))) for state in states[-1] for _ in range(step.branch)]
            grown.add_edges_from(edges, is_decision=step.is_decision)
            states.append([child for _, child in edges])
        reached.append(states)
    return grown


def plan_picture(plan: Plan) -> str:
    """Returns a plan as a tree: a dot is a network call, an orange line a decision, a square a sample."""
    grown, free = tree(plan), count()
    rows: dict[tuple[int, int], float] = {}  # each sample has one of its own
    for state in nx.dfs_postorder_nodes(grown):
        rows[state] = fmean(rows[child] for child in grown[state]) if grown[state] else next(free)
    num_rows, columns = next(free), plan.num_tree_steps
    wide, high = 48.0, min(26.0, 300 / num_rows)
    spots = {state: (24 + wide * state[0], 22 + high * row) for state, row in rows.items()}
    marks: list[str] = []
    for state, child, is_decision in grown.edges(data="is_decision"):
        (x, y), (to_x, to_y) = spots[state], spots[child]
        look = f'stroke="{CHOSEN}" stroke-width="2.5"' if is_decision else f'stroke="{PALE}" stroke-width="1.5"'
        marks.append(f'<path d="M{x:g} {y:g}C{x + 22:g} {y:g} {to_x - 22:g} {to_y:g} {to_x:g} {to_y:g}" {look}/>')
    for state, (x, y) in spots.items():
        dot = f'<circle cx="{x:g}" cy="{y:g}" r="3.5" fill="{INK}"/>'
        square = f'<rect x="{x - 4:g}" y="{y - 4:g}" width="8" height="8" fill="{SAMPLE}"/>'
        marks.append(dot if grown[state] else square)
    bottom = 22 + high * num_rows + 16
    alone = plan.shared_work["calls of a rollout without sharing"]
    counts = f"{plan.num_samples} samples · {plan.num_rollout_calls} calls to sample, {alone} without sharing"
    counts += f" · {plan.num_update_calls} in an update"
    marks.append(text(24, bottom, counts))
    return svg(48 + wide * columns, bottom + 14, ['<g fill="none">', *marks, "</g>"])


def plan_of(name: str) -> Plan:
    """Returns the plan of a picture of `PLANS`."""
    config, overrides = PLANS[name]
    settings = load_config(config, list(overrides))
    parts = build(settings)
    parts.policy.prepare(Placement(torch.device("cpu"), torch.float32))
    plan = parts.sampler.plan(parts.policy, KEY, settings.group_size)
    assert isinstance(plan, Plan), "samplers of images make plans of this kind"
    return plan


def group_picture(prompt: str, images: torch.Tensor, scores: torch.Tensor, advantages: torch.Tensor) -> str:
    """Returns the images of a group with their scores and advantages."""
    marks = [text(12, 22, f"prompt: {prompt}", weight="bold")]
    for number, image in enumerate(images):
        x, y = 12 + 88 * (number % 4), 34 + 120 * (number // 4)
        marks.append(f'<image x="{x}" y="{y}" width="76" height="76" href="{_png(image)}"/>')
        advantage = float(advantages[number])
        marks.append(text(x, y + 92, f"score {scores[number]:.2f}"))
        marks.append(text(x, y + 108, f"A {advantage:+.2f}", CHOSEN if advantage > 0 else INK))
    return svg(360, 40 + 120 * -(-len(images) // 4), marks)


def decisions_picture(call: torch.Tensor, weight: torch.Tensor) -> str:
    """Returns the decisions [B, K] of a group: entries of one color are one network call, with what each counts."""
    colors = ("#ffe3e3", "#d3f9d8", "#d0ebff", "#fff3bf", "#e5dbff", "#ffdeeb", "#c5f6fa", "#ffe8cc")
    marks = [text(12, 22, "decisions [B, K]: network call, weight", weight="bold")]
    names: dict[int, int] = {}  # of network calls, in the order of the picture
    for sample, row in enumerate(call.tolist()):
        marks.append(text(12, 56 + 34 * sample, f"b = {sample}"))
        for number, value in enumerate(row):
            counted = float(weight[sample, number])
            if counted == 0:
                continue
            name = names.setdefault(value, len(names))
            x, y = 60 + 92 * number, 36 + 34 * sample
            fill = colors[name % len(colors)]
            marks.append(f'<rect x="{x}" y="{y}" width="86" height="29" rx="4" fill="{fill}" stroke="{PALE}"/>')
            marks.append(text(x + 8, y + 19, f"call {name} · {counted:.2g}"))
    rows, columns = call.shape
    return svg(70 + 92 * columns, 48 + 34 * rows, marks)


def weights_picture() -> str:
    """Returns the four sets of weights and who uses them."""
    boxes: Mapping[str, tuple[str, str]] = {
        "trained": ("moves with every optimizer step", "is differentiated"),
        "old": ("copied from trained, or follows it slowly", "sampled the group; the ratio is to it"),
        "reference": ("the model as it was loaded", "the KL is measured to it"),
        "averaged": ("a running average of trained, if you ask for it", "is evaluated and exported"),
    }
    marks = []
    for number, (name, (source, use)) in enumerate(boxes.items()):
        y = 10 + 50 * number
        fill = "#fff4e6" if name == "trained" else "#f1f3f5"
        marks.append(f'<rect x="10" y="{y}" width="96" height="40" rx="6" fill="{fill}" stroke="{PALE}"/>')
        marks += [text(20, y + 25, name, weight="bold"), text(118, y + 17, source), text(118, y + 34, use, CHOSEN)]
    return svg(410, 214, marks)


def text(x: float, y: float, content: str, color: str = INK, weight: str = "normal") -> str:
    """Returns a line of text."""
    return f'<text x="{x:g}" y="{y:g}" fill="{color}" stroke="none" font-weight="{weight}">{escape(content)}</text>'


def svg(width: float, height: float, marks: Sequence[str]) -> str:
    """Returns a picture of this size on a white ground."""
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:g}" height="{height:g}" '
        f'viewBox="0 0 {width:g} {height:g}" font-family="Helvetica, Arial, sans-serif" font-size="13">\n'
        f'<rect width="{width:g}" height="{height:g}" rx="8" fill="#ffffff"/>\n' + "\n".join(marks) + "\n</svg>\n"
    )


def _png(image: torch.Tensor) -> str:
    pixels = (image.permute(1, 2, 0) * 255).round().byte().numpy()
    file = BytesIO()
    Image.fromarray(pixels).save(file, "PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()


def rollout(config: str, overrides: Sequence[str], prompt: str) -> tuple[Parts, Any]:
    """Returns the parts of a config and the samples of its policy before training for one prompt."""
    settings = load_config(config, list(overrides))
    parts = build(settings)
    parts.policy.prepare(Placement(torch.device("cpu"), torch.float32))
    plan = parts.sampler.plan(parts.policy, KEY, settings.group_size)
    return parts, parts.policy.rollout([Prompt(prompt)], [plan], [KEY])


def main() -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    pictures = {"weights": weights_picture()} | {f"plan_{name}": plan_picture(plan_of(name)) for name in PLANS}
    prompt = "green cross top right"
    parts, sampled = rollout("lab/flow_grpo", ["group_size=8"], prompt)
    images = sampled.outputs.images
    scores = mmrl.score({"name": "shapes", "measure": "graded"}, [prompt] * len(images), images=images)
    places = torch.arange(len(images))
    group, valid = torch.zeros_like(places), torch.ones(len(images), dtype=torch.bool)
    advantages = parts.advantage(Scores(scores[:, None], ("shapes",), (1.0,), valid, group, places, group))
    pictures["group"] = group_picture(prompt, images, scores, advantages)
    _, tree_sampled = rollout(
        "lab/branch_grpo", ["group_size=4", "sampler.splits=[0,1]", "sampler.num_steps=4"], prompt
    )
    (block,) = tree_sampled.blocks
    pictures["decisions"] = decisions_picture(block.call, block.weight)
    for name, picture in pictures.items():
        (FOLDER / f"{name}.svg").write_text(picture, encoding="utf-8")
        print(FOLDER / f"{name}.svg", len(picture))


if __name__ == "__main__":
    main()
