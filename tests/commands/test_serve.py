"""`mmrl serve`: refusals before anything is served, and real processes: many clients, signals, a kill inside a run."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from mmrl import cli
from mmrl.commands import serve
from mmrl.core.contracts import ConfigError
from mmrl.scoring.server import ServerSettings
from mmrl.system.json_server import JsonServer
from tests.parameters import in_one_test
from tests.tiny_runs import Processes, arguments, assert_same, numbers

TOKEN = "a-token-of-sixteen-letters"
OWN = "def value(text):\n    return float(text)\n"
CLIENTS, ITEMS = 16, 3
MEMORY = 24  # MiB that the server may grow by from the first tenth of the requests to the last one


def refusal(*rewards: Any, host: str = "127.0.0.1", token: str | None = None) -> str:
    """What is said where rewards are not served."""
    with pytest.raises(ConfigError) as caught:
        serve.serve(
            [{"name": one} if isinstance(one, str) else one for one in rewards],
            host,
            0,
            settings=ServerSettings(),
            token=token,
        )
    return str(caught.value)


def test_what_cannot_be_served_is_refused_before_a_port_is_opened() -> None:
    assert "--host 0.0.0.0 can be reached from other machines, and needs a token" in refusal("number", host="0.0.0.0")
    assert "needs a token" in refusal("number", host="example.org")
    assert "did you mean 'number'" in refusal("numbr")
    learning = {"name": "running_normalised", "reward": {"name": "number"}}
    assert "'running_normalised' learns from the scores of a run" in refusal(learning)
    assert "each with a name of its own" in refusal("number", "number")


@in_one_test("host", ["127.0.0.1", "127.0.0.2", "::1", "localhost"])
def test_this_machine_needs_no_token(host: str) -> None:
    assert serve._is_loopback(host)


def test_a_token_comes_from_a_file_or_a_variable(tmp_path: Path) -> None:
    (tmp_path / "token").write_text(f"{TOKEN}\n")
    assert serve.read_token(tmp_path / "token", "of-the-environment") == TOKEN
    assert serve.read_token(None, TOKEN) == TOKEN and serve.read_token(None, None) is None
    for wrong in ("", "short", "a token with spaces in it", "sechzehn-zeichen-ä"):
        with pytest.raises(ConfigError, match="a token has at least 16 printable characters"):
            serve.read_token(None, wrong)
    with pytest.raises(ConfigError, match=r"--token-file .* cannot be read"):
        serve.read_token(tmp_path / "none", None)


def test_the_command_line_passes_its_options_on(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    given: list[Any] = []
    monkeypatch.setattr(serve, "serve", lambda *args, **more: given.append((args, more)))
    monkeypatch.setenv("MMRL_SERVE_TOKEN", TOKEN)
    options = ["--port", "8123", "--max-body", "3", "--max-items", "5", "--timeout", "7", "--batch-size", "9"]
    monkeypatch.setattr(sys, "argv", ["mmrl", "serve", "box_iou kind=giou label=iou", "number", *options])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 0
    (((sections, host, port), more),) = given
    assert sections == [{"name": "box_iou", "kind": "giou", "label": "iou"}, {"name": "number"}]
    assert (host, port, more["token"], more["device"]) == ("127.0.0.1", 8123, TOKEN, "cpu")
    settings = more["settings"]
    assert (settings.max_body, settings.max_items, settings.request_seconds) == (3 * 2**20, 5, 7.0)
    assert settings.batch_size == 9


@dataclass
class Served:
    """A process of `mmrl serve`."""

    process: "subprocess.Popen[str]"
    url: str

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    def resident(self) -> float:
        """MiB of memory that the process holds."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        match = re.search(r"VmRSS:\s+(\d+) kB", status)
        assert match is not None
        return int(match[1]) / 1024

    def end(self, number: int) -> int:
        self.process.send_signal(number)
        return self.process.wait(60)


@contextmanager
def served(folder: Path, *given: str, token: str | None = None) -> Iterator[Served]:
    """A server in a process of its own, from when it listens to the end of the block."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"} | ({} if token is None else {"MMRL_SERVE_TOKEN": token})
    command = [sys.executable, "-m", "mmrl", "serve", *given]
    process = subprocess.Popen(command, cwd=folder, env=environment, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    with process.stdout:
        try:
            line = process.stdout.readline()
            match = re.search(r"at (http://\S+)$", line)
            assert match is not None, line
            yield Served(process, match[1])
        finally:
            process.kill()
            process.wait()


@pytest.mark.slow  # starts a process
@pytest.mark.timeout(180)
def test_a_process_ends_by_a_signal_and_its_token_is_in_no_list_of_processes(tmp_path: Path) -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        with served(tmp_path, "number", "--port", "0", token=TOKEN) as one:
            assert TOKEN not in Path(f"/proc/{one.process.pid}/cmdline").read_text()
            server = JsonServer(one.url, 20, 0, headers={"Authorization": f"Bearer {TOKEN}"})
            assert server.get("/v1/rewards")["rewards"][0]["name"] == "number"
            assert one.end(number) == 0


def ask(server: JsonServer, client: int, number: int, wrong: list[str]) -> None:
    """Asks for the scores of texts that no other request has; notes what is lost or swapped."""
    values = [(number * CLIENTS + client) * ITEMS + place for place in range(ITEMS)]
    items: list[dict[str, Any]] = [{"id": f"{value}", "prompt": {"text": "q"}, "text": f"{value}"} for value in values]
    if number % 100 == 7:
        items[1] = {"id": "broken", "prompt": {"text": "q"}, "text": "x"}
    scores = server.post("/v1/rewards/value/scores", {"items": items})["scores"]
    got = {one["id"]: one["score"] for one in scores}
    expected = {one["id"]: None if one["id"] == "broken" else float(one["id"]) for one in items}
    if got != expected or len(scores) != len(items):
        wrong.append(f"{got} in place of {expected}")


def ask_all(url: str, requests: range) -> tuple[list[str], int]:
    """Sends requests from all clients at once; returns what was wrong, and how many were answered."""
    wrong: list[str] = []
    answered: list[int] = []

    def work(client: int) -> None:
        with JsonServer(url, 120, 3).opened() as server:
            for number in requests:
                ask(server, client, number, wrong)
            answered.append(len(requests))

    threads = [Thread(target=work, args=(client,)) for client in range(CLIENTS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return wrong, sum(answered)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("requests", [1_600, pytest.param(10_000, marks=pytest.mark.exhaustive)])
def test_no_score_of_many_clients_is_lost_or_swapped_and_memory_is_flat(tmp_path: Path, requests: int) -> None:
    (tmp_path / "own.py").write_text(OWN)
    each = requests // CLIENTS
    with served(tmp_path, "python function=own:value label=value", "--port", "0") as one:
        wrong, count = ask_all(one.url, range(each // 10))
        before = one.resident()
        more, others = ask_all(one.url, range(each // 10, each))
        grown = one.resident() - before
        assert wrong + more == [] and count + others == requests
        assert grown < MEMORY, f"it grew by {grown:.1f} MiB"
        page = JsonServer(one.url, 20, 0).get("/metrics")
        broken = CLIENTS * len([number for number in range(each) if number % 100 == 7])
        assert f'mmrl_items_total{{outcome="judged",reward="value"}} {requests * ITEMS - broken}.0' in page
        assert f'mmrl_items_total{{outcome="not_judged",reward="value"}} {broken}.0' in page
        assert one.end(signal.SIGTERM) == 0


def rewards(url: str) -> str:
    section = {
        "name": "http",
        "label": "shapes",
        "url": url,
        "reward": "shapes",
        "needs": ["images"],
        "range": [0.0, 1.0],
        "batch_size": 4,
        "outage_seconds": 120,
    }
    return f"rewards={json.dumps([section])}"


@pytest.mark.slow  # two runs, and a server that is started twice
@pytest.mark.timeout(600)
def test_a_server_that_is_killed_and_started_again_changes_nothing_of_a_run(tmp_path: Path) -> None:
    processes, here, there = Processes(tmp_path), tmp_path / "here", tmp_path / "there"
    longer = ("iterations=12", "checkpoint.every=4")
    assert processes.run(arguments("policy_gradient", here, *longer, "rewards=[{name: shapes}]")) == 0
    with ExitStack() as stack:
        first = stack.enter_context(served(tmp_path, "shapes", "--port", "0"))
        run = processes.start(arguments("policy_gradient", there, *longer, rewards(first.url)))
        metrics = there / "metrics.jsonl"
        while run.is_alive() and not (metrics.exists() and len(metrics.read_text().splitlines()) >= 4):
            time.sleep(0.02)
        assert run.is_alive(), processes.output.read_text()
        first.end(signal.SIGKILL)
        time.sleep(2)
        assert run.is_alive(), processes.output.read_text()
        stack.enter_context(served(tmp_path, "shapes", "--port", str(first.port)))
        run.join(300)
        assert run.exitcode == 0, processes.output.read_text()
    assert "waiting for reward servers" in processes.output.read_text(), "the run was in the middle"
    found, expected = numbers(there), numbers(here)
    for one in (found, expected):
        del one["state"]["state"]["settings"]  # which name the rewards
    assert_same(found, expected)
