"""The base classes of pipelines of diffusers as policies: loading, weights, exporting, the VAE of known families."""

import copy
import json
import logging
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, Literal, Self

import torch
from pydantic import Field
from torch import Tensor, nn

from mmrl.core.contracts import ConfigError, Cut, DifferentiableScore, Footprint, Placement, Usage, Workload
from mmrl.core.data import Outputs, Prompt, Rollout
from mmrl.core.declarations import PolicyDeclaration
from mmrl.core.forward_outputs import ForwardOutputs
from mmrl.core.keys import GroupKey
from mmrl.core.views import View
from mmrl.core.weights import Weights
from mmrl.plans.flow import Plan

from ..encoding.encoded_files import EncodedFiles, folder_of, identity_of
from ..encoding.prompt_cutting import cuts_of, without_cut_warnings
from ..loading.exporting import save_lora, save_pipeline
from ..loading.hub import moved, source_of, without_adapter
from ..loading.lora import Lora, leave_casts_to_autocast
from ..loading.merging import MergedAdapters, check_merging
from ..loading.quantise import Quantise, only_with_lora
from .decisions import Conditioning
from .policy import LATENT_DTYPES, FlowPolicy
from .sized_rollouts import Part, apart, each_part, joined_sizes, score_of
from .sizes import Size, size_of, sizes_in, small_sizes
from .usage import Call, Grid, code_of, grid_of, num_steps, usage_of

# The parts that encodings depend on, by how their names begin.
_ENCODERS = ("text_encoder", "tokenizer", "processor", "image_encoder", "image_processor", "feature_extractor", "vae")
_INDEX = "model_index.json"  # the file that the folder of a pipeline holds
log = logging.getLogger(__name__)


@dataclass(kw_only=True)
class DiffusersPolicy(FlowPolicy):
    """A pipeline by hub name or folder, full or with LoRA.

    Frozen parts are in the run's precision, the VAE in `vae_dtype`, trained weights in float32 under autocast.
    """

    title: ClassVar[tuple[str, str]]  # the plug-in's name and the family's, for errors
    pixel_multiple: ClassVar[int] = 1  # of height and width
    makes_frames: ClassVar[bool] = False  # sizes may have a number of frames
    compile_backend: ClassVar[Any] = "inductor"  # of `torch.compile`

    model: str  # a hub name, a diffusers folder, or `lab:NAME`
    # In pixels: a multiple of 16 (`sd3`) or 8 (`stable_diffusion`); of what the model asks for (`diffusers_pipeline`).
    height: Annotated[int, Field(ge=1)] = 512
    width: Annotated[int, Field(ge=1)] = 512  # the same
    # Sizes of samples, [width, height] or for videos [width, height, num_frames]. Each prompt gets the nearest one: to
    # the `width` and `height` (and `num_frames`) of its row; else, in aspect ratio, to its first image; else the first,
    # which the settings `width` and `height` then are. Empty: all samples have the size of the settings.
    sizes: tuple[tuple[int, ...], ...] = ()
    lora: Lora | None = None  # null: the whole network is trained
    quantise: Quantise | None = None  # the frozen weights under a LoRA in 4 or 8 bits; null: in the run's precision
    gradient_checkpointing: bool = False  # less memory, more time; the same gradient
    offload_text_encoders: bool = False  # the text encoders wait on the CPU while there are no new prompts
    # A folder that keeps encoded prompts and condition images by their content, for this run and later ones; null: they
    # are encoded anew in each run. It has no bound; its files may be deleted at any time.
    encodings: str | None = None
    attention: str | None = None  # an attention backend of diffusers, for networks whose layers take one
    compile: bool = False  # `torch.compile` on the network
    # The autoencoder works in its own tiles: less memory for large images and videos; pixels near seams change a bit.
    vae_tiling: bool = False
    # `bfloat16`: the autoencoder and what it computes have half the size, and it is exported so. Changes numbers: the
    # images that rewards see are rounded (by up to 0.09 of 1 in small random models).
    vae_dtype: Literal["float32", "bfloat16"] = "float32"
    _pipeline: Any = field(default=None, init=False, repr=False)
    _weights: Weights | None = field(default=None, init=False, repr=False)
    _merged: MergedAdapters | None = field(default=None, init=False, repr=False)  # in rollouts, where it is set
    _grids: dict[tuple[str, int], list[float]] = field(default_factory=dict, init=False, repr=False)
    _by_size: dict[Size, Self] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        """Raises ValueError for settings out of range, and for sizes that are no multiples of `pixel_multiple`."""
        super().__post_init__()
        only_with_lora(self.quantise, self.lora)
        check_merging(self.lora, self.quantise)
        known = sizes_in("sizes", self.sizes)
        if known:
            self.width, self.height = known[0][:2]
            if known[0].num_frames is not None and not self.makes_frames:
                raise ValueError(f"sizes of images are width and height, got {list(self.sizes[0])}")
        step = self.pixel_multiple
        for size in known or [Size(self.width, self.height)]:
            if size.height % step or size.width % step or min(size.height, size.width) < step:
                raise ValueError(
                    f"height and width must be multiples of {step} pixels, got {size.height} x {size.width}"
                )

    @property
    def declaration(self) -> PolicyDeclaration:
        """Returns what rollouts provide, and the pipeline as it is set."""
        return replace(super().declaration, checkpoint=self.model, checkpoint_file=self.index_file)

    @property
    def index_file(self) -> str:
        """Returns the file that the folder of the pipeline holds."""
        return _INDEX

    def prepare(self, placement: Placement) -> None:
        """Loads the pipeline. Raises ConfigError where the model cannot be found or is of another kind."""
        self._placement = placement
        if self.sizes and placement.maximum is not None:  # processes would make their calls of a size alone
            raise ConfigError(f"modalities.{self.title[0]}.sizes: not with weights that are sharded over processes")
        if self.lora is not None and self.lora.merge_rollouts and placement.maximum is not None:
            raise ConfigError("modality.lora.merge_rollouts: not with weights that are sharded over processes")
        self._pipeline = self._load(placement)
        if self.vae_tiling:
            _tile(self._pipeline, f"modalities.{self.title[0]}.vae_tiling")
        networks = self.modules()
        for network in networks.values():
            if self.quantise is not None:
                self.quantise.apply(network, placement)
            network.to(placement.device)
        for name, network in networks.items():
            self._prepare_network(name, network)
        self._weights = self.trained_weights()
        is_merged = self.lora is not None and self.lora.merge_rollouts
        self._merged = MergedAdapters([*networks.values()]) if is_merged else None

    def _prepare_network(self, name: str, network: Any) -> None:
        """Makes a network ready for training, as the settings say."""
        network.requires_grad_(False).eval()
        if self.lora is None:
            network.requires_grad_(True)
        else:
            self.lora.add_to(network, self.adapted_layers(network), name)
        if self._placement is not None and self._placement.is_frozen:
            network.requires_grad_(False)
        if self.gradient_checkpointing:
            network.enable_gradient_checkpointing()
        if self.attention is not None:
            _set_attention(network, self.attention, f"modalities.{self.title[0]}.attention")
        if self.compile:
            network.compile(backend=self.compile_backend)
        self.freeze_unused(network)

    @property
    def num_clip_frames(self) -> int | None:
        """Frames of a clip; None: images, or the pipeline's own number."""
        return None

    @property
    def num_text_tokens(self) -> int | None:
        """The longest prompt in tokens, beside those of CLIP, where a setting says it."""
        return None

    def footprint(self, work: Workload) -> Footprint:
        """Returns memory and FLOPs, by networks without content. Raises ConfigError for unknown architectures."""
        from .footprint import footprint_of

        return footprint_of(self, work)

    def train_on_meta(self, network: Any, name: str) -> None:
        """Marks and adapts the parameters of a network without content as those of a loaded one."""
        network.requires_grad_(self.lora is None)
        if self.lora is not None:
            self.lora.add_to(network, self.adapted_layers(network), name)
        self.freeze_unused(network)

    def trained_weights(self) -> Weights:
        """Returns the parameters of the networks that are not frozen, as they are trained."""
        networks = self.modules()
        trained = {
            f"{name}.{n}": p
            for name, network in networks.items()
            for n, p in network.named_parameters()
            if p.requires_grad
        }
        is_new = self.lora is not None and self.lora.path is None
        return Weights(trained, adapter_off=partial(_without_adapters, networks) if is_new else None)

    def freeze_unused(self, network: Any) -> None:
        """Freezes parameters that reach no output and so never get a gradient; most families have none."""

    # A family defines these.

    @property
    @abstractmethod
    def network_names(self) -> tuple[str, ...]:
        """Returns the names of the parts that are trained."""

    @property
    @abstractmethod
    def encoder_names(self) -> tuple[str, ...]:
        """Returns the names of the text encoders, among them those that are absent."""

    @abstractmethod
    def adapted_layers(self, network: Any) -> tuple[str, ...] | None:
        """Returns the ends of the names of the layers of a network that a LoRA adapts; None: found by a pattern."""

    @abstractmethod
    def open(self, source: str, trained: torch.dtype, frozen: torch.dtype) -> Any:
        """Returns the pipeline, with the dtypes of trained networks and of other parts; the VAE is in `vae_dtype`.

        Raises OSError, ValueError or TypeError where it cannot be loaded.
        """

    @abstractmethod
    def place(self, pipeline: Any, device: torch.device) -> None:
        """Moves all parts but the networks and the text encoders to a device."""

    @abstractmethod
    def grid(self, kind: Literal["pipeline", "uniform"], num_steps: int) -> list[float]:
        """Computes the noise levels that `sigmas` returns, and keeps."""

    def twin(self, folder: Path, **sizes: Any) -> Self:
        """Returns the same settings on the small pipeline in `folder`, of 32 x 32 pixels."""
        lora = None if self.lora is None else replace(self.lora, rank=min(self.lora.rank, 4), path=None)
        given: dict[str, Any] = {"height": 32, "width": 32} | sizes
        if self.sizes:
            given["sizes"] = small_sizes(self.known_sizes, self.first_size(given))
        return replace(self, model=str(folder), lora=lora, compile=False, encodings=None, **given)

    def first_size(self, settings: Mapping[str, Any]) -> Size:
        """Returns the size that settings of a twin name."""
        return Size(settings["width"], settings["height"])

    # Samples of several sizes: each size has a policy, which shares all but what depends on the size.

    def at(self, size: Size) -> Self:
        """Returns the policy at a size; known after `prepare`."""
        if size not in self._by_size:
            self._by_size[size] = self.made_for(size)
        return self._by_size[size]

    def made_for(self, size: Size) -> Self:
        """Returns a policy on the same weights whose samples all have one size. Families add what depends on it."""
        made = copy.copy(self)
        made.sizes, made.width, made.height = (), size.width, size.height
        made._by_size, made._encoded, made._grids, made.num_calls = {}, {}, {}, 0
        return made

    @property
    def known_sizes(self) -> tuple[Size, ...]:
        """Returns the sizes of the settings, the first one for prompts that ask for none; empty: all have one size."""
        return sizes_in("sizes", self.sizes)

    def size_for(self, prompt: Prompt) -> Size:
        """Returns the size of a prompt's samples, one of `known_sizes`."""
        return size_of(prompt, self.known_sizes)

    def sized(self, prompt: Prompt) -> Self:
        """Returns the policy at the size of a prompt's samples."""
        return self.at(self.size_for(prompt)) if self.sizes else self

    def apart(self, rollout: Rollout, view: View) -> Sequence[View]:
        return apart(rollout, view) if self.sizes else [view]

    def rollout(self, prompts: Sequence[Prompt], plans: Sequence[Plan], keys: Sequence[GroupKey]) -> Rollout:
        if not self.sizes:
            if self._merged is None:
                return super().rollout(prompts, plans, keys)
            with self._merged():
                found = super().rollout(prompts, plans, keys)
            self._say_merging_difference(self._merged, found)
            return found

        def sampled(one: Self, rows: list[int]) -> Rollout:
            return one.rollout(
                [prompts[row] for row in rows], [plans[row] for row in rows], [keys[row] for row in rows]
            )

        return self._each_size(prompts, sampled)

    def _say_merging_difference(self, merged: MergedAdapters, rollout: Rollout) -> None:
        """Logs, once, how far predictions with merged adapters are from those with adapters apart."""
        latents = rollout.trace.clean[:4].float()
        sigma = self.known(torch.full((len(latents),), 0.5, device=latents.device))
        conditioning = rollout.trace.conditioning[rollout.prompt[:4]]
        found = merged.compared(lambda: self.velocity(latents, sigma, conditioning))
        if found is not None:
            log.warning(
                "lora.merge_rollouts: predictions with the adapter merged differ from those of the update by %.2g of "
                "their norm",
                float((found[0] - found[1]).norm() / found[1].norm()),
            )

    def offline(self, prompts: Sequence[Prompt], outputs: Outputs, keys: Sequence[GroupKey]) -> Rollout:
        if not self.sizes:
            return super().offline(prompts, outputs, keys)

        def taken(one: Self, rows: list[int]) -> Rollout:
            own = outputs.select(torch.tensor(rows))
            return one.offline([prompts[row] for row in rows], own, [keys[row] for row in rows])

        return self._each_size(prompts, taken)

    def forward(self, rollout: Rollout, view: View) -> ForwardOutputs:
        """Returns what the base class does. Where samples have several sizes, those of a view must have one."""
        if not self.sizes:
            return super().forward(rollout, view)
        part: Part = rollout.trace.part_of(view)
        with self._counted(part.size) as one:
            return part.whole(one.forward(part.rollout(rollout), part.local(view)), rollout.num_samples)

    def recorded(self, rollout: Rollout, view: View) -> ForwardOutputs:
        if not self.sizes:
            return super().recorded(rollout, view)
        part: Part = rollout.trace.part_of(view)
        found = self.at(part.size).recorded(part.rollout(rollout), part.local(view))
        return part.whole(found, rollout.num_samples)

    def recompute(self, rollout: Rollout, size: int) -> Rollout:
        if not self.sizes:
            return super().recompute(rollout, size)

        def recomputed(part: Part, own: Rollout) -> Rollout:
            with self._counted(part.size) as one:
                return one.recompute(own, size)

        return each_part(rollout, recomputed)

    def differentiate(self, rollout: Rollout, rows: Tensor, score: DifferentiableScore, size: int) -> Rollout:
        if not self.sizes:
            return super().differentiate(rollout, rows, score, size)

        def differentiated(part: Part, own: Rollout) -> Rollout:
            chosen = torch.isin(part.samples, rows).nonzero()[:, 0]
            with self._counted(part.size) as one:
                return one.differentiate(own, chosen, score_of(part, score), size)

        return each_part(rollout, differentiated)

    def _each_size(self, prompts: Sequence[Prompt], roll_out: Callable[[Self, list[int]], Rollout]) -> Rollout:
        """Returns one rollout of those that `roll_out` makes of the rows of each size's prompts."""
        rows: dict[Size, list[int]] = {}
        for row, prompt in enumerate(prompts):
            rows.setdefault(self.size_for(prompt), []).append(row)
        made = []
        for size, own in rows.items():
            with self._counted(size) as one:
                made.append((size, roll_out(one, own)))
        return joined_sizes(made)

    @contextmanager
    def _counted(self, size: Size) -> Iterator[Self]:
        """Yields the policy at a size, as the core has set this one; counts its network calls."""
        one = self.at(size)
        one.records_trajectories, before = self.records_trajectories, one.num_calls
        one.renders_latents = self.renders_latents
        try:
            yield one
        finally:
            self.num_calls += one.num_calls - before

    @property
    def device(self) -> torch.device:
        assert self._placement is not None, "prepare() comes first"
        return self._placement.device

    @property
    def weights(self) -> Weights:
        assert self._weights is not None, "prepare() comes first"
        return self._weights

    def modules(self) -> Mapping[str, nn.Module]:
        return {name: getattr(self._pipeline, name) for name in self.network_names}

    def sigmas(self, kind: Literal["pipeline", "uniform"], num_steps: int) -> list[float]:
        if (kind, num_steps) not in self._grids:
            self._grids[kind, num_steps] = self.grid(kind, num_steps)
        return self._grids[kind, num_steps]

    def export(self, folder: Path) -> None:
        """Writes the weights now in place: a LoRA for `pipe.load_lora_weights`, or the whole pipeline's folder."""
        if self.lora is None:
            with _quiet_about_absent_parts():
                save_pipeline(self._pipeline, folder)
            return
        save_lora(self._pipeline, self.modules(), folder)

    def usage(self, prompt: Prompt, plan: Any, base: str) -> Usage:
        """Returns how diffusers samples an image of a prompt with the export, as the plan does."""
        assert self._placement is not None, "prepare() comes first"
        if self.sizes:
            return self.sized(prompt).usage(prompt, plan, base)
        grid = grid_of(plan, self.sigmas)
        call = self.call(plan, grid)
        is_adapter = self.lora is not None
        loaded = base if is_adapter else None
        code = code_of(self._pipeline, self.network_names, str(self._placement.dtype), prompt, call, loaded)
        return usage_of(code, call, f"the {' and the '.join(self.network_names)}", is_adapter, plan, grid)

    def call(self, plan: Any, grid: Grid | None) -> Call:
        """Returns the arguments with which the stock pipeline samples as the plan does."""
        size = {"height": str(self.height), "width": str(self.width)}
        if not isinstance(plan, Plan):
            return Call(size)
        arguments = size | {"num_inference_steps": str(num_steps(plan)), "guidance_scale": str(plan.guidance_scale)}
        if plan.guidance_scale != 1 and self.negative_prompt:
            arguments["negative_prompt"] = repr(self.negative_prompt)
        return Call(arguments)

    def encoded_files(self) -> EncodedFiles | None:
        """Returns the files of the setting `encodings`. Raises ConfigError where there can be no such folder."""
        if self.encodings is None:
            return None
        assert self._placement is not None, "prepare() comes first"
        names = [name for name in self._pipeline.components if name.startswith(_ENCODERS)]
        identity = identity_of(self._pipeline, names, self._placement.dtype)
        return EncodedFiles(folder_of(self.encodings, f"modalities.{self.title[0]}.encodings"), identity)

    @contextmanager
    def encoders_on_device(self) -> Iterator[None]:
        """Has the text encoders on the network's device; after it they are on the CPU where they are offloaded."""
        encoders = [part for name in self.encoder_names if (part := getattr(self._pipeline, name)) is not None]
        with ExitStack() as stack:
            for encoder in encoders:
                if self.offload_text_encoders:
                    stack.enter_context(moved(encoder.to("cpu"), self.device))
                else:
                    encoder.to(self.device)
            yield

    def _load(self, placement: Placement) -> Any:
        """Loads the pipeline with all parts frozen. Raises ConfigError where it cannot be loaded."""
        from diffusers.utils import logging as diffusers_logging
        from transformers.utils import logging as transformers_logging

        diffusers_logging.disable_progress_bar()
        transformers_logging.disable_progress_bar()
        setting = f"modalities.{self.title[0]}.model"
        source = source_of(self.model, setting, "diffusers", self.index_file)
        trained_dtype = torch.float32 if self.lora is None and not placement.is_frozen else placement.dtype
        try:
            pipeline = self.open(source, trained_dtype, placement.dtype)
        except (OSError, ValueError, TypeError) as error:
            raise ConfigError(f"{setting}: cannot load {self.model!r} as {self.title[1]}: {error}") from error
        pipeline.set_progress_bar_config(disable=True)
        for part in pipeline.components.values():
            if isinstance(part, nn.Module):
                part.requires_grad_(False).eval()
        if self.vae_dtype != "float32" and (vae := pipeline.components.get("vae")) is not None:
            vae.decode = partial(_in_its_dtype, vae, vae.decode)
        self.place(pipeline, placement.device)
        return pipeline


@dataclass(kw_only=True)
class PipelinePolicy(DiffusersPolicy):
    """A text-to-image pipeline of a hand-written family: one network, and latents of pixels by a VAE of images."""

    pipeline_class: ClassVar[str]  # in diffusers and in a model_index.json
    other_classes: ClassVar[tuple[str, ...]] = ()  # that a model_index.json may name, whose parts are the same
    without: ClassVar[Mapping[str, Any]] = MappingProxyType({})  # arguments of the loader that leave parts out
    network: ClassVar[str]  # the part that is trained
    encoders: ClassVar[tuple[str, ...]]
    attention_layers: ClassVar[tuple[str, ...]]  # ends of the names of the layers that a LoRA adapts

    @property
    def network_names(self) -> tuple[str, ...]:
        return (self.network,)

    @property
    def encoder_names(self) -> tuple[str, ...]:
        return self.encoders

    def adapted_layers(self, network: Any) -> tuple[str, ...]:
        return self.attention_layers

    def open(self, source: str, trained: torch.dtype, frozen: torch.dtype) -> Any:
        import diffusers

        dtypes = {self.network: trained, "vae": LATENT_DTYPES[self.vae_dtype], "default": frozen}
        absent: dict[str, Any] = {}
        if Path(source).is_dir():
            absent = absent_parts(Path(source), (self.pipeline_class, *self.other_classes))
        loader: Any = getattr(diffusers, self.pipeline_class)
        return loader.from_pretrained(source, dtype=dtypes, **(absent | dict(self.without)))

    def place(self, pipeline: Any, device: torch.device) -> None:
        # channels_last halves the time of small convolutions on CPUs; an H200 decodes a tenth to a third slower by it
        layout = torch.channels_last if device.type == "cpu" else torch.contiguous_format
        pipeline.vae.to(device, memory_format=layout)

    _files: EncodedFiles | None = field(default=None, init=False, repr=False)

    def prepare(self, placement: Placement) -> None:
        super().prepare(placement)
        if self.lora is not None:
            leave_casts_to_autocast(self.trained_network())
        self._files = self.encoded_files()

    @property
    def encoding_settings(self) -> tuple[int, ...]:
        """Returns the settings that the conditioning of a text depends on."""
        return ()

    def encoded(self, texts: list[str]) -> Conditioning:
        if self._files is None:
            return super().encoded(texts)
        files, about = self._files, ("conditioning", self.encoding_settings)

        def kept(text: str) -> Conditioning:
            return Conditioning(files.get((*about, text), lambda: self.encode_prompts([text]).tensors, self.device))

        return Conditioning.join([kept(text) for text in texts])  # one by one: alike, whatever others are missing

    def num_read(self, tokenizer: str) -> int:
        """Returns how many tokens the encoder of the part `tokenizer` of the pipeline reads."""
        return int(getattr(self._pipeline, tokenizer).model_max_length)

    def cuts(self, texts: Sequence[str]) -> list[tuple[Cut, ...]]:
        """Returns, for each text, which text encoders cut it, and where."""
        present = [name for name in self.encoders if getattr(self._pipeline, name) is not None]
        names = [name.replace("text_encoder", "tokenizer") for name in present]
        return cuts_of([(getattr(self._pipeline, name), self.num_read(name)) for name in names], texts)

    def conditioning(self, texts: Sequence[str]) -> Conditioning:
        with without_cut_warnings(self._pipeline):
            return super().conditioning(texts)

    def trained_network(self) -> Any:
        """Returns the part of the pipeline that is trained."""
        return getattr(self._pipeline, self.network)

    @property
    def latent_shape(self) -> tuple[int, ...]:
        factor = self._pipeline.vae_scale_factor
        return (self.trained_network().config.in_channels, self.height // factor, self.width // factor)

    def decode_latents(self, latents: Tensor) -> Tensor:
        factor, shift = self._vae_scale()
        scaled = (latents.float() / factor + shift).to(LATENT_DTYPES[self.vae_dtype])
        images = self._pipeline.vae.decode(scaled, return_dict=False)[0].float()
        return (images / 2 + 0.5).clamp(0, 1).contiguous()  # type: ignore[no-any-return]

    def encode_images(self, images: Tensor) -> Tensor:
        factor, shift = self._vae_scale()
        pixels = (images.to(self.device).float() * 2 - 1).to(LATENT_DTYPES[self.vae_dtype])
        posterior = self._pipeline.vae.encode(pixels).latent_dist
        return (posterior.mean.float() - shift) * factor  # type: ignore[no-any-return]

    def _vae_scale(self) -> tuple[Any, Any]:
        """Returns (factor, shift): VAE latents are the network's / factor + shift, each a number or [1, C, 1, 1]."""
        config = self._pipeline.vae.config
        if config.get("latents_mean") is None or config.get("latents_std") is None:
            return config.scaling_factor, config.get("shift_factor") or 0.0
        mean, std = (
            torch.tensor(config[name], device=self.device).view(1, -1, 1, 1) for name in ("latents_mean", "latents_std")
        )
        return config.scaling_factor / std, mean


@contextmanager
def _without_adapters(networks: Mapping[str, nn.Module]) -> Iterator[None]:
    """Switches the LoRA of all networks off."""
    with ExitStack() as stack:
        for network in networks.values():
            stack.enter_context(without_adapter(network))
        yield


@contextmanager
def _quiet_about_absent_parts() -> Iterator[None]:
    """Drops the warnings of diffusers about the parts that a pipeline is without: that None cannot be saved."""
    logger = logging.getLogger("diffusers.pipelines.pipeline_utils")

    def is_of_a_part(record: logging.LogRecord) -> bool:
        return "=None of type" not in record.getMessage()

    logger.addFilter(is_of_a_part)
    try:
        yield
    finally:
        logger.removeFilter(is_of_a_part)


def _in_its_dtype(vae: Any, decode: Callable[..., Any], latents: Tensor, *args: Any, **kwargs: Any) -> Any:
    """Decodes latents in the dtype of the autoencoder; the code of many pipelines hands on those of float32."""
    return decode(latents.to(vae.dtype), *args, **kwargs)


def _tile(pipeline: Any, setting: str) -> None:
    """Lets the pipeline's autoencoder work in tiles. Raises ConfigError where it cannot."""
    vae = pipeline.components.get("vae")
    try:
        vae.enable_tiling()
    except (AttributeError, NotImplementedError) as error:
        raise ConfigError(f"{setting}: the {type(vae).__name__} of this model has no tiles; leave it out") from error


def _set_attention(network: Any, backend: str, setting: str) -> None:
    """Sets the attention backend. Raises ConfigError where no layer takes one."""
    network.set_attention_backend(backend)
    processors = [getattr(module, "processor", None) for module in network.modules()]
    if not any(hasattr(processor, "_attention_backend") for processor in processors):
        raise ConfigError(f"{setting}: the layers of a {type(network).__name__} take no backend; leave it out")


def absent_parts(folder: Path, pipeline_classes: Sequence[str] | None = None) -> dict[str, Any]:
    """Returns the parts that a local pipeline was saved without; diffusers needs to know of a missing T5.

    Raises ValueError for a folder without a pipeline, and for one of other classes.
    """
    index = folder / _INDEX
    if not index.is_file():
        raise ValueError(f"it has no {_INDEX}")
    parts = json.loads(index.read_text(encoding="utf-8"))
    if pipeline_classes is not None and parts.get("_class_name") not in pipeline_classes:
        raise ValueError(f"its {_INDEX} names {parts.get('_class_name')!r}")
    return {name: None for name, origin in parts.items() if origin == [None, None]}
