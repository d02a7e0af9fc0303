"""Stable Diffusion 3 and 3.5: a diffusers pipeline as a policy."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

import torch
from pydantic import Field
from torch import Tensor

from .flow.decisions import Conditioning
from .flow.diffusers_policy import PipelinePolicy
from .flow.usage import Call, Grid
from .loading.hub import autocast


@dataclass(kw_only=True)
class StableDiffusion3(PipelinePolicy):
    """A `StableDiffusion3Pipeline` (Esser et al. 2024, arXiv 2403.03206), by hub name or folder, full or with LoRA."""

    title: ClassVar[tuple[str, str]] = ("sd3", "Stable Diffusion 3")
    pipeline_class: ClassVar[str] = "StableDiffusion3Pipeline"
    network: ClassVar[str] = "transformer"
    encoders: ClassVar[tuple[str, ...]] = ("text_encoder", "text_encoder_2", "text_encoder_3")
    attention_layers: ClassVar[tuple[str, ...]] = (
        "attn.to_q", "attn.to_k", "attn.to_v", "attn.to_out.0",
        "attn.add_q_proj", "attn.add_k_proj", "attn.add_v_proj", "attn.to_add_out",
    )  # fmt: skip
    pixel_multiple: ClassVar[int] = 16  # the VAE's 8 times the patch's 2

    max_sequence_length: Annotated[int, Field(ge=1)] = 256  # T5 tokens of a prompt; longer prompts are cut

    @property
    def num_text_tokens(self) -> int | None:
        return self.max_sequence_length

    def freeze_unused(self, network: Any) -> None:
        """Freezes the text queries of the last block: its text output is not used, so they never get a gradient."""
        last = f"transformer_blocks.{network.config.num_layers - 1}.attn."
        for name, parameter in network.named_parameters():
            if name.startswith((f"{last}add_q_proj", f"{last}norm_added_q")):
                parameter.requires_grad_(False)

    def tiny(self, seed: int, folder: Path) -> Self:
        """Returns the same settings on a random twin of small sizes: 32 x 32 pixels, all three text encoders."""
        from .tiny.sd3 import write_tiny_sd3

        write_tiny_sd3(folder, seed)
        return self.twin(folder, max_sequence_length=min(self.max_sequence_length, 64))  # the shipped prompts fit

    def grid(self, kind: Literal["pipeline", "uniform"], num_steps: int) -> list[float]:
        """Returns the num_steps + 1 noise levels of a grid.

        `pipeline`: those of `pipe(num_inference_steps=num_steps)`, its last step at the shifted sigma_min included.
        `uniform`: linspace(1, 1/T, T), shifted once, then 0 (the grid of the model's own training).
        """
        scheduler = type(self._pipeline.scheduler).from_config(self._pipeline.scheduler.config)
        extra: dict[str, Any] = {"mu": self._dynamic_shift()} if scheduler.config.get("use_dynamic_shifting") else {}
        if kind == "uniform":
            extra["sigmas"] = torch.linspace(1, 1 / num_steps, num_steps).tolist()
        scheduler.set_timesteps(num_steps, device="cpu", **extra)
        return [float(sigma) for sigma in scheduler.sigmas]

    def call(self, plan: Any, grid: Grid | None) -> Call:
        call = super().call(plan, grid)
        arguments = {**call.settings, "max_sequence_length": str(self.max_sequence_length)}
        if grid == "uniform":  # shifted by the pipeline, as the grid is
            steps = arguments["num_inference_steps"]
            arguments["sigmas"] = f"[1 - step / {steps} for step in range({steps})]"
        return Call(arguments)

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
        with self.encoders_on_device():
            states, _, pooled, _ = self._pipeline.encode_prompt(
                prompt=texts,
                prompt_2=None,
                prompt_3=None,
                device=self.device,
                do_classifier_free_guidance=False,
                max_sequence_length=self.max_sequence_length,
            )
        return Conditioning((states, pooled))

    @property
    def encoding_settings(self) -> tuple[int, ...]:
        return (self.max_sequence_length,)

    def num_read(self, tokenizer: str) -> int:
        return self.max_sequence_length if tokenizer == "tokenizer_3" else super().num_read(tokenizer)

    def _dynamic_shift(self) -> float:
        """Returns mu, linear in the number of image tokens, as the pipeline computes it."""
        config, patch = self._pipeline.scheduler.config, self._pipeline.patch_size
        _, height, width = self.latent_shape
        tokens = (height // patch) * (width // patch)
        low, high = config["base_image_seq_len"], config["max_image_seq_len"]
        slope = (config["max_shift"] - config["base_shift"]) / (high - low)
        return float(config["base_shift"] + slope * (tokens - low))
