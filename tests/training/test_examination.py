"""The examination measures what is planted, and leaves a run as it was."""

import json
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from mmrl.commands.train import train
from mmrl.reporting.metric_names import VARYING
from mmrl.run_directory import start
from mmrl.training.examination import Examination, _inputs, _waits
from mmrl.training.processes import Processes
from mmrl.training.trainer import Trainer
from tests.diagnosis.faults import POLICIES
from tests.process_runs import final_tensors, in_processes

SHORT = ("iterations=3", "evaluation.num_prompts=4", "evaluation.samples_per_prompt=1", "checkpoint.every=0")
FORMAT = "answers/dominant_"
FEW = ("prompts_per_iteration=4", "group_size=4")


def test_the_first_factor_of_a_new_adapter_waits_for_the_second() -> None:
    new = {"q.lora_A.w": torch.ones(2, 2), "q.lora_B.w": torch.zeros(2, 2), "k.weight": torch.zeros(2)}
    assert [name for name in new if _waits(name, new)] == ["q.lora_A.w"]
    moved = new | {"q.lora_B.w": torch.ones(2, 2)}
    assert not any(_waits(name, moved) for name in moved)


def test_the_ratio_to_log_probs_that_the_data_brings_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    ratios = {"doctor/ratio/mean": 5.5, "doctor/ratio/std": 1.0, "doctor/ratio/largest": 9.0, "doctor/ratio/alone": 0.1}
    monkeypatch.setattr(Examination, "_ratios", lambda *given: ratios)
    monkeypatch.setattr("mmrl.training.examination._inputs", lambda *given: {})
    monkeypatch.setattr("mmrl.training.examination._as_it_was", nullcontext)
    updater: Any = SimpleNamespace(processes=SimpleNamespace(is_sharded=False))
    given: Any = (updater, None, None, None, [], "recorded", 0)
    assert Examination(0).before(*given, brings_old=True) == {"doctor/ratio/alone": 0.1}
    assert Examination(0).before(*given) == ratios


def log_of(folder: Path, *settings: str, config: str, examination: Examination | None) -> list[dict[str, Any]]:
    train(start.new_run(config, [*SHORT, *settings], folder)[0], folder, examination=examination)
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


SAVE = Trainer.save


def saved_all_the_same(trainer: Trainer) -> None:
    """Writes the checkpoint that a run which is examined does not have otherwise."""
    examination, trainer.examination = trainer.examination, None
    SAVE(trainer)
    trainer.examination = examination


@pytest.mark.slow
@pytest.mark.parametrize(
    ("config", "settings"),
    [
        ("lab/grpo", ("precision=float32",)),
        ("lab/grpo", ("precision=bfloat16",)),
        ("lab/flow_grpo", ("precision=bfloat16", "sampler.num_steps=4")),
    ],
)
def test_an_examined_run_is_the_same_run(
    tmp_path: Path, config: str, settings: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Trainer, "save", saved_all_the_same)
    settings = (*FEW, *settings)
    plain = log_of(tmp_path / "plain", *settings, config=config, examination=None)
    examined = log_of(tmp_path / "examined", *settings, config=config, examination=Examination(0))
    weights, others = (final_tensors(tmp_path / name) for name in ("plain", "examined"))
    assert weights and weights.keys() == others.keys()
    assert all(torch.equal(one, others[name]) for name, one in weights.items())
    kept = [
        {name: value for name, value in line.items() if not name.startswith((*VARYING, "doctor/"))} for line in examined
    ]
    assert kept == [{name: value for name, value in line.items() if not name.startswith(VARYING)} for line in plain]
    assert {name for line in examined for name in line if name.startswith("doctor/")} >= {
        "doctor/ratio/mean",
        "doctor/step/log_ratio",
        "doctor/gradient/signal_to_noise",
    }


def measured(folder: Path, *settings: str, config: str = "lab/dapo") -> dict[str, float]:
    """Returns what the first iteration of a run measures of its ratio, by the last word of its name."""
    log = log_of(folder, "iterations=1", *FEW, *settings, config=config, examination=Examination(0))
    names = {name: value for line in log for name, value in line.items() if name.startswith("doctor/ratio/")}
    return {name.removeprefix("doctor/ratio/"): value for name, value in names.items()}


@pytest.mark.slow
def test_each_cause_of_a_ratio_that_is_off_is_measured_where_it_is_switched_off(tmp_path: Path) -> None:
    healthy = measured(tmp_path / "healthy")
    assert "dropout" not in healthy and "precision" not in healthy and max(healthy.values()) < 1e-4
    dropping = measured(tmp_path / "dropout", f"{POLICIES}:WithDropout")
    assert dropping["dropout"] > 0.3 * dropping["mean"] > 0.003
    assert max(dropping["alone"], dropping["sharing"]) < 0.01 * dropping["dropout"]  # measured without it
    shared = measured(tmp_path / "sharing", f"{POLICIES}:SharesWrongly")
    assert shared["sharing"] == pytest.approx(0.1, rel=0.01) and shared["mean"] == pytest.approx(0.1, rel=0.01)
    assert max(shared["again"], shared["alone"]) < 0.001
    rounded = measured(tmp_path / "rounded", "precision=bfloat16")
    assert rounded["precision"] > 0.3 * rounded["mean"] > 0 and rounded["again"] == 0


@pytest.mark.slow
@pytest.mark.parametrize(("lab", "planted"), [("lab/mix_grpo", "precision=bfloat16")])
def test_precision_is_measured_on_images_too(tmp_path: Path, lab: str, planted: str) -> None:
    assert "precision" not in measured(tmp_path / "healthy", config=lab)
    rounded = measured(tmp_path / "rounded", planted, config=lab)
    assert rounded["precision"] > 0.3 * rounded["mean"] and rounded["again"] == 0


def examined_by_processes() -> dict[str, float]:
    """Returns what the processes of a run, of which this is one, measure of it."""
    import tempfile

    is_main = Processes().is_main
    with tempfile.TemporaryDirectory() as folder:
        run, few = Path(folder) / "run", ("prompts_per_iteration=3", "group_size=4", "updates.minibatches=1")
        made = start.new_run("lab/dapo", [*SHORT, *few], run, is_main=is_main)[0]
        train(made, run, is_main=is_main, examination=Examination(0))
        log = (run / "metrics.jsonl").read_text().splitlines() if is_main else []
    lines = (json.loads(line) for line in log)
    return {name: value for line in lines for name, value in line.items() if name.startswith(("doctor/", FORMAT))}


@pytest.mark.slow
def test_two_processes_measure_what_one_does() -> None:
    (alone,) = in_processes(examined_by_processes, 1)
    main, other = in_processes(examined_by_processes, 2)
    assert other == {} and main.keys() == alone.keys() and alone["doctor/gradient/groups"] == 3
    for name in ("doctor/gradient/signal_to_noise", "doctor/step/log_ratio", "doctor/images/scale"):
        assert main[name] == pytest.approx(alone[name], rel=1e-2)
    assert main["doctor/ratio/mean"] < 1e-5
    assert main[f"{FORMAT}format"] == alone[f"{FORMAT}format"] > 0


@dataclass
class Long:
    """A policy that reads four letters."""

    def cuts(self, texts: list[str]) -> list[tuple[int, ...]]:
        return [(4,) if len(text) > 4 else () for text in texts]


def updater_of(policy: object, micro_batch: int = 8) -> Any:
    return SimpleNamespace(policy=policy, processes=Processes(), micro_batch=micro_batch)


def test_cut_prompts_and_shrunk_images_are_counted() -> None:
    canvas = SimpleNamespace(original=(200, 100), resized=(100, 50))
    prompts = [SimpleNamespace(text="red"), SimpleNamespace(text="a red circle")]
    rollout = SimpleNamespace(prompts=prompts, outputs=SimpleNamespace(canvases=(canvas, None, canvas)))
    counted = _inputs(updater_of(Long()), rollout)  # type: ignore[arg-type]
    assert counted == {"doctor/prompts/cut": 0.5, "doctor/images/scale": pytest.approx(0.5)}


@dataclass
class Unshared:
    """A policy whose prompts have ten tokens for each letter."""

    sharing_used: str = "none (attention takes no tree mask)"
    answer_batch: int = 4

    def without_sharing(self) -> None: ...

    def answer_at_once(self, count: int) -> None: ...

    def longest_prompt(self, prompts: list[Any]) -> int:
        return max(10 * len(prompt.text) for prompt in prompts)


def test_tokens_of_prompts_that_are_computed_again_are_counted() -> None:
    outputs = SimpleNamespace(canvases=None, num_tokens=torch.tensor([5, 7, 1, 2, 3]))
    prompts = [SimpleNamespace(text="ab"), SimpleNamespace(text="a")]
    rollout: Any = SimpleNamespace(prompts=prompts, outputs=outputs, prompt=torch.tensor([0, 0, 1, 1, 1]))
    # of 20 tokens 1 of 2 times, of 10 tokens 2 of 3 times; in all 2 * 20 + 3 * 10 + 18 tokens
    assert _inputs(updater_of(Unshared()), rollout) == {"doctor/prompts/again": pytest.approx((20 + 20) / 88)}
    # two at a time: the second prompt is computed twice in any case
    assert _inputs(updater_of(Unshared(), 2), rollout) == {"doctor/prompts/again": pytest.approx((20 + 10) / 88)}
    assert _inputs(updater_of(Unshared("cache")), rollout) == {}
