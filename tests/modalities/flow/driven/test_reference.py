"""A further picture to take from: from a row's `reference` through a twin's samples to a reward that compares them."""

import json
from pathlib import Path

import pytest
import torch
from PIL import Image

from mmrl.commands.train import train
from mmrl.core.config import DatasetSettings
from mmrl.core.contracts import Placement
from mmrl.core.keys import GroupKey
from mmrl.modalities.diffusers_pipeline import DiffusersPipeline
from mmrl.prompts.datasets import load_dataset_prompts
from mmrl.run_directory.start import new_run
from mmrl.samplers.ode import ODE
from tests.process_runs import metrics

REWARD = '''
from dataclasses import dataclass
from typing import ClassVar

from mmrl.rewards.base.sources import sources_of


@dataclass
class Brightness:
    """The brightness of the reference; the picture to edit must be black."""

    source: ClassVar[str] = "a test"
    range: ClassVar[tuple[float, float]] = (0.0, 1.0)
    granularity: ClassVar[str] = "sample"
    differentiable: ClassVar[bool] = False
    needs: ClassVar[frozenset[str]] = frozenset({"images", "prompt.image"})
    batch_size: ClassVar[int | None] = None

    def score(self, batch):
        assert {prompt.roles for prompt in batch.prompts} == {("image", "reference")}
        size = tuple(batch.outputs.images.shape[-2:])
        assert not sources_of(batch, "image", size).any()
        return sources_of(batch, "reference", size).mean((1, 2, 3))
'''


def rows(folder: Path, grey: int) -> Path:
    """A file of one row: a black picture to edit, and a reference of a grey level."""
    for name, level in (("edit", 0), (f"other{grey}", grey)):
        Image.new("RGB", (64, 64), (level,) * 3).save(folder / f"{name}.png")
    path = folder / f"rows{grey}.jsonl"
    path.write_text(json.dumps({"prompt": "Go", "image": "edit.png", "reference": f"other{grey}.png"}) + "\n")
    return path


@pytest.mark.slow  # 8 s: a small pipeline, twice
@pytest.mark.filterwarnings("ignore")
def test_a_reference_changes_samples_and_reaches_the_reward(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    both = ("image", "image")
    policy = DiffusersPipeline(model="", family="flux2_klein_edit").tiny(0, tmp_path / "twin")
    policy.conditions = both
    policy.prepare(Placement(torch.device("cpu"), torch.float32))
    made, key = [], GroupKey(0, 0, 0)
    for grey in (51, 51, 204):
        prompts = load_dataset_prompts(DatasetSettings(path=str(rows(tmp_path, grey)), layout="edit"))
        assert policy.unreadable(prompts[0]) is None
        images = policy.rollout(prompts, [ODE(num_steps=2).plan(policy, key, 1)], [key]).outputs.images
        assert images is not None
        made.append(images)
    policy.close()
    assert torch.equal(made[0], made[1]) and (made[0] - made[2]).abs().max() > 1e-4

    (tmp_path / "brightness.py").write_text(REWARD)
    monkeypatch.syspath_prepend(tmp_path)
    modality = {"name": "diffusers_pipeline", "model": policy.model, "height": 32, "width": 32, "conditions": [*both]}
    small = [
        *("iterations=1", "prompts_per_iteration=1", "group_size=2", "evaluation=null"),
        f"prompts.train={json.dumps({'path': str(tmp_path / 'rows51.jsonl'), 'layout': 'edit'})}",
        f"modality={json.dumps(modality | {'arguments': dict(policy.arguments)})}",
        'rewards=[{"name": "brightness:Brightness"}]',
    ]
    train(*new_run("quickstart_edit", small, tmp_path / "run"))
    (line,) = metrics(tmp_path / "run")
    assert line["reward/mean"] == pytest.approx(51 / 255, abs=1e-6)
