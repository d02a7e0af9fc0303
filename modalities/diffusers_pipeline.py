"""Any flow pipeline that diffusers ships, as a policy: its own code runs, paused between the steps of its loop."""

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict, dataclass, field, replace
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self
from weakref import WeakMethod

import torch
from pydantic import Field
from torch import Tensor, nn

from mmrl.core.contracts import ConfigError, DifferentiableScore, Placement, VideoMemory
from mmrl.core.data import Outputs, Prompt, Rollout
from mmrl.core.declarations import PolicyDeclaration
from mmrl.core.forward_outputs import ForwardOutputs
from mmrl.core.keys import GroupKey, normal
from mmrl.core.views import View
from mmrl.plans.flow import Plan
from mmrl.system.spelling import near

from .encoding.encoded_files import EncodedFiles
from .encoding.inputs import called
from .flow.decisions import Conditioning
from .flow.decoding_memory import Clips, decoding_bytes
from .flow.diffusers_policy import DiffusersPolicy, absent_parts
from .flow.driven import conditions
from .flow.driven.arguments import GUIDER, Arguments, find_off, parameters_of
from .flow.driven.conditions import code_of_conditions, condition_arguments
from .flow.driven.driver import Driver, Key
from .flow.driven.modular import inputs_of, with_gradients, without_blocks
from .flow.driven.paused_call import NotDriven, PausedCall
from .flow.driven.probing import Tolerance, captured, learn
from .flow.driven.proof import prove, refuse_difference, stock_difference
from .flow.driven.quiet import without_bars, without_warnings
from .flow.driven.registry import Registry
from .flow.driven.remembered import Remembered
from .flow.driven.replaying import Replays
from .flow.driven.results import FRAME_RATES, SOUND, default_fps, media_of, sound_of, sound_rate
from .flow.driven.scales import Scale, scale_of
from .flow.driven.solver import flow_scheduler, has_constant_variance
from .flow.driven.timesteps import Timesteps
from .flow.sizes import Size
from .flow.usage import Call, Grid, num_steps
from .flow.variance_preserving import NoiseSchedule, constant_variance, flow_scale
from .loading.adapted_layers import freeze_unused
from .loading.hub import autocast

_log = logging.getLogger(__name__)
_NETWORKS = ("transformer", "transformer_2", "unet")
_OF_A_SIZE = ("height", "width", "num_frames", "max_area")  # arguments of a pipeline's call
_PROBES = ("a dog", "a longer text of a red dog")  # of different lengths
_SMALLEST = 64  # side of the pictures with which a pipeline is probed; FLUX.2 takes no smaller ones
_PROBED_SCALE = 3.0  # of guidance
_PROBED_LEVELS = (0.98, 0.02)  # near both ends, where pipelines with two networks call one of them each
_REPLAYED = {torch.float32: Tolerance(1e-4)}  # of arguments that are used again, against paused calls
_FEW_STEPS = 4  # of a grid that is read to see what timesteps are
_TIMES = 1e-4  # of the largest timestep: how far a timestep may be from a level times a constant
_TOLERANCE = {torch.float32: Tolerance(1e-3)}  # of probes
_PIXELS = 1e-3  # of pixels in [0, 1], against the stock pipeline in float32
_ROUGH = Tolerance(5e-2, by_norm=True)  # both in half precision


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
    _driver: Driver | None = field(default=None, init=False, repr=False)
    _replays: Replays | None = field(default=None, init=False, repr=False)
    _arguments: Arguments | None = field(default=None, init=False, repr=False)
    _registry: Registry = field(default_factory=lambda: Registry(4096), init=False, repr=False)
    _remembered: Remembered | None = field(default=None, init=False, repr=False)
    _schedule: NoiseSchedule | None = field(default=None, init=False, repr=False)  # None: a flow
    _scale: Scale | None = field(default=None, init=False, repr=False)  # None: that of a flow
    _timesteps: Timesteps | None = field(default=None, init=False, repr=False)  # None: levels times a constant
    _proven: set[float] = field(default_factory=set, init=False, repr=False)  # scales of guidance
    _refusal_of_guidance: str | None = field(default=None, init=False, repr=False)
    _takes_other_steps: bool = field(default=False, init=False, repr=False)  # than those of the shipped scheduler

    def __post_init__(self) -> None:
        """Raises ValueError for settings out of range, and for those that contradict each other."""
        super().__post_init__()
        if self.sizes and self.known_sizes[0].num_frames is not None:
            if self.output == "image":
                raise ValueError(f"sizes of images are width and height, got {list(self.sizes[0])}")
            self.num_frames = self.known_sizes[0].num_frames
        if self.conditions and self.condition_images not in (0, len(self.conditions)):
            raise ValueError(
                f"condition_images is {self.condition_images}, and conditions names {len(self.conditions)} images; "
                "leave condition_images out"
            )
        if self.removed_blocks and not self.modular:
            raise ValueError("removed_blocks are of modular pipelines; leave them out, or set modular: true")
        if self.num_frames is not None and self.output == "image":
            raise ValueError("num_frames is of videos; leave it out, or set output: video")

    @property
    def num_conditions(self) -> int:
        """Returns the number of images that each prompt brings."""
        return len(self.conditions) or self.condition_images

    @property
    def makes(self) -> frozenset[str]:  # type: ignore[override]  # depends on a setting
        """Returns what rollouts hold."""
        return frozenset({f"{self.output}s", *(["audio"] if self.audio else [])})

    @property
    def declaration(self) -> PolicyDeclaration:
        """Returns what rollouts provide; a model of constant variance may end above 0, and has levels of its own."""
        own = super().declaration
        if self._schedule is not None:
            return replace(own, ends_without_noise=False, has_noise_levels=True)
        return replace(own, ends_without_noise=self._scale is None or self._scale.num_trailing_steps == 0)

    def prepare(self, placement: Placement) -> None:
        """Loads the pipeline and finds out how it can be driven. Raises ConfigError for a pipeline that cannot be."""
        try:
            with without_warnings():
                self._prepare(placement)
        except BaseException:
            self.close()
            raise

    def _prepare(self, placement: Placement) -> None:
        self._check_family()
        super().prepare(placement)
        self._registry = Registry(self.prompt_cache)
        files = self.encoded_files()
        self._remembered = Remembered(self.prompt_cache, WeakMethod(self.encoders_on_device), self.device, files)
        shipped = self._pipeline.scheduler
        self._pipeline.scheduler = flow_scheduler(shipped, self._setting)
        self._takes_other_steps = self._pipeline.scheduler is not shipped
        if has_constant_variance(self._pipeline.scheduler):
            self._schedule = NoiseSchedule.of(self._pipeline.scheduler)
        else:
            self._scale = scale_of(self._pipeline.scheduler)
        self._arguments = self._fixed_arguments()
        self._driver = self._new_driver()
        self._probe()
        self._learn_timesteps()
        self._freeze_what_is_not_reached()
        self._weights = self.trained_weights()
        self._choose_replay()
        self.sigmas("pipeline", 2)  # refuses noise levels that are not those of a flow
        for size in self.known_sizes:
            self.at(size)

    def _new_driver(self) -> Driver:
        return Driver(
            self._pipeline,
            self.network_names,
            self._inputs,
            self._time_of,
            self._call_network,
            self.paused_calls,
            self._maximum,
            self._results_of,
            first_deviation=1.0 if self._scale is None else (self._pipeline.scheduler.config.get("sigma_max") or 1.0),
        )

    def made_for(self, size: Size) -> Self:
        """Returns a policy at a size, which serves samples as this one does. Raises ConfigError as `prepare`."""
        made = super().made_for(size)
        if size == self.known_sizes[0]:
            return made
        made.num_frames = self.num_frames if size.num_frames is None else size.num_frames
        made.arguments = {name: value for name, value in self.arguments.items() if name not in _OF_A_SIZE}
        fixed = made._fixed_arguments().fixed
        made._arguments = replace(self._known_arguments, fixed=fixed)
        made._driver = made._new_driver()
        made._proven, made._timesteps, made._replays = set(), None, None
        try:
            with without_warnings():
                made._probe_again(self.driver)
                made._learn_timesteps()
                made._choose_replay()
        except BaseException:
            made.close()
            raise
        return made

    def encoded_files(self) -> EncodedFiles | None:
        if self.modular and self.encodings is not None:
            raise ConfigError(
                f"modalities.{self.title[0]}.encodings: blocks of a modular pipeline have no method that encodes a "
                "prompt; leave it out"
            )
        return super().encoded_files()

    @property
    def index_file(self) -> str:
        return "modular_model_index.json" if self.modular else super().index_file

    def close(self) -> None:
        """Ends all paused calls and their threads; they are made again where they are needed."""
        for one in self._by_size.values():
            one.close()
        if self._driver is not None:
            self._driver.close()

    def video_memory(self, count: int) -> VideoMemory | None:
        if self.output == "image":
            return None
        if self.num_frames is None:
            return VideoMemory(None, None)
        clips = Clips(min(count, self.decode_batch), self.num_frames, self.height, self.width)
        folder, decoding = Path(self.model).expanduser(), None
        if (folder / self.index_file).is_file():
            decoding = decoding_bytes(folder, self.index_file, clips, self.vae_tiling)
        return VideoMemory(4 * 3 * self.num_frames * self.height * self.width, decoding)  # float32, RGB

    def shrunk(self) -> AbstractContextManager[None]:
        """Keeps the sizes of the small pipeline of the `family` tiny, which constants of diffusers' modules say."""
        from .tiny.pipelines.families import FAMILIES

        found = FAMILIES.get(self.family or "")
        return nullcontext() if found is None else found.small()

    def tiny(self, seed: int, folder: Path) -> Self:
        """Returns the same settings on a random small pipeline of the `family`.

        Raises ConfigError where the family is not set.
        """
        from .tiny.pipelines.families import FAMILIES, write_tiny_pipeline

        self._check_family()
        if self.family is None:
            raise ConfigError(
                f"modalities.{self.title[0]}.family: names the small pipeline of --tiny; set it"
                f"{_like(self.model, list(FAMILIES))}; `mmrl list families` prints their names"
            )
        write_tiny_pipeline(self.family, folder, seed)
        call = dict(FAMILIES[self.family].call)
        sizes = {name: call.pop(name) for name in ("height", "width", "num_frames") if name in call}
        found = FAMILIES[self.family]
        return self.twin(
            folder,
            arguments={**self.arguments, **call},
            modular=found.modular,
            removed_blocks=found.removed_blocks,
            output=found.makes,
            condition_images=0,
            conditions=found.condition_arguments,
            **sizes,
        )

    def _check_family(self) -> None:
        """Raises ConfigError for the name of no family: it would be found out by the next --tiny only."""
        from .tiny.pipelines.families import FAMILIES

        if self.family is not None and self.family not in FAMILIES:
            raise ConfigError(
                f"modalities.{self.title[0]}.family: there is no family {self.family!r}{near(self.family, FAMILIES)}; "
                "`mmrl list families` prints their names"
            )

    def first_size(self, settings: Mapping[str, Any]) -> Size:
        has_frames = self.known_sizes[0].num_frames is not None
        frames = settings.get("num_frames", self.num_frames)
        return Size(settings["width"], settings["height"], frames if has_frames else None)

    # what the base class asks for

    @property
    def network_names(self) -> tuple[str, ...]:
        if self.network is not None:
            self._check_network(self.network)
            return (self.network,)
        return tuple(name for name in _NETWORKS if getattr(self._pipeline, name, None) is not None)

    @property
    def encoder_names(self) -> tuple[str, ...]:
        return tuple(name for name in self._pipeline.components if name.startswith("text_encoder"))

    def adapted_layers(self, network: Any) -> None:
        return None

    def open(self, source: str, trained: torch.dtype, frozen: torch.dtype) -> Any:
        import diffusers

        dtypes = {**dict.fromkeys(_NETWORKS, trained), "vae": torch.float32, "default": frozen}
        if self.modular:
            modular: Any = diffusers.ModularPipeline
            pipeline = without_blocks(modular.from_pretrained(source), self.removed_blocks)
            pipeline.load_components(dtype=dtypes)
            without_bars(pipeline._blocks)
        else:
            loader: Any = diffusers.DiffusionPipeline
            absent = absent_parts(Path(source)) if Path(source).is_dir() else {}
            pipeline = loader.from_pretrained(source, dtype=dtypes, **absent)
        if missing := [name for name in ("scheduler",) if getattr(pipeline, name, None) is None]:
            raise ValueError(f"it has no {missing[0]}")
        return pipeline

    def place(self, pipeline: Any, device: torch.device) -> None:
        for name, part in pipeline.components.items():
            is_offloaded = name.startswith("text_encoder") and not self.modular
            if isinstance(part, nn.Module) and not is_offloaded:
                part.to(device)

    @property
    def latent_shape(self) -> tuple[int, ...]:
        return self.driver.latent_shape

    @property
    def driver(self) -> Driver:
        """Returns the driven pipeline; known after `prepare`."""
        assert self._driver is not None, "prepare() comes first"
        return self._driver

    def grid(self, kind: Literal["pipeline", "uniform"], num_steps: int) -> list[float]:
        """Returns the num_steps + 1 noise levels of a grid.

        `pipeline`: those of the pipeline's call with as many steps, read at its first timestep. `uniform`:
        linspace(1, 1/T, T), shifted as the pipeline shifts its levels, then 0.
        """
        levels = torch.linspace(1, 1 / num_steps, num_steps).tolist()
        own = self._known_arguments
        if kind == "uniform" and (self._schedule is not None or self._scale is not None):
            raise ConfigError("sampler.sigmas: this model has noise levels of its own; take pipeline")
        extra: dict[str, Any] = {}
        if kind == "uniform" and "sigmas" not in own.takes:
            scheduler = type(self._pipeline.scheduler).from_config(self._pipeline.scheduler.config)
            scheduler.set_timesteps(num_steps, sigmas=levels)
            return [float(sigma) for sigma in scheduler.sigmas]
        if kind == "uniform":
            extra["sigmas"] = levels
        own_levels, times = self._own_grid(own.with_steps(num_steps + self._num_trailing_steps, **extra))
        if self._schedule is not None:
            steps: list[float] = self._schedule.levels[times.cpu()].tolist()
            return [*steps, _last_level(self._pipeline.scheduler)]
        assert own_levels is not None, "the scheduler of a flow has noise levels"
        grid = own_levels if self._scale is None else self._scale.level(own_levels)
        grid = grid[: num_steps + 1]
        if float(grid[0]) > 1 + 1e-6:
            raise ConfigError(f"{self._setting}: its noise levels begin at {float(grid[0]):g}, those of a flow at 1")
        if not bool((grid.diff() < 0).all()):
            raise ConfigError(f"{self._setting}: its noise levels do not fall: {_listed(grid)}")
        return [float(sigma) for sigma in grid]

    def _own_grid(self, arguments: Arguments) -> tuple[Tensor | None, Tensor]:
        """Returns the noise levels and the timesteps of the pipeline's call, in its own scale."""
        pipeline, given = self._made(arguments, self._probes()[0], None, 1, 0)
        with self.driving():
            call = PausedCall(pipeline, self.network_names, given, self.driver.learned[False].blank)
            call.close()
        return call.grid, call.times

    @property
    def _num_trailing_steps(self) -> int:
        return 0 if self._scale is None else self._scale.num_trailing_steps

    def _learn_timesteps(self) -> None:
        """Finds out whether the timesteps are the noise levels times a constant, and if not, which they are."""
        own = self._known_arguments
        levels, times = self._own_grid(own.with_steps(_FEW_STEPS + self._num_trailing_steps))
        if levels is None:
            return
        wanted = torch.stack([self._time_of(float(level)) for level in levels[: len(times)]])
        num_times: int = self._pipeline.scheduler.config.num_train_timesteps
        if float((wanted - times).abs().max()) > _TIMES * num_times:
            levels, times = self._own_grid(own.with_steps(num_times - 1))
            assert levels is not None, "it had levels before"
            self._timesteps = Timesteps.of(levels, times)

    def call(self, plan: Any, grid: Grid | None) -> Call:
        own = self._known_arguments
        given = {name: repr(value) for name, value in own.fixed.items()}
        setup = [f"pipe.blocks.sub_blocks.pop({name!r})" for name in self.removed_blocks]
        if isinstance(plan, Plan):
            given["num_inference_steps"] = str(num_steps(plan) + self._num_trailing_steps)
            scale = self.scale_of(plan.guidance_scale)
            guided = own.call(Prompt(""), scale, 1, 0)
            names = [name for name in (own.guidance, "negative_prompt") if name in guided]
            given |= {str(name): repr(guided[name]) for name in names if name is not None}
            if own.guidance == GUIDER:
                setup += [f"pipe.guider = pipe.guider.new(guidance_scale={own.off if scale is None else scale!r})"]
        scheduler: str | None = None
        imports: tuple[str, ...] = ()
        if self._takes_other_steps:
            config, imports = self._pipeline.scheduler.config, (type(self._pipeline.scheduler).__name__,)
            scheduler = f"{imports[0]}(shift={config.shift!r}, num_train_timesteps={config.num_train_timesteps!r})"
        return Call(
            given,
            scheduler=scheduler,
            imports=imports,
            makes=self.output,
            fps=self.frames_per_second,
            conditions=code_of_conditions(own.conditions, own.picture_size),
            setup=tuple(setup),
            is_modular=self.modular,
        )

    # prompts

    def conditioning_of(self, prompts: Sequence[Prompt]) -> Conditioning:
        return Conditioning((self._registry.add(prompts)[:, None].to(self.device),))

    def conditioning(self, texts: Sequence[str]) -> Conditioning:
        return self.conditioning_of([Prompt(text) for text in texts])

    def encode_prompts(self, texts: list[str]) -> Conditioning:
        return self.conditioning(texts)

    def refusal(self, prompt: Prompt) -> str | None:
        """Returns why the policy cannot read a prompt; None: no reason found."""
        why = "it has a video, which no pipeline is given" if prompt.clips else None
        why = why or conditions.refusal(prompt, self.conditions, self.condition_images)
        return None if why is None else f"{called(prompt)}: {why}"

    def unreadable(self, prompt: Prompt) -> str | None:
        """Returns why the policy cannot read a prompt, judged by its whole media; None: the prompt is readable."""
        try:
            for picture in prompt.media:
                picture.load()
        except ConfigError as error:
            return f"{called(prompt)}: {error}"
        return self.refusal(prompt)

    def rollout(self, prompts: Sequence[Prompt], plans: Sequence[Plan], keys: Sequence[GroupKey]) -> Rollout:
        self._check_guidance(plan.guidance_scale for plan in plans)
        if not self.sizes:
            self._prove_once(prompts[0], plans[0].guidance_scale)
        return super().rollout(prompts, plans, keys)

    def forward(self, rollout: Rollout, view: View) -> ForwardOutputs:
        self._registry.add(rollout.prompts)
        return super().forward(rollout, view)

    def recompute(self, rollout: Rollout, size: int) -> Rollout:
        self._registry.add(rollout.prompts)
        return super().recompute(rollout, size)

    def differentiate(self, rollout: Rollout, rows: Tensor, score: DifferentiableScore, size: int) -> Rollout:
        self._registry.add(rollout.prompts)
        return super().differentiate(rollout, rows, score, size)

    # the network

    def velocity(self, latents: Tensor, sigma: Tensor, conditioning: Conditioning) -> Tensor:
        return self.guided(latents, sigma, conditioning, 1.0)

    def guided(self, latents: Tensor, sigma: Tensor, conditioning: Conditioning, scale: float) -> Tensor:
        """Returns the guided velocity, by the pipeline's own formula of guidance."""
        return self.guided_by(latents, sigma, conditioning.tensors[0][:, 0].tolist(), scale)

    def initial(self, noise: Tensor, sigma: Tensor) -> Tensor:
        return self.from_stock(noise, sigma) if self._scale is None else self._scale.first(noise, sigma)

    def final(self, latents: Tensor, sigma: Tensor) -> Tensor:
        return self._to_stock(latents, sigma).to(latents.dtype)

    def known(self, sigma: Tensor) -> Tensor:
        return sigma if self._schedule is None else self._schedule.nearest(sigma)

    def dummy_forward(self) -> Tensor:
        return self.driver.take_part()

    def decode(self, latents: Tensor, conditioning: Conditioning) -> Outputs:
        numbers = conditioning.tensors[0][:, 0].tolist()
        with self.driving():
            media, *sound = self.driver.decode_all(latents.float(), numbers)
        if self.output == "image":
            return Outputs(images=media)
        count, rate = len(media), sound_rate(self._pipeline)
        made = Outputs(videos=media, fps=(self.frames_per_second,) * count)
        return replace(made, audio=sound[0], audio_rate=(rate or 0,) * count) if sound else made

    def decode_latents(self, latents: Tensor) -> Tensor:
        with self.driving():
            return self.driver.decode(latents.float(), [self._probes()[0]] * len(latents))

    @property
    def frames_per_second(self) -> float:
        """Returns the rate at which videos are made to be shown; known after `prepare`."""
        fixed = self._known_arguments.fixed
        given = next((fixed[name] for name in FRAME_RATES if fixed.get(name) is not None), self.fps)
        return default_fps(self._pipeline, self.modular) if given is None else float(given)

    def encode_images(self, images: Tensor) -> Tensor:
        raise ConfigError(f"modalities.{self.title[0]}: the latents of supplied images cannot be found; no offline use")

    # for the proof

    def from_stock(self, states: Tensor, sigma: Tensor) -> Tensor:
        """Returns the pipeline's states [n, ...] at noise levels sigma [n] in the scale of a flow."""
        if self._scale is not None:
            return self._scale.state(states, sigma)
        return states if self._schedule is None else flow_scale(states, sigma)

    def _to_stock(self, states: Tensor, sigma: Tensor) -> Tensor:
        """Returns states of a flow in the scale of the pipeline: the inverse."""
        if self._scale is not None:
            return self._scale.own_state(states, sigma)
        return states if self._schedule is None else constant_variance(states, sigma)

    def guided_by(self, states: Tensor, sigma: Tensor, numbers: Sequence[int], scale: float) -> Tensor:
        """Returns the guided velocity of states [n, ...] of n prompts, by their numbers."""
        own, levels = self._to_stock(states.float(), sigma), sigma
        if self._scale is not None:
            levels = self._scale.own_level(sigma)
        with self.driving():
            self._check_replay(scale)
            evaluate = self.driver.evaluate if self._replays is None else self._replays.evaluate
            output = evaluate(own, levels, numbers, self.scale_of(scale))
        if self._scale is not None:
            return self._scale.velocity(output, states.float(), sigma)
        return output if self._schedule is None else self._schedule.velocity(output, states.float(), sigma)

    def numbers(self, prompts: Sequence[Prompt]) -> list[int]:
        """Returns the numbers by which the driver knows prompts."""
        found: list[int] = self._registry.add(prompts).tolist()
        return found

    def stock_call(self, prompt: Prompt, scale: float, num_steps: int) -> tuple[Any, dict[str, Any]]:
        """Returns the pipeline as diffusers has it, and the arguments of its call for one sample of a prompt."""
        import copy

        own = self._known_arguments.with_steps(num_steps + self._num_trailing_steps)
        pipeline = own.pipeline_for(self.scale_of(scale))
        assert self._remembered is not None, "prepare() comes first"
        if self._remembered.files is not None:  # a run whose prompts are encoded calls no encoder here either
            pipeline = copy.copy(pipeline)
            self._remembered.install(pipeline, self.scale_of(scale))
        return pipeline, own.call(prompt, self.scale_of(scale), 1, 0)

    def proof(self, prompt: Prompt, scales: Sequence[float] = ()) -> Mapping[str, float | str]:
        """Returns how far the policy is from the stock pipeline on a prompt: without and with guidance, or at `scales`.

        `replay` says whether network arguments are used again. At `scales` no gradient is taken. Of several sizes the
        largest difference counts.
        """
        if self.sizes:
            each = [self.at(size).proof(prompt, scales) for size in self.known_sizes]
            return {name: max((one[name] for one in each), key=str if name == "replay" else float) for name in each[0]}
        probed = [1.0] if self._refusal_of_guidance is not None else [1.0, _PROBED_SCALE]
        self._check_guidance(scales)
        proof = prove(self, prompt, scales or probed, with_gradient=not scales)
        found = {name: value for name, value in asdict(proof).items() if value is not None}
        return {**found, "replay": "; ".join(map(self._replay_at, scales or probed))}

    def _check_guidance(self, scales: Iterable[float]) -> None:
        if (reason := self._refusal_of_guidance) is not None and any(scale != 1 for scale in scales):
            raise ConfigError(f"sampler.guidance_scale: {self.model!r} cannot be driven with guidance: {reason}")

    def _prove_once(self, prompt: Prompt, scale: float) -> None:
        """Compares two steps with the stock pipeline's, once for each guidance scale. Raises ConfigError."""
        assert self._placement is not None, "prepare() comes first"
        if scale in self._proven or self._placement.maximum is not None:  # the stock run is in lockstep with nobody
            return
        found = stock_difference(self, prompt, scale, 2)
        _log.info("guidance_scale %g: pixels differ from the stock pipeline's by up to %.1e", scale, found)
        # in half precision the stock pipeline rounds its states and timesteps, which are float32 here
        if self._placement.dtype == torch.float32:
            refuse_difference(found, scale, _PIXELS)
        self._proven.add(scale)

    # inside

    @property
    def _setting(self) -> str:
        return f"modalities.{self.title[0]}.model"

    @property
    def _known_arguments(self) -> Arguments:
        assert self._arguments is not None, "prepare() comes first"
        return self._arguments

    def _check_network(self, name: str) -> None:
        parts = [part for part, module in self._pipeline.components.items() if isinstance(module, nn.Module)]
        if name not in parts:
            setting = f"modalities.{self.title[0]}.network"
            raise ConfigError(
                f"{setting}: {self.model!r} has no network {name!r}{near(name, parts)}; it has {', '.join(parts)}"
            )

    def _fixed_arguments(self) -> Arguments:
        takes = inputs_of(self._pipeline) if self.modular else parameters_of(self._pipeline)
        sizes: dict[str, Any] = {"height": self.height, "width": self.width, "num_frames": self.num_frames}
        where, kind = f"modalities.{self.title[0]}", type(self._pipeline).__name__
        if self.num_frames is not None and "num_frames" not in takes:
            raise ConfigError(f"{where}.num_frames: {kind} takes no num_frames; leave it out")
        if "max_area" not in self.arguments:
            sizes["max_area"] = self.height * self.width  # FLUX.1 Kontext scales to a megapixel by itself
        if self.modular:
            sizes["output"] = [f"{self.output}s", SOUND] if self.audio else f"{self.output}s"
        if self.fps is not None:
            if twice := sorted(set(FRAME_RATES) & set(self.arguments)):
                raise ConfigError(f"{where}.fps: {twice[0]!r} in arguments says it too; leave one out")
            sizes |= dict.fromkeys(FRAME_RATES, int(self.fps) if self.fps == int(self.fps) else self.fps)
        fixed = {name: value for name, value in sizes.items() if name in takes and value is not None} | {
            **self.arguments
        }
        try:
            names = condition_arguments(self._pipeline, takes, self.conditions, self.condition_images)
            found = Arguments.of(self._pipeline, takes, fixed, self.guidance, self.negative_prompt, names)
        except ConfigError as error:
            raise ConfigError(f"{where}.{error}") from error
        if not self.modular and (absent := conditions.missing(self._pipeline, {*names, *fixed})):
            raise ConfigError(
                f"{where}.conditions: {kind} needs {' and '.join(absent)}, and {self.num_conditions} images are set; "
                f"set conditions: [{', '.join((*names, *absent))}]"
            )
        return found

    def _probe(self) -> None:
        """Finds out how the pipeline can be driven."""
        assert self._placement is not None, "prepare() comes first"
        driver, tolerance = self.driver, _TOLERANCE.get(self._placement.dtype, _ROUGH)
        probes = self._probes()

        def form(arguments: Arguments) -> Any:
            self._arguments = arguments
            calls, _ = captured(driver, Key(probes[0], None, 1))
            return [(call.network, call.names, _shapes((call.args, call.kwargs))) for call, _ in calls]

        with self.driving():
            with torch.no_grad():
                self._arguments = find_off(self._known_arguments, form)
            self._learn(probes, tolerance)
        self._check_size()
        if self._known_arguments.guidance is None:
            self._refusal_of_guidance = "its guidance scale is set in arguments"
            return
        try:
            with autocast(self._placement):
                learn(driver, probes, _PROBED_SCALE, tolerance)
        except NotDriven as error:
            self._refusal_of_guidance = str(error)

    def _probe_again(self, first: Driver) -> None:
        """Finds what depends on the size of samples; `first`: the driver at another size."""
        assert self._placement is not None, "prepare() comes first"
        self.driver.decodes_many, tolerance = first.decodes_many, _TOLERANCE.get(self._placement.dtype, _ROUGH)
        with self.driving():
            learn(self.driver, self._probes(), None, tolerance, first.learned[False])
            if self._refusal_of_guidance is None:
                learn(self.driver, self._probes(), _PROBED_SCALE, tolerance, first.learned[True])
        self._check_size(is_one_of_several=True)

    def _check_size(self, *, is_one_of_several: bool = False) -> None:
        """Raises ConfigError where the pipeline makes other sizes than the settings say: it rounds them in silence.

        One of several sizes must be made as it is also where the pipeline's call takes no sizes.
        """
        given, made = dict(self._known_arguments.fixed), self.driver.media_shape
        if is_one_of_several:
            given |= {"height": self.height, "width": self.width}
        where = f"modalities.{self.title[0]}"
        if len(made) != (4 if self.output == "video" else 3):
            raise ConfigError(f"{where}.output: {self.model!r} makes outputs of shape {list(made)}, no {self.output}s")
        sizes = {"height": made[-2], "width": made[-1]} | ({"num_frames": made[0]} if self.output == "video" else {})
        for name, size in sizes.items():
            if name in given and int(given[name]) != size:
                raise ConfigError(
                    f"{where}.{name}: {self.model!r} makes {self.output}s of {name} {size} where {given[name]} is set; "
                    f"set {size}, or another number that it does not round (arguments such as max_area set sizes, too)"
                )

    def _freeze_what_is_not_reached(self) -> None:
        """Freezes parameters that can never get a gradient: such as those for a text output that nobody reads."""
        scales = [1.0] if self._refusal_of_guidance is not None else [1.0, _PROBED_SCALE]
        probes = self._probes()
        with self.driving():
            for network in self.modules().values():
                runs = [partial(self._probed, probes[0], sigma, scale) for sigma in _PROBED_LEVELS for scale in scales]
                if unused := freeze_unused(network, runs):
                    _log.debug("%d tensors reach no output and are not trained: %s", len(unused), ", ".join(unused))
        self.driver.close()  # paused calls hold graphs

    def _probed(self, prompt: int, sigma: float, scale: float) -> Tensor:
        """Returns the output of one random state."""
        state = normal(0, (1, *self.latent_shape)).to(self.device)
        return self.guided_by(state, torch.tensor([sigma], device=self.device), [prompt], scale)

    def _choose_replay(self) -> None:
        """Finds out whether network arguments can be used again. Raises ConfigError where they must be."""
        assert self._placement is not None, "prepare() comes first"
        if self.replay is False:
            return
        if self._placement.maximum is not None:  # found out at different times by processes that wait for each other
            if self.replay is True:
                raise ConfigError(
                    f"modalities.{self.title[0]}.replay: not with weights that are sharded over processes"
                )
            return
        tolerance = _REPLAYED.get(self._placement.dtype, _ROUGH)
        self._replays = Replays(self.driver, self._probes(), tolerance, self.paused_calls)
        with self.driving():
            for scale in [1.0] if self._refusal_of_guidance is not None else [1.0, _PROBED_SCALE]:
                self._check_replay(scale)
                _log.info("replay, %s", self._replay_at(scale))

    def _check_replay(self, scale: float) -> None:
        """Raises ConfigError where network arguments must be used again at a guidance scale, and cannot be."""
        if self.replay is not True or self._replays is None:
            return
        if (reason := self._replays.refusal(self.scale_of(scale))) is not None:
            raise ConfigError(
                f"modalities.{self.title[0]}.replay: {self.model!r} with guidance_scale {scale:g} cannot be replayed: "
                f"{reason}; take auto"
            )

    def _replay_at(self, scale: float) -> str:
        """Returns whether network arguments are used again at a guidance scale, in words."""
        reason = "by the settings" if self._replays is None else self._replays.refusal(self.scale_of(scale))
        return f"guidance_scale {scale:g}: " + ("on" if reason is None else f"off, {reason}")

    def _learn(self, probes: Sequence[int], tolerance: Tolerance) -> None:
        """Learns how several samples are served; some pipelines take lists of prompts, not numbers of samples."""
        try:
            learn(self.driver, probes, None, tolerance)
        except NotDriven as first:
            self.driver.close()
            self._arguments = replace(self._known_arguments, copies_by_list=True)
            try:
                learn(self.driver, probes, None, tolerance)
            except NotDriven as error:
                _log.debug("with a list of prompts: %s", error)
                raise first from error

    def _probes(self) -> list[int]:
        """Returns the numbers of two prompts of different lengths, with as many images as prompts have."""
        sides = (max(self.width, _SMALLEST), max(self.height, _SMALLEST))
        media = tuple(_Noise(*sides, seed) for seed in range(self.num_conditions))
        return self.numbers([Prompt(text, media) for text in _PROBES])

    @contextmanager
    def driving(self) -> Iterator[None]:
        """Runs the pipeline's own code in the run's precision. Raises ConfigError in the place of refusals.

        Parts of a pipeline have several dtypes here (the VAE's is float32), which stock code does not expect.
        """
        assert self._placement is not None, "prepare() comes first"
        try:
            with autocast(self._placement), without_warnings():
                yield
        except NotDriven as error:
            raise ConfigError(f"{self._setting}: {self.model!r} cannot be driven: {error}") from error

    def scale_of(self, scale: float) -> float | None:
        """Returns the scale for the pipeline; None: without guidance, which 1 means in a plan."""
        return None if scale == 1 else scale

    def _inputs(self, prompt: int, scale: float | None, copies: int, seed: int) -> tuple[Any, dict[str, Any]]:
        return self._made(self._known_arguments, prompt, scale, copies, seed)

    def _made(
        self, arguments: Arguments, prompt: int, scale: float | None, copies: int, seed: int
    ) -> tuple[Any, dict[str, Any]]:
        import copy

        pipeline = copy.copy(arguments.pipeline_for(scale))
        if self.modular:
            pipeline = with_gradients(pipeline)
        assert self._remembered is not None, "prepare() comes first"
        self._remembered.install(pipeline, scale)
        return pipeline, arguments.call(self._registry[prompt], scale, copies, seed)

    def _time_of(self, sigma: float) -> Tensor:
        if self._schedule is not None:
            return self._schedule.timestep(torch.tensor([sigma])).to(self.device)[0]
        if self._timesteps is not None:
            return torch.tensor(self._timesteps(sigma), device=self.device)
        num_times: int = self._pipeline.scheduler.config.num_train_timesteps
        return torch.tensor(sigma, device=self.device) * num_times

    def _call_network(self, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        assert self._placement is not None
        with autocast(self._placement):
            return getattr(self._pipeline, name)(*args, **kwargs)

    def _results_of(self, result: Any) -> list[Tensor]:
        """Returns images or videos, and the sound where it is asked for. Raises ConfigError where there is none."""
        media = media_of(result).contiguous()
        if not self.audio:
            return [media]
        sound = sound_of(result)
        if sound is None or sound_rate(self._pipeline) is None:
            raise ConfigError(f"modalities.{self.title[0]}.audio: {self.model!r} makes no sound; leave it out")
        return [media, sound]


def _like(model: str, families: Sequence[str]) -> str:
    """Returns ', such as ...' with the families whose names are nearest to a model's; an empty text without any."""
    own = model.rstrip("/").rpartition("/")[2].lower().replace("-", "_").replace(".", "")
    found = get_close_matches(own, [*families], n=3, cutoff=0.4)
    return f", such as {' or '.join(found)}" if found else ""


def _listed(levels: Tensor) -> str:
    return ", ".join(f"{float(level):.3g}" for level in levels)


def _last_level(scheduler: Any) -> float:
    """Returns the sigma at which a scheduler of constant variance ends."""
    share = float(scheduler.final_alpha_cumprod)  # of the clean latent
    return float((1 - share) ** 0.5 / (share**0.5 + (1 - share) ** 0.5))


@dataclass(frozen=True)
class _Noise:
    """A random picture, for prompts with which a pipeline is probed."""

    width: int
    height: int
    seed: int

    @property
    def size(self) -> tuple[int, int]:
        return self.width, self.height

    def load(self) -> Any:
        from PIL import Image

        values = torch.rand(self.height, self.width, 3, generator=torch.Generator().manual_seed(self.seed))
        return Image.fromarray(values.mul(255).byte().numpy())


def _shapes(value: Any) -> Any:
    """Returns the sizes of the tensors in nested arguments."""
    if isinstance(value, Tensor):
        return tuple(value.shape)
    if isinstance(value, Mapping):
        return tuple(_shapes(item) for item in value.values())
    return tuple(_shapes(item) for item in value) if isinstance(value, list | tuple) else None
