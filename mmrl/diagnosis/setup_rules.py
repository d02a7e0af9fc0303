"""What the settings and the first numbers of a run say."""

import math

from mmrl.diagnosis.history import History
from mmrl.diagnosis.symptoms import Rule, Symptom


def _rollouts_worse_than_evaluation(history: History) -> Symptom | None:
    """With few steps or without guidance a base samples what no reward can rank: Flow-GRPO trains with 10 steps of 40,
    arXiv 2505.05470, section 4.3. The gap must also be two standard errors, with prompts as the units: one prompt of
    a training on few may just be a hard one."""
    worst: tuple[float, str, float, float] | None = None
    evaluation, prompts = history.config.evaluation, history.config.prompts_per_iteration
    held_out_prompts = None if evaluation is None else evaluation.num_prompts  # None: all of them, which are many
    error = math.sqrt((1 / held_out_prompts if held_out_prompts else 0.0) + 1 / prompts)  # in spreads
    for name in history.values:
        if not (name.startswith("held_out/") and name.endswith("/mean")):
            continue
        reward = name.removeprefix("held_out/").removesuffix("/mean")
        sampled, held_out = history.values.get(f"reward/{reward}/mean"), history.values.get(f"held_out/{reward}/std")
        if not sampled or not held_out or sampled[0][0] != 1 or history.values[name][0][0] != 0:
            continue
        before = history.values[name][0][1]
        spread = max(held_out[0][1], history.first(f"reward/{reward}/std", 1) or 0.0, 1e-9)
        gap = (before - sampled[0][1]) / spread
        if gap > max(0.5, 2 * error) and (worst is None or gap > worst[0]):
            worst = gap, reward, sampled[0][1], before
    if worst is None:
        return None
    gap, reward, mean, before = worst
    return Symptom(
        "note",  # the prompts are others, which may be harder
        f"{reward} of the first rollouts is {mean:.3g}, and {before:.3g} in the evaluation before training: rollouts "
        f"are worse by {gap:.2g} times the spread of samples, on prompts of their own",
        gap,
        "give rollouts more of what evaluations have: sampler.num_steps, guidance, sampler.max_tokens, a lower "
        "temperature; a reward cannot rank samples that are all bad",
    )


def _warmup_too_long(history: History) -> Symptom | None:
    settings, iterations = history.config.optimizer, history.config.iterations
    if not history.iteration or settings.warmup <= 0.5 * iterations:
        return None
    return Symptom(
        "warning",
        f"the learning rate rises for {settings.warmup} iterations of {iterations}",
        float(settings.warmup),
        "lower optimizer.warmup, or raise iterations",
    )


def _average_lags(history: History) -> Symptom | None:
    """Of the weights before training an average of n steps still has decay^n."""
    config = history.config
    evaluated = None if config.evaluation is None else config.evaluation.weights
    if config.averaging is None or evaluated in ("trained", "old") or not history.iteration:
        return None
    steps = config.iterations * config.updates.epochs * config.updates.minibatches
    left = config.averaging.decay**steps
    if left <= 0.5:
        return None
    return Symptom(
        "warning",
        f"the average that is evaluated and exported will be {100 * left:.0f}% the model before training after the "
        f"{steps} steps of the run: what is learned hardly shows",
        left,
        f"lower averaging.decay (it is {config.averaging.decay:g}) until 1 / (1 - decay) is a tenth of the steps, or "
        "averaging: null",
    )


def _samples_stale(history: History) -> Symptom | None:
    """Effective sample size of importance weights: below a half, most samples count for nothing."""
    size, cut = (history.mean(f"engine/{name}", 3) for name in ("effective", "truncated"))
    if size is None or (size >= 0.5 and (cut is None or cut <= 0.1)):
        return None
    return Symptom(
        "warning",
        f"samples of older weights or of another engine count like {100 * size:.0f}% of as many"
        + ("" if cut is None else f"; the weight of {100 * cut:.2g}% is capped"),
        size,
        "send weights more often (rollout.ahead: false), lower optimizer.learning_rate or updates.epochs, or set "
        "correction.level: token",
    )


RULES: dict[str, Rule] = {
    "rollouts_worse_than_evaluation": _rollouts_worse_than_evaluation,
    "warmup_too_long": _warmup_too_long,
    "average_lags": _average_lags,
    "samples_stale": _samples_stale,
}
