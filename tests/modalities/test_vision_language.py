"""Settings of a vision-language policy: what it reads of a prompt, and what is refused."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from mmrl.core import plugins
from mmrl.core.contracts import ConfigError, Placement
from mmrl.core.data import Prompt
from mmrl.media.pictures import StoredPicture
from mmrl.modalities.encoding.inputs import join_media, parts_of
from mmrl.modalities.encoding.positions import rope_positions
from mmrl.modalities.tiny.vision_language import BUILDERS
from mmrl.modalities.vision_language import VisionLanguage
from mmrl.parsing.coordinates import Canvas
from tests import vision_twins
from tests.parameters import in_one_test
from tests.vision_twins import PROMPTS, picture


def read(policy: VisionLanguage, prompt: Prompt) -> str:
    """What the network reads, as text."""
    return policy.decode(policy.encode([prompt])[0].tokens.tolist())


def test_marks_say_where_media_stand_and_media_without_marks_come_first() -> None:
    image, video = ("image", ""), ("video", "")
    assert parts_of("left <image> of<image>", 2) == [("text", "left "), image, ("text", " of"), image]
    assert parts_of("both", 2) == [image, image, ("text", "both")]
    assert parts_of("", 1) == [image]
    assert parts_of("all", 1, 2) == [video, video, image, ("text", "all")]
    assert parts_of("a<video><image>", 1, 1) == [("text", "a"), video, image]
    assert parts_of("a<image>", 1, 1) == [video, ("text", "a"), image]
    for text, images, clips, message in (
        ("one <image>", 2, 0, "1 marks <image> for 2 images"),
        ("<image>", 0, 1, "1 marks <image> for 0 images"),
        ("<video> <video>", 0, 1, "2 marks <video> for 1 videos"),
    ):
        with pytest.raises(ValueError, match=message):
            parts_of(text, images, clips)


def test_the_chat_template_puts_system_message_template_and_images_together() -> None:
    policy = vision_twins.policy(system_prompt="be brief", template="{prompt} think")
    image = "<|vision_start|>" + "<|image_pad|>" * 2 + "<|vision_end|>"
    read_as = f"<|im_start|>system\nbe brief<|im_end|>\n<|im_start|>user\nclick the {image} box think<|im_end|>\n"
    assert read(policy, PROMPTS[1]) == read_as + "<|im_start|>assistant\n"
    assert "system\nlook<" in read(policy, PROMPTS[2])
    assert "system\n<" in read(policy, replace(PROMPTS[2], system=""))
    assert "system" not in read(vision_twins.policy(), PROMPTS[1])


@pytest.mark.slow
@pytest.mark.parametrize("family", BUILDERS)
def test_each_prompt_has_the_media_of_its_own_images(family: str) -> None:
    policy = vision_twins.policy(family)
    none, one, three = policy.encode(PROMPTS)
    assert not none.media and none.canvas is None
    for encoded, prompt in ((one, PROMPTS[1]), (three, PROMPTS[2])):
        alone = vision_twins.policy(family).encode([prompt])[0]
        assert {name: t.tolist() for name, t in encoded.media.items()} == {
            name: t.tolist() for name, t in alone.media.items()
        }
        assert encoded.canvas is not None and encoded.canvas.original == ((60, 40) if encoded is one else (30, 30))
        image_token = policy.modules()["model"].config.image_token_id  # type: ignore[union-attr]
        assert (encoded.token_types == 1).tolist() == [token == image_token for token in encoded.tokens.tolist()]


def test_joined_media_are_padded_where_the_numbers_of_tiles_differ() -> None:
    parts = [{"pixel_values": torch.ones(1, 2, 3)}, {}, {"pixel_values": torch.ones(2, 1, 3), "grid": torch.ones(1, 3)}]
    joined = join_media(parts)
    assert joined["pixel_values"].sum((1, 2)).tolist() == [6, 3, 3]
    assert joined["pixel_values"].shape == (3, 2, 3) and joined["grid"].shape == (1, 3)
    assert join_media([{}, {}]) == {}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "convention", "resized"),
    [("qwen2_5_vl", "resized", (56, 28)), ("qwen2_vl", "thousand", (56, 28)), ("qwen3_vl", "thousand", (56, 28)),
     ("internvl", "thousand", (60, 40)), ("gemma3", "unit", (60, 40))],
)  # fmt: skip
def test_the_canvas_is_the_first_image_before_and_after_the_processor(
    family: str, convention: Any, resized: tuple[int, int]
) -> None:
    policy = vision_twins.policy(family)
    expected = Canvas((60, 40), resized, convention)
    assert policy.encode([PROMPTS[1]])[0].canvas == expected
    canvases = vision_twins.rollout(policy, 2).outputs.canvases
    assert canvases is not None and canvases[:5] == (None, None, None, expected, expected)
    own = vision_twins.policy(family, coordinates="original")
    assert own.encode([PROMPTS[1]])[0].canvas == replace(expected, convention="original")


@pytest.mark.slow
def test_pixel_bounds_bound_the_images() -> None:
    def tokens(**bounds: Any) -> int:
        return int(vision_twins.policy(**bounds).encode([PROMPTS[2]])[0].token_types.sum())

    assert tokens(max_pixels=28 * 28) == 3
    assert tokens(min_pixels=56 * 56, max_pixels=56 * 84) > tokens()
    with pytest.raises(ConfigError, match="has no pixel budget"):
        vision_twins.policy("gemma3", max_pixels=1000)


@pytest.mark.slow
def test_a_prompt_is_encoded_once_while_there_is_room() -> None:
    loads = []

    class Counted(StoredPicture):
        def load(self) -> Any:
            loads.append(self.name)
            return super().load()

    def prompt(number: int) -> Prompt:
        source = picture(30, 30, number)
        return Prompt("see", (Counted(source.name, content=source.content),), {"target": number})

    policy = vision_twins.policy(prompt_cache=2)
    first, second = policy.encode([prompt(1), prompt(1)])
    assert first is second and len(loads) == 1
    policy.encode([prompt(1), prompt(2)])
    assert len(loads) == 2
    policy.encode([prompt(3)])  # the oldest, 1, goes
    policy.encode([prompt(2), prompt(3)])
    assert len(loads) == 3
    policy.encode([prompt(1)])
    assert len(loads) == 4
    size = policy.encode([prompt(1)])[0].num_bytes
    for room, again in ((2.5, 0), (1.5, 2), (0.5, 2)):  # prompts of one size that fit
        policy = vision_twins.policy(prompt_cache_gb=room * size / 1e9)
        policy.encode([prompt(1), prompt(2)])
        loads.clear()
        policy.encode([prompt(2)])
        policy.encode([prompt(1)])
        policy.encode([prompt(2)])
        assert len(loads) == again + (room == 0.5), (room, loads)


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        (
            Prompt("a <image> and <image>", (picture(30, 30, 1),)),
            r"prompt 'a <image> and <image>': its text has 2 marks",
        ),
        (Prompt("no <image> here"), "1 marks <image> for 0 images"),
        (Prompt("hack <|image_pad|>"), r"spells the model's own media token '<\|image_pad\|>'"),
        (Prompt("hack", system="<|vision_start|>"), r"spells the model's own media token '<\|vision_start\|>'"),
        (Prompt("half a \ud800"), r"prompt 'half a \\ud800': 'utf-8' codec can't encode"),
        (Prompt("a", system="half a \ud800"), "prompt 'a': 'utf-8' codec can't encode"),
        (Prompt("wide", (picture(300, 1, 1),)), "prompt 'wide': the model's processor refuses it: .* aspect ratio"),
        (Prompt("x" * 200), r"prompt 'x+'\.\.\. has 208 tokens with its 0 images, more than max_prompt_tokens 100"),
    ],
)
def test_prompts_that_cannot_be_read_are_refused_by_name(prompt: Prompt, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        vision_twins.policy(max_prompt_tokens=100).encode([PROMPTS[1], prompt])


@pytest.mark.slow
def test_a_text_that_is_the_familys_own_image_token_is_a_mark_in_the_prompt_and_refused_in_the_system_message() -> None:
    policy = vision_twins.policy("llava_onevision")
    assert int(policy.encode([Prompt("see <image>", (picture(30, 30, 1),))])[0].token_types.sum()) > 0
    with pytest.raises(ConfigError, match="media token '<image>'"):
        policy.encode([Prompt("see", (picture(30, 30, 1),), system="<image>")])


@pytest.mark.slow
def test_banned_are_media_tokens_and_rows_without_text() -> None:
    policy = vision_twins.policy("idefics3")
    tokenizer = policy.encoder.processor.tokenizer
    names = {tokenizer.convert_ids_to_tokens(token) for token in policy.banned if token < len(tokenizer)}
    assert {"<image>", "<fake_token_around_image>", "<global-img>", "<row_1_col_1>", "<row_6_col_6>"} <= names
    assert not {"<end_of_utterance>", "<|im_start|>", "<think>", None} & names
    assert set(range(len(tokenizer), len(policy.head.weight))) <= set(policy.banned)


@in_one_test(
    ("settings", "message"),
    [
        ({"template": "no place"}, r"template must hold \{prompt\}"),
        ({"max_prompt_tokens": 0}, "max_prompt_tokens must be at least 1, or null, got 0"),
        ({"answer_batch": 0}, "answer_batch must be at least 1, got 0"),
        ({"min_pixels": 10, "max_pixels": 5}, "min_pixels must be at most max_pixels .5., got 10"),
        ({"vision_rate": 0.0}, "vision_rate must be above 0"),
        ({"sharing": "both"}, "sharing"),
        ({"vision": "thawed"}, "vision"),
    ],
)
def test_settings_out_of_range_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        plugins.build("modalities", {"name": "vision_language", "model": "a/b"} | settings)


@pytest.mark.slow  # most of a second each, or more
def test_a_model_that_is_not_there_or_of_another_kind_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "gpt2"}))
    for model in (tmp_path / "absent", tmp_path):
        with pytest.raises(ConfigError, match=r"modality\.model: (there is no folder|cannot load)"):
            VisionLanguage(model=str(model)).prepare(Placement(torch.device("cpu"), torch.float32))


def test_image_tokens_stand_on_three_axes() -> None:
    """Qwen2-VL (arXiv 2409.12191): three words, an image of 2 x 3 tokens, five words; by hand."""
    network = vision_twins.policy().encoder.model.model
    kinds = torch.tensor([0] * 3 + [1] * 6 + [0] * 5)
    grid = {"image_grid_thw": torch.tensor([[1, 4, 6]])}
    positions = rope_positions(network, torch.zeros(14, dtype=torch.int64), kinds, grid, None)
    words = [6, 7, 8, 9, 10]
    assert positions.tolist() == [
        [0, 1, 2, 3, 3, 3, 3, 3, 3, *words],
        [0, 1, 2, 3, 3, 3, 4, 4, 4, *words],
        [0, 1, 2, 3, 4, 5, 3, 4, 5, *words],
    ]


def test_other_numbers_of_image_tokens_and_features_are_refused_with_both() -> None:
    encoder = vision_twins.policy().encoder
    grid = {"image_grid_thw": torch.tensor([[1, 4, 6]])}
    encoder._check_grid(PROMPTS[1], torch.tensor([0, 1, 1, 1, 1, 1, 1]), grid)
    with pytest.raises(ConfigError, match="has 5 image tokens for 6 image features of 1 images"):
        encoder._check_grid(PROMPTS[1], torch.tensor([0, 1, 1, 1, 1, 1, 0]), grid)
