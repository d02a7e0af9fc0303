"""The cost of a run, before it begins: network calls in batch elements, which guidance doubles; memory of videos."""

from collections.abc import Collection
from typing import Any, Literal

from mmrl.core.config import RunConfig
from mmrl.core.contracts import Advantage, Loss, Modality, StepAveraging, VideoMaking
from mmrl.core.declarations import AdvantageDeclaration, LossDeclaration
from mmrl.core.likelihoods import SPREAD, thought_needs, weights_read
from mmrl.plans.flow import Plan
from mmrl.plans.groups import GroupPlan
from mmrl.training.off_policy_correction import is_corrected
from mmrl.training.reward_gradients import carries_back


def calls_per_pass(loss: Loss, plan: GroupPlan, group_size: int) -> float:
    """Returns the network evaluations of one pass of a loss over a group, under one set of weights.

    A loss that does not learn from decisions declares the calls of a sample: their mean where their number is random.
    """
    if loss.kind == "decisions":
        return plan.num_update_calls * plan.forwards_per_call
    return LossDeclaration.of(loss).calls_per_sample * group_size * calls_behind(loss, plan)


def calls_behind(loss: Loss, plan: GroupPlan) -> int:
    """Returns the network evaluations of one call of a view: guidance counts where sampler steps are repeated."""
    return 1 if loss.kind == "denoising" else plan.forwards_per_call


def may_share(loss: Loss, plan: GroupPlan) -> bool:
    """Returns whether repeated samples may meet in states that are evaluated once, so that calls are a bound."""
    return (
        loss.kind == "outputs"
        and isinstance(plan, Plan)
        and plan.num_rollout_calls < plan.num_samples * plan.num_tree_steps
    )


def gradient_calls(loss: Loss, plan: GroupPlan) -> int:
    """Returns the network calls that carry gradients from a group's samples to its decisions: one per state behind one.

    0 for a loss that does not require these gradients.
    """
    if not carries_back(loss) or not isinstance(plan, Plan):
        return 0
    total, begins_behind = 0, list[bool]()
    for path in plan.paths:
        parent = None if path.parent is None else plan.paths[path.parent]
        before = [] if parent is None else parent.steps[: path.start - parent.start]
        is_behind = any(step.is_decision for step in before) or (path.parent is not None and begins_behind[path.parent])
        begins_behind.append(is_behind)
        for number, (nodes, step) in enumerate(zip(path.num_nodes(), path.steps, strict=False)):  # a tail has no steps
            is_own = parent is None or number > 0  # the state that a path leaves is its parent's
            total += nodes if is_behind and is_own else 0
            is_behind = is_behind or step.is_decision
    return total


def num_forwards(loss: Loss) -> int:
    """Returns how many sets of weights evaluate a view: the trained ones, and others that are not recorded."""
    return 1 + len({"reference", "averaged"} & loss.needs) + (loss.old_decay(0) is not None)


def num_readings(needs: Collection[str], advantage: Advantage) -> int:
    """Returns how often all answers are read again, at most, for what the policy thinks of them.

    `needs`: those of the rewards. An advantage that requires the spread of groups reads answers once more.
    """
    kinds = {need.replace("self_certainty.", "likelihoods.") for need in thought_needs(needs)}  # one reading
    return len(kinds - {"likelihoods.sampled"}) + (SPREAD in AdvantageDeclaration.of(advantage).requires)


def requires_reference(loss: Loss, needs: Collection[str]) -> bool:
    """Returns whether the loss or rewards that need all this read the reference weights."""
    return "reference" in loss.needs or "reference" in weights_read(needs)


def num_looks(loss: Loss, num_calls: float, micro_batch: int | Literal["auto"]) -> int:
    """Returns how often a step evaluates a view: twice where the loss needs several micro-batches, or all, at once.

    With `auto`, which is not chosen yet, there may be several.
    """
    if isinstance(loss, StepAveraging):
        return 2
    return 2 if loss.scope != "decision" and (micro_batch == "auto" or num_calls > micro_batch) else 1


def is_recomputed(config: RunConfig, loss: Loss, policy: Modality) -> bool:
    """Returns whether each rollout is evaluated once more before its first optimizer step."""
    if is_corrected(policy, loss, config.rollout):
        return True
    updates = config.updates
    is_set = updates.old == "recomputed" and updates.epochs * updates.minibatches > 1
    return is_set and loss.kind == "decisions" and "old" in loss.needs


def num_passes(config: RunConfig, loss: Loss, policy: Modality, in_a_step: float) -> int:
    """Returns the passes over a rollout in an iteration, whose views have `in_a_step` calls on each process."""
    forwards = num_forwards(loss) * num_looks(loss, in_a_step, config.updates.micro_batch)
    return forwards * config.updates.epochs + is_recomputed(config, loss, policy)


def memory_of_videos(config: RunConfig, policy: Modality, groups: int) -> dict[str, Any]:
    """Returns the memory that videos take while a process with so many groups samples and scores; empty for images.

    A chunk of groups holds its videos until they are scored. Where scoring overlaps with sampling, two chunks do. The
    samples of `group_size` are counted, not further members.
    """
    chunk = min(config.rollout_groups or config.prompts_per_iteration, groups)
    in_chunk = chunk * config.group_size
    memory = policy.video_memory(in_chunk) if isinstance(policy, VideoMaking) else None
    if memory is None:
        return {}
    held = in_chunk * (2 if config.scoring.overlap and chunk < groups else 1)
    unknown = "unknown until the model is here"
    videos = None if memory.video is None else held * memory.video
    return {
        "videos held at once on a process": held,
        "memory of these videos, MiB": unknown if videos is None else _mib(videos),
        "memory of decoding beside them, MiB at most": unknown if memory.decoding is None else _mib(memory.decoding),
    }


def _mib(size: int) -> float:
    return round(size / 2**20, 2)
