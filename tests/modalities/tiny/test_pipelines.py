"""The tiny pipelines are saved, loaded and run as diffusers' own, and their prompts, guidance and pictures matter."""

import copy
import inspect
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import diffusers
import pytest
import torch
from diffusers.pipelines.qwenimage import pipeline_qwenimage_edit, pipeline_qwenimage_edit_plus
from diffusers.utils import logging
from PIL import Image

from mmrl.core.contracts import ConfigError
from mmrl.modalities.tiny.pipelines.families import FAMILIES, tiny_pipeline, write_tiny_pipeline
from mmrl.modalities.tiny.pipelines.family import PipelineFamily
from tests.parameters import in_one_test

_diffusers: Any = diffusers
ALIKE = 1e-5  # pixels in [0, 1]: loaded weights lie elsewhere in memory, which changes the order of sums
# Warnings of diffusers' own code: Chroma's positions, MiniMax-H3's sound, LTX-2.5's decoder without a compiler, and
# Cosmos 2's list of videos.
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*weight_norm. is deprecated:FutureWarning"),
    pytest.mark.filterwarnings("ignore:.*FluxPosEmbed:FutureWarning"),
    pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile:UserWarning"),
    pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning"),
]


@pytest.fixture(autouse=True)
def _without_progress_bars() -> Iterator[None]:
    logging.disable_progress_bar()
    yield
    logging.enable_progress_bar()


def picture(seed: int, side: int) -> Image.Image:
    values = torch.rand(side, side, 3, generator=torch.Generator().manual_seed(seed))
    return Image.fromarray(values.mul(255).byte().numpy())


def load(family: PipelineFamily, folder: Path) -> Any:
    if not family.modular:
        pipeline = _diffusers.DiffusionPipeline.from_pretrained(folder)
    else:
        pipeline = _diffusers.ModularPipeline.from_pretrained(folder)
        pipeline.load_components()
        for block in family.removed_blocks:
            pipeline._blocks.sub_blocks.pop(block)
    pipeline.set_progress_bar_config(disable=True)
    return pipeline


def guide(family: PipelineFamily, pipeline: Any, scale: float) -> Any:
    """A copy of the pipeline whose guiders, where it has some, guide with the scale."""
    guided = copy.copy(pipeline)
    for name in (family.guider, family.second_guider):
        if name is not None:
            guider = type(getattr(pipeline, name))(guidance_scale=scale)
            guided.update_components(**{name: guider}) if family.modular else setattr(guided, name, guider)
    return guided


def run(
    family: PipelineFamily,
    pipeline: Any,
    prompt: str,
    *,
    is_guided: bool = False,
    num_steps: int = 2,
    pictures: int = 0,
) -> torch.Tensor:
    """Pixels in [0, 1], of one image [C, H, W] or video [F, C, H, W]; `pictures`: the seed of the condition images."""
    conditions = [picture(pictures + n, family.condition_side) for n in range(family.conditions)]
    given = {**family.call, **(family.guided if is_guided else family.plain)}
    for name in family.condition_arguments:
        own = [one for one, other in zip(conditions, family.condition_arguments, strict=True) if other == name]
        given[name] = own if len(own) > 1 else own[0]
    if family.modular:
        given["output"] = f"{family.makes}s"
    with family.small():
        output = guide(family, pipeline, 3.0 if is_guided else 1.0)(
            prompt=prompt,
            num_inference_steps=num_steps,
            generator=torch.Generator().manual_seed(3),
            output_type="pt",
            **given,
        )
    media = output if family.modular else output[0]
    one = media if family.makes == "video" and media.ndim == 4 else media[0]  # Cosmos 3 returns one video, not a list
    return torch.as_tensor(one).float()


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def parts(pipeline: Any) -> dict[str, str]:
    return {name: type(part).__name__ for name, part in pipeline.components.items() if part is not None}


@in_one_test("name", FAMILIES)
def test_a_family_declares_what_fits_together(name: str) -> None:
    family = FAMILIES[name]
    assert inspect.getdoc(family.build), "the paper or model card"
    assert family.makes in ("image", "video") and family.networks
    assert ("num_frames" in family.call) == (family.makes == "video")
    assert max(family.call.get("height", 0), family.call.get("width", 0)) <= 128
    assert not set(family.condition_arguments) & {*family.call, *family.plain, *family.guided}
    assert not set(family.plain) & set(family.call), "the argument would be set twice"
    assert set(family.plain) <= set(family.guided) | {"true_cfg_scale", "guidance_rescale", "audio_guidance_rescale"}
    assert family.modular or not family.removed_blocks
    assert family.guider is not None or family.second_guider is None


def test_there_are_as_many_kinds_as_models_train_with() -> None:
    assert sum(family.makes == "video" for family in FAMILIES.values()) >= 5
    assert sum(family.conditions > 0 for family in FAMILIES.values()) >= 4
    assert sum(family.modular for family in FAMILIES.values()) >= 4
    assert len(FAMILIES) >= 49


def test_a_family_without_a_twin_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no tiny pipeline of 'fluxx'; there are those of .*flux"):
        write_tiny_pipeline("fluxx", tmp_path, 0)


def test_building_leaves_the_global_generator_alone() -> None:
    before = torch.get_rng_state()
    tiny_pipeline("z_image", 0)
    torch.testing.assert_close(torch.get_rng_state(), before, rtol=0, atol=0)


def test_a_built_pipeline_is_frozen_and_in_eval_mode() -> None:
    pipeline = tiny_pipeline("flux", 0)
    for part in (pipeline.transformer, pipeline.vae, pipeline.text_encoder, pipeline.text_encoder_2):
        assert not part.training
        assert not any(weight.requires_grad for weight in part.parameters())


def test_small_sizes_last_as_long_as_the_context() -> None:
    calculate = pipeline_qwenimage_edit.calculate_dimensions
    with FAMILIES["qwen_image_edit"].small():
        assert pipeline_qwenimage_edit.calculate_dimensions(1024 * 1024, 1.0)[:2] == (32, 32)
    assert pipeline_qwenimage_edit.calculate_dimensions is calculate
    with FAMILIES["qwen_image_edit_plus"].small():
        assert pipeline_qwenimage_edit_plus.VAE_IMAGE_SIZE == 32 * 32
    assert pipeline_qwenimage_edit_plus.VAE_IMAGE_SIZE == 1024 * 1024
    kind = _diffusers.Kandinsky5T2IPipeline
    with FAMILIES["kandinsky5_t2i"].small():
        assert kind.resolutions.fget(None) == [(64, 64)]
    assert not hasattr(kind, "resolutions")


@pytest.mark.slow  # builds, writes, loads and runs twice
@pytest.mark.parametrize("name", ["flux", "wan21"])
def test_what_is_saved_loads_and_makes_the_same(name: str, tmp_path: Path) -> None:
    family, built = FAMILIES[name], tiny_pipeline(name, 0)
    write_tiny_pipeline(name, tmp_path, 0)
    loaded = load(family, tmp_path)
    assert parts(loaded) == parts(built)
    made = run(family, built, "a red dog")
    torch.testing.assert_close(run(family, loaded, "a red dog"), made, rtol=0, atol=ALIKE)
    assert made.std() > 0.02 and made.min() >= 0 and made.max() <= 1


@pytest.mark.slow  # two ways of loading
def test_a_modular_pipeline_loads_from_where_its_folder_was_moved(tmp_path: Path) -> None:
    family = FAMILIES["flux3"]
    write_tiny_pipeline("flux3", tmp_path / "first", 0)
    (tmp_path / "first").rename(tmp_path / "second")
    loaded = load(family, tmp_path / "second")
    made = run(family, tiny_pipeline("flux3", 0), "a red dog")
    torch.testing.assert_close(run(family, loaded, "a red dog"), made, rtol=0, atol=ALIKE)


def _built_and_loaded(name: str, folder: Path) -> SimpleNamespace:
    family = FAMILIES[name]
    write_tiny_pipeline(name, folder, 0)
    return SimpleNamespace(family=family, built=tiny_pipeline(name, 0), loaded=load(family, folder))


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", FAMILIES)
def test_every_family_is_whole(name: str, tmp_path: Path) -> None:
    twin = _built_and_loaded(name, tmp_path / "first")
    assert parts(twin.loaded) == parts(twin.built)
    assert set(twin.family.networks) <= set(parts(twin.built))
    torch.manual_seed(99)  # the caller's own generator plays no part
    write_tiny_pipeline(name, tmp_path / "second", 0)
    assert files(tmp_path / "second") == files(tmp_path / "first")
    write_tiny_pipeline(name, tmp_path / "third", 1)
    first, third = files(tmp_path / "first"), files(tmp_path / "third")
    assert {path for path in first if first[path] != third[path]} == {p for p in first if p.endswith(".safetensors")}


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", FAMILIES)
def test_every_familys_inputs_reach_its_pixels(name: str, tmp_path: Path) -> None:
    twin = _built_and_loaded(name, tmp_path)
    family, pipeline = twin.family, twin.built
    made = run(family, pipeline, "a red dog")
    assert made.shape[-2:] == (family.call.get("height", 16), family.call.get("width", 16))
    assert made.ndim == (3 if family.makes == "image" else 4)
    assert made.isfinite().all() and made.std() > 0.02 and made.min() >= 0 and made.max() <= 1

    def differs(other: torch.Tensor) -> bool:
        return float((other - made).abs().mean()) > 1e-4  # what float32's rounding changes is below 1e-6

    torch.testing.assert_close(run(family, twin.loaded, "a red dog"), made, rtol=0, atol=ALIKE)
    assert differs(run(family, pipeline, "two blue cats on a table"))
    assert differs(run(family, pipeline, "a red dog", num_steps=3))
    if family.guided or family.guider:
        guided = run(family, pipeline, "a red dog", is_guided=True)
        assert guided.isfinite().all() and differs(guided)
    if family.conditions:
        assert differs(run(family, pipeline, "a red dog", pictures=7))
