"""What the doctor sees, how early, what it says of healthy runs, and what it costs.

    PYTHONPATH=. python benchmarks/doctor.py planted        # each fault of tests/diagnosis/faults.py in both labs
    PYTHONPATH=. python benchmarks/doctor.py early          # sick runs of the labs, evaluated after each iteration
    PYTHONPATH=. python benchmarks/doctor.py quickstarts    # all of them, whole; `warnings` is what they say
    PYTHONPATH=. python benchmarks/doctor.py dry_runs       # `mmrl doctor CONFIG --tiny` of all but the labs
    PYTHONPATH=. python benchmarks/doctor.py cost           # what the rules and records take of an iteration
    PYTHONPATH=. python benchmarks/doctor.py examined       # what the first iterations of labs measure, and its cost

Names after the part choose faults, runs or configs. Rows go to stdout; docs/doctor.md has the tables.
"""

import json
import shlex
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

import torch
from _common import argument_parser, emit

from mmrl.commands.doctor import doctor
from mmrl.commands.train import train
from mmrl.core.config import shipped_names
from mmrl.core.contracts import ConfigError, RunError
from mmrl.diagnosis.history import History
from mmrl.diagnosis.rules import findings_of
from mmrl.diagnosis.watch import Watch
from mmrl.reporting.metrics_log import MetricsLog
from mmrl.reporting.record import read_record
from mmrl.run_directory import start
from mmrl.training.examination import Examination
from tests.diagnosis.faults import FAULTS

LOST = 0.05  # of the held-out score: a fall that is visible
OFTEN = ("evaluation.every=1", "checkpoint.every=0")
KEPT = json.loads((Path(__file__).parents[1] / "docs" / "curves" / "runs.json").read_text())  # runs of docs/curves.md


def run_of(name: str, *more: str) -> tuple[str, ...]:
    """Returns config and settings of a run of docs/curves.md, and some more settings."""
    return (*shlex.split(KEPT[name]["command"])[2:], *more)


EARLY: dict[str, tuple[str, ...]] = {
    "healthy clicks": run_of("clicks"),
    "rate x 10": run_of("clicks", "optimizer.learning_rate=1.0e-3"),
    "rate x 30": run_of("rate"),
    "dead groups": run_of("cold"),
    "one answer for all": run_of("corner"),
    "healthy images": run_of("images"),
    "image rate x 10": run_of("images", "optimizer.learning_rate=3.0e-3"),
    "size of a jpeg": run_of("jpeg"),
    "share of a colour": run_of("hacked"),
}


def planted(names: Sequence[str]) -> None:
    """Plants each fault in both labs."""
    for fault in FAULTS:
        for number in (0, 1) if not names or fault.finding in names else ():
            sick, healthy = fault.seen(number)
            named = fault.finding in sick and fault.finding not in healthy
            lab = fault.labs[number].config
            emit("planted", finding=fault.finding, config=lab, is_named=named, sick=sick, healthy=healthy)


def early(names: Sequence[str]) -> None:
    """Trains sick runs, and compares the first warning with the fall of the held-out score."""
    for name, run in EARLY.items():
        if names and name not in names:
            continue
        with tempfile.TemporaryDirectory() as folder:
            config = start.new_run(run[0], [*run[1:], *OFTEN], Path(folder) / "run")[0]
            train(config, Path(folder) / "run")
            lines = MetricsLog(Path(folder) / "run" / "metrics.jsonl").read()
        history, scores, found, lost = History(config), dict[int, float](), dict[str, int](), None
        for line in lines:  # of an iteration, or of the evaluation after it
            at = line["iteration"]
            history.add_line(line)
            scores |= {at: line["held_out/score"]} if "held_out/score" in line else {}
            for one in findings_of(history):
                if one.severity != "note" and one.name not in found:
                    found[one.name] = at
                    lost = _lost(scores, max(scores)) if lost is None else lost  # by the evaluations until then
        emit(
            "early",
            run=name,
            warning=min(found.values(), default=None),
            lost_at_warning=lost,
            visible_fall=next((at for at in scores if _lost(scores, at) >= LOST), None),
            lost_in_the_end=round(_lost(scores, max(scores)), 3),
            found=found,
        )


def _lost(scores: dict[int, float], iteration: int) -> float:
    """Returns what the held-out score has lost of its best up to an iteration."""
    return max(value for at, value in scores.items() if at <= iteration) - scores[iteration]


def quickstarts(names: Sequence[str]) -> None:
    """Trains every quickstart as it ships."""
    for name in [one for one in shipped_names() if one.startswith("quickstart") and (not names or one in names)]:
        with tempfile.TemporaryDirectory() as folder:
            config = start.new_run(name, [], Path(folder) / "run")[0]
            train(config, Path(folder) / "run")
            found = doctor(str(Path(folder) / "run"))
        said = {one.name: f"{one.severity} at {one.iteration}" for one in found}
        emit("quickstarts", config=name, warnings=sum(one.severity != "note" for one in found), findings=said)


def dry_runs(names: Sequence[str]) -> None:
    """Examines every shipped config on its twins."""
    for name in [one for one in shipped_names() if (one in names if names else not one.startswith("lab/"))]:
        started = time.perf_counter()
        try:
            found = doctor(name, is_tiny=True)
        except (ConfigError, RunError) as error:
            emit("dry_runs", config=name, error=str(error))
            continue
        fatal = {one.name: one.value for one in found if one.severity == "fatal"}
        notes = [one.name for one in found if one.severity == "note"]
        emit("dry_runs", config=name, fatal=fatal, notes=notes, seconds=round(time.perf_counter() - started, 1))


def cost(names: Sequence[str]) -> None:
    """Times the rules in training, against the seconds of its iterations."""
    for config in names or ("lab/grpo", "lab/flow_grpo", "lab/turns_rloo", "lab/one_shot_clips"):
        with _timed(Watch, "see") as spent, tempfile.TemporaryDirectory() as folder:
            short = ("iterations=40", "evaluation.every=0", "evaluation.num_prompts=16", "checkpoint.every=0")
            train(start.new_run(config, short, Path(folder) / "run")[0], Path(folder) / "run")
            metrics = read_record(Path(folder) / "run").metrics
        whole = sum(metrics["time/iteration"].values)
        recording = sum(metrics["time/recording"].values)
        emit("cost", config=config, rules=sum(spent) / whole, recording=recording / whole, iterations=40, seconds=whole)


def examined(names: Sequence[str]) -> None:
    """Examines labs in float32 and bfloat16; `seconds` are those of the examination, `iteration` those of one."""
    for config in names or ("lab/grpo", "lab/dapo", "lab/flow_grpo", "lab/turns_rloo", "lab/motion_flow_grpo_fast"):
        for precision in ("float32", "bfloat16"):
            short = ("iterations=3", "evaluation.every=0", "evaluation.num_prompts=4", "checkpoint.every=0")
            with tempfile.TemporaryDirectory() as folder, _timed(Examination, "before") as spent:
                run = Path(folder) / "run"
                made = start.new_run(config, [*short, f"precision={precision}"], run)[0]
                train(made, run, examination=Examination(made.seed))
                metrics = read_record(run).metrics
            measured = {
                name.removeprefix("doctor/"): float(metrics[name].values[0])
                for name in metrics
                if name.startswith("doctor/")
            }
            iteration = metrics["time/iteration"].values[-1]  # the last is not examined
            seconds = [round(one, 3) for one in spent]
            emit("examined", config=config, precision=precision, **measured, seconds=seconds, iteration=iteration)


@contextmanager
def _timed(kind: type, method: str) -> Iterator[list[float]]:
    """Yields the seconds of each call of a method, as they come."""
    spent: list[float] = []
    plain = getattr(kind, method)

    def timed(*args: object, **settings: object) -> object:
        began = time.perf_counter()
        try:
            return plain(*args, **settings)
        finally:
            spent.append(time.perf_counter() - began)

    with patch.object(kind, method, timed):
        yield spent


PARTS: dict[str, Callable[[Sequence[str]], None]] = {
    one.__name__: one for one in (planted, early, quickstarts, dry_runs, cost, examined)
}


def main() -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("part", choices=PARTS)
    parser.add_argument("names", nargs="*")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    PARTS[given.part](given.names)


if __name__ == "__main__":
    main()
