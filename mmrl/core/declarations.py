"""What a plug-in requires, and what it can do: one frozen value for each kind, with a default for every field.

A plug-in declares it as a class attribute, or as a property where it depends on settings:

    declaration: ClassVar[AdvantageDeclaration] = AdvantageDeclaration(min_group_size=1, compares_with="nothing")

`AdvantageDeclaration.of(plugin)` reads it; a plug-in that declares nothing has the defaults. A wrapper passes on the
value of the plug-in inside, changed with `dataclasses.replace`. What a plug-in does by a method (`prepare`, `keeps`,
`update` ...) stands in the protocols of `mmrl.core.contracts`, and is no field here.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from types import MappingProxyType
from typing import Annotated, ClassVar, Literal, Protocol, Self, cast

from pydantic import Field

from mmrl.core.checked import Checked
from mmrl.system.errors import ConfigError
from mmrl.system.spelling import near

# What a loss may read of decisions beside their log-probs, see `evaluations.PROVIDED`.
DecisionQuantity = Literal["choice", "entropy", "exact_kl", "gradient", "noise", "step", "velocity"]


class _Declaring(Protocol):
    declaration: object


@dataclass(frozen=True, kw_only=True)
class Declaration(Checked):
    """Base of the values that plug-ins declare: a wrong name or a wrong value is a ConfigError."""

    formerly: ClassVar[Mapping[str, str]] = MappingProxyType({})  # attributes of plug-ins before -> the field for each

    def __new__(cls, **values: object) -> Self:
        """Raises ConfigError, with the nearest right name, for a field that there is none of."""
        known = [item.name for item in fields(cls)]
        if wrong := [name for name in values if name not in known]:
            better = cls.formerly.get(wrong[0])
            hint = f" (did you mean {better!r}?)" if better else near(wrong[0], known)
            raise ConfigError(f"{cls.__name__} has no field {wrong[0]!r}{hint}; its fields are {', '.join(known)}")
        return super().__new__(cls)

    def __post_init__(self) -> None:
        """Raises ConfigError for a value of another type than its field's, or outside of its range."""
        for item in fields(self):
            value, default = object.__getattribute__(self, item.name), item.default
            for kind in (bool, int, frozenset):
                if isinstance(default, kind) and not isinstance(value, kind):
                    allowed = {bool: "True or False", int: "an integer", frozenset: "a frozenset of texts"}[kind]
                    raise ConfigError(f"{type(self).__name__}.{item.name} must be {allowed}, got {value!r}")
                if isinstance(default, kind):
                    break
        try:
            super().__post_init__()
        except ValueError as error:
            raise ConfigError(f"{type(self).__name__}.{error}") from error

    @classmethod
    def of(cls, plugin: object) -> Self:
        """Returns what a plug-in declares; the defaults where it declares nothing.

        Raises ConfigError where its `declaration` is that of another kind.
        """
        if not is_declared(type(plugin)):
            return cls()
        declared = cast(_Declaring, plugin).declaration
        if not isinstance(declared, cls):
            name, got = type(plugin).__name__, type(declared).__name__
            raise ConfigError(f"{name}.declaration must be a value {cls.__name__}(...), got {got}")
        return declared


def is_declared(cls: type) -> bool:
    """Returns whether a class, or one that it inherits from, has a declaration."""
    return any("declaration" in vars(base) for base in cls.__mro__)


@dataclass(frozen=True, kw_only=True)
class AdvantageDeclaration(Declaration):
    """What an advantage requires of samples, decisions and rewards, and what its numbers are about."""

    # The smallest group that it can compare.
    min_group_size: Annotated[int, Field(ge=1)] = 2
    # Facts of each decision that it reads beside the edges, see `Paths.facts`; modalities name theirs in `provides`.
    requires: frozenset[str] = frozenset()
    # Labels of rewards that it reads beside the total.
    requires_rewards: frozenset[str] = frozenset()
    # Needs a reward that counts and judges steps, segments or tokens.
    requires_dense_reward: bool = False
    # Takes `log_prob` for the logarithm of a probability, which it is of tokens; a density's may be above 0.
    requires_probabilities: bool = False
    # Samples are single answers: turns of an episode are none.
    requires_single_answers: bool = False
    # What a reward is compared with: the others of its group, all of the batch, a virtual best sample too, the greedy
    # answer (`GroupPlan.has_greedy`), or nothing. With all but `group`, equal rewards may teach something.
    compares_with: Literal["group", "batch", "best", "greedy", "nothing"] = "group"
    # Compares the branches of a tree whose decisions samples share.
    compares_branches: bool = False
    # Gives [B, K], a number for each decision, and not [B].
    is_per_decision: bool = False
    # Counts a sample by the number of its decisions.
    weighs_by_length: bool = False
    # Adds up rewards by itself, within samples: it takes no mix but the weighted sum.
    sums_rewards: bool = False

    formerly: ClassVar[Mapping[str, str]] = MappingProxyType(
        {
            "compares_with": "compares_with",
            "min_group_size": "min_group_size",
            "of_answers": "requires_single_answers",
            "of_decisions": "is_per_decision",
            "of_nodes": "compares_branches",
            "reads": "requires",
            "reads_decisions": "requires_dense_reward",
            "reads_probabilities": "requires_probabilities",
            "sums_rewards": "sums_rewards",
            "watches": "requires_rewards",
            "weighs_decisions": "weighs_by_length",
        }
    )


@dataclass(frozen=True, kw_only=True)
class LossDeclaration(Declaration):
    """What a loss requires of decisions, samples and old log-probs, and what it costs."""

    # The smallest group that it can learn from; 1 where it does not compare the samples of a group.
    min_group_size: Annotated[int, Field(ge=1)] = 1
    # What it reads of decisions beside their log-probs.
    requires: frozenset[DecisionQuantity] = frozenset()
    # Its old log-probs must be those of whoever made the samples, since it corrects by the ratio to them; False where
    # old are only what the policy is held near. None: it is so where `needs` has old.
    requires_behaviour: bool | None = None
    # Reads noise levels of the sampler's grid.
    requires_noise_levels: bool = False
    # Network calls for each sample, of a loss that does not learn from decisions; the mean where it draws the number.
    calls_per_sample: Annotated[float, Field(gt=0)] = 1.0
    # How many of the sampler's last steps it makes again with a gradient.
    num_gradient_steps: Annotated[int, Field(ge=0)] = 0

    formerly: ClassVar[Mapping[str, str]] = MappingProxyType(
        {
            "calls_per_sample": "calls_per_sample",
            "looks_back": "num_gradient_steps",
            "min_group_size": "min_group_size",
            "reads": "requires",
            "reads_levels": "requires_noise_levels",
            "requires_behaviour": "requires_behaviour",
        }
    )


@dataclass(frozen=True, kw_only=True)
class RewardDeclaration(Declaration):
    """What a reward can do, and what its scores depend on, beside the class attributes that every reward has."""

    # Its scores have the same mean in every group, as ranks have: they compare no groups.
    is_relative: bool = False
    # Batches that may be under way at once, on threads, as of a reward that asks a server.
    concurrency: Annotated[int, Field(ge=1)] = 1
    # The same group may score otherwise in another iteration.
    follows_iteration: bool = False
    # The same sample may score otherwise in another call: by noise of its own, by the iteration, by what was learned.
    is_changing: bool = False
    # The tag of an answer that it looks into, `<tag>...</tag>`; None where it reads whole answers, or none.
    answer_tag: str | None = None

    formerly: ClassVar[Mapping[str, str]] = MappingProxyType(
        {
            "concurrency": "concurrency",
            "follows_iteration": "follows_iteration",
            "is_changing": "is_changing",
            "is_relative": "is_relative",
        }
    )


@dataclass(frozen=True, kw_only=True)
class MixDeclaration(Declaration):
    """What a mix requires of rewards, and what the number that it makes of them is about."""

    # Rewards that it looks at by their labels, whatever their weight.
    requires_rewards: frozenset[str] = frozenset()
    # Compares a sample with its group: the number says nothing outside of it.
    is_relative: bool = False
    # Each reward has its own advantages, which are summed with the weights.
    is_of_advantages: bool = False

    formerly: ClassVar[Mapping[str, str]] = MappingProxyType(
        {"is_of_advantages": "is_of_advantages", "is_relative": "is_relative", "reads": "requires_rewards"}
    )


@dataclass(frozen=True, kw_only=True)
class PolicyDeclaration(Declaration):
    """What a modality provides beside its rollouts, and what its model is."""

    # Facts of each decision that its rollouts hold, see `Paths.facts`: what advantages may require.
    provides: frozenset[str] = frozenset()
    # The last step of every grid of noise levels ends at 0; False where a model's own grid may end above it, and then
    # its last step may be random.
    ends_without_noise: bool = True
    # Has noise levels of its own, also for images that no sampler drew.
    has_noise_levels: bool = False
    # An inference engine draws its samples, and not the weights that are trained.
    has_inference_engine: bool = False
    # The model as it is set, a name or a folder, and the file that a folder of such a model holds.
    checkpoint: str | None = None
    checkpoint_file: str | None = None

    formerly: ClassVar[Mapping[str, str]] = MappingProxyType(
        {
            "ends_clean": "ends_without_noise",
            "facts": "provides",
            "has_levels": "has_noise_levels",
            "model_file": "checkpoint_file",
        }
    )


# By the kind of `plugins.Kind`. Samplers and environments are asked about nothing but what their protocols say.
DECLARATIONS: Mapping[str, type[Declaration]] = MappingProxyType(
    {
        "advantages": AdvantageDeclaration,
        "losses": LossDeclaration,
        "mixes": MixDeclaration,
        "modalities": PolicyDeclaration,
        "rewards": RewardDeclaration,
    }
)
