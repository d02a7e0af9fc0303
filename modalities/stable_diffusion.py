"""Stable Diffusion 1 and 2: a diffusers pipeline of constant variance as a policy on a flow's latents."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, Literal, Self

import torch
from pydantic import Field
from torch import Tensor

from mmrl.core.contracts import ConfigError, Placement
from mmrl.core.data import Outputs, Prompt, Rollout
from mmrl.core.declarations import PolicyDeclaration
from mmrl.core.keys import GroupKey

from .flow.decisions import Conditioning
from .flow.diffusers_policy import PipelinePolicy
from .flow.usage import Call, Grid
from .flow.variance_preserving import NoiseSchedule, constant_variance, flow_scale, last_level
from .loading.hub import autocast


@dataclass(kw_only=True)
class StableDiffusion(PipelinePolicy):
    """A `StableDiffusionPipeline` (Rombach et al. 2022, arXiv 2112.10752) that predicts noise, v or the clean latent.

    Its latents are kept in the scale of a flow (see `flow/variance_preserving.py`), and turned back for the network
    and, where a grid ends above 0, for decoding. The network is called at the timestep with the nearest noise level.
    """

    title: ClassVar[tuple[str, str]] = ("stable_diffusion", "Stable Diffusion 1 or 2")
    pipeline_class: ClassVar[str] = "StableDiffusionPipeline"
    other_classes: ClassVar[tuple[str, ...]] = ("LatentConsistencyModelPipeline",)  # of the same parts
    without: ClassVar[Mapping[str, Any]] = MappingProxyType(
        {"safety_checker": None, "feature_extractor": None, "requires_safety_checker": False}
    )
    network: ClassVar[str] = "unet"
    encoders: ClassVar[tuple[str, ...]] = ("text_encoder",)
    attention_layers: ClassVar[tuple[str, ...]] = ("to_q", "to_k", "to_v", "to_out.0")
    pixel_multiple: ClassVar[int] = 8

    # The guidance scale that the network takes as an input (`time_cond_proj_dim` of its config; LCM Dreamshaper: 8).
    # The sampler's guidance_scale, for guidance by a second call, then stays 1. null: the network has no such input.
    embedded_guidance: Annotated[float, Field(ge=1)] | None = None
    _schedule: NoiseSchedule | None = field(default=None, init=False, repr=False)

    @property
    def declaration(self) -> PolicyDeclaration:
        """Returns what the family provides: a checkpoint's own grid may end above 0, and its timesteps have levels."""
        return replace(super().declaration, ends_without_noise=False, has_noise_levels=True)

    def prepare(self, placement: Placement) -> None:
        super().prepare(placement)
        setting = f"modalities.{self.title[0]}.model"
        is_embedding = self.trained_network().config.time_cond_proj_dim is not None
        if is_embedding and self.embedded_guidance is None:
            raise ConfigError(
                f"{setting}: {self.model!r} takes the guidance scale as an input; set embedded_guidance, to 8 for "
                f"LCM Dreamshaper"
            )
        if self.embedded_guidance is not None and not is_embedding:
            raise ConfigError(
                f"modalities.{self.title[0]}.embedded_guidance: {self.model!r} does not take the guidance scale as an "
                f"input; leave it out"
            )
        try:
            self._schedule = NoiseSchedule.of(self._pipeline.scheduler)
        except ConfigError as error:
            raise ConfigError(f"{setting}: {self.model!r}: {error}") from error

    def tiny(self, seed: int, folder: Path) -> Self:
        """Returns the same settings on a random twin of small sizes: 32 x 32 pixels."""
        from .tiny.stable_diffusion import write_tiny_stable_diffusion

        write_tiny_stable_diffusion(folder, seed, embeds_guidance=self.embedded_guidance is not None)
        return self.twin(folder)

    @property
    def schedule(self) -> NoiseSchedule:
        """Returns the noise levels of the network's timesteps; known after `prepare`."""
        assert self._schedule is not None, "prepare() comes first"
        return self._schedule

    def grid(self, kind: Literal["pipeline", "uniform"], num_steps: int) -> list[float]:
        """Returns the num_steps + 1 noise levels of a grid.

        `pipeline`: the checkpoint's spacing of timesteps, then the level at which its scheduler ends.
        `uniform`: timesteps evenly from the last one down (the network's own training), then 0.
        Raises ConfigError where the last step would not move, since it starts at timestep 0 and ends there.
        """
        from diffusers import DDIMScheduler, LCMScheduler

        scheduler = self._pipeline.scheduler
        # a consistency model has timesteps of its own, and ends at its last estimate of the clean latents
        is_own = kind == "pipeline" and isinstance(scheduler, LCMScheduler)
        spacing = {"timestep_spacing": "trailing"} if kind == "uniform" else {}
        made: Any = LCMScheduler if is_own else DDIMScheduler
        steps = made.from_config(scheduler.config, **spacing)
        steps.set_timesteps(num_steps)
        levels: list[float] = self.schedule.levels[steps.timesteps.cpu()].tolist()
        end = 0.0 if kind == "uniform" or is_own else last_level(scheduler, num_steps)
        if levels[-1] <= end:
            raise ConfigError(
                f"with {num_steps} steps the scheduler of {self.model!r} ends where its last step begins, at timestep "
                f"0; set steps_offset to 1 or set_alpha_to_one to true in it, or take sigmas: uniform"
            )
        return [*levels, end]

    def call(self, plan: Any, grid: Grid | None) -> Call:
        from diffusers import LCMScheduler

        call = super().call(plan, grid)
        if self.embedded_guidance is not None:
            call = replace(call, settings={**call.settings, "guidance_scale": str(self.embedded_guidance)})
        if grid is None or (grid == "pipeline" and isinstance(self._pipeline.scheduler, LCMScheduler)):
            return call
        changes = {"clip_sample": "False", "set_alpha_to_one": str(plan.paths[0].last_level == 0)}
        if grid == "uniform":
            changes["timestep_spacing"] = '"trailing"'
        settings = "".join(f", {name}={value}" for name, value in changes.items())
        made = f"DDIMScheduler.from_config(pipe.scheduler.config{settings})"
        return Call(call.settings, made, ("DDIMScheduler",))

    def initial(self, noise: Tensor, sigma: Tensor) -> Tensor:
        """Returns noise in the scale of a flow. Raises ConfigError for a start above the network's noisiest level."""
        most = float(self.schedule.levels[-1])
        if bool((sigma > most + 1e-6).any()):
            raise ConfigError(
                f"sampler.sigmas must start at or below {most:.6g}, the noisiest level of {self.model!r}, "
                f"got {float(sigma.max()):.6g}"
            )
        return flow_scale(noise, sigma)

    def final(self, latents: Tensor, sigma: Tensor) -> Tensor:
        return constant_variance(latents, sigma).to(latents.dtype)

    def known(self, sigma: Tensor) -> Tensor:
        return self.schedule.nearest(sigma)

    def offline(self, prompts: Sequence[Prompt], outputs: Outputs, keys: Sequence[GroupKey]) -> Rollout:
        """Returns a rollout of supplied images, one per prompt; its noise levels are those of all timesteps."""
        levels = tuple(self.schedule.levels.flip(0).tolist())
        return replace(super().offline(prompts, outputs, keys), levels={key.prompt_index: levels for key in keys})

    def velocity(self, latents: Tensor, sigma: Tensor, conditioning: Conditioning) -> Tensor:
        assert self._placement is not None
        with autocast(self._placement):
            predicted = self._pipeline.unet(
                sample=constant_variance(latents, sigma).to(self._placement.dtype),
                timestep=self.schedule.timestep(sigma),
                timestep_cond=self.guidance_embedding(len(latents)),
                encoder_hidden_states=conditioning.tensors[0],
                added_cond_kwargs=self.added(conditioning),
                return_dict=False,
            )[0]
        return self.schedule.velocity(predicted.float(), latents.float(), sigma)

    def guided(self, latents: Tensor, sigma: Tensor, conditioning: Conditioning, scale: float) -> Tensor:
        """Returns the guided velocity. Raises ConfigError for guidance beside that of the network's input."""
        if self.embedded_guidance is not None and scale != 1:
            raise ConfigError(
                f"sampler.guidance_scale: must be 1 where {self.model!r} takes the guidance scale as an input "
                f"(embedded_guidance), got {scale:g}"
            )
        return super().guided(latents, sigma, conditioning, scale)

    def guidance_embedding(self, count: int) -> Tensor | None:
        """Returns the embedding [count, E] of the network's guidance scale; None where it takes none."""
        if self.embedded_guidance is None:
            return None
        assert self._placement is not None
        size = self.trained_network().config.time_cond_proj_dim
        # of scale - 1, as in diffusers: an LCM counts the guidance beyond the conditional prediction
        weight = torch.tensor(self.embedded_guidance - 1).repeat(count)
        embedding: Tensor = self._pipeline.get_guidance_scale_embedding(weight, embedding_dim=size)
        return embedding.to(self.device, self._placement.dtype)

    def added(self, conditioning: Conditioning) -> dict[str, Tensor] | None:
        """Returns the inputs of the network beside the text states; None where it has no others."""
        return None

    def encode_prompts(self, texts: list[str]) -> Conditioning:
        with self.encoders_on_device():
            states, _ = self._pipeline.encode_prompt(texts, self.device, 1, False)
        return Conditioning((states,))
