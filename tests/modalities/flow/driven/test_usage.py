"""The code that a model card gives for an export of a driven pipeline draws what mmrl draws from the same start."""

from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from diffusers import ModularPipeline
from torch import Tensor

from mmrl.core.contracts import Placement
from mmrl.core.data import Prompt
from mmrl.core.keys import GroupKey
from mmrl.modalities.diffusers_pipeline import DiffusersPipeline
from mmrl.modalities.flow import tree_sampling
from mmrl.modalities.loading.lora import Lora
from mmrl.samplers.ode import ODE
from tests.vision_twins import picture

KEY = GroupKey(3, 0, 0)


def moved(policy: DiffusersPipeline) -> None:
    """Gives the policy other weights than its model has."""
    torch.manual_seed(5)
    for parameter in policy.weights.parameters.values():
        parameter.data.add_(torch.randn(parameter.shape), alpha=0.05)


def theirs(code: str, kind: Any, folder: Path, patch: pytest.MonkeyPatch) -> tuple[Tensor, Tensor]:
    """What the code draws in the folder, [..., H, W, 3] in [0, 1], and the state of its first step.

    kind: of the scheduler.
    """
    names: dict[str, Any] = {}
    seen: list[Tensor] = []
    written: list[tuple[str, int]] = []
    own = kind.step

    def step(self: Any, output: Any, time: Any, sample: Tensor, *args: Any, **more: Any) -> Any:
        seen.append(sample.clone())
        return own(self, output, time, sample, *args, **more)

    with patch.context() as patched:
        patched.chdir(folder)
        patched.setattr(kind, "step", step)
        patched.setattr("diffusers.utils.export_to_video", lambda video, path, fps: written.append((path, fps)))
        exec(compile(code, "README.md", "exec"), names)
    assert (folder / "drawn.png").is_file() or written == [("drawn.mp4", 16)]
    drawn = names["image"] if "image" in names else names["video"]
    return torch.from_numpy(numpy.array(drawn, dtype=numpy.float32)), seen[0]


@pytest.mark.slow  # loads a model once more
@pytest.mark.parametrize(
    ("family", "scale"),
    [
        ("flux", 2.0),
        ("wan21", 2.0),
        ("flux_kontext", 2.0),
        ("modular_z_image", 2.0),
        ("flux_fill", 1.0),  # a picture and a mask; guidance is an input of its network
        ("wan22_flf2v", 2.0),  # a first and a last frame
    ],
)
@pytest.mark.filterwarnings("ignore")  # of the stock pipelines and of writers of videos
def test_the_code_of_a_card_draws_what_mmrl_draws(
    family: str, scale: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = DiffusersPipeline(model="", family=family, lora=Lora(rank=2)).tiny(0, tmp_path / "base")
    policy.prepare(Placement(torch.device("cpu"), torch.float32))
    moved(policy)
    out = tmp_path / "out"
    policy.export(out)
    media = tuple(picture(32, 32, number) for number in range(policy.num_conditions))
    for number, one in enumerate(media):
        one.load().save(out / f"condition_{number}.png")
    prompt, plan = Prompt("a red circle", media), ODE(num_steps=3, guidance_scale=scale).plan(policy, KEY, 1)
    usage = policy.usage(prompt, plan, repr(policy.model))
    assert usage.notes == () and usage.task == f"{'image' if media else 'text'}-to-{policy.output}"

    stock, _ = policy.driven.stock_call(prompt, scale, 3)
    drawn, first = theirs(usage.code, type(stock.scheduler), out, monkeypatch)
    monkeypatch.setattr(tree_sampling, "root_noise", lambda plan, key, shape: first.float())
    outputs = policy.rollout([prompt], [plan], [KEY]).outputs
    policy.close()
    made = outputs.images if policy.output == "image" else outputs.videos
    assert made is not None
    white = 255 if policy.output == "image" else 1
    torch.testing.assert_close(drawn, made[0].movedim(-3, -1) * white, atol=1.01 * white / 255, rtol=0)


@pytest.mark.slow  # 3 s: makes and loads a small pipeline
@pytest.mark.filterwarnings("ignore")  # of diffusers
def test_the_folder_of_a_modular_pipeline_can_be_moved(tmp_path: Path) -> None:
    policy = DiffusersPipeline(model="", family="modular_z_image").tiny(0, tmp_path / "base")
    policy.prepare(Placement(torch.device("cpu"), torch.float32))
    moved(policy)
    policy.export(tmp_path / "out")
    policy.close()
    (tmp_path / "out").rename(tmp_path / "moved")
    (tmp_path / "base").rename(tmp_path / "elsewhere")
    pipeline = ModularPipeline.from_pretrained(tmp_path / "moved")
    pipeline.load_components(dtype=torch.float32)
    stored = pipeline.transformer.state_dict()
    for name, parameter in policy.weights.parameters.items():
        assert torch.equal(stored[name.removeprefix("transformer.")], parameter), name
    named = [path for path in (tmp_path / "moved").rglob("*.json") if str(tmp_path) in path.read_text()]
    assert not named
