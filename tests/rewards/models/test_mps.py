"""MPS against a slow network in loops over heads, by the published names, and by hand numbers."""

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn.functional import layer_norm, silu
from transformers import CLIPConfig, CLIPImageProcessor, CLIPModel, CLIPTokenizer

from mmrl.core.contracts import ConfigError, RewardBatch
from mmrl.core.data import Outputs
from mmrl.rewards.base.networks.mps import rotated, seen_tokens
from mmrl.rewards.models.mps import Mps
from tests.parameters import in_one_test
from tests.rewards.example import Example, make_batch
from tests.rewards.pictures import CPU, random_pictures, smooth_images, to_pil

# No truth: what people prefer is what the model says.
EXAMPLE = Example(random_batch=random_pictures)
TEXTS = ["a red kite, light and color", "two dogs", "naïve café 🙂 of many, many, many, many words", ""]


@pytest.fixture(scope="module")
def twin(tmp_path_factory: pytest.TempPathFactory) -> Mps:
    return Mps().tiny(0, tmp_path_factory.mktemp("mps"))


def batch_of(images: Tensor) -> RewardBatch:
    return make_batch(Outputs(images=images), TEXTS)


def slow_scores(reward: Mps, images: Tensor) -> list[float]:
    """The scores of 8-bit images, one by one, with the weights of the file and each head on its own."""
    weights = load_file(reward.checkpoint)
    clip = CLIPModel(CLIPConfig.from_pretrained(reward.base)).eval()
    clip.load_state_dict({name[6:]: one for name, one in weights.items() if name.startswith("model.")})
    tokenizer, processor = CLIPTokenizer.from_pretrained(reward.base), CLIPImageProcessor.from_pretrained(reward.base)

    def tokens_of(text: str) -> Tensor:
        tokens = tokenizer(text, padding="max_length", truncation=True, max_length=77, return_tensors="pt").input_ids
        assert isinstance(tokens, Tensor)
        return tokens

    def layer(image: Tensor, prompt: Tensor, is_seen: Tensor, number: int) -> Tensor:
        part = {name.split(f"layers.{number}.")[1]: one for name, one in weights.items() if f"layers.{number}." in name}

        def norm(x: Tensor, place: int) -> Tensor:
            return layer_norm(x, x.shape[-1:], part[f"{place}.fn.norm.weight"], part[f"{place}.fn.norm.bias"])

        def swiglu(x: Tensor) -> Tensor:
            half = x.shape[1] // 2
            return silu(x[:, half:]) * x[:, :half]

        width = image.shape[1]
        x = norm(image, 0)
        queries, both = x @ part["0.fn.to_q.weight"].T, prompt @ part["0.fn.to_kv.weight"].T
        head = both.shape[1] // 2
        heads = []
        for start in range(0, width, head):
            logits = queries[:, start : start + head] @ both[:, :head].T / math.sqrt(head)
            heads.append(logits.masked_fill(~is_seen, -math.inf).softmax(1) @ both[:, head:])
        added = torch.cat(heads, 1) @ part["0.fn.to_out.weight"].T
        image = image + added + swiglu(x @ part["0.fn.ff.0.weight"].T) @ part["0.fn.ff.2.weight"].T

        x = norm(image, 1)
        fused = x @ part["1.fn.fused_attn_ff_proj.weight"].T
        keys, values = turned(fused[:, width : width + head]), fused[:, width + head : width + 2 * head]
        heads = []
        for start in range(0, width, head):
            logits = turned(fused[:, start : start + head]) @ keys.T / math.sqrt(head)
            heads.append(logits.softmax(1) @ values)
        up = fused[:, width + 2 * head :]
        added = torch.cat(heads, 1) @ part["1.fn.attn_out.weight"].T + swiglu(up) @ part["1.fn.ff_out.1.weight"].T
        return image + added

    def turned(x: Tensor) -> Tensor:
        rows = x.clone()
        half = x.shape[1] // 2
        for place in range(len(x)):
            for pair in range(half):
                angle = place / 10000 ** (pair / half)
                a, b = float(x[place, pair]), float(x[place, pair + half])
                rows[place, pair] = a * math.cos(angle) - b * math.sin(angle)
                rows[place, pair + half] = b * math.cos(angle) + a * math.sin(angle)
        return rows

    found = []
    with torch.no_grad():
        condition = clip.text_projection(clip.text_model(tokens_of(reward.condition)).last_hidden_state)[0]
        for image, text in zip(to_pil(images), TEXTS, strict=True):
            states = clip.text_model(tokens_of(text))
            prompt, whole = clip.text_projection(states.last_hidden_state)[0], clip.text_projection(states[1])[0]
            nearest = torch.stack([max(row @ other for other in condition) for row in prompt])
            is_seen = nearest / nearest.max() > reward.threshold
            pixels = processor(image, return_tensors="pt")["pixel_values"]
            tokens = clip.visual_projection(clip.vision_model(pixels).last_hidden_state)[0]
            for number in range(2):
                tokens = layer(tokens, prompt, is_seen, number)
            cosine = tokens[0] @ whole / tokens[0].norm() / whole.norm()
            found.append(float(cosine * clip.logit_scale.exp()))
    return found


@pytest.mark.slow
@pytest.mark.parametrize("threshold", [0.3, 0.9])
def test_the_score_is_that_of_a_slow_network(threshold: float, twin: Mps) -> None:
    reward = replace(twin, threshold=threshold)
    reward.prepare(CPU)
    images = (smooth_images(32, 32) * 255).round() / 255
    found = reward.score(batch_of(images))
    torch.testing.assert_close(found, torch.tensor(slow_scores(reward, images)), rtol=1e-4, atol=1e-4)
    assert found.std() > 0.1


@pytest.mark.slow
def test_condition_prompt_and_image_all_count(twin: Mps) -> None:
    first, other = replace(twin, threshold=0.9), replace(twin, threshold=0.9, condition="things")
    for reward in (first, other):
        reward.prepare(CPU)
    images = smooth_images(32, 32)
    scores = first.score(batch_of(images))
    assert (scores - other.score(batch_of(images))).abs().max() > 1e-3
    assert (scores - first.score(batch_of(1 - images))).abs().min() > 1e-3
    assert (scores - first.score(make_batch(Outputs(images=images), TEXTS[::-1]))).abs().min() > 1e-3


def test_tokens_near_to_the_condition_are_seen() -> None:
    prompt = torch.tensor([[[1.0, 0.0], [0.2, 0.1], [-3.0, 0.5], [0.0, 0.35]]])
    condition = torch.tensor([[1.0, 0.0], [0.0, 1.0]])  # nearest: 1, 0.2, 0.5 and 0.35
    assert seen_tokens(prompt, condition, 0.3).tolist() == [[True, False, True, True]]
    assert seen_tokens(prompt, condition, 0.5).tolist() == [[True, False, False, False]]  # above, not at


@in_one_test(("place", "expected"), [(0, [1.0, 0.0]), (1, [math.cos(1), math.sin(1)]), (3, [math.cos(3), math.sin(3)])])
def test_rotary_places_turn_by_their_number(place: int, expected: list[float]) -> None:
    torch.testing.assert_close(rotated(torch.tensor([[1.0, 0.0]] * 4))[place], torch.tensor(expected))


@pytest.mark.slow
def test_the_gradient_to_the_image_is_that_of_differences(twin: Mps) -> None:
    twin.prepare(CPU)
    images = smooth_images(32, 32) * 0.8 + 0.1
    images.requires_grad_(True)
    (gradient,) = torch.autograd.grad(twin.score(batch_of(images)).sum(), images)
    way = torch.randn(images.shape, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        ahead, behind = (twin.score(batch_of(images + sign * 1e-3 * way)).sum() for sign in (1, -1))
    torch.testing.assert_close((gradient * way).sum(), (ahead - behind) / 2e-3, rtol=0.02, atol=1e-3)


@pytest.mark.slow
def test_constants_of_older_packages_are_passed_over_and_other_files_refused(twin: Mps, tmp_path: Path) -> None:
    twin.prepare(CPU)
    weights = load_file(twin.checkpoint)
    older = weights | {
        "model.text_model.embeddings.position_ids": torch.arange(77)[None],
        "cross_model.layers.0.1.fn.rotary_emb.inv_freq": torch.ones(2),
    }
    save_file(older, tmp_path / "older.safetensors")
    reward = replace(twin, checkpoint=str(tmp_path / "older.safetensors"))
    reward.prepare(CPU)
    batch = batch_of(smooth_images(32, 32))
    assert torch.equal(reward.score(batch), twin.score(batch))
    save_file({name: one for name, one in weights.items() if name.startswith("model.")}, tmp_path / "clip.safetensors")
    with pytest.raises(ConfigError, match="it has no layers of cross-attention"):
        replace(twin, checkpoint=str(tmp_path / "clip.safetensors")).prepare(CPU)
    weights.pop("cross_model.layers.1.0.fn.to_q.weight")
    save_file(weights, tmp_path / "less.safetensors")
    with pytest.raises(ConfigError, match="does not hold the MPS checkpoint"):
        replace(twin, checkpoint=str(tmp_path / "less.safetensors")).prepare(CPU)
    with pytest.raises(ConfigError, match="cannot load the CLIP '/no/such"):
        replace(twin, base="/no/such").prepare(CPU)
    with pytest.raises(ValueError, match="checkpoint must be a file that ends in"):
        Mps(checkpoint="MPS.bin")
