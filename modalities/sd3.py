"""Stable Diffusion 3 and 3.5: a diffusers pipeline as a policy."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

import torch
from torch import Tensor, nn

from mmrl.contracts import ConfigError, Placement
from mmrl.modalities._flow import FlowPolicy
from mmrl.modalities._lora import Lora
from mmrl.modalities._models import autocast, source_of, without_adapter
from mmrl.modalities._tree import Conditioning
from mmrl.weights import Weights

ATTENTION = ("attn.to_q", "attn.to_k", "attn.to_v", "attn.to_out.0",
             "attn.add_q_proj", "attn.add_k_proj", "attn.add_v_proj", "attn.to_add_out")  # fmt: skip


@dataclass(kw_only=True)
class StableDiffusion3(FlowPolicy):
    """A `StableDiffusion3Pipeline` (Esser et al. 2024, arXiv 2403.03206), by hub name or folder, full or with LoRA.

    Frozen parts are in the run's precision, the VAE in float32, trained weights in float32 under autocast.
    `height` and `width` are in pixels. `offload_text_encoders` keeps the encoders on the CPU but for new prompts.
    `attention` names a backend of diffusers; `compile` runs torch.compile on the transformer.
    """

    model_file: ClassVar[str] = "model_index.json"  # what a folder of such a model holds

    model: str
    height: int = 512
    width: int = 512
    max_sequence_length: int = 256  # of T5 tokens
    lora: Lora | None = None
    gradient_checkpointing: bool = False
    offload_text_encoders: bool = False
    attention: str | None = None
    compile: bool = False
    _pipeline: Any = field(default=None, init=False, repr=False)
    _weights: Weights | None = field(default=None, init=False, repr=False)
    _grids: dict[tuple[str, int], list[float]] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.height % 16 or self.width % 16 or min(self.height, self.width) < 16:  # VAE 8, patch 2
            raise ValueError(f"height and width must be multiples of 16 pixels, got {self.height} x {self.width}")
        if self.max_sequence_length < 1:
            raise ValueError(f"max_sequence_length must be at least 1, got {self.max_sequence_length}")

    def prepare(self, placement: Placement) -> None:
        """Loads the pipeline. Raises ConfigError when the model cannot be found or is of another kind."""
        self._placement = placement
        trained_dtype = torch.float32 if self.lora is None else placement.dtype
        self._pipeline = _load(self.model, placement, trained_dtype)
        transformer = self._pipeline.transformer.requires_grad_(False).eval()
        if self.lora is None:
            transformer.requires_grad_(True)
        else:
            self.lora.add_to(transformer, ATTENTION)
        if self.gradient_checkpointing:
            transformer.enable_gradient_checkpointing()
        if self.attention is not None:
            transformer.set_attention_backend(self.attention)
        if self.compile:
            transformer.compile()
        _freeze_unused(transformer)
        trained = {f"transformer.{n}": p for n, p in transformer.named_parameters() if p.requires_grad}
        off = None if self.lora is None or self.lora.path is not None else partial(without_adapter, transformer)
        self._weights = Weights(trained, adapter_off=off)

    def tiny(self, seed: int, folder: Path) -> Self:
        """The same settings on a random twin of small sizes: 32 x 32 pixels, all three text encoders."""
        from mmrl.modalities._tiny_sd3 import write_tiny_sd3

        write_tiny_sd3(folder, seed)
        lora = None if self.lora is None else replace(self.lora, rank=min(self.lora.rank, 4), path=None)
        length = min(self.max_sequence_length, 64)  # the shipped prompts fit
        return replace(
            self, model=str(folder), height=32, width=32, max_sequence_length=length, lora=lora, compile=False
        )

    @property
    def latent_shape(self) -> tuple[int, ...]:
        factor = self._pipeline.vae_scale_factor
        return (self._pipeline.transformer.config.in_channels, self.height // factor, self.width // factor)

    @property
    def device(self) -> torch.device:
        assert self._placement is not None, "prepare() comes first"
        return self._placement.device

    @property
    def weights(self) -> Weights:
        assert self._weights is not None, "prepare() comes first"
        return self._weights

    def modules(self) -> Mapping[str, nn.Module]:
        return {"transformer": self._pipeline.transformer}

    def sigmas(self, kind: Literal["pipeline", "uniform"], num_steps: int) -> list[float]:
        """`pipeline`: what `pipe(num_inference_steps=num_steps)` uses, its last step at the shifted sigma_min included.

        `uniform`: linspace(1, 1/T, T), shifted once, then 0 (the grid of the model's own training).
        """
        if (kind, num_steps) not in self._grids:
            self._grids[kind, num_steps] = self._grid(kind, num_steps)
        return self._grids[kind, num_steps]

    def _grid(self, kind: str, num_steps: int) -> list[float]:
        scheduler = type(self._pipeline.scheduler).from_config(self._pipeline.scheduler.config)
        extra: dict[str, Any] = {"mu": self._dynamic_shift()} if scheduler.config.get("use_dynamic_shifting") else {}
        if kind == "uniform":
            extra["sigmas"] = torch.linspace(1, 1 / num_steps, num_steps).tolist()
        scheduler.set_timesteps(num_steps, device="cpu", **extra)
        return [float(sigma) for sigma in scheduler.sigmas]

    def velocity(self, latents: Tensor, sigma: Tensor, conditioning: Conditioning) -> Tensor:
        assert self._placement is not None
        dtype = self._placement.dtype
        with autocast(self._placement):
            predicted = self._pipeline.transformer(
                hidden_states=latents.to(dtype),
                timestep=sigma * 1000,  # not truncated to an integer
                encoder_hidden_states=conditioning.tensors[0],
                pooled_projections=conditioning.tensors[1],
                return_dict=False,
            )[0]
        return predicted.float()  # type: ignore[no-any-return]

    def encode_prompts(self, texts: list[str]) -> Conditioning:
        with self._encoders_on_device():
            states, _, pooled, _ = self._pipeline.encode_prompt(
                prompt=texts,
                prompt_2=None,
                prompt_3=None,
                device=self.device,
                do_classifier_free_guidance=False,
                max_sequence_length=self.max_sequence_length,
            )
        return Conditioning((states, pooled))

    def decode_latents(self, latents: Tensor) -> Tensor:
        vae = self._pipeline.vae
        images = vae.decode(latents.float() / vae.config.scaling_factor + vae.config.shift_factor, return_dict=False)[0]
        return (images / 2 + 0.5).clamp(0, 1).contiguous()  # type: ignore[no-any-return]

    def encode_images(self, images: Tensor) -> Tensor:
        vae = self._pipeline.vae
        posterior = vae.encode(images.to(self.device).float() * 2 - 1).latent_dist
        return (posterior.mean - vae.config.shift_factor) * vae.config.scaling_factor  # type: ignore[no-any-return]

    def export(self, folder: Path) -> None:
        """Writes the weights now in place: a LoRA for `pipe.load_lora_weights`, or the whole pipeline's folder."""
        transformer = self._pipeline.transformer
        if self.lora is None:
            self._pipeline.save_pretrained(folder)
            return
        from peft.utils import get_peft_model_state_dict

        layers = {name: tensor.contiguous() for name, tensor in get_peft_model_state_dict(transformer).items()}
        config = transformer.peft_config["default"]
        self._pipeline.save_lora_weights(
            folder, transformer_lora_layers=layers, transformer_lora_adapter_metadata=config.to_dict()
        )

    @contextmanager
    def _encoders_on_device(self) -> Iterator[None]:
        encoders = [self._pipeline.text_encoder, self._pipeline.text_encoder_2, self._pipeline.text_encoder_3]
        for encoder in encoders:
            if encoder is not None:
                encoder.to(self.device)
        try:
            yield
        finally:
            for encoder in encoders:
                if encoder is not None and self.offload_text_encoders:
                    encoder.to("cpu")

    def _dynamic_shift(self) -> float:
        """mu, linear in the number of image tokens, as the pipeline computes it."""
        config, patch = self._pipeline.scheduler.config, self._pipeline.patch_size
        _, height, width = self.latent_shape
        tokens = (height // patch) * (width // patch)
        low, high = config["base_image_seq_len"], config["max_image_seq_len"]
        slope = (config["max_shift"] - config["base_shift"]) / (high - low)
        return float(config["base_shift"] + slope * (tokens - low))


def _load(model: str, placement: Placement, transformer_dtype: torch.dtype) -> Any:
    from diffusers import StableDiffusion3Pipeline
    from diffusers.utils import logging
    from transformers.utils import logging as transformers_logging

    logging.disable_progress_bar()
    transformers_logging.disable_progress_bar()
    source = source_of(model, "modalities.sd3.model", "diffusers", StableDiffusion3.model_file)
    try:
        absent = _absent(Path(source)) if Path(source).is_dir() else {}
        dtypes = {"transformer": transformer_dtype, "vae": torch.float32, "default": placement.dtype}
        pipeline = StableDiffusion3Pipeline.from_pretrained(source, dtype=dtypes, **absent)
    except (OSError, ValueError, TypeError) as error:
        raise ConfigError(f"modalities.sd3.model: cannot load {model!r} as Stable Diffusion 3: {error}") from error
    pipeline.set_progress_bar_config(disable=True)
    for part in (pipeline.transformer, pipeline.vae, pipeline.text_encoder, pipeline.text_encoder_2):
        part.requires_grad_(False).eval()
    if pipeline.text_encoder_3 is not None:
        pipeline.text_encoder_3.requires_grad_(False).eval()
    pipeline.transformer.to(placement.device)
    # channels_last halves the time of small convolutions on CPUs and does not hurt elsewhere
    pipeline.vae.to(placement.device, memory_format=torch.channels_last)
    return pipeline


def _freeze_unused(transformer: Any) -> None:
    """The last block throws its text output away, so its text queries reach nothing and never get a gradient."""
    last = f"transformer_blocks.{transformer.config.num_layers - 1}.attn."
    for name, parameter in transformer.named_parameters():
        if name.startswith((f"{last}add_q_proj", f"{last}norm_added_q")):
            parameter.requires_grad_(False)


def _absent(folder: Path) -> dict[str, None]:
    """The parts that a local pipeline was saved without; diffusers wants to be told of a missing T5."""
    index = folder / "model_index.json"
    if not index.is_file():
        raise ValueError("it has no model_index.json")
    parts = json.loads(index.read_text(encoding="utf-8"))
    if parts.get("_class_name") != "StableDiffusion3Pipeline":
        raise ValueError(f"its model_index.json names {parts.get('_class_name')!r}")
    return {name: None for name, origin in parts.items() if origin == [None, None]}
