"""The report: self-contained, escaped, true to the numbers of the run."""

import json
import re
from base64 import b64encode
from collections.abc import Mapping
from hashlib import sha256
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from mmrl.contracts import ConfigError
from mmrl.report import write_report

VOID = {"meta", "img", "rect", "line", "circle", "path"}  # the SVG ones are written self-closing
HOSTILE = "</script><script>alert(1)</script><img src=http://x onerror='alert(2)'>\"&"
TRAINING: list[dict[str, Any]] = [
    {
        "iteration": iteration,
        "reward/mean": 0.1 * iteration,
        "reward/std": 0.2,
        "reward/shape/mean": 0.1 * iteration,
        "loss/ratio": 1.0,
        "calls/rollout": 40,
        "calls/update": 10,
        "time/rollout": 3.0,
        "time/update": 6.0,
        "time/iteration": 10.0,
    }
    for iteration in (1, 2, 3)
]
HELD_OUT: list[dict[str, Any]] = [
    {"iteration": 0, "held_out/score": 0.25, "time/evaluation": 2.0},
    {"iteration": 2, "held_out/score": 0.875, "time/evaluation": 2.0},
    {"iteration": 3, "held_out/score": 0.75, "time/evaluation": 2.0},
]
SUMMARY = {
    "held_out": {"name": "accuracy", "before": 0.251, "after": 0.752, "best": 0.876},
    "train_seconds": 192.0,
    "iterations": 4,
    "network_calls": 12480,
    "versions": {"torch": "2.15.0"},
}


def _run(
    root: Path, lines: list[dict[str, Any]], summary: Mapping[str, Any] | None = None, name: str = "a run"
) -> Path:
    run = root / name
    run.mkdir(parents=True)
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (run / "config.yaml").write_text("group_size: 24\n")
    if summary is not None:
        (run / "summary.json").write_text(json.dumps(summary))
    return run


def _save(run: Path, iteration: int, samples: list[dict[str, Any]], pictures: Mapping[str, Image.Image]) -> None:
    folder = run / "samples" / f"{iteration:06d}"
    folder.mkdir(parents=True)
    (folder / "samples.json").write_text(json.dumps({"kind": "image", "samples": samples}))
    for file, shown in pictures.items():
        shown.save(folder / file)


def _sample(prompt: str, seed: int, **output: Any) -> dict[str, Any]:
    return {"prompt": prompt, "seed": seed, "scores": {"shape": 0.5}, **output}


class _Page(HTMLParser):
    """Tags with their attributes, the visible text, and whether every tag was closed in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self._open: list[str] = []
        self.feed(text)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if not self._open or self._open[-1] not in ("style", "script"):
            self.text += data

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]

    def ids(self) -> set[str | None]:
        return {attributes["id"] for attributes in self.all("section")}


def _read(run: Path) -> _Page:
    return _Page(write_report(run).read_text(encoding="utf-8"))


def _full_run(root: Path) -> Path:
    run = _run(root, [*HELD_OUT, *TRAINING], SUMMARY)
    for iteration, colour in ((0, "red"), (3, "green")):
        _save(run, iteration, [_sample("a disc", 7, file="000.png")], {"000.png": Image.new("RGB", (32, 32), colour)})
    return run


def test_the_page_loads_nothing(tmp_path: Path) -> None:
    run = _full_run(tmp_path)
    page = _read(run)
    for _, attributes in page.tags:
        assert attributes.keys().isdisjoint({"srcset", "action", "background", "poster", "data"})
        assert (attributes.get("src") or "data:").startswith("data:")
        assert (attributes.get("href") or "#").startswith("#")
    assert {tag for tag, _ in page.tags}.isdisjoint({"link", "iframe", "object", "embed", "base"})
    text = (run / "report.html").read_text(encoding="utf-8")
    assert not re.search(r"https?:|//[a-z]|url\(|@import|fetch\(|XMLHttp", re.sub(r"base64,[^\"]*", "", text))


def test_the_policy_allows_exactly_the_style_and_script_of_the_page(tmp_path: Path) -> None:
    page = _full_run(tmp_path)
    text = write_report(page).read_text(encoding="utf-8")
    policy = next(meta["content"] for meta in _Page(text).all("meta") if "http-equiv" in meta) or ""
    assert policy.startswith("default-src 'none'; img-src data:;")
    for tag in ("style", "script"):
        (content,) = re.findall(f"<{tag}>(.*?)</{tag}>", text, re.DOTALL)
        assert f"{tag}-src 'sha256-{b64encode(sha256(content.encode()).digest()).decode()}'" in policy
    for _, attributes in _Page(text).tags:
        assert not any(name == "style" or name.startswith("on") for name in attributes), "the policy blocks these"


def test_hostile_text_stays_text(tmp_path: Path) -> None:
    score = {f"reward/{HOSTILE}/mean": 1.0, f"loss/{HOSTILE}": 1.0, f"time/{HOSTILE}": 1.0}
    summary = {**SUMMARY, "versions": {HOSTILE: HOSTILE}, "held_out": {**SUMMARY["held_out"], "name": HOSTILE}}  # type: ignore[dict-item]
    run = _run(tmp_path, [{**line, **score} for line in TRAINING], summary, name="<script>alert(0)<")
    (run / "config.yaml").write_text(HOSTILE)
    samples = [{**_sample(HOSTILE, 1, text=HOSTILE), "scores": {HOSTILE: 1.0}}]
    samples.append(_sample(HOSTILE, 2, file="0.png"))
    for iteration in (0, 3):
        _save(run, iteration, samples, {"0.png": Image.new("RGB", (8, 8))})
    page = _read(run)
    assert len(page.all("script")) == 1
    assert len(page.all("img")) == 2
    assert [image["alt"] for image in page.all("img")] == [f"before: {HOSTILE}", f"after: {HOSTILE}"]
    # 2 prompts, 2 answers, 1 score, 1 reward, 1 time, 1 setting, 2 in versions; the measure twice; loss/ besides
    assert page.text.count(HOSTILE) == 13
    assert "<script>alert(0)<" in page.text


def test_the_headline_says_what_the_summary_says(tmp_path: Path) -> None:
    text = _read(_full_run(tmp_path)).text
    assert (
        "Held-out score (accuracy) rose from 0.251 to 0.752 in 3 min 12 s of training: "
        "4 iterations, 12,480 network calls."
    ) in text
    assert "best 0.876" in text
    assert "48 s each" in text
    assert "did not finish" not in text


def test_the_headline_of_a_stopped_run_comes_from_its_metrics(tmp_path: Path) -> None:
    text = _read(_run(tmp_path, [*HELD_OUT, *TRAINING])).text
    assert "Held-out score rose from 0.250 to 0.750 in 30 s of training: 3 iterations, 150 network calls." in text
    assert "best 0.875" in text
    assert "did not finish" in text


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (TRAINING, "Training reward rose from 0.100 to 0.300 in 30 s"),
        (TRAINING[::-1], "Training reward fell from 0.300 to 0.100 in 30 s"),
        ([TRAINING[0], TRAINING[0]], "Training reward stayed the same, from 0.100 to 0.100 in 20 s"),
        ([{"iteration": 5, "loss/total": 1.0}], "Trained: 5 iterations."),
    ],
)
def test_the_headline_without_held_out_scores(tmp_path: Path, lines: list[dict[str, Any]], said: str) -> None:
    assert said in _read(_run(tmp_path, lines)).text


def test_every_section_is_there_and_a_missing_part_only_leaves_its_own_out(tmp_path: Path) -> None:
    everything = {"curves", "samples", "rewards", "diagnostics", "time", "settings", "versions"}
    run = _full_run(tmp_path)
    assert _read(run).ids() == everything
    (run / "summary.json").unlink()
    (run / "config.yaml").unlink()
    (run / "samples" / "000000" / "samples.json").unlink()
    assert _read(run).ids() == everything - {"versions", "settings", "samples"}
    (run / "metrics.jsonl").write_text('{"iteration": 1, "reward/mean": 0.5}\n')
    assert _read(run).ids() == {"curves"}


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
    run = _run(tmp_path, HELD_OUT)
    with (run / "metrics.jsonl").open("a") as log:
        log.write('{"iteration": 4, "held_out/score": 0.9')
    assert "from 0.250 to 0.750" in _read(run).text
    (run / "metrics.jsonl").write_text('{"iteration": 1}\nnonsense\n{"iteration": 2}\n')
    with pytest.raises(ConfigError, match=r"metrics.jsonl line 2 is not JSON"):
        write_report(run)
    (run / "metrics.jsonl").write_text('{"loss/total": 1}\n')
    with pytest.raises(ConfigError, match=r"line 1 needs a whole number 'iteration', got None"):
        write_report(run)


def test_values_that_are_not_finite_are_counted_and_not_drawn(tmp_path: Path) -> None:
    losses = [1.0, float("nan"), None, float("inf"), 2.0]
    lines = [{"iteration": index, "loss/total": loss, "loss/kl": float("nan")} for index, loss in enumerate(losses)]
    page = _read(_run(tmp_path, lines))
    assert "3 values were not finite" in page.text
    assert "5 values were not finite" in page.text
    (chart,) = [svg for svg in page.all("svg") if svg["class"] == "chart"]
    assert json.loads(chart["data-lines"] or "") == [{"name": "loss", "x": [0, 4], "y": [1, 2]}]


def _with_greedy(lines: list[dict[str, Any]], values: tuple[float, ...] = (0.5, 0.9, 0.875)) -> list[dict[str, Any]]:
    return [{**line, "held_out_greedy/score": value} for line, value in zip(lines, values, strict=True)]


def test_further_samplers_stand_beside_the_held_out_score(tmp_path: Path) -> None:
    page = _read(_run(tmp_path, [*_with_greedy(HELD_OUT), *TRAINING]))
    assert "rose from 0.250 to 0.750 (greedy: 0.500 to 0.875) in 30 s" in page.text
    assert "best 0.875, greedy 0.500 \N{RIGHTWARDS ARROW} 0.875" in page.text
    chart = next(svg for svg in page.all("svg") if (svg["aria-label"] or "").startswith("Held-out score"))
    assert [(line["name"], line["y"]) for line in json.loads(chart["data-lines"] or "")] == [
        ("held-out score", [0.25, 0.875, 0.75]),
        ("greedy", [0.5, 0.9, 0.875]),
    ]


def test_the_summary_s_word_on_a_further_sampler_goes_before_the_metrics(tmp_path: Path) -> None:
    summary = {**SUMMARY, "held_out_greedy": {"before": 0.111, "after": 0.222}}
    assert "(greedy: 0.111 to 0.222)" in _read(_run(tmp_path / "1", _with_greedy(HELD_OUT), summary)).text
    summary["held_out_greedy"] = {"before": 0.111, "after": None}
    assert "(greedy: 0.500 to 0.875)" in _read(_run(tmp_path / "2", _with_greedy(HELD_OUT), summary)).text
    assert "(greedy" not in _read(_run(tmp_path / "3", _with_greedy(HELD_OUT)[:1], summary)).text


def test_a_reward_has_a_held_out_curve_for_each_sampler(tmp_path: Path) -> None:
    held_out = [
        {**line, "held_out/shape/mean": 0.1 * n, "held_out_greedy/shape/mean": 0.2 * n}
        for n, line in enumerate(_with_greedy(HELD_OUT))
    ]
    page = _read(_run(tmp_path, [*held_out, *TRAINING]))
    chart = next(svg for svg in page.all("svg") if (svg["aria-label"] or "").startswith("shape"))
    names = [line["name"] for line in json.loads(chart["data-lines"] or "")]
    assert names == ["training", "held-out", "held-out, greedy"]


def test_curves_that_never_move_are_a_line_of_words(tmp_path: Path) -> None:
    lines = [
        {
            "iteration": index,
            "loss/ratio": 1.0 + 1e-9 * index,
            "loss/kl": 0.0,
            "loss/clip_fraction_low": 0.0,
            "loss/clip_fraction_high": 0.25,
            "optimizer/learning_rate": 1e-5,
            "optimizer/grad_norm": 1.0 + index,
            "reward/format/mean": 0.5,
            "reward/format/std": 0.0,
            "reward/shape/mean": 0.5,
            "reward/shape/std": 0.1 * index,
        }
        for index in range(3)
    ]
    page = _read(_run(tmp_path, lines))
    drawn = {(svg["aria-label"] or "").split(":")[0] for svg in page.all("svg") if svg["class"] == "chart"}
    assert drawn == {"Gradient norm", "shape"}
    assert "Constant: format 0.500." in page.text
    assert (
        "Constant: Probability ratio 1.000; KL to the reference 0; "
        "Clipped share below the range 0, above the range 0.250; Learning rate 1.00e\N{MINUS SIGN}5." in page.text
    )


def test_a_long_run_stays_small_and_keeps_its_spike(tmp_path: Path) -> None:
    lines = [{"iteration": index, "loss/total": float(index % 7), "optimizer/grad_norm": 1.0} for index in range(5_000)]
    lines[3_456]["loss/total"] = 123.0
    page = write_report(_run(tmp_path, lines))
    assert page.stat().st_size < 100_000
    chart = next(svg for svg in _read(page.parent).all("svg") if (svg["aria-label"] or "").startswith("Loss"))
    (line,) = json.loads(chart["data-lines"] or "")
    assert line["y"][line["x"].index(3_456)] == 123


def test_the_band_of_a_reward_is_its_own_spread(tmp_path: Path) -> None:
    (path,) = [
        path["d"] or "" for path in _read(_run(tmp_path, TRAINING)).all("path") if path["class"] == "band fill-2"
    ]
    # ticks from -0.2 to 0.6 at y 212 to 28; the first point is 0.1 + 0.2 = 0.3, 5/8 up; the last corner 0.1 - 0.2, 1/8
    assert path.startswith("M52 97L")
    assert path.endswith("L52 189Z")


def test_time_is_shared_out_and_what_is_left_is_named(tmp_path: Path) -> None:
    page = _read(_run(tmp_path, [*HELD_OUT, *TRAINING]))
    assert [rect["width"] for rect in page.all("rect")] == ["300", "600", "100"]
    for cell in ("30.0 %", "9.00 s", "3.00 s", "other", "10.0 %", "1.00 s", "Evaluation took 6.00 s more"):
        assert cell in page.text
