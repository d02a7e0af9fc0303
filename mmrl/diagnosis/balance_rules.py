"""What rewards and prompts weigh: one reward that decides alone, and few prompts that are learned by heart."""

from statistics import fmean

from mmrl.core.config import label_of
from mmrl.diagnosis.history import History
from mmrl.diagnosis.reward_rules import HELD_OUT, noise_of
from mmrl.diagnosis.symptoms import Rule, Symptom

ALONE = 0.95  # share of the total's variance within groups above which one reward decides
VARIES = 0.5  # a reward that varies in fewer of its groups is another finding, or satisfied
PASSES = 10  # over the training prompts, below which nothing is learned by heart
MIXED, ONE = 0.8, 0.95  # share of the commonest format: at first at most, now at least
UNLIKELY = -0.5  # correlation of reward and likelihood
LATER = 0.5  # share of the reward's rise since the best held-out score


def _one_reward_dominates(history: History) -> Symptom | None:
    """lab/grpo has 0.34 to 0.66 of its two rewards of clicks."""
    names = [str(label_of(dict(one))) for one in history.config.rewards]
    shares = {name: share for name in names if (share := history.mean(f"reward/{name}/share", 3)) is not None}
    first = max(shares, key=shares.__getitem__, default=None)
    if first is None or shares[first] <= ALONE:
        return None
    idle = {name: history.mean(f"reward/{name}/constant_groups", 3) for name in shares if name != first}
    others = sorted(name for name, share in idle.items() if share is not None and share < VARIES)
    if not others:
        return None
    return Symptom(
        "note",
        f"{first} makes {100 * shares[first]:.1f}% of the variance of the total within groups: {', '.join(others)} "
        "differ among the samples of a prompt too, and hardly change an advantage",
        shares[first],
        f"raise the weight of {others[0]}, or lower that of {first}; mix: {{name: gdpo}} makes all rewards as wide",
    )


def _few_prompts(history: History) -> Symptom | None:
    """Set on the runs few and images of docs/curves.md: two prompts 60 times each, and 240 different ones."""
    scores, passes = history.values.get(HELD_OUT, []), history.mean("prompts/passes", 1)
    if passes is None or passes < PASSES or len(scores) < 4:
        return None
    at, best = max(scores[1:-2], key=lambda pair: pair[1])  # two evaluations since, or more
    latest = max(score for one, score in scores if one > at)
    first, before, now = (
        history.first("reward/mean", 1),
        history.around("reward/mean", at),
        history.mean("reward/mean", 3),
    )
    if first is None or before is None or now is None or latest > best + noise_of(history):
        return None
    if now <= first or now - before < LATER * (now - first):
        return None
    return Symptom(
        "warning",
        f"the reward rose from {before:.3g} to {now:.3g} since iteration {at}, and the held-out score has not "
        f"({best:.3g}, now {scores[-1][1]:.3g}): each training prompt was seen {passes:.3g} times, and is learned by "
        "heart",
        passes,
        "take more prompts (prompts.train), stop where the held-out score is best (evaluation.stop_after), or raise "
        "loss.kl_coef",
    )


def _one_format_dominates(history: History) -> Symptom | None:
    """Zhao et al. 2025, "Echo Chamber", arXiv 2504.07912. The labs have one format from the first iteration on."""
    first, now = history.first("answers/dominant_format", 2), history.mean("answers/dominant_format", 3)
    leads = [value for _, value in history.values.get("answers/dominant_lead", [])[-5:]]  # of whichever was commonest
    if first is None or now is None or len(leads) < 3 or first > MIXED or now < ONE or max(leads) > 0:
        return None
    return Symptom(
        "note",
        f"{100 * now:.0f}% of the answers have one format, {100 * first:.0f}% at first, though it scored "
        f"{abs(fmean(leads)):.2g} less than the others while there were some: a habit of the model, which is not paid",
        now,
        "nothing where the format is the one that you want; else pay the other by format_tags, sample warmer, or "
        "fine-tune on answers in it first (SFT)",
    )


def _rewards_unlikely(history: History) -> Symptom | None:
    """Lu et al. 2024, "It Takes Two" (SEAM), arXiv 2406.07971. lab/grpo has 0.45 to 0.89: what is right is likely."""
    follows = history.mean("follows/likelihood", 3)
    if follows is None or follows > UNLIKELY or "policy/entropy" not in history.values:  # of tokens
        return None
    return Symptom(
        "note",
        f"within groups the reward falls as the likelihood of an answer rises (correlation {follows:.2f}): reward and "
        "policy disagree about which answers are good",
        follows,
        "look at the likeliest answers, and whether the reward judges them as you would; a learned reward may not know "
        "answers of this policy: train it on some of them, or leave out the prompts where the two disagree most",
    )


RULES: dict[str, Rule] = {
    "one_reward_dominates": _one_reward_dominates,
    "few_prompts": _few_prompts,
    "one_format_dominates": _one_format_dominates,
    "rewards_unlikely": _rewards_unlikely,
}
