"""Checks of autoencoders, scoring networks and UNets."""

import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import normalize

from mmrl.core.data import Outputs, Prompt, Rollout
from mmrl.core.keys import GroupKey
from mmrl.losses.draft import Draft
from mmrl.rewards.base.networks.clip import Clip
from mmrl.samplers.ode import ODE
from mmrl.training.update import Updater

from . import sizes
from .building import lora, sd35, unet
from .images import accumulated, processes_of
from .measuring import Measurement, flops_of, gb, significant


def decode_and_rewards(measured: Measurement) -> None:
    """Measures decoding in float32, bf16 and both memory formats, scoring networks, and what overlap hides."""
    sides, count = ((32,), 4) if measured.is_tiny else ((512, 1024), 16)
    policy: Any = sd35(measured, sides[0], lora=lora(4, is_tiny=True), decode_batch=count)
    policy._pipeline.transformer.to("cpu")
    towers = {name: _clip(measured, name) for name in sizes.CLIP}
    rows = []
    kept: dict[str, Tensor] = {}
    for side in sides:
        latents = torch.randn(count * sides[0] // side, 16, side // 8, side // 8, device=measured.device)
        for case in ("float32", "float32 channels_last", "bfloat16", "bfloat16 channels_last"):
            if measured.has_time(f"decoding, {side} pixels, {case}", 3):
                with measured.may_lack_memory(f"decoding, {side} pixels, {case}"):
                    images, row = _decoded(measured, policy, latents, case)
                    first = kept.setdefault(f"{side}", images)
                    row["psnr"] = significant(_psnr(images, first)) if images is not first else None
                    row["largest_change_of_a_score"] = _changes(towers, images, first) if side == sides[0] else None
                    rows.append({"side": side, "case": case, **row})
    measured.figures["decoding"] = rows
    exact = next(row for row in rows if row["case"] == "float32 channels_last")
    measured.identity("channels_last_psnr_below_40", 40 - (exact["psnr"] or 100), 0)
    scored = kept[f"{sides[0]}"]
    for name, clip in towers.items():
        measured.begin_peak()
        seconds = measured.seconds(lambda clip=clip: clip.images(scored))  # type: ignore[misc]
        measured.figures[f"{name}_images_per_second"] = significant(len(scored) / seconds)
        measured.figures[f"{name}_peak_gb"] = measured.end_peak()
    _overlap(measured, policy, towers["clip_h"], scored, sides[0])


def _decoded(measured: Measurement, policy: Any, latents: Tensor, case: str) -> tuple[Tensor, dict[str, Any]]:
    """Returns the images of latents, and what their decoding takes."""
    vae = policy._pipeline.vae
    dtype = torch.bfloat16 if case.startswith("bfloat16") else torch.float32
    vae.to(dtype=dtype, memory_format=torch.channels_last if "channels" in case else torch.contiguous_format)
    factor, shift = policy._vae_scale()

    @torch.no_grad()
    def decode() -> Tensor:
        if dtype == torch.float32:
            return policy.decode_latents(latents)  # type: ignore[no-any-return]
        images = vae.decode((latents / factor + shift).to(dtype), return_dict=False)[0]
        return (images.float() / 2 + 0.5).clamp(0, 1)  # type: ignore[no-any-return]

    measured.begin_peak()
    images = decode()
    seconds = measured.seconds(decode, warm=0)
    return images, {"images_per_second": significant(len(latents) / seconds), "peak_gb": measured.end_peak()}


def _psnr(images: Tensor, other: Tensor) -> float:
    error = float((images - other).square().mean())
    return float(-10 * torch.tensor(max(error, 1e-12)).log10())


def _changes(towers: dict[str, Clip], images: Tensor, first: Tensor) -> dict[str, float]:
    """Returns the largest change of a cosine to 8 fixed directions, by scoring network."""
    found = {}
    for name, clip in towers.items():
        with torch.no_grad():
            both = [clip.images(one) for one in (images, first)]
        directions = normalize(torch.randn(8, both[0].shape[1], generator=torch.Generator().manual_seed(0)), dim=1)
        cosines = [one @ directions.to(one).T for one in both]
        found[name] = significant(float((cosines[0] - cosines[1]).abs().max()))
    return found


def _clip(measured: Measurement, name: str) -> Clip:
    """Returns a scoring network with random weights in float32, behind mmrl's own interface."""
    from transformers import CLIPConfig, CLIPImageProcessor, CLIPModel

    settings = (sizes.CLIP_TINY if measured.is_tiny else sizes.CLIP)[name]
    with torch.device(measured.device):
        network: Any = CLIPModel(CLIPConfig(**settings)).eval().requires_grad_(False)
    side = network.config.vision_config.image_size
    processor: Any = CLIPImageProcessor(size={"shortest_edge": side}, crop_size={"height": side, "width": side})
    mean, std = (
        torch.tensor(values, device=measured.device).view(3, 1, 1)
        for values in (processor.image_mean, processor.image_std)
    )

    def preprocess(images: Tensor) -> Tensor:
        return processor(images=images, do_rescale=False, return_tensors="pt")["pixel_values"]  # type: ignore[no-any-return]

    def embed(pixels: Tensor) -> Tensor:
        return network.get_image_features(pixel_values=pixels).pooler_output  # type: ignore[no-any-return]

    return Clip(preprocess, side, (0 - mean) / std, (1 - mean) / std, embed, lambda texts: torch.zeros(len(texts), 1))


def _overlap(measured: Measurement, policy: Any, clip: Clip, images: Tensor, side: int) -> None:
    """Measures the seconds that scoring in a thread hides behind the decoding of the next chunk."""
    if not measured.has_time("overlap of scoring and decoding"):
        return
    policy._pipeline.vae.to(dtype=torch.float32, memory_format=torch.channels_last)
    latents, chunks = torch.randn(len(images), 16, side // 8, side // 8, device=measured.device), 3

    @torch.no_grad()
    def score(chunk: Tensor) -> Tensor:
        return clip.images(chunk).cpu()

    @torch.no_grad()
    def one_after_the_other() -> None:
        for _ in range(chunks):
            score(policy.decode_latents(latents))

    @torch.no_grad()
    def side_by_side() -> None:
        with ThreadPoolExecutor(1) as thread:
            waiting = [thread.submit(score, policy.decode_latents(latents)) for _ in range(chunks)]
            for one in waiting:
                one.result()

    apart, together = measured.seconds(one_after_the_other), measured.seconds(side_by_side)
    measured.figures |= {
        "seconds_one_after_the_other": significant(apart),
        "seconds_side_by_side": significant(together),
        "seconds_hidden": significant(apart - together),
    }


def unets(measured: Measurement) -> None:
    """Measures SD 1.5 and XL in both memory formats, and the memory of DRaFT by its number of steps."""
    for name, side, batch in (("sd15", 512, 32), ("sdxl", 1024, 8)):
        if measured.has_time(name, 10):
            _unet(measured, name, *((32, 2) if measured.is_tiny else (side, batch)))
    _draft(measured)


def _unet(measured: Measurement, name: str, side: int, batch: int) -> None:
    policy: Any = unet(measured, name, side, lora=lora(4, is_tiny=measured.is_tiny))
    network = policy.trained_network()
    conditioning = policy.conditioning(["a photo"] * batch)
    latents = torch.randn(batch, *policy.latent_shape, device=measured.device)
    sigma = torch.full((batch,), 0.5, device=measured.device)
    with torch.no_grad():
        flops = flops_of(lambda: policy.velocity(latents, sigma, conditioning))
        measured.figures[f"{name}_tflop_per_forward"] = significant(flops / batch / 1e12)
        found = []
        for case, layout in (("contiguous", torch.contiguous_format), ("channels_last", torch.channels_last)):
            network.to(memory_format=layout)
            if measured.has_time(f"{name}, {case}", 5):
                found.append(policy.velocity(latents, sigma, conditioning))
                measured.begin_peak()
                seconds = measured.seconds(lambda: policy.velocity(latents, sigma, conditioning), repeats=3)
                measured.figures[f"{name}_{case}"] = {
                    "calls_per_second": significant(batch / seconds),
                    "mfu": measured.mfu(flops, seconds),
                    "peak_gb": measured.end_peak(),
                }
    if len(found) == 2:
        off = float((found[0] - found[1]).norm() / found[0].norm())
        measured.identity(f"{name}_channels_last_difference", off, 1e-4 if measured.dtype == torch.float32 else 0.05)


def _draft(measured: Measurement) -> None:
    """Measures the peak of an update of DRaFT through the last 1, 10 and 50 steps of SD 1.5."""
    steps, side, count = (4, 32, 2) if measured.is_tiny else (50, 512, 4)
    policy: Any = unet(measured, "sd15", side, lora=lora(4, is_tiny=measured.is_tiny), decode_batch=1)
    policy.records_trajectories = True
    sampler, key = ODE(num_steps=steps), GroupKey(0, 0, 0)
    rollout = policy.rollout([Prompt("a photo")], [sampler.plan(policy, key, count)], [key])

    def score(_rollout: Rollout, outputs: Outputs, _rows: Tensor) -> Tensor:
        assert outputs.images is not None
        return outputs.images.mean((1, 2, 3))

    peaks = {}
    for last in (1, 2, steps) if measured.is_tiny else (1, 10, steps):
        if measured.has_time(f"DRaFT through {last} steps", 1.5 * last / 10):
            with measured.may_lack_memory(f"DRaFT through {last} steps"):
                updater = Updater(policy, Draft(num_steps=last), processes_of(measured), count, score)
                measured.begin_peak()
                begin = time.perf_counter()
                accumulated(policy, updater, rollout, old="itself")
                measured.synchronise()
                peaks[last] = measured.end_peak()
                gradients = [p.grad for p in policy.weights.parameters.values() if p.grad is not None]
                largest = max(float(gradient.abs().max()) for gradient in gradients)
                measured.figures[f"draft_{last}"] = {
                    "peak_gb": peaks[last],
                    "seconds": significant(time.perf_counter() - begin),
                    "largest_gradient": significant(largest),
                }
                measured.identity("draft_without_gradient", float(not 0 < largest < float("inf")), 0)
    measured.figures["draft_held_gb"] = gb(measured.allocated)
