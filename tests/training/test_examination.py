"""The examination measures what is planted, and leaves a run as it was."""

import json
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from mmrl.commands.train import train
from mmrl.reporting.metric_names import VARYING
from mmrl.run_directory import start
from mmrl.training.examination import Examination, _inputs, signal_to_noise

SHORT = ("iterations=3", "evaluation.num_prompts=4", "evaluation.samples_per_prompt=1", "checkpoint.every=0")
FEW = ("prompts_per_iteration=4", "group_size=4")


def test_signal_to_noise_is_the_square_of_the_mean_over_its_variance() -> None:
    gradients = np.random.default_rng(0).normal(0.3, 1.0, (8, 50))
    mean, variance = gradients.mean(0), gradients.var(0, ddof=1).sum() / 8
    found = signal_to_noise(float((gradients.sum(0) ** 2).sum()), [float((one**2).sum()) for one in gradients])
    assert found == pytest.approx(float((mean**2).sum() / variance))


def test_pure_noise_has_a_signal_to_noise_of_one_on_average() -> None:
    rng = np.random.default_rng(1)
    found = []
    for _ in range(200):
        gradients = rng.normal(0.0, 1.0, (8, 200))
        found.append(
            signal_to_noise(float((gradients.sum(0) ** 2).sum()), [float((one**2).sum()) for one in gradients])
        )
    assert np.mean([one for one in found if one is not None]) == pytest.approx(1.0, abs=0.03)


def test_equal_gradients_have_no_noise() -> None:
    assert signal_to_noise(64 * 5.0, [5.0] * 8) is None


def log_of(folder: Path, *settings: str, config: str, examination: Examination | None) -> list[dict[str, Any]]:
    train(start.new_run(config, [*SHORT, *settings], folder)[0], folder, examination=examination)
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.slow
@pytest.mark.parametrize("config", ["lab/dapo", "lab/mix_grpo"])
def test_an_examined_run_is_the_same_run(tmp_path: Path, config: str) -> None:
    plain = log_of(tmp_path / "plain", *FEW, config=config, examination=None)
    examined = log_of(tmp_path / "examined", *FEW, config=config, examination=Examination(0))
    kept = [
        {name: value for name, value in line.items() if not name.startswith((*VARYING, "doctor/"))} for line in examined
    ]
    assert kept == [{name: value for name, value in line.items() if not name.startswith(VARYING)} for line in plain]
    assert {name for line in examined for name in line if name.startswith("doctor/")} >= {
        "doctor/ratio/mean",
        "doctor/step/log_ratio",
        "doctor/gradient/signal_to_noise",
    }


@dataclass
class Long:
    """A policy that reads four letters."""

    def cuts(self, texts: list[str]) -> list[tuple[int, ...]]:
        return [(4,) if len(text) > 4 else () for text in texts]


def test_cut_prompts_and_shrunk_images_are_counted() -> None:
    canvas = SimpleNamespace(original=(200, 100), resized=(100, 50))
    prompts = [SimpleNamespace(text="red"), SimpleNamespace(text="a red circle")]
    rollout = SimpleNamespace(prompts=prompts, outputs=SimpleNamespace(canvases=(canvas, None, canvas)))
    measured = _inputs(Long(), rollout)  # type: ignore[arg-type]
    assert measured == {"doctor/prompts/cut": 0.5, "doctor/images/scale": pytest.approx(0.5)}
