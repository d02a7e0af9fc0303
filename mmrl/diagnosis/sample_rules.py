"""What samples are like, and whether the reward pays for that in place of what was meant.

`samples/NAME/mean` is a property of samples, `follows/NAME` the correlation of the mixed reward with it within groups
(mmrl/scoring/properties.py). Where the evaluation has a reward that training does not have, and the held-out score is
the best so far, what changes about samples changes for the better: the warnings are silent or notes then.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from mmrl.core.config import RunConfig
from mmrl.diagnosis.history import History
from mmrl.diagnosis.reward_rules import HELD_OUT, counted_rewards, noise_of
from mmrl.diagnosis.symptoms import Rule, Symptom
from mmrl.scoring.scorer import BESIDE

# Each was set between healthy labs (shapes by DiffusionNFT and Flow-GRPO, moving shapes, clicks) and sick ones.
FOLLOWS = (
    0.5  # mean of three iterations: healthy ones reach 0.49 with sharpness; a reward for colour 0.63 with saturation
)
MOVED = 0.25  # of the first value: by how much a property changes before a correlation is more than a note
EMPTIER = 0.2  # mean of two iterations, of less sharpness and less saturation: healthy 0.07, jpeg_size 0.24 at once
FAR = 2.0  # times the first value, or 1 / FAR of it: sharpness and saturation of healthy ones stay within 0.67 and 1.51
ALIKE = 0.15  # of the first diversity: healthy ones level off at 0.25 or above, jpeg_size goes to 0

MEANT: Mapping[str, set[str]] = {  # rewards that are about a property, and follow it as they should
    "length": {"length_curve", "length_window", "length_penalised", "overlong"},
    "boxes": {"box_count", "count", "detection", "grounded_boxes", "seg_zero"},
    "frames": set(),
    "motion": {"motion", "dynamic_degree", "motion_smoothness", "flicker", "temporal_contrast", "subject_consistency"},
    "sharpness": set(),
    "saturation": set(),
}


def _follows(name: str, words: str, remedy: str, *, least: float = 0.0, lowest: float = -1.0) -> Rule:
    """Returns the rule that names a reward which follows the property `name`.

    Below the mean `least` a property may change as it likes: answers that are read at last have a box, and a few words.
    `lowest`: the least correlation that counts; 0 where less of the property is no harm.
    """

    def rule(history: History) -> Symptom | None:
        by = history.mean(f"follows/{name}", 3)
        if by is None or by < lowest or abs(by) < max(FOLLOWS, _chance(history, 3)):
            return None
        label, section = _leading(history, name)
        if MEANT[name] & set(_names(section)):
            return None
        first, now = history.first(f"samples/{name}/mean", 1), history.mean(f"samples/{name}/mean", 3)
        assert first is not None and now is not None, "there where a correlation is"
        before, after = max(first, least), max(now, least)
        has_moved = (after - before) * by > 0 and abs(after - before) > MOVED * before
        return Symptom(
            "warning" if has_moved and not _is_best(history) else "note",
            f"within groups the reward ({label} most of all) goes with {words}: the correlation is {by:.2f}, and "
            f"{'' if has_moved else 'so far '}the mean went from {first:.3g} to {now:.3g}",
            by,
            f"look whether good samples are so, or only paid samples; if only paid ones: {remedy}",
        )

    return rule


def _chance(history: History, iterations: int) -> float:
    """Returns 3 standard errors of a correlation that is 0, as a mean of iterations: few samples correlate by chance.

    One of n samples in groups of G has about n (1 - 1 / G) degrees of freedom.
    """
    degrees = history.config.prompts_per_iteration * (history.config.group_size - 1)
    return 3 / math.sqrt(max(1, degrees * iterations))


def _leading(history: History, name: str) -> tuple[str, Mapping[str, Any]]:
    """Returns the label and the section of the reward with a weight that follows a property most."""
    sections = counted_rewards(history.config)

    def size(label: str) -> float:
        return abs(history.mean(f"follows/{label}/{name}", 3, fewest=1) or 0.0)

    label = max(sections, key=size)
    return label, sections[label]


def _names(section: Any) -> Iterator[str]:
    """Yields the names of a reward and of all that it holds."""
    if isinstance(section, Mapping):
        if isinstance(section.get("name"), str):
            yield section["name"]
        for value in section.values():
            yield from _names(value)
    elif isinstance(section, list | tuple):
        for value in section:
            yield from _names(value)


def _is_best(history: History) -> bool:
    """Returns whether the held-out score, by a reward that is not trained on, has risen and has not fallen since."""
    scores = [value for _, value in history.values.get(HELD_OUT, [])]
    if len(scores) < 2 or not _is_judged_by_others(history.config):
        return False
    noise = noise_of(history)
    return max(scores) > scores[0] + noise and scores[-1] > max(scores) - noise


def _rises_steadily(history: History) -> bool:
    """Returns whether the newest of three held-out scores or more is the best, by half of what is noise.

    A score that rises slowly is above noise late. One that falls is not the best at its next evaluation.
    """
    scores = [value for _, value in history.values.get(HELD_OUT, [])]
    if len(scores) < 3 or not _is_judged_by_others(history.config):
        return False
    return scores[-1] == max(scores) and scores[-1] > scores[0] + noise_of(history) / 2


def _is_judged_by_others(config: RunConfig) -> bool:
    judges = () if config.evaluation is None else config.evaluation.rewards or ()
    return any(_plain(one) not in [_plain(other) for other in config.rewards] for one in judges)


def _plain(section: Mapping[str, Any]) -> dict[str, Any]:
    """Returns what a reward is, without its name and its weight in the run."""
    return {key: value for key, value in section.items() if key not in BESIDE}


def _has_risen(history: History) -> bool:
    first, now = history.first("reward/mean"), history.mean("reward/mean")
    return first is not None and now is not None and now > first


def _samples_collapse(history: History) -> Symptom | None:
    """Of pictures and videos alone: answers to a question with one right answer become alike when all is well."""
    first, now = history.first("samples/diversity"), history.mean("samples/diversity")
    is_seen = "samples/sharpness/mean" in history.values
    if first is None or now is None or not is_seen or now > ALIKE * first or not _has_risen(history):
        return None
    if _is_best(history):
        return None
    return Symptom(
        "warning",
        f"the samples of a group differed by {first:.2g} at first and differ by {now:.2g} (root mean square of their "
        "pixels), while the reward rose: the policy makes one picture, whatever the noise",
        now / first,
        "take an earlier checkpoint; raise loss.kl_coef or loss.reference_weight, lower optimizer.learning_rate, or "
        "pay for difference a little (reward diversity, advantage dra)",
    )


def _samples_degrade(history: History) -> Symptom | None:
    """Names a reward that pays for empty pictures by what it follows, and any by what became of the pictures.

    A reward may well like soft pictures: where another judge likes them too, it is a note.
    """
    symptom = _emptier(history) or _far_from_the_first(history)
    if symptom is None or not (_is_best(history) or _rises_steadily(history)):
        return symptom
    cause = f"{symptom.cause}. The held-out score, by a reward that is not trained on, rises along"
    return replace(symptom, severity="note", cause=cause)


def _emptier(history: History) -> Symptom | None:
    sharp, colour = history.mean("follows/sharpness", 2), history.mean("follows/saturation", 2)
    if sharp is None or colour is None or max(sharp, colour) > -max(EMPTIER, _chance(history, 2)):
        return None
    first, now = history.first("samples/sharpness/mean", 1), history.mean("samples/sharpness/mean", 2)
    if first is None or now is None or now >= first:
        return None
    return Symptom(
        "warning",
        f"the less there is in a picture, the higher the reward: within groups its correlation with sharpness is "
        f"{sharp:.2f}, with saturation {colour:.2f}; the policy may learn to make empty pictures",
        sharp,
        "look at the best and the worst samples of some groups; weigh the reward less, cap it (clip_range), or add one "
        "that asks for what the prompt says",
    )


def _far_from_the_first(history: History) -> Symptom | None:
    for name in ("sharpness", "saturation"):
        first, now = history.first(f"samples/{name}/mean"), history.mean(f"samples/{name}/mean")
        if first is None or now is None or first <= 0 or first / FAR < now < FAR * first or not _has_risen(history):
            continue
        return Symptom(
            "warning",
            f"the {name} of samples went from {first:.2g} to {now:.2g} while the reward rose: it may be paid for that",
            now / first,
            "look at the samples; if they are worse, take an earlier checkpoint, raise loss.kl_coef, and mix the "
            "reward with a judge of another kind",
        )
    return None


RULES: dict[str, Rule] = {
    "reward_follows_length": _follows(
        "length",
        "the length of answers (Singhal et al. 2023, arXiv 2310.03716: often all that is learned)",
        "wrap it in length_penalised, or add length_window or overlong",
        least=10,
        lowest=0,
    ),
    "reward_follows_boxes": _follows(
        "boxes",
        "the number of boxes that an answer writes",
        "add box_count, or a reward that charges for wrong boxes",
        least=1,
        lowest=0,
    ),
    "reward_follows_frames": _follows(
        "frames",
        "the number of frames",
        "compare videos of one length, or divide the reward by the number of frames",
        lowest=0,
    ),
    "reward_follows_motion": _follows(
        "motion",
        "the motion of videos",
        "add a reward that pulls the other way (flicker, subject_consistency against motion; dynamic_degree for it)",
    ),
    "reward_follows_sharpness": _follows(
        "sharpness", "the sharpness of pictures", "cap it (clip_range), or mix it with a judge of another kind"
    ),
    "reward_follows_saturation": _follows(
        "saturation", "the saturation of pictures", "cap it (clip_range), or mix it with a judge of another kind"
    ),
    "samples_collapse": _samples_collapse,
    "samples_degrade": _samples_degrade,
}
