"""The memory and FLOPs of a vision-language model, counted without content: its decoder runs at real shapes."""

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, Protocol

import torch
from torch import Tensor

from mmrl.core.contracts import Footprint, Workload

from ..encoding.network import decoder_of
from ..encoding.tower import makes_features
from ..loading.architectures import Part, architecture_of
from ..loading.hub import checkpointing
from ..loading.lora import Lora
from ..loading.quantise import Quantise, saved_by
from ..loading.weightless import backward_peak, emptied, forward_costs, on_meta, without_content
from .model import SharingMode

_SHALLOW = 2  # layers of the networks that are run: all further layers are alike
_LOGITS = 6  # tensors of [answers, vocabulary] in float32 while a token is sampled


class Counted(Protocol):
    """The settings of a vision-language model that its memory and FLOPs depend on."""

    @property
    def model(self) -> str: ...
    @property
    def lora(self) -> Lora | None: ...
    @property
    def quantise(self) -> Quantise | None: ...
    @property
    def vision(self) -> str: ...
    @property
    def gradient_checkpointing(self) -> bool: ...
    @property
    def answers_at_once(self) -> int: ...
    @property
    def vocabulary_chunk(self) -> int: ...
    @property
    def kept_features_gb(self) -> float: ...
    def train_on_meta(self, model: Any, frozen_dtype: torch.dtype) -> None: ...


class _Head(torch.autograd.Function):
    """The allocations of `log_probs.token_log_probs`, block by block, which reads numbers of tensors."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, chunk: int) -> Tensor:
        ctx.save_for_backward(hidden, weight)
        ctx.chunk = chunk
        _blocks(hidden, weight, chunk)
        return hidden.new_zeros(len(hidden), dtype=torch.float32)

    @staticmethod
    def backward(ctx: Any, _gradient: Tensor) -> Any:
        hidden, weight = ctx.saved_tensors
        of_hidden = torch.zeros(hidden.shape)
        of_weight = torch.empty_like(weight) if ctx.needs_input_grad[1] else None
        kept = _blocks(hidden, weight, ctx.chunk, parts=2 if of_weight is not None else 1)
        del kept
        return of_hidden.to(hidden.dtype), of_weight, None


def _blocks(hidden: Tensor, weight: Tensor, chunk: int, parts: int = 0) -> list[Tensor]:
    """Makes what a block of logits takes; `parts`: tensors of the shape of its part of the head, in float32."""
    vocabulary, width = weight.shape
    cut = min(vocabulary, int(chunk**0.5))
    height = max(1, min(len(hidden), chunk // cut))
    columns = min(vocabulary, chunk // height)
    held = [torch.empty(height, columns) for _ in range(2)]
    is_cast = weight.dtype != torch.float32
    return held + [torch.empty(columns, width) for _ in range(parts + is_cast)]


def footprint_of(policy: Counted, mode: SharingMode, work: Workload) -> Footprint:
    """Returns what a vision-language model takes for a workload, prompts shared in a `mode`."""
    known = architecture_of(policy.model)
    part = known.parts["model"]
    whole = on_meta(part.make, _dtype(policy, work))
    policy.train_on_meta(whole, work.dtype)
    shapes = [(p.numel() * p.element_size(), p.requires_grad) for p in whole.parameters()]
    frozen = sum(size for size, is_trained in shapes if not is_trained)
    frozen += sum(buffer.numel() * buffer.element_size() for buffer in whole.buffers())
    notes: tuple[str, ...] = ()
    if policy.quantise is not None:
        frozen -= saved_by(policy.quantise, whole)
        notes = ("quantised weights: bits and one float32 scale for 64 of them (4 bits) or a row (8 bits)",)
    depth = int(whole.config.get_text_config().num_hidden_layers)
    _, _, answers = _rows(mode, work)
    peaks, costs = dict[int, int](), dict[int, tuple[float, float, float]]()
    for layers in (_SHALLOW, _SHALLOW + 1):
        peaks[layers], costs[layers] = _measured(policy, part, work, mode, layers)

    def at_depth(two: float, three: float) -> float:
        return two + (depth - _SHALLOW) * (three - two)

    low, high = _SHALLOW, _SHALLOW + 1
    activations = int(at_depth(peaks[low], peaks[high]))
    update, step, kernels = (at_depth(a, b) for a, b in zip(costs[low], costs[high], strict=True))
    text = whole.config.get_text_config()
    batch = min(work.at_once, policy.answers_at_once)
    element = 4 if work.dtype == torch.float32 else 2
    heads = getattr(text, "num_key_value_heads", None) or text.num_attention_heads
    width = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
    cache = _cache_while_answering(work, batch, depth, 2 * heads * width * element)
    logits = 4 * _LOGITS * text.vocab_size * batch
    trained = [size for size, is_trained in shapes if is_trained]
    return Footprint(
        frozen=frozen,
        trained=sum(trained),
        largest=max(trained, default=0),
        is_adapter=policy.lora is not None and policy.lora.path is None,
        activations=activations,
        last_layer=peaks[low],
        sampling=cache + logits,
        kept=4 * 5 * work.samples * work.max_tokens,
        outputs=0,
        call_flops=step * work.max_tokens / 2,
        update_flops=update / answers,
        recomputes=policy.gradient_checkpointing,
        kernels=int(kernels),
        steps=-(-work.at_once // batch) * work.max_tokens,
        features=_features(policy, whole, work, element),
        notes=(
            f"prompts of {work.prompt_tokens:,} tokens with their images (--prompt-tokens)",
            f"answers of {work.max_tokens:,} tokens in memory, of half of it in time",
            "the vision tower's activations are left out" if policy.vision == "frozen" else
            "activations of the trained vision tower are left out: more memory than said",
            *notes,
            *known.notes,
        ),
    )  # fmt: skip


def _features(policy: Counted, model: Any, work: Workload, element: int) -> int:
    """Returns the bytes of the kept features of a frozen tower: a prompt's tokens are taken to be those of its images.

    Some families have features for early layers of the language model beside (`deepstack` of Qwen3-VL).
    """
    if policy.vision != "frozen" or not makes_features(model):
        return 0
    vectors = 1 + len(getattr(model.config.vision_config, "deepstack_visual_indexes", None) or ())
    of_prompt = work.prompt_tokens * vectors * int(model.config.get_text_config().hidden_size) * element
    return min(int(1e9 * policy.kept_features_gb), -(-work.samples // work.group_size) * of_prompt)


def _dtype(policy: Counted, work: Workload) -> torch.dtype:
    return work.trained_dtype if policy.lora is None else work.dtype


def _rows(mode: SharingMode, work: Workload) -> tuple[int, int, int]:
    """Returns the rows of a micro-batch, the tokens of a row, and the answers of all."""
    answers = min(work.micro_batch, work.calls)
    if mode == "none":
        return answers, work.prompt_tokens + work.max_tokens - 1, answers
    in_row = min(work.group_size, answers)
    return -(-answers // in_row), work.prompt_tokens + in_row * (work.max_tokens - 1), answers


def _measured(
    policy: Counted, part: Part, work: Workload, mode: SharingMode, layers: int
) -> tuple[int, tuple[float, float, float]]:
    """Returns the peak of a micro-batch, FLOPs of a micro-batch and of a token, and kernels of a token."""
    text = {**part.config["text_config"], "num_hidden_layers": layers}
    if text.get("layer_types"):
        types = list(text["layer_types"])
        text["layer_types"] = [types[min(number, len(types) - 1)] for number in range(layers)]  # a twin may have two
    model = on_meta(lambda: part.make(text_config=text), _dtype(policy, work))
    policy.train_on_meta(model, work.dtype)
    if policy.gradient_checkpointing:
        model.activation_checkpointing_enable({"use_reentrant": False})
    with without_content():
        emptied(model)
        update = _update(policy, model, work, mode)
        is_checkpointed = policy.gradient_checkpointing
        kept = None if mode != "cache" else ""  # a layer drops the cache when it checkpoints
        with checkpointing(model, kept) if is_checkpointed else nullcontext():
            peak = backward_peak(model, update)
        _, update_flops, _ = forward_costs(update)
        _, step_flops, kernels = forward_costs(_step(policy, model, work))
    return peak, (update_flops, step_flops, kernels)


def _autocast(work: Workload) -> Any:
    return nullcontext() if work.dtype == torch.float32 else torch.autocast("cpu", work.dtype)


def _positions(model: Any, rows: int, length: int) -> Tensor:
    axes = (model.config.get_text_config().rope_parameters or {}).get("mrope_section")
    position = torch.zeros(rows, length, dtype=torch.int64)
    return position.expand(len(axes), -1, -1) if axes else position


def _update(policy: Counted, model: Any, work: Workload, mode: SharingMode) -> Callable[[], Tensor]:
    rows, length, answers = _rows(mode, work)
    decoder, embed, head = decoder_of(model), model.get_input_embeddings(), model.get_output_embeddings()

    def one_row() -> Tensor:
        mask = torch.ones(rows, 1, length, length, dtype=torch.bool)
        ids = torch.zeros(rows, length, dtype=torch.int64)
        states = decoder(
            inputs_embeds=embed(ids), attention_mask=mask, position_ids=_positions(model, rows, length), use_cache=False
        ).last_hidden_state
        flat: Tensor = states.flatten(0, 1)
        return flat

    def by_cache() -> Tensor:
        from transformers import DynamicCache

        from ..tokens.backbone import expand

        prompts = -(-answers // min(work.group_size, answers))
        cache = DynamicCache(config=model.config.get_text_config())
        mask = torch.ones(prompts, 1, work.prompt_tokens, work.prompt_tokens, dtype=torch.bool)
        first = decoder(
            inputs_embeds=embed(torch.zeros(prompts, work.prompt_tokens, dtype=torch.int64)),
            attention_mask=mask,
            position_ids=_positions(model, prompts, work.prompt_tokens),
            past_key_values=cache,
            use_cache=True,
        ).last_hidden_state
        shared = expand(cache, torch.zeros(answers, dtype=torch.int64))
        behind = work.max_tokens - 1
        mask = torch.ones(answers, 1, behind, work.prompt_tokens + behind, dtype=torch.bool)
        states = decoder(
            inputs_embeds=embed(torch.zeros(answers, behind, dtype=torch.int64)),
            attention_mask=mask,
            position_ids=_positions(model, answers, behind),
            past_key_values=shared,
            use_cache=True,
        ).last_hidden_state
        return torch.cat([first[:, -1], states.flatten(0, 1)])

    def run() -> Tensor:
        with _autocast(work):
            states = by_cache() if mode == "cache" else one_row()
            places = torch.zeros(answers * work.max_tokens, dtype=torch.int64)
            return _Head.apply(states[places], head.weight, policy.vocabulary_chunk).sum()  # type: ignore[no-any-return]

    return run


def _cache_while_answering(work: Workload, batch: int, depth: int, of_token: int) -> int:
    """Returns the bytes of the caches of `batch` answers and of their prompts; of_token: a token's in one layer.

    Answers have room in blocks; where a block is full, or answers that ended leave, one layer at a time is copied.
    """
    from ..tokens.cache_room import BLOCK

    room = work.max_tokens if work.max_tokens <= BLOCK else -(-work.max_tokens // BLOCK) * BLOCK
    of_layer = of_token * (work.prompt_tokens + room) * batch
    prompts = of_token * work.prompt_tokens * -(-batch // work.group_size)
    return (depth + 1) * of_layer + depth * prompts


def _step(policy: Counted, model: Any, work: Workload) -> Callable[[], Tensor]:
    """Returns a token of one answer behind a short cache: its FLOPs without attention, and its kernels."""
    decoder, embed = decoder_of(model), model.get_input_embeddings()

    def run() -> Tensor:
        from transformers import DynamicCache

        with _autocast(work):
            states = decoder(
                inputs_embeds=embed(torch.zeros(1, 1, dtype=torch.int64)),
                attention_mask=torch.ones(1, 1, 1, 1, dtype=torch.bool),
                position_ids=_positions(model, 1, 1),
                past_key_values=DynamicCache(config=model.config.get_text_config()),
                use_cache=True,
            ).last_hidden_state
            logits: Tensor = states[:, -1] @ model.get_output_embeddings().weight.to(states.dtype).T
            return logits

    return run
