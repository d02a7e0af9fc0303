"""What commands cost that read no weights, in CPU seconds above `import torch`; and how long a process stays after its
last line."""

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import time

CONFIGS = ("quickstart", "quickstart_gui", "flow_grpo_sd35", "grpo_qwen25vl_3b_refcoco", "geometry3k_qwen25vl_7b")
MMRL = (sys.executable, "-m", "mmrl")


def cpu_seconds(command: tuple[str, ...], repeats: int) -> float:
    """The median of user and system time."""
    found = []
    for _ in range(repeats):
        before = _of_children()
        subprocess.run(command, check=True, capture_output=True)
        found.append(_of_children() - before)
    return statistics.median(found)


def _of_children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def seconds_after_last_line(command: tuple[str, ...], repeats: int) -> float:
    """The median of the time from the last line on stdout to the end of the process."""
    found = []
    for _ in range(repeats):
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            for _line in process.stdout:
                last = time.monotonic()
            process.wait()
            found.append(time.monotonic() - last)
    return statistics.median(found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--configs", nargs="*", default=CONFIGS)
    parser.add_argument("--run", help="a run directory, to report")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", default="1")
    given = parser.parse_args()
    os.environ |= {"OMP_NUM_THREADS": given.threads, "PYTHONUNBUFFERED": "1"}
    torch = cpu_seconds((sys.executable, "-c", "import torch"), given.repeats)
    print(json.dumps({"import torch": round(torch, 2)}), flush=True)
    for config in given.configs:
        taken = cpu_seconds((*MMRL, "check", config), given.repeats)
        print(json.dumps({"check": config, "cpu": round(taken, 2), "above_torch": round(taken - torch, 2)}), flush=True)
    if given.run:
        print(json.dumps({"report": round(cpu_seconds((*MMRL, "report", given.run), given.repeats), 2)}), flush=True)
    evaluated = (*MMRL, "evaluate", "quickstart", "evaluation.num_prompts=4")
    stays = seconds_after_last_line(evaluated, given.repeats)
    print(json.dumps({"evaluate, seconds after the last line": round(stays, 2)}), flush=True)


if __name__ == "__main__":
    main()
