"""The report: self-contained, escaped, its headline and sections true to the run."""

import json
import re
from base64 import b64encode
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from mmrl.core.contracts import ConfigError
from mmrl.reporting.report import write_report
from tests.report_pages import HELD_OUT, SUMMARY, TRAINING, Page, read_page, run_of

HOSTILE = "</script><script>alert(1)</script><img src=http://x onerror='alert(2)'>\"&"


def _save(run: Path, iteration: int, samples: list[dict[str, Any]], pictures: Mapping[str, Image.Image]) -> None:
    folder = run / "samples" / f"{iteration:06d}"
    folder.mkdir(parents=True)
    (folder / "samples.json").write_text(json.dumps({"kind": "image", "samples": samples}))
    for file, shown in pictures.items():
        shown.save(folder / file)


def _sample(prompt: str, seed: int, **output: Any) -> dict[str, Any]:
    return {"prompt": prompt, "seed": seed, "scores": {"shape": 0.5}, **output}


def _full_run(root: Path) -> Path:
    run = run_of(root, [*HELD_OUT, *TRAINING], SUMMARY)
    for iteration, colour in ((0, "red"), (3, "green")):
        _save(run, iteration, [_sample("a disc", 7, file="000.png")], {"000.png": Image.new("RGB", (32, 32), colour)})
    return run


def test_the_page_loads_nothing(tmp_path: Path) -> None:
    run = _full_run(tmp_path)
    page = read_page(run)
    for _, attributes in page.tags:
        assert attributes.keys().isdisjoint({"srcset", "action", "background", "poster", "data"})
        assert (attributes.get("src") or "data:").startswith("data:")
        assert (attributes.get("href") or "#").startswith("#")
    assert {tag for tag, _ in page.tags}.isdisjoint({"link", "iframe", "object", "embed", "base"})
    text = (run / "report.html").read_text(encoding="utf-8")
    text = re.sub(r"base64,[^\"]*|/\*! .* \*/\n", "", text)  # media; the first line of uPlot
    assert not re.search(r"https?:|//[a-z]|url\(|@import|fetch\(|XMLHttp", text)


def test_the_policy_allows_exactly_the_style_and_script_of_the_page(tmp_path: Path) -> None:
    page = _full_run(tmp_path)
    text = write_report(page).read_text(encoding="utf-8")
    policy = next(meta["content"] for meta in Page(text).all("meta") if "http-equiv" in meta) or ""
    assert policy.startswith("default-src 'none'; img-src data:;")
    for tag in ("style", "script"):
        (content,) = re.findall(f"<{tag}>(.*?)</{tag}>", text, re.DOTALL)
        assert f"{tag}-src 'sha256-{b64encode(sha256(content.encode()).digest()).decode()}'" in policy
    for _, attributes in Page(text).tags:
        assert not any(name == "style" or name.startswith("on") for name in attributes), "the policy blocks these"


def test_hostile_text_stays_text(tmp_path: Path) -> None:
    score = {f"reward/{HOSTILE}/mean": 1.0, f"loss/{HOSTILE}": 1.0, f"time/{HOSTILE}": 1.0}
    summary = {**SUMMARY, "versions": {HOSTILE: HOSTILE}, "held_out": {**SUMMARY["held_out"], "name": HOSTILE}}  # type: ignore[dict-item]
    run = run_of(tmp_path, [{**line, **score} for line in TRAINING], summary, name="<script>alert(0)<")
    (run / "config.yaml").write_text(HOSTILE)
    samples = [{**_sample(HOSTILE, 1, text=HOSTILE), "scores": {HOSTILE: 1.0}}]
    samples.append(_sample(HOSTILE, 2, file="0.png"))
    for iteration in (0, 3):
        _save(run, iteration, samples, {"0.png": Image.new("RGB", (8, 8))})
    page = read_page(run)
    assert len(page.all("script")) == 1
    assert len(page.all("img")) == 2
    assert [image["alt"] for image in page.all("img")] == [f"before: {HOSTILE}", f"after: {HOSTILE}"]
    # 2 prompts, 2 answers, 1 score, 1 reward, 1 time, 1 setting, 2 in versions; the measure twice; loss/ besides
    assert page.text.count(HOSTILE) == 13
    assert "<script>alert(0)<" in page.text


def test_the_headline_says_what_the_summary_says(tmp_path: Path) -> None:
    text = read_page(_full_run(tmp_path)).text
    assert (
        "Held-out score (accuracy) rose from 0.251 to 0.752 in 3 min 12 s of training: "
        "4 iterations, 12,480 network calls."
    ) in text
    assert "best 0.876" in text
    assert "48 s each" in text
    assert "did not finish" not in text


def test_the_headline_of_a_stopped_run_comes_from_its_metrics(tmp_path: Path) -> None:
    text = read_page(run_of(tmp_path, [*HELD_OUT, *TRAINING])).text
    assert "Held-out score rose from 0.250 to 0.750 in 30 s of training: 3 iterations, 150 network calls." in text
    assert "best 0.875" in text
    assert "did not finish" in text


def test_a_run_that_was_stopped_says_so_and_claims_no_score_of_its_end(tmp_path: Path) -> None:
    stopped = SUMMARY | {"is_complete": False, "held_out": {"name": "accuracy", "before": 0.25, "after": None}}
    text = read_page(run_of(tmp_path, [*TRAINING, HELD_OUT[0]], stopped)).text
    assert "Training reward rose from 0.100 to 0.300" in text and "did not finish" in text
    assert "accuracy" not in text


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (TRAINING, "Training reward rose from 0.100 to 0.300 in 30 s"),
        (TRAINING[::-1], "Training reward fell from 0.300 to 0.100 in 30 s"),
        ([TRAINING[0], TRAINING[0]], "Training reward stayed at 0.100 in 20 s"),
        ([{"iteration": 5, "loss/total": 1.0}], "Trained: 5 iterations."),
    ],
)
def test_the_headline_without_held_out_scores(tmp_path: Path, lines: list[dict[str, Any]], said: str) -> None:
    assert said in read_page(run_of(tmp_path, lines)).text


@pytest.mark.parametrize(("config", "said"), [
    ("iterations: 12", "Training reward fell from 0.300 to 0.100 in 30 s of training: iteration 3 of 12, 150 network"),
    # Two standard errors of a difference: 2 * sqrt(0.2^2 + 0.2^2) / sqrt(prompts) is 0.179 of 10 prompts, 0.253 of 5.
    ("prompts_per_iteration: 10", "Training reward fell from 0.300 to 0.100"),
    ("prompts_per_iteration: 5", "Training reward is 0.100, was 0.300, after 30 s of training: 3 iterations"),
])  # fmt: skip
def test_a_change_that_chance_may_have_made_has_neutral_words(tmp_path: Path, config: str, said: str) -> None:
    run = run_of(tmp_path, TRAINING[::-1])
    (run / "config.yaml").write_text(config)
    page = read_page(run)
    assert said in page.text
    marks = {"worse"} if "fell" in said else {"same"}
    assert {one.get("class") for tag, one in page.tags if tag == "strong"} - {"before"} == marks
    assert ("within two standard errors" in page.text) == ("fell" not in said)


def test_held_out_scores_vary_as_much_as_one_of_them(tmp_path: Path) -> None:
    lines = [{"iteration": at, "held_out/score": 0.5 - 0.01 * at, "held_out/standard_error": 0.06} for at in (0, 10)]
    assert "Held-out score is 0.400, was 0.500: 10 iterations." in read_page(run_of(tmp_path, lines)).text
    lines[1]["held_out/score"] = 0.3
    assert "Held-out score fell from 0.500 to 0.300: 10" in read_page(run_of(tmp_path, lines, name="b")).text


def test_one_is_no_plural(tmp_path: Path) -> None:
    line = {"iteration": 1, "loss/total": 1.0, "time/iteration": 4.4, "calls/rollout": 1}
    assert "Trained for 4.40 s: 1 iteration, 1 network call." in read_page(run_of(tmp_path, [line])).text
    run = run_of(tmp_path, [HELD_OUT[0]], name="b")
    (run / "config.yaml").write_text("iterations: 12")
    assert "Trained: 0 of 12 iterations." in read_page(run).text


def test_every_section_is_there_and_a_missing_part_only_leaves_its_own_out(tmp_path: Path) -> None:
    everything = {"curves", "samples", "rewards", "diagnostics", "time", "resources", "settings", "versions"}
    run = _full_run(tmp_path)
    assert read_page(run).ids() == everything
    (run / "summary.json").unlink()
    (run / "config.yaml").unlink()
    (run / "samples" / "000000" / "samples.json").unlink()
    assert read_page(run).ids() == everything - {"versions", "settings", "samples"}
    (run / "metrics.jsonl").write_text('{"iteration": 1, "reward/mean": 0.5}\n')
    assert read_page(run).ids() == {"curves"}


def test_a_run_without_metrics_is_the_users_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no run directory at .*absent"):
        write_report(tmp_path / "absent")
    with pytest.raises(ConfigError, match="no metrics yet"):
        write_report(tmp_path)
    (tmp_path / "metrics.jsonl").write_text('{"iteration": 1, "rew')
    with pytest.raises(ConfigError, match="no metrics yet"):
        write_report(tmp_path)
    assert not (tmp_path / "report.html").exists()


def test_a_torn_last_line_is_left_out_and_a_broken_one_before_it_is_named(tmp_path: Path) -> None:
    run = run_of(tmp_path, HELD_OUT)
    with (run / "metrics.jsonl").open("a") as log:
        log.write('{"iteration": 4, "held_out/score": 0.9')
    assert "from 0.250 to 0.750" in read_page(run).text
    (run / "metrics.jsonl").write_text('{"iteration": 1}\nnonsense\n{"iteration": 2}\n')
    with pytest.raises(ConfigError, match=r"metrics.jsonl, line 2 is damaged: it is not JSON"):
        write_report(run)
    (run / "metrics.jsonl").write_text('{"loss/total": 1}\n')
    with pytest.raises(ConfigError, match=r"line 1 is damaged: no 'iteration' of 0 or more, got None"):
        write_report(run)
