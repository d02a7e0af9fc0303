"""Checks of Stable Diffusion 3.5: rollouts, updates, precision."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from mmrl.core.contracts import LossBatch
from mmrl.core.data import Prompt, Rollout
from mmrl.core.keys import GroupKey
from mmrl.core.views import DecisionView
from mmrl.losses.grpo import Grpo
from mmrl.modalities.loading.hub import without_adapter
from mmrl.samplers.flow_sde import FlowSDE
from mmrl.training.processes import Processes
from mmrl.training.update import Updater

from .building import lora, merged, sd35
from .measuring import Measurement, cosine, flops_of, gb, significant

MFU_BAR, MERGED_BAR, COSINE_BAR, CLIP = 0.30, 1.03, 0.995, 1e-4
LAYERS = 24  # of the real network


def rollout_of(policy: Any, count: int, num_steps: int, scale: float, seed: int = 0) -> Rollout:
    """Samples `count` images of one prompt by Flow-SDE, all steps random but the last."""
    sampler, key = FlowSDE(num_steps=num_steps, guidance_scale=scale), GroupKey(seed, 0, 0)
    sampled: Rollout = policy.rollout([Prompt("a photo")], [sampler.plan(policy, key, count)], [key])
    return sampled


def sd35_rollout(measured: Measurement) -> None:
    """Measures rollouts at 512 pixels, 10 steps and guidance 4.5: base, LoRA, LoRA merged, compiled."""
    side, steps = (64, 2) if measured.is_tiny else (512, 10)
    batches = (2,) if measured.is_tiny else (32, 64)
    policy: Any = sd35(measured, side, lora=lora(32, is_tiny=measured.is_tiny), decode_batch=16)
    network = policy.trained_network()
    conditioning = policy.conditioning(["a photo"])
    latents = torch.randn(1, *policy.latent_shape, device=measured.device)
    sigma = torch.full((1,), 0.5, device=measured.device)
    with torch.no_grad():
        with without_adapter(network):
            flops = flops_of(lambda: policy.velocity(latents, sigma, conditioning))
            plain = policy.velocity(latents, sigma, conditioning)
        measured.figures["tflop_per_forward"] = significant(flops / 1e12)
        adapted = policy.velocity(latents, sigma, conditioning)
        with merged(network, is_merged=True):
            close = (policy.velocity(latents, sigma, conditioning) - adapted).norm() / adapted.norm()
        again = (policy.velocity(latents, sigma, conditioning) - adapted).norm() / adapted.norm()
        measured.figures["adapter_change"] = significant(float((adapted - plain).norm() / plain.norm()))
        rounding = 1e-5 if measured.dtype == torch.float32 else 0.05
        measured.identity("merged_difference", float(close), rounding)
        measured.identity("unmerged_again_difference", float(again), 0)
    rows: list[dict[str, Any]] = []
    measured.figures["cases"] = rows
    for batch in batches:
        policy.network_batch = 2 * batch
        for case in ("base", "merged", "compiled", "lora"):
            name = f"{case}, batch {batch}"
            if case == "compiled" and (batch != batches[0] or not measured.on_cuda(name)):
                continue
            last = rows[-1] if rows else {"seconds": 0.0, "batch": batch}
            expected = 1.4 * last["seconds"] * batch / last["batch"] + (35 if case == "compiled" else 0)
            if measured.has_time(name, 0 if measured.is_tiny else expected):
                with measured.may_lack_memory(name):
                    rows.append(_rollout_case(measured, policy, case, (batch, steps), flops))
    by = {(row["case"], row["batch"]): row for row in rows}
    if (base := by.get(("base", batches[0]))) and (fused := by.get(("merged", batches[0]))):
        ratio = fused["network_seconds"] / base["network_seconds"]
        measured.figures["merged_over_base"] = significant(ratio)
        measured.at_most("merged_over_base", ratio, MERGED_BAR)
    if best := max((row["mfu"] or 0 for row in rows), default=0):
        measured.at_least("best mfu", best, MFU_BAR)


def _rollout_case(measured: Measurement, policy: Any, case: str, size: tuple[int, int], flops: int) -> dict[str, Any]:
    """Returns the figures of one rollout of (images, steps)."""
    count, steps = size
    network, decoding = policy.trained_network(), [0.0]
    decode = type(policy).decode_latents

    def timed(latents: Tensor) -> Tensor:
        found: list[Tensor] = []
        decoding[0] += measured.seconds(lambda: found.append(decode(policy, latents)), warm=0)
        return found[0]

    policy.decode_latents = timed
    if case == "compiled":
        network.compile()
    try:
        with without_adapter(network) if case == "base" else merged(network, is_merged=case == "merged"):
            warming = measured.seconds(lambda: rollout_of(policy, count, 2, 4.5), warm=0)
            decoding[0], before = 0.0, policy.num_calls
            measured.begin_peak()
            seconds = measured.seconds(lambda: rollout_of(policy, count, steps, 4.5), warm=0)
            if measured.is_cuda and f"kernels_{case}" not in measured.figures:
                measured.figures[f"kernels_{case}"] = _kernels(measured, policy, count)
    finally:
        del policy.decode_latents
        if case == "compiled":
            network._compiled_call_impl = None
    calls, inside = policy.num_calls - before, seconds - decoding[0]
    return {
        "case": case,
        "batch": count,
        "seconds": significant(seconds),
        "first_call_seconds": significant(warming),
        "network_seconds": significant(inside),
        "images_per_second": significant(count / seconds),
        "network_calls_per_second": significant(calls / inside),
        "mfu": measured.mfu(flops * calls, inside),
        "peak_gb": measured.end_peak(),
    }


def _kernels(measured: Measurement, policy: Any, count: int) -> dict[str, float]:
    """Returns what one call of the network spends its time on, with both branches of the guidance."""
    conditioning = policy.conditioning(["a photo"] * (2 * count))
    latents = torch.randn(2 * count, *policy.latent_shape, device=measured.device)
    sigma = torch.full((2 * count,), 0.5, device=measured.device)
    with torch.no_grad():
        return measured.kernels(lambda: policy.velocity(latents, sigma, conditioning))


def batch_of(rollout: Rollout, device: torch.device) -> LossBatch:
    """Returns advantages of -1 to 1 for the samples of a rollout, all of which take part."""
    count = rollout.num_samples
    worth = torch.linspace(-1, 1, count, device=device)
    return LossBatch(worth[:, None], torch.ones(count, 1, device=device), rollout.group.to(device), worth)


def accumulated(
    policy: Any, updater: Updater, rollout: Rollout, old: Any = "recorded", count: int | None = None
) -> None:
    """Adds the gradient of one optimizer step on all samples or the first `count`, in place of the gradient before."""
    for parameter in policy.weights.parameters.values():
        parameter.grad = None
    batch = batch_of(rollout, policy.device if hasattr(policy, "device") else policy.backbone.device)
    views = updater.loss.views(rollout, torch.arange(count or rollout.num_samples), GroupKey(0, 0, 0))
    updater.accumulate(rollout, views, batch, old)


def processes_of(measured: Measurement) -> Processes:
    """Returns the one process of a run, on the measured device and in its precision."""
    found = Processes("bfloat16" if measured.dtype == torch.bfloat16 else "float32")
    found.placement = replace(found.placement, device=measured.device)
    return found


def sd35_update(measured: Measurement) -> None:
    """Measures updates of GRPO: micro-batches, checkpointing, LoRA and full, AdamW foreach and fused."""
    side = 64 if measured.is_tiny else 512
    sizes = (2,) if measured.is_tiny else (8, 16, 32)
    rows: list[dict[str, Any]] = []
    measured.figures["cases"] = rows
    for is_full in (False, True):
        begin = measured.allocated
        settings: dict[str, Any] = {} if is_full else {"lora": lora(32, is_tiny=measured.is_tiny)}
        policy: Any = sd35(measured, side, **settings)
        network, what = policy.trained_network(), "full" if is_full else "lora"
        rollout = rollout_of(policy, max(sizes), 2, 1.0)  # one random step: one call for each sample
        for is_checkpointed in (True, False):
            getattr(network, f"{'enable' if is_checkpointed else 'disable'}_gradient_checkpointing")()
            flops = None
            for size in sizes:
                name = f"{what}, micro-batch {size}, checkpointing {'on' if is_checkpointed else 'off'}"
                if measured.has_time(name, 4):
                    with measured.may_lack_memory(name):
                        flops = flops or _flops_of_update(measured, policy, rollout)
                        row = _update_case(measured, policy, rollout, size, flops)
                        rows.append({"case": what, "checkpointing": is_checkpointed, **row})
        network.enable_gradient_checkpointing()
        del rollout
        _optimizers(measured, policy, what, begin)
        del policy, network
        _empty(measured)


def _empty(measured: Measurement) -> None:
    import gc

    gc.collect()
    if measured.is_cuda:
        torch.cuda.empty_cache()


def _updater(measured: Measurement, policy: Any, size: int) -> Updater:
    return Updater(policy, Grpo(clip_low=CLIP, clip_high=CLIP), processes_of(measured), size)


def _flops_of_update(measured: Measurement, policy: Any, rollout: Rollout) -> int:
    """Returns the FLOPs of all samples of a rollout; they do not depend on the size of a micro-batch."""
    updater = _updater(measured, policy, 1)
    return rollout.num_samples * flops_of(lambda: accumulated(policy, updater, rollout, count=1))


def _update_case(measured: Measurement, policy: Any, rollout: Rollout, size: int, flops: int) -> dict[str, Any]:
    updater = _updater(measured, policy, size)
    measured.begin_peak()
    seconds = measured.seconds(lambda: accumulated(policy, updater, rollout), warm=0)
    return {
        "micro_batch": size,
        "seconds": significant(seconds),
        "samples_per_second": significant(rollout.num_samples / seconds),
        "tflop": significant(flops / 1e12),
        "mfu": measured.mfu(flops, seconds),
        "peak_gb": measured.end_peak(),
    }


def _optimizers(measured: Measurement, policy: Any, what: str, begin: int) -> None:
    """Measures the optimizer's step, and what stays in memory against the formula: weights, gradients, two moments."""
    trained = list(policy.weights.parameters.values())
    networks = (policy.trained_network(), policy._pipeline.vae)
    parts = [tensor for network in networks for tensor in (*network.parameters(), *network.buffers())]
    for tensor in trained:
        tensor.grad = torch.zeros_like(tensor)
    for kind in ("foreach", "fused"):
        name = f"{what}, AdamW {kind}"
        if measured.has_time(name):
            with measured.may_lack_memory(name):
                optimizer = torch.optim.AdamW(trained, lr=1e-9, **{kind: True})  # type: ignore[arg-type]
                optimizer.step()
                if kind == "foreach":
                    formula = sum(t.numel() * t.element_size() for t in parts) + 12 * sum(t.numel() for t in trained)
                    held = measured.allocated - begin
                    measured.figures[f"{what}_resident_gb"] = gb(held)
                    measured.figures[f"{what}_formula_gb"] = gb(formula)
                    if formula > 1e9 or not measured.is_cuda:  # libraries of a GPU take some MB of their own
                        measured.identity(f"{what}_resident_off_formula", abs(held / formula - 1), 0.1)
                measured.begin_peak()
                seconds = measured.seconds(optimizer.step, repeats=2)
                measured.figures[f"{what}_adamw_{kind}_ms"] = significant(1000 * seconds)
                measured.figures[f"{what}_adamw_{kind}_peak_gb"] = measured.end_peak()
                del optimizer


def sd35_precision(measured: Measurement) -> None:
    """Measures log-ratios of bf16 against float32 and between batch shapes, and the cosine of LoRA gradients."""
    side, steps, count = (64, 3, 4) if measured.is_tiny else (512, 10, 16)
    low = sd35(measured, side, dtype=torch.bfloat16, lora=lora(32, is_tiny=measured.is_tiny))
    high = _same_in_float32(measured, low, side)
    rollout = rollout_of(low, count, steps, 4.5)
    view = DecisionView(torch.arange(int(rollout.blocks[0].call.max()) + 1))
    recorded = low.recorded(rollout, view)

    def ratios(policy: Any, size: int) -> Tensor:
        again = policy.recompute(_on(rollout, policy), size)
        return policy.recorded(again, view).log_ratio(recorded).abs()  # type: ignore[no-any-return]  # [B, K]

    for name, policy, sizes in (("shapes", low, (1, 5) if measured.is_tiny else (3, 8, 32)), ("float32", high, (8,))):
        for size in sizes:
            if measured.has_time(f"{name}, {size} calls at a time", 5):
                found = ratios(policy, size)
                measured.figures[f"log_ratio_{name}_{size}"] = {
                    "mean_of_steps": [significant(v) for v in found.mean(0).tolist()],
                    "largest_of_steps": [significant(v) for v in found.amax(0).tolist()],
                }
                if name == "shapes":
                    measured.at_most(f"drift, {size} at a time", float(found.max()), CLIP / 10)
    gradients = []
    few = rollout_of(low, 2, 2, 1.0, seed=1)
    for policy in (low, high):
        updater = Updater(policy, Grpo(clip_low=0.2, clip_high=0.2), processes_of(measured), 1)
        accumulated(policy, updater, _on(few, policy), old="itself")
        gradients.append([p.grad for p in policy.weights.parameters.values() if p.grad is not None])
    found_cosine = cosine(*gradients)
    measured.identity("gradient_sine_squared", 1 - found_cosine**2, 0.2)
    measured.figures["gradient_cosine"] = significant(found_cosine, 6)
    measured.at_least("gradient_cosine", found_cosine, COSINE_BAR)


def _same_in_float32(measured: Measurement, low: Any, side: int) -> Any:
    """Returns a policy in float32 with the weights of another."""
    high: Any = sd35(measured, side, dtype=torch.float32, lora=low.lora)
    high.trained_network().load_state_dict(low.trained_network().state_dict())
    return high


def _on(rollout: Rollout, policy: Any) -> Rollout:
    """Returns the rollout with the conditioning in the precision of a policy."""
    tensors: Sequence[Tensor] = rollout.trace.conditioning.tensors
    cast = type(rollout.trace.conditioning)(tuple(t.to(policy._placement.dtype) for t in tensors))
    return replace(rollout, trace=replace(rollout.trace, conditioning=cast))
