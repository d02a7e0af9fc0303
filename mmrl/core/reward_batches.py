"""The batches that rewards see: made of a rollout, checked against what a reward needs, cut where it allows."""

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from mmrl.core.data import Outputs, Prompt, Rollout
from mmrl.core.declarations import RewardDeclaration
from mmrl.core.dense import DENSE
from mmrl.core.keys import GroupKey, generator
from mmrl.core.likelihoods import THOUGHT, thought_needs
from mmrl.core.rewards import Checking, Reward, RewardBatch, Thought
from mmrl.system.errors import ConfigError

# The fields of `Outputs` that a policy can make, and that a reward may need. A reward may also need target.<field>.
MEDIA = (
    "images",
    "videos",
    "audio",
    "texts",
    "is_finished",
    "num_tokens",
    "canvases",
    "actions",
    "step_rewards",
    "outcomes",
    "screens",
    "pieces",
    "given",  # by a sampler of offline outputs
    "latents",
)
CONTROLS = "controls"  # needed by a reward that compares with samples which are not learned from
IMAGE = "prompt.image"  # needed by a reward that reads the first image of the prompt
LOADED = ("model", "service")  # weights or files that `prepare` loads; a server that the reward calls
NEEDS = (*MEDIA, CONTROLS, IMAGE, *LOADED, *THOUGHT)


def reward_batch(rollout: Rollout, iteration: int, thought: Thought | None = None) -> RewardBatch:
    """Returns all samples of a rollout as a reward sees them.

    A sample's seed depends on the key of its group and on its place there alone.
    """
    thought = thought or Thought()
    places: defaultdict[GroupKey, int] = defaultdict(int)
    seeds = []
    for key in (rollout.keys[prompt] for prompt in rollout.prompt.tolist()):
        seeds.append(key.seed_for("reward", places[key]))
        places[key] += 1
    return RewardBatch(
        prompts=tuple(rollout.prompts[prompt] for prompt in rollout.prompt.tolist()),
        outputs=rollout.outputs,
        group=rollout.group,
        episode=rollout.episode,
        turn=rollout.turn,
        seeds=tuple(seeds),
        iteration=iteration,
        generator=generator(*seeds),
        is_control=rollout.is_control,
        num_decisions=_num_decisions(rollout),
        **vars(thought),
    )


def _num_decisions(rollout: Rollout) -> Tensor | None:
    """Returns the number of decisions of each sample, [B] int64; of answers all tokens, at temperature 0 too."""
    if not rollout.blocks:
        return None
    num_tokens = rollout.outputs.num_tokens
    return (rollout.blocks[0].edge >= 0).sum(1) if num_tokens is None else num_tokens


def select(batch: RewardBatch, rows: Tensor) -> RewardBatch:
    """Returns the samples `rows`, [n] int64, of a batch, with a generator of their own."""
    chosen = rows.tolist()
    is_everyone = chosen == list(range(len(batch)))  # then the images are not copied
    seeds = tuple(batch.seeds[row] for row in chosen)
    return replace(
        batch,
        prompts=tuple(batch.prompts[row] for row in chosen),
        outputs=batch.outputs if is_everyone else batch.outputs.select(rows),
        group=batch.group[rows],
        episode=batch.episode[rows],
        turn=batch.turn[rows],
        seeds=seeds,
        generator=generator(*seeds),
        is_control=None if batch.is_control is None else batch.is_control[rows],
        num_decisions=None if batch.num_decisions is None else batch.num_decisions[rows],
        **batch.thought_of(rows),
    )


def on_device(batch: RewardBatch, device: torch.device | None) -> RewardBatch:
    """Returns the batch with its images, videos and sound on a device; None: as it is. A gradient passes through."""
    return batch if device is None else replace(batch, outputs=_moved(batch.outputs, device))


def _moved(outputs: Outputs, device: torch.device) -> Outputs:
    if outputs.each is not None:
        return replace(outputs, each=tuple(_moved(one, device) for one in outputs.each))
    names = ("images", "videos", "audio", "latents")
    there = {name: one for name in names if (one := getattr(outputs, name)) is not None}
    return replace(outputs, **{name: one.to(device) for name, one in there.items()})


def check_needs(name: str, reward: Reward, batch: RewardBatch, needs: frozenset[str] | None = None) -> None:
    """Raises ConfigError where the samples lack what the reward `name` needs; `needs`: a part of it, None: all."""
    for need in sorted(reward.needs if needs is None else needs):
        kind, _, entry = need.partition(".")
        if kind == "target" and entry:
            check_targets(name, reward, batch.prompts)
        elif need == IMAGE:
            check_images(name, reward, batch.prompts)
        elif thought_needs({need}):
            if not _is_thought(batch, kind, entry):
                raise ConfigError(f"reward {name!r} needs {need}: it judges the answers of a policy in training alone")
        elif need == CONTROLS or need in LOADED:
            continue  # whether there are controls is checked of the sampler's plan, before any sample is drawn
        elif need not in MEDIA:
            raise ConfigError(
                f"reward {name!r} needs {need!r}; allowed are {', '.join(NEEDS)}, target.<field> and adapter.<folder>"
            )
        elif getattr(batch.outputs, need) is None:
            there = [name for name in MEDIA if getattr(batch.outputs, name) is not None]
            raise ConfigError(f"reward {name!r} needs {need}, but the policy makes {', '.join(there) or 'nothing'}")


def needs_of_gradient(reward: Reward) -> frozenset[str]:
    """Returns what a reward needs of outputs whose gradient is computed: all that it needs, or a declared part."""
    part = RewardDeclaration.of(reward).needs_of_gradient
    return reward.needs if part is None else part


def _is_thought(batch: RewardBatch, kind: str, entry: str) -> bool:
    """Returns whether the batch has what the policy thinks by some weights or an adapter."""
    if kind == "self_certainty":
        found = batch.likelihoods.get(entry)
        return found is not None and found.self_certainty is not None
    there: Mapping[str, Mapping[str, object]] = {
        "likelihoods": batch.likelihoods,
        "right_answer": batch.right_answer,
        "turn_answer": batch.turn_answer,
        "adapter": batch.adapter_scores,
    }
    return entry in there[kind]


def refuse_dense(name: str, reward: Reward) -> None:
    """Raises ConfigError for a dense reward, where the decisions behind the outputs are unknown."""
    if reward.granularity in DENSE:
        raise ConfigError(
            f"reward {name!r} judges each {reward.granularity} of samples of a policy of mmrl; of outputs alone, or of "
            "another trainer's samples, the decisions are unknown"
        )


def refuse_thought(name: str, reward: Reward, where: str, hint: str = "") -> None:
    """Raises ConfigError for a reward that needs what the policy thinks of its answers, where nobody asks it."""
    if needs := thought_needs(reward.needs):
        raise ConfigError(f"reward {name!r} needs {needs[0]}, which {where} does not read{hint}")


def check_makes(name: str, reward: Reward, makes: frozenset[str], modality: str) -> None:
    """Raises ConfigError where the reward `name` needs outputs that are not among those that the modality `makes`."""
    if lacking := sorted(need for need in reward.needs if need in MEDIA and need not in makes):
        raise ConfigError(
            f"reward {name!r} needs {' and '.join(lacking)}, but modality {modality!r} makes "
            f"{', '.join(one for one in MEDIA if one in makes)}"
            + ("; 'given' is made by the samplers given and given_and_drawn" if "given" in lacking else "")
        )


def check_targets(name: str, reward: Reward, prompts: Iterable[Prompt]) -> None:
    """Raises ConfigError for a prompt whose target lacks what the reward `name` needs."""
    needs = sorted(need.removeprefix("target.") for need in reward.needs if need.startswith("target."))
    for prompt in prompts:
        if lacking := [entry for entry in needs if entry not in prompt.target]:
            raise ConfigError(
                f"reward {name!r} needs {lacking[0]!r} in the target of every prompt, got none for {prompt.text!r}"
            )


def check_images(name: str, reward: Reward, prompts: Iterable[Prompt]) -> None:
    """Raises ConfigError for a prompt without an image where the reward `name` needs one."""
    for prompt in prompts if IMAGE in reward.needs else ():
        if not prompt.media:
            raise ConfigError(f"reward {name!r} needs an image in every prompt, got none for {prompt.text!r}")


def check_prompts(name: str, reward: Reward, prompts: Sequence[Prompt]) -> None:
    """Raises ConfigError for a prompt for which the reward `name` could judge no sample."""
    check_targets(name, reward, prompts)
    check_images(name, reward, prompts)
    demands = Demands(((name, reward),))
    for prompt in prompts:
        if fault := demands.fault(prompt):
            raise ConfigError(f"{fault} (prompt {prompt.text[:80]!r})")


def units_of(reward: Reward, batch: RewardBatch) -> list[Tensor]:
    """Returns the rows, [n] int64 each, that the reward judges together: single samples, episodes or groups.

    In order.
    """
    if reward.granularity in ("sample", "turn", *DENSE):
        return [torch.tensor([row]) for row in range(len(batch))]
    names = batch.group if reward.granularity == "group" else batch.episode
    rows: defaultdict[int, list[int]] = defaultdict(list)
    for row, name in enumerate(names.tolist()):
        rows[name].append(row)
    return [torch.tensor(members) for members in rows.values()]


def pack(units: list[Tensor], size: int | None) -> list[list[Tensor]]:
    """Returns units as batches of at most `size` samples (None: any number); a larger unit is a batch of its own."""
    packs: list[list[Tensor]] = []
    room = 0.0
    for unit in units:
        if not packs or len(unit) > room:
            packs.append([])
            room = math.inf if size is None else size
        packs[-1].append(unit)
        room -= len(unit)
    return packs


@dataclass(frozen=True)
class Demands:
    """What the rewards of a run, by their labels, demand of each prompt of its data."""

    rewards: tuple[tuple[str, Reward], ...] = ()

    def lacking(self, prompt: Prompt) -> tuple[str, str] | None:
        """Returns the first field that the prompt's target lacks, and the reward that needs it; None: it lacks none."""
        for entry, name in self._entries:
            if prompt.target.get(entry) is None:
                return entry, name
        return None

    def checked(self, prompts: tuple[Prompt, ...]) -> tuple[Prompt, ...]:
        """Returns the prompts. Raises ConfigError for one for which some reward could judge no sample."""
        for name, reward in self.rewards:
            check_prompts(name, reward, prompts)
        return prompts

    @cached_property
    def _entries(self) -> tuple[tuple[str, str], ...]:
        """Returns each field of targets that a reward needs, with the reward."""
        return tuple(
            (need.removeprefix("target."), name)
            for name, reward in self.rewards
            for need in sorted(need for need in reward.needs if need.startswith("target."))
        )

    def fault(self, prompt: Prompt) -> str | None:
        """Returns why some reward could judge no sample for this prompt, in words; None: all rewards could."""
        for name, reward in self._checking:
            try:
                reward.check(prompt)
            except ValueError as error:
                return f"reward {name!r}: {error}"
        return None

    @cached_property
    def _checking(self) -> list[tuple[str, Checking]]:
        """The rewards that check prompts; found once, since the check of a protocol takes longer than to read a row."""
        return [(name, reward) for name, reward in self.rewards if isinstance(reward, Checking)]
