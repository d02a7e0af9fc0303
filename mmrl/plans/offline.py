"""Groups whose members the data brings: images or answers with scores, alone or beside members that are drawn."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from mmrl.core.contracts import ConfigError, Loss, Modality, SampleKind, Sampler
from mmrl.core.data import Outputs, Prompt, Rollout
from mmrl.core.keys import GroupKey
from mmrl.media.pictures import Picture, as_tensor
from mmrl.plans.flow import GroupPlan

OFFLINE, SCORES = "given", "given_scores"  # of a prompt's target: the outputs that it brings, and how good each is
TOKENS, LOG_PROBS = "given_token_ids", "given_log_probs"  # and, of answers, how each was drawn: together, or neither


@runtime_checkable
class Recording(Protocol):
    """Policies of answers, which may be supplied as the tokens that they were drawn as, have this too."""

    def offline_tokens(
        self,
        prompts: Sequence[Prompt],
        tokens: Sequence[Sequence[int]],
        log_probs: Sequence[Sequence[float]],
        keys: Sequence[GroupKey],
    ) -> Rollout:
        """A rollout of supplied answers, one per prompt, with the log-probs of whoever drew them as those recorded."""
        ...

    def tokens_of(self, text: str) -> tuple[int, ...]:
        """The tokens of an answer that ended by itself."""
        ...


@dataclass(frozen=True)
class OfflinePlan:
    """A group of the `num_offline` best outputs that its prompt brings, and of members that are drawn by another
    plan."""

    num_offline: int
    are_decisions: bool  # answers are; images have no steps that led to them
    online: Any = None  # a GroupPlan; None: nothing is drawn

    def __post_init__(self) -> None:
        if self.num_offline < 1:
            raise ValueError(f"a plan of given outputs needs at least one of them, got {self.num_offline}")

    def _of_online(self, name: str, otherwise: Any = 0) -> Any:
        return otherwise if self.online is None else getattr(self.online, name)

    @property
    def num_samples(self) -> int:
        return self.num_offline + int(self._of_online("num_samples"))

    @property
    def num_compared(self) -> int:
        return self.num_samples

    @property
    def num_controls(self) -> int:
        return 0

    @property
    def has_greedy(self) -> bool:
        return False

    @property
    def num_rollout_calls(self) -> int:
        """What is given takes no call."""
        return int(self._of_online("num_rollout_calls"))

    @property
    def num_update_calls(self) -> int:
        return self.num_offline * self.are_decisions + int(self._of_online("num_update_calls"))

    @property
    def forwards_per_call(self) -> int:
        return int(self._of_online("forwards_per_call", 1))

    @property
    def is_bound(self) -> bool:
        return bool(self._of_online("is_bound", False))

    @property
    def shared_work(self) -> Mapping[str, int]:
        shared: Mapping[str, int] = self._of_online("shared_work", {})
        return shared


def check_offline(plan: GroupPlan, prompts: Iterable[Prompt], sample_kind: SampleKind) -> None:
    """Raises ConfigError for a prompt that brings too few outputs for a plan of them, or of another kind.

    And where some of the prompts bring log-probs: what is learned would depend on which are taken together.
    """
    if not isinstance(plan, OfflinePlan):
        return
    prompts = list(prompts)
    lacking = [prompt for prompt in prompts if LOG_PROBS not in prompt.target]
    if 0 < len(lacking) < len(prompts):
        raise ConfigError(
            f"prompts: {len(prompts) - len(lacking)} of {len(prompts)} bring log_probs with token_ids, and "
            f"{_called(lacking[0])} has none; all must, or none"
        )
    if sample_kind == "turns":
        raise ConfigError("outputs that the data brings are images or single answers, and the policy plays episodes")
    kind, named = (Picture, "images") if sample_kind == "latents" else (str, "texts")
    for prompt in prompts:
        given, scores = prompt.target.get(OFFLINE, ()), prompt.target.get(SCORES, ())
        where = f"prompts: {_called(prompt)}"
        if len(given) < plan.num_offline or len(scores) != len(given):
            raise ConfigError(
                f"{where} brings {len(given)} outputs with {len(scores)} scores, and the sampler takes "
                f"{plan.num_offline} of each prompt; the layouts given_images and given_answers read them"
            )
        if wrong := [type(one).__name__ for one in given if not _is(one, kind)]:
            raise ConfigError(f"{where} brings outputs of type {wrong[0]}, and the policy makes {named}")


def brings_log_probs(sampler: Sampler, prompts: Iterable[Prompt]) -> bool:
    """Whether the data brings the log-probs of all that the sampler takes, under the policies that made it."""
    return sampler.sample_kind == "given" and all(LOG_PROBS in prompt.target for prompt in prompts)


def check_behaviour(loss: Loss, name: str, old: str, sampler: Sampler, prompts: Sequence[Prompt]) -> None:
    """Raises ConfigError for a loss on given outputs that needs to know how likely their makers were to make them.

    `old`: where the log-probs of the old weights come from, `updates.old`.
    """
    if not getattr(loss, "requires_behaviour", "old" in loss.needs):
        return
    what = f"loss {name!r} weighs outputs by how likely they are now over how likely they were to whoever made them"
    if not brings_log_probs(sampler, prompts):
        raise ConfigError(
            f"{what}, which nothing says of outputs that the data brings: the ratio would be 1; for answers each row "
            f"may bring log_probs with token_ids (layout given_answers), or take a loss without such a ratio, "
            "such as 'sft', or 'dpo' for answers and 'flow_dpo' for images"
        )
    if old == "recomputed":
        raise ConfigError(
            f"{what}, and updates.old 'recomputed' puts the weights of this iteration in the place of those; "
            "set it to recorded, which are the log_probs of the data"
        )


def _called(prompt: Prompt) -> str:
    return prompt.source or repr(prompt.text[:40])


def check_levels(plan: GroupPlan, loss: Loss, policy: Modality) -> None:
    """Raises ConfigError for a loss that reads noise levels of a grid, where all outputs are given and none has one."""
    has_online = not isinstance(plan, OfflinePlan) or plan.online is not None
    if not has_online and getattr(loss, "requires_levels", False) and not getattr(policy, "has_levels", False):
        raise ConfigError(
            "loss.sigmas is 'grid', but outputs that are given have no sampler with noise levels, and a flow has none "
            "of its own; set it to uniform, stratified or logit_normal"
        )


def _is(output: Any, kind: Any) -> bool:
    return isinstance(output, str) if kind is str else hasattr(output, "load") and hasattr(output, "size")


def roll_out(
    policy: Modality, prompts: Sequence[Prompt], plans: Sequence[GroupPlan], keys: Sequence[GroupKey]
) -> Rollout:
    """One group per prompt by its plan; all plans are of one sampler.

    Of a group that is given and drawn, the members that are drawn come first. Raises ConfigError for a prompt that
    brings too little.
    """
    given = [plan for plan in plans if isinstance(plan, OfflinePlan)]
    if not given:
        return policy.rollout(prompts, plans, keys)
    supplied = _supplied(policy, prompts, given, keys)
    if given[0].online is None:
        return supplied
    online = policy.rollout(prompts, [plan.online for plan in given], keys)
    outputs = replace(online.outputs, given=torch.full((online.num_samples,), -1))
    return Rollout.join([replace(online, outputs=outputs), supplied])


def _supplied(
    policy: Modality, prompts: Sequence[Prompt], plans: Sequence[OfflinePlan], keys: Sequence[GroupKey]
) -> Rollout:
    asked: list[Prompt] = []
    of_group: list[GroupKey] = []
    numbers: list[int] = []
    for prompt, plan, key in zip(prompts, plans, keys, strict=True):
        check_offline(plan, [prompt], policy.sample_kind)
        scores = torch.tensor(prompt.target[SCORES], dtype=torch.float64)
        best = scores.argsort(descending=True, stable=True)[: plan.num_offline].tolist()
        asked, of_group, numbers = asked + [prompt] * len(best), of_group + [key] * len(best), numbers + best
    chosen = [prompt.target[OFFLINE][number] for prompt, number in zip(asked, numbers, strict=True)]
    if policy.sample_kind == "latents":
        size = (policy.height, policy.width)  # type: ignore[attr-defined]  # all that make images have them
        rollout = policy.offline(asked, Outputs(images=torch.stack([fitted(one, size) for one in chosen])), of_group)
    elif LOG_PROBS in asked[0].target:  # all have them, or none
        assert isinstance(policy, Recording), "policies of answers are"
        tokens, log_probs = (
            [prompt.target[name][number] for prompt, number in zip(asked, numbers, strict=True)]
            for name in (TOKENS, LOG_PROBS)
        )
        rollout = policy.offline_tokens(asked, tokens, log_probs, of_group)
    else:
        rollout = policy.offline(asked, Outputs(texts=tuple(chosen)), of_group)
    return replace(rollout, outputs=replace(rollout.outputs, given=torch.tensor(numbers)))


def restated(policy: Modality, prompt: Prompt) -> Prompt:
    """The prompt with its answers in the tokens of the policy, all of one log-prob: for twins, whose tokens are others.

    The prompt itself where it brings no log-probs.
    """
    if LOG_PROBS not in prompt.target:
        return prompt
    assert isinstance(policy, Recording), "policies of answers are"
    tokens = tuple(policy.tokens_of(text) for text in prompt.target[OFFLINE])
    first = prompt.target[LOG_PROBS][0][0]
    log_probs = tuple((first,) * len(ids) for ids in tokens)
    return replace(prompt, target={**prompt.target, TOKENS: tokens, LOG_PROBS: log_probs})


def fitted(picture: Picture, size: tuple[int, int]) -> Tensor:
    """[3, height, width] float32 in [0, 1]: the middle of the picture, of the sides' ratio asked for, scaled to it."""
    height, width = size
    image = picture.load()
    if image.size != (width, height):
        scale = min(image.width / width, image.height / height)
        left, top = (image.width - scale * width) / 2, (image.height - scale * height) / 2
        box = (left, top, left + scale * width, top + scale * height)
        image = image.resize((width, height), 3, box=box)  # 3: bicubic, of Pillow, which blurs first where it shrinks
    return as_tensor(image)
