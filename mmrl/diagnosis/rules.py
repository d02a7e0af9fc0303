"""The doctor's rules on the log of a run. Each reads a handful of numbers, so that all run after every iteration.

A threshold without a source of its own was set on the runs of docs/curves.md, on a healthy run and a sick one of the
same config; tests/diagnosis/test_rules.py reads both again.
"""

from collections.abc import Callable
from dataclasses import dataclass

from mmrl.core.config import label_of
from mmrl.diagnosis.history import History
from mmrl.reporting.findings import Finding

HELD_OUT = "held_out/score"
LOST = 0.03  # of a held-out score: less is the noise of a few hundred samples


@dataclass(frozen=True)
class Symptom:
    """What a rule saw, before it is a finding of an iteration."""

    severity: str  # note, warning or fatal
    cause: str
    value: float
    remedy: str


def findings_of(history: History) -> list[Finding]:
    """Returns all findings on the newest iteration of a history, in the order of the rules."""
    seen = ((name, rule(history)) for name, rule in RULES.items())
    return [
        Finding(history.iteration, name, one.severity, one.cause, one.value, one.remedy) for name, one in seen if one
    ]


def all_findings(history: History) -> list[Finding]:
    """Returns the first finding of each name and severity over a whole run, as a run that watched itself has them."""
    found: dict[tuple[str, str], Finding] = {}
    known = History(history.config)
    for iteration, metrics in history.by_iteration().items():
        known.add(iteration, metrics)
        for one in findings_of(known):
            found.setdefault((one.name, one.severity), one)
    return list(found.values())


def _learning_rate_too_high(history: History) -> Symptom | None:
    """On the labs a healthy mean |log ratio| of tokens is 0.01 to 0.03 nats; 30 times the rate gives 1.2."""
    size = history.mean("loss/log_ratio_size", 1)
    if size is None or size < 0.3 or "policy/entropy" not in history.values:  # of tokens
        return None
    rate = history.config.optimizer.learning_rate
    return Symptom(
        "warning",
        f"one iteration moved the log-prob of each token by {size:.2g} nats on average, and 0.03 is usual: the steps "
        "are far larger than what the clip range can hold",
        size,
        f"lower optimizer.learning_rate (it is {rate:g}) by 3 to 10 and begin again: a model that broke does not come "
        "back; fewer updates.epochs or updates.minibatches also help",
    )


def _held_out_fell(history: History) -> Symptom | None:
    scores = history.values.get(HELD_OUT, [])
    if len(scores) < 2 or scores[-1][1] >= scores[0][1] - LOST:
        return None
    lost = scores[-1][1] - scores[0][1]
    return Symptom(
        "warning",
        f"the held-out score went from {scores[0][1]:.3g} before training to {scores[-1][1]:.3g}: what is learned "
        "harms what is evaluated",
        lost,
        "look at the samples; lower optimizer.learning_rate where they are noise, change the reward where they are "
        "what it pays for; `mmrl export RUN --checkpoint best` takes what was best before",
    )


def _reward_hacked(history: History) -> Symptom | None:
    """Gao et al. 2022, "Scaling Laws for Reward Model Overoptimization", arXiv 2210.10760: the proxy goes on rising."""
    scores = history.values.get(HELD_OUT, [])
    if len(scores) < 3:
        return None
    at, best = max(scores[:-1], key=lambda pair: pair[1])
    now = scores[-1][1]
    before, after = history.around("reward/mean", at), history.mean("reward/mean", 3, fewest=1)
    if at == 0 or now > best - LOST or before is None or after is None or after <= before:
        return None
    return Symptom(
        "warning",
        f"the reward rose from {before:.3g} to {after:.3g} since iteration {at}, and the held-out score fell from "
        f"{best:.3g} to {now:.3g}: the policy is paid for something else than what is evaluated",
        now - best,
        "stop where the held-out score is best (evaluation.stop_after); say in the rewards what you meant, cap the one "
        "that rises (clip_range), or raise loss.kl_coef",
    )


def _reward_fell(history: History) -> Symptom | None:
    """A reward that a learning rate broke falls to nearly nothing within a few iterations."""
    first, now = history.first("reward/mean", 1), history.mean("reward/mean", 3)
    spread = history.first("reward/std", 1)
    if first is None or now is None or spread is None or now > first - max(spread, 1e-6):
        return None
    return Symptom(
        "warning",
        f"the reward was {first:.3g} in the first iteration and is {now:.3g}, lower by more than the spread of its "
        f"samples ({spread:.3g})",
        now - first,
        "lower optimizer.learning_rate by 3 to 10 and begin again; check the sign of the rewards' weights",
    )


def _groups_without_spread(history: History) -> Symptom | None:
    """Razin et al. 2023, "Vanishing Gradients in Reinforcement Finetuning of Language Models", arXiv 2310.20703."""
    share = history.mean("groups/degenerate", 2)
    if share is None or share < 0.65:
        return None
    reward = history.mean("reward/mean", 2, fewest=1)
    size = history.config.group_size
    return Symptom(
        "warning",
        f"in {100 * share:.0f}% of the groups all samples score alike (mean reward "
        f"{'unknown' if reward is None else format(reward, '.3g')}): they cost as much as the others and teach nothing",
        share,
        "all good: take harder prompts; all bad: take easier ones, look whether answers can be read, or fine-tune on "
        f"1% of the inputs first (SFT); both: sample warmer, raise group_size (it is {size}), or add a reward that "
        "says how nearly right a sample is",
    )


def _reward_constant(history: History) -> Symptom | None:
    spread = history.mean("reward/std", 3)
    if spread is None or spread > 1e-9:
        return None
    return Symptom(
        "warning",
        "every sample of three iterations has the same reward: there is no gradient",
        spread,
        "look at three samples and their rewards (`mmrl score`); often answers cannot be read, or a reward is capped",
    )


def _one_reward_constant(history: History) -> Symptom | None:
    counted = {str(label_of(dict(one))) for one in history.config.rewards if one.get("weight", 1.0) != 0}
    spreads = {name: history.mean(f"reward/{name}/std", 3) for name in sorted(counted)}
    level = [name for name, spread in spreads.items() if spread is not None and spread <= 1e-9]
    if not level or len(level) == len(counted):
        return None
    return Symptom(
        "note",
        f"{', '.join(level)}: the same score for every sample of three iterations; it teaches nothing now",
        float(len(level)),
        "nothing where all samples satisfy it; else look whether it reads the outputs as you mean it to",
    )


def _never_clips(history: History) -> Symptom | None:
    """A run of four passes with a range 67 times too wide clips 0.002; the healthy one 0.31."""
    clipped = _clipped(history)
    if clipped is None or clipped >= 0.003 or history.config.updates.epochs < 2:
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


def _answers_unfinished(history: History) -> Symptom | None:
    share = history.mean("answers/finished", 2)
    if share is None or share >= 0.5:
        return None
    return Symptom(
        "warning",
        f"only {100 * share:.0f}% of the answers end before the budget of tokens",
        share,
        "raise sampler.max_tokens; where lengths grow up to any budget add the reward overlong or length_window, or "
        "sampler.truncated: mask",
    )


def _answers_unreadable(history: History) -> Symptom | None:
    share = history.mean("answers/understood", 2)
    if share is None or share >= 0.5:
        return None
    return Symptom(
        "warning",
        f"only {100 * share:.0f}% of the answers can be read as an action",
        share,
        "look at three answers in samples/, then change modality.dialect, modality.instructions or the prompt's "
        "template; a model that never writes the format needs examples first (SFT)",
    )


def _entropy_collapsed(history: History) -> Symptom | None:
    """A healthy run levels off at 0.7 of its first entropy; one that one answer satisfies falls to 0.07 of it."""
    first, now = history.first("policy/entropy", 1), history.mean("policy/entropy", 3)
    if first is None or now is None or first <= 0.05 or now > 0.4 * first:
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
    if size is None or size < 1.0 or "policy/entropy" not in history.values:
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
    if norm is None or norm > 0 or not steps:
        return None
    return Symptom(
        "fatal",
        "the gradient was exactly 0 in every step of two iterations, though there were samples to learn from",
        norm,
        "look whether loss and rewards reach the trained weights: `mmrl check --tiny CONFIG` names those that move",
    )


def _rewards_fail(history: History) -> Symptom | None:
    failed = history.mean("reward/failed", 3)
    size = history.config.group_size * history.config.prompts_per_iteration
    if failed is None or failed <= 0.05 * size:
        return None
    return Symptom(
        "warning",
        f"{failed:.3g} of {size} samples of an iteration could not be judged",
        failed / size,
        "each failure's reason stands in the log; scoring.max_failed_share ends a run above its share",
    )


def _groups_missing(history: History) -> Symptom | None:
    missing, wanted = history.mean("groups/missing", 3), history.config.prompts_per_iteration
    if missing is None or missing < 0.5 * wanted:
        return None
    return Symptom(
        "warning",
        f"iterations learn from {wanted - missing:.3g} groups in place of {wanted}",
        missing,
        "raise groups.max_refills, widen groups.mean_between, or take prompts that the policy gets right now and then",
    )


def _both_fall(history: History) -> Symptom | None:
    """Ren and Sutherland 2024, "Learning Dynamics of LLM Finetuning", arXiv 2407.10490, section 4."""
    chosen, rejected = (history.mean(f"loss/{one}", 3) for one in ("chosen", "rejected"))
    if chosen is None or rejected is None or chosen >= 0 or rejected >= 0:
        return None
    return Symptom(
        "note",
        f"chosen and rejected samples both became less likely than under the reference ({chosen:.2g}, {rejected:.2g})",
        chosen,
        "lower optimizer.learning_rate, raise loss.beta, or fine-tune on the chosen samples first",
    )


def _rewards_are_slow(history: History) -> Symptom | None:
    spent = [history.mean(name, 3) for name in history.values if name.startswith("time/reward/")]
    whole = history.mean("time/iteration", 3)
    share = sum(one for one in spent if one is not None) / whole if whole else 0.0
    if share <= 0.5:
        return None
    return Symptom(
        "note",
        f"rewards take {100 * share:.0f}% of an iteration",
        share,
        "set rollout_groups so that a chunk is scored while the next is sampled, a larger batch_size of the reward, or "
        "`mmrl serve` on another device",
    )


def _lengths_drift(history: History) -> Symptom | None:
    first, now = history.first("answers/tokens"), history.mean("answers/tokens")
    if first is None or now is None or max(first, now) < 32 or first / 2 < now < 2 * first:
        return None
    return Symptom(
        "note",
        f"answers had {first:.3g} tokens at first and have {now:.3g}",
        now,
        "look whether the reward pays for length (Singhal et al. 2023, arXiv 2310.03716): length_penalised, "
        "length_window; loss.aggregation decides whether long answers weigh more",
    )


RULES: dict[str, Callable[[History], Symptom | None]] = {
    "learning_rate_too_high": _learning_rate_too_high,
    "reward_fell": _reward_fell,
    "held_out_fell": _held_out_fell,
    "reward_hacked": _reward_hacked,
    "groups_without_spread": _groups_without_spread,
    "reward_constant": _reward_constant,
    "one_reward_constant": _one_reward_constant,
    "never_clips": _never_clips,
    "always_clips": _always_clips,
    "answers_unfinished": _answers_unfinished,
    "answers_unreadable": _answers_unreadable,
    "entropy_collapsed": _entropy_collapsed,
    "far_from_reference": _far_from_reference,
    "gradients_skipped": _gradients_skipped,
    "no_gradient": _no_gradient,
    "rewards_fail": _rewards_fail,
    "groups_missing": _groups_missing,
    "both_fall": _both_fall,
    "rewards_are_slow": _rewards_are_slow,
    "lengths_drift": _lengths_drift,
}
