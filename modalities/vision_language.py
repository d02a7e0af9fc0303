"""Vision-language models: a transformers image-text-to-text model as a policy that answers in text."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

import torch
from torch import Tensor, nn

from mmrl.core.contracts import ConfigError, Placement, Usage
from mmrl.core.data import Prompt
from mmrl.core.weights import Weights, whole
from mmrl.parsing.coordinates import Convention
from mmrl.plans.answers import AnswerPlan

from .encoding.families import Family, family_of, family_of_name, media_tokens, unread, without_text
from .encoding.inputs import EncodedPrompt
from .encoding.prompt_encoder import PromptEncoder
from .encoding.validation import refusal
from .language.model import Way
from .language.own_forward import IMAGES, refuse_other_log_probs, refusing_errors
from .language.policy import TokenPolicy
from .language.usage import Clips, Question, Tokens, code_of, unit_note
from .loading.hub import autocast, checkpointing, without_adapter
from .loading.lora import Lora
from .loading.vision_language import check_finite, load, model_type_of
from .tokens.attention import FLEX, attention_of, loaded_with, not_as_requested, takes_trees, use_flex
from .tokens.backbone import Backbone
from .tokens.log_probs import Head
from .tokens.vllm.prompts import clip_refusal

_SHARED_LAYERS = {"full_attention", "sliding_attention"}  # kinds whose past can be shared by rows of a batch


@dataclass(kw_only=True)
class VisionLanguage(TokenPolicy):
    """An image-text-to-text model of transformers with its processor and chat template, full or with LoRA.

    One of a type that no test runs is compared with its own forward pass when it is loaded, and refused where its
    log-probs differ.

    `template` is the user's message, `{prompt}` in it the prompt's text. `min_pixels` and `max_pixels` bound an image
    after resizing (families with a pixel budget). `vision: trained` trains what turns images into tokens too (tower and
    connector; adapters on it with LoRA), at `vision_rate` times the learning rate. Frozen weights are in the run's
    precision, trained ones in float32 under autocast.

    `sharing`: how an update runs a prompt once for its answers. `cache` expands the prompt's cache (under
    `gradient_checkpointing` only the vision tower is then checkpointed), `packed` makes one row of prompt and answers,
    `none` repeats the prompt; `auto` is `packed` under checkpointing, else `cache`. What cannot share falls back to
    none; `sharing_used` says so. `attention` names an implementation of transformers; `flex_attention` is the language
    model's alone, and sdpa takes its place on a CPU, where it has no backward pass. `coordinates`: the unit that the
    model writes coordinates in, by default its family's. Longer prompts than `max_prompt_tokens` are refused.
    `family` is a model_type of transformers, for hub names that do not tell it; only `tiny` asks.
    """

    model_file: ClassVar[str] = "config.json"  # what a folder of such a model holds
    task: ClassVar[str] = "image-text-to-text"  # as the hub calls it
    compared: ClassVar[tuple[Prompt, ...]] = IMAGES  # what a type of model that no test runs is tried on

    model: str
    system_prompt: str | None = None
    template: str = "{prompt}"
    min_pixels: int | None = None
    max_pixels: int | None = None
    lora: Lora | None = None
    vision: Literal["frozen", "trained"] = "frozen"
    vision_rate: float = 1.0
    gradient_checkpointing: bool = False
    sharing: Literal["auto", "cache", "packed", "none"] = "auto"
    attention: str | None = None
    coordinates: Convention | None = None
    max_prompt_tokens: int | None = None
    prompt_cache: int = 64
    family: str | None = None
    _model: Any = field(default=None, init=False, repr=False)
    _encoder: PromptEncoder | None = field(default=None, init=False, repr=False)
    _weights: Weights | None = field(default=None, init=False, repr=False)
    _banned: tuple[int, ...] = field(default=(), init=False, repr=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        if "{prompt}" not in self.template:
            raise ValueError(f"template must hold {{prompt}}, where the prompt's text goes, got {self.template!r}")
        for name in ("min_pixels", "max_pixels", "max_prompt_tokens", "prompt_cache"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}")
        if (self.min_pixels or 0) > (self.max_pixels or float("inf")):
            raise ValueError(f"min_pixels {self.min_pixels} is above max_pixels {self.max_pixels}")
        if self.vision_rate <= 0:
            raise ValueError(f"vision_rate must be above 0 (use vision: frozen), got {self.vision_rate}")

    def prepare(self, placement: Placement) -> None:
        """Loads model and processor.

        Raises ConfigError where they cannot be found or are of another kind, and where a type of model that no test
        runs differs from its own forward pass.
        """
        self._placement = replace(placement, maximum=None)  # every process by itself, until weights are sharded
        dtype = torch.float32 if self.lora is None else placement.dtype
        self._model, processor = load(self.model, dtype, loaded_with(self.attention), self.model_file)
        with refusing_errors(self.model, self._model.config):
            self._set_up(processor, placement)
            refuse_other_log_probs(self, self.model, self.encoder, self.compared)
        self._placement = placement

    def _set_up(self, processor: Any, placement: Placement) -> None:
        """Puts the loaded model where it runs, and the run's settings on it and its processor."""
        self._model.requires_grad_(False).eval().to(placement.device)
        if self.attention == FLEX:
            use_flex(self._model, self.model)
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
        )
        self._encoder.set_pixels(self.min_pixels, self.max_pixels)
        self._weights = self._choose_trained(placement.dtype)
        if self.gradient_checkpointing:
            self._model.activation_checkpointing_enable({"use_reentrant": False})

    def tiny(self, seed: int, folder: Path) -> Self:
        """The same settings on a random twin of the family at small sizes; images shrink to at most 56 x 56 pixels."""
        from .tiny.vision_language import write_tiny

        write_tiny(self._family().name, seed, folder)
        lora = None if self.lora is None else replace(self.lora, rank=min(self.lora.rank, 4), path=None)
        small = replace(
            self,
            model=str(folder),
            lora=lora,
            min_pixels=None if self.min_pixels is None else 28 * 28,
            max_pixels=None if self.max_pixels is None else 56 * 56,
            max_prompt_tokens=None if self.max_prompt_tokens is None else 2**15,  # its tokens are bytes and a few words
        )
        return small.with_tiny_engine()

    def with_tiny_engine(self) -> Self:
        """The same, with a small server of this machine in the place of its engine, if it has one."""
        if self.engine is None:
            return self

        def load(model: str) -> VisionLanguage:
            served = VisionLanguage(model=model, min_pixels=self.min_pixels, max_pixels=self.max_pixels)
            served.prepare(Placement(torch.device("cpu"), torch.float32))
            return served

        return replace(self, engine=self.engine.tiny(Path(self.model), load))

    @property
    def backbone(self) -> Backbone:
        config = self._model.config
        pad = self.encoder.processor.tokenizer.pad_token_id
        return Backbone(self._model, 0 if pad is None else pad, config.model_type == "gemma3")

    @property
    def head(self) -> Head:
        layer, text = self._model.get_output_embeddings(), self._model.config.get_text_config()
        scale = getattr(text, "logit_scale", None) or 1 / (getattr(text, "logits_scaling", None) or 1)
        bias = None if layer.bias is None else whole(layer.bias)
        return Head(whole(layer.weight), bias, scale, getattr(text, "final_logit_softcapping", None))

    @property
    def encoder(self) -> PromptEncoder:
        assert self._encoder is not None, "prepare() comes first"
        return self._encoder

    @property
    def banned(self) -> tuple[int, ...]:
        return self._banned

    @property
    def end_tokens(self) -> tuple[int, ...]:
        """Those of the model's generation settings, the tokenizer's own first."""
        own = self.encoder.processor.tokenizer.eos_token_id
        ends = self._model.generation_config.eos_token_id
        ends = [ends] if isinstance(ends, int) else list(ends or [own])
        return tuple(sorted(ends, key=lambda token: token != own))

    @property
    def way(self) -> Way:
        return self._sharing()[0]

    @property
    def sharing_used(self) -> str:
        """How an update shares prompts, and why not where it does not; known after `prepare`."""
        way, reason = self._sharing()
        return f"{way} ({reason})" if reason else way

    @property
    def weights(self) -> Weights:
        assert self._weights is not None, "prepare() comes first"
        return self._weights

    @property
    def adapted_tower(self) -> Mapping[str, Tensor]:
        language, named = _language_name(self._model), self._model.named_parameters()
        return {f"model.{name}": tensor for name, tensor in named if "lora_" in name and _is_vision(name, language)}

    def modules(self) -> Mapping[str, nn.Module]:
        return {"model": self._model}

    def networks(self) -> Sequence[nn.Module]:
        return [self._model.model]

    def encode(self, prompts: Sequence[Prompt]) -> list[EncodedPrompt]:
        return self.encoder(prompts)

    def refusal(self, prompt: Prompt) -> str | None:
        """Why it cannot read a prompt, as far as texts and headers tell; None where they say nothing against it."""
        why = (None if self.engine is None else clip_refusal(prompt)) or refusal(prompt, self.encoder)
        return why or self.refusal_of_offline(prompt)

    def unreadable(self, prompt: Prompt) -> str | None:
        """The same with the prompt encoded."""
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
        """Autocast below float32; checkpointing where it is asked for and a gradient will be taken."""
        assert self._placement is not None, "prepare() comes first"
        is_checkpointed = self.gradient_checkpointing and torch.is_grad_enabled()
        # a layer drops the cache when it checkpoints, so the language model stays as it is where a cache is shared
        kept = f"{_language_name(self._model)}." if self.way == "cache" else None
        with autocast(self._placement), checkpointing(self._model, kept) if is_checkpointed else nullcontext():
            yield

    def export(self, folder: Path) -> None:
        """Writes the weights now in place, with the processor: a transformers folder, or a peft adapter's."""
        self._model.save_pretrained(folder)
        self.encoder.processor.save_pretrained(folder)

    def usage(self, prompt: Prompt, plan: Any, base: str) -> Usage:
        """How transformers answers a prompt with the export, as the plan does."""
        assert self._placement is not None, "prepare() comes first"
        told, is_adapter = self.with_instructions(prompt), self.lora is not None
        images = self.encoder.processor.image_processor
        question = Question(
            text=self.template.replace("{prompt}", told.text),
            system=told.system if told.system is not None else self.system_prompt,
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
        """The prompt with the words that the policy adds to any; `_answer_usage.SCREEN` stands for a screen's size."""
        return prompt

    def num_shown(self, prompt: Prompt) -> int:
        """How many images the model sees with a prompt."""
        return len(prompt.media)

    def clips_usage(self) -> Clips | None:
        """How frames of videos are chosen; None where no prompt has one."""
        return None

    def _family(self) -> Family:
        if self.family is not None:
            return family_of(self.family)
        config = Path(self.model).expanduser() / "config.json"
        if config.is_file():
            return family_of(model_type_of(config))
        return family_of_name(self.model)

    def _choose_trained(self, frozen_dtype: torch.dtype) -> Weights:
        """Marks what is trained, and names it."""
        model, language = self._model, _language_name(self._model)
        vision = [f"model.{name}" for name, _ in model.model.named_children() if f"model.{name}" != language]
        if self.lora is not None:
            self.lora.add_to_language_model(model, [language, *(vision if self.vision == "trained" else [])])
        else:
            is_vision = {name: _is_vision(name, language) for name, _ in model.named_parameters()}
            for name, parameter in model.named_parameters():
                parameter.requires_grad_(self.vision == "trained" or not is_vision[name])
            if self.vision == "frozen":
                for name in vision:
                    model.get_submodule(name).to(frozen_dtype)
        for name, parameter in model.named_parameters():
            if unread(name, model.config):
                parameter.requires_grad_(False)
        trained = {f"model.{name}": p for name, p in model.named_parameters() if p.requires_grad}
        scales = {name: self.vision_rate for name in trained if _is_vision(name.removeprefix("model."), language)}
        off = None if self.lora is None or self.lora.path is not None else partial(without_adapter, model)
        return Weights(trained, adapter_off=off, rate_scale=scales)

    def _sharing(self) -> tuple[Way, str]:
        config = self._model.config.get_text_config()
        other = sorted(set(getattr(config, "layer_types", None) or ()) - _SHARED_LAYERS)
        if other:
            return "none", f"{self._model.config.model_type} has layers of {', '.join(other)}"
        wanted: Way = self.sharing if self.sharing != "auto" else "packed" if self.gradient_checkpointing else "cache"
        if wanted == "packed" and not takes_trees(self._model):
            return "none", f"attention {attention_of(self._model)} takes no tree mask"
        return wanted, not_as_requested(self._model, self.attention)


def _language_name(model: Any) -> str:
    return "model.language_model" if hasattr(model.model, "language_model") else "model.text_model"


def _is_vision(name: str, language: str) -> bool:
    """Whether a parameter turns images into tokens: neither the language model's nor its head's."""
    return not name.startswith((f"{language}.", "lm_head."))
