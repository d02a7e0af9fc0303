"""`mmrl serve` in a process of its own under many clients: lost or swapped scores, requests a second, memory.

    python benchmarks/reward_server.py --requests 10000 --clients 16

Each request holds `--items` texts that no other has, and the reward is the number in the text: a score that belongs to
another item is seen. Memory is the server's, after a tenth of the requests and after all of them.
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from threading import Thread

from mmrl.system.json_server import JsonServer

OWN = "def value(text):\n    return float(text)\n"
NAME = "value"


def run_client(url: str, numbers: range, items: int, wrong: list[int]) -> None:
    """Sends the requests of one client; adds those whose scores are not their own to `wrong`."""
    with JsonServer(url, 120, 3).opened() as server:
        for number in numbers:
            values = range(number * items, (number + 1) * items)
            sent = [{"id": value, "prompt": {"text": "q"}, "text": f"{value}"} for value in values]
            scores = server.post(f"/v1/rewards/{NAME}/scores", {"items": sent})["scores"]
            if [(one["id"], one["score"]) for one in scores] != [(value, float(value)) for value in values]:
                wrong.append(number)


def run_clients(url: str, numbers: range, clients: int, items: int) -> list[int]:
    """Sends requests from all clients at once; returns the wrong ones."""
    wrong: list[int] = []
    threads = [Thread(target=run_client, args=(url, numbers[one::clients], items, wrong)) for one in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return wrong


def resident(process: int) -> float:
    """Returns the MiB that a process holds."""
    match = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{process}/status").read_text())
    assert match is not None, "every process of Linux has it"
    return int(match[1]) / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--items", type=int, default=3)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "own.py").write_text(OWN)
        command = [sys.executable, "-m", "mmrl", "serve", f"python function=own:value label={NAME}", "--port", "0"]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        with subprocess.Popen(command, cwd=folder, env=environment, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            try:
                url = process.stdout.readline().split()[-1]
                tenth = given.requests // 10
                wrong = run_clients(url, range(tenth), given.clients, given.items)
                before, began = resident(process.pid), time.perf_counter()
                wrong += run_clients(url, range(tenth, given.requests), given.clients, given.items)
                seconds, after = time.perf_counter() - began, resident(process.pid)
                page = JsonServer(url, 20, 0).get("/metrics")
            finally:
                process.terminate()
    calls = float(re.findall(r"^mmrl_call_samples_count\S* (\S+)", page, re.M)[0])
    print(f"{given.requests} requests of {given.clients} clients, {len(wrong)} with lost or swapped scores")
    print(f"{(given.requests - tenth) / seconds:.0f} requests a second")
    print(f"{given.requests * given.items / calls:.1f} samples a call")
    print(f"memory of the server: {before:.1f} MiB after a tenth, {after:.1f} MiB after all")


if __name__ == "__main__":
    main()
