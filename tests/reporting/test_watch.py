"""The live page: nothing of a run's texts runs in it, it serves the run's samples alone, and it follows the run."""

import json
import signal
import subprocess
import sys
import time
from base64 import b64encode
from collections.abc import Iterator
from hashlib import sha256
from http.client import HTTPConnection
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

import pytest
from PIL import Image
from playwright.sync_api import sync_playwright

from mmrl.environments.base.chromium import find_executable
from mmrl.reporting.live_run import LiveRun, Tail
from mmrl.reporting.loopback import NOTHING
from mmrl.reporting.report import write_report
from mmrl.reporting.watch import serving
from mmrl.system.errors import ConfigError
from tests.report_pages import HELD_OUT, TRAINING, run_of

HOSTILE = (
    "<script>window.broken = 1</script>",
    '"><img src=x onerror="window.broken = 1">',
    "../../etc/passwd",
    "left \u202egnidaer\u202c right",
)
FINDING = {
    "iteration": 2,
    "name": HOSTILE[0],
    "severity": "fatal",
    "cause": HOSTILE[1],
    "value": 0.5,
    "remedy": HOSTILE[3],
}


def _hostile_run(root: Path) -> Path:
    run = run_of(root, [*HELD_OUT, *TRAINING], name='a <b onclick="x">run\u202e')
    for kind, iterations in (("samples", (0, 2, 3)), ("rollouts", (1, 3))):
        for iteration in iterations:
            _save(run / kind / f"{iteration:06d}", iteration, is_group=kind == "rollouts")
    (run / "findings.jsonl").write_text(json.dumps(FINDING) + '\n{"iteration": 3, "na')
    lines = [{"iteration": iteration, "groups": _groups(iteration)} for iteration in (1, 2, 3)]
    (run / "groups.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return run


def _save(folder: Path, iteration: int, *, is_group: bool) -> None:
    folder.mkdir(parents=True)
    samples: list[dict[str, Any]] = []
    for number in range(8 if is_group else 4):
        Image.new("RGB", (64, 64), (60 * iteration, 25 * number, 90)).save(folder / f"{number:03d}.png")
        places = {"places": ["best"] if number < 4 else ["worst"], "total": 0.5}
        entry = {
            "prompt": HOSTILE[number // 4 if is_group else number],
            "seed": number // 4,
            "file": f"{number:03d}.png",
        }
        samples.append(entry | {"scores": {HOSTILE[0]: 0.25}} | (places if is_group else {}))
    (folder / "samples.json").write_text(json.dumps({"kind": "image", "samples": samples}))


def _groups(iteration: int) -> list[dict[str, Any]]:
    return [
        {
            "prompt": 4 * iteration + number,
            "name": f"n{number}",
            "text": text,
            "size": 8,
            "mean": number / 4 + iteration / 20,
            "std": 0.1,
            "rewards": {"a": 0.5, "b": None},
            "degenerate": number == 2,
        }
        for number, text in enumerate(HOSTILE)
    ]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return _hostile_run(tmp_path)


@pytest.fixture
def port(run: Path) -> Iterator[int]:
    with serving(run, 0, lambda: False) as address:
        yield int(urlsplit(address).port or 0)


def _get(port: int, path: str, method: str = "GET", **headers: str) -> tuple[int, bytes]:
    connection = HTTPConnection("127.0.0.1", port, timeout=10)
    connection.request(method, path, headers=headers)
    answer = connection.getresponse()
    content = answer.read()
    connection.close()
    return answer.status, content


def test_only_this_machines_names_and_only_reading_are_served(port: int) -> None:
    for name in (f"127.0.0.1:{port}", f"localhost:{port}"):
        assert _get(port, "/", Host=name)[0] == 200
    for name in ("example.org", f"127.0.0.1.example.org:{port}", ""):
        assert _get(port, "/state", Host=name)[0] == 403
    assert _get(port, "/", method="POST")[0] == 403
    assert _get(port, "/", method="HEAD") == (200, b"")


def test_no_file_is_served_but_media_of_samples(port: int, run: Path, tmp_path: Path) -> None:
    (tmp_path / "secret.png").write_bytes(b"secret")
    (run / "samples" / "000003" / "linked.png").symlink_to(tmp_path / "secret.png")
    assert _get(port, "/media/samples/000003/000.png")[1].startswith(b"\x89PNG")
    for path in (
        "/config.yaml",
        "/media/config.yaml",
        "/media/samples/000003/samples.json",
        "/media/samples/000003/../../../secret.png",
        "/media/samples/000003/%2e%2e%2f%2e%2e%2fsecret.png",
        "/media/samples/000003/linked.png",
    ):
        status, content = _get(port, path)
        assert status == 404 and b"secret" not in content, path


def test_a_player_gets_the_part_of_a_file_that_it_wants(port: int, run: Path) -> None:
    (run / "samples" / "000003" / "clip.mp4").write_bytes(b"0123456789")
    assert _get(port, "/media/samples/000003/clip.mp4", Range="bytes=2-4") == (206, b"234")
    assert _get(port, "/media/samples/000003/clip.mp4", Range="bytes=90-") == (200, b"0123456789")


def test_the_page_allows_its_own_script_and_style_and_nothing_else_anything(port: int) -> None:
    connection = HTTPConnection("127.0.0.1", port, timeout=10)
    policies = []
    for path in ("/", "/state", "/rollouts?iteration=3", "/media/samples/000003/000.png", "/none"):
        connection.request("GET", path)
        answer = connection.getresponse()
        text = answer.read()
        policies.append(answer.headers["Content-Security-Policy"])
        if path == "/":
            for tag in (b"style", b"script"):
                content = text.partition(b"<" + tag + b">")[2].partition(b"</" + tag + b">")[0]
                digest = b64encode(sha256(content).digest()).decode()
                assert f"{tag.decode()}-src 'sha256-{digest}'" in policies[0]
    connection.close()
    assert "connect-src 'self'" in policies[0] and "frame-ancestors 'none'" in policies[0]
    assert set(policies[1:]) == {NOTHING}


def test_what_the_last_look_gave_is_sent_again_until_rendering_was_paid_for(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rendering that takes 0.2 s of a core is done every 20 s at most: 1 %."""
    clock, spent = [100.0], [0.0]
    monkeypatch.setattr("mmrl.reporting.live_run.time", SimpleNamespace(
        monotonic=lambda: clock[0], time=time.time, thread_time=lambda: spent.__setitem__(0, spent[0] + 0.2) or spent[0]
    ))  # fmt: skip
    live = LiveRun(run, lambda: False)
    seen = [live.look()[0]]
    for second in (0.0, 19.0, 21.0):
        clock[0] = 100.0 + second
        with (run / "metrics.jsonl").open("a") as log:
            log.write(json.dumps(TRAINING[-1] | {"iteration": 10 + int(second)}) + "\n")
        seen.append(live.look()[0])
    assert seen[0] == seen[1] == seen[2] != seen[3]


def test_nothing_is_sent_where_nothing_changed(port: int) -> None:
    status, content = _get(port, "/state")
    assert status == 200
    assert _get(port, f"/state?have={json.loads(content)['version']}") == (204, b"")


def test_a_port_in_use_is_a_clear_error(run: Path, port: int) -> None:
    with (
        pytest.raises(ConfigError, match=f"cannot listen at 127.0.0.1:{port}: .*; --port 0 is free"),
        serving(run, port, lambda: False),
    ):
        raise AssertionError


def test_a_run_without_metrics_waits_and_a_torn_line_is_not_read_yet(tmp_path: Path) -> None:
    (run := tmp_path / "new").mkdir()
    live = LiveRun(run, lambda: False)
    assert "waits for its first iteration" in live.look()[1]["head"]
    live._not_before = 0.0
    (run / "metrics.jsonl").write_text('{"iteration": 1, "reward/mean": 0.5}\n{"iteration": 2, "rew')
    assert "Trained: 1 iteration." in live.look()[1]["head"]


def test_a_run_that_trains_says_where_it_is_and_what_is_left(tmp_path: Path) -> None:
    run = run_of(tmp_path, TRAINING, {"iterations": 1, "train_seconds": 9.0})  # of a run that was stopped and goes on
    (run / "config.yaml").write_text("iterations: 12\n")
    head = LiveRun(run, lambda: True).look()[1]["head"]
    assert "in 30 s of training: iteration 3 of 12, 150 network calls." in head and "3 <span>of 12</span>" in head
    assert "Training now, about 1 min 30 s of training left; this page follows." in head, "10 s each, nine of them"
    (run / "config.yaml").write_text("iterations: 12\nmax_seconds: 70\n")
    assert "about 40 s of training left" in LiveRun(run, lambda: True).look()[1]["head"]
    (run / "config.yaml").write_text(f"iterations: {10**400}\nmax_seconds: {10**400}\n")
    assert "Training now; this page follows." in LiveRun(run, lambda: True).look()[1]["head"]
    assert "left" not in LiveRun(run, lambda: False).look()[1]["head"]


def test_a_page_that_is_open_says_that_the_process_ended_and_why(tmp_path: Path) -> None:
    trains = [True]
    live = LiveRun(run := run_of(tmp_path, TRAINING), lambda: trains[0])
    assert "Training now" in live.look()[1]["head"]
    live._not_before, trains[0] = 0.0, False
    assert "No process trains in this run directory now.</p>" in live.look()[1]["head"]
    live._not_before = 0.0
    (run / "failure.json").write_text('{"kind": "RunError", "reason": "the disk is <full>"}')
    assert "It ended with an error: the disk is &lt;full&gt;</p>" in live.look()[1]["head"]


def test_a_tail_gives_each_line_once_and_all_of_a_log_that_was_replaced(tmp_path: Path) -> None:
    tail = Tail(log := tmp_path / "log")
    assert tail.read() == (False, [])
    log.write_bytes(b"a\nb")
    assert tail.read()[1] == [b"a"]
    with log.open("ab") as more:
        more.write(b"c\nd\n")
    assert tail.read() == (False, [b"bc", b"d"])
    assert tail.read() == (False, [])
    (tmp_path / "other").write_bytes(b"a\n")
    (tmp_path / "other").replace(log)
    assert tail.read() == (True, [b"a"])
    log.write_bytes(b"")  # the same file, cut in its place
    assert tail.read() == (True, [])
    log.write_bytes(b"e\n")
    assert tail.read() == (False, [b"e"])
    log.unlink()
    assert tail.read() == (True, []) and tail.read() == (False, [])


def test_the_report_shows_findings_before_curves_rollouts_and_histories(run: Path) -> None:
    text = write_report(run).read_text()
    assert text.index('id="findings"') < text.index('id="curves"') < text.index('id="rollouts"')
    assert 'class="badge fatal">fatal</span>' in text and "The history of 4 prompts" in text
    assert "no spread" in text and "\u202e" not in text
    for hostile in HOSTILE[:2]:
        assert hostile not in text


def test_findings_stand_by_severity_and_the_earliest_first(tmp_path: Path) -> None:
    run = run_of(tmp_path, TRAINING)
    found = [("warning", 3, "reward_fell"), ("note", 1, "few_prompts"), ("warning", 1, "learning_rate_too_high")]
    lines = [FINDING | {"severity": kind, "iteration": when, "name": name} for kind, when, name in found]
    lines.append(FINDING | {"iteration": 3, "name": "no_gradient"})
    (run / "findings.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    names = ["no_gradient", "learning_rate_too_high", "reward_fell", "few_prompts"]
    live = LiveRun(run, lambda: False).look()[1]["findings"]
    for page in (write_report(run).read_text(), live):
        places = [page.index(f"<code>{name}</code>") for name in names]
        assert places == sorted(places)


@pytest.mark.slow  # a browser
@pytest.mark.parametrize("width", [1200, 400])
def test_no_text_of_a_run_is_a_script_and_the_page_follows_the_run(run: Path, port: int, width: int) -> None:
    said: list[str] = []
    with sync_playwright() as playwright:
        program = find_executable(None, Path(playwright.chromium.executable_path))
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": width, "height": 900})
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.goto(f"http://127.0.0.1:{port}/")
        page.locator("#samples img").first.wait_for()
        page.locator("#rollouts img").first.wait_for()
        assert page.evaluate("window.broken") is None
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        page.locator("details[data-name=prompts] summary").click()
        page.select_option("select[data-kind=samples]", "0")
        page.locator("#groups").scroll_into_view_if_needed()
        before = page.evaluate("document.querySelector('#groups').getBoundingClientRect().top")
        with (run / "metrics.jsonl").open("a") as log:
            log.write(json.dumps(TRAINING[-1] | {"iteration": 4}) + "\n")
        page.get_by_text("4 iterations").wait_for(timeout=15_000)
        assert page.locator("details[data-name=prompts]").get_attribute("open") is not None
        assert page.locator("select[data-kind=samples]").input_value() == "0"
        after = page.evaluate("document.querySelector('#groups').getBoundingClientRect().top")
        assert abs(after - before) < 3
        page.select_option("select[data-kind=samples]", "all")
        page.locator("#samples .film img").first.wait_for()
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        assert page.evaluate("window.broken") is None
        browser.close()
    assert said == []


@pytest.mark.slow  # a process of its own
def test_ctrl_c_ends_it_with_0(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mmrl", "report", str(_hostile_run(tmp_path)), "--watch", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert "is shown at http://127.0.0.1:" in process.stdout.readline()
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 0
