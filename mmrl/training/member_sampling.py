"""Members of groups whose advantage is near 0: evaluated by chance, and then counted the more.

Maths: docs/maths/group-relative-losses.md#small-advantages
"""

import torch
from torch import Tensor

from mmrl.core.contracts import ConfigError, Loss, LossBatch
from mmrl.core.keys import GroupKey, generator, prompt_index_of

LEAST = 0.1  # the smallest probability: terms that do not vanish with the advantage, such as a KL, count as well


def member_importance(batch: LossBatch | None, min_advantage: float, key: GroupKey) -> Tensor | None:
    """Returns what each sample counts in one optimizer step, [B, 1] float32; None where every sample counts once.

    A sample is evaluated with probability p = max(min(1, |A| / min_advantage), 0.1), A its largest advantage in size,
    or 1 where it is imitated, and counts 1 / p; else it counts 0 and needs no network call. So the expectation of the
    gradient is that of all samples (importance sampling); its variance is larger. Which samples are chosen depends on
    `key` (of the optimizer step) and on the groups alone, not on the processes.
    """
    if batch is None or min_advantage == 0:
        return None
    size = batch.advantages.abs().amax(1).cpu()  # [B]
    probability = (size / min_advantage).clamp(LEAST, 1)
    if batch.is_imitated is not None:  # with the advantage 0
        probability = torch.where(batch.is_imitated.cpu(), torch.ones_like(probability), probability)
    chance = torch.empty_like(size)
    prompts = prompt_index_of(batch.group.cpu())
    for index in prompts.unique().tolist():
        members = prompts == index
        drawn = torch.rand(int(members.sum()), generator=generator(key.seed_for("members", index)))
        chance[members] = drawn.to(chance)
    importance = torch.where(chance < probability, 1 / probability, torch.zeros_like(probability))
    return importance[:, None].to(batch.advantages.device, torch.float32)


def check_min_advantage(min_advantage: float, loss: Loss, loss_name: str) -> None:
    """Raises ConfigError for a loss that cannot do without some samples of a group."""
    if min_advantage == 0 or (loss.kind == "decisions" and loss.scope != "group"):
        return
    reads = "compares the samples of a group" if loss.kind == "decisions" else f"learns from {loss.kind}"
    raise ConfigError(
        f"updates.min_advantage leaves out single samples of losses on decisions, but loss {loss_name!r} {reads}; "
        "set updates.min_advantage to 0"
    )
