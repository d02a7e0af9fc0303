"""mmrl's policies on networks with random weights, made on the device: no file is read or written."""

import json
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from io import BytesIO
from typing import Any

import torch
from torch import Tensor, nn

from mmrl.core.contracts import Placement
from mmrl.core.data import Prompt
from mmrl.core.keys import generator
from mmrl.media.pictures import StoredPicture
from mmrl.modalities.flow.decisions import Conditioning
from mmrl.modalities.loading.lora import Lora
from mmrl.modalities.loading.merging import MergedAdapters
from mmrl.modalities.sd3 import StableDiffusion3
from mmrl.modalities.stable_diffusion import StableDiffusion
from mmrl.modalities.stable_diffusion_xl import StableDiffusionXL
from mmrl.modalities.vision_language import VisionLanguage

from . import sizes
from .measuring import Measurement

ENDING = "<|video_pad|>"  # ends no answer: media tokens are banned, so all answers have the same length


def made(kind: Any, settings: Mapping[str, Any], placed: Placement) -> Any:
    """Returns a network of diffusers with random weights, made on the device in its precision."""
    with torch.device(placed.device):
        network = kind(**settings)
    return network.to(placed.dtype).requires_grad_(False).eval()


def sd35(measured: Measurement, side: int, *, dtype: torch.dtype | None = None, **settings: Any) -> StableDiffusion3:
    """Returns SD3.5-medium for images of side x side pixels as a policy that is ready to train."""
    import diffusers

    library: Any = diffusers
    tiny, placed = measured.is_tiny, Placement(measured.device, dtype or measured.dtype)
    trained = replace(placed, dtype=torch.float32) if settings.get("lora") is None else placed
    network = made(library.SD3Transformer2DModel, sizes.SD35_TINY if tiny else sizes.SD35, trained)
    scheduler = library.FlowMatchEulerDiscreteScheduler(shift=3.0)
    pipeline = library.StableDiffusion3Pipeline(
        transformer=network,
        scheduler=scheduler,
        vae=vae(measured, sizes.SD3_LATENTS),
        **{f"{part}{number}": None for part in ("text_encoder", "tokenizer") for number in ("", "_2", "_3")},
    )
    policy = StableDiffusion3(model="random", height=side, width=side, **settings)
    tokens, config = (16 if tiny else 333), network.config
    shapes = ((tokens, config.joint_attention_dim), (config.pooled_projection_dim,))
    ready(policy, pipeline, shapes, placed)
    return policy


def vae(measured: Measurement, latents: Mapping[str, Any]) -> Any:
    """Returns the autoencoder of images, in float32."""
    import diffusers

    settings = (sizes.VAE_TINY if measured.is_tiny else sizes.VAE) | dict(latents)
    library: Any = diffusers
    return made(library.AutoencoderKL, settings, Placement(measured.device, torch.float32))


def unet(measured: Measurement, name: str, side: int, **settings: Any) -> StableDiffusion:
    """Returns SD 1.5 (`sd15`) or XL (`sdxl`) for images of side x side pixels as a policy that is ready to train."""
    import diffusers

    library: Any = diffusers
    is_xl, placed = name == "sdxl", Placement(measured.device, measured.dtype)
    trained = replace(placed, dtype=torch.float32) if settings.get("lora") is None else placed
    sized = {"sd15": (sizes.SD15, sizes.SD15_TINY), "sdxl": (sizes.SDXL, sizes.SDXL_TINY)}[name][measured.is_tiny]
    network = made(library.UNet2DConditionModel, sized, trained)
    scheduler = library.DDIMScheduler(
        beta_start=0.00085, beta_end=0.012, beta_schedule="scaled_linear", clip_sample=False, set_alpha_to_one=False,
        steps_offset=1,
    )  # fmt: skip
    decoder = vae(measured, {"latent_channels": 4, "scaling_factor": 0.13025 if is_xl else 0.18215})
    parts = {"unet": network, "vae": decoder, "scheduler": scheduler, "text_encoder": None, "tokenizer": None}
    states = (77, network.config.cross_attention_dim)
    if is_xl:
        pipeline = library.StableDiffusionXLPipeline(
            **parts, text_encoder_2=None, tokenizer_2=None, add_watermarker=False
        )
        pooled = network.config.projection_class_embeddings_input_dim - 6 * network.config.addition_time_embed_dim
        policy: StableDiffusion = StableDiffusionXL(model="random", height=side, width=side, **settings)
        ready(policy, pipeline, (states, (pooled,)), placed, (side, side, 0, 0, side, side))
        return policy
    without = {"safety_checker": None, "feature_extractor": None, "requires_safety_checker": False}
    pipeline = library.StableDiffusionPipeline(**parts, **without)
    policy = StableDiffusion(model="random", height=side, width=side, **settings)
    ready(policy, pipeline, (states,), placed)
    return policy


def ready(
    policy: Any, pipeline: Any, shapes: Sequence[tuple[int, ...]], placed: Placement, numbers: Sequence[int] = ()
) -> None:
    """Prepares a policy on a pipeline that is there, whose encodings of texts are random, of the given shapes.

    `numbers`: what stands behind them in each row (the sizes of SDXL).
    """

    def load(_placement: Placement) -> Any:
        pipeline.set_progress_bar_config(disable=True)
        policy.place(pipeline, placed.device)
        return pipeline

    def encode(texts: list[str]) -> Conditioning:
        rows = [[torch.randn(shape, generator=generator(text)) for shape in shapes] for text in texts]
        tensors = [torch.stack(one).to(placed.device, placed.dtype) for one in zip(*rows, strict=True)]
        more = torch.tensor([numbers] * len(texts), dtype=torch.float32, device=placed.device)
        return Conditioning((*tensors, more) if numbers else tuple(tensors))

    policy._load, policy.encode_prompts = load, encode
    policy.negative = lambda: policy.conditioning([policy.negative_prompt])
    policy.prepare(placed)
    stir(policy.weights.parameters)


@torch.no_grad()
def stir(trained: Mapping[str, Tensor]) -> None:
    """Gives the second factors of a LoRA, which begin at 0, small random numbers, so that the adapter counts."""
    for name, tensor in trained.items():
        if "lora_B" in name:
            tensor.normal_(0, 0.002)


def qwen(measured: Measurement, *, dtype: torch.dtype | None = None, is_small: bool = False, **settings: Any) -> Any:
    """Returns Qwen2.5-VL-7B, or with `is_small` Qwen2-VL-2B, as a policy; its answers end at their budget only."""
    import transformers

    from mmrl.modalities.tiny import qwen as twins

    library: Any = transformers
    placed = Placement(measured.device, dtype or measured.dtype)
    twin, processor = (twins.qwen2_vl if is_small else twins.qwen2_5_vl)()
    sized = ((sizes.QWEN2_2B, sizes.QWEN2_TINY) if is_small else (sizes.QWEN25_7B, sizes.QWEN25_TINY))[measured.is_tiny]
    processor.tokenizer = with_tokens(processor.tokenizer, sized["text_config"]["vocab_size"])
    media = {name: getattr(twin.config, name) for name in
             ("image_token_id", "video_token_id", "vision_start_token_id", "vision_end_token_id")}  # fmt: skip
    ends = {"bos_token_id": None, "eos_token_id": processor.tokenizer.eos_token_id,
            "pad_token_id": processor.tokenizer.pad_token_id}  # fmt: skip
    config = type(twin.config)(**sized | {"text_config": sized["text_config"] | ends}, **media)
    name = "Qwen2VLForConditionalGeneration" if is_small else "Qwen2_5_VLForConditionalGeneration"
    weights = torch.float32 if settings.get("lora") is None else placed.dtype
    # a weight of a head of 0.02 makes nearly uniform answers, as the small twins have too
    with torch.device(measured.device):
        model = getattr(library, name)._from_config(config, dtype=weights)
    model.tie_weights()
    ending = processor.tokenizer.convert_tokens_to_ids(ENDING)
    model.generation_config.eos_token_id, model.generation_config.pad_token_id = [ending], ending
    processor.image_processor.size = {"shortest_edge": 4 * 14**2, "longest_edge": 16384 * 28**2}
    return answering(VisionLanguage(model="random", **settings), model, processor, placed)


def answering(policy: VisionLanguage, model: Any, processor: Any, placed: Placement) -> VisionLanguage:
    """Prepares a policy on a model and a processor that are there, as `prepare` does on those that it loads."""
    policy._placement = placed
    policy._model = model
    policy._set_up(processor, placed)
    stir(policy.weights.parameters)
    return policy


def with_tokens(tokenizer: Any, size: int) -> Any:
    """Returns the tokenizer with `size` tokens; those beyond its own have names that nobody spells."""
    from tokenizers import Tokenizer

    stored = json.loads(tokenizer.backend_tokenizer.to_str())
    stored["model"]["vocab"] |= {f"<unspelt {n}>": n for n in range(len(tokenizer), size)}
    named = {name: getattr(tokenizer, name) for name in ("eos_token", "pad_token")}
    return type(tokenizer)(tokenizer_object=Tokenizer.from_str(json.dumps(stored)), padding_side="left", **named)


def prompt_of(policy: VisionLanguage, length: int, side: int, number: int = 0) -> Prompt:
    """Returns a prompt of `length` tokens with an image of noise, of side x side pixels."""
    from PIL import Image

    noise = torch.randint(256, (28, 28, 3), generator=torch.Generator().manual_seed(number), dtype=torch.uint8)
    stream = BytesIO()
    Image.fromarray(noise.numpy()).resize((side, side)).save(stream, "png")
    picture = StoredPicture(f"noise {number}", content=stream.getvalue())
    without = len(policy.encode([Prompt("click", (picture,))])[0])
    return Prompt("click" + " box" * max(0, length - without), (picture,))


def lora(rank: int, *, is_tiny: bool) -> Lora:
    """Returns the settings of an adapter, of rank 4 where all is small."""
    return Lora(rank=4 if is_tiny else rank, alpha=8 if is_tiny else 2 * rank)


def merged(network: nn.Module, *, is_merged: bool) -> AbstractContextManager[None]:
    """Returns a context with the adapters of a network in its weights, as `lora.merge_rollouts` puts them; or none."""
    return MergedAdapters([network])() if is_merged else nullcontext()
