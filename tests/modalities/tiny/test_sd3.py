"""The tiny Stable Diffusion 3 twin is a whole pipeline of the real classes whose random weights all do something."""

import logging
from collections.abc import Iterator
from pathlib import Path
from types import MappingProxyType
from typing import Any

import diffusers
import pytest
import torch
from diffusers.utils import logging as diffusers_logging
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers.utils import logging as transformers_logging

from mmrl.modalities.tiny.sd3 import write_tiny_sd3

StableDiffusion3Pipeline: Any = diffusers.StableDiffusion3Pipeline
PARTS = MappingProxyType(  # what stabilityai/stable-diffusion-3.5-medium names in its model_index.json
    {
        "transformer": "SD3Transformer2DModel",
        "vae": "AutoencoderKL",
        "scheduler": "FlowMatchEulerDiscreteScheduler",
        "text_encoder": "CLIPTextModelWithProjection",
        "text_encoder_2": "CLIPTextModelWithProjection",
        "text_encoder_3": "T5EncoderModel",
        "tokenizer": "CLIPTokenizer",
        "tokenizer_2": "CLIPTokenizer",
        "tokenizer_3": "T5Tokenizer",  # transformers 5's name for T5TokenizerFast
    }
)
ANY_SCRIPT = "café 漢字 🦊 naïve Ωmega שלום ½ ٣ — x!"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tiny_sd3") / "seed_0"
    write_tiny_sd3(path, 0)
    return path


@pytest.fixture(scope="module")
def pipeline(folder: Path) -> Any:
    loaded = StableDiffusion3Pipeline.from_pretrained(folder)
    loaded.set_progress_bar_config(disable=True)
    return loaded


@pytest.fixture
def library_logs() -> Iterator[list[str]]:
    """What diffusers and transformers log as a warning or worse; neither passes its records on to the root logger."""
    messages: list[str] = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: messages.append(record.getMessage())  # type: ignore[method-assign]
    for library in (diffusers_logging, transformers_logging):
        library.add_handler(handler)
    yield messages
    for library in (diffusers_logging, transformers_logging):
        library.remove_handler(handler)


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def images(pipeline: Any, prompt: str, num_images: int, size: int = 32) -> torch.Tensor:
    output = pipeline(
        prompt,
        negative_prompt="blurred",
        height=size,
        width=size,
        guidance_scale=4.5,
        num_inference_steps=4,
        num_images_per_prompt=num_images,
        generator=torch.Generator().manual_seed(1),
        output_type="np",
    )
    return torch.from_numpy(output.images)  # [B, H, W, 3]


def transformer_inputs() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(2)
    return {
        "hidden_states": torch.randn(1, 16, 8, 8, generator=generator),
        "encoder_hidden_states": torch.randn(1, 77 + 20, 48, generator=generator),
        "pooled_projections": torch.randn(1, 40, generator=generator),
        "timestep": torch.tensor([700.0]),
    }


@pytest.mark.slow
def test_every_part_is_there_and_of_its_real_class(pipeline: Any) -> None:
    classes = {name: type(part).__name__ for name, part in pipeline.components.items() if part is not None}
    assert classes == dict(PARTS)


@pytest.mark.slow
def test_what_is_no_size_is_as_in_stable_diffusion_3_5(pipeline: Any) -> None:
    transformer, vae = pipeline.transformer.config, pipeline.vae.config
    assert (transformer.patch_size, transformer.in_channels, transformer.out_channels) == (2, 16, 16)
    assert transformer.qk_norm == "rms_norm"
    assert pipeline.transformer.transformer_blocks[0].use_dual_attention
    assert not pipeline.transformer.transformer_blocks[1].use_dual_attention
    assert (vae.latent_channels, vae.scaling_factor, vae.shift_factor) == (16, 1.5305, 0.0609)
    assert (pipeline.vae.quant_conv, pipeline.vae.post_quant_conv) == (None, None)
    assert pipeline.scheduler.config.shift == 3.0
    assert [pipeline.tokenizer.model_max_length, pipeline.tokenizer_2.model_max_length] == [77, 77]
    assert [pipeline.tokenizer.pad_token, pipeline.tokenizer_2.pad_token] == ["<|endoftext|>", "!"]


@pytest.mark.slow
def test_one_latent_pixel_is_four_by_four_image_pixels(pipeline: Any) -> None:
    assert pipeline.vae_scale_factor == 4
    with torch.no_grad():
        latents = pipeline.vae.encode(torch.zeros(1, 3, 32, 48)).latent_dist.mean
        assert latents.shape == (1, 16, 8, 12)
        assert pipeline.vae.decode(latents).sample.shape == (1, 3, 32, 48)


def test_the_folder_is_below_three_megabytes(folder: Path) -> None:
    assert sum(len(content) for content in files(folder).values()) < 3_000_000


@pytest.mark.slow
def test_the_same_seed_writes_the_same_bytes(folder: Path, tmp_path: Path) -> None:
    torch.manual_seed(99)  # the caller's own generator plays no part
    write_tiny_sd3(tmp_path, 0)
    assert files(tmp_path) == files(folder)


@pytest.mark.slow
def test_another_seed_changes_every_weight_file_and_nothing_else(folder: Path, tmp_path: Path) -> None:
    write_tiny_sd3(tmp_path, 1)
    first, second = files(folder), files(tmp_path)
    changed = {name for name in first if first[name] != second[name]}
    assert changed == {name for name in first if name.endswith(".safetensors")}
    assert len(changed) == 5


@pytest.mark.slow
def test_writing_leaves_the_global_generator_alone(tmp_path: Path) -> None:
    before = torch.get_rng_state()
    write_tiny_sd3(tmp_path, 0)
    torch.testing.assert_close(torch.get_rng_state(), before, rtol=0, atol=0)


@pytest.mark.parametrize("name", ["hidden_states", "encoder_hidden_states", "pooled_projections", "timestep"])
def test_the_velocity_depends_on(name: str, pipeline: Any) -> None:
    inputs = transformer_inputs()
    changed = inputs | {name: 0.5 * inputs[name]}
    with torch.no_grad():
        velocity = pipeline.transformer(**inputs).sample
        difference = pipeline.transformer(**changed).sample - velocity
    assert 0.3 < velocity.std() < 3.0  # of the size of a real velocity, noise - image
    assert difference.std() > 0.03 * velocity.std()


def test_a_gradient_reaches_every_weight_of_the_transformer(pipeline: Any) -> None:
    pipeline.transformer(**transformer_inputs()).sample.square().mean().backward()
    dead = {name for name, weight in pipeline.transformer.named_parameters() if not weight.grad.abs().max() > 1e-7}
    pipeline.transformer.zero_grad()
    # The last block keeps no text stream (context_pre_only), so nothing reads what its text asks for; so in every SD3.
    attention = "transformer_blocks.1.attn."
    assert dead == {attention + name for name in ("add_q_proj.weight", "add_q_proj.bias", "norm_added_q.weight")}


def test_each_text_encoder_tells_prompts_apart(pipeline: Any) -> None:
    with torch.no_grad():
        prompts = ["a red circle", "a blue circle"]
        embeddings, _, pooled, _ = pipeline.encode_prompt(prompts, prompts, prompts, max_sequence_length=20)
    assert embeddings.shape == (2, 77 + 20, 48)
    clip, t5 = embeddings[:, :77], embeddings[:, 77:]
    parts = [clip[..., :16], clip[..., 16:40], t5, pooled[:, :16], pooled[:, 16:]]
    assert all((part[0] - part[1]).abs().max() > 0.1 for part in parts)


@pytest.mark.slow
def test_images_differ_in_brightness_and_fill_the_range(pipeline: Any) -> None:
    pixels = images(pipeline, "a red circle", num_images=8)
    assert pixels.shape == (8, 32, 32, 3)
    assert pixels.min() >= 0 and pixels.max() <= 1
    assert pixels.std() > 0.1
    assert ((pixels == 0) | (pixels == 1)).float().mean() < 0.3
    assert pixels.mean((1, 2, 3)).std() > 2e-3
    assert (pixels - images(pipeline, "a blue circle", num_images=8)).abs().mean() > 0.02


@pytest.mark.slow
def test_loading_and_drawing_raise_no_warning(folder: Path, library_logs: list[str]) -> None:
    loaded = StableDiffusion3Pipeline.from_pretrained(folder)
    loaded.set_progress_bar_config(disable=True)
    assert images(loaded, ANY_SCRIPT, num_images=1, size=64).shape == (1, 64, 64, 3)
    assert library_logs == []


def test_clip_tokens_spell_the_prompt_in_any_script(pipeline: Any) -> None:
    for tokenizer in (pipeline.tokenizer, pipeline.tokenizer_2):
        spelt = tokenizer.decode(tokenizer(ANY_SCRIPT).input_ids[1:-1])  # without start and end
        assert spelt.replace(" ", "") == ANY_SCRIPT.lower().replace(" ", "")


def test_known_words_are_one_token(pipeline: Any) -> None:
    assert pipeline.tokenizer.tokenize("a red square") == ["a</w>", "red</w>", "square</w>"]
    assert pipeline.tokenizer_3.tokenize("a red square") == ["▁a", "▁red", "▁square"]


@pytest.mark.slow
@settings(max_examples=20, deadline=None)
@given(st.text(max_size=40))
def test_any_text_becomes_tokens_that_the_encoders_have(pipeline: Any, text: str) -> None:
    for tokenizer, encoder in [
        (pipeline.tokenizer, pipeline.text_encoder),
        (pipeline.tokenizer_2, pipeline.text_encoder_2),
        (pipeline.tokenizer_3, pipeline.text_encoder_3),
    ]:
        tokens = tokenizer(text).input_ids
        assert tokens[-1] == tokenizer.eos_token_id and tokenizer.eos_token_id not in tokens[:-1]
        assert max(tokens) < encoder.config.vocab_size == len(tokenizer)
