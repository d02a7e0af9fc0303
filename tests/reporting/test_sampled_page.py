"""The page of sampled prompts: hostile texts, means of scores, what is left out, and the grid of pictures."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from playwright.sync_api import Browser, sync_playwright

from mmrl.environments.base.chromium import find_executable
from mmrl.reporting.contact_sheet import GAP, LINE, MAX_SAMPLED, sampled_sheet
from mmrl.reporting.sampled_page import MAX_SAMPLES, mean_scores, sampled_page, write_sampled_page
from mmrl.reporting.samples import Sample, SavedTurn, read_snapshot
from mmrl.system.errors import ConfigError

HOSTILE = "<img src=x onerror=alert(1)>\"'\u202e"


def sample(seed: int = 0, file: Path | None = None, **more: Any) -> Sample:
    given: dict[str, Any] = {"prompt": f"p{seed}", "text": None, "scores": {}} | more
    return Sample(seed=seed, file=file, **given)


def test_a_mean_is_over_the_samples_that_were_judged() -> None:
    some = [sample(scores={"a": 1.0, "b": None}), sample(scores={"a": 0.0, "b": 3.0}), sample(scores={"b": 6.0})]
    assert mean_scores(some) == {"a": (0.5, 2), "b": (4.5, 2)}
    assert mean_scores([]) == {}


def test_texts_of_people_and_models_are_no_html() -> None:
    turns = (SavedTurn(HOSTILE, f'type "{HOSTILE}"', 1.0),)
    for one in (
        sample(prompt=HOSTILE, text=HOSTILE, scores={HOSTILE: 1.0}),
        sample(prompt=HOSTILE, text="x", scores={HOSTILE: 1.0}, turns=turns, outcome=HOSTILE),
    ):
        page = sampled_page([one], HOSTILE)
        assert "<img src=x" not in page and "onerror=alert(1)&gt;" in page and "\u202e" not in page


def test_samples_of_one_prompt_share_a_card_and_those_of_equal_texts_do_not() -> None:
    page = sampled_page([sample(0, text="a"), sample(0, text="b"), sample(1, prompt="p0", text="c")], "run")
    assert page.count('<article class="card pair group">') == 2
    assert "3 samples of 2 prompts." in page


def test_a_page_says_what_it_leaves_out() -> None:
    page = sampled_page([sample(n, text="a") for n in range(MAX_SAMPLES + 1)], "run")
    assert f"The first {MAX_SAMPLES} are on this page" in page
    assert page.count('<pre class="answer">') == MAX_SAMPLES
    episodes = [sample(n, text="a", turns=(SavedTurn("x", "wait", 0.0),) * 100) for n in range(3)]
    assert "The first 2 are on this page" in sampled_page(episodes, "run")
    assert "on this page" not in sampled_page(episodes[:2], "run")


def test_an_episode_has_its_turns_its_rewards_and_a_legend(tmp_path: Path) -> None:
    for name in ("t.png", "last.png"):
        Image.new("RGB", (40, 30), "red").save(tmp_path / name)
    turns = (SavedTurn("first", "click (1, 2)", 0.0, tmp_path / "t.png"), SavedTurn("second", "finish", -0.5))
    one = sample(text="x", turns=turns, outcome="turn_limit", last_screen=tmp_path / "last.png")
    page = sampled_page([one], "run")
    assert page.count('class="card pair turn"') == 3 and "The last screen" in page
    assert '<b class="bad">' in page and "turn limit" in page and 'aria-label="legend"' in page
    assert "no video" not in page
    assert 'aria-label="legend"' not in sampled_page([sample(text="x")], "run")


@pytest.mark.parametrize(
    "entry",
    [
        {"turns": "x"},
        {"turns": [1]},
        {"turns": [{"screen": "../secret.png"}]},
        {"recording": "../secret.mp4"},
        {"last_screen": 5},
    ],
)
def test_files_of_episodes_lie_beside_their_list(tmp_path: Path, entry: dict[str, Any]) -> None:
    listed = {"prompt": "p", "seed": 0, "scores": {}, **entry}
    (tmp_path / "samples.json").write_text(json.dumps({"samples": [listed]}))
    with pytest.raises(ConfigError, match=r"'(turns|screen|recording|last_screen)'"):
        read_snapshot(0, tmp_path / "samples.json")


def test_the_grid_has_a_cell_for_each_picture_up_to_its_limit(tmp_path: Path) -> None:
    Image.new("RGB", (48, 48), (200, 10, 10)).save(tmp_path / "a.png")
    sheet = sampled_sheet([sample(n, tmp_path / "a.png") for n in range(7)])
    assert sheet is not None
    # tiny pictures grow four times to 192 pixels; 6 beside each other, the seventh below
    assert sheet.size == (GAP + 6 * (192 + GAP), GAP + 2 * (192 + 2 * LINE + 2 * GAP))
    for index in range(7):
        x, y = GAP + index % 6 * (192 + GAP), GAP + index // 6 * (192 + 2 * LINE + 2 * GAP)
        assert sheet.getpixel((x, y)) == sheet.getpixel((x + 191, y + 191)) == (200, 10, 10)
    assert sheet.getpixel((GAP + 192 + GAP + 5, sheet.height - GAP - 2 * LINE - 60)) == (255, 255, 255)
    many = sampled_sheet([sample(n, tmp_path / "a.png") for n in range(MAX_SAMPLED + 6)])
    assert many is not None and many.height == GAP + MAX_SAMPLED // 6 * (192 + 2 * LINE + 2 * GAP)
    assert sampled_sheet([sample(text="words")]) is None


def test_a_folder_of_answers_has_a_page_and_no_sheet(tmp_path: Path) -> None:
    listed = {"kind": "text", "samples": [{"prompt": "p", "seed": 0, "scores": {"a": 1.0}, "text": "yes"}]}
    (tmp_path / "samples.json").write_text(json.dumps(listed))
    write_sampled_page(tmp_path, "run")
    assert "yes" in (tmp_path / "index.html").read_text() and not (tmp_path / "contact_sheet.png").exists()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as driver:
        program = find_executable(None, Path(driver.chromium.executable_path))
        started = driver.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield started
        started.close()


@pytest.mark.slow  # a browser
def test_nothing_of_a_sample_runs_and_the_page_fits_screens(tmp_path: Path, browser: Browser) -> None:
    hostile = "<script>document.title='taken'</script><img src=x onerror=\"document.title='taken'\">" + "x" * 300
    Image.new("RGB", (640, 400), "grey").save(tmp_path / "t.png")
    turn = {"answer": hostile, "action": f'type "{hostile}"', "reward": 1.0, "screen": "t.png"}
    given = {"prompt": hostile, "seed": 0, "scores": {hostile: 0.5}, "text": hostile}
    faults: list[str] = []
    kinds: tuple[dict[str, Any], ...] = ({}, {"turns": [turn] * 4, "outcome": hostile, "last_screen": "t.png"})
    for more in kinds:
        (tmp_path / "samples.json").write_text(json.dumps({"kind": "text", "samples": [given | more] * 2}))
        write_sampled_page(tmp_path, hostile)
        for width in (1200, 400):
            page = browser.new_page(viewport={"width": width, "height": 900})
            page.on("pageerror", lambda error: faults.append(str(error)))
            page.on("console", lambda message: faults.append(message.text))
            page.goto((tmp_path / "index.html").as_uri())
            assert page.title() != "taken" and not faults
            assert page.evaluate("document.documentElement.scrollWidth") <= width
            assert page.locator(".turn").count() == (10 if more else 0)
            assert page.locator(".marks svg").count() == (3 if more else 0)
            page.close()
