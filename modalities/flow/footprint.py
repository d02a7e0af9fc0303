"""The memory and FLOPs of a pipeline of diffusers, counted without content: its network runs at real shapes."""

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from typing import Any, Protocol

import torch
from torch import Tensor

from mmrl.core.contracts import ConfigError, Footprint, Workload

from ..loading.architectures import NETWORKS, Architecture, Part, architecture_of
from ..loading.lora import Lora
from ..loading.quantise import Quantise, saved_by
from ..loading.weightless import backward_peak, emptied, forward_costs, on_meta, without_content
from .policy import LATENT_DTYPES

_DEEP = 26  # a network of more layers is run at few, and its other layers are counted as alike
_SHALLOW = 2
_DEPTHS = ("num_layers", "num_single_layers")
_TEXT = 77  # tokens of a prompt where nothing says how many
_VAE = 254_000_000  # bytes of an autoencoder that is not known, in float32
Arguments = Callable[[Any, int, int, tuple[int, ...], torch.dtype], dict[str, Any]]


class Counted(Protocol):
    """The settings of a pipeline that its memory and FLOPs depend on."""

    @property
    def model(self) -> str: ...
    @property
    def lora(self) -> Lora | None: ...
    @property
    def quantise(self) -> Quantise | None: ...
    @property
    def width(self) -> int: ...
    @property
    def height(self) -> int: ...
    @property
    def num_clip_frames(self) -> int | None: ...
    @property
    def num_text_tokens(self) -> int | None: ...
    @property
    def network_batch(self) -> int: ...
    @property
    def decode_batch(self) -> int: ...
    @property
    def vae_dtype(self) -> str: ...
    @property
    def gradient_checkpointing(self) -> bool: ...
    @property
    def offload_text_encoders(self) -> bool: ...
    def train_on_meta(self, network: Any, name: str) -> None: ...


def footprint_of(policy: Counted, work: Workload) -> Footprint:
    """Returns what a pipeline takes for a workload. Raises ConfigError for a network whose inputs are not known."""
    known = architecture_of(policy.model)
    names = [name for name in NETWORKS if name in known.parts]
    part = known.parts[names[0]]
    if part.kind not in INPUTS:
        raise ConfigError(
            f"the forecast of memory: the inputs of a {part.kind} are not known; those of {', '.join(INPUTS)} are "
            "(modalities/flow/footprint.py)"
        )
    trained_dtype = work.trained_dtype if policy.lora is None else work.dtype
    whole = on_meta(part.make, trained_dtype)
    policy.train_on_meta(whole, names[0])
    sizes = [(p.numel() * p.element_size(), p.requires_grad) for p in whole.parameters()]
    frozen = sum(size for size, is_trained in sizes if not is_trained) * len(names)
    if policy.quantise is not None:
        frozen -= saved_by(policy.quantise, whole) * len(names)
    element = 4 if work.dtype == torch.float32 else 2
    vae, decoding, decode_flops = _decoder(policy, known.parts.get("vae"), work)
    if not policy.offload_text_encoders:
        frozen += known.encoders * element
    latents = _latents(policy, part, known.parts.get("vae"))
    count = 1
    for length in latents:
        count *= length
    text = _num_text(policy, known)
    batch = min(work.micro_batch, work.calls) * work.branches
    peak, end = _deep(policy, part, names[0], latents, (batch, text), work)
    drawn = min(policy.network_batch, work.at_once) * work.branches
    sampling, call_flops, kernels = _forward(policy, part, names[0], latents, (drawn, text), work)
    trained = [size for size, is_trained in sizes if is_trained]
    pixels = 4 * 3 * policy.height * policy.width * (policy.num_clip_frames or 1)
    return Footprint(
        frozen=frozen + vae,
        trained=sum(trained) * len(names),
        largest=max(trained, default=0),
        is_adapter=policy.lora is not None and policy.lora.path is None,
        activations=peak,
        last_layer=end,
        sampling=max(sampling, decoding) + 4 * 4 * count * work.at_once,
        kept=4 * count * (3 * work.calls + 2 * work.samples),
        outputs=pixels * work.at_once,
        call_flops=call_flops / drawn,
        update_flops=call_flops / drawn,
        recomputes=policy.gradient_checkpointing,
        kernels=int(kernels),
        steps=0,
        decode_flops=decode_flops,
        notes=(
            f"prompts of {text} tokens",
            *(("text encoders wait on the CPU",) if policy.offload_text_encoders else ()),
            *(() if "vae" in known.parts else ("an autoencoder of 64 million weights; its decoding is left out",)),
            *known.notes,
        ),
    )


def _latents(policy: Counted, part: Part, vae: Part | None) -> tuple[int, ...]:
    """Returns the shape of a sample's latents: channels, frames of videos, height and width."""
    channels = int(part.setting("in_channels") or 4)
    levels = vae.config.get("block_out_channels") if vae is not None and vae.kind == "AutoencoderKL" else None
    scale = 8 if levels is None else 2 ** (len(levels) - 1)
    frames = policy.num_clip_frames
    inside = (policy.height // scale, policy.width // scale)
    return (channels, *inside) if frames is None else (channels, (frames - 1) // 4 + 1, *inside)


def _num_text(policy: Counted, known: Architecture) -> int:
    """Returns the tokens of an encoded prompt: of Stable Diffusion 3, those of CLIP and of T5."""
    longest = policy.num_text_tokens
    return known.text_tokens or (_TEXT if longest is None else _TEXT + longest)


def _decoder(policy: Counted, part: Part | None, work: Workload) -> tuple[int, int, float]:
    """Returns the bytes of the autoencoder, the peak of a decoding, and its FLOPs for one sample."""
    dtype = LATENT_DTYPES[policy.vae_dtype]
    if part is None or part.kind != "AutoencoderKL":
        return _VAE * dtype.itemsize // 4, 0, 0.0
    vae = on_meta(part.make, dtype)
    size = sum(parameter.nbytes for parameter in vae.parameters())
    batch = min(policy.decode_batch, work.at_once)
    with without_content():
        emptied(vae)
        scale = 2 ** (len(part.config["block_out_channels"]) - 1)
        shape = (1, part.config["latent_channels"], policy.height // scale, policy.width // scale)
        latents = torch.empty(shape, dtype=dtype)
        peak, flops, _ = forward_costs(lambda: vae.decode(latents, return_dict=False)[0])
    return size, peak * batch, flops


Sizes = tuple[int, int]  # network calls of a batch, tokens of a prompt


def _shallow(part: Part) -> tuple[list[str], bool]:
    """Returns the settings that say numbers of layers, and whether the network is so deep that few of them are run."""
    depths = [name for name in _DEPTHS if isinstance(part.setting(name), int)]
    total = sum(int(part.setting(name)) for name in depths)
    return depths, total > _DEEP


def _at_depth(part: Part, measure: Callable[..., tuple[float, ...]]) -> list[float]:
    """Returns what `measure` says of a network, from one of few layers where it is deep: further ones add the same."""
    depths, is_deep = _shallow(part)
    if not is_deep:
        return list(measure())
    few = dict.fromkeys(depths, _SHALLOW)
    base = measure(**few)
    total = list(base)
    for name in depths:
        more = measure(**{**few, name: _SHALLOW + 1})
        for number, (value, grown) in enumerate(zip(base, more, strict=True)):
            total[number] += (int(part.setting(name)) - _SHALLOW) * (grown - value)
    return total


def _network(policy: Counted, part: Part, name: str, work: Workload, changes: Mapping[str, int]) -> Any:
    network = on_meta(lambda: part.make(**changes), work.trained_dtype if policy.lora is None else work.dtype)
    policy.train_on_meta(network, name)
    if policy.gradient_checkpointing:
        network.enable_gradient_checkpointing()
    return network


def _deep(
    policy: Counted, part: Part, name: str, latents: tuple[int, ...], sizes: Sizes, work: Workload
) -> tuple[int, int]:
    """Returns the peak of a micro-batch, and what is there at the end of its backward pass; 0: unknown."""
    ends: list[float] = []

    def measure(**changes: int) -> tuple[float, ...]:
        network = _network(policy, part, name, work, changes)
        with without_content():
            emptied(network)
            run = _call(network, part, latents, sizes, work)
            ends.append(backward_peak(network, lambda: run().square().mean()))
        return (ends[-1],)

    (peak,) = _at_depth(part, measure)
    return int(peak), int(ends[0]) if len(ends) > 1 else 0


def _forward(
    policy: Counted, part: Part, name: str, latents: tuple[int, ...], sizes: Sizes, work: Workload
) -> tuple[int, float, int]:
    """Returns the peak, the FLOPs and the kernels of a call without a graph."""

    def measure(**changes: int) -> tuple[float, ...]:
        network = _network(policy, part, name, work, changes)
        with without_content():
            emptied(network)
            return forward_costs(_call(network, part, latents, sizes, work))

    peak, flops, kernels = _at_depth(part, measure)
    return int(peak), flops, int(kernels)


def _call(network: Any, part: Part, latents: tuple[int, ...], sizes: Sizes, work: Workload) -> Callable[[], Tensor]:
    autocast: Any = nullcontext() if work.dtype == torch.float32 else torch.autocast("cpu", work.dtype)

    def run() -> Tensor:
        with autocast:
            given = INPUTS[part.kind](network, *sizes, latents, work.dtype)
            return network(**given, return_dict=False)[0].float()  # type: ignore[no-any-return]

    return run


# The inputs of each network: of a batch, with the tokens of a prompt, the shape of its latents and a dtype.


def _sd3(network: Any, batch: int, text: int, latents: tuple[int, ...], dtype: torch.dtype) -> dict[str, Any]:
    config = network.config
    return {
        "hidden_states": torch.empty(batch, *latents, dtype=dtype),
        "encoder_hidden_states": torch.empty(batch, text, config.joint_attention_dim, dtype=dtype),
        "pooled_projections": torch.empty(batch, config.pooled_projection_dim, dtype=dtype),
        "timestep": torch.empty(batch),
    }


def _unet(network: Any, batch: int, text: int, latents: tuple[int, ...], dtype: torch.dtype) -> dict[str, Any]:
    return {
        "sample": torch.empty(batch, *latents, dtype=dtype),
        "timestep": torch.empty(batch),
        "encoder_hidden_states": torch.empty(batch, text, network.config.cross_attention_dim, dtype=dtype),
    }


def _packed(network: Any, batch: int, text: int, latents: tuple[int, ...], dtype: torch.dtype) -> dict[str, Any]:
    """Latents in patches of 2 x 2: `in_channels` counts those of a patch."""
    tokens = latents[-1] * latents[-2] // 4
    return {
        "hidden_states": torch.empty(batch, tokens, network.config.in_channels, dtype=dtype),
        "encoder_hidden_states": torch.empty(batch, text, network.config.joint_attention_dim, dtype=dtype),
        "timestep": torch.empty(batch),
    }


def _flux(network: Any, batch: int, text: int, latents: tuple[int, ...], dtype: torch.dtype) -> dict[str, Any]:
    given = _packed(network, batch, text, latents, dtype)
    return given | {
        "pooled_projections": torch.empty(batch, network.config.pooled_projection_dim, dtype=dtype),
        "img_ids": torch.empty(given["hidden_states"].shape[1], 3),
        "txt_ids": torch.empty(text, 3),
        "guidance": torch.empty(batch) if network.config.guidance_embeds else None,
    }


def _qwen_image(network: Any, batch: int, text: int, latents: tuple[int, ...], dtype: torch.dtype) -> dict[str, Any]:
    shapes = [[(1, latents[-2] // 2, latents[-1] // 2)]] * batch
    return _packed(network, batch, text, latents, dtype) | {"img_shapes": shapes}


def _wan(network: Any, batch: int, text: int, latents: tuple[int, ...], dtype: torch.dtype) -> dict[str, Any]:
    shape = latents if len(latents) == 4 else (latents[0], 1, *latents[1:])
    return {
        "hidden_states": torch.empty(batch, *shape, dtype=dtype),
        "timestep": torch.empty(batch),
        "encoder_hidden_states": torch.empty(batch, text, network.config.text_dim, dtype=dtype),
    }


INPUTS: Mapping[str, Arguments] = {
    "SD3Transformer2DModel": _sd3,
    "UNet2DConditionModel": _unet,
    "FluxTransformer2DModel": _flux,
    "QwenImageTransformer2DModel": _qwen_image,
    "WanTransformer3DModel": _wan,
}
