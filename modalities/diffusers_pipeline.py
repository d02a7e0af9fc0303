"""Any flow pipeline that diffusers ships, as a policy: its own code runs, paused between the steps of its loop."""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

import torch
from pydantic import Field
from torch import Tensor

from mmrl.core.contracts import ConfigError, DifferentiableScore, Placement, VideoMemory
from mmrl.core.data import Outputs, Prompt, Rollout
from mmrl.core.declarations import PolicyDeclaration
from mmrl.core.forward_outputs import ForwardOutputs
from mmrl.core.keys import GroupKey
from mmrl.core.views import View
from mmrl.plans.flow import Plan

from .encoding.encoded_files import EncodedFiles
from .flow.decisions import Conditioning
from .flow.decoding_memory import Clips, memory_of
from .flow.diffusers_policy import DiffusersPolicy
from .flow.driven import conditions, preparing, twins
from .flow.driven.arguments import without_sizes
from .flow.driven.encoding import encoded
from .flow.driven.opening import INDEX_OF_MODULAR, networks_of, open_pipeline, place_parts, text_encoders_of
from .flow.driven.pipeline import DrivenPipeline
from .flow.driven.proof import prove, prove_once
from .flow.driven.quiet import without_warnings
from .flow.driven.scales import Scale
from .flow.driven.settings import refuse_contradictions
from .flow.driven.stock_code import call_of
from .flow.sizes import Size
from .flow.usage import Call, Grid


@dataclass(kw_only=True)
class DiffusersPipeline(DiffusersPolicy):
    """Any flow pipeline of diffusers, by hub name or folder, full or with LoRA.

    The pipeline's own `__call__` makes the inputs of the network, the guidance and the images; noise levels and states
    come from the plan. What it does with many samples at once is found by trying when it is loaded, and a pipeline
    that cannot be served so is refused with the reason.
    """

    title: ClassVar[tuple[str, str]] = ("diffusers_pipeline", "a pipeline of diffusers")
    makes_frames: ClassVar[bool] = True

    output: Literal["image", "video"] = "image"  # what the pipeline makes
    num_frames: Annotated[int, Field(ge=1)] | None = None  # of a video; null: the pipeline's own number
    # Frames per second of videos, given to pipelines that take `frame_rate` or `fps`; null: the pipeline's own, 16 for
    # one that takes neither.
    fps: Annotated[float, Field(gt=0, le=240)] | None = None
    audio: bool = False  # the sound that the pipeline makes beside videos is kept, for rewards and saved samples
    family: str | None = None  # names the small random pipeline of `--tiny`
    # Further arguments of the pipeline's call, such as `max_sequence_length`, or FLUX's `guidance_scale`, which is an
    # input of its network.
    arguments: Mapping[str, Any] = field(default_factory=dict)
    # The argument that takes the plan's guidance scale. `auto`: `true_cfg_scale` where the call has it, else
    # `guidance_scale`, else the pipeline's `guider`.
    guidance: str = "auto"
    network: str | None = None  # the part that is trained; null: transformer, transformer_2 or unet, those it has
    modular: bool = False  # the model is a `ModularPipeline`, in whose folder is a `modular_model_index.json`
    removed_blocks: tuple[str, ...] = ()  # blocks of a modular pipeline to leave out, such as one that rewrites prompts
    condition_images: Annotated[int, Field(ge=0)] = 0  # images that each prompt brings, for editing and image-to-video
    # The argument of the call for each image of a prompt, in the order of the row, such as `[image, mask_image]`; the
    # images of a name that stands there twice are a list. Empty: all are for `image`, `images` or `reference_images`.
    conditions: tuple[str, ...] = ()
    # Calls of the pipeline that are kept between steps, one a prompt; or their network arguments.
    paused_calls: Annotated[int, Field(ge=1)] = 64
    # Network arguments are captured once for each prompt and used again, and both branches of guidance and all prompts
    # share a network call. `auto`: where that gives the same outputs, found by trying; true: else it is an error;
    # false: the paused calls make all arguments.
    replay: bool | Literal["auto"] = "auto"
    _driven: DrivenPipeline | None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        """Raises ValueError for settings out of range, and for those that contradict each other."""
        super().__post_init__()
        if self.sizes and self.known_sizes[0].num_frames is not None:
            if self.output == "image":
                raise ValueError(f"sizes of images are width and height, got {list(self.sizes[0])}")
            self.num_frames = self.known_sizes[0].num_frames
        refuse_contradictions(self)

    @property
    def num_conditions(self) -> int:
        """Returns the number of images that each prompt brings."""
        return len(self.conditions) or self.condition_images

    @property
    def makes(self) -> frozenset[str]:  # type: ignore[override]  # depends on a setting
        """Returns what rollouts hold."""
        return frozenset({f"{self.output}s", "latents", *(["audio"] if self.audio else [])})

    @property
    def where(self) -> str:
        """Returns where the settings stand in a config, for errors."""
        return f"modalities.{self.title[0]}"

    @property
    def driven(self) -> DrivenPipeline:
        """Returns the driven pipeline; known after `prepare`."""
        assert self._driven is not None, "prepare() comes first"
        return self._driven

    @property
    def declaration(self) -> PolicyDeclaration:
        """Returns what rollouts provide; a model of constant variance may end above 0, and has levels of its own."""
        scale = Scale() if self._driven is None else self._driven.scale
        return replace(
            super().declaration,
            ends_without_noise=scale.ends_without_noise,
            has_noise_levels=scale.is_discrete,
            refuses_by_settings=True,
        )

    def prepare(self, placement: Placement) -> None:
        """Loads the pipeline and finds out how it can be driven. Raises ConfigError for a pipeline that cannot be."""
        twins.check_family(self)
        try:
            with without_warnings():
                super().prepare(placement)
                self._driven = preparing.unprobed(
                    *(self._pipeline, self, placement, self.network_names),
                    on_device=self.encoders_on_device,
                    files=self.encoded_files(),
                    maximum=self._maximum,
                )
                preparing.probe(self._driven, self.modules().values())
                self._weights = self.trained_weights()
                self.sigmas("pipeline", 2)  # refuses noise levels that are not those of a flow
                for size in self.known_sizes:
                    self.at(size)
        except BaseException:
            self.close()
            raise

    def made_for(self, size: Size) -> Self:
        """Returns a policy at a size, which serves samples as this one does. Raises ConfigError as `prepare`."""
        made = super().made_for(size)
        if size != self.known_sizes[0]:
            made.num_frames = self.num_frames if size.num_frames is None else size.num_frames
            made.arguments = without_sizes(self.arguments)
            made._driven = preparing.at_size(self.driven, made)
        return made

    def close(self) -> None:
        """Ends all paused calls and their threads; they are made again where they are needed."""
        for one in self._by_size.values():
            one.close()
        if self._driven is not None:
            self._driven.close()

    def open(self, source: str, trained: torch.dtype, frozen: torch.dtype) -> Any:
        return open_pipeline(self, source, trained, frozen)

    def place(self, pipeline: Any, device: torch.device) -> None:
        place_parts(pipeline, device)

    @property
    def index_file(self) -> str:
        return INDEX_OF_MODULAR if self.modular else super().index_file

    @property
    def network_names(self) -> tuple[str, ...]:
        return networks_of(self, self._pipeline)

    @property
    def encoder_names(self) -> tuple[str, ...]:
        return text_encoders_of(self._pipeline)

    def adapted_layers(self, network: Any) -> None:
        return None

    def encoded_files(self) -> EncodedFiles | None:
        if self.modular and self.encodings is not None:
            why = "blocks of a modular pipeline have no method that encodes a prompt"
            raise ConfigError(f"{self.where}.encodings: {why}; leave it out")
        return super().encoded_files()

    @property
    def num_clip_frames(self) -> int | None:
        return self.num_frames

    def video_memory(self, count: int) -> VideoMemory | None:
        if self.output == "image":
            return None
        if self.num_frames is None:
            return VideoMemory(None, None)
        clips = Clips(min(count, self.decode_batch), self.num_frames, self.height, self.width)
        return memory_of(Path(self.model).expanduser(), self.index_file, clips, self.vae_tiling)

    def shrunk(self) -> AbstractContextManager[None]:
        """Keeps the sizes of the small pipeline tiny that constants of diffusers' modules say."""
        return twins.shrunk(self)

    def tiny(self, seed: int, folder: Path) -> Self:
        """Returns the same settings on a random small pipeline of the `family`. Raises ConfigError without one."""
        return self.twin(folder, **twins.write_twin(self, folder, seed))

    def first_size(self, settings: Mapping[str, Any]) -> Size:
        has_frames = self.known_sizes[0].num_frames is not None
        frames = settings.get("num_frames", self.num_frames)
        return Size(settings["width"], settings["height"], frames if has_frames else None)

    # prompts

    def conditioning_of(self, prompts: Sequence[Prompt]) -> Conditioning:
        return Conditioning((self.driven.registry.add(prompts)[:, None],))  # on the CPU, where they are looked up

    def conditioning(self, texts: Sequence[str]) -> Conditioning:
        return self.conditioning_of([Prompt(text) for text in texts])

    def encode_prompts(self, texts: list[str]) -> Conditioning:
        return self.conditioning(texts)

    def refusal(self, prompt: Prompt) -> str | None:
        """Returns why the policy cannot read a prompt; None: no reason found."""
        return conditions.refusal_of(prompt, self.conditions, self.condition_images)

    def unreadable(self, prompt: Prompt) -> str | None:
        """Returns why the policy cannot read a prompt, judged by its whole media; None: the prompt is readable."""
        return conditions.broken(prompt) or self.refusal(prompt)

    def rollout(self, prompts: Sequence[Prompt], plans: Sequence[Plan], keys: Sequence[GroupKey]) -> Rollout:
        self.driven.check_guidance(plan.guidance_scale for plan in plans)
        if not self.sizes:
            prove_once(self.driven, prompts[0], plans[0].guidance_scale)
        return super().rollout(prompts, plans, keys)

    def offline(self, prompts: Sequence[Prompt], outputs: Outputs, keys: Sequence[GroupKey]) -> Rollout:
        """Returns a rollout of supplied images or clips, one per prompt.

        Raises ConfigError where they cannot be encoded.
        """
        made = super().offline(prompts, outputs, keys)
        levels = self.driven.scale.offline_levels
        return replace(made, levels={key.prompt_index: levels for key in keys}) if levels else made

    def forward(self, rollout: Rollout, view: View) -> ForwardOutputs:
        self.driven.registry.add(rollout.prompts)
        return super().forward(rollout, view)

    def recompute(self, rollout: Rollout, size: int) -> Rollout:
        self.driven.registry.add(rollout.prompts)
        return super().recompute(rollout, size)

    def differentiate(self, rollout: Rollout, rows: Tensor, score: DifferentiableScore, size: int) -> Rollout:
        self.driven.registry.add(rollout.prompts)
        return super().differentiate(rollout, rows, score, size)

    # latents, noise levels and the network

    @property
    def latent_shape(self) -> tuple[int, ...]:
        return self.driven.driver.latent_shape

    def grid(self, kind: Literal["pipeline", "uniform"], num_steps: int) -> list[float]:
        return self.driven.levels.grid(kind, num_steps)

    def initial(self, noise: Tensor, sigma: Tensor) -> Tensor:
        return self.driven.scale.first(noise, sigma)

    def final(self, latents: Tensor, sigma: Tensor) -> Tensor:
        return self.driven.final(latents, sigma)

    def known(self, sigma: Tensor) -> Tensor:
        return self.driven.scale.nearest(sigma)

    def velocity(self, latents: Tensor, sigma: Tensor, conditioning: Conditioning) -> Tensor:
        return self.guided(latents, sigma, conditioning, 1.0)

    def guided(self, latents: Tensor, sigma: Tensor, conditioning: Conditioning, scale: float) -> Tensor:
        """Returns the guided velocity, by the pipeline's own formula of guidance; `sigma` is best on the CPU."""
        numbers: list[int] = conditioning.tensors[0][:, 0].tolist()
        return self.driven.guided_by(latents, sigma.cpu(), numbers, scale)

    def dummy_forward(self) -> Tensor:
        return self.driven.driver.take_part()

    def decode(self, latents: Tensor, conditioning: Conditioning) -> Outputs:
        return self.driven.decode(latents, conditioning.tensors[0][:, 0].tolist())

    def decode_latents(self, latents: Tensor) -> Tensor:
        return self.driven.pixels(latents, [self.driven.probes()[0]] * len(latents))

    def encode_images(self, images: Tensor) -> Tensor:
        return encoded(self.driven, images)

    def encode_videos(self, videos: Tensor) -> Tensor:
        return encoded(self.driven, videos)

    @property
    def frames_per_second(self) -> float:
        """Returns the rate at which videos are made to be shown."""
        return self.driven.frames_per_second

    def call(self, plan: Any, grid: Grid | None) -> Call:
        return call_of(self.driven, plan)

    def proof(self, prompt: Prompt, scales: Sequence[float] = ()) -> Mapping[str, float | str]:
        """Returns how far the policy is from the stock pipeline on a prompt: without and with guidance, or at `scales`.

        `replay` says whether network arguments are used again. At `scales` no gradient is taken. Of several sizes the
        largest difference counts.
        """
        if self.sizes:
            each = [self.at(size).proof(prompt, scales) for size in self.known_sizes]
            return {name: max((one[name] for one in each), key=str if name == "replay" else float) for name in each[0]}
        self.driven.check_guidance(scales)
        tried = scales or preparing.probed_scales(self.driven)
        proof = prove(self.driven, self.weights, prompt, tried, with_gradient=not scales).numbers()
        return {**proof, "replay": "; ".join(map(self.driven.replay_at, tried))}
