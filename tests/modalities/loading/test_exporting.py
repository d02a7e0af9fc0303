"""An exported LoRA in diffusers' own loaders: stock pipelines then generate what the trained weights in place do."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from mmrl.core.contracts import ConfigError
from mmrl.modalities.loading.exporting import (
    FILE,
    file_in,
    loading_code,
    save_lora,
    without_paths,
    write_for_comfyui,
)
from mmrl.modalities.loading.lora import Lora
from mmrl.modalities.tiny.pipelines.families import FAMILIES, tiny_pipeline


def generated(pipeline: Any, family: str) -> Tensor:
    """Two steps of the stock pipeline."""
    sizes = dict(FAMILIES[family].call) | dict(FAMILIES[family].plain)
    pipeline.set_progress_bar_config(disable=True)
    found: Tensor = pipeline(
        prompt="a cat",
        **{**sizes, "num_inference_steps": 2, "output_type": "pt"},
        generator=torch.Generator().manual_seed(0),
        return_dict=False,
    )[0]
    return found


def adapted(family: str, **settings: Any) -> Any:
    """A tiny pipeline whose networks have an adapter that changes them, of alpha / rank 3."""
    pipeline = tiny_pipeline(family, 0)
    generator = torch.Generator().manual_seed(1)
    for name in FAMILIES[family].networks:
        network = getattr(pipeline, name)
        Lora(rank=2, alpha=6, **settings).add_to(network, None, name)
        for parameter in network.parameters():
            if parameter.requires_grad:
                parameter.data.normal_(std=0.2, generator=generator)
    return pipeline


def exported(pipeline: Any, family: str, folder: Path) -> list[str]:
    names = FAMILIES[family].networks
    save_lora(pipeline, {name: getattr(pipeline, name) for name in names}, folder)
    return loading_code(pipeline, names)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "by_pipeline"),
    [("flux", True), ("qwen_image", True), ("wan21", True), ("longcat_image", False)],
)
def test_the_stock_pipeline_generates_with_an_export_what_the_weights_in_place_do(
    family: str, by_pipeline: bool, tmp_path: Path
) -> None:
    pipeline = adapted(family)
    code = exported(pipeline, family, tmp_path)
    ours = generated(pipeline, family)
    stock = tiny_pipeline(family, 0)
    assert (generated(stock, family) - ours).abs().max() > 1e-3
    exec("\n".join(code), {"pipe": stock, "folder": str(tmp_path)})
    assert any("load_lora_weights" in line for line in code) == by_pipeline
    torch.testing.assert_close(generated(stock, family), ours, atol=1e-5, rtol=1e-5)
    again = tiny_pipeline(family, 0)
    Lora(rank=2, path=str(tmp_path)).add_to(again.transformer, None, "transformer")
    assert again.transformer.peft_config["default"].lora_alpha == 6
    torch.testing.assert_close(generated(again, family), ours, atol=1e-5, rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "settings"), [("flux", {"use_dora": True, "use_rslora": True}), ("wan21", {"use_rslora": True})]
)
def test_the_stock_pipeline_and_a_further_run_load_a_dora_and_an_rslora(
    family: str, settings: dict[str, Any], tmp_path: Path
) -> None:
    pipeline = adapted(family, **settings)
    code = exported(pipeline, family, tmp_path)
    ours, stock, again = generated(pipeline, family), tiny_pipeline(family, 0), tiny_pipeline(family, 0)
    exec("\n".join(code), {"pipe": stock, "folder": str(tmp_path)})
    torch.testing.assert_close(generated(stock, family), ours, atol=1e-5, rtol=1e-5)
    Lora(path=str(tmp_path), **settings).add_to(again.transformer, None, "transformer")
    torch.testing.assert_close(generated(again, family), ours, atol=1e-5, rtol=1e-5)
    target = tmp_path / "comfyui" / "lora.safetensors"
    if "use_dora" in settings:
        with pytest.raises(ConfigError, match=r"a DoRA .* has no file for ComfyUI"):
            write_for_comfyui(tmp_path / FILE, target)
        return
    write_for_comfyui(tmp_path / FILE, target)
    stock = tiny_pipeline(family, 0)
    stock.load_lora_weights(target.parent, weight_name=target.name)
    torch.testing.assert_close(generated(stock, family), ours, atol=1e-5, rtol=1e-5)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:There are modules in")
@pytest.mark.parametrize("use_dora", [False, True])
def test_a_further_run_in_half_precision_begins_with_the_adapter_unrounded(use_dora: bool, tmp_path: Path) -> None:
    pipeline, again = adapted("flux", use_dora=use_dora), tiny_pipeline("flux", 0)
    exported(pipeline, "flux", tmp_path)
    again.transformer.to(torch.bfloat16)
    Lora(path=str(tmp_path), use_dora=use_dora).add_to(again.transformer, None, "transformer")
    ours, theirs = (
        {name: tensor for name, tensor in one.transformer.named_parameters() if "lora_" in name}
        for one in (pipeline, again)
    )
    assert ours and ours.keys() == theirs.keys()
    assert all(torch.equal(theirs[name], tensor) for name, tensor in ours.items())


@pytest.mark.slow
@pytest.mark.parametrize("family", ["flux", "qwen_image", "wan21"])
def test_the_file_for_comfyui_means_the_same_to_the_stock_pipeline(family: str, tmp_path: Path) -> None:
    pipeline = adapted(family)
    exported(pipeline, family, tmp_path)
    write_for_comfyui(tmp_path / FILE, tmp_path / "comfyui" / "lora.safetensors")
    stock = tiny_pipeline(family, 0)
    stock.load_lora_weights(tmp_path / "comfyui", weight_name="lora.safetensors")
    torch.testing.assert_close(generated(stock, family), generated(pipeline, family), atol=1e-5, rtol=1e-5)


@pytest.mark.slow
def test_a_second_network_has_a_file_of_its_own(tmp_path: Path) -> None:
    pipeline = adapted("wan22")
    code = exported(pipeline, "wan22", tmp_path)
    assert file_in(tmp_path, "transformer") == FILE
    own = file_in(tmp_path, "transformer_2")
    assert own == "transformer_2_lora_weights.safetensors"
    assert f'pipe.transformer_2.load_lora_adapter(folder, prefix="transformer_2", weight_name="{own}")' in code


@pytest.mark.slow
def test_the_file_for_comfyui_holds_the_names_it_reads_and_the_scale(tmp_path: Path) -> None:
    from safetensors.torch import load_file

    pipeline = adapted("wan21")
    exported(pipeline, "wan21", tmp_path)
    write_for_comfyui(tmp_path / FILE, tmp_path / "lora.safetensors")
    ours, theirs = load_file(tmp_path / FILE), load_file(tmp_path / "lora.safetensors")
    assert len(ours) == len(theirs)
    for own, other in (("attn1.to_q", "self_attn.q"), ("attn2.to_out.0", "cross_attn.o")):
        for factor, scale in (("lora_A", 1), ("lora_B", 3)):  # alpha / rank is 6 / 2
            key = f"diffusion_model.blocks.0.{other}.{factor}.weight"
            torch.testing.assert_close(theirs[key], ours[f"transformer.blocks.0.{own}.{factor}.weight"] * scale)
    with pytest.raises(ConfigError, match="no LoRA of one network"):
        write_for_comfyui(tmp_path / "lora.safetensors", tmp_path / "again.safetensors")


@pytest.mark.slow
def test_a_folder_without_an_adapter_of_the_network_is_refused(tmp_path: Path) -> None:
    pipeline = adapted("wan22")
    exported(pipeline, "wan22", tmp_path)
    (tmp_path / file_in(tmp_path, "transformer_2")).unlink()
    with pytest.raises(ConfigError, match="holds no adapter of the part 'transformer_2'"):
        Lora(path=str(tmp_path)).add_to(tiny_pipeline("wan22", 0).transformer_2, None, "transformer_2")


def test_a_saved_pipeline_does_not_say_where_its_parts_came_from(tmp_path: Path) -> None:
    part, other, listed = tmp_path / "part", tmp_path / "other.json", tmp_path / "list.json"
    part.mkdir()
    (part / "config.json").write_text(json.dumps({"_class_name": "A", "_name_or_path": "/home/me/model", "width": 3}))
    source, index = "pretrained_model_name_or_path", tmp_path / "modular_model_index.json"
    parts = {"a": ["diffusers", "A", {source: str(tmp_path)}], "b": ["diffusers", "B", {source: "some/name"}]}
    index.write_text(json.dumps(parts | {"_name": "c"}))
    other.write_text('{"é":   1}', encoding="utf-8")
    listed.write_text('["_name_or_path"]')
    without_paths(tmp_path)
    assert json.loads((part / "config.json").read_text()) == {"_class_name": "A", "width": 3}
    read = json.loads(index.read_text())
    assert read == parts | {"a": ["diffusers", "A", {source: "."}], "_name": "c"}
    assert other.read_text(encoding="utf-8") == '{"é":   1}' and listed.read_text() == '["_name_or_path"]'
