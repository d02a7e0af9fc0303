"""Dynamic degree: VBench's rule by hand numbers and a slow loop, its network by torchvision's own RAFT."""

import random
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torchvision.models.optical_flow import raft_large

from mmrl.core.contracts import ConfigError, RewardBatch
from mmrl.core.data import Outputs
from mmrl.rewards.base.networks.optical_flow import flow_between, load_raft, raft_of
from mmrl.rewards.video.dynamic_degree import DynamicDegree, largest_motion
from tests.parameters import in_one_test
from tests.rewards.example import Example, make_batch
from tests.rewards.pictures import CPU

LEVEL = 255.0  # what the stand-in calls one pixel of motion is a difference of grey of 1 / LEVEL


def batch_of(videos: Tensor, fps: float | None = None) -> RewardBatch:
    rates = None if fps is None else (fps,) * len(videos)
    return make_batch(Outputs(videos=videos, fps=rates), ["a lake"] * len(videos))


def random_batch(source: random.Random) -> RewardBatch:
    """Still videos, noise, and patches that move."""
    generator = torch.Generator().manual_seed(source.getrandbits(32))
    rough = torch.rand(8, 3, 6, 6, generator=generator)
    patches = nn.functional.interpolate(rough, (48, 48), mode="bilinear")
    moving = torch.stack([patches.roll(3 * t, dims=-1) for t in range(3)], 1)
    noise = torch.rand(8, 3, 3, 48, 48, generator=generator)
    still = patches[:, None].expand_as(moving)
    return batch_of(torch.stack([still, moving, noise], 1)[torch.arange(8), torch.arange(8) % 3])


# No truth for a random network, whose flow is no motion.
EXAMPLE = Example(random_batch=random_batch, settings={"form": "ratio", "video_fps": 8.0})


class GreyFlow(nn.Module):
    """A stand-in for RAFT: everything moves by the difference of two frames' grey, in levels of 8 bits."""

    def __init__(self) -> None:
        super().__init__()
        self.unused = nn.Parameter(torch.zeros(1))

    def forward(self, first: Tensor, second: Tensor, num_flow_updates: int) -> list[Tensor]:
        shift = (second - first).mean((1, 2, 3)) / 2 * LEVEL
        flow = torch.zeros(len(first), 2, *first.shape[-2:])
        flow[:, 1] = shift[:, None, None]
        return [torch.full_like(flow, torch.nan), flow]  # the last one counts


def moving(shifts: list[float], side: int = 128, scale: float = 1.0) -> Tensor:
    """One video whose frames follow each other by these motions of the stand-in, in pixels, times `scale`."""
    greys = torch.tensor([20.0, *(scale * shift for shift in shifts)]).cumsum(0) / LEVEL
    return greys.view(1, -1, 1, 1, 1).expand(1, -1, 3, side, side + 8)


def scored(videos: Tensor, fps: float, **settings: Any) -> list[float]:
    reward = DynamicDegree(**settings)
    reward._raft = GreyFlow()
    return [round(score, 4) for score in reward.score(batch_of(videos, fps)).tolist()]


@in_one_test(
    ("shifts", "fps", "binary", "ratio"),
    [
        # a shorter side of 128 pixels at 8 frames a second: more than 3 pixels; of 6 frames round(6 / 4) = 2 pairs
        ([0, 0, 0, 0, 0], 8, 0.0, 0.0),
        ([4, 0, 0, 0, 0], 8, 0.0, 0.0),
        ([4, 0, 2, 0, 0], 8, 0.0, 0.6667),
        ([4, 0, 3.5, 0, 0], 8, 1.0, 1.0),
        ([-4, 0, 0, 0, 5], 8, 1.0, 1.0),  # a length has no sign
        ([0, 2.5, 0, 0], 8, 0.0, 0.8333),  # round(5 / 4) = 1
        ([0, 3.5, 0, 0], 8, 1.0, 1.0),
        ([3.5], 8, 1.0, 1.0),
        ([0], 8, 0.0, 0.0),  # of two frames one pair must move, where VBench asks for none
        # half as many frames a second: all are judged, by the same threshold
        ([2, 2, 2, 2, 2], 4, 0.0, 0.6667),
        ([4, 4, 0, 0, 0], 4, 1.0, 1.0),
        # twice as many: every second frame is judged
        ([2] * 11, 16, 1.0, 1.0),
        ([2] * 11, 8, 0.0, 0.6667),
        ([2] * 11, 11, 0.0, 0.6667),  # round(11 / 8) = 1: every frame
        ([2] * 11, 13, 1.0, 1.0),  # round(13 / 8) = 2
    ],
)
def test_hand_numbers(
    shifts: list[float], fps: float, binary: float, ratio: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mmrl.rewards.video.dynamic_degree.SMALLEST", 16)
    videos = moving(shifts, 16, 1 / 8)  # the same at an eighth of the size
    assert scored(videos, fps) == [binary]
    assert scored(videos, fps, form="ratio") == [ratio]


def test_the_threshold_grows_with_the_shorter_side_and_small_frames_are_enlarged() -> None:
    assert scored(moving([4] * 5, side=256), 8, form="ratio") == [0.6667]
    assert scored(moving([2] * 5, side=32), 8, form="ratio") == [0.6667]  # as at 128 pixels


def test_the_frames_a_second_are_the_clips_own_or_else_the_setting() -> None:
    reward = DynamicDegree(video_fps=16)
    reward._raft = GreyFlow()
    videos = moving([2] * 11)
    assert reward.score(batch_of(videos)).tolist() == [1.0]
    assert reward.score(batch_of(videos, 8.0)).tolist() == [0.0]


def test_the_largest_motion_is_the_mean_of_the_longest_twentieth() -> None:
    flow = torch.zeros(2, 2, 10, 10)
    flow[0, :, 0, :4], flow[0, 0, 9, 9] = torch.tensor([[3.0], [4.0]]), -10.0  # 4 lengths of 5, one of 10
    flow[1, 1, 5, 5] = 1.0
    assert largest_motion(flow).tolist() == pytest.approx([6.0, 0.2])


def by_hand(network: Any, frames: np.ndarray[Any, Any], fps: float, num_updates: int) -> bool:
    """VBench's rule for one video [F, H, W, 3] of levels 0 to 255, with numpy."""
    frames = frames[:: max(1, round(fps / 8))]
    height, width = frames.shape[1:3]
    below, beside = (8 - height % 8) % 8, (8 - width % 8) % 8
    before, after = (below // 2, beside // 2), (below - below // 2, beside - beside // 2)
    padded = np.pad(frames, ((0, 0), (before[0], after[0]), (before[1], after[1]), (0, 0)), mode="edge")
    pixels = torch.from_numpy(2 * (padded / 255) - 1).float().permute(0, 3, 1, 2)
    moved = 0
    for first, second in pairwise(pixels):
        with torch.no_grad():
            u, v = network(first[None], second[None], num_flow_updates=num_updates)[-1][0].numpy()
        lengths = np.sort(np.sqrt(u**2 + v**2).reshape(-1))[::-1]
        moved += lengths[: int(lengths.size * 0.05)].mean() > 6 * min(height, width) / 256
    return bool(moved >= round(4 * len(frames) / 16))


@pytest.mark.slow
def test_the_answers_are_those_of_vbenchs_rule_on_the_same_network(tmp_path: Path) -> None:
    reward = replace(DynamicDegree().tiny(0, tmp_path), num_updates=1)  # one, so that the flow is linear in its head
    reward.prepare(CPU)
    generator = torch.Generator().manual_seed(5)
    levels = torch.randint(0, 256, (4, 5, 3, 8, 9), generator=generator).float()
    videos = nn.functional.interpolate(levels.flatten(0, 1), (130, 141), mode="nearest").unflatten(0, (4, 5)) / 255
    ratios = torch.stack([reward._ratio(video, 8.0) for video in videos]).sort().values
    for parameter in reward._raft.update_block.flow_head.conv2.parameters():
        parameter.div_(ratios[1:3].mean())  # so that two of the four videos move enough
    answers = reward.score(batch_of(videos, 8.0)).bool().tolist()
    pictures = (videos * 255).permute(0, 1, 3, 4, 2).numpy()
    assert answers == [by_hand(reward._raft, one, 8.0, 1) for one in pictures]
    assert sum(answers) == 2


@pytest.mark.slow
def test_frames_are_padded_to_multiples_of_eight_by_their_edges(tmp_path: Path) -> None:
    network = load_raft(DynamicDegree().tiny(0, tmp_path).weights, CPU.device)
    frames = torch.rand(2, 3, 130, 141, generator=torch.Generator().manual_seed(0))
    padded = np.pad(frames.numpy(), ((0, 0), (0, 0), (3, 3), (1, 2)), mode="edge")
    first, second = (2 * torch.from_numpy(one)[None] - 1 for one in padded)
    with torch.no_grad():
        expected = network(first, second, num_flow_updates=3)[-1]
    torch.testing.assert_close(flow_between(network, frames[:1], frames[1:], 3), expected)
    assert expected.shape == (1, 2, 136, 144)


@pytest.mark.slow
def test_the_published_sizes_are_torchvisions_raft_large(tmp_path: Path) -> None:
    theirs = raft_large(weights=None).eval()
    weights = theirs.state_dict()
    ours = raft_of(64).state_dict()
    assert {name: value.shape for name, value in ours.items()} == {name: w.shape for name, w in weights.items()}
    save_file(weights, tmp_path / "raft.safetensors")
    network = load_raft(str(tmp_path / "raft.safetensors"), CPU.device)
    first, second = torch.rand(2, 1, 3, 128, 128, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        expected = theirs(2 * first - 1, 2 * second - 1, num_flow_updates=1)[-1]
    torch.testing.assert_close(flow_between(network, first, second, 1), expected)


def test_what_cannot_be_judged_or_loaded_is_the_users_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match=r"at least 2 frames.*\(1, 1, 3, 128, 136\)"):
        scored(moving([]), 8)
    with pytest.raises(ValueError, match=r"needs two frames at 8 a second, got 3 frames at 24.0 a second"):
        scored(moving([1, 1]), 24.0)
    with pytest.raises(ValueError, match="weights must be a file that ends in"):
        DynamicDegree(weights="raft.bin")
    save_file({"fc.weight": torch.zeros(1)}, tmp_path / "other.safetensors")
    with pytest.raises(ConfigError, match="does not hold the weights of RAFT large: it has no feature_encoder"):
        DynamicDegree(weights=str(tmp_path / "other.safetensors")).prepare(CPU)

    def offline(*arguments: Any, **settings: Any) -> None:
        raise OSError("no route to host")

    monkeypatch.setattr("torchvision.models._api.load_state_dict_from_url", offline)
    with pytest.raises(ConfigError, match=r"cannot load .*raft_large_C_T_V1.*no route to host"):
        DynamicDegree().prepare(CPU)


@pytest.mark.slow
def test_weights_that_lack_a_part_are_named(tmp_path: Path) -> None:
    weights = load_file(str(DynamicDegree().tiny(0, tmp_path).weights))
    del weights["mask_predictor.conv.bias"]
    save_file(weights, tmp_path / "part.safetensors")
    with pytest.raises(ConfigError, match=r"(?s)does not hold the weights of RAFT large.*mask_predictor.conv.bias"):
        load_raft(str(tmp_path / "part.safetensors"), CPU.device)
