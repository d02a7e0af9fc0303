"""SigLIP's score against the processor and the model of transformers."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from transformers import AutoTokenizer, SiglipImageProcessor, SiglipModel

from mmrl.core.contracts import ConfigError, RewardBatch
from mmrl.core.data import Outputs
from mmrl.rewards.base.networks.clip import write_tiny_clip
from mmrl.rewards.base.networks.siglip import write_tiny_siglip
from mmrl.rewards.models.siglip_score import SiglipScore, Unit
from tests.rewards.example import Example
from tests.rewards.pictures import CPU, random_pictures, to_pil

EXAMPLE = Example(
    random_batch=random_pictures
)  # no truth: which image fits a text best is what the model was trained to say
TEXTS = ["a red circle", "two blue squares, please, more than fit", "naïve café 🙂"]


@pytest.fixture(scope="module")
def twin(tmp_path_factory: pytest.TempPathFactory) -> SiglipScore:
    return SiglipScore().tiny(0, tmp_path_factory.mktemp("siglip"))


@pytest.mark.slow
@pytest.mark.parametrize("unit", ["probability", "logit", "cosine"])
@pytest.mark.parametrize(("height", "width"), [(32, 32), (48, 83), (20, 27)])
def test_the_score_is_that_of_transformers(
    height: int, width: int, unit: Unit, twin: SiglipScore, make_batch: Callable[..., RewardBatch]
) -> None:
    rough = torch.rand(3, 3, 4, 5, generator=torch.Generator().manual_seed(3))
    images = (torch.nn.functional.interpolate(rough, (height, width), mode="bilinear") * 255).round() / 255
    reward = SiglipScore(model=twin.model, unit=unit)
    reward.prepare(CPU)
    found = reward.score(make_batch(Outputs(images=images), TEXTS))

    model, processor = SiglipModel.from_pretrained(twin.model), SiglipImageProcessor.from_pretrained(twin.model)
    tokenizer = AutoTokenizer.from_pretrained(twin.model)
    tokens = tokenizer(TEXTS, padding="max_length", truncation=True, max_length=16, return_tensors="pt")
    with torch.no_grad():
        pixels = processor(images=to_pil(images), return_tensors="pt")["pixel_values"]
        logits = model(input_ids=tokens["input_ids"], pixel_values=pixels).logits_per_image.diagonal()
    expected = {"probability": logits.sigmoid(), "logit": logits, "cosine": (logits + 0.5) / 10}[unit]
    rounding = 0.0 if (height, width) == (32, 32) else 0.05  # the processor rounds to 8 bits after each resize
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5 + rounding * float(expected.std()))


@pytest.mark.slow
def test_a_short_text_is_padded_to_the_context(twin: SiglipScore, make_batch: Callable[..., RewardBatch]) -> None:
    twin.prepare(CPU)
    images = torch.rand(3, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    beside_a_long_one = twin.score(make_batch(Outputs(images=images), TEXTS))
    alone = twin.score(make_batch(Outputs(images=images[:1]), TEXTS[:1]))
    torch.testing.assert_close(alone, beside_a_long_one[:1])


@pytest.mark.slow
def test_capitals_do_not_matter(twin: SiglipScore, make_batch: Callable[..., RewardBatch]) -> None:
    twin.prepare(CPU)
    images = torch.rand(3, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    scores = [twin.score(make_batch(Outputs(images=images), texts)) for texts in (TEXTS, [t.upper() for t in TEXTS])]
    assert torch.equal(*scores)


@pytest.mark.slow
def test_the_temperature_and_the_bias_are_the_models_own(
    tmp_path: Path, make_batch: Callable[..., RewardBatch]
) -> None:
    write_tiny_siglip(tmp_path, 0, logit_scale=2.0, logit_bias=3.0)
    images = torch.rand(3, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    cosine, logit = SiglipScore(model=str(tmp_path), unit="cosine"), SiglipScore(model=str(tmp_path), unit="logit")
    for reward in (cosine, logit):
        reward.prepare(CPU)
    batch = make_batch(Outputs(images=images), TEXTS)
    torch.testing.assert_close(logit.score(batch), 2 * cosine.score(batch) + 3)


def test_each_unit_has_its_range() -> None:
    assert SiglipScore().range == SiglipScore.range == (0.0, 1.0)
    assert SiglipScore(unit="cosine").range == (-1.0, 1.0)
    assert SiglipScore(unit="logit").range == (-float("inf"), float("inf"))
    with pytest.raises(ValueError, match="unit must be one of probability, logit, cosine, got 'percent'"):
        SiglipScore(unit="percent")  # type: ignore[arg-type]


def test_a_model_that_is_not_there_or_another_one_is_the_users_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot load the SigLIP '/no/such"):
        SiglipScore(model="/no/such").prepare(CPU)
    write_tiny_clip("transformers", tmp_path, 0, embedding=4)
    with pytest.raises(ConfigError, match="its model_type is 'clip', not 'siglip'"):
        SiglipScore(model=str(tmp_path)).prepare(CPU)
