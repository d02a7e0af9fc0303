"""Several runs on one page: the same numbers as their reports, what differs, and hostile text that stays text."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from playwright.sync_api import Browser, sync_playwright
from typer.testing import CliRunner

from mmrl.cli import app
from mmrl.environments.base.chromium import find_executable
from mmrl.reporting.compared_runs import as_json, differences, flattened, labels, read_runs, settings_of
from mmrl.reporting.report import write_comparison
from mmrl.system.errors import ConfigError
from tests.report_pages import HELD_OUT, SUMMARY, TRAINING, Page, run_of

HOSTILE = "\"><script>document.title='taken'</script><img src=x onerror=\"document.title='taken'\">"


def _run(
    root: Path, name: str, config: str = "optimizer: {learning_rate: 0.1}\n", saved: dict[int, list[str]] | None = None
) -> Path:
    """A run of three iterations, with samples of prompts at some of them."""
    run = run_of(root, [*HELD_OUT, *TRAINING], SUMMARY, name)
    (run / "config.yaml").write_text(config)
    for iteration, prompts in (saved or {}).items():
        folder = run / "samples" / f"{iteration:06d}"
        folder.mkdir(parents=True)
        samples = [{"prompt": prompt, "seed": 3, "scores": {"shape": 0.5}, "file": "0.png"} for prompt in prompts]
        Image.new("RGB", (32, 32), (200, 30 * iteration, 30)).save(folder / "0.png")
        (folder / "samples.json").write_text(json.dumps({"kind": "image", "samples": samples}))
    return run


def _page(runs: list[Path], out: Path) -> Page:
    return Page(write_comparison(read_runs(runs), out).read_text(encoding="utf-8"))


def _chart(page: Page, title: str) -> dict[str, Any]:
    charts = [box for box in page.all("div") if box.get("class") == "chart"]
    (chart,) = [box for box in charts if (box["aria-label"] or "").startswith(f"{title}:")]
    shown: dict[str, Any] = json.loads(chart["data-chart"] or "")
    return shown


def test_the_curves_of_all_runs_stand_on_one_axis_by_iterations_calls_and_seconds(tmp_path: Path) -> None:
    other = run_of(tmp_path, [{"iteration": 9, "held_out/score": 0.5}, *TRAINING], name="b")
    page = _page([_run(tmp_path, "a"), other], tmp_path / "page.html")
    chart = _chart(page, "Held-out score")
    assert [(line["name"], line["colour"], line["x"], line["y"]) for line in chart["lines"]] == [
        ("a", 1, [0, 2, 3], [0.25, 0.875, 0.75]),
        ("b", 2, [9], [0.5]),
    ]
    assert chart["span"] == [0, 9]
    assert chart["others"] == [
        {"name": "network calls", "span": [0, 150]},
        {"name": "seconds of training", "span": [0, 30]},
    ]
    assert [line["xs"] for line in chart["lines"]] == [[[0, 100, 150], [0, 20, 30]], [[150], [30]]], "50 and 10 s each"


def test_an_axis_that_one_run_lacks_is_not_offered(tmp_path: Path) -> None:
    other = run_of(tmp_path, [{"iteration": 1, "reward/mean": 0.5}], name="b")
    page = _page([_run(tmp_path, "a"), other], tmp_path / "page.html")
    assert "others" not in _chart(page, "Training reward") and not page.all("select")


def test_settings_that_differ_are_listed_by_flat_names(tmp_path: Path) -> None:
    shared = "seed: 1\nempty: {}\nsteps: 4\n"
    first = _run(tmp_path, "a", shared + "rewards: [{name: ocr, weight: 1}, {name: clip}]\nlist: [1, 2]\n")
    second = _run(tmp_path, "b", shared.replace("4", "4.0") + "rewards: [{name: clip}, {name: ocr, weight: 2}]\n")
    runs = read_runs([first, second])
    shown = {"rewards.ocr.weight": {"a": 1, "b": 2}, "list": {"a": [1, 2]}}
    assert as_json(runs)["settings"] == shown, "a reward keeps its name wherever it stands; 4 is 4.0"
    assert list(differences(runs)) == list(shown)
    page = _page([first, second], tmp_path / "page.html")
    assert "rewards.ocr.weight12" in page.text and "seed" not in page.text


def test_one_and_true_differ_and_one_and_1_0_do_not(tmp_path: Path) -> None:
    one, other = _run(tmp_path, "a", "x: 1\ny: 1\nz: null\n"), _run(tmp_path, "b", "x: 1.0\ny: true\n")
    assert as_json(read_runs([one, other]))["settings"] == {"y": {"a": 1, "b": True}}  # absent and empty agree


def test_samples_of_one_prompt_and_other_noise_are_not_the_same(tmp_path: Path) -> None:
    one, other = _run(tmp_path, "a", saved={3: ["cat"]}), _run(tmp_path, "b", saved={3: ["cat"]})
    listing = other / "samples" / "000003" / "samples.json"
    listing.write_text(listing.read_text().replace('"seed": 3', '"seed": 4'))
    page = _page([one, other], tmp_path / "page.html")
    assert "No two of these runs saved samples of the same prompt and seed." in page.text


def test_lists_of_sections_without_different_names_are_numbered() -> None:
    assert flattened({"a": [{"name": "x"}, {"name": "x", "k": 1}], "b": [{"k": True}], "c": []}) == {
        "a.0.name": "x",
        "a.1.name": "x",
        "a.1.k": 1,
        "b.0.k": True,
        "c": [],
    }
    assert settings_of("{") is None and settings_of("3") is None and settings_of(None) is None


def test_runs_of_one_name_are_told_apart_by_their_paths() -> None:
    paths = [Path(one) for one in ("/x/run", "/y/run", "/y/other", "/run", "/a/x/run")]
    assert labels(paths) == ["x/run", "y/run", "other", "run", "a/x/run"]


def test_the_same_prompts_stand_side_by_side_at_the_last_and_at_the_best_iteration(tmp_path: Path) -> None:
    first = _run(tmp_path, "a", saved={0: ["cat", "dog"], 2: ["cat", "dog"], 3: ["cat", "dog"]})
    second = _run(tmp_path, "b", saved={3: ["dog", "bird"]})
    page = _page([first, second], tmp_path / "page.html")
    assert {"last", "best"} <= page.ids()
    assert page.text.count("a, iteration 3") == 1 and page.text.count("a, iteration 2") == 1, "0.875 at 2, 0.75 at 3"
    assert page.text.count("b, iteration 3") == 2
    assert "cat" not in page.text and "bird" not in page.text


def test_runs_without_common_prompts_samples_or_scores_are_still_compared(tmp_path: Path) -> None:
    runs = [_run(tmp_path, "a", saved={3: ["cat"]}), _run(tmp_path, "b", saved={3: ["dog"]})]
    assert "No two of these runs saved samples" in _page(runs, tmp_path / "1.html").text
    bare = run_of(tmp_path, [{"iteration": 1, "loss/total": float("nan")}], name="c")
    (bare / "config.yaml").unlink()
    page = _page([runs[0], bare], tmp_path / "2.html")
    assert "This run did not finish: c." in page.text and "No settings can be read of c." in page.text
    assert "1 values were not finite" in page.text


def test_scores_of_different_things_are_named_and_none_is_marked_as_best(tmp_path: Path) -> None:
    first, second = _run(tmp_path, "a"), _run(tmp_path, "b")
    better = {**SUMMARY, "held_out": {"name": "accuracy", "before": 0.1, "after": 0.9, "best": 0.9}}
    (second / "summary.json").write_text(json.dumps(better))
    html = write_comparison(read_runs([first, second]), tmp_path / "1.html").read_text()
    assert '<td class="right best">0.900</td>' in html
    better["held_out"] = {"name": "other", "before": 0.1, "after": 0.9}
    (second / "summary.json").write_text(json.dumps(better))
    html = write_comparison(read_runs([first, second]), tmp_path / "2.html").read_text()
    assert "different things and cannot be compared" in html and 'class="right best"' not in html


def test_what_the_doctor_found_stands_in_the_numbers(tmp_path: Path) -> None:
    first, second, third = _run(tmp_path, "a"), _run(tmp_path, "b"), _run(tmp_path, "c")
    found = [("note", 1, "few_prompts"), ("warning", 3, "reward_fell"), ("warning", 2, HOSTILE)]
    lines = [json.dumps({"iteration": when, "name": name, "severity": kind}) for kind, when, name in found]
    (first / "findings.jsonl").write_text("\n".join(lines))
    (second / "findings.jsonl").write_text(json.dumps({"iteration": 4, "name": "no_gradient", "severity": "fatal"}))
    (third / "findings.jsonl").write_text(lines[0])
    runs = read_runs([first, second, third])
    page = _page([first, second, third], tmp_path / "page.html")
    assert f"0.876{'2 warnings' + HOSTILE[:60]}...4" in page.text, "best, findings, iterations"
    assert "0.8761 fatalno_gradient4" in page.text and "0.876\N{EN DASH}4" in page.text
    assert len(page.all("script")) == 1 and not page.all("img")
    listed = [[one["name"] for one in run["findings"]] for run in as_json(runs)["runs"]]
    assert listed == [[HOSTILE, "reward_fell"], ["no_gradient"], []]


def test_wrong_runs_are_the_users_errors(tmp_path: Path) -> None:
    run, other = _run(tmp_path, "a"), _run(tmp_path, "b")
    for runs, said in (
        ([run], "takes 2 to 8 run directories, got 1"),
        ([run] * 9, "got 9"),
        ([run, tmp_path / "a" / ".." / "a"], "given twice"),
        ([run, tmp_path / "none"], "no run directory at"),
    ):
        with pytest.raises(ConfigError, match=said):
            read_runs(runs)
    with pytest.raises(ConfigError, match="must be a file in a folder that is there"):
        write_comparison(read_runs([run, other]), tmp_path)
    (other / "metrics.jsonl").write_text("[1]\n")
    with pytest.raises(ConfigError, match=r"b/metrics\.jsonl, line 1 is damaged"):
        read_runs([run, other])


def test_json_stands_alone_on_stdout(tmp_path: Path) -> None:
    runs = [str(_run(tmp_path, name, f"seed: {name!r}\n")) for name in ("a", "b")]
    done = CliRunner().invoke(app, ["compare", *runs, "--json"])
    shown = json.loads(done.stdout)
    assert [(run["run"], run["before"], run["after"], run["network_calls"]) for run in shown["runs"]] == [
        ("a", 0.251, 0.752, 12480),
        ("b", 0.251, 0.752, 12480),
    ]
    assert shown["settings"] == {"seed": {"a": "a", "b": "b"}} and not Path("compare.html").exists()
    done = CliRunner().invoke(app, ["compare", *runs, "--out", str(tmp_path / "page.html")])
    assert done.stdout.strip() == str(tmp_path / "page.html")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as driver:
        program = find_executable(None, Path(driver.chromium.executable_path))
        started = driver.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield started
        started.close()


@pytest.mark.slow  # a browser
def test_no_script_of_a_run_runs_and_the_page_fits_screens(tmp_path: Path, browser: Browser) -> None:
    config = f"key: {json.dumps(HOSTILE)}\n{json.dumps(HOSTILE)}: 1\n"
    bad = _run(tmp_path, HOSTILE.replace("/", ""), config, saved={3: [HOSTILE + "x" * 300]})
    scores = {"name": HOSTILE, "before": 0.1, "after": 0.9}
    (bad / "summary.json").write_text(json.dumps({**SUMMARY, "held_out": scores}))
    runs = [bad, *(_run(tmp_path, f"{n}" + "long" * 30, saved={3: [HOSTILE + "x" * 300]}) for n in range(7))]
    page_file = write_comparison(read_runs(runs), tmp_path / "page.html")
    faults: list[str] = []
    for width in (1200, 400):
        page = browser.new_page(viewport={"width": width, "height": 900})
        page.on("pageerror", lambda error: faults.append(str(error)))
        page.goto(page_file.as_uri())
        page.wait_for_selector(".u-over")
        assert page.title() != "taken" and not faults
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert page.locator(".u-wrap").count() == page.locator(".chart").count()
        page.hover(".u-over")
        assert page.inner_text("#tip").startswith("iteration ")
        page.mouse.move(0, 0)
        page.select_option("#axis", "1")
        page.hover(".u-over")
        assert page.inner_text("#tip").startswith("network calls ")
        page.close()
    assert not faults
