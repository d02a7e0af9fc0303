"""The shipped model of the edits lab, and the script that made it."""

import json
import random
from dataclasses import replace
from typing import Any

import pytest
import torch
from diffusers.pipelines.flux.pipeline_flux_kontext import FluxKontextPipeline

from mmrl import labs
from mmrl.labs.edits import networks, pretrain, world
from mmrl.labs.edits.verifier import verify
from mmrl.labs.edits.world import Edit, Scene, Shape
from mmrl.media.pictures import as_tensor

FOLDER = labs.checkpoint("edits")


@pytest.fixture(scope="module")
def pipeline() -> Any:
    return pretrain.load(FOLDER)


def test_the_index_names_the_parts_of_a_stock_pipeline() -> None:
    index = json.loads((FOLDER / "model_index.json").read_text())
    assert index["_class_name"] == FluxKontextPipeline.__name__
    parts = {name: value[1] for name, value in index.items() if isinstance(value, list)}
    assert parts == {
        "transformer": "FluxTransformer2DModel",
        "vae": "AutoencoderKL",
        "scheduler": "FlowMatchEulerDiscreteScheduler",
        "text_encoder": "CLIPTextModel",
        "tokenizer": "CLIPTokenizer",
        "text_encoder_2": "T5EncoderModel",
        "tokenizer_2": parts["tokenizer_2"],
        "image_encoder": None,
        "feature_extractor": None,
    }
    assert parts["tokenizer_2"] in ("T5Tokenizer", "T5TokenizerFast")
    assert json.loads((FOLDER / "scheduler" / "scheduler_config.json").read_text())["shift"] == 1.0


@pytest.mark.slow
def test_each_word_is_one_token_in_both_tokenizers(pipeline: Any) -> None:
    texts = [edit.text for edit in world.all_edits()]
    clip = pipeline.tokenizer(texts, padding="max_length", return_tensors="pt").input_ids
    assert clip.shape == (44, 6)
    t5 = pipeline.tokenizer_2(texts).input_ids
    for text, row, other in zip(texts, clip.tolist(), t5, strict=True):
        words = text.split()
        expected = ["<|startoftext|>", *(f"{word}</w>" for word in words), "<|endoftext|>"]
        assert pipeline.tokenizer.convert_ids_to_tokens(row) == expected
        assert pipeline.tokenizer_2.convert_ids_to_tokens(other) == [*(f"▁{word}" for word in words), "</s>"]


def test_instructions_are_encoded_as_the_pipeline_does(pipeline: Any) -> None:
    texts = [edit.text for edit in world.all_edits()]
    embeds, pooled, _ = pipeline.encode_prompt(texts, None, max_sequence_length=networks.NUM_WORDS)
    ours = networks.encode_instructions(pipeline)
    assert torch.equal(ours[0], embeds) and torch.equal(ours[1], pooled)
    assert len(pooled.unique(dim=0)) == 44


@pytest.mark.slow  # half a second
def test_the_stock_call_makes_the_edits_of_the_script(pipeline: Any) -> None:
    asked = world.prompts("held_out")[:6]
    texts = [question.text for question in asked]
    sources = torch.stack([as_tensor(question.media[0].load()) for question in asked])
    noise = torch.randn(6, networks.NUM_TOKENS, networks.TOKEN_WIDTH, generator=torch.Generator().manual_seed(5))
    stock = pipeline(
        image=sources, prompt=texts, latents=noise, num_inference_steps=4, output_type="pt", **networks.CALL
    ).images
    torch.testing.assert_close(pretrain.sample(pipeline, texts, sources, noise, 4), stock, atol=1e-5, rtol=0)


@pytest.mark.slow  # half a second
def test_the_autoencoder_keeps_what_the_verifier_reads(pipeline: Any) -> None:
    rng = random.Random(11)
    edits = rng.choices(world.all_edits(), k=300)
    scenes = [world.source(edit, rng) for edit in edits]
    targets = world.render([scene.edited(edit) for edit, scene in zip(edits, scenes, strict=True)])
    decoded = networks.decode(pipeline.vae, networks.encode(pipeline.vae, targets))
    assert verify(decoded, world.render(scenes), [edit.text for edit in edits]).is_correct.float().mean() >= 0.97
    tokens = networks.encode(pipeline.vae, targets)
    torch.testing.assert_close(tokens.mean(), torch.tensor(0.0), atol=0.05, rtol=0)
    torch.testing.assert_close(tokens.std(), torch.tensor(1.0), atol=0.05, rtol=0)


@pytest.mark.slow  # 300 edits of ten steps: about three seconds
def test_the_base_makes_some_of_the_held_out_edits(pipeline: Any) -> None:
    assert 0.2 <= pretrain.evaluate(pipeline, "held_out", 300).is_correct.float().mean() <= 0.6


@pytest.mark.slow  # two steps of each stage, twice
def test_a_seed_gives_the_same_networks_again_on_one_thread() -> None:
    weights = []
    stage = replace(pretrain.HONEST, num_steps=2, num_scenes=128)
    for _ in range(2):
        autoencoder = pretrain.train_autoencoder(2, seed=3)
        torch.manual_seed(3)
        made: Any = pretrain.train_flow(networks.new_pipeline(autoencoder), stage, seed=3)
        parts = (made.vae, made.transformer, made.text_encoder, made.text_encoder_2)
        weights.append([parameter for part in parts for parameter in part.parameters()])
    assert all(torch.equal(first, second) for first, second in zip(*weights, strict=True))


@pytest.mark.slow
def test_targets_lie_as_often_as_they_are_told_to() -> None:
    """Every choice drawn anew, or one more edit each time."""
    scene = Scene(
        (
            Shape("circle", "red", "small", "left", (0.0, 0.0, 0.0)),
            Shape("square", "blue", "large", "right", (0.0, 0.0, 0.0)),
        )
    )
    edit = Edit("circle", "size", "large")
    rng = random.Random(0)
    made = [pretrain.spoilt(scene, edit, pretrain.Lies(), rng) for _ in range(20)]
    assert made == [scene.edited(edit)] * 20
    made = [pretrain.spoilt(scene, edit, pretrain.Lies(wrong=1.0), rng) for _ in range(4000)]
    # the circle (1/2) changes its size (1/3) to large (1/2); four standard errors are 0.018
    assert sum(one == scene.edited(edit) for one in made) / 4000 == pytest.approx(1 / 12, abs=0.018)
    made = [pretrain.spoilt(scene, edit, pretrain.Lies(more=1.0), rng) for _ in range(4000)]
    # the second edit changes nothing where its value is there already: 1/6 of colours, 1/2 of sizes, 1/3 of columns
    same = (1 / 6 + 1 / 2 + 1 / 3) / 3
    assert sum(one == scene.edited(edit) for one in made) / 4000 == pytest.approx(same, abs=0.03)
