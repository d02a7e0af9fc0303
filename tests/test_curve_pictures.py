"""docs/curves.md is true: pictures and table are those of the runs that are kept, and the runs show what it says."""

import json
import re
from pathlib import Path
from typing import Any

import curve_pictures
import curve_rewards
import gallery
import numpy as np
import pytest
import torch
from PIL import Image

from mmrl.core.config import load_config
from mmrl.core.contracts import RewardBatch
from mmrl.core.data import Outputs, Prompt
from mmrl.parsing.actions.action import Action
from tests.parameters import in_one_test

ROOT = Path(__file__).parents[1]
PAGE = curve_pictures.PAGE.read_text(encoding="utf-8")
KEPT: dict[str, Any] = json.loads(curve_pictures.DATA.read_text(encoding="utf-8"))


def curve(run: str, metric: str) -> list[float]:
    values: list[float] = KEPT[run]["curves"][metric]["value"]
    return values


@in_one_test("name", curve_pictures.RUNS)
def test_the_command_of_a_run_is_a_valid_config(name: str) -> None:
    run = curve_pictures.RUNS[name]
    assert KEPT[name]["command"] == run.command(), "make the run again: python scripts/curve_pictures.py"
    config = load_config(run.config, run.overrides)
    assert KEPT[name]["curves"]["reward/mean"]["iteration"][-1] == config.iterations


def test_the_page_has_the_table_of_the_kept_runs() -> None:
    assert list(KEPT) == list(curve_pictures.RUNS)
    assert curve_pictures.with_table(PAGE, KEPT) == PAGE


def test_every_picture_is_on_the_page_and_small() -> None:
    names = {*curve_pictures.PICTURES, *curve_pictures.STRIPS}
    assert {path.stem for path in curve_pictures.FOLDER.glob("*.png")} == names
    assert set(re.findall(r"!\[[^\]]+\]\(curves/([\w-]+)\.png\)", PAGE)) == names
    for name in names:
        path = curve_pictures.FOLDER / f"{name}.png"
        assert path.stat().st_size < curve_pictures.LARGEST
        with Image.open(path) as picture:
            assert 600 <= picture.width <= 900


@pytest.mark.slow
def test_a_picture_is_drawn_from_the_kept_curves() -> None:
    drawn = curve_pictures.draw("reward", KEPT)
    assert drawn.startswith(b"\x89PNG") and len(drawn) < curve_pictures.LARGEST
    level = {**KEPT, "rate": KEPT["clicks"]}
    assert curve_pictures.draw("reward", level) != drawn, "the sick side shows the sick run"


METRIC = re.compile(r"`((?:reward|held_out|groups|loss|policy|optimizer|answers|time|engine)\w*/[\w/]+)`")


def test_the_metrics_that_the_page_names_are_there() -> None:
    named = set(METRIC.findall(PAGE))
    sources = "".join(path.read_text(encoding="utf-8") for path in ROOT.glob("mmrl/**/*.py"))
    curves = {metric for run in KEPT.values() for metric in run["curves"]}
    # names that code puts together
    composed = {"engine/difference", "engine/effective", "held_out_greedy/score", "loss/entropy_bonus", "loss/kl_coef"}
    prefixes = ("reward/", "time/reward/")  # of each reward, by its name
    unknown = {name for name in named - curves - composed if f'"{name}"' not in sources}
    assert len(named) > 20 and not [name for name in unknown if not name.startswith(prefixes)]


def test_the_runs_show_what_the_page_says() -> None:
    """Each sick run is sick in the way that its section describes, and the healthy one is not."""
    healthy = KEPT["clicks"]["held_out"]
    assert healthy["after"] > healthy["before"] + 0.4
    assert KEPT["rate"]["held_out"]["after"] < KEPT["rate"]["held_out"]["before"]
    assert np.mean(curve("cold", "groups/degenerate")) > 0.3 > 0.05 > np.mean(curve("clicks", "groups/degenerate"))
    assert KEPT["cold"]["held_out"]["after"] < healthy["after"] - 0.1
    assert max(curve("dialect", "answers/understood")) == 0 and min(curve("dialect", "groups/degenerate")) == 1
    assert max(curve("cut", "answers/finished")) == 0 and set(curve("cut", "answers/tokens")) == {4}
    proxy, judged = curve("hacked", "reward/mean"), KEPT["hacked"]["held_out"]
    assert proxy[-1] > proxy[len(proxy) // 3] and judged["after"] < judged["best"] - 0.1
    few = KEPT["few"]
    assert curve("few", "reward/mean")[-1] > 0.9 and few["held_out"]["best"] < 0.65
    for name, low, high in (("clip", 0.02, 0.35), ("clip-never", 0, 0.01), ("clip-always", 0.45, 0.75)):
        clipped = np.add(curve(name, "loss/clip_fraction_low"), curve(name, "loss/clip_fraction_high"))
        assert low <= clipped.mean() <= high
        assert (name == "clip") == (KEPT[name]["held_out"]["after"] > 0.8)
    assert curve("corner", "policy/entropy")[49] < 0.1 < 0.6 < min(curve("clicks", "policy/entropy"))
    assert max(curve("jpeg", "reward/spread/mean")[-5:]) < 0.001 < 0.01 < min(curve("images", "reward/spread/mean"))
    assert np.mean(curve("corner", "loss/kl")[-10:]) > 5 * np.mean(curve("clicks", "loss/kl")[-10:])
    update_over_rollout = {  # a ratio within a run, whatever else the machine did
        run: np.mean(curve(run, "time/update")[:8]) / np.mean(curve(run, "time/rollout")[:8])
        for run in ("clicks", "micro")
    }
    assert update_over_rollout["micro"] > 2 * update_over_rollout["clicks"]


def batch_of(images: torch.Tensor, texts: list[str], group: list[int]) -> RewardBatch:
    number = torch.arange(len(texts))
    prompts, seeds = tuple(Prompt(text) for text in texts), tuple(range(len(texts)))
    return RewardBatch(
        prompts, Outputs(images=images), torch.tensor(group), number, number, seeds, 0, torch.Generator()
    )


def test_the_spread_is_that_of_the_pixels_of_each_group() -> None:
    images = torch.rand((5, 3, 4, 4), generator=torch.Generator().manual_seed(0))
    images[4] = images[3]
    scores = curve_rewards.spread(batch_of(images, ["a"] * 3 + ["b"] * 2, [7, 7, 7, 2, 2])).numpy()
    first = images[:3].double().numpy().reshape(3, -1)
    np.testing.assert_allclose(scores[:3], np.sqrt(first.var(axis=0).mean()), rtol=1e-6)
    assert scores[3:].tolist() == [0.0, 0.0]


def test_the_reward_that_is_hacked_counts_the_pixels_of_the_colour() -> None:
    image = torch.full((3, 4, 4), 0.08)
    image[:, 0] = torch.tensor([0.9, 0.15, 0.15])[:, None]  # a row of four in red
    image[:, 1, 0] = torch.tensor([0.9, 0.15, 0.45])  # its blue is too far off
    assert curve_rewards.colour_asked_for(image, Prompt("red circle top left")) == 4 / 16
    assert curve_rewards.colour_asked_for(image, Prompt("green circle top left")) == 0


def test_the_reward_of_the_corner_falls_with_the_distance() -> None:
    clicks = [Action("click", point=point) for point in ((0.0, 0.0), (112.0, 112.0), (28.0, 28.0), (500.0, 0.0))]
    assert [curve_rewards.corner(action) for action in (*clicks, None)] == [1.0, 0.0, 0.75, 0.0, 0.0]


def test_the_gallery_has_its_pictures_and_the_commands_that_make_them() -> None:
    page = (ROOT / "docs" / "gallery.md").read_text(encoding="utf-8")
    shown = set(re.findall(r"!\[[^\]]+\]\(gallery/([\w-]+)\.png\)", page))
    assert (
        shown == {path.stem for path in gallery.FOLDER.glob("*.png")} == {"learning", *gallery.SHEETS, *gallery.PAGES}
    )
    assert all((gallery.FOLDER / f"{name}.png").stat().st_size < gallery.LARGEST for name in shown)
    assert not [
        command for command in (*gallery.COMMANDS.values(), gallery.REPORTED, gallery.SCORED) if command not in page
    ]
