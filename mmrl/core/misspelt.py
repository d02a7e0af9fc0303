"""Refuses attributes of plug-ins that mmrl never reads, where their names are misspelt or former ones."""

from collections.abc import Iterator, Mapping, Set
from dataclasses import fields
from types import MappingProxyType

from mmrl.core.declarations import DECLARATIONS
from mmrl.system.errors import ConfigError
from mmrl.system.spelling import nearest

# The likeness from which two names are taken for each other: of `prepair` and `prepare` it is 0.86, of `sums_reward`
# and `sums_rewards` 0.96.
_LIKENESS = 0.8
_LIKENESS_OF_SETTINGS = 0.9
_STATE = frozenset({"update", "state_dict", "load_state_dict"})
_LIFE = frozenset({"prepare", "tiny"})
_OF_POLICIES = """
    ahead apart cuts differentiate dummy_forward dummy_rollout end_tokens export forward forward_kinds known_sizes makes
    modules networks num_calls num_taken_ahead offline offline_tokens prepare recompute recorded records_trajectories
    recover_engine refusal renders_latents replayed restore_ahead rollout sample_ahead sample_kind send_shards
    send_weights settle_ahead share_weights sharing_used size_for sized taken tiny tokens_of unreadable usage weights
    with_tiny_engine without_sharing
"""
_OF_REWARDS = """
    batch_size check differentiable ends fit granularity inner_rewards needs range score score_with_examples source
    spent
"""
# By kind, the members of the protocols in `mmrl.core.contracts`, of the optional ones too.
MEMBERS: Mapping[str, frozenset[str]] = MappingProxyType(
    {
        "advantages": _LIFE | _STATE | {"check", "check_best", "update_mask"},
        "environments": frozenset({"close", "reset", "restore", "snapshot", "state_key", "step"}),
        "losses": _LIFE | _STATE | {"coefficients", "kind", "measure", "needs", "old_decay", "scope", "views"},
        "mixes": frozenset({"check"}),
        "modalities": frozenset(_OF_POLICIES.split()),
        "rewards": _LIFE | _STATE | frozenset(_OF_REWARDS.split()),
        "samplers": _LIFE | _STATE | {"plan", "reward", "sample_kind"},
    }
)
# By kind, the names of members before they were renamed, and the members for them. Attributes that became a field of a
# declaration stand in its `formerly`.
FORMER_MEMBERS: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {
        "advantages": {"keeps": "update_mask", "told": "inner_batch"},
        "modalities": {
            "draws": "sample_kind",
            "evaluate": "forward",
            "evaluates": "forward_kinds",
            "given": "offline",
            "given_tokens": "offline_tokens",
            "idle": "dummy_forward",
            "idle_rollout": "dummy_rollout",
            "keeps_trajectories": "records_trajectories",
            "told": "with_instructions",
        },
        "rewards": {"held": "inner_rewards"},
        "samplers": {"draws": "sample_kind"},
    }
)


def refuse_misspelt(kind: str, cls: type) -> None:
    """Raises ConfigError for an attribute of a plug-in that mmrl never reads, but whose name is nearly a member's.

    Checks the public attributes of the class, and of the classes of the same package that it inherits from. The name of
    a setting is compared with the fields of the declaration only: plug-ins name their settings as they like.
    """
    settings, own = {item.name for item in fields(cls)}, set(_own_names(cls))
    if "declaration" in settings:
        raise ConfigError(f"{cls.__name__}.declaration: it is no setting; write `declaration: ClassVar[...] = ...`")
    if (state := own & _STATE - {"update"}) and not own >= _STATE:
        lacks = ", ".join(sorted(_STATE - own))
        raise ConfigError(
            f"{cls.__name__}.{min(state)}: a plug-in with a state needs all of its methods; it has no {lacks}"
        )
    for name in sorted(own - {"declaration"}):
        if name in settings and "declaration" in own:
            continue  # the declaration may be made from the setting
        if (why := _wrong(kind, name, own, is_setting=name in settings)) is not None:
            raise ConfigError(f"{cls.__name__}.{name}: {why}")


def _own_names(cls: type) -> Iterator[str]:
    """Yields the public names of the attributes that the package of the class defines."""
    package = cls.__module__.partition(".")[0]
    for base in cls.__mro__:
        if base.__module__.partition(".")[0] == package:
            names = {*vars(base), *vars(base).get("__annotations__", {})}
            yield from (name for name in names if not name.startswith("_"))


def _wrong(kind: str, name: str, own: Set[str], *, is_setting: bool) -> str | None:
    """Returns why an attribute may not have this name, where a plug-in has the names `own`; None where it may."""
    declaration, members, former = DECLARATIONS.get(kind), MEMBERS[kind], FORMER_MEMBERS.get(kind, {})
    declared: dict[str, str] = {}  # present and former names of the fields of the declaration -> the field
    if declaration is not None:
        declared = {**declaration.formerly, **{item.name: item.name for item in fields(declaration)}}
    if name in members:
        return None
    if name in declared:
        return f"mmrl reads this from the plug-in's declaration: `{_in_words(kind, declared[name])}`"
    if name in former and not is_setting:
        return f"nothing reads it; it is now called {former[name]!r}"
    lacking = {*members, *former, "declaration"} - own
    known, likeness = (declared, _LIKENESS_OF_SETTINGS) if is_setting else ({*declared, *lacking}, _LIKENESS)
    better = nearest(name, known, likeness=likeness)
    if better is None:
        return None
    if better in declared:
        return f"nothing reads it; did you mean {declared[better]!r}, as in `{_in_words(kind, declared[better])}`?"
    better = former.get(better, better)
    return f"nothing reads it; did you mean {better!r}? (Names of a plug-in's own that are not settings begin with _)"


def _in_words(kind: str, field: str) -> str:
    """Returns the line of code that declares a field."""
    return f"declaration = {DECLARATIONS[kind].__name__}({field}=...)"
