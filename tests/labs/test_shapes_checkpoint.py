import copy
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from diffusers.pipelines.stable_diffusion_3.pipeline_stable_diffusion_3 import StableDiffusion3Pipeline
from torch import Tensor

from mmrl import labs
from mmrl.labs.pipelines import save
from mmrl.labs.shapes import networks, pretrain, world

FOLDER = labs.checkpoint("shapes")
CAPTIONS = [*world.all_prompts(), ""]


@pytest.fixture(scope="module")
def pipeline() -> StableDiffusion3Pipeline:
    loaded: Any = StableDiffusion3Pipeline.from_pretrained(FOLDER, text_encoder_3=None, tokenizer_3=None)
    loaded.set_progress_bar_config(disable=True)
    stable_diffusion: StableDiffusion3Pipeline = loaded
    return stable_diffusion


def encode(pipeline: StableDiffusion3Pipeline, prompts: list[str]) -> tuple[Tensor, Tensor]:
    """The stock encode_prompt, without guidance."""
    with torch.no_grad():
        embeds, _, pooled, _ = pipeline.encode_prompt(
            prompts, prompts, prompts, do_classifier_free_guidance=False, max_sequence_length=1
        )
    return embeds, pooled


def tokenise(pipeline: StableDiffusion3Pipeline, prompts: list[str]) -> Tensor:
    tokens: Tensor = pipeline.tokenizer(prompts, padding="max_length", truncation=True, return_tensors="pt").input_ids
    return tokens


def test_the_index_names_the_parts_of_a_pipeline_without_a_t5() -> None:
    index = json.loads((FOLDER / "model_index.json").read_text())
    parts = {name: value[1] for name, value in index.items() if isinstance(value, list)}
    assert parts == {
        "transformer": "SD3Transformer2DModel",
        "vae": "AutoencoderKL",
        "scheduler": "FlowMatchEulerDiscreteScheduler",
        "text_encoder": "CLIPTextModelWithProjection",
        "text_encoder_2": "CLIPTextModelWithProjection",
        "tokenizer": "CLIPTokenizer",
        "tokenizer_2": "CLIPTokenizer",
        "text_encoder_3": None,
        "tokenizer_3": None,
        "image_encoder": None,
        "feature_extractor": None,
    }
    assert json.loads((FOLDER / "scheduler" / "scheduler_config.json").read_text())["shift"] == 1.0


@pytest.mark.slow
def test_a_pipeline_loaded_without_a_dtype_is_float32_throughout(pipeline: StableDiffusion3Pipeline) -> None:
    for part in (pipeline.transformer, pipeline.vae, pipeline.text_encoder, pipeline.text_encoder_2):
        assert part.dtype == torch.float32


@pytest.mark.slow
def test_each_word_is_one_token_in_both_tokenizers(pipeline: StableDiffusion3Pipeline) -> None:
    tokens = tokenise(pipeline, CAPTIONS)
    assert tokens.shape == (217, 6)
    for prompt, row in zip(CAPTIONS, tokens.tolist(), strict=True):
        words = [f"{word}</w>" for word in prompt.split()]
        expected = ["<|startoftext|>", *words, "<|endoftext|>"]
        assert pipeline.tokenizer.convert_ids_to_tokens(row)[: len(expected)] == expected
    second = pipeline.tokenizer_2(CAPTIONS, padding="max_length", truncation=True, return_tensors="pt").input_ids
    assert torch.equal(second, tokens)


@pytest.mark.slow
def test_other_words_fall_apart_and_long_prompts_are_cut_at_the_end_token(pipeline: StableDiffusion3Pipeline) -> None:
    row = tokenise(pipeline, ["a small red circle"])[0].tolist()
    assert pipeline.tokenizer.convert_ids_to_tokens(row) == ["<|startoftext|>", "a</w>", "s", "m", "a", "<|endoftext|>"]


def test_the_pooled_output_is_read_at_the_first_end_token(pipeline: StableDiffusion3Pipeline) -> None:
    _, pooled = encode(pipeline, ["blue cross top left", ""])
    tokens = tokenise(pipeline, ["blue cross top left", ""])
    expected = []
    for encoder in (pipeline.text_encoder, pipeline.text_encoder_2):
        with torch.no_grad():
            states = encoder.text_model(tokens).last_hidden_state
            expected.append(encoder.text_projection(torch.stack([states[0, 5], states[1, 1]])))
    torch.testing.assert_close(pooled, torch.cat(expected, dim=1))


def test_the_text_is_seven_tokens_padded_in_width_and_length(pipeline: StableDiffusion3Pipeline) -> None:
    embeds, pooled = encode(pipeline, CAPTIONS)
    assert embeds.shape == (217, 6 + 1, 96) and pooled.shape == (217, 32 + 48)
    assert not embeds[:, 6].any() and not embeds[:, :, 80:].any()
    assert embeds[:, 1:5, :80].std() > 0.01
    assert len(pooled.unique(dim=0)) == 217


@pytest.mark.slow
def test_training_encodes_exactly_as_the_pipeline_does(pipeline: StableDiffusion3Pipeline) -> None:
    embeds, pooled = encode(pipeline, CAPTIONS)
    ours = networks.encode_tokens(tokenise(pipeline, CAPTIONS), pipeline.text_encoder, pipeline.text_encoder_2)
    assert torch.equal(ours[0], embeds) and torch.equal(ours[1], pooled)
    (ours[0].sum() + ours[1].sum()).backward()
    for encoder in (pipeline.text_encoder, pipeline.text_encoder_2):
        assert encoder.text_model.embeddings.token_embedding.weight.grad.abs().sum() > 0
        encoder.zero_grad()


@pytest.mark.slow
def test_the_stock_pipeline_on_the_uniform_grid_is_eulers_method(pipeline: StableDiffusion3Pipeline) -> None:
    prompts = world.prompts("held_out")[:8]
    noise = torch.randn(8, 4, 4, 4, generator=torch.Generator().manual_seed(5))
    stock = pipeline(
        prompts,
        latents=noise.clone(),
        num_inference_steps=4,
        sigmas=torch.linspace(1, 0, 5)[:-1].tolist(),
        guidance_scale=1.0,
        max_sequence_length=1,
        height=32,
        width=32,
        output_type="pt",
    ).images
    embeds, pooled = encode(pipeline, prompts)
    latents = noise
    with torch.no_grad():
        for sigma in (1.0, 0.75, 0.5, 0.25):
            timestep = torch.full((8,), 1000 * sigma)
            latents = latents - 0.25 * pipeline.transformer(latents, embeds, pooled, timestep).sample
        unscaled = latents / pipeline.vae.config.scaling_factor + pipeline.vae.config.shift_factor
        images = (pipeline.vae.decode(unscaled).sample / 2 + 0.5).clamp(0, 1)
    torch.testing.assert_close(stock, images, atol=1e-5, rtol=0)
    torch.testing.assert_close(pretrain.sample(pipeline, prompts, noise, 4), images, atol=1e-5, rtol=0)


@pytest.mark.slow
def test_the_stock_call_draws_an_image_with_and_without_guidance(pipeline: StableDiffusion3Pipeline) -> None:
    for guidance_scale in (1, 4):
        generator = torch.Generator().manual_seed(0)
        image = pipeline(
            "red circle top left",
            num_inference_steps=10,
            guidance_scale=guidance_scale,
            max_sequence_length=1,
            height=32,
            width=32,
            generator=generator,
        ).images[0]
        assert image.size == (32, 32)


@pytest.mark.slow  # most of a second each, or more
def test_the_autoencoder_keeps_what_the_verifier_reads(pipeline: StableDiffusion3Pipeline) -> None:
    prompts = world.all_prompts()
    images = world.render(prompts, torch.Generator().manual_seed(9))
    with torch.no_grad():
        latents = pipeline.vae.encode(2 * images - 1).latent_dist.mean
        verdict = world.verify(pipeline.vae.decode(latents).sample / 2 + 0.5, prompts)
    assert verdict.is_correct.float().mean() >= 0.99
    scaled = (latents - pipeline.vae.config.shift_factor) * pipeline.vae.config.scaling_factor
    torch.testing.assert_close(scaled.mean(), torch.tensor(0.0), atol=0.05, rtol=0)
    torch.testing.assert_close(scaled.std(), torch.tensor(1.0), atol=0.05, rtol=0)


def test_half_of_the_captions_are_true() -> None:
    prompts = torch.randint(0, 216, (40_000,), generator=torch.Generator().manual_seed(0))
    captions = pretrain.noisy_captions(prompts, torch.Generator().manual_seed(1))
    is_empty = captions == 216
    # a redrawn word is the old one by chance; four standard errors are 0.006 and 0.0105
    kept = (1 - 0.25 * 5 / 6) * (1 - 0.25 * 3 / 4) * (1 - 0.25 * 8 / 9)
    torch.testing.assert_close(is_empty.float().mean(), torch.tensor(0.1), atol=0.006, rtol=0)
    is_true = (captions == prompts)[~is_empty].float().mean()
    torch.testing.assert_close(is_true, torch.tensor(kept), atol=0.0105, rtol=0)
    assert captions.min() >= 0 and captions.max() == 216


@pytest.mark.slow  # 576 drawings of ten steps: about three seconds on one core
def test_the_base_obeys_about_half_of_the_held_out_prompts(pipeline: StableDiffusion3Pipeline) -> None:
    verdict = pretrain.evaluate(pipeline, world.prompts("held_out"), 8)
    assert 0.35 <= verdict.is_correct.float().mean() <= 0.55


@pytest.mark.slow  # two steps of each stage, twice: about five seconds
def test_a_seed_gives_the_same_networks_again_on_one_thread() -> None:
    weights = []
    for _ in range(2):
        autoencoder = pretrain.train_autoencoder(2, seed=3)
        pipeline = pretrain.train_flow(autoencoder, 2, seed=3, num_images=1)
        networks_made = (autoencoder, pipeline.transformer, pipeline.text_encoder, pipeline.text_encoder_2)
        weights.append([parameter for network in networks_made for parameter in network.parameters()])
    assert all(torch.equal(first, second) for first, second in zip(*weights, strict=True))


@pytest.mark.slow
def test_a_saved_pipeline_is_the_one_that_was_loaded(pipeline: StableDiffusion3Pipeline, tmp_path: Path) -> None:
    save(copy.deepcopy(pipeline), tmp_path)
    shipped = {path.relative_to(FOLDER) for path in FOLDER.rglob("*.*")}
    assert {path.relative_to(tmp_path) for path in tmp_path.rglob("*.*")} == shipped
    for path in shipped:
        if path.suffix == ".safetensors" or path.name in ("model_index.json", "config.json", "tokenizer.json"):
            assert (tmp_path / path).read_bytes() == (FOLDER / path).read_bytes()
