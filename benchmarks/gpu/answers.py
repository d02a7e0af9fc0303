"""Checks of Qwen2.5-VL: decoding, the vision tower, packed updates, log-probs of chosen tokens."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.varlen import varlen_attn

from mmrl.core.keys import GroupKey
from mmrl.core.views import DecisionView
from mmrl.modalities.encoding.segment_attention import NAME, use_segments
from mmrl.modalities.encoding.tower import sized
from mmrl.modalities.loading.hub import without_adapter
from mmrl.modalities.tokens.attention import use_flex
from mmrl.modalities.tokens.backbone import Answers
from mmrl.modalities.tokens.log_probs import OutputHead, token_log_probs
from mmrl.modalities.tokens.sampling import SamplingDistribution
from mmrl.plans.answers import AnswerPlan

from . import sizes
from .building import lora, merged, prompt_of, qwen
from .measuring import Measurement, Operations, cosine, gb, is_installed, significant

TOKENS_BAR, SYNCS_BAR = 3000, 1 / 16  # tokens a second of 64 answers; the host's waits for a token


def answers_of(policy: Any, prompt: Any, count: int, tokens: int) -> Any:
    """Samples `count` answers of `tokens` tokens to a prompt."""
    return policy.rollout([prompt], [AnswerPlan(count, tokens)], [GroupKey(0, 0, 0)])


def decode_7b(measured: Measurement) -> None:
    """Measures tokens a second of 8, 64 and 256 answers: base, LoRA, merged, compiled, `generate` with both caches."""
    policy: Any = qwen(measured, lora=lora(64, is_tiny=measured.is_tiny))
    tiny = measured.is_tiny
    prompt = prompt_of(policy, 40 if tiny else 1300, 56 if tiny else 896)
    _waits(measured, policy, prompt)
    long, short = (6, 4) if tiny else (200, 50)
    rows: list[dict[str, Any]] = []
    measured.figures["cases"] = rows
    cases = [("base", 64, short), ("merged", 64, short), ("compiled", 64, long), ("lora", 64, short),
             ("generate", 64, short), ("merged", 64, long), ("compiled", 256, short), ("merged", 256, short),
             ("merged", 8, short), ("compiled", 8, short), ("lora", 8, short), ("lora", 256, short), ("base", 8, short),
             ("base", 256, short), ("generate static", 64, short)]  # fmt: skip
    for case, count, tokens in cases[:5] if tiny else cases:
        name = f"{case}, {count} answers"
        if (case != "compiled" or measured.on_cuda(name)) and measured.has_time(name, 12):
            with measured.may_lack_memory(name):
                rows.append(_decoding(measured, policy, prompt, case, (2 if tiny else count, tokens)))
    ours = [row["tokens_per_second"] for row in rows if row["case"] in ("merged", "compiled") and row["answers"] == 64]
    if ours:
        measured.at_least("tokens a second of 64 answers", max(ours), TOKENS_BAR)


def _decoding(measured: Measurement, policy: Any, prompt: Any, case: str, size: tuple[int, int]) -> dict[str, Any]:
    """Returns the figures of (answers, tokens); the prompt's reading is inside."""
    count, tokens = size
    network = policy._model
    is_merged = case in ("merged", "compiled") or case.startswith("generate")
    policy.compile = case == "compiled"
    if case.startswith("generate"):
        function: Callable[[int], Any] = lambda length: _generate(policy, prompt, count, length, case)  # noqa: E731
    else:
        function = lambda length: answers_of(policy, prompt, count, length)  # noqa: E731
    first: list[Any] = []
    with without_adapter(network) if case == "base" else merged(network, is_merged=is_merged):
        warm = tokens if case == "compiled" else 20  # a step is compiled at the lengths that follow
        function(warm)
        measured.begin_peak()
        seconds = measured.seconds(lambda: first.append(function(tokens)), warm=0)
        if measured.is_cuda and count == 64 and f"kernels_{case}" not in measured.figures:
            measured.figures[f"kernels_{case}"] = measured.kernels(lambda: function(warm))
    policy.compile = False
    if not case.startswith("generate"):
        completions = first[0].trace.completions
        measured.identity("answers_of_another_length", float((completions.length != tokens).sum()), 0)
        measured.identity("log_probs_not_finite", float((~completions.log_prob.isfinite()).sum()), 0)
    return {
        "case": case,
        "answers": count,
        "tokens": tokens,
        "seconds": significant(seconds),
        "tokens_per_second": significant(count * tokens / seconds),
        "ms_a_step": significant(1000 * seconds / tokens),
        "peak_gb": measured.end_peak(),
    }


@torch.no_grad()
def _generate(policy: Any, prompt: Any, count: int, tokens: int, case: str) -> Tensor:
    """Samples by `generate` of transformers."""
    encoded = policy.encode([prompt])[0]
    device = policy.backbone.device
    static = {"cache_implementation": "static"} if case.endswith("static") else {}
    with policy.running():
        return policy._model.generate(  # type: ignore[no-any-return]
            input_ids=encoded.tokens[None].to(device),
            attention_mask=torch.ones_like(encoded.tokens[None]).to(device),
            mm_token_type_ids=encoded.token_types[None].to(device),
            **{name: tensor.to(device) for name, tensor in encoded.media.items()},
            max_new_tokens=tokens,
            min_new_tokens=tokens,
            do_sample=True,
            top_k=0,
            num_return_sequences=count,
            **static,
        )


def _waits(measured: Measurement, policy: Any, prompt: Any) -> None:
    """Counts operations and waits of a decoded token: those of 16 tokens more, with and without the adapter merged."""
    few, many = (2, 4) if measured.is_tiny else (16, 32)
    for case in ("lora", "merged"):
        waits, computed = [], []
        with merged(policy._model, is_merged=case == "merged"):
            answers_of(policy, prompt, 2, few)  # what is made once is there
            for tokens in (few, many):
                with measured.counting_syncs() as found:
                    answers_of(policy, prompt, 2, tokens)
                waits.append(found[0])
                with Operations() as operations:
                    answers_of(policy, prompt, 2, tokens)
                computed.append(operations.computed)
        measured.figures[f"operations_per_token_{case}"] = significant((computed[1] - computed[0]) / (many - few))
        measured.figures[f"host_waits_per_token_{case}"] = significant((waits[1] - waits[0]) / (many - few))
    measured.at_most("host_waits_per_token_merged", measured.figures["host_waits_per_token_merged"], SYNCS_BAR)


# the vision tower


def tower(measured: Measurement) -> None:
    """Measures the tower of Qwen2.5-VL-7B: one attention call for each window against one call for all."""
    from transformers import Qwen2_5_VLConfig
    from transformers.models.qwen2_5_vl import modeling_qwen2_5_vl as library

    sized = (sizes.QWEN25_TINY if measured.is_tiny else sizes.QWEN25_7B)["vision_config"]
    config = Qwen2_5_VLConfig(vision_config=sized).vision_config
    with torch.device(measured.device):
        network: Any = library.Qwen2_5_VisionTransformerPretrainedModel._from_config(config, dtype=measured.dtype)
    network.eval().requires_grad_(False)
    assert use_segments(network), "its layers hand over the ends of windows"
    grids = {"small": (8, 12)} if measured.is_tiny else {"1 MP": (72, 72), "2.1 MP": (78, 138), "12.8 MP": (214, 306)}
    rows = []
    for name, (height, width) in grids.items():
        if not measured.has_time(name, 5):
            continue
        pixels = torch.randn(height * width, 3 * 2 * 14 * 14, device=measured.device, dtype=measured.dtype)
        grid = torch.tensor([[1, height, width]])
        found = {}
        for case, attention in (("windows", "sdpa"), ("one call", NAME)):
            network.config._attn_implementation = attention
            run = partial(_tower_pass, network, pixels, grid)
            with torch.no_grad(), measured.may_lack_memory(f"{name}, {case}"), Attentions() as counted:
                found[case] = run()
                measured.begin_peak()
                found[case] = getattr(found[case], "pooler_output", found[case])
                calls = counted.calls
                seconds = measured.seconds(run, warm=0)
                peak = measured.end_peak()
                rows.append({"image": name, "case": case, "ms": significant(1000 * seconds), "attention_calls": calls,
                             "peak_gb": peak})  # fmt: skip
        if len(found) == 2:
            one, other = (value.double() for value in found.values())
            off = float((one - other).norm() / other.norm())
            measured.identity(f"difference, {name}", off, 1e-4 if measured.dtype == torch.float32 else 0.05)
    measured.figures["cases"] = rows


def _tower_pass(network: Any, pixels: Tensor, grid: Tensor) -> Any:
    return network(pixels, grid, **sized(network, grid, pixels.device))


class Attentions(torch.overrides.TorchFunctionMode):
    """Counts calls of attention."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.calls += function in (torch.nn.functional.scaled_dot_product_attention, varlen_attn)
        return function(*args, **(kwargs or {}))


# updates


def packed_update(measured: Measurement) -> None:
    """Measures forward and backward passes of a prompt with its answers: packed, by flex attention, as plain rows."""
    tiny = measured.is_tiny
    policy: Any = qwen(measured, lora=lora(64, is_tiny=tiny), gradient_checkpointing=True)
    shapes = [(40, 56, 3, 6)] if tiny else [(1300, 896, 8, 1024), (450, 448, 10, 2048), (16400, 3556, 8, 30)]
    rows: list[dict[str, Any]] = []
    measured.figures["cases"] = rows
    for length, side, count, tokens in shapes:
        prompt = prompt_of(policy, length, side)
        answers = random_answers(policy, count, tokens)
        gradients = {}
        for way in ("packed", "flex", "rows", "rows, flash"):
            name = f"{way}, {length} + {count} x {tokens}"
            if way == "flex" and not measured.on_cuda(name):
                continue
            if way == "rows, flash" and not (measured.on_cuda(name) and _has_flash(measured, name)):
                continue
            if measured.has_time(name, 8):
                with measured.may_lack_memory(name):
                    row, gradients[way] = _update(measured, policy, prompt, answers, way)
                    rows.append({"prompt": length, "answers": count, "tokens": tokens, "way": way, **row})
        for way, gradient in gradients.items():
            if way != "packed" and "packed" in gradients:
                off = 1 - cosine(gradient, gradients["packed"])
                most = 1e-4 if measured.dtype == torch.float32 else 0.05
                measured.identity(f"gradient, packed and {way}, {length}: 1 - cosine", off, most)
    if measured.on_cuda("compilations of flex attention over 12 lengths"):
        _compilations(measured, policy)


def _has_flash(measured: Measurement, name: str) -> bool:
    if not is_installed("flash_attn"):
        measured.skipped[name] = "flash_attn is not installed"
    return is_installed("flash_attn")


def random_answers(policy: Any, count: int, tokens: int) -> Answers:
    """Returns answers of random tokens that answers may hold."""
    device, banned = policy.backbone.device, {*policy.banned, *policy.end_tokens}
    allowed = torch.tensor([n for n in range(len(policy.head.weight)) if n not in banned])
    chosen = torch.randint(len(allowed), (count, tokens), generator=torch.Generator().manual_seed(1))
    return Answers(
        torch.zeros(count, dtype=torch.int64, device=device),
        allowed[chosen].to(device),
        torch.full((count,), tokens, device=device),
    )


def _update(
    measured: Measurement, policy: Any, prompt: Any, answers: Answers, way: str
) -> tuple[dict[str, Any], list[Tensor]]:
    """Returns the figures and the gradient of the mean log-prob of the answers."""
    encoded, text = policy.encode([prompt]), policy._model.config.get_text_config()
    before = text._attn_implementation
    policy.share("none" if way.startswith("rows") else "packed")
    if way == "flex":
        use_flex(policy._model, "random")
    if way == "rows, flash":
        text._attn_implementation = "flash_attention_2"
    trained = list(policy.weights.parameters.values())
    distribution = SamplingDistribution(1.0, banned=policy.banned)

    def step() -> None:
        for parameter in trained:
            parameter.grad = None
        log_prob, _ = policy.log_probs(encoded, answers, distribution)
        log_prob.mean().backward()

    try:
        step()  # warm: kernels are compiled
        measured.begin_peak()
        seconds = measured.seconds(step, warm=0)
    finally:
        text._attn_implementation = before
        policy._shared = None
    count, tokens = answers.tokens.shape
    flops = update_flops(policy._model, len(encoded[0]), count, tokens)
    row = {
        "seconds": significant(seconds),
        "tokens_per_second": significant((len(encoded[0]) + count * tokens) / seconds),
        "useful_tflop": significant(flops / 1e12),
        "mfu": measured.mfu(flops, seconds),
        "peak_gb": measured.end_peak(),
    }
    return row, [p.grad.clone() for p in trained if p.grad is not None]


def forward_flops(model: Any, prompt: int, answers: int, tokens: int) -> int:
    """Returns the FLOPs that a forward pass of the language model needs for a prompt and its answers, read once.

    2 for each weight of a linear layer and token; 4 heads D for each pair of tokens of which one sees the other, in the
    products with keys and with values. The head, adapters and the vision tower are not counted.
    """
    text = model.config.get_text_config()
    layers = [m for name, m in model.named_modules() if "language_model.layers" in name and is_weight(name, m)]
    linear = sum(m.weight.numel() for m in layers)
    own = tokens - 1  # an answer's last token is predicted, never read
    pairs = prompt * (prompt + 1) // 2 + answers * (own * prompt + own * (own + 1) // 2)
    width = text.hidden_size // text.num_attention_heads * text.num_attention_heads
    return int(2 * linear * (prompt + answers * own) + 4 * width * pairs * text.num_hidden_layers)


def is_weight(name: str, module: Any) -> bool:
    """Returns whether a module is a linear layer of the model, not of an adapter."""
    return isinstance(module, torch.nn.Linear) and "lora_" not in name


def update_flops(model: Any, prompt: int, answers: int, tokens: int) -> int:
    """Returns the FLOPs that an update of an adapter needs under checkpointing.

    Three passes: forward, the forward pass again, and the gradient of the activations (a frozen weight has none; the
    gradient of attention takes two). The head has three products: logits, logits again, gradient.
    """
    text = model.config.get_text_config()
    forward = forward_flops(model, prompt, answers, tokens)
    linear_only = forward_flops(model, prompt, answers, tokens) - attention_flops(model, prompt, answers, tokens)
    head = 2 * text.vocab_size * text.hidden_size * answers * tokens
    return int(2 * forward + linear_only + 2 * (forward - linear_only) + 3 * head)


def attention_flops(model: Any, prompt: int, answers: int, tokens: int) -> int:
    """Returns the part of `forward_flops` that is attention's."""
    text, own = model.config.get_text_config(), tokens - 1
    pairs = prompt * (prompt + 1) // 2 + answers * (own * prompt + own * (own + 1) // 2)
    return int(4 * text.hidden_size * pairs * text.num_hidden_layers)


def _compilations(measured: Measurement, policy: Any) -> None:
    """Counts the graphs that flex attention compiles over 12 lengths of answers."""
    from torch._dynamo.utils import counters

    prompt, done = prompt_of(policy, 450, 448), 0
    torch._dynamo.reset()
    before = counters["stats"]["unique_graphs"]
    for number in range(12):
        if not measured.has_time(f"length {number} of 12 for flex attention", 6):
            break
        _update(measured, policy, prompt, random_answers(policy, 4, 100 + 37 * number), "flex")
        done += 1
    measured.figures["flex_lengths"] = done
    measured.figures["flex_compilations"] = counters["stats"]["unique_graphs"] - before


# log-probs


def log_probs(measured: Measurement) -> None:
    """Measures log-probs of chosen tokens against a log-softmax that is held, and cached decoding against rows."""
    rows, width, size = (64, 32, 512) if measured.is_tiny else (4096, 3584, 152064)
    found = []
    for dtype in (torch.bfloat16, torch.float32):
        for allows in (False, True) if measured.is_cuda and dtype == torch.float32 else (False,):
            name = f"{str(dtype).removeprefix('torch.')}{' TF32' if allows else ''}"
            if measured.has_time(name, 4):
                with measured.may_lack_memory(name):
                    found.append({"weights": name, **_chosen(measured, (rows, width, size), dtype, allows=allows)})
    measured.figures["cases"] = found
    for dtype in (torch.bfloat16, torch.float32):
        name = f"cached decoding against rows, {str(dtype).removeprefix('torch.')}"
        if measured.has_time(name, 12):
            with measured.may_lack_memory(name):
                measured.figures[name] = _cached_and_packed(measured, dtype)


def _chosen(measured: Measurement, size: tuple[int, int, int], dtype: torch.dtype, *, allows: bool) -> dict[str, Any]:
    """Returns time, memory and difference of both ways, forward and backward, on (tokens, width, vocabulary)."""
    rows, width, vocabulary = size
    source = torch.Generator(measured.device).manual_seed(0)
    place: dict[str, Any] = {"device": measured.device, "generator": source}
    weight = torch.randn(vocabulary, width, **place).to(dtype)
    hidden = (torch.randn(rows, width, **place) / width**0.5).to(dtype).requires_grad_()
    tokens = torch.randint(vocabulary, (rows,), **place)
    precision = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if allows else "highest")
    results: dict[str, Tensor] = {}
    gradients: dict[str, Tensor] = {}
    figures: dict[str, Any] = {}

    def step(way: str) -> None:
        hidden.grad = None
        if way == "chosen":
            values, _ = token_log_probs(hidden, OutputHead(weight), tokens, SamplingDistribution(1.0), 2**22)
        else:
            logits = hidden.float() @ weight.float().T
            values = logits.log_softmax(-1).gather(1, tokens[:, None])[:, 0]
        values.mean().backward()
        results[way] = values.detach()
        assert hidden.grad is not None
        gradients[way] = hidden.grad

    try:
        for way in ("chosen", "held"):
            step(way)
            measured.begin_peak()
            figures[f"{way}_ms"] = significant(1000 * measured.seconds(lambda way=way: step(way), warm=0))  # type: ignore[misc]
            figures[f"{way}_peak_gb"] = measured.end_peak()
    finally:
        torch.set_float32_matmul_precision(precision)
    off = float((results["chosen"] - results["held"]).abs().max())
    name = f"{str(dtype).removeprefix('torch.')}{'_tf32' if allows else ''}"
    most = 0.05 if allows else 0.01 if dtype == torch.bfloat16 else 1e-3
    measured.identity(f"largest_difference_{name}", off, most)
    measured.identity(f"gradient_{name}", 1 - cosine([gradients["chosen"]], [gradients["held"]]), 0.01)
    return figures | {"largest_difference": significant(off)}


def _cached_and_packed(measured: Measurement, dtype: torch.dtype) -> dict[str, float]:
    """Returns how far log-probs at sampling, on a cache, are from those of an update, in nats."""
    tiny = measured.is_tiny
    policy: Any = qwen(measured, dtype=dtype, lora=lora(64, is_tiny=tiny), gradient_checkpointing=True)
    prompt = prompt_of(policy, 40 if tiny else 1300, 56 if tiny else 896)
    rollout = answers_of(policy, prompt, 2 if tiny else 8, 4 if tiny else 64)
    view = DecisionView(torch.arange(rollout.num_samples))
    with torch.no_grad():
        ratio = policy.forward(rollout, view).log_ratio(policy.recorded(rollout, view)).double()
    k3 = float((ratio.exp() - 1 - ratio).mean())
    name = str(dtype).removeprefix("torch.")
    # bf16 is what is to be found out; more than half a nat in the mean would be another fault
    measured.identity(f"mean_nats_{name}", float(ratio.abs().mean()), 1e-3 if dtype == torch.float32 else 0.5)
    return {
        "mean_nats": significant(float(ratio.abs().mean())),
        "largest_nats": significant(float(ratio.abs().max())),
        "k3": significant(k3),
        "model_gb": gb(sum(p.numel() * p.element_size() for p in policy._model.parameters())),
    }
