"""HPS v2 against open_clip and a transform written out, with a checkpoint as it is published."""

import json
from collections.abc import Callable
from pathlib import Path

import open_clip
import pytest
import torch
from torch import Tensor
from torch.nn.functional import interpolate, normalize, pad

from mmrl.core.contracts import ConfigError, RewardBatch
from mmrl.core.data import Outputs
from mmrl.rewards.base.networks.resizing import fit_longer_side
from mmrl.rewards.models.hps_v2 import HpsV2
from tests.rewards.example import Example
from tests.rewards.pictures import CPU, random_pictures

EXAMPLE = Example(random_batch=random_pictures)  # no truth: a model of taste
TEXTS = ["a red circle", "two blue squares, please", "naïve café 🙂"]
MEAN = torch.tensor([0.48145466, 0.4578275, 0.40821073])[:, None, None]
STD = torch.tensor([0.26862954, 0.26130258, 0.27577711])[:, None, None]


@pytest.fixture(scope="module")
def twin(tmp_path_factory: pytest.TempPathFactory) -> HpsV2:
    return HpsV2().tiny(0, tmp_path_factory.mktemp("hps_v2"))


def smooth_images(height: int, width: int) -> Tensor:
    rough = torch.rand(3, 3, 5, 6, generator=torch.Generator().manual_seed(3))
    return interpolate(rough, (height, width), mode="bilinear")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("height", "width", "size", "padding"),  # padding: left, right, above, below
    [
        (32, 32, (32, 32), (0, 0, 0, 0)),
        (64, 64, (32, 32), (0, 0, 0, 0)),
        (48, 96, (16, 32), (0, 0, 8, 8)),
        (90, 40, (32, 14), (9, 9, 0, 0)),
        (20, 27, (24, 32), (0, 0, 4, 4)),
        (32, 31, (32, 31), (0, 1, 0, 0)),
    ],
)
@pytest.mark.parametrize("antialias", [True, False])
def test_the_score_is_the_cosine_of_the_padded_image_and_its_text(
    antialias: bool,
    height: int,
    width: int,
    size: tuple[int, int],
    padding: tuple[int, int, int, int],
    twin: HpsV2,
    make_batch: Callable[..., RewardBatch],
) -> None:
    images = smooth_images(height, width)
    reward = HpsV2(model=twin.model, checkpoint=twin.checkpoint, antialias=antialias)
    reward.prepare(CPU)
    found = reward.score(make_batch(Outputs(images=images), TEXTS))

    sizes = json.loads((Path(twin.model) / "open_clip_config.json").read_text())["model_cfg"]
    model = open_clip.CLIP(**sizes).eval()
    model.load_state_dict(torch.load(twin.checkpoint, weights_only=True)["state_dict"])
    pixels = (pad(interpolate(images, size, mode="bicubic", antialias=antialias), padding) - MEAN) / STD
    with torch.no_grad():
        left = normalize(model.encode_image(pixels), dim=-1)
        right = normalize(model.encode_text(open_clip.get_tokenizer("ViT-H-14")(TEXTS)), dim=-1)
    torch.testing.assert_close(found, (left * right).sum(1), rtol=0, atol=1e-5)
    assert found.std() > 0.01


def test_fine_stripes_are_grey_with_antialiasing_and_striped_without() -> None:
    stripes = torch.zeros(1, 3, 1024, 1024)
    stripes[..., ::2] = 1
    grey, striped = (fit_longer_side(stripes, 224, antialias=antialias) for antialias in (True, False))
    assert grey.std() < 0.1 and striped.std() > 0.3


def test_the_defaults_are_the_published_files() -> None:
    assert HpsV2().checkpoint == "xswu/HPSv2/HPS_v2.1_compressed.pt" and HpsV2().model == "ViT-H-14"


@pytest.mark.slow
def test_a_checkpoint_of_another_model_is_the_users_error(twin: HpsV2, tmp_path: Path) -> None:
    weights = torch.load(twin.checkpoint, weights_only=True)["state_dict"]
    weights["visual.proj"] = torch.zeros(32, 5)
    torch.save({"state_dict": weights}, tmp_path / "HPS.pt")
    with pytest.raises(ConfigError, match=r"(?s)HPS.pt does not hold the HPS checkpoint.*mismatch for visual\.proj"):
        HpsV2(model=twin.model, checkpoint=str(tmp_path / "HPS.pt")).prepare(CPU)


@pytest.mark.parametrize("content", [[1, 2], {"state_dict": {"a": 1}}])
def test_a_file_without_weights_is_the_users_error(content: object, twin: HpsV2, tmp_path: Path) -> None:
    torch.save(content, tmp_path / "HPS.pt")
    with pytest.raises(ConfigError, match="no mapping of names to tensors"):
        HpsV2(model=twin.model, checkpoint=str(tmp_path / "HPS.pt")).prepare(CPU)


def test_a_missing_file_or_architecture_is_the_users_error(twin: HpsV2) -> None:
    with pytest.raises(ConfigError, match="no HPS checkpoint '/no/such"):
        HpsV2(checkpoint="/no/such.pt").prepare(CPU)
    with pytest.raises(ConfigError, match="open_clip has no CLIP of the architecture 'ViT-H-15'"):
        HpsV2(checkpoint=twin.checkpoint, model="ViT-H-15").prepare(CPU)
    with pytest.raises(ValueError, match="checkpoint must be a file that ends in"):
        HpsV2(checkpoint="HPS.bin")
