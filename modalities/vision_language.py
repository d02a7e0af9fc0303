"""Vision-language models: a transformers image-text-to-text model as a policy that answers in text."""

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

import torch
from pydantic import Field
from torch import Tensor, nn

from mmrl.core.contracts import ConfigError, Footprint, Placement, Usage, Workload
from mmrl.core.data import Prompt, Rollout
from mmrl.core.declarations import PolicyDeclaration
from mmrl.core.weights import Weights, whole
from mmrl.parsing.coordinates import Convention
from mmrl.plans.answers import AnswerPlan

from .encoding.deepstack import use_places
from .encoding.families import (
    Family,
    family_of,
    family_of_name,
    is_tested,
    media_tokens,
    unread,
    video_clock,
    without_text,
)
from .encoding.inputs import EncodedPrompt
from .encoding.network import decoder_name, is_whole, kinds_name, vision_parameters, vision_parts
from .encoding.prompt_encoder import PromptEncoder
from .encoding.tower import KeptFeatures, Tower, makes_features
from .encoding.validation import refusal
from .language.adapter_scores import POLICY, RewardAdapters, write_tiny_adapter
from .language.chat_template import ANSWER, fault_of_template
from .language.merging import say_difference
from .language.model import SharingMode
from .language.own_forward import refuse_other_log_probs, refusing_errors
from .language.policy import TokenPolicy
from .language.probes import IMAGES
from .language.probing import image_tokens, probed_backbone, probed_head
from .language.usage import Clips, Question, Tokens, code_of, unit_note
from .loading.adapted_layers import freeze_unused
from .loading.gathered_export import gathered_adapter, write_gathered
from .loading.hub import autocast, cast_weights, checkpointing, without_adapter
from .loading.lora import Lora
from .loading.merging import MergedAdapters, check_merging
from .loading.quantise import Quantise, only_with_lora
from .loading.vision_language import check_finite, load, model_type_of
from .tokens.attention import Attention, attention_of, not_as_requested, takes_trees
from .tokens.backbone import ONE_IMAGE, Backbone, Sight, answers_to_each
from .tokens.compiled_step import CompiledStep, check_compiled
from .tokens.log_probs import OutputHead
from .tokens.sampling import SamplingDistribution
from .tokens.trace import TokenTrace
from .tokens.vllm.launch import Served
from .tokens.vllm.prompts import clip_refusal

_CONFIG = "config.json"  # the file that the folder of a model holds
log = logging.getLogger(__name__)


@dataclass(kw_only=True)
class VisionLanguage(TokenPolicy):
    """An image-text-to-text model of transformers with its processor and chat template, full or with LoRA.

    A model of a type that no test runs is compared with its own forward pass when it is loaded, and refused where its
    log-probs differ; a way of sharing that differs from plain rows is not used. Frozen weights are in the run's
    precision, trained weights in float32 under autocast.

    `sharing: cache` expands the prompt's cache (under `gradient_checkpointing` only the vision tower is then
    checkpointed), `packed` makes one row of prompt and answers, `none` repeats the prompt. `sharing_used` says which
    way is taken, and why. `flex_attention` is for the language model alone; on a CPU, where it has no backward pass,
    sdpa takes its place.
    """

    task: ClassVar[str] = "image-text-to-text"  # as the hub calls it
    compile_backend: ClassVar[Any] = "inductor"  # of `torch.compile`
    compared: ClassVar[tuple[Prompt, ...]] = IMAGES  # the prompts that a type of model that no test runs is tried on

    model: str  # a hub name, a folder as transformers saves it, or `lab:NAME`
    system_prompt: str | None = None  # the system message; a prompt's own takes its place
    template: str = "{prompt}"  # the user's message around the prompt's text
    # Of an image after resizing, for families with a budget of pixels; null: the processor's.
    min_pixels: Annotated[int, Field(ge=1)] | None = None
    max_pixels: Annotated[int, Field(ge=1)] | None = None  # the same
    lora: Lora | None = None  # on the language model; null: all its weights are trained
    quantise: Quantise | None = None  # the frozen weights under a LoRA in 4 or 8 bits; null: in the run's precision
    # The parts that turn images into tokens (tower and connector): `frozen` or `trained`, with LoRA by adapters of
    # their own.
    vision: Literal["frozen", "trained"] = "frozen"
    vision_rate: Annotated[float, Field(gt=0)] = 1.0  # times the learning rate, for the vision part
    gradient_checkpointing: bool = False  # less memory, more time; the same gradient
    # How an update runs a prompt once for its answers: `cache`, `packed` (one row under a tree mask), or `none`.
    # `auto`: packed under gradient checkpointing, else cache. A model that cannot share falls back to `none`.
    sharing: Literal["auto", "cache", "packed", "none"] = "auto"
    # An attention implementation of transformers: `sdpa`, `eager`, `flash_attention_2`, or `flex_attention` (of the
    # language model in updates). Packed rows need any of them but flash attention. Or `{tower: , update: , rollout: }`,
    # each null or a name of its own.
    attention: str | Attention | None = None
    # Of a frozen tower: features of images that are kept for all passes of an iteration; 0: each pass makes them anew.
    kept_features_gb: Annotated[float, Field(ge=0)] = 2.0
    # The unit in which the model writes coordinates: `original` or `resized` pixels, `thousand` (0 to 1000), `unit` (0
    # to 1); null: its family's.
    coordinates: Convention | None = None
    # Longer prompts, images included, are refused; nothing is ever cut. null: the model's context.
    max_prompt_tokens: Annotated[int, Field(ge=1)] | None = None
    # `torch.compile` on the step of sampling (CUDA graphs on a GPU); sdpa and models without windows
    compile: bool = False  # and states; log-probs change in their last digits
    prompt_cache: Annotated[int, Field(ge=1)] = 64  # how many prompts are kept with their images decoded and resized
    prompt_cache_gb: Annotated[float, Field(ge=0)] = 4.0  # what these take of the CPU's memory, at most
    # The `model_type` of transformers, for `check --tiny` where the hub name does not tell the family.
    family: str | None = None
    _model: Any = field(default=None, init=False, repr=False)
    _encoder: PromptEncoder | None = field(default=None, init=False, repr=False)
    _weights: Weights | None = field(default=None, init=False, repr=False)
    _banned: tuple[int, ...] = field(default=(), init=False, repr=False)
    _tower: Tower | None = field(default=None, init=False, repr=False)
    _merged: MergedAdapters | None = field(default=None, init=False, repr=False)  # of rollouts, where it is set
    _rewards: RewardAdapters | None = field(default=None, init=False, repr=False)  # on the same base
    _compiled: CompiledStep | None = field(default=None, init=False, repr=False)
    _head: OutputHead | None = field(default=None, init=False, repr=False)  # with the scale that was asked; no tensors

    def __post_init__(self) -> None:
        """Raises ValueError for settings out of range, for a template without the prompt, and for swapped bounds."""
        super().__post_init__()
        only_with_lora(self.quantise, self.lora)
        if self.lora is not None and self.engine is not None and self.engine.sleep == 2:
            raise ValueError("engine.sleep must be 0 or 1 with a lora, whose base the server would drop, got 2")
        if self.lora is not None and self.lora.use_dora and self.engine is not None:
            raise ValueError("lora.use_dora: vLLM serves no DoRA; leave use_dora or the engine out")
        check_merging(self.lora, self.quantise)
        if self.engine is not None and self._of_own_rollouts:
            raise ValueError(f"{self._of_own_rollouts[0]} is for rollouts by transformers, and an engine is set")
        if "{prompt}" not in self.template:
            raise ValueError(f"template must hold {{prompt}}, where the prompt's text goes, got {self.template!r}")
        if (self.min_pixels or 0) > (self.max_pixels or float("inf")):
            raise ValueError(f"min_pixels must be at most max_pixels ({self.max_pixels}), got {self.min_pixels}")

    @property
    def declaration(self) -> PolicyDeclaration:
        """Returns what rollouts provide, whether the unit of coordinates is known, and the model as it is set."""
        # an agent's screens are not known ahead, and a server that sleeps samples nothing
        ahead = self.engine is not None and not self.engine.sleep and self.sample_kind == "tokens"
        declared = replace(super().declaration, has_coordinates=self._has_coordinates(), samples_ahead=ahead)
        return replace(declared, checkpoint=self.model, checkpoint_file=_CONFIG)

    def prepare(self, placement: Placement) -> None:
        """Loads model and processor.

        Raises ConfigError where they cannot be found or are of another kind, and where a type of model that no test
        runs differs from its own forward pass.
        """
        if placement.maximum is not None and self._of_own_rollouts:
            raise ConfigError(f"modality.{self._of_own_rollouts[0]}: not with weights that are sharded over processes")
        self._placement = replace(placement, maximum=None)  # every process by itself, until weights are sharded
        dtype = torch.float32 if self.lora is None else placement.dtype
        self._model, processor = load(self.model, dtype, Attention.of(self.attention).loaded, _CONFIG)
        with refusing_errors(self.model, self._model.config):
            self._set_up(processor, placement)
            if not is_tested(self._model.config):
                self._probe()
            refuse_other_log_probs(self, self.model, self.encoder, self.compared)
        if self.compile:
            with self.sampling():
                check_compiled(self.backbone, self.model)
        if placement.maximum is not None and self.backbone.one_at_a_time:
            raise ConfigError(
                f"sharding is 'full', but {self.model!r} computes prompts one at a time, and processes that share "
                "weights compute them together; set sharding to none"
            )
        self._placement = placement

    def _set_up(self, processor: Any, placement: Placement) -> None:
        """Moves the loaded model to its device, and applies the run's settings to it and its processor."""
        if self.quantise is not None:
            self.quantise.apply(self._model, placement)
        self._model.requires_grad_(False).eval().to(placement.device)
        Attention.of(self.attention).place(self._model, self.model)
        use_places(self._model)
        check_finite(self.model, self._model)
        tokens = media_tokens(self._model.config, processor)
        self._banned = tuple(sorted({*tokens.values(), *without_text(len(self.head.weight), processor.tokenizer)}))
        self._encoder = PromptEncoder(
            processor=processor,
            model=self._model,
            template=self.template,
            system=self.system_prompt,
            convention=self.coordinates or family_of(self._model.config.model_type).convention,
            media_tokens=tokens,
            max_tokens=self.max_prompt_tokens,
            capacity=self.prompt_cache,
            max_bytes=int(1e9 * self.prompt_cache_gb),
        )
        self._encoder.set_pixels(self.min_pixels, self.max_pixels)
        self._weights = self._choose_trained(placement.dtype)
        if makes_features(self._model):
            is_frozen = self.vision == "frozen" and not self.adapted_tower
            self._tower = Tower(self._model, KeptFeatures(int(1e9 * self.kept_features_gb)) if is_frozen else None)
        self._merged = MergedAdapters([self._model]) if self.lora is not None and self.lora.merge_rollouts else None
        if self.gradient_checkpointing:
            checkpoint = getattr(self._model, "activation_checkpointing_enable", None)  # its name in transformers 5.23
            (checkpoint or self._model.gradient_checkpointing_enable)({"use_reentrant": False})

    def _probe(self) -> None:
        """Finds out about the model and its processor what mmrl knows of families that tests run."""
        encoder = self.encoder
        tokens = {**encoder.media_tokens, **image_tokens(encoder, self.compared)}
        tokens = {text: number for text, number in tokens.items() if number not in self.end_tokens}
        encoder.media_tokens = tokens
        self._banned = tuple(sorted({*self._banned, *tokens.values()} - set(self.end_tokens)))
        alone = replace(encoder, max_tokens=None, _kept={})  # the run's own prompts may be shorter than these
        self.share("none")  # until a way of sharing is proven
        with self.running():
            self.use(probed_backbone(self.backbone, alone, self.compared, self.tokenize(ANSWER)))
            given = {name: value.to(self._model.device) for name, value in alone.processed(self.compared[-1]).items()}
            self._head = probed_head(self._model, self.head, given)
        self._freeze_unused(alone(self.compared))
        if (fault := fault_of_template(encoder)) is not None:
            log.warning(
                "modality.model: the chat template of %r: %s; look at a prompt and an answer of it before training",
                *(self.model, fault),
            )

    def _freeze_unused(self, prompts: Sequence[EncodedPrompt]) -> None:
        """Freezes what reaches no log-prob of an update, such as a head that is for other tasks or a generator."""
        answers = answers_to_each([torch.tensor(self.tokenize(ANSWER))], len(prompts), self.backbone.device)
        distribution = SamplingDistribution(1.0, banned=self.banned)
        freeze_unused(self._model, [lambda: self.log_probs(prompts, answers, distribution)[0]])
        self._weights = self._trained()

    def tiny(self, seed: int, folder: Path) -> Self:
        """Returns the same settings on a random twin of the family at small sizes.

        Images shrink to at most 56 x 56 pixels.
        """
        from .tiny.vision_language import write_tiny

        write_tiny(self._family().name, seed, folder)
        lora = None if self.lora is None else replace(self.lora, rank=min(self.lora.rank, 4), path=None)
        small = replace(
            self,
            model=str(folder),
            lora=lora,
            min_pixels=None if self.min_pixels is None else 28 * 28,
            max_pixels=None if self.max_pixels is None else 56 * 56,
            compile=False,
            max_prompt_tokens=None if self.max_prompt_tokens is None else 2**15,  # its tokens are bytes and a few words
        )
        return small.with_tiny_engine()

    def with_tiny_engine(self) -> Self:
        """Returns the same policy with a small server of this machine in the place of its engine, if it has one."""
        if self.engine is None:
            return self

        def load(model: str) -> VisionLanguage:
            served = VisionLanguage(model=model, min_pixels=self.min_pixels, max_pixels=self.max_pixels)
            served.prepare(Placement(torch.device("cpu"), torch.float32))
            return served

        return replace(self, engine=self.engine.tiny(Path(self.model), load))

    @property
    def served(self) -> Served:
        """Returns what a server of this model must serve: its folder or name, its adapter, and the limits of pixels."""
        rank = None if self.lora is None else self.lora.rank
        dtype = str(self.precision).removeprefix("torch.")
        clock = video_clock(self._model.config)
        return Served(self.model, dtype, rank, bool(self.adapted_tower), self.min_pixels, self.max_pixels, clock)

    @property
    def backbone(self) -> Backbone:
        if self._probed is not None:
            return self._probed
        kinds, pad = kinds_name(self._model), self.encoder.processor.tokenizer.pad_token_id
        family = family_of(self._model.config.model_type)
        layers = ("full_attention", "sliding_attention") if family.sees_ahead else ()
        sight = dict.fromkeys(layers, Sight(ONE_IMAGE, ONE_IMAGE))
        # processes that share weights gather them in the network's own forward pass alone
        tower = self._tower if self.lockstep is None else None
        return Backbone(self._model, 0 if pad is None else pad, kinds, sight=sight, tower=tower)

    @property
    def num_known_tokens(self) -> int:
        return len(self._model.get_output_embeddings().weight)

    @property
    def head(self) -> OutputHead:
        layer, text = self._model.get_output_embeddings(), self._model.config.get_text_config()
        if self._head is not None:
            bias = None if layer.bias is None else whole(layer.bias)
            return replace(self._head, weight=whole(layer.weight), bias=bias)
        scale = getattr(text, "logit_scale", None) or 1 / (getattr(text, "logits_scaling", None) or 1)
        bias = None if layer.bias is None else whole(layer.bias)
        return OutputHead(whole(layer.weight), bias, scale, getattr(text, "final_logit_softcapping", None))

    @property
    def encoder(self) -> PromptEncoder:
        """Returns the encoder of prompts; known after `prepare`."""
        assert self._encoder is not None, "prepare() comes first"
        return self._encoder

    @property
    def compiled_step(self) -> CompiledStep | None:
        if self.compile and self._compiled is None:
            self._compiled = CompiledStep.of(self.backbone, self.compile_backend)
        return self._compiled

    @property
    def banned(self) -> tuple[int, ...]:
        return self._banned

    @property
    def end_tokens(self) -> tuple[int, ...]:
        """Returns the end tokens of the model's generation settings, the tokenizer's own first."""
        own = self.encoder.processor.tokenizer.eos_token_id
        ends = self._model.generation_config.eos_token_id
        ends = [ends] if isinstance(ends, int) else list(ends or [own])
        return tuple(sorted(ends, key=lambda token: token != own))

    @property
    def wanted_ways(self) -> tuple[SharingMode, ...]:
        if self.sharing == "auto":  # a layer that checkpoints keeps no cache
            return ("packed",) if self.gradient_checkpointing else ("cache", "packed")
        return () if self.sharing == "none" else (self.sharing,)

    @property
    def sharing_mode(self) -> SharingMode:
        return self._sharing()[0]

    @property
    def sharing_used(self) -> str:
        """Returns how an update shares prompts, and why not where it does not; known after `prepare`."""
        way, reason = self._sharing()
        return f"{way} ({reason})" if reason else way

    @property
    def weights(self) -> Weights:
        assert self._weights is not None, "prepare() comes first"
        return self._weights

    @property
    def adapted_tower(self) -> Mapping[str, Tensor]:
        vision, named = vision_parameters(self._model), self._model.named_parameters()
        own = {name: tensor for name, tensor in named if "lora_" in name and f".{POLICY}" in name}
        return {f"model.{name}": tensor for name, tensor in own.items() if name in vision}

    def modules(self) -> Mapping[str, nn.Module]:
        return {"model": self._model}

    def networks(self) -> Sequence[nn.Module]:
        return [self._model if is_whole(self._model) else self._model.model]

    def encode(self, prompts: Sequence[Prompt]) -> list[EncodedPrompt]:
        return self.encoder(prompts)

    def use_workers(self, count: int, max_bytes: int) -> None:
        """Sets the threads that decode and encode prompts with media, and the bytes of prompts encoded ahead."""
        self.encoder.use_workers(count, max_bytes)

    def prefetch(self, prompts: Sequence[Prompt]) -> None:
        """Begins to decode and encode prompts on the threads; returns at once."""
        self.encoder.prefetch(prompts)

    def decoding_seconds(self) -> tuple[float, float]:
        """Returns the seconds so far that `encode` took, and that the threads worked."""
        encoder = self.encoder
        return encoder.seconds, 0.0 if encoder.workers is None else encoder.workers.seconds

    def close(self) -> None:
        """Ends the threads that encode prompts, and what an inference engine samples ahead."""
        self.close_engine()
        if self._encoder is not None:
            self._encoder.close()

    def refusal(self, prompt: Prompt) -> str | None:
        """Returns why a prompt cannot be read, by its texts and the headers of its media; None where it can be."""
        why = None if self.engine is None else clip_refusal(prompt, video_clock(self._model.config))
        why = why or refusal(prompt, self.encoder)
        return why or self.refusal_of_offline(prompt)

    def unreadable(self, prompt: Prompt) -> str | None:
        """Returns why a prompt cannot be read, by encoding it; None where it can be."""
        try:
            self.encode([prompt])
        except ConfigError as error:
            return str(error)
        return None

    def decode(self, tokens: list[int]) -> str:
        tokenizer = self.encoder.processor.tokenizer
        return str(tokenizer.decode(tokens, skip_special_tokens=False, clean_up_tokenization_spaces=False))

    def tokenize(self, text: str) -> list[int]:
        return list(self.encoder.processor.tokenizer(text, add_special_tokens=False)["input_ids"])

    @contextmanager
    def running(self) -> Iterator[None]:
        """Sets autocast below float32, and checkpointing where it is switched on and a gradient will be taken."""
        assert self._placement is not None, "prepare() comes first"
        is_checkpointed = self.gradient_checkpointing and torch.is_grad_enabled()
        # a layer drops the cache when it checkpoints, so the language model stays as it is where a cache is shared
        kept = f"{decoder_name(self._model)}." if self.sharing_mode == "cache" else None
        with autocast(self._placement), checkpointing(self._model, kept) if is_checkpointed else nullcontext():
            yield

    @contextmanager
    def sampling(self) -> Iterator[None]:
        """Sets the attention of rollouts, and merges the adapter where `lora.merge_rollouts` is set."""
        with Attention.of(self.attention).sampling(self._model), self._merged() if self._merged else nullcontext():
            yield

    def load_reward_adapter(self, path: str) -> None:
        """Loads a reward model onto the frozen base. Raises ConfigError where it does not fit, and without a LoRA."""
        if self.lora is None:
            raise ConfigError(
                f"reward adapter {path}: its base is the policy's, whose weights are all trained; set lora"
            )
        if self._rewards is None:
            self._rewards = RewardAdapters(self._model)
        self._rewards.add(path)

    def adapter_scores(self, rollout: Rollout, path: str, size: int) -> Tensor:
        """Returns the scores [B] of the answers by a loaded reward model, read at their last tokens."""
        assert self._rewards is not None, "load_reward_adapter comes first"
        # kept features are those of the policy's tower
        backbone = replace(self.backbone, tower=None) if self._rewards.adapts_vision(path) else None
        with self._rewards.active(path):
            states = self.last_states(rollout, size, backbone)
        return self._rewards.scores(path, states)

    def write_tiny_adapter(self, seed: int, folder: Path) -> None:
        """Writes a random reward model for this policy's base to a folder."""
        model, _ = load(self.model, torch.float32, Attention.of(self.attention).loaded, _CONFIG)
        write_tiny_adapter(model, decoder_name(model), seed, folder)

    def forget(self) -> None:
        """Frees the kept features of images."""
        if self._tower is not None and self._tower.kept is not None:
            self._tower.kept.drop()

    def sampled(self, trace: TokenTrace, prompt_of: Tensor) -> None:
        if self._merged is not None:
            say_difference(self, self._merged, trace, prompt_of)

    def export(self, folder: Path) -> None:
        """Writes the weights now in place, with the processor: a transformers folder, or a peft adapter's."""
        self._model.save_pretrained(folder)
        self.encoder.processor.save_pretrained(folder)

    def export_gathered(self, folder: Path | None) -> None:
        """Writes what `export` writes of weights that processes share, in the precision of the run.

        All processes must call it; `folder` is None where another one writes.
        """
        if self.lora is None:
            write_gathered(self._model, folder, self.precision)
        else:
            adapter = gathered_adapter(self._model)
            if folder is not None:
                self._model.save_pretrained(folder, state_dict=adapter)
        if folder is not None:
            self.encoder.processor.save_pretrained(folder)

    def usage(self, prompt: Prompt, plan: Any, base: str) -> Usage:
        """Returns how transformers answers a prompt with the export, as the plan does."""
        assert self._placement is not None, "prepare() comes first"
        instructed, is_adapter = self.with_instructions(prompt), self.lora is not None
        images = self.encoder.processor.image_processor
        question = Question(
            text=self.template.replace("{prompt}", instructed.text),
            system=instructed.system if instructed.system is not None else self.system_prompt,
            num_images=self.num_shown(prompt),
            num_clips=len(prompt.clips),
            has_grid=hasattr(images, "merge_size"),
            convention=self.encoder.convention,
        )
        code = code_of(
            question,
            plan if isinstance(plan, AnswerPlan) else None,
            base if is_adapter else None,
            self.clips_usage(),
            str(self._placement.dtype),
            Tokens(self.end_tokens, self.banned),
        )
        parts = "the language model" + (" and the vision tower" if self.vision == "trained" else "")
        notes = unit_note(self.encoder.convention, question.num_images)
        if self.min_pixels is not None or self.max_pixels is not None:
            bounds = f"{self.min_pixels or 'any'} to {self.max_pixels or 'any'} pixels"
            notes += (f"Images are resized to {bounds}; the processor in this folder is set so.",)
        trained = f"{parts}, {'a LoRA' if is_adapter else 'all weights'}"
        return Usage("peft" if is_adapter else "transformers", self.task, trained, is_adapter, code, notes)

    def with_instructions(self, prompt: Prompt) -> Prompt:
        """Returns the prompt with the instructions of the policy; `usage.screen` stands for a screen's size."""
        return prompt

    def num_shown(self, prompt: Prompt) -> int:
        """Returns how many images the model sees with a prompt."""
        return len(prompt.media)

    def clips_usage(self) -> Clips | None:
        """Returns how frames of videos are chosen; None for a policy of images."""
        return None

    @property
    def _of_own_rollouts(self) -> list[str]:
        """Returns the settings in use that change how this policy itself samples, on one process."""
        used = {"lora.merge_rollouts": self.lora is not None and self.lora.merge_rollouts, "compile": self.compile}
        return [name for name, is_used in used.items() if is_used]

    def _has_coordinates(self) -> bool:
        """Returns whether the unit of coordinates is known; also where the family is only known when it is loaded."""
        if self._encoder is not None:
            return self._encoder.convention is not None
        try:
            return self.coordinates is not None or self._family().convention is not None
        except ConfigError:
            return True

    def _family(self) -> Family:
        """Returns the family by the settings, the model's config or its name. Raises ConfigError where none tells."""
        if self.family is not None:
            return family_of(self.family)
        config = Path(self.model).expanduser() / _CONFIG
        if config.is_file():
            return family_of(model_type_of(config))
        found = family_of_name(self.model)
        if found is None:
            from .tiny.vision_language import TWINS  # imports transformers

            raise ConfigError(
                f"modality.model: cannot tell the family of {self.model!r} from its name; set modality.family to one "
                f"of {', '.join(TWINS)}"
            )
        return found

    def footprint(self, work: Workload) -> Footprint:
        """Returns memory and FLOPs, by a network without content. Raises ConfigError for an unknown architecture."""
        from .language.footprint import footprint_of

        wanted: SharingMode = next(iter(self.wanted_ways), "none")
        return footprint_of(self, wanted, work)

    def train_on_meta(self, model: Any, frozen_dtype: torch.dtype) -> None:
        """Marks and adapts the parameters of a model without content as those of a loaded one."""
        before, self._model = self._model, model
        try:
            self._choose_trained(frozen_dtype)
        finally:
            self._model = before

    def _choose_trained(self, frozen_dtype: torch.dtype) -> Weights:
        """Marks the trained parameters, freezes all others, and returns the trained ones by name."""
        model, language = self._model, decoder_name(self._model)
        vision = vision_parts(model)
        if self.lora is not None:
            self.lora.add_to_language_model(model, [language, *(vision if self.vision == "trained" else [])])
        else:
            of_vision = vision_parameters(model)
            for name, parameter in model.named_parameters():
                parameter.requires_grad_(self.vision == "trained" or name not in of_vision)
            if self.vision == "frozen":
                for name in vision:
                    cast_weights(model.get_submodule(name), frozen_dtype)
        if is_tested(model.config):  # other types are asked, when they are probed
            for name, parameter in model.named_parameters():
                if unread(name, model.config):
                    parameter.requires_grad_(False)
        return self._trained()

    def _trained(self) -> Weights:
        """Returns the parameters that take a gradient, by name."""
        model = self._model
        trained = {f"model.{name}": p for name, p in model.named_parameters() if p.requires_grad}
        of_vision = vision_parameters(model)  # adapters are parameters too
        scales = {name: self.vision_rate for name in trained if name.removeprefix("model.") in of_vision}
        off = None if self.lora is None or self.lora.path is not None else partial(without_adapter, model)
        return Weights(trained, adapter_off=off, rate_scale=scales)

    def _sharing(self) -> tuple[SharingMode, str]:
        """Returns how prompts are shared, and why not as set; an empty reason where it is as set."""
        if self._shared is not None:
            way, reason = self._shared
            return way, reason or ("" if way == "none" else not_as_requested(self._model, self.attention))
        wanted: SharingMode = next(iter(self.wanted_ways), "none")
        if wanted == "packed" and not takes_trees(self._model):
            return "none", f"attention {attention_of(self._model)} takes no tree mask"
        return wanted, not_as_requested(self._model, self.attention)
