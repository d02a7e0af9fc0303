"""edit_reward against transformers' own Qwen2.5-VL, one edit at a time, and the published names and shapes."""

import random
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor
from transformers import Qwen2_5_VLConfig, Qwen2_5_VLModel

from mmrl.core.contracts import ConfigError, RewardBatch
from mmrl.core.data import Outputs
from mmrl.media.pictures import as_tensor
from mmrl.rewards.base.networks.resizing import within_pixels
from mmrl.rewards.base.networks.value_head import MarkedNetwork, own_names
from mmrl.rewards.models.edit_reward import EditReward, Pooling
from tests.rewards.example import GROUP, Example, make_batch
from tests.rewards.models.marked_oracle import at_mark, head_by_hand, head_shapes, text_shapes
from tests.rewards.pictures import CPU, random_images, random_texts, shown
from tests.rewards.roles import with_roles


def random_edits(rng: random.Random) -> RewardBatch:
    count = 2 * GROUP
    images, sources = random_images(rng, count), random_images(rng, count, side=56)
    return make_batch(Outputs(images=images), random_texts(rng, count), media=shown(sources))


EXAMPLE = Example(random_batch=random_edits)  # no truth: a model of taste


@pytest.fixture(scope="module")
def twin(tmp_path_factory: pytest.TempPathFactory) -> EditReward:
    twin = EditReward().tiny(0, tmp_path_factory.mktemp("edit_reward"))
    twin.prepare(CPU)
    return twin


def by_transformers(twin: EditReward, batch: RewardBatch) -> Tensor:
    """mu of both questions, [2, B]."""
    assert batch.outputs.images is not None
    rows = []
    for file, head in ((twin.following, "rm_heads.head_0"), (twin.quality, "rm_heads.head_1")):
        question = Path(file).read_text() + " <|Reward|>"
        for image, prompt in zip(batch.outputs.images, batch.prompts, strict=True):
            pair = [within_pixels(one[None], 784, 4 * 784)[0] for one in (as_tensor(prompt.media[0].load()), image)]
            text = question.replace("{text_prompt}", prompt.text)
            state, weights = at_mark(twin.base, twin.checkpoint, pair, text)
            rows.append(head_by_hand(state, weights, head)[0])
    return torch.stack(rows).view(2, -1)


@pytest.mark.slow  # two networks, of which transformers' own judges one edit at a time
def test_scores_are_those_of_transformers_with_the_source_before_the_edit(twin: EditReward) -> None:
    batch = random_edits(random.Random(0))
    both = by_transformers(twin, batch)
    assert float(both.std(1).min()) > 1e-3, "the scores tell edits apart"
    poolings: dict[Pooling, Tensor] = {"mean": both.mean(0), "min": both.amin(0), "sum": both.sum(0)}
    for pooling, expected in poolings.items():
        reward = replace(twin, pooling=pooling)
        reward.prepare(CPU)
        torch.testing.assert_close(reward.score(batch), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.slow
def test_scores_have_a_gradient_to_every_edited_image(twin: EditReward) -> None:
    batch = random_edits(random.Random(1))
    assert batch.outputs.images is not None
    images = batch.outputs.images.clone().requires_grad_()
    twin.score(replace(batch, outputs=Outputs(images=images))).sum().backward()
    assert images.grad is not None and (images.grad.flatten(1).abs().amax(1) > 0).all()


def published_shapes() -> dict[str, tuple[int, ...]]:
    """Names and shapes of Qwen2.5-VL-7B (its config.json) in transformers 4.56, with one mark more, and both heads."""
    text, vision = "model.language_model", "model.visual"
    shapes: dict[str, tuple[int, ...]] = {
        "lm_head.weight": (151666, 3584),
        f"{text}.embed_tokens.weight": (151666, 3584),
        f"{text}.norm.weight": (3584,),
        f"{vision}.patch_embed.proj.weight": (1280, 3, 2, 14, 14),
        f"{vision}.merger.ln_q.weight": (1280,),
        f"{vision}.merger.mlp.0.weight": (5120, 5120),
        f"{vision}.merger.mlp.0.bias": (5120,),
        f"{vision}.merger.mlp.2.weight": (3584, 5120),
        f"{vision}.merger.mlp.2.bias": (3584,),
        **head_shapes("rm_heads.head_0", 3584),
        **head_shapes("rm_heads.head_1", 3584),
    }
    for layer in range(32):
        stem = f"{vision}.blocks.{layer}"
        shapes |= {f"{stem}.norm{n}.weight": (1280,) for n in (1, 2)}
        sizes = {"attn.qkv": (3840, 1280), "attn.proj": (1280, 1280), "mlp.gate_proj": (3420, 1280),
                 "mlp.up_proj": (3420, 1280), "mlp.down_proj": (1280, 3420)}  # fmt: skip
        shapes |= {f"{stem}.{name}.weight": size for name, size in sizes.items()}
        shapes |= {f"{stem}.{name}.bias": size[:1] for name, size in sizes.items()}
    return shapes | text_shapes(text)


@pytest.mark.slow  # makes all modules of the published size, without weights
def test_the_published_names_and_shapes_fit_the_network() -> None:
    text = {"hidden_size": 3584, "intermediate_size": 18944, "num_hidden_layers": 28, "num_attention_heads": 28}
    vision = {"depth": 32, "hidden_size": 1280, "intermediate_size": 3420, "num_heads": 16, "out_hidden_size": 3584}
    config = Qwen2_5_VLConfig(
        text_config={**text, "num_key_value_heads": 4, "vocab_size": 151666}, vision_config=vision
    )
    with torch.device("meta"):
        network = MarkedNetwork(Qwen2_5_VLModel(config), ("head_0", "head_1"))
        weights = {name: torch.empty(shape) for name, shape in published_shapes().items()}
        own = {name: tuple(value.shape) for name, value in network.state_dict().items()}
        assert {name: tuple(value.shape) for name, value in own_names(weights).items()} == own


@pytest.mark.slow
def test_the_published_questions_are_read_and_not_run(tmp_path: Path, twin: EditReward) -> None:
    prompts, collator = tmp_path / "prompts.py", tmp_path / "data_collator_qwen_edit.py"
    prompts.write_text(
        'raise SystemExit\nINSTRUCTION_EDIT_FOLLOWING = "a {text_prompt}"\n'
        'INSTRUCTION_EDIT_QUALITY = "b {text_prompt}"\n'
    )
    collator.write_text('import none\nprompt_with_special_token = "\\n<|Reward|>"\n')
    reward = replace(twin, following=str(prompts), quality=str(prompts), ending=str(collator))
    reward.prepare(CPU)
    assert reward._questions == {"following": "a {text_prompt}\n<|Reward|>", "quality": "b {text_prompt}\n<|Reward|>"}


@pytest.mark.slow
def test_what_is_missing_or_wrong_is_named(twin: EditReward) -> None:
    with pytest.raises(ConfigError, match=r"no question of EditReward 'prompts\.py'.*INSTRUCTION_EDIT_FOLLOWING"):
        EditReward().prepare(CPU)
    batch = with_roles(random_edits(random.Random(0)), ("mask",))
    with pytest.raises(ValueError, match="needs an image of the role 'image'"):
        twin.score(batch)
    with pytest.raises(ValueError, match=r"min_pixels must be at most max_pixels \(784\), got 200704"):
        EditReward(max_pixels=784)
