"""The first or last frame of a video against an image of the prompt, by sums written out."""

import random

import pytest
import torch
from PIL import Image

from mmrl.core.contracts import RewardBatch
from mmrl.core.data import Outputs, Prompt
from mmrl.rewards.video.frame_similarity import FrameSimilarity
from tests.rewards.example import GROUP, Example, make_batch
from tests.rewards.pictures import Shown, random_images, to_pil
from tests.rewards.roles import with_roles


def batch_of(videos: torch.Tensor, first: torch.Tensor, last: torch.Tensor) -> RewardBatch:
    media = [(Shown(a), Shown(b)) for a, b in zip(to_pil(first), to_pil(last), strict=True)]
    return with_roles(make_batch(Outputs(videos=videos), [""] * len(videos), media=media), ("image", "last_image"))


def random_batch(rng: random.Random) -> RewardBatch:
    count = 2 * GROUP
    videos = torch.stack([random_images(rng, 3) for _ in range(count)])
    first = random_images(rng, count)
    if rng.randrange(2):
        first = videos[:, 0].round()
        videos[:, 0] = torch.cat([first[:GROUP], 1 - first[GROUP:]])
    return batch_of(videos, first, first)


def best() -> RewardBatch:
    videos = torch.stack([random_images(random.Random(n), 3) for n in range(2 * GROUP)])
    return batch_of(videos, videos[:, 0], videos[:, 2])


EXAMPLE = Example(random_batch=random_batch, best=best)


@pytest.mark.parametrize(("frame", "place"), [("first", 0), ("last", 2)])
def test_the_score_is_the_mean_distance_to_one_frame(frame: str, place: int) -> None:
    videos = torch.stack([random_images(random.Random(n), 3, 5) for n in range(2)])
    first, last = random_images(random.Random(8), 2, 5), random_images(random.Random(9), 2, 5)
    scores = FrameSimilarity(frame=frame).score(batch_of(videos, first, last))  # type: ignore[arg-type]
    images = first if frame == "first" else last
    for n in range(2):
        pairs = zip(videos[n, place].flatten().tolist(), images[n].flatten().tolist(), strict=True)
        distances = [abs(a - b) for a, b in pairs]
        assert float(scores[n]) == pytest.approx(1 - sum(distances) / len(distances), abs=1e-6)


def test_other_frames_change_nothing() -> None:
    batch = best()
    videos = batch.outputs.videos
    assert videos is not None
    videos[:, 1:] = 0
    assert FrameSimilarity().score(batch).tolist() == pytest.approx([1.0] * len(videos))


def test_a_prompt_without_a_last_frame_is_refused_when_data_is_loaded() -> None:
    one = Shown(Image.new("RGB", (4, 4)))
    with pytest.raises(ValueError, match="needs an image of the role 'last_image'"):
        FrameSimilarity(frame="last").check(Prompt("a", (one,)))
    FrameSimilarity().check(Prompt("a", (one,)))
