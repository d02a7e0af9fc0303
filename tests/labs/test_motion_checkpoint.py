"""The checkpoint of the motion lab: a real LTXPipeline, and what its pretraining does."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from diffusers.pipelines.ltx.pipeline_ltx import LTXPipeline

from mmrl import labs
from mmrl.labs.motion import networks, pretrain, world
from mmrl.labs.pipelines import save

FOLDER = labs.checkpoint("motion")
CAPTIONS = [*world.all_prompts(), ""]


@pytest.fixture(scope="module")
def pipeline() -> LTXPipeline:
    loaded: Any = LTXPipeline.from_pretrained(FOLDER)
    loaded.set_progress_bar_config(disable=True)
    ltx: LTXPipeline = loaded
    return ltx


def test_the_index_names_the_parts_of_an_ltx_pipeline_of_at_most_4_mb() -> None:
    index = json.loads((FOLDER / "model_index.json").read_text())
    assert index["_class_name"] == "LTXPipeline"
    parts = {name: value[1] for name, value in index.items() if isinstance(value, list)}
    assert parts == {
        "transformer": "LTXVideoTransformer3DModel",
        "vae": "AutoencoderKLLTXVideo",
        "scheduler": "FlowMatchEulerDiscreteScheduler",
        "text_encoder": "T5EncoderModel",
        "tokenizer": "TokenizersBackend",
    }
    assert json.loads((FOLDER / "scheduler" / "scheduler_config.json").read_text())["shift"] == 1.0
    assert sum(path.stat().st_size for path in FOLDER.rglob("*.*")) < 4_000_000


@pytest.mark.slow
def test_a_pipeline_loaded_without_a_dtype_is_float32_throughout(pipeline: LTXPipeline) -> None:
    for part in (pipeline.transformer, pipeline.vae, pipeline.text_encoder):
        assert part.dtype == torch.float32


@pytest.mark.slow
def test_each_word_is_one_token_and_training_encodes_as_the_pipeline_does(pipeline: LTXPipeline) -> None:
    with torch.no_grad():
        states, mask, _, _ = pipeline.encode_prompt(
            CAPTIONS, do_classifier_free_guidance=False, max_sequence_length=networks.MAX_SEQUENCE_LENGTH
        )
    ours = networks.encode_text(pipeline.text_encoder, pipeline.tokenizer, CAPTIONS)
    torch.testing.assert_close(ours[0], states, atol=1e-6, rtol=0)
    assert torch.equal(ours[1].bool(), mask.bool()) and mask.sum(1).tolist() == [5.0] * 96 + [1.0]
    tokens = pipeline.tokenizer("blue cross moves left").input_ids
    assert pipeline.tokenizer.convert_ids_to_tokens(tokens) == ["blue", "cross", "moves", "left", "</s>"]
    ours[0].sum().backward()
    assert pipeline.text_encoder.shared.weight.grad.abs().sum() > 0
    pipeline.text_encoder.zero_grad()


@pytest.mark.slow
def test_the_stock_pipeline_draws_what_the_script_draws(pipeline: LTXPipeline) -> None:
    prompts = world.prompts("held_out")[:4]
    noise = torch.randn(4, 12, 16, generator=torch.Generator().manual_seed(5))
    stock = pipeline(
        prompts,
        latents=noise.clone(),
        num_inference_steps=4,
        guidance_scale=1.0,
        max_sequence_length=5,
        frame_rate=world.FRAME_RATE,
        num_frames=world.NUM_FRAMES,
        height=32,
        width=32,
        output_type="pt",
    ).frames  # [B, F, 3, H, W]
    torch.testing.assert_close(pretrain.sample(pipeline, prompts, noise, 4), stock, atol=1e-4, rtol=0)


@pytest.mark.slow
def test_the_autoencoder_keeps_what_the_verifier_reads(pipeline: LTXPipeline) -> None:
    prompts = world.all_prompts()
    with torch.no_grad():
        latents = networks.to_latents(pipeline.vae, world.render(prompts, torch.Generator().manual_seed(9)))
        verdict = world.verify(networks.to_clips(pipeline.vae, latents), prompts)
    assert verdict.is_correct.float().mean() >= 0.95
    torch.testing.assert_close(latents.mean(), torch.tensor(0.0), atol=0.05, rtol=0)
    torch.testing.assert_close(latents.std(), torch.tensor(1.0), atol=0.05, rtol=0)


def test_captions_lie_as_often_as_they_should() -> None:
    prompts = torch.randint(0, 96, (40_000,), generator=torch.Generator().manual_seed(0))
    captions = pretrain.noisy_captions(prompts, torch.Generator().manual_seed(1))
    is_empty = captions == 96
    # a redrawn word is the old one by chance; four standard errors are 0.006 and 0.0105
    kept = (1 - 0.25 * 5 / 6) * (1 - 0.25 * 3 / 4) * (1 - 0.25 * 3 / 4)
    torch.testing.assert_close(is_empty.float().mean(), torch.tensor(0.1), atol=0.006, rtol=0)
    is_true = (captions == prompts)[~is_empty].float().mean()
    torch.testing.assert_close(is_true, torch.tensor(kept), atol=0.0105, rtol=0)
    assert captions.min() >= 0 and captions.max() == 96


@pytest.mark.slow  # 128 clips of ten steps
def test_the_base_obeys_some_of_the_held_out_prompts(pipeline: LTXPipeline) -> None:
    verdict = pretrain.evaluate(pipeline, world.prompts("held_out"), 4)
    assert 0.2 <= verdict.is_correct.float().mean() <= 0.6


@pytest.mark.slow  # a step or two of each stage, twice
def test_a_seed_gives_the_same_networks_again_on_one_thread() -> None:
    weights = []
    for _ in range(2):
        autoencoder = pretrain.train_autoencoder(1, 1, seed=3)
        pipeline = pretrain.train_flow(autoencoder, 2, seed=3, num_clips=1)
        networks_made = (autoencoder, pipeline.transformer, pipeline.text_encoder)
        weights.append([parameter for network in networks_made for parameter in network.parameters()])
    assert all(torch.equal(first, second) for first, second in zip(*weights, strict=True))


@pytest.mark.slow
def test_a_saved_pipeline_is_the_one_that_was_loaded(tmp_path: Path) -> None:
    save(pretrain.load(FOLDER), tmp_path)
    shipped = {path.relative_to(FOLDER) for path in FOLDER.rglob("*.*")}
    assert {path.relative_to(tmp_path) for path in tmp_path.rglob("*.*")} == shipped
    for path in shipped:
        if path.suffix == ".safetensors" or path.name in ("model_index.json", "config.json", "tokenizer.json"):
            assert (tmp_path / path).read_bytes() == (FOLDER / path).read_bytes()
