"""Which argument of a pipeline takes which image of a prompt, masks, and messages for settings that do not fit."""

from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import torch
from PIL import Image

from mmrl.core.contracts import ConfigError, Placement
from mmrl.core.data import Prompt
from mmrl.media.pictures import Role
from mmrl.media.roles import fits, role_of
from mmrl.modalities.diffusers_pipeline import DiffusersPipeline
from mmrl.modalities.flow.driven import conditions
from mmrl.modalities.flow.driven.arguments import Arguments
from tests.parameters import in_one_test
from tests.rewards.pictures import Shown

TAKES = frozenset(
    {"prompt", "image", "mask_image", "last_image", "control_image", "image_embeds", "controlnet_conditioning_scale"}
)


def plain(value: int) -> Shown:
    return Shown(Image.new("RGB", (8, 8), (value,) * 3))


def prompt_of(*roles: Role, count: int | None = None) -> Prompt:
    """A prompt whose image n is of the grey level n; without roles `count` images."""
    return Prompt("a", tuple(plain(n) for n in range(count if count is not None else len(roles))), roles=roles)


def levels(value: Any) -> Any:
    return [levels(one) for one in value] if isinstance(value, list) else value.getpixel((0, 0))[0]


def test_the_arguments_that_take_pictures_are_known_by_their_names() -> None:
    assert conditions.picture_arguments(TAKES) == ["control_image", "image", "last_image", "mask_image"]
    names = ("image", "images", "mask_image", "control_mask", "control_image", "last_image", "image_reference")
    assert [role_of(name) for name in names] == ["image", "image", "mask", "mask", "control", "last_image", "reference"]
    for role in get_args(Role):
        assert fits(role, "image") == (role in ("image", "reference"))


def test_images_go_to_their_arguments_in_the_order_of_the_row() -> None:
    found = conditions.pictures_of(prompt_of(count=4), ("image", "control_image", "image", "last_image"), None)
    assert {name: levels(value) for name, value in found.items()} == {
        "image": [0, 2],
        "control_image": 1,
        "last_image": 3,
    }


def test_images_with_roles_go_where_their_roles_fit() -> None:
    prompt = prompt_of("image", "reference", "last_image", "mask", "control")
    arguments = ("control_image", "last_image", "image", "image", "mask_image")
    found = conditions.pictures_of(prompt, arguments, None)
    assert levels(found["image"]) == [0, 1] and levels(found["last_image"]) == 2 and levels(found["control_image"]) == 4
    assert found["mask_image"].mode == "L"


@in_one_test(
    ("prompt", "names", "count", "reason"),
    [
        (prompt_of(count=2), ("image", "mask_image"), 0, None),
        (prompt_of("image", "mask"), (), 1, None),  # the mask is the rewards'
        (prompt_of(count=0), (), 0, None),
        (prompt_of(count=1), (), 2, "it has 1 image, and condition_images is 2"),
        (prompt_of(count=1), ("image", "mask_image"), 0, "it has 1 image, and conditions is [image, mask_image]"),
        (prompt_of("image", "last_image"), (), 1, "it has 2 images (image, last_image), and condition_images is 1"),
        (prompt_of("image", "image"), ("image", "mask_image"), 0, "it has 2 images (image, image), and conditions is"),
        (prompt_of("mask"), ("control_image",), 0, "it has 1 image (mask), and conditions is [control_image]"),
    ],
)
def test_other_images_than_the_settings_say_are_refused(
    prompt: Prompt, names: tuple[str, ...], count: int, reason: str | None
) -> None:
    found = conditions.refusal(prompt, names, count)
    assert found is None if reason is None else found is not None and found.startswith(reason)


def test_a_refusal_names_the_row() -> None:
    policy = DiffusersPipeline(model="nobody/nothing", conditions=("image", "last_image"))
    row = Prompt("go", (plain(0),), source="clips.jsonl line 7")
    assert str(policy.refusal(row)).startswith(
        "clips.jsonl line 7: prompt 'go': it has 1 image, and conditions is [image,"
    )


def test_a_broken_image_is_named_with_its_row(tmp_path: Path) -> None:
    from mmrl.media.pictures import StoredPicture

    path = tmp_path / "cut.png"
    Image.effect_noise((64, 64), 50).save(path)
    path.write_bytes(path.read_bytes()[:1500])  # the header is whole
    policy = DiffusersPipeline(model="nobody/nothing", condition_images=1)
    row = Prompt("go", (StoredPicture("cut.png", path),), source="edits.jsonl line 3")
    assert policy.refusal(row) is None
    assert str(policy.unreadable(row)).startswith("edits.jsonl line 3: prompt 'go': cannot read the image cut.png")


@pytest.mark.parametrize(
    ("names", "count", "message"),
    [
        (
            ("image", "last_imag"),
            0,
            r"conditions: Pipeline takes no 'last_imag' \(did you mean 'last_image'\?\); it takes",
        ),
        (("prompt",), 0, "conditions: 'prompt' of Pipeline takes no images; it takes images as control_image, image,"),
    ],
)
def test_an_argument_that_takes_no_images_is_refused(names: tuple[str, ...], count: int, message: str) -> None:
    class Pipeline:
        pass

    with pytest.raises(ConfigError, match=message):
        conditions.condition_arguments(Pipeline(), TAKES, names, count)


def test_images_for_a_pipeline_that_takes_none_are_refused() -> None:
    with pytest.raises(
        ConfigError, match="condition_images: object takes no image, and the prompts have 1; set it to 0"
    ):
        conditions.condition_arguments(object(), frozenset({"prompt"}), (), 1)
    with pytest.raises(ConfigError, match="it takes images as control_image: set conditions"):
        conditions.condition_arguments(object(), frozenset({"control_image"}), (), 1)


def test_a_mask_has_one_channel_of_black_and_white_by_the_nearest_pixel() -> None:
    """A smooth resize would make other levels at the border, and move it."""
    pixels = np.zeros((4, 4, 3), dtype=np.uint8)
    pixels[:2, 1:] = 200
    pixels[3, 3] = 127
    mask = np.asarray(conditions.mask_of(Image.fromarray(pixels), (8, 12)))
    assert mask.shape == (12, 8)
    wanted = np.kron(255 * (pixels[..., 0] >= 128), np.ones((3, 2), dtype=int))
    assert np.array_equal(mask, wanted)


def test_the_code_for_a_mask_makes_the_mask_that_the_pipeline_was_given(tmp_path: Path) -> None:
    source = Image.fromarray(np.random.default_rng(0).integers(0, 256, (16, 24, 3), dtype=np.uint8))
    code = conditions.code_of_conditions(("image", "mask_image"), (32, 8))
    assert code["image"] == 'load_image("condition_0.png")'
    made = eval(code["mask_image"], {"load_image": lambda name: {"condition_1.png": source}[name]})
    assert np.array_equal(np.asarray(made), np.asarray(conditions.mask_of(source, (32, 8))))


def test_the_run_gives_condition_images_itself() -> None:
    with pytest.raises(ConfigError, match="'mask_image' is given by the run itself"):
        Arguments.of(object(), TAKES, {"mask_image": 1}, "auto", "", ("mask_image",))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"conditions": ("image", "mask_image"), "condition_images": 1},
            "condition_images is 1, and conditions names 2",
        ),
        ({"removed_blocks": ("upsampler",)}, "removed_blocks are of modular pipelines"),
        ({"num_frames": 9}, "num_frames is of videos"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        DiffusersPipeline(model="nobody/nothing", **settings)


@pytest.mark.slow  # imports diffusers' pipelines
def test_a_family_that_is_not_there_is_named_with_the_nearest(tmp_path: Path) -> None:
    policy = DiffusersPipeline(model="nobody/nothing", family="flux_knotext")
    cpu = Placement(torch.device("cpu"), torch.float32)
    for act in (lambda: policy.prepare(cpu), lambda: policy.tiny(0, tmp_path)):
        with pytest.raises(
            ConfigError, match=r"no family 'flux_knotext' \(did you mean 'flux_kontext'\?\).*list families"
        ):
            act()
    unnamed = DiffusersPipeline(model="Qwen/Qwen-Image-Edit")
    with pytest.raises(ConfigError, match=r"set it, such as qwen_image_edit.*`mmrl list families`"):
        unnamed.tiny(0, tmp_path)


@pytest.mark.slow  # 2 s: a small pipeline is loaded several times
@pytest.mark.filterwarnings("ignore")
def test_what_a_pipeline_does_not_take_or_would_round_is_refused(tmp_path: Path) -> None:
    from dataclasses import replace

    made = DiffusersPipeline(model="", family="flux_fill").tiny(0, tmp_path)
    for changes, message in (
        ({"height": 17}, r"\.height: .* makes images of height 16 where 17 is set; set 16"),
        ({"conditions": ("image", "mask")}, r"takes no 'mask' \(did you mean 'mask_image'\?\)"),
        ({"network": "nothing"}, r"no network 'nothing'; it has .*transformer"),
        ({"output": "video", "num_frames": 5}, r"num_frames: FluxFillPipeline takes no num_frames"),
        ({"output": "video"}, r"output: .* makes outputs of shape \[3, 32, 32\], no videos"),
    ):
        with pytest.raises(ConfigError, match=message):
            replace(made, **changes).prepare(Placement(torch.device("cpu"), torch.float32))
