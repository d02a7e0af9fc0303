"""What the optimizer does: steps, clipping, gradients, distance from the reference."""

import math

from mmrl.diagnosis.history import History
from mmrl.diagnosis.symptoms import Rule, Symptom

# Mean |log ratio| of one iteration that is next to nothing, and that is too far.
OF_TOKENS = 1e-4, 0.2  # nats
OF_OTHERS = 2e-3, 10.0  # clip ranges
LITTLE = {"temperature": 0.3, "noise_level": 0.05}  # settings of samplers below which samples hardly differ


def _learning_rate_too_high(history: History) -> Symptom | None:
    """On the labs a healthy mean |log ratio| of tokens is 0.01 to 0.06 nats; 10 times the rate gives 0.29, 30 times
    1.2. At 0.2 the mean token has left the usual clip range. In units of the clip range 0.8 and 2 are healthy, 26 to
    190 are at 10 to 30 times the rate."""
    size, far = history.first("doctor/step/log_ratio", 1) or 0.0, _limits(history)[1]
    if _is_of_tokens(history):
        size = max(size, history.mean("loss/log_ratio_size", 1) or 0.0)
    if size < far:
        return None
    rate, usual = history.config.optimizer.learning_rate, far / 5
    factor = size / usual
    by = "3 to 10" if factor < 30 else f"{10 ** math.floor(math.log10(factor) + 0.5):g}"
    little = [
        f"sampler.{name} (it is {value:g})"
        for name, least in LITTLE.items()
        if isinstance(value := history.config.sampler.get(name), int | float) and value < least
    ]
    first = f"raise {little[0]} first: samples that hardly differ make each step large; then " if little else ""
    return Symptom(
        "warning",
        f"one iteration moved the log-prob of each decision by {size:.2g} on average, where {usual:.2g} is "
        "usual: the steps are far larger than what the clip range can hold",
        size,
        f"{first}lower optimizer.learning_rate (it is {rate:g}) by {by} and begin again: a model that broke does not "
        "come back; fewer updates.epochs or updates.minibatches also help",
    )


def _learning_rate_too_low(history: History) -> Symptom | None:
    """The healthy labs move tokens by 0.005 nats and more, images by 0.8 clip ranges; at 1e-4 of their rate 3e-6."""
    settings, steps = history.config.optimizer, history.mean("optimizer/steps", 1)
    now, norm = (history.mean(f"optimizer/{name}", 1) for name in ("learning_rate", "grad_norm"))
    if not now or not norm or now < settings.learning_rate / 2 or history.iteration <= settings.warmup:
        return None
    # the step is of the first iteration
    size = history.first("doctor/step/log_ratio", 1) if settings.warmup == 0 else None
    if steps is not None and steps >= 2:  # before the first one the ratio is 1
        size = history.mean("loss/log_ratio_size", 1)
    if not size or size >= _limits(history)[0]:
        return None
    return Symptom(
        "warning",
        f"one iteration moves the log-prob of each decision by {size:.2g} on average: the policy stays as it was",
        size,
        f"raise optimizer.learning_rate (it is {settings.learning_rate:g}) by 10 to 100",
    )


def _limits(history: History) -> tuple[float, float]:
    """Returns the mean |log ratio| that is next to nothing, and that is too far; 0 and infinity without a unit."""
    if _is_of_tokens(history):
        return OF_TOKENS
    clip, (least, far) = history.config.loss.get("clip_low"), OF_OTHERS
    return (least * clip, far * clip) if isinstance(clip, float) else (0.0, math.inf)


def _is_of_tokens(history: History) -> bool:
    return "policy/entropy" in history.values


def _never_clips(history: History) -> Symptom | None:
    """A run of four passes with a range 67 times too wide clips 0.002; the healthy one 0.31."""
    clipped = _clipped(history)
    if clipped is None or clipped >= 0.003 or history.config.updates.epochs < 2 or _is_of_tokens(history):
        return None  # 0.2 is right for tokens, and their runs at a low rate clip next to nothing
    if history.iteration < history.config.optimizer.warmup + 3:
        return None
    return Symptom(
        "warning",
        f"{history.config.updates.epochs} passes over each rollout clip {100 * clipped:.2g}% of the decisions: the "
        "range is too wide for the unit of the log-ratio, and the steps are larger than they should be",
        clipped,
        "lower loss.clip_low and loss.clip_high until later passes clip some hundredths to tenths; 0.2 is for tokens, "
        "images need about 1e-5 to 1e-2 (modality.reduction)",
    )


def _always_clips(history: History) -> Symptom | None:
    clipped, passes = _clipped(history), history.config.updates.epochs * history.config.updates.minibatches
    most = (passes - 1) / passes  # the first step clips nothing
    if clipped is None or passes == 1 or clipped < 0.6 * most:
        return None
    return Symptom(
        "warning",
        f"{100 * clipped:.0f}% of the decisions are clipped, and {100 * most:.0f}% is all that is possible: all steps "
        "but the first are paid for and teach little",
        clipped,
        "raise loss.clip_low and loss.clip_high, or lower optimizer.learning_rate or updates.epochs",
    )


def _clipped(history: History) -> float | None:
    low, high = (history.mean(f"loss/clip_fraction_{side}", 3) for side in ("low", "high"))
    return None if low is None or high is None else low + high


def _entropy_collapsed(history: History) -> Symptom | None:
    """A healthy lab levels off at 0.7 of its first entropy, larger models at less; one that one answer satisfies falls
    to 0.07 of it."""
    first, now = history.first("policy/entropy", 1), history.mean("policy/entropy", 3)
    if first is None or now is None or first <= 0.05 or now > 0.2 * first:
        return None
    return Symptom(
        "warning",
        f"the entropy of a token fell from {first:.2g} to {now:.2g} nats: the policy hardly tries anything else",
        now,
        "change a reward that one answer satisfies; else lower optimizer.learning_rate, raise loss.clip_high above "
        "loss.clip_low, or add loss.entropy_coef with loss.entropy_floor",
    )


def _far_from_reference(history: History) -> Symptom | None:
    """The KL of tokens levels off at 0.2 nats on the healthy lab; where a reward is found far away it passes 1."""
    size = history.mean("loss/kl", 3)
    if size is None or size < 1.0 or not _is_of_tokens(history):
        return None
    return Symptom(
        "warning",
        f"the policy is {size:.2g} nats per token from the reference: what the reward does not ask for drifts",
        size,
        "evaluate what you do not train on (evaluation.rewards); raise loss.kl_coef, or stop where the held-out score "
        "was best",
    )


def _gradients_skipped(history: History) -> Symptom | None:
    steps = history.mean("optimizer/skipped", 3)
    if steps is None or steps == 0 or history.config.precision == "float16":
        return None
    return Symptom(
        "warning",
        f"{steps:.2g} optimizer steps of an iteration have a gradient that is not finite, and are left out",
        steps,
        "lower optimizer.learning_rate, set optimizer.max_grad_norm, or use precision: float32 to find the cause",
    )


def _no_gradient(history: History) -> Symptom | None:
    norm, steps = history.mean("optimizer/grad_norm", 2), history.mean("optimizer/steps", 2)
    alike = history.mean("groups/degenerate", 2, fewest=1)
    if norm is None or norm > 0 or not steps or alike == 1:  # nothing to learn from is another finding
        return None
    return Symptom(
        "fatal",
        "the gradient was exactly 0 in every step of two iterations, though groups have spread",
        norm,
        "look whether loss and rewards reach the trained weights: `mmrl check --tiny CONFIG` names those that move",
    )


def _both_fall(history: History) -> Symptom | None:
    """Ren and Sutherland 2024, "Learning Dynamics of LLM Finetuning", arXiv 2407.10490, section 4. Healthy labs
    lose up to 2.5 (log-ratios times beta), at 5 to 10 times their rate 30 to 80."""
    chosen, rejected = (history.mean(f"loss/{one}", 3) for one in ("chosen", "rejected"))
    if chosen is None or rejected is None or chosen >= -max(4.0, chosen - rejected):
        return None
    return Symptom(
        "note",
        f"chosen and rejected samples both became less likely than under the reference ({chosen:.2g}, {rejected:.2g}): "
        "the chosen lost more than the two parted",
        chosen,
        "lower optimizer.learning_rate, raise loss.beta, or fine-tune on the chosen samples first",
    )


RULES: dict[str, Rule] = {
    "learning_rate_too_high": _learning_rate_too_high,
    "learning_rate_too_low": _learning_rate_too_low,
    "never_clips": _never_clips,
    "always_clips": _always_clips,
    "entropy_collapsed": _entropy_collapsed,
    "far_from_reference": _far_from_reference,
    "gradients_skipped": _gradients_skipped,
    "no_gradient": _no_gradient,
    "both_fall": _both_fall,
}
