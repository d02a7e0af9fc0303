"""What the answers of an iteration have in common, and whether rewards go with their likelihood."""

from collections import Counter
from collections.abc import Sequence

import torch

from mmrl.core.data import Paths, Rollout, Scores
from mmrl.parsing.answer_format import format_of
from mmrl.scoring.metrics import plain_total
from mmrl.scoring.properties import FEWEST, within_groups


def formats_of(rollout: Rollout) -> tuple[str | None, ...]:
    """Returns the format of each answer; None for a control; () for a rollout without answers."""
    outputs = rollout.outputs
    texts = [text for one in outputs.each or (outputs,) for text in one.texts or ()]
    if len(texts) != rollout.num_samples:
        return ()
    pairs = zip(texts, rollout.is_control.tolist(), strict=True)
    return tuple(None if is_control else format_of(text) for text, is_control in pairs)


def format_metrics(scores: Scores, formats: Sequence[str | None]) -> dict[str, float]:
    """Returns the share of the commonest format, and what its answers score above all others.

    Zhao et al. 2025, "Echo Chamber: RL Post-training Amplifies Behaviors Learned in Pretraining", arXiv 2504.07912:
    answers converge to one of the formats that pretraining brought. `answers/dominant_format` is the share in [0, 1];
    `answers/dominant_lead` the mean total of that format less that of the rest, where both have FEWEST answers.

    Args:
        formats: of each sample; None: it has no text.
    """
    counted = [name if good else None for name, good in zip(formats, scores.valid.tolist(), strict=True)]
    names = Counter(name for name in counted if name is not None)
    if names.total() < FEWEST:
        return {}
    (name, count), *_ = sorted(names.items(), key=lambda pair: (-pair[1], pair[0]))
    metrics = {"answers/dominant_format": count / names.total()}
    if FEWEST <= count <= names.total() - FEWEST:
        total = plain_total(scores).double()
        is_first = torch.tensor([one == name for one in counted])
        is_other = torch.tensor([one not in (name, None) for one in counted])
        metrics["answers/dominant_lead"] = float(total[is_first].mean() - total[is_other].mean())
    return metrics


def likelihood_metrics(scores: Scores, paths: Paths | None) -> dict[str, float]:
    """Returns the correlation of rewards with the likelihood of answers under the policy that sampled them.

    Lu et al. 2024, "It Takes Two: On the Seamlessness between Reward and Policy Model in RLHF", arXiv 2406.07971: SEAM
    measures how far a reward and the policy disagree about answers. Theirs compares a good answer with worse ones that
    are made for it, by the sum of their log-probs; this one needs no further answers. `follows/likelihood` of the total
    and `follows/REWARD/likelihood` are Pearson's correlations with the mean log-prob of a token, both without their
    group's mean. Left out below FEWEST samples, where one of the two has no spread within groups, and where the policy
    records no log-probs.
    """
    if paths is None or "log_prob" not in paths.facts:
        return {}
    is_there = paths.edge >= 0
    log_prob = (paths.facts["log_prob"].double() * is_there).sum(1) / is_there.sum(1).clamp(min=1)  # [B]
    has_tokens = is_there.any(1)
    group = scores.group.unique(return_inverse=True)[1]
    followed = {"follows/likelihood": within_groups(plain_total(scores), log_prob, group, scores.valid & has_tokens)}
    for name, values in zip(scores.names, scores.values.unbind(1), strict=True):
        judged = has_tokens & ~values.isnan() & ~scores.is_control
        followed[f"follows/{name}/likelihood"] = within_groups(values, log_prob, group, judged)
    return {name: value for name, value in followed.items() if value is not None}
