"""Misspelt attributes of plug-ins: names that nothing reads, nearly those that mmrl looks for or looked for before."""

from collections.abc import Iterator, Mapping, Set
from dataclasses import fields
from types import MappingProxyType

from mmrl.core.declarations import DECLARATIONS
from mmrl.system.errors import ConfigError
from mmrl.system.spelling import nearest

# How alike names are that are taken for each other: `prepair` and `prepare` are so by 0.86, `sums_reward` and
# `sums_rewards` by 0.96.
_LIKENESS = 0.8
_LIKENESS_OF_SETTINGS = 0.9
_STATE = frozenset({"update", "state_dict", "load_state_dict"})
_LIFE = frozenset({"prepare", "tiny"})
_OF_POLICIES = """
    cuts differentiate dummy_forward dummy_rollout export forward forward_kinds makes modules networks num_calls offline
    offline_tokens prepare recompute recorded records_trajectories refusal replayed rollout sample_kind sharing_used
    taken tiny tokens_of unreadable usage weights with_tiny_engine
"""
_OF_REWARDS = "batch_size check differentiable ends granularity inner_rewards needs range score source"
# What plug-ins of a kind have, always or where they can do it: the members of the protocols in `mmrl.core.contracts`.
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


def refuse_misspelt(kind: str, cls: type) -> None:
    """Raises ConfigError for an attribute of a plug-in that is not read, and nearly has the name of one that is.

    Looked at are the public names that the class, or a class of the same package that it inherits from, gives its
    attributes. A setting is only compared with what is declared: plug-ins name their settings as they like.
    """
    settings, own = {item.name for item in fields(cls)}, set(_own_names(cls))
    if "declaration" in settings:
        raise ConfigError(f"{cls.__name__}.declaration: it is no setting; write `declaration: ClassVar[...] = ...`")
    for name in sorted(own - {"declaration"}):
        if name in settings and "declaration" in own:
            continue  # the declaration may read it
        if (why := _wrong(kind, name, own, is_setting=name in settings)) is not None:
            raise ConfigError(f"{cls.__name__}.{name}: {why}")


def _own_names(cls: type) -> Iterator[str]:
    """The public names of attributes that stand in the package of the class."""
    package = cls.__module__.partition(".")[0]
    for base in cls.__mro__:
        if base.__module__.partition(".")[0] == package:
            names = {*vars(base), *vars(base).get("__annotations__", {})}
            yield from (name for name in names if not name.startswith("_"))


def _wrong(kind: str, name: str, own: Set[str], *, is_setting: bool) -> str | None:
    """Why an attribute may not have this name, beside the other names `own`; None where it may."""
    declaration, members = DECLARATIONS.get(kind), MEMBERS[kind]
    declared: dict[str, str] = {}  # names by which somebody may mean a field of the declaration, and the field
    if declaration is not None:
        declared = {**declaration.formerly, **{item.name: item.name for item in fields(declaration)}}
    if name in members:
        return None
    if name in declared:
        return f"it is read from what the plug-in declares: `{_in_words(kind, declared[name])}`"
    lacking = {*members, "declaration"} - own
    known, likeness = (declared, _LIKENESS_OF_SETTINGS) if is_setting else ({*declared, *lacking}, _LIKENESS)
    better = nearest(name, known, likeness=likeness)
    if better is None:
        return None
    if better in declared:
        return f"nothing reads it; did you mean {declared[better]!r}, as in `{_in_words(kind, declared[better])}`?"
    return f"nothing reads it; did you mean {better!r}? (Names of a plug-in's own that are not settings begin with _)"


def _in_words(kind: str, field: str) -> str:
    return f"declaration = {DECLARATIONS[kind].__name__}({field}=...)"
