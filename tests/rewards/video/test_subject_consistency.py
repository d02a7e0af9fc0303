"""Subject consistency against hand numbers, and a loop over frames with transformers' own ViT."""

import random
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn.functional import interpolate
from transformers import ViTModel

from mmrl.core.contracts import ConfigError, RewardBatch
from mmrl.core.data import Outputs
from mmrl.rewards.base.networks.clip import write_tiny_clip
from mmrl.rewards.video.subject_consistency import SubjectConsistency
from tests.parameters import in_one_test
from tests.rewards.example import GROUP, Example, make_batch
from tests.rewards.pictures import CPU, random_images


def batch_of(videos: Tensor) -> RewardBatch:
    return make_batch(Outputs(videos=videos), ["a lake"] * len(videos))


def random_batch(source: random.Random) -> RewardBatch:
    return batch_of(random_images(source, 2 * GROUP * 3).unflatten(0, (2 * GROUP, 3)))


def best() -> RewardBatch:
    """Still videos."""
    return batch_of(random_images(random.Random(0), 2 * GROUP)[:, None].repeat(1, 3, 1, 1, 1))


EXAMPLE = Example(random_batch=random_batch, best=best)


@in_one_test(
    ("features", "expected"),
    [
        ([(1.0, 0.0), (1.0, 0.0), (1.0, 0.0)], 1.0),
        ([(1.0, 0.0), (0.0, 1.0)], 0.0),
        ([(1.0, 0.0), (-1.0, 0.0)], 0.0),  # cosines below 0 count as 0
        ([(1.0, 0.0), (0.6, 0.8), (0.0, 1.0)], 0.5),  # (0.6 + 0.6) / 2 and (0 + 0.8) / 2
        ([(1.0, 0.0), (-1.0, 0.0), (-1.0, 0.0)], 0.25),  # 0 and (0 + 1) / 2
    ],
)
def test_hand_numbers(features: list[tuple[float, float]], expected: float) -> None:
    reward = SubjectConsistency()
    reward._embed = lambda images: torch.tensor(features)
    videos = torch.zeros(1, len(features), 3, 4, 4)
    assert reward.score(batch_of(videos)).tolist() == pytest.approx([expected], abs=1e-6)


def by_hand(folder: Path, video: Tensor) -> float:
    """The formula frame by frame, as in VBench, for one video [F, 3, H, W] in [0, 1]."""
    model = ViTModel.from_pretrained(folder, add_pooling_layer=False)
    side, (height, width) = model.config.image_size, video.shape[-2:]
    short = min(height, width)
    size = (int(side * height / short), int(side * width / short))
    mean, std = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
    features, total = [], 0.0
    for frame in video:
        pixels = interpolate(frame[None], size, mode="bilinear", align_corners=False)
        pixels = (pixels - mean[:, None, None]) / std[:, None, None]
        with torch.no_grad():
            features.append(model(pixels, interpolate_pos_encoding=True).last_hidden_state[0, 0])
        if len(features) > 1:
            first, previous = (torch.cosine_similarity(features[-1], features[t], dim=0) for t in (0, -2))
            total += (max(0.0, float(first)) + max(0.0, float(previous))) / 2
    return total / (len(video) - 1)


@pytest.mark.slow
@pytest.mark.parametrize(("height", "width"), [(32, 32), (48, 83), (95, 64), (20, 27)])
def test_the_score_is_that_of_a_loop_with_transformers(height: int, width: int, tmp_path: Path) -> None:
    reward = SubjectConsistency().tiny(0, tmp_path)
    reward.prepare(CPU)
    rough = torch.rand(3 * 4, 3, 4, 5, generator=torch.Generator().manual_seed(3))
    videos = interpolate(rough, (height, width), mode="bilinear").unflatten(0, (3, 4))
    found = reward.score(batch_of(videos))
    expected = torch.tensor([by_hand(tmp_path, video) for video in videos])
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)
    assert found.std() > 1e-3


@pytest.mark.slow
def test_a_video_of_more_frames_than_are_encoded_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reward = SubjectConsistency().tiny(0, tmp_path)
    reward.prepare(CPU)
    batch = random_batch(random.Random(1))
    whole = reward.score(batch)
    monkeypatch.setattr("mmrl.rewards.base.networks.dino_vit.BATCH", 5)
    torch.testing.assert_close(reward.score(batch), whole, rtol=1e-5, atol=1e-6)


def test_one_frame_cannot_be_judged() -> None:
    reward = SubjectConsistency()
    reward._embed = lambda images: images.flatten(1)
    with pytest.raises(ValueError, match=r"at least 2 frames.*\(1, 1, 3, 4, 4\)"):
        reward.score(batch_of(torch.zeros(1, 1, 3, 4, 4)))


@pytest.mark.slow
def test_models_that_cannot_be_loaded_are_the_users_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot load the DINO '/no/such"):
        SubjectConsistency(model="/no/such").prepare(CPU)
    write_tiny_clip("transformers", tmp_path, 0, embedding=4)
    with pytest.raises(ConfigError, match="its model_type is 'clip', not vit"):
        SubjectConsistency(model=str(tmp_path)).prepare(CPU)
