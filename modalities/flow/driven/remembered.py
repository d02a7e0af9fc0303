"""Encoders that run once for each distinct content, whatever number of paused calls ask for it."""

from collections import OrderedDict
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakMethod

import torch
from torch import Tensor

from ...encoding.encoded_files import EncodedFiles
from .rows import fingerprint
from .stand_ins import PartStandIn

_METHODS = ("encode_prompt", "encode_image")  # of pipelines: texts, and condition images for another encoder than a VAE
_BLOCK = "text_encoder"  # of modular pipelines, in the place of these methods
_VAE = "vae"
_PLAIN = (str, bool, int, float, type(None), torch.dtype)


class _NoContent(Exception):
    """An argument whose content nobody can read, such as a generator of random numbers."""


@dataclass
class Remembered:
    """The results of a pipeline's encoders, by the content of their arguments."""

    capacity: int  # results that are kept, those of the longest ago leave
    max_bytes: int  # of their tensors; the newest is kept in any case
    # A weak method: within it, the text encoders are where they can run. Threads of paused calls hold this object, and
    # a strong one would hold its policy with them.
    on_device: "WeakMethod[Callable[[], AbstractContextManager[None]]]"
    device: torch.device
    files: EncodedFiles | None = None  # which keep the results for later runs; None: nothing is kept
    _results: OrderedDict[Any, Any] = field(default_factory=OrderedDict)

    def install(self, pipeline: Any, scale: float | None) -> None:
        """Replaces the methods of a pipeline's copy. `scale`: of guidance, which the methods may read.

        A modular pipeline has a block in their place, and its copy must have blocks of its own.
        """
        for name in _METHODS:
            method: Any = getattr(type(pipeline), name, None)
            if method is not None:
                pipeline.__dict__[name] = self._remembering(name, scale, method, pipeline)
        blocks = getattr(getattr(pipeline, "_blocks", None), "sub_blocks", {})
        if _BLOCK in blocks:
            blocks[_BLOCK] = _BlockStandIn(blocks[_BLOCK], scale, self)
        if self.files is not None and getattr(pipeline, _VAE, None) is not None:
            pipeline.__dict__[_VAE] = _VaeStandIn(getattr(pipeline, _VAE), self)

    def _remembering(self, name: str, scale: float | None, method: Any, pipeline: Any) -> Callable[..., Any]:
        def encode(*args: Any, **kwargs: Any) -> Any:
            key = (name, scale, fingerprint(args), fingerprint(kwargs))
            return self.once(key, lambda: self._result((name, scale), method, (pipeline, *args), kwargs))

        return encode

    def once(self, key: Any, encode: Callable[[], Any]) -> Any:
        """Returns what `encode` returned for a key, called where it is not there."""
        if key not in self._results:
            self._results[key] = encode()
            self._drop_oldest()
        self._results.move_to_end(key)
        return self._results[key]

    def _drop_oldest(self) -> None:
        held = sum(map(num_bytes, self._results.values()))
        while len(self._results) > 1 and (len(self._results) > self.capacity or held > self.max_bytes):
            held -= num_bytes(self._results.popitem(last=False)[1])

    def _result(self, about: tuple[str, float | None], method: Any, args: tuple[Any, ...], kwargs: Any) -> Any:
        def encode() -> Any:
            with self.encoders_on_device() if about[0] == "encode_prompt" else nullcontext():
                return method(*args, **kwargs)

        return self.kept((*about, args[1:], kwargs), encode)

    def encoders_on_device(self) -> AbstractContextManager[None]:
        """Returns a context in which the text encoders are where they can run."""
        on_device = self.on_device()
        assert on_device is not None, "the policy waits for this call"
        return on_device()

    def kept(self, key: Any, encode: Callable[[], Any]) -> Any:
        """Returns what `encode` returns for a key, from a file where there is one."""
        if self.files is None:
            return encode()
        try:
            return self.files.get(_content(key), encode, self.device)
        except _NoContent:
            return encode()


def num_bytes(value: Any) -> int:
    """Returns the bytes of the tensors in a result: a tensor, or a list, tuple or mapping of results."""
    if isinstance(value, Tensor):
        return value.nbytes
    inside = value.values() if isinstance(value, Mapping) else value if isinstance(value, list | tuple) else ()
    return sum(map(num_bytes, inside))


class _VaeStandIn(PartStandIn):
    """A VAE to the pipeline: everything of the real one, but condition images are encoded once."""

    def __init__(self, real: Any, remembered: Remembered) -> None:
        super().__init__(real)
        self._remembered = remembered

    def encode(self, *args: Any, **kwargs: Any) -> Any:
        """Returns what the VAE's own method returns."""
        ways = tuple(bool(getattr(self._real, name, False)) for name in ("use_tiling", "use_slicing"))
        key = ("vae.encode", ways, args, kwargs)
        return _as_output(self._remembered.kept(key, lambda: _as_plain(self._real.encode(*args, **kwargs))))


class _BlockStandIn:
    """The block of a modular pipeline that encodes texts: everything of the real one, but it runs once for a text."""

    def __init__(self, real: Any, scale: float | None, remembered: Remembered) -> None:
        self.__dict__.update(_real=real, _scale=scale, _remembered=remembered)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def __call__(self, pipeline: Any, state: Any) -> tuple[Any, Any]:
        """Puts into the state what the block puts there."""
        given = {item.name: state.get(item.name) for item in self._real.inputs if item.name}

        def encode() -> dict[str, Any]:
            kinds = {kind: list(names) for kind, names in state.kwargs_mapping.items()}
            made = type(state)(dict(state.values), kinds)
            self._real(pipeline, made)
            values = {name: value for name, value in made.values.items() if value is not state.get(name, made)}
            more = {kind: names[len(state.kwargs_mapping.get(kind, ())) :] for kind, names in kinds.items()}
            return {"values": values, "kinds": more}

        found = self._remembered.once((_BLOCK, self._scale, fingerprint(given)), encode)
        state.values.update(found["values"])
        for kind, names in found["kinds"].items():
            state.kwargs_mapping.setdefault(kind, []).extend(names)
        return pipeline, state


def _as_plain(output: Any) -> Any:
    """Returns the tensors of a VAE's output with the name of its kind; other outputs as they are."""
    from diffusers.models.autoencoders.vae import DiagonalGaussianDistribution, EncoderOutput
    from diffusers.models.modeling_outputs import AutoencoderKLOutput

    if type(output) is AutoencoderKLOutput and type(output.latent_dist) is DiagonalGaussianDistribution:
        return ["distribution", output.latent_dist.parameters]
    if type(output) is EncoderOutput:
        return ["latent", output.latent]
    return output


def _as_output(plain: Any) -> Any:
    """Returns the output of a VAE: the inverse."""
    from diffusers.models.autoencoders.vae import DiagonalGaussianDistribution, EncoderOutput
    from diffusers.models.modeling_outputs import AutoencoderKLOutput

    if not isinstance(plain, list):
        return plain
    kind, tensor = plain
    if kind == "latent":
        return EncoderOutput(latent=tensor)
    return AutoencoderKLOutput(latent_dist=DiagonalGaussianDistribution(tensor))


def _content(value: Any) -> Any:
    """Returns the content of arguments, the same in all runs and on all GPUs. Raises _NoContent."""
    if isinstance(value, torch.device):
        return "device"
    if isinstance(value, _PLAIN):
        return repr(value)
    if isinstance(value, Mapping):
        return tuple((str(key), _content(item)) for key, item in sorted(value.items()))
    if isinstance(value, list | tuple):
        return tuple(_content(item) for item in value)
    if isinstance(value, Tensor):
        return fingerprint(value)
    if hasattr(value, "tobytes"):  # an image, whose mode says what the bytes are, or an array
        form = [str(getattr(value, name, None)) for name in ("mode", "dtype", "shape")]
        return *form, fingerprint(value)
    raise _NoContent(type(value).__name__)
