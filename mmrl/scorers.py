"""Settings of rewards and of their mix to a scorer."""

from collections.abc import Mapping, Sequence
from typing import Any

from mmrl import plugins
from mmrl.config import Plugin, ScoringSettings, label_of
from mmrl.contracts import ConfigError, Reward, Segmented
from mmrl.patience import Patience
from mmrl.schedules import Schedule
from mmrl.scoring import RewardTerm, Scorer


def build_scorer(rewards: Sequence[Plugin], scoring: ScoringSettings, mix: Plugin | None = None) -> Scorer:
    """Rewards by name; `weight` and `label` belong to the mix, all other fields to the reward."""
    terms = []
    for settings in rewards:
        own = {key: value for key, value in settings.items() if key not in ("weight", "label")}
        weight = _weight(settings.get("weight", 1.0))
        reward = plugins.build("rewards", own, beside=("weight", "label"))
        if lacking := [part for part in (*Reward.__annotations__, "score") if not hasattr(reward, part)]:
            raise ConfigError(f"rewards.{own['name']} is not a reward: it has no {', '.join(lacking)}")
        if reward.granularity == "segment" and not isinstance(reward, Segmented):
            raise ConfigError(f"rewards.{own['name']} judges segments, and has no method `ends` to say where they end")
        terms.append(RewardTerm(_checked(label_of(settings)), reward, weight))
    mixed = None if mix is None else plugins.build("mixes", mix)
    return Scorer(tuple(terms), scoring.max_failed_share, mixed, Patience(scoring.call_seconds))


def _weight(given: Any) -> float | Schedule:
    """A number, or a section such as {start: 0, end: 1, last: 100}."""
    if isinstance(given, Mapping):
        schedule: Schedule = plugins.checked(Schedule, given, "rewards.weight")
        return schedule
    try:
        if isinstance(given, bool):
            raise TypeError("true and false are no weights")
        return float(given)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"rewards.weight must be a number, or start, end and last, got {given!r}") from error


def _checked(given: Any) -> str:
    """The label as a text in one line."""
    if not isinstance(given, str) or not given.strip() or not given.isprintable():
        raise ConfigError(f"rewards.label must be a text in one line, got {given!r}")
    return given
