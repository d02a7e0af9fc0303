"""`mmrl check --prove` loads the model of the config and compares it with its library at the config's own settings."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from mmrl.cli import app
from mmrl.modalities.flow.driven.pipeline import DrivenPipeline
from mmrl.modalities.tiny.pipelines.families import write_tiny_pipeline

pytestmark = pytest.mark.slow  # loads a model


def proven(config: str, *overrides: str) -> tuple[int, dict[str, Any]]:
    result = CliRunner().invoke(app, ["check", config, *overrides, "--prove", "--json"])
    return result.exit_code, json.loads(result.stdout)


@pytest.fixture
def small(tmp_path: Path) -> list[str]:
    """Settings that put the small FLUX pipeline in the place of the hub's."""
    write_tiny_pipeline("flux", tmp_path / "flux", 0)
    return [f"modality.model={tmp_path / 'flux'}", "modality.height=32", "modality.width=32", "precision=float32"]


def test_a_model_is_compared_at_the_guidance_of_the_plans(small: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    scales = []
    own = DrivenPipeline.stock_call

    def seen(self: DrivenPipeline, prompt: Any, scale: float, num_steps: int) -> Any:
        scales.append(scale)
        return own(self, prompt, scale, num_steps)

    monkeypatch.setattr(DrivenPipeline, "stock_call", seen)
    code, found = proven("families/flux", *small, "sampler.guidance_scale=2.5", "evaluation.sampler.guidance_scale=4")
    assert code == 0 and found["is_good"] and scales == [2.5, 4.0]
    assert found["stock_difference"] < 1e-5 and found["batch_difference"] < 1e-4
    assert "gradient_difference" not in found


def test_a_difference_ends_with_1(small: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    own = DrivenPipeline.guided_by

    def off(self: DrivenPipeline, *args: Any) -> Any:
        return own(self, *args) * 1.1

    monkeypatch.setattr(DrivenPipeline, "guided_by", off)
    code, found = proven("families/flux", *small)
    assert code == 1 and not found["is_good"] and found["stock_difference"] > 1e-3
