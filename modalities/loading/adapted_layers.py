"""Which layers of a network a LoRA adapts: those of its attention, found by asking, and names as one pattern."""

import logging
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial

import torch
from torch import Tensor, nn

from mmrl.core.contracts import ConfigError

log = logging.getLogger(__name__)


def attention_layers(network: nn.Module) -> list[str]:
    """Returns the names of the linear layers inside the attention blocks of a diffusers network.

    An attention block is a module that takes an attention processor (`set_processor`), or whose class is named
    `...Attention` or `...Attn`. Layers of norms and embeddings inside it are left out.
    """
    blocks = [name for name, module in network.named_modules() if _is_attention(module)]
    others = [name for name, module in network.named_modules() if _is_norm_or_embedding(module)]
    return [
        name
        for name, module in network.named_modules()
        if isinstance(module, nn.Linear) and _is_inside(name, blocks) and not _is_inside(name, others)
    ]


def pattern_of(wanted: Sequence[str], names: Iterable[str]) -> str:
    """Returns a regular expression that fits the `wanted` ones of `names` and no other.

    Layers are numbered, and one entry stands for all of them, which keeps the saved configuration short.
    """
    short = "|".join(sorted({re.sub(r"\\\.\d+(?=\\\.)", r"\\.\\d+", re.escape(name)) for name in wanted}))
    if {name for name in names if re.fullmatch(short, name)} == set(wanted):
        return short
    return "|".join(sorted(re.escape(name) for name in wanted))  # blocks of one list differ in what is adapted


def is_linear(module: nn.Module) -> bool:
    """Returns whether a layer computes what `Linear` does, so that an adapter can be added to its output.

    Some models derive others from it: the router of Llama 4 returns two tensors. Layers of bitsandbytes count.
    """
    kind = type(module)
    return isinstance(module, nn.Linear) and (
        kind.forward is nn.Linear.forward or kind.__module__.startswith("bitsandbytes.")
    )


def packed_weights(module: nn.Module) -> list[str]:
    """Returns the names of the weights that several experts share, [experts, ., .]: no `Linear` holds them."""
    return [name for name, weight in module.named_parameters() if weight.ndim == 3 and "expert" in name]


def log_unreached(names: Sequence[str]) -> None:
    """Says which packed weights of experts a LoRA by pattern leaves as they are."""
    if names:
        kinds = sorted({".".join(name.split(".")[-3:]) for name in names})
        log.warning(
            "the LoRA does not reach %d weights of experts, which are no linear layers: %s; name their ends in "
            "lora.targets to adapt them too",
            len(names),
            ", ".join(kinds),
        )


def freeze_unused(network: nn.Module, runs: Sequence[Callable[[], Tensor]]) -> list[str]:
    """Freezes the trainable parameters that reach no output of any run, and returns their names.

    The last block of a network of images and text often has an output for the text that nobody reads; what leads
    only there never gets a gradient. Experts are left out: another input may send tokens to them.

    Args:
        network: with its adapter, before it is sharded.
        runs: each calls the network with a graph, on an input of a kind that training gives it, and returns its output.
    Raises ConfigError where the outputs depend on no parameter.
    """
    trained = {name: p for name, p in network.named_parameters() if p.requires_grad}
    reached: set[str] = set()
    with _without_zeros(trained.values()):
        for run in runs:  # one after the other, so that one graph is held at a time
            with torch.enable_grad():
                output = run()
            if output.requires_grad:
                reached |= _reached(output, trained)
    if not reached:
        raise ConfigError(f"the output of {type(network).__name__} depends on none of its trained parameters")
    unused = [name for name in trained if name not in reached and "expert" not in name]
    for name in unused:
        trained[name].requires_grad_(False)
    return unused


def _reached(output: Tensor, trained: Mapping[str, Tensor]) -> set[str]:
    """Returns the names of the tensors to which a backward pass brings a gradient that is not 0.

    Queries of a text whose answers are cut off behind the attention have a gradient of zeros, not none.
    """
    direction = torch.randn(output.shape, generator=torch.Generator().manual_seed(0)).to(output.device)
    found = set[str]()

    def note(name: str, parameter: Tensor) -> None:
        if parameter.grad is not None and bool(parameter.grad.any()):
            found.add(name)
        parameter.grad = None  # all gradients together would need as much memory as the weights

    handles = [one.register_post_accumulate_grad_hook(partial(note, name)) for name, one in trained.items()]
    try:
        (output.float() * direction).sum().backward()  # type: ignore[no-untyped-call,unused-ignore]
    finally:
        for handle in handles:
            handle.remove()
    return found


@contextmanager
def _without_zeros(tensors: Iterable[Tensor]) -> Iterator[None]:
    """Fills tensors that are all 0 with small numbers for a while: behind a new LoRA's zeros no gradient is left."""
    zeros = [tensor.data for tensor in tensors if not bool(tensor.any())]
    for number, values in enumerate(zeros):
        noise = torch.randn(values.shape, generator=torch.Generator().manual_seed(number))
        values.copy_(0.01 * noise)
    try:
        yield
    finally:
        for values in zeros:
            values.zero_()


def _is_attention(module: nn.Module) -> bool:
    return hasattr(module, "set_processor") or type(module).__name__.endswith(("Attention", "Attn"))


def _is_norm_or_embedding(module: nn.Module) -> bool:
    return any(word in type(module).__name__ for word in ("Norm", "Embed"))


def _is_inside(name: str, modules: Sequence[str]) -> bool:
    return any(name.startswith(f"{module}.") for module in modules if module)
