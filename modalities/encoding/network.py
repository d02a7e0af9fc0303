"""The parts of a transformers image-text model, found by asking it: network without head, decoder, output layer."""

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

KINDS = ("mm_token_type_ids", "token_type_ids")  # names of the argument with a number for the kind of each token
# what processors return beside inputs of the network
NO_INPUT = ("labels", "text_replacement_offsets")


def network_of(model: Any) -> Any:
    """Returns the network without its output layer; for a model without such a part, the model with an empty one."""
    return model.model if isinstance(getattr(model, "model", None), nn.Module) else Headless(model)


def is_whole(model: Any) -> bool:
    """Returns whether a model has no part that is the network without its output layer (Llama 4)."""
    return isinstance(network_of(model), Headless)


class Headless:
    """A model whose output layer is left out while it is called, so that its logits are the last hidden states."""

    def __init__(self, whole: Any) -> None:
        self.whole = whole

    def __call__(self, **given: Any) -> Any:
        """Returns the output of the model, with the hidden states [n, T, H] as `last_hidden_state`."""
        with _without_head(self.whole):
            output = self.whole(**given)
        output.last_hidden_state = output.logits
        return output

    def forward(self, **given: Any) -> Any:
        """Does the same; the arguments of the model's own `forward` are those that count."""
        return self(**given)

    @property
    def config(self) -> Any:
        """Returns the configuration of the model."""
        return self.whole.config


@contextmanager
def _without_head(model: Any) -> Iterator[None]:
    owner_name, _, name = head_name(model).rpartition(".")
    owner = model.get_submodule(owner_name)
    head = getattr(owner, name)
    setattr(owner, name, nn.Identity())
    try:
        yield
    finally:
        setattr(owner, name, head)


def arguments_of(model: Any) -> frozenset[str]:
    """Returns the names of the arguments that the network takes."""
    network = network_of(model)
    forward = network.whole.forward if isinstance(network, Headless) else network.forward
    return frozenset(inspect.signature(forward).parameters)


def kinds_name(model: Any) -> str | None:
    """Returns the name under which the network takes the kinds of tokens; None where it takes none."""
    return next((name for name in KINDS if name in arguments_of(model)), None)


def decoder_of(model: Any) -> Any:
    """Returns the language model without its output layer: of what the model calls so, the largest part without it."""
    decoder, head = model.get_decoder(), model.get_output_embeddings()
    while any(module is head for module in decoder.modules()):
        parts = [child for child in decoder.children() if child is not head]
        decoder = max(parts, key=lambda part: sum(parameter.numel() for parameter in part.parameters()))
    return decoder


def decoder_name(model: Any) -> str:
    """Returns the name of the language model within the model."""
    return _name_of(model, decoder_of(model))


def head_name(model: Any) -> str:
    """Returns the name of the output layer within the model."""
    return _name_of(model, model.get_output_embeddings())


def _name_of(model: nn.Module, wanted: Any) -> str:
    names = (name for name, module in model.named_modules() if module is wanted)
    return str(next(names))


def vision_parameters(model: Any) -> frozenset[str]:
    """Returns the names of the parameters that belong to neither the language model nor its output layer."""
    inside = (f"{decoder_name(model)}.", f"{head_name(model)}.")
    return frozenset(name for name, _ in model.named_parameters() if not name.startswith(inside))


def vision_parts(model: Any) -> list[str]:
    """Returns the names of the largest modules without any part of the language model and of its output layer."""
    inside = (f"{decoder_name(model)}.", f"{head_name(model)}.")

    def parts(module: nn.Module, prefix: str) -> Iterator[str]:
        for child_name, child in module.named_children():
            name = f"{prefix}{child_name}"
            if not any(part.startswith(f"{name}.") for part in inside):
                yield name
            elif f"{name}." not in inside:
                yield from parts(child, f"{name}.")

    return list(parts(model, ""))


def hidden_of_head(model: Any, given: dict[str, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    """Returns, of one row, what the output layer gets [T, H] and returns [T, V], and the model's own logits [T, V]."""
    seen: list[tuple[Tensor, Tensor]] = []
    handle = model.get_output_embeddings().register_forward_hook(
        lambda _layer, arguments, output: seen.append((arguments[0], output))
    )
    try:
        logits = model(**given, use_cache=False).logits[0]
    finally:
        handle.remove()
    hidden, raw = seen[-1]
    return hidden[0], raw[0], logits
