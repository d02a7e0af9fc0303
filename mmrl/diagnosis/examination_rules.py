"""What `mmrl doctor CONFIG` measured in the first iterations; no other run has these metrics."""

from mmrl.diagnosis.history import History
from mmrl.diagnosis.symptoms import Rule, Symptom

# Mean |log-ratio| of tokens at the first update. The labs have 4e-7 in float32 and 1e-4 in bfloat16; a real vLLM stays
# below 0.004 where it has the weights (docs/real_vllm.md). A tenth of the clip range where that is less.
FAR = 0.02


def _limit(history: History) -> float:
    clip = history.config.loss.get("clip_low")
    return min(FAR, clip / 10) if isinstance(clip, float) else FAR


def _ratio_off_at_start(history: History) -> Symptom | None:
    """At the first update the ratio is 1: DanceGRPO's authors look there first (its issue 45).

    A part is how far the update's log-probs move where one cause is switched off; what is left of the whole is how
    rollouts sample.
    """
    size = history.first("doctor/ratio/mean", 1)
    if size is None or size <= _limit(history):
        return None
    again, alone, dropout, precision, sharing = (
        history.first(f"doctor/ratio/{name}", 1) or 0.0
        for name in ("again", "alone", "dropout", "precision", "sharing")
    )
    random = max(again, dropout)
    parts = {
        "dropout": dropout,
        "randomness of the network": 0.0 if dropout > 0.5 * again else again,
        "precision (against float32)": precision,
        "rounding, which batches change": alone if dropout > 0 else max(0.0, alone - again),
        "prompts that answers share": sharing,
    }
    parts["the way of sampling (its engine, its caches, merged adapters)"] = size - max(random, *parts.values())
    cause = max(parts, key=lambda name: parts[name])
    shares = "; ".join(f"{name}: {share:.2g}" for name, share in parts.items() if share > 0)
    return Symptom(
        "warning",
        f"before any update the log-probs that the update computes are off those of sampling by {size:.2g} on average "
        f"({shares}): mostly {cause}",
        size,
        "by the cause: switch dropout off; precision: float32; modality.sharing: none; modality.lora.merge_rollouts: "
        "false; for an inference engine set correction, and see docs/real_vllm.md; updates.old: recomputed makes the "
        "first ratio 1, and hides the cause",
    )


def _reference_differs_at_start(history: History) -> Symptom | None:
    size = history.first("doctor/ratio/reference", 1)
    if size is None or size <= _limit(history):
        return None
    return Symptom(
        "note" if history.config.warm_start else "warning",
        f"before any update the policy is off its reference by {size:.2g} in the log-prob of a decision",
        size,
        "a reference is the model before training: look at warm_start, at the adapter of the model folder, and at the "
        "precision of both",
    )


def _gradient_is_noise(history: History) -> Symptom | None:
    """1 is expected of pure noise. Seven runs of two labs by a die had 0.91 to 1.09; but so have healthy labs whose
    steps are mostly noise, and which learn in many of them, see docs/doctor.md. It is no more than a note."""
    ratio, groups = history.first("doctor/gradient/signal_to_noise", 1), history.first("doctor/gradient/groups", 1)
    if ratio is None or groups is None or ratio >= 1.1:
        return None
    scale, even = history.first("doctor/gradient/noise_scale", 1), history.first("doctor/gradient/even", 1)
    needed = "" if scale is None else f"; a step of {scale:.0f} groups would have as much signal as noise"
    few = "" if even is None or even >= 0.5 else f"; {even * groups:.1f} groups have nearly all of the gradient"
    return Symptom(
        "note",
        f"the gradients of {groups:.0f} groups agree no better than chance, as those of one step of a healthy run may: "
        f"the square of their mean is {ratio:.2f} times what noise alone gives{needed}{few}",
        ratio,
        "where the reward does not rise: raise prompts_per_iteration or group_size, lower updates.minibatches, or take "
        "a reward with more signal; it may not depend on what the policy does",
    )


def _tensors_without_gradient(history: History) -> Symptom | None:
    count, ratio = history.first("doctor/gradient/without", 1), history.first("doctor/gradient/signal_to_noise", 1)
    if not count or ratio is None:
        return None
    return Symptom(
        "note",  # of one block whose output is left out, or a tower that these prompts do not use, it is no fault
        f"{count:.0f} trained tensors have no gradient in any group",
        count,
        "leave out of modality.lora.targets what the loss never reaches, or look why it does not reach them",
    )


def _prompts_cut(history: History) -> Symptom | None:
    share = history.first("doctor/prompts/cut", 1)
    if share is None or share <= 0.1:
        return None
    return Symptom(
        "note",
        f"{100 * share:.0f}% of the prompts are longer than one of the text encoders reads: what the reward asks for "
        "may not reach the policy",
        share,
        "the first lines of training name the encoders; CLIP reads 77 tokens, of others raise max_sequence_length "
        "(of modality or modality.arguments); or shorten the prompts",
    )


def _images_shrunk(history: History) -> Symptom | None:
    """Screenshots of 4K at half their sides lose targets of a few pixels: ScreenSpot-Pro, arXiv 2504.07981."""
    scale = history.first("doctor/images/scale", 1)
    if scale is None or scale >= 0.6:
        return None
    return Symptom(
        "note",
        f"images reach the model at {100 * scale:.0f}% of their sides: small text and targets are lost",
        scale,
        "raise modality.max_pixels as far as memory allows, or crop",
    )


def _nothing_is_shared(history: History) -> Symptom | None:
    """Of answers; of images `mmrl doctor` counts the network calls of a plan that shares and of one that does not."""
    share = history.first("doctor/prompts/again", 1)
    if share is None or share <= 0.2:
        return None
    return Symptom(
        "note",
        f"an update computes each prompt once for every answer: {100 * share:.0f}% of its tokens were computed before",
        share,
        "modality.sharing: auto computes a prompt once for all its answers of a micro-batch; `mmrl check CONFIG "
        "--tiny` names the way, or why there is none",
    )


RULES: dict[str, Rule] = {
    "ratio_off_at_start": _ratio_off_at_start,
    "reference_differs_at_start": _reference_differs_at_start,
    "gradient_is_noise": _gradient_is_noise,
    "tensors_without_gradient": _tensors_without_gradient,
    "prompts_cut": _prompts_cut,
    "images_shrunk": _images_shrunk,
    "nothing_is_shared": _nothing_is_shared,
}
