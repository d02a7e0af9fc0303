"""hps_v3 against transformers' own Qwen2-VL, one image at a time, and the published names and shapes."""

import random
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor
from transformers import Qwen2VLConfig, Qwen2VLModel

from mmrl.core.contracts import ConfigError, RewardBatch
from mmrl.core.data import Outputs, Prompt
from mmrl.rewards.base.networks.resizing import within_pixels
from mmrl.rewards.base.networks.value_head import MarkedNetwork, own_names
from mmrl.rewards.models.hps_v3 import HpsV3
from tests.rewards.example import Example, make_batch
from tests.rewards.models.marked_oracle import at_mark, head_by_hand, head_shapes, text_shapes
from tests.rewards.pictures import CPU, random_images, random_pictures, random_texts

EXAMPLE = Example(random_batch=random_pictures)  # no truth: a model of taste


@pytest.fixture(scope="module")
def twin(tmp_path_factory: pytest.TempPathFactory) -> HpsV3:
    twin = HpsV3().tiny(0, tmp_path_factory.mktemp("hps_v3"))
    twin.prepare(CPU)
    return twin


def batch_of(images: Tensor) -> RewardBatch:
    return make_batch(Outputs(images=images), random_texts(random.Random(1), len(images)))


@pytest.mark.slow  # two networks, of which transformers' own judges one image at a time
@pytest.mark.parametrize(("height", "width"), [(56, 28), (40, 90)])
def test_scores_are_mu_at_the_mark_by_transformers(height: int, width: int, twin: HpsV3) -> None:
    images = torch.rand(3, 3, height, width, generator=torch.Generator().manual_seed(0))
    batch = batch_of(images)
    expected = []
    for image, prompt in zip(within_pixels(images, 784, 4 * 784), batch.prompts, strict=True):
        question = Path(twin.question).read_text().replace("{text_prompt}", prompt.text)
        state, weights = at_mark(twin.base, twin.checkpoint, [image], question)
        expected.append(head_by_hand(state, weights, "rm_head")[0])
    found = twin.score(batch)
    torch.testing.assert_close(found, torch.stack(expected), rtol=1e-4, atol=1e-4)
    assert found.std() > 1e-3, "the scores tell images apart"


@pytest.mark.slow
def test_scores_have_a_gradient_to_every_image(twin: HpsV3) -> None:
    images = random_images(random.Random(3), 4).requires_grad_()
    twin.score(batch_of(images)).sum().backward()
    assert images.grad is not None and (images.grad.flatten(1).abs().amax(1) > 0).all()


def published_shapes(*, newer: bool) -> dict[str, tuple[int, ...]]:
    """Names and shapes of Qwen2-VL-7B (its config.json) with one mark more, and of the head."""
    text, vision = ("model.language_model", "model.visual") if newer else ("model", "visual")
    shapes: dict[str, tuple[int, ...]] = {
        "lm_head.weight": (151658, 3584),
        f"{text}.embed_tokens.weight": (151658, 3584),
        f"{text}.norm.weight": (3584,),
        f"{vision}.patch_embed.proj.weight": (1280, 3, 2, 14, 14),
        f"{vision}.merger.ln_q.weight": (1280,),
        f"{vision}.merger.ln_q.bias": (1280,),
        f"{vision}.merger.mlp.0.weight": (5120, 5120),
        f"{vision}.merger.mlp.0.bias": (5120,),
        f"{vision}.merger.mlp.2.weight": (3584, 5120),
        f"{vision}.merger.mlp.2.bias": (3584,),
        **head_shapes("rm_head", 3584),
    }
    for layer in range(32):
        stem = f"{vision}.blocks.{layer}"
        shapes |= {f"{stem}.norm{n}.{part}": (1280,) for n in (1, 2) for part in ("weight", "bias")}
        sizes = {"attn.qkv": (3840, 1280), "attn.proj": (1280, 1280), "mlp.fc1": (5120, 1280), "mlp.fc2": (1280, 5120)}
        shapes |= {f"{stem}.{name}.weight": size for name, size in sizes.items()}
        shapes |= {f"{stem}.{name}.bias": size[:1] for name, size in sizes.items()}
    return shapes | text_shapes(text)


@pytest.mark.slow  # makes all modules of the published size, without weights
def test_the_published_names_and_shapes_fit_the_network() -> None:
    text = {"hidden_size": 3584, "intermediate_size": 18944, "num_hidden_layers": 28, "num_attention_heads": 28}
    vision = {"depth": 32, "embed_dim": 1280, "hidden_size": 3584, "num_heads": 16, "mlp_ratio": 4}
    config = Qwen2VLConfig(text_config={**text, "num_key_value_heads": 4, "vocab_size": 151658}, vision_config=vision)
    with torch.device("meta"):
        network = MarkedNetwork(Qwen2VLModel(config), ("rm_head",))
        own = {name: tuple(value.shape) for name, value in network.state_dict().items()}
        for newer in (False, True):
            weights = {name: torch.empty(shape) for name, shape in published_shapes(newer=newer).items()}
            assert {name: tuple(value.shape) for name, value in own_names(weights).items()} == own


def test_the_published_question_is_read_and_not_run(tmp_path: Path, twin: HpsV3) -> None:
    file = tmp_path / "data_collator_qwen.py"
    file.write_text(
        'raise SystemExit\nINSTRUCTION = """Rate {{it}} for {text_prompt}\n"""\n'
        'prompt_with_special_token = " <|Reward|>"\n'
    )
    reward = replace(twin, question=str(file))
    reward.prepare(CPU)
    assert reward._question == "Rate {it} for {text_prompt}\n <|Reward|>"


@pytest.mark.slow
def test_what_is_missing_or_wrong_is_named(tmp_path: Path, twin: HpsV3) -> None:
    with pytest.raises(ConfigError, match=r"no question of HPSv3 'data_collator_qwen\.py'.*MizzenAI/HPSv3"):
        HpsV3().prepare(CPU)
    file = tmp_path / "question.txt"
    file.write_text("{text_prompt}")
    with pytest.raises(ConfigError, match=r"question of HPSv3 must hold <\|Reward\|> once"):
        replace(twin, question=str(file)).prepare(CPU)
    with pytest.raises(ConfigError, match=r"no HPSv3 '/no/such\.safetensors'"):
        replace(twin, checkpoint="/no/such.safetensors").prepare(CPU)
    with pytest.raises(ValueError, match=r"holds '<\|image_pad\|>', a mark of the model"):
        twin.check(Prompt("a dog <|image_pad|>"))
    with pytest.raises(ValueError, match="NaN"):
        twin.score(batch_of(torch.full((1, 3, 28, 28), torch.nan)))


def test_the_bounds_of_pixels_are_those_of_the_published_code() -> None:
    assert (HpsV3().min_pixels, HpsV3().max_pixels) == (200704, 200704)
    with pytest.raises(ValueError, match=r"min_pixels must be at most max_pixels \(784\), got 200704"):
        HpsV3(max_pixels=784)
