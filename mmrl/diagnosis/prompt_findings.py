"""What the groups of a run say of its prompts, one by one: which of them never taught anything."""

from statistics import fmean

from mmrl.reporting.findings import Finding
from mmrl.reporting.prompt_groups import GroupRecord, History

TIMES = 3  # a prompt was sampled, below which nothing is said of it
FEWEST = 4  # such prompts
SHARE = 1 / 3  # of them
NAMED = 3


def without_spread(record: GroupRecord) -> list[Finding]:
    """Returns a finding where many prompts had no spread of rewards in any of their groups; else none.

    Razin et al. 2023, "Vanishing Gradients in Reinforcement Finetuning of Language Models", arXiv 2310.20703: the
    expected gradient of an input vanishes with the standard deviation of its reward under the policy, however far the
    mean is from the best; they mend it by supervised fine-tuning on as few as 1% of the inputs.
    """
    seen = [history for history in record.prompts.values() if len(history.means) >= TIMES]
    flat = sorted((history for history in seen if history.never_spread), key=lambda history: fmean(history.means))
    if len(seen) < FEWEST or len(flat) <= SHARE * len(seen):
        return []
    middle = fmean(fmean(history.means) for history in record.prompts.values() if history.means)
    low = sum(fmean(history.means) < middle for history in flat)
    return [
        Finding(
            record.iteration,
            "prompts_without_spread",
            "warning" if low > SHARE * len(seen) else "note",  # those above are known
            f"{len(flat)} of {len(seen)} prompts that were sampled {TIMES} times or more never had spread: each time "
            f"all their samples scored alike, {low} below the run's mean total and {len(flat) - low} not below it. "
            f"The lowest: {_named(flat)}",
            len(flat) / len(seen),
            "those below: fine-tune on some of them first (SFT; 1% of the inputs was enough in the paper), or look "
            "whether their answers can be read; those above are known: leave them out. Both: sample warmer, "
            "raise group_size",
        )
    ]


def _named(flat: list[History]) -> str:
    return "; ".join(f"{history.text!r} ({fmean(history.means):.3g})" for history in flat[:NAMED])
