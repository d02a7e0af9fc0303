"""Groups of offline outputs: images, clips or answers that the data brings with scores, or that samples begin from."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from mmrl.core.contracts import Loss, Modality, SampleKind, Sampler
from mmrl.core.data import Outputs, Prompt, Rollout
from mmrl.core.declarations import LossDeclaration, PolicyDeclaration
from mmrl.core.keys import GroupKey
from mmrl.media.pictures import Clip, Picture, as_tensor
from mmrl.media.video import OutputFrames
from mmrl.plans.flow import Plan
from mmrl.plans.groups import GroupPlan
from mmrl.plans.sizes import policy_for
from mmrl.system.errors import ConfigError

OFFLINE, SCORES = "given", "given_scores"  # fields of a prompt's target: its offline outputs, and a score for each
TOKENS, LOG_PROBS = "given_token_ids", "given_log_probs"  # of answers, as they were sampled: both fields, or neither


@runtime_checkable
class Recording(Protocol):
    """A policy of answers, which can take offline answers as tokens with the log-probs of their sampling. Optional."""

    def offline_tokens(
        self,
        prompts: Sequence[Prompt],
        tokens: Sequence[Sequence[int]],
        log_probs: Sequence[Sequence[float]],
        keys: Sequence[GroupKey],
    ) -> Rollout:
        """Returns a rollout of offline answers, one per prompt, whose recorded log-probs are the given ones (nats)."""
        ...

    def tokens_of(self, text: str) -> tuple[int, ...]:
        """Returns the tokens of an answer that ended by itself."""
        ...


@dataclass(frozen=True)
class OfflinePlan:
    """The plan of a group of offline outputs, the best of its prompt, and of members that another plan samples."""

    num_offline: int  # offline outputs, at least 1
    are_decisions: bool  # True for answers; images and clips have no steps that led to them
    online: Any = None  # the GroupPlan of the sampled members; None: there are none

    def __post_init__(self) -> None:
        if self.num_offline < 1:
            raise ValueError(f"num_offline must be at least 1, got {self.num_offline}")

    def _of_online(self, name: str, otherwise: Any = 0) -> Any:
        """Returns an attribute of the plan of the sampled members; `otherwise` where there is no such plan."""
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
        """The calls for sampled members; offline outputs take none."""
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


def check_offline(
    plan: GroupPlan, prompts: Iterable[Prompt], sample_kind: SampleKind, *, makes_videos: bool = False
) -> None:
    """Raises ConfigError for a prompt with too few offline outputs for a plan, or with outputs of another kind.

    Raises it also where some prompts bring log-probs and others do not: the loss would depend on which ones meet in a
    batch.
    """
    if isinstance(plan, OfflinePlan):
        wanted = plan.num_offline
    elif isinstance(plan, Plan) and plan.from_given:
        wanted = 1
    else:
        return
    prompts = list(prompts)
    lacking = [prompt for prompt in prompts if LOG_PROBS not in prompt.target]
    if 0 < len(lacking) < len(prompts):
        raise ConfigError(
            f"prompts: {len(prompts) - len(lacking)} of {len(prompts)} bring log_probs with token_ids, and "
            f"{_called(lacking[0])} has none; all must, or none"
        )
    if sample_kind == "turns":
        raise ConfigError("outputs that the data brings are images or single answers, but the policy plays episodes")
    kind: Any = Clip if makes_videos else Picture if sample_kind == "latents" else str
    named = {Clip: "videos", Picture: "images", str: "texts"}[kind]
    for prompt in prompts:
        given, scores = prompt.target.get(OFFLINE, ()), prompt.target.get(SCORES, ())
        where = f"prompts: {_called(prompt)}"
        if len(given) < wanted or len(scores) != len(given):
            raise ConfigError(
                f"{where} brings {len(given)} outputs with {len(scores)} scores, but the sampler takes "
                f"{wanted} of each prompt; the layouts given_images, given_videos and given_answers read them"
            )
        if wrong := [type(one).__name__ for one in given if not _is(one, kind)]:
            raise ConfigError(f"{where} brings outputs of type {wrong[0]}, but the policy makes {named}")


def brings_log_probs(sampler: Sampler, prompts: Iterable[Prompt]) -> bool:
    """Returns whether all samples are offline, with log-probs under the policies that made them."""
    return sampler.sample_kind == "given" and all(LOG_PROBS in prompt.target for prompt in prompts)


def check_behaviour(loss: Loss, name: str, old: str, sampler: Sampler, prompts: Sequence[Prompt]) -> None:
    """Raises ConfigError for a loss on offline outputs that requires log-probs under the policies that made them.

    `old`: the setting `updates.old`, where the log-probs of the old weights come from.
    """
    requires_behaviour = LossDeclaration.of(loss).requires_behaviour
    if not ("old" in loss.needs if requires_behaviour is None else requires_behaviour):
        return
    what = f"loss {name!r} weighs outputs by their probability now over that under the policy that made them"
    if not brings_log_probs(sampler, prompts):
        raise ConfigError(
            f"{what}, which is unknown of outputs that the data brings: the ratio would be 1; for answers each row "
            f"may bring log_probs with token_ids (layout given_answers), or take a loss without such a ratio, "
            "such as 'sft', or 'dpo' for answers and 'flow_dpo' for images"
        )
    if old == "recomputed":
        raise ConfigError(
            f"{what}, but updates.old 'recomputed' takes the probability under the weights of this iteration; "
            "set it to recorded, to take the log_probs of the data"
        )


def _called(prompt: Prompt) -> str:
    """Returns the name of a prompt in messages."""
    return prompt.source or repr(prompt.text[:40])


def check_levels(plan: GroupPlan, loss: Loss, policy: Modality) -> None:
    """Raises ConfigError for a loss that requires noise levels of a grid, where all outputs are offline."""
    has_online = not isinstance(plan, OfflinePlan) or plan.online is not None
    has_levels = PolicyDeclaration.of(policy).has_noise_levels
    if not has_online and LossDeclaration.of(loss).requires_noise_levels and not has_levels:
        raise ConfigError(
            "loss.sigmas is 'grid', but outputs that the data brings have no sampler with noise levels, and a flow has "
            "none of its own; set it to uniform, stratified or logit_normal"
        )


def check_mean_entropy(plan: GroupPlan, loss: Loss, name: str) -> None:
    """Raises ConfigError for a loss that reads the entropy of a step from its samples, where outputs are offline."""
    if isinstance(plan, OfflinePlan) and LossDeclaration.of(loss).requires_mean_entropy:
        raise ConfigError(
            f"loss {name!r} has an entropy_floor, and outputs that the data brings do not show how random the policy "
            "is; leave it out"
        )


def _is(output: Any, kind: Any) -> bool:
    if kind is str:
        return isinstance(output, str)
    return hasattr(output, "load") and hasattr(output, "size") == (kind is Picture)  # a clip has no size but its file's


def roll_out(
    policy: Modality, prompts: Sequence[Prompt], plans: Sequence[GroupPlan], keys: Sequence[GroupKey]
) -> Rollout:
    """Returns a rollout of one group per prompt, sampled or taken from the data by its plan; all plans of one sampler.

    In a group of both kinds, sampled members come first. Raises ConfigError for a prompt with too few offline outputs.
    """
    offline_plans = [plan for plan in plans if isinstance(plan, OfflinePlan)]
    if not offline_plans:
        return policy.rollout(prompts, plans, keys)
    offline = _offline(policy, prompts, offline_plans, keys)
    if offline_plans[0].online is None:
        return offline
    online = policy.rollout(prompts, [plan.online for plan in offline_plans], keys)
    outputs = online.outputs.with_given(torch.full((online.num_samples,), -1))
    return Rollout.join([replace(online, outputs=outputs), offline])


def _offline(
    policy: Modality, prompts: Sequence[Prompt], plans: Sequence[OfflinePlan], keys: Sequence[GroupKey]
) -> Rollout:
    """Returns a rollout of the best offline outputs of each prompt, as many as its plan takes."""
    of_prompt: list[Prompt] = []
    of_group: list[GroupKey] = []
    numbers: list[int] = []
    for prompt, plan, key in zip(prompts, plans, keys, strict=True):
        check_offline(plan, [prompt], policy.sample_kind, makes_videos="videos" in policy.makes)
        best = _best(prompt, plan.num_offline)
        of_prompt, of_group, numbers = of_prompt + [prompt] * len(best), of_group + [key] * len(best), numbers + best
    chosen = [prompt.target[OFFLINE][number] for prompt, number in zip(of_prompt, numbers, strict=True)]
    if policy.sample_kind == "latents":
        media = [_media(policy_for(policy, prompt), one) for one, prompt in zip(chosen, of_prompt, strict=True)]
        rollout = policy.offline(of_prompt, Outputs.join(media), of_group)
    elif LOG_PROBS in of_prompt[0].target:  # all have them, or none
        assert isinstance(policy, Recording), "policies of answers are"
        tokens, log_probs = (
            [prompt.target[name][number] for prompt, number in zip(of_prompt, numbers, strict=True)]
            for name in (TOKENS, LOG_PROBS)
        )
        rollout = policy.offline_tokens(of_prompt, tokens, log_probs, of_group)
    else:
        rollout = policy.offline(of_prompt, Outputs(texts=tuple(chosen)), of_group)
    left: dict[GroupKey, list[int]] = {}
    for key, number in zip(of_group, numbers, strict=True):
        left.setdefault(key, []).append(number)
    # Of several sizes, groups stand in the order of their sizes; within a group the order is that of `numbers`.
    given = [left[rollout.keys[prompt]].pop(0) for prompt in rollout.prompt.tolist()]
    return replace(rollout, outputs=rollout.outputs.with_given(torch.tensor(given)))


def best_given(policy: Any, prompts: Sequence[Prompt], plan: GroupPlan) -> Outputs:
    """Returns the best offline image or clip of each prompt, at the one size of the policy's samples.

    Raises ConfigError for a prompt without one, and for media that cannot be read.
    """
    check_offline(plan, prompts, policy.sample_kind, makes_videos="videos" in policy.makes)
    return Outputs.join([_media(policy, prompt.target[OFFLINE][_best(prompt, 1)[0]]) for prompt in prompts])


def _best(prompt: Prompt, count: int) -> list[int]:
    """Returns the places of the best offline outputs; of equal scores the first counts."""
    scores = torch.tensor(prompt.target[SCORES], dtype=torch.float64)
    best: list[int] = scores.argsort(descending=True, stable=True)[:count].tolist()
    return best


def _media(sized: Any, output: Any) -> Outputs:
    """Returns an offline image or clip as one sample of a policy, at the size of its samples.

    `sized`: all policies that make images have height and width; those that make videos also num_frames and
    frames_per_second.
    """
    size = (sized.height, sized.width)
    if "videos" not in sized.makes:
        return Outputs(images=fitted(output, size)[None])
    if sized.num_frames is None:
        raise ConfigError("modality.num_frames must be set where the data brings clips")
    rate = sized.frames_per_second
    frames = output.load(OutputFrames(num_frames=sized.num_frames, rate=rate))
    if len(frames.pixels) != sized.num_frames:
        raise ConfigError(
            f"the video {output.name} gives {len(frames.pixels)} frames where {sized.num_frames} are needed"
        )
    from torchvision.transforms.v2.functional import to_pil_image

    pixels = torch.stack([_cropped(to_pil_image(frame), size) for frame in frames.pixels])
    return Outputs(videos=pixels[None], fps=(rate,))


def restated(policy: Modality, prompt: Prompt) -> Prompt:
    """Returns the prompt with its offline answers in the tokens of the policy, all of one log-prob.

    This is for tiny twins, whose tokens are others. Returns the prompt itself where it brings no log-probs.
    """
    if LOG_PROBS not in prompt.target:
        return prompt
    assert isinstance(policy, Recording), "policies of answers are"
    tokens = tuple(policy.tokens_of(text) for text in prompt.target[OFFLINE])
    first = prompt.target[LOG_PROBS][0][0]
    log_probs = tuple((first,) * len(ids) for ids in tokens)
    return replace(prompt, target={**prompt.target, TOKENS: tokens, LOG_PROBS: log_probs})


def fitted(picture: Picture, size: tuple[int, int]) -> Tensor:
    """Returns the centre of a picture, cropped to the ratio of `size` (height, width) and scaled to it.

    The result is [3, height, width] float32 in [0, 1].
    """
    return _cropped(picture.load(), size)


def _cropped(image: Any, size: tuple[int, int]) -> Tensor:
    """Returns the centre of an image of Pillow, see `fitted`."""
    height, width = size
    if image.size != (width, height):
        scale = min(image.width / width, image.height / height)
        left, top = (image.width - scale * width) / 2, (image.height - scale * height) / 2
        box = (left, top, left + scale * width, top + scale * height)
        image = image.resize((width, height), 3, box=box)  # 3: bicubic, of Pillow, which blurs first where it shrinks
    return as_tensor(image)
