"""Reports and votes in browsers, bright and dark, wide and narrow: texts are no scripts, and all can be read."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from playwright.sync_api import Browser, Page, sync_playwright

from mmrl.commands.vote_server import VotePage
from mmrl.commands.vote_tasks import Ballot, VoteSettings, prepared
from mmrl.core.human_votes import read_votes
from mmrl.environments.base.chromium import find_executable
from mmrl.media.mp4 import Video
from mmrl.reporting.loopback import serving
from mmrl.reporting.report import write_report
from tests.media.test_mp4 import moving
from tests.report_pages import HELD_OUT, SUMMARY, TRAINING, run_of

pytestmark = pytest.mark.slow  # a browser
HOSTILE = (
    "<script>window.broken = 1</script>",
    '"><img src=x onerror="window.broken = 1">',
    "</pre></details><svg onload=window.broken=1>",
    "left \u202egnidaer\u202c right " + "a" * 300,
)
SCREENS = [(1200, "light"), (400, "light"), (1200, "dark"), (400, "dark")]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as driver:
        program = find_executable(None, Path(driver.chromium.executable_path))
        started = driver.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield started
        started.close()


def opened(browser: Browser, width: int, scheme: Any, said: list[str]) -> Page:
    """A tab that notes what the console says: errors of scripts, refusals of the policy, files that are missing."""
    page = browser.new_page(viewport={"width": width, "height": 800}, color_scheme=scheme)
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("dialog", lambda dialog: said.append(dialog.message))
    return page


def fits(page: Page, width: int) -> bool:
    return bool(page.evaluate("document.documentElement.scrollWidth") <= width)


def wait_for(page: Page, condition: str) -> None:
    """Looks again and again; Playwright's own way is a script that the page's policy refuses."""
    for _ in range(100):
        if page.evaluate(condition):
            return
        page.wait_for_timeout(100)
    raise AssertionError(condition)


def hostile_run(root: Path) -> Path:
    level = [entry | {"reward/mean": 0.0, "reward/std": 0.0, HOSTILE[1]: 0.5} for entry in TRAINING]
    held_out = {**SUMMARY, "held_out": {"name": HOSTILE[0], "before": 0.5, "after": 0.5}}
    run = run_of(root, [*HELD_OUT, *level], held_out, name='a "<b onclick=x> run\u202e')
    (run / "config.yaml").write_text(f"{json.dumps(HOSTILE[2])}: {json.dumps(HOSTILE[3])}\n")
    warning = {"iteration": 2, "name": HOSTILE[0], "severity": "warning", "cause": HOSTILE[1], "value": HOSTILE[2]}
    (run / "findings.jsonl").write_text(json.dumps(warning | {"remedy": f"`{HOSTILE[0]}`"}) + "\n")
    for iteration in (0, 3):
        folder = run / "samples" / f"{iteration:06d}"
        folder.mkdir(parents=True)
        listed = []
        for number in range(11):
            name = f"{number} '\"><img onerror=window.broken=1>&amp;.png"
            Image.new("RGB", (64, 64), (40 * iteration, 20 * number, 90)).save(folder / name)
            listed.append({"prompt": HOSTILE[number % 4], "seed": number, "file": name, "scores": {HOSTILE[1]: 0.5}})
        (folder / "samples.json").write_text(json.dumps({"kind": "image", "samples": listed}))
    groups = [
        {"prompt": n, "name": text, "text": text, "size": 8, "mean": n / 4, "std": 0.1, "rewards": {HOSTILE[0]: 0.5}}
        for n, text in enumerate(HOSTILE)
    ]
    lines = [json.dumps({"iteration": iteration, "groups": groups}) + "\n" for iteration in (1, 2)]
    (run / "groups.jsonl").write_text("".join(lines))
    return run


def test_a_report_of_hostile_texts_can_be_read_on_every_screen(tmp_path: Path, browser: Browser) -> None:
    report, said = write_report(hostile_run(tmp_path)), list[str]()
    for width, scheme in SCREENS:
        page = opened(browser, width, scheme, said)
        page.goto(report.as_uri())
        page.wait_for_selector(".u-over")
        for summary in page.locator("summary").all():
            summary.click()
        assert fits(page, width) and page.evaluate("window.broken") is None
        assert page.locator(".finding code").all_inner_texts() == [HOSTILE[0]] * 2
        assert page.locator(".pairs .pair").count() == 11 and page.locator(".more-pairs .pair").count() == 3
        badge = page.locator(".finding .badge").evaluate("one => getComputedStyle(one).borderLeftWidth")
        assert badge == "0px"
        assert page.locator("details .prompt-cell").first.bounding_box()["width"] > 90  # type: ignore[index]
        assert page.evaluate("charts.every(plot => plot.scales.y.max - plot.scales.y.min < 20)"), "a level curve"
        page.close()
    assert said == []


@pytest.fixture
def clips(tmp_path: Path) -> Path:
    for iteration in (0, 6):
        folder = tmp_path / "samples" / f"{iteration:06d}"
        folder.mkdir(parents=True)
        listed = []
        for number, prompt in enumerate(HOSTILE):
            for sample in range(2):
                name = f"{number}{sample} '\"><b onclick=alert(1)>.mp4"
                Video(moving() // (1 + iteration + number + 4 * sample), 8).save(folder / name)
                listed.append({"prompt": prompt, "seed": sample, "file": name})
        (folder / "samples.json").write_text(json.dumps({"kind": "video", "samples": listed}))
    return tmp_path


@pytest.mark.parametrize("form", ["pairs", "grid"])
def test_videos_are_voted_on_by_keys_and_clicks(form: Any, clips: Path, browser: Browser) -> None:
    settings, said = VoteSettings('a<b "x', form), list[str]()
    file, _, tasks = prepared([clips], settings, clips / "votes.jsonl")
    page_of_votes = VotePage(Ballot(tasks, file, settings))
    with serving(page_of_votes.handle, token=page_of_votes.token) as address:
        for number, (width, scheme) in enumerate(SCREENS):
            page = opened(browser, width, scheme, said)
            page.goto(address)
            page.wait_for_selector(f"#count:text('{number} of')")
            playing = "[...document.querySelectorAll('video')].every(one => one.readyState > 1)"
            wait_for(page, playing)
            assert fits(page, width) and page.inner_text("#prompt").strip() in {text.strip() for text in HOSTILE}
            assert page.locator("video.crisp").count() == page.locator("video").count() == (2, 4)[form == "grid"]
            if form == "pairs":
                page.keyboard.press("ArrowRight") if width == 1200 else page.locator(".choice").nth(1).click()
            else:
                page.keyboard.press("2")
                page.locator(".choice").nth(3).click()
                assert page.inner_text("#done").endswith("2 are good")
                page.keyboard.press("Enter") if width == 1200 else page.click("#done")
            page.wait_for_selector(f"#count:text('{number + 1} of')")
            page.close()
    assert said == []
    assert [vote.chosen for vote in read_votes(clips / "votes.jsonl")] == [(1,) if form == "pairs" else (1, 3)] * 4
