"""What runs on a CPU alone runs on an accelerator too: no operation mixes tensors of both."""

from typing import Any

import pytest
import torch
from torch import Tensor

from mmrl.commands.instrumentation import JitteredReward
from mmrl.core.contracts import RewardBatch
from tests.pretend_accelerator import DEVICE, Remote, pretended, tiny_run


def test_an_operation_on_tensors_of_both_is_noted_and_what_a_gpu_allows_is_not() -> None:
    with pretended() as mixes:
        here, there = torch.arange(4.0), torch.arange(4.0, device=DEVICE)
        number = torch.tensor(2.0)  # without axes
        rows, column = torch.tensor([3, 1]), torch.tensor([0, 2], device=DEVICE)
        assert isinstance(there, Remote) and there.device == DEVICE
        for allowed in (there + 1, there * number, there[rows], there[column], there[[3, 1]], here.to(DEVICE) + there):
            assert isinstance(allowed, Remote)
        assert there[rows].tolist() == there[[3, 1]].tolist() == [3.0, 1.0] and there.sum().item() == 6.0
        there[column] = 0.0
        copied = torch.empty(4).copy_(there)
        assert type(copied) is Tensor and (copied + here).tolist() == [0.0, 2.0, 2.0, 6.0] and not mixes
        there + here, here[column], torch.cat([here, there]), there.index_put_((column,), here[:2])
        operations = [said.partition(" at ")[0] for said in mixes]
    assert operations == ["aten.add.Tensor", "aten.index.Tensor", "aten.cat.default", "aten.index_put_.default"]


def test_gradients_and_modules_go_there_and_back() -> None:
    layer = torch.nn.Linear(2, 1)
    weight = layer.weight.detach().clone()
    with pretended() as mixes:
        layer.to(DEVICE)
        assert isinstance(layer.weight, Remote)
        with torch.autocast(DEVICE.type, torch.bfloat16):
            layer(torch.tensor([[1.0, 3.0]], device=DEVICE)).sum().backward()
        torch.optim.SGD(layer.parameters(), lr=1.0).step()
        moved = layer.weight.detach().cpu()
        assert not mixes
    torch.testing.assert_close(moved, weight - torch.tensor([[1.0, 3.0]]))
    assert torch.autocast.__name__ == "autocast" and torch.zeros(1, device=DEVICE).__class__ is Tensor


def test_the_noise_on_scores_is_where_the_scores_are() -> None:
    class Reward:
        range = (0.0, 1.0)

        def score(self, batch: RewardBatch) -> Tensor:
            return torch.tensor([0.5, 0.25], device=DEVICE)

    class Batch:
        seeds = (1_500, 7_250)

    batch: Any = Batch()
    with pretended() as mixes:
        scores = JitteredReward.on(Reward()).score(batch)
        assert isinstance(scores, Remote) and not mixes
    torch.testing.assert_close(scores.held, torch.tensor([0.55, 0.275]))


@pytest.mark.slow  # two iterations each, every operation by way of Python
@pytest.mark.parametrize("config", ["dgpo_sd35", "gui_g2_qwen25vl_7b", "video_r1_qwen25vl_7b"])
def test_check_tiny_of_a_config_mixes_no_devices(config: str) -> None:
    """Images with a LoRA and a reward model, answers about screenshots, answers about videos."""
    is_good, mixes = tiny_run(config)
    assert is_good and not mixes
