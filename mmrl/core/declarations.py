"""What a plug-in requires and what it can do: one frozen value for each kind, with a default for every field.

A plug-in has this value as a class attribute, or as a property where the value depends on settings:

    declaration: ClassVar[AdvantageDeclaration] = AdvantageDeclaration(min_group_size=1, compares_with="nothing")

`AdvantageDeclaration.of(plugin)` reads it. A plug-in without a declaration has the defaults. A wrapper returns the
declaration of its inner plug-in, changed with `dataclasses.replace`. What a plug-in does by a method (`prepare`,
`update_mask`, `update` ...) is no field here: it stands in the protocols of `mmrl.core.contracts`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from types import MappingProxyType
from typing import Annotated, ClassVar, Literal, Protocol, Self, cast

from pydantic import Field

from mmrl.core.checked import Checked
from mmrl.system.errors import ConfigError
from mmrl.system.spelling import near

# The quantities of a decision that a loss may require beside the log-prob, see `forward_outputs.PROVIDED`.
DecisionQuantity = Literal["choice", "entropy", "exact_kl", "gradient", "noise", "step", "velocity"]


class _Declaring(Protocol):
    declaration: object


@dataclass(frozen=True, kw_only=True)
class Declaration(Checked):
    """The base of all declarations. A wrong name or a wrong value of a field is a ConfigError."""

    formerly: ClassVar[Mapping[str, str]] = MappingProxyType({})  # former attribute of plug-ins -> the field for it

    def __new__(cls, **values: object) -> Self:
        """Raises ConfigError, with the nearest right name, for the name of no field."""
        known = [item.name for item in fields(cls)]
        if wrong := [name for name in values if name not in known]:
            better = cls.formerly.get(wrong[0])
            hint = f" (did you mean {better!r}?)" if better else near(wrong[0], known)
            raise ConfigError(f"{cls.__name__} has no field {wrong[0]!r}{hint}; its fields are {', '.join(known)}")
        return super().__new__(cls)

    def __post_init__(self) -> None:
        """Raises ConfigError for a value of another type than its field's, or outside of the field's range."""
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
        """Returns the declaration of a plug-in; the defaults where it declares nothing.

        Raises ConfigError where the plug-in's `declaration` is of another kind.
        """
        if not is_declared(type(plugin)):
            return cls()
        declared = cast(_Declaring, plugin).declaration
        if not isinstance(declared, cls):
            name, got = type(plugin).__name__, type(declared).__name__
            raise ConfigError(f"{name}.declaration must be a value {cls.__name__}(...), got {got}")
        return declared


def is_declared(cls: type) -> bool:
    """Returns whether a class has a declaration, of its own or inherited."""
    return any("declaration" in vars(base) for base in cls.__mro__)


@dataclass(frozen=True, kw_only=True)
class AdvantageDeclaration(Declaration):
    """What an advantage requires of samples, decisions and rewards, and what its numbers are about."""

    # The size of the smallest group that it can compare.
    min_group_size: Annotated[int, Field(ge=1)] = 2
    # Facts of each decision that it reads beside the edges, see `Paths.facts`; a policy names its facts in `provides`.
    requires: frozenset[str] = frozenset()
    # Labels of the rewards that it reads beside the total.
    requires_rewards: frozenset[str] = frozenset()
    # It needs a dense reward, of steps, segments or tokens, with a weight above 0.
    requires_dense_reward: bool = False
    # It reads `log_prob` as the logarithm of a probability: that of a token is one, that of a density may be above 0.
    requires_probabilities: bool = False
    # Samples must be single answers, not turns of an episode.
    requires_single_answers: bool = False
    # What a total is compared with: the others of its group, the whole batch, a virtual best sample, the greedy answer
    # (`GroupPlan.has_greedy`), or nothing. With all but `group`, samples of equal rewards may teach something.
    compares_with: Literal["group", "batch", "best", "greedy", "nothing"] = "group"
    # It compares the branches of a tree, whose decisions samples share.
    compares_branches: bool = False
    # It returns a number for each decision, [B, K], and not [B].
    is_per_decision: bool = False
    # A sample counts in proportion to its number of decisions.
    weighs_by_length: bool = False
    # It adds up the rewards by itself, within each sample: the only mix that it works with is the weighted sum.
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

    # The size of the smallest group that it can learn from; 1 where it does not compare the samples of a group.
    min_group_size: Annotated[int, Field(ge=1)] = 1
    # The quantities of decisions that it reads beside their log-probs.
    requires: frozenset[DecisionQuantity] = frozenset()
    # True: the old log-probs must be those of the policy that made the samples, since the loss corrects by the ratio to
    # them. False: the policy is only kept near the old weights. None: True where `needs` has old.
    requires_behaviour: bool | None = None
    # It reads noise levels of the sampler's grid.
    requires_noise_levels: bool = False
    # It reads the mean entropy of a step's decisions, which are sampled tokens.
    requires_mean_entropy: bool = False
    # It reads the mean total of a group off the advantages, which must be those of `dr_grpo`; totals lie in [0, 1].
    requires_group_mean: bool = False
    # Network calls per sample, of a loss that does not learn from decisions; their mean where the number is random.
    calls_per_sample: Annotated[float, Field(gt=0)] = 1.0
    # The number of the sampler's last steps that it repeats with a gradient.
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

    # Its scores have the same mean in every group, as ranks have: they cannot compare groups.
    is_relative: bool = False
    # The number of batches that may be judged at once, on threads: more than 1 for a reward that calls a server.
    concurrency: Annotated[int, Field(ge=1)] = 1
    # The same group may get other scores in another iteration.
    follows_iteration: bool = False
    # The same sample may get another score in another call: by its own noise, by the iteration, by what it has learned.
    is_changing: bool = False
    # The tag of the part of an answer that it reads, `<tag>...</tag>`; None: it reads whole answers, or no answers.
    answer_tag: str | None = None
    # What it needs for gradients, a part of its `needs`; None: all of them. Without media, none are decoded in a graph.
    needs_of_gradient: frozenset[str] | None = None

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
    """What a mix requires of rewards, and what its totals are about."""

    # Labels of the rewards that it reads, whatever their weight.
    requires_rewards: frozenset[str] = frozenset()
    # A total compares a sample with its group, and says nothing outside of the group.
    is_relative: bool = False
    # Each reward has advantages of its own, which are summed with the weights.
    is_of_advantages: bool = False

    formerly: ClassVar[Mapping[str, str]] = MappingProxyType(
        {"is_of_advantages": "is_of_advantages", "is_relative": "is_relative", "reads": "requires_rewards"}
    )


@dataclass(frozen=True, kw_only=True)
class PolicyDeclaration(Declaration):
    """What a policy provides beside its rollouts, and what its model is."""

    # Facts of each decision in its rollouts, see `Paths.facts`: what advantages may require.
    provides: frozenset[str] = frozenset()
    # Every grid of noise levels ends at 0. False: the model's own grid may end above 0, and then its last step may be
    # random.
    ends_without_noise: bool = True
    # It has noise levels of its own, also for images that the data brings.
    has_noise_levels: bool = False
    # An inference engine samples in place of the weights that are trained.
    has_inference_engine: bool = False
    # That engine can sample a rollout while the weights are trained by the one before.
    samples_ahead: bool = False
    # Its `refusal` of a prompt depends on settings alone, so that prompts are judged before its model is loaded.
    refuses_by_settings: bool = False
    # The unit of coordinates in its answers is known, or not yet known to be unknown: its model is not loaded.
    has_coordinates: bool = True
    # The model as the config sets it: a hub name or a folder.
    checkpoint: str | None = None
    # The name of a file that every folder of such a model holds.
    checkpoint_file: str | None = None

    formerly: ClassVar[Mapping[str, str]] = MappingProxyType(
        {
            "ends_clean": "ends_without_noise",
            "facts": "provides",
            "has_levels": "has_noise_levels",
            "model_file": "checkpoint_file",
        }
    )


# By the kind of `plugins.Kind`. Samplers and environments declare nothing: their protocols say all.
DECLARATIONS: Mapping[str, type[Declaration]] = MappingProxyType(
    {
        "advantages": AdvantageDeclaration,
        "losses": LossDeclaration,
        "mixes": MixDeclaration,
        "modalities": PolicyDeclaration,
        "rewards": RewardDeclaration,
    }
)
