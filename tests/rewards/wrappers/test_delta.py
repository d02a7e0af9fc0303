"""delta against the held reward asked by hand."""

import random

import pytest
import torch
from PIL import Image

from mmrl.core.contracts import ConfigError, RewardBatch
from mmrl.core.data import Outputs
from mmrl.core.plugins import build
from mmrl.media.pictures import StoredPicture, as_tensor
from tests.rewards.example import Example, make_batch
from tests.rewards.inner import WRITTEN

SETTINGS = {"reward": {"name": "jpeg_size", "compressible": False}}


def picture(seed: int, size: tuple[int, int] = (24, 16)) -> StoredPicture:
    from io import BytesIO

    source, buffer = random.Random(seed), BytesIO()
    Image.frombytes("RGB", size, source.randbytes(3 * size[0] * size[1])).save(buffer, "PNG")
    return StoredPicture(f"random {seed}", content=buffer.getvalue())


def edits(source: random.Random) -> RewardBatch:
    images = torch.rand(8, 3, 16, 24, generator=torch.Generator().manual_seed(source.randrange(1000)))
    scale = torch.tensor([source.random() for _ in range(8)]).view(-1, 1, 1, 1)
    inputs = [picture(n // 4) for n in range(8)]
    return make_batch(Outputs(images=images * scale), ["an edit"] * 8, media=[(one,) for one in inputs])


EXAMPLE = Example(random_batch=edits, settings=SETTINGS)  # no best: a file may always be larger


def test_it_is_the_output_less_the_input_at_its_own_size() -> None:
    batch = edits(random.Random(0))
    reward = build("rewards", {"name": "delta"} | SETTINGS)
    inputs = [as_tensor(prompt.media[0].load())[None] for prompt in batch.prompts]
    before = [reward.reward.score(make_batch(Outputs(images=image), ["x"])).item() for image in inputs]
    expected = reward.reward.score(batch) - torch.tensor(before)
    torch.testing.assert_close(reward.score(batch), expected)
    assert len(set(before)) == 2
    assert reward.needs == {"images", "prompt.image"}


def test_the_input_itself_is_no_better() -> None:
    inputs = [picture(1), picture(2)]
    images = torch.stack([as_tensor(one.load()) for one in inputs])
    batch = make_batch(Outputs(images=images), ["same"] * 2, media=[(one,) for one in inputs])
    assert build("rewards", {"name": "delta"} | SETTINGS).score(batch).tolist() == [0, 0]


def test_a_reward_of_texts_is_refused() -> None:
    with pytest.raises(ConfigError, match="must judge images one by one, got one that needs texts and judges samples"):
        build("rewards", {"name": "delta", "reward": WRITTEN})
