"""A driven pipeline: a stock pipeline, what the settings say of its call, and all that was found out about it."""

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor

from mmrl.core.contracts import ConfigError, Placement
from mmrl.core.data import Outputs, Prompt

from ...loading.hub import autocast
from .arguments import Arguments
from .driver import Driver
from .latent_map import LatentMap
from .modular import with_gradients
from .noise_levels import NoiseLevels
from .paused_call import NotDriven
from .probe_prompts import probe_prompts
from .quiet import without_warnings
from .registry import Registry
from .remembered import Remembered
from .replaying import Replays
from .results import FRAME_RATES, default_fps, media_of, sound_of, sound_rate
from .scales import Scale
from .settings import Settings


@dataclass(kw_only=True)
class DrivenPipeline:
    """A pipeline at one size of samples; `preparing` makes it. States, levels and velocities are those of a flow."""

    pipeline: Any
    settings: Settings
    placement: Placement
    networks: tuple[str, ...]  # names of the parts that predict
    maximum: Callable[[int], int]  # over processes, where weights are sharded
    arguments: Arguments
    scale: Scale
    registry: Registry
    remembered: Remembered
    has_other_steps: bool  # than those of the shipped scheduler
    refusal_of_guidance: str | None = None
    driver: Driver = field(init=False)
    levels: NoiseLevels = field(init=False)
    replays: Replays | None = field(default=None, init=False)  # None: the paused calls make all network arguments
    latent_map: LatentMap | None = field(default=None, init=False)  # None: no image was encoded yet
    proven: set[float] = field(default_factory=set, init=False)  # scales of guidance

    def __post_init__(self) -> None:
        """Makes what depends on the size of samples."""
        self.levels = NoiseLevels(
            self.pipeline.scheduler,
            self.scale,
            self.placement.device,
            self.model_setting,
            self._read_grid,
            "sigmas" in self.arguments.takes,
        )
        self.driver = Driver(
            self.pipeline,
            self.networks,
            self._inputs,
            self.levels.time_of,
            self._call_network,
            self.settings.paused_calls,
            self.maximum,
            self._results_of,
            first_deviation=self.scale.first_deviation,
            # a classic pipeline's encoders are where they can run in `encode_prompt` alone
            encoding=self.remembered.encoders_on_device if self.settings.modular else nullcontext,
        )

    @property
    def model_setting(self) -> str:
        """Returns the setting that names the model, for errors."""
        return f"{self.settings.where}.model"

    def close(self) -> None:
        """Ends all paused calls and their threads; they are made again where they are needed."""
        self.driver.close()

    @contextmanager
    def driving(self) -> Iterator[None]:
        """Runs the pipeline's own code in the run's precision. Raises ConfigError in the place of refusals.

        Parts of a pipeline have several dtypes here (the VAE's is float32), which stock code does not expect.
        """
        try:
            with autocast(self.placement), without_warnings():
                yield
        except NotDriven as error:
            raise ConfigError(f"{self.model_setting}: {self.settings.model!r} cannot be driven: {error}") from error

    # prompts

    def numbers(self, prompts: Sequence[Prompt]) -> list[int]:
        """Returns the numbers by which the driver knows prompts."""
        found: list[int] = self.registry.add(prompts).tolist()
        return found

    def probes(self) -> list[int]:
        """Returns the numbers of two prompts of different lengths, with as many images as prompts have."""
        return self.numbers(probe_prompts(self.settings.width, self.settings.height, self.settings.num_conditions))

    # guidance

    def scale_of(self, scale: float) -> float | None:
        """Returns the guidance scale for the pipeline; None: without guidance, which 1 means in a plan."""
        return None if scale == 1 else scale

    def check_guidance(self, scales: Iterable[float]) -> None:
        """Raises ConfigError for scales at which the pipeline cannot be driven."""
        if (reason := self.refusal_of_guidance) is not None and any(scale != 1 for scale in scales):
            raise ConfigError(
                f"sampler.guidance_scale: {self.settings.model!r} cannot be driven with guidance: {reason}"
            )

    def check_replay(self, scale: float) -> None:
        """Raises ConfigError where network arguments must be used again at a guidance scale, and cannot be."""
        if self.settings.replay is not True or self.replays is None:
            return
        if (reason := self.replays.refusal(self.scale_of(scale))) is not None:
            raise ConfigError(
                f"{self.settings.where}.replay: {self.settings.model!r} with guidance_scale {scale:g} cannot be "
                f"replayed: {reason}; take auto"
            )

    def replay_at(self, scale: float) -> str:
        """Returns whether network arguments are used again at a guidance scale, in words."""
        reason = "by the settings" if self.replays is None else self.replays.refusal(self.scale_of(scale))
        return f"guidance_scale {scale:g}: " + ("on" if reason is None else f"off, {reason}")

    # states

    def from_stock(self, states: Tensor, sigma: Tensor) -> Tensor:
        """Returns the pipeline's states [n, ...] at noise levels sigma [n] in the scale of a flow."""
        return self.scale.state(states, sigma)

    def final(self, latents: Tensor, sigma: Tensor) -> Tensor:
        """Returns the states to decode, in the pipeline's own scale."""
        return self.scale.own_state(latents, sigma).to(latents.dtype)

    def guided_by(self, states: Tensor, sigma: Tensor, numbers: Sequence[int], scale: float) -> Tensor:
        """Returns the guided velocity of states [n, ...] at sigma [n], on the CPU, of n prompts by their numbers."""
        there = sigma.to(states.device)
        own = self.scale.own_state(states.float(), there)
        with self.driving():
            self.check_replay(scale)
            evaluate = self.driver.evaluate if self.replays is None else self.replays.evaluate
            output = evaluate(own, self.scale.own_level(sigma), numbers, self.scale_of(scale))
        return self.scale.velocity(output, states.float(), there)

    def decode(self, states: Tensor, numbers: Sequence[int]) -> Outputs:
        """Returns the images or videos of last states [n, ...] of n prompts, and the sound where it is asked for."""
        with self.driving():
            media, *sound = self.driver.decode_all(states.float(), numbers)
        if self.settings.output == "image":
            return Outputs(images=media)
        made = Outputs(videos=media, fps=(self.frames_per_second,) * len(media))
        if not sound:
            return made
        return replace(made, audio=sound[0], audio_rate=(sound_rate(self.pipeline) or 0,) * len(media))

    def pixels(self, states: Tensor, numbers: Sequence[int]) -> Tensor:
        """Returns the images or videos alone, as `decode` makes them."""
        with self.driving():
            return self.driver.decode(states.float(), numbers)

    @property
    def frames_per_second(self) -> float:
        """Returns the rate at which videos are made to be shown."""
        fixed = self.arguments.fixed
        given = next((fixed[name] for name in FRAME_RATES if fixed.get(name) is not None), self.settings.fps)
        return default_fps(self.pipeline, self.settings.modular) if given is None else float(given)

    def stock_call(self, prompt: Prompt, scale: float, num_steps: int) -> tuple[Any, dict[str, Any]]:
        """Returns the pipeline as diffusers has it, and the arguments of its call for one sample of a prompt."""
        own = self.arguments.with_steps(num_steps + self.scale.num_trailing_steps)
        pipeline = own.pipeline_for(self.scale_of(scale))
        if self.remembered.files is not None:  # a run whose prompts are encoded calls no encoder here either
            pipeline = copy.copy(pipeline)
            self.remembered.install(pipeline, self.scale_of(scale))
        return pipeline, own.call(prompt, self.scale_of(scale), 1, 0)

    # what the driver and the levels ask for

    def _inputs(self, prompt: int, scale: float | None, copies: int, seed: int) -> tuple[Any, dict[str, Any]]:
        return self._made(self.arguments, prompt, scale, copies, seed)

    def _made(
        self, arguments: Arguments, prompt: int, scale: float | None, copies: int, seed: int
    ) -> tuple[Any, dict[str, Any]]:
        pipeline = copy.copy(arguments.pipeline_for(scale))
        if self.settings.modular:
            pipeline = with_gradients(pipeline)
        self.remembered.install(pipeline, scale)
        return pipeline, arguments.call(self.registry[prompt], scale, copies, seed)

    def _read_grid(self, num_steps: int, levels: list[float] | None) -> tuple[Tensor | None, Tensor]:
        """Returns the noise levels and the timesteps of the pipeline's call, in its own scale."""
        extra = {} if levels is None else {"sigmas": levels}
        arguments = self.arguments.with_steps(num_steps, **extra)
        pipeline, given = self._made(arguments, self.probes()[0], None, 1, 0)
        with self.driving():
            call = self.driver.opened(pipeline, given, self.driver.learned[False].blank)
            call.close()
        return call.grid, call.times

    def _call_network(self, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        with autocast(self.placement):
            return getattr(self.pipeline, name)(*args, **kwargs)

    def _results_of(self, result: Any) -> list[Tensor]:
        """Returns images or videos, and the sound where it is asked for. Raises ConfigError where there is none."""
        media = media_of(result).contiguous()
        if not self.settings.audio:
            return [media]
        sound = sound_of(result)
        if sound is None or sound_rate(self.pipeline) is None:
            raise ConfigError(f"{self.settings.where}.audio: {self.settings.model!r} makes no sound; leave it out")
        return [media, sound]
