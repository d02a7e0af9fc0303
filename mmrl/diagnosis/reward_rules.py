"""What rewards and groups say, and what the held-out score makes of it."""

import math
from statistics import fmean, pvariance

from mmrl.core.config import Plugin, RunConfig, label_of
from mmrl.diagnosis.history import History
from mmrl.diagnosis.symptoms import Rule, Symptom

HELD_OUT = "held_out/score"
RELATIVE = ("pairwise_judge", "win_rate")  # rewards whose mean over a group is 1/2 whatever the policy does
LONG = 20  # iterations, below which nothing is said of a reward that does not rise
LOST = 0.07  # of a held-out score, in spreads of its samples: the least that counts; 0.03 of a score of 0 and 1
UNKNOWN = 0.45  # such a spread, where no evaluation logged it
ERRORS = 1.5  # standard errors of a score before that: the same prompts from the same noise differ by less


def _reward_fell(history: History) -> Symptom | None:
    """A reward that a learning rate broke falls to nearly nothing within a few iterations."""
    first, now = history.first("reward/mean", 1), history.mean("reward/mean", 3)
    spread = history.first("reward/std", 1)
    if _is_scheduled(history) or first is None or now is None or spread is None or now > first - max(spread, 1e-6):
        return None
    return Symptom(
        "warning",
        f"the reward was {first:.3g} in the first iteration and is {now:.3g}, lower by more than the spread of its "
        f"samples ({spread:.3g})",
        now - first,
        "lower optimizer.learning_rate by 3 to 10 and begin again; check the sign of the rewards' weights",
    )


def _reward_flat(history: History) -> Symptom | None:
    """Names a reward that will not rise by a fifth of the spread of its samples in the whole run, as far as is seen.

    The rise between the thirds, plus two standard errors, is carried on to the last iteration. Healthy labs rise by 0.3
    to 1.5 spreads.
    """
    spread, wanted = history.first("reward/std", 1), history.config.iterations
    if spread is None or len(history.values.get("reward/mean", ())) < max(LONG, wanted / 2) or not _may_rise(history):
        return None
    means, scores = ([value for _, value in history.values.get(name, ())] for name in ("reward/mean", HELD_OUT))
    third = len(means) // 3
    first, last = means[:third], means[-third:]
    error = math.sqrt((pvariance(first) + pvariance(last)) / third)
    rise = (fmean(last) - fmean(first) + 2 * error) * max(wanted, len(means)) / (len(means) - third)
    is_held_out_better = len(scores) > 1 and scores[-1] > scores[0] + noise_of(history) / 2
    if rise >= spread / 5 or error < 1e-6 or is_held_out_better:  # without noise: a mean that is given, as of win rates
        return None
    return Symptom(
        "warning",
        f"the reward was {fmean(first):.3g} in the first third of {len(means)} iterations and is {fmean(last):.3g} in "
        f"the last, with {error:.2g} of noise between them and {spread:.2g} between samples: it does not rise",
        fmean(last) - fmean(first),
        "look whether a better sample has a better reward (`mmrl score`); `mmrl doctor CONFIG` says whether groups "
        "agree on a direction and how large the steps are; then raise optimizer.learning_rate, group_size or "
        "prompts_per_iteration",
    )


def _may_rise(history: History) -> bool:
    """Returns whether the mean reward says what is learned: of samples of the policy, for prompts that stay alike."""
    config, alike = history.config, history.mean("groups/degenerate", 3)
    return (
        alike is not None
        and alike <= 0.5  # of more, other findings tell
        and not _is_scheduled(history)
        and config.prompts.curriculum is None
        and config.groups.mean_between is None  # prompts that are neither known nor out of reach
        and not str(config.sampler.get("name")).startswith("given")
        and any(str(one["name"]) not in RELATIVE for one in counted_rewards(config).values())
    )


def _held_out_fell(history: History) -> Symptom | None:
    scores = history.values.get(HELD_OUT, [])
    if len(scores) < 2 or scores[-1][1] >= scores[0][1] - noise_of(history):
        return None
    lost, at = scores[-1][1] - scores[0][1], max(scores, key=lambda pair: pair[1])[0]
    best = (
        "nothing that was trained is better than the model before"
        if at == 0
        else f"iteration {at} was best: `mmrl export RUN --checkpoint best` takes it where it was saved"
    )
    return Symptom(
        "warning",
        f"the held-out score went from {scores[0][1]:.3g} before training to {scores[-1][1]:.3g}: what is learned "
        "harms what is evaluated",
        lost,
        "look at the samples; lower optimizer.learning_rate where they are noise, change the reward where they are "
        f"what it pays for; {best}",
    )


def _is_scheduled(history: History) -> bool:
    """Returns whether weights of rewards change, which moves the mean reward too."""
    return any(isinstance(one.get("weight"), dict) for one in history.config.rewards)


def counted_rewards(config: RunConfig) -> dict[str, Plugin]:
    """Returns the sections of the rewards with a weight, by their labels."""
    return {str(label_of(dict(one))): one for one in config.rewards if one.get("weight", 1.0) != 0}


def noise_of(history: History) -> float:
    """Returns what a held-out score may lose without a reason; few samples swing by more than `LOST` spreads."""
    spreads = [
        pairs[0][1] for name, pairs in history.values.items() if name.startswith("held_out/") and name.endswith("/std")
    ]
    error = history.mean("held_out/standard_error", 1) or 0.0
    return max(LOST * max(spreads, default=UNKNOWN), ERRORS * error)


def _reward_hacked(history: History) -> Symptom | None:
    """Gao et al. 2022, "Scaling Laws for Reward Model Overoptimization", arXiv 2210.10760: the proxy goes on rising."""
    scores = history.values.get(HELD_OUT, [])
    if len(scores) < 3:
        return None
    at, best = max(scores[:-1], key=lambda pair: pair[1])
    now = scores[-1][1]
    before, after = history.around("reward/mean", at), history.mean("reward/mean", 3, fewest=1)
    if (
        _is_scheduled(history)
        or at == 0
        or now > best - noise_of(history)
        or before is None
        or after is None
        or after <= before
    ):
        return None
    return Symptom(
        "warning",
        f"the reward rose from {before:.3g} to {after:.3g} since iteration {at}, and the held-out score fell from "
        f"{best:.3g} to {now:.3g}: the policy is paid for something else than what is evaluated",
        now - best,
        "stop where the held-out score is best (evaluation.stop_after); say in the rewards what you meant, cap the one "
        "that rises (clip_range), or raise loss.kl_coef",
    )


def _groups_without_spread(history: History) -> Symptom | None:
    """Razin et al. 2023, "Vanishing Gradients in Reinforcement Finetuning of Language Models", arXiv 2310.20703."""
    share = history.mean("groups/degenerate", 2)
    if share is None or share < 0.65:
        return None
    reward = history.mean("reward/mean", 2, fewest=1)
    first, spread = (history.first(f"reward/{one}", 1) for one in ("mean", "std"))
    is_learned = None not in (reward, first, spread) and reward > first + spread / 2  # type: ignore[operator]
    size = history.config.group_size
    return Symptom(
        "note" if is_learned else "warning",
        f"in {100 * share:.0f}% of the groups all samples score alike (mean reward "
        f"{'unknown' if reward is None else format(reward, '.3g')}): they cost as much as the others and teach nothing",
        share,
        "all good: take harder prompts; all bad: take easier ones, look whether answers can be read, or fine-tune on "
        f"1% of the inputs first (SFT); both: sample warmer, raise group_size (it is {size}), or add a reward that "
        "says how nearly right a sample is",
    )


def _reward_constant(history: History) -> Symptom | None:
    spread = history.mean("reward/std", 3)
    taught = history.mean("groups/degenerate", 3)  # what learns from data needs no spread
    if spread is None or spread > 1e-9 or (taught is not None and taught < 1):
        return None
    names, value = ", ".join(sorted(counted_rewards(history.config))), history.mean("reward/mean", 1)
    return Symptom(
        "warning",
        f"{names} gave every sample of three iterations the same reward"
        f"{'' if value is None else f', {value:.3g}'}: there is no gradient",
        spread,
        "look at three samples and their rewards (`mmrl score`); often answers cannot be read, or a reward is capped",
    )


def _one_reward_constant(history: History) -> Symptom | None:
    counted = counted_rewards(history.config)
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


def _rewards_fail(history: History) -> Symptom | None:
    failed = history.mean("reward/failed", 3)
    size = history.config.group_size * history.config.prompts_per_iteration
    if failed is None or failed <= 0.05 * size:
        return None
    return Symptom(
        "warning",
        f"{100 * failed / size:.0f}% of the samples of an iteration could not be judged",
        failed / size,
        "the first reason of each reward is printed when it comes; look whether it can judge empty or broken outputs; "
        "scoring.max_failed_share ends a run above its share",
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


RULES: dict[str, Rule] = {
    "reward_flat": _reward_flat,
    "reward_fell": _reward_fell,
    "held_out_fell": _held_out_fell,
    "reward_hacked": _reward_hacked,
    "groups_without_spread": _groups_without_spread,
    "reward_constant": _reward_constant,
    "one_reward_constant": _one_reward_constant,
    "rewards_fail": _rewards_fail,
    "groups_missing": _groups_missing,
}
