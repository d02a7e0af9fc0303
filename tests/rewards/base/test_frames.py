"""Videos a few at a time are the videos, and what is made of them does not depend on how many."""

import pytest
import torch
from torch import Tensor

from mmrl.core.contracts import RewardBatch
from mmrl.core.data import Outputs
from mmrl.core.plugins import build
from mmrl.rewards.base import frames
from mmrl.rewards.base.frames import frames_of, parts_of
from tests.rewards.example import make_batch

NUMBERS = 3 * 3 * 4 * 5  # of one video


def batch_of(videos: Tensor) -> RewardBatch:
    return make_batch(Outputs(videos=videos), ["a lake"] * len(videos))


def seven(dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.rand(7, 3, 3, 4, 5, generator=torch.Generator().manual_seed(0)).to(dtype)


@pytest.mark.parametrize(
    ("numbers", "sizes"),
    [(1, [1] * 7), (NUMBERS, [1] * 7), (2 * NUMBERS + 1, [2, 2, 2, 1]), (7 * NUMBERS, [7]), (2**20, [7])],
)
def test_parts_hold_as_many_videos_as_fit(numbers: int, sizes: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frames, "PART_SIZE", numbers)
    parts = list(parts_of(batch_of(seven(torch.bfloat16)), fewest=3))
    assert [len(part) for part in parts] == sizes and {part.dtype for part in parts} == {torch.float32}
    assert torch.equal(torch.cat(parts), seven(torch.bfloat16).float())
    assert torch.equal(frames_of(batch_of(seven(torch.bfloat16)), fewest=3), torch.cat(parts))


def test_no_video_is_one_part_without_any() -> None:
    assert [part.shape[0] for part in parts_of(batch_of(seven()[:0]), fewest=3)] == [0]


@pytest.mark.parametrize("settings", [{"name": "flicker"}, {"name": "motion_smoothness"}], ids=lambda s: str(s["name"]))
def test_scores_and_gradients_are_the_same_whatever_a_part_holds(
    settings: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = []
    for numbers in (1, 3 * NUMBERS, 2**20):
        monkeypatch.setattr(frames, "PART_SIZE", numbers)
        videos = seven().requires_grad_()
        scores = build("rewards", dict(settings)).score(batch_of(videos))
        (scores * torch.arange(7)).sum().backward()
        assert videos.grad is not None
        found.append((scores.detach(), videos.grad))
    for scores, gradient in found[1:]:
        torch.testing.assert_close(scores, found[0][0])
        torch.testing.assert_close(gradient, found[0][1])


@pytest.mark.parametrize("numbers", [1, 2**20])
def test_what_is_no_number_is_found_in_the_last_part_too(numbers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frames, "PART_SIZE", numbers)
    videos = seven()
    videos[6, 2, 1, 3, 4] = torch.nan
    with pytest.raises(ValueError, match="NaN"):
        list(parts_of(batch_of(videos), fewest=3))
    with pytest.raises(ValueError, match="at least 4 frames"):
        list(parts_of(batch_of(seven()), fewest=4))
