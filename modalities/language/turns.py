"""What an agent is told in each turn of an episode: the goal, what it did, what it sees."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from mmrl.core.data import Observation, Outcome, Prompt
from mmrl.core.keys import GroupKey

from ..encoding.inputs import MARK
from .environment_workers import World

NOT_UNDERSTOOD = "The last answer was not understood: it must be exactly one allowed action."
MAX_TEXT = 2000  # characters of an environment's text that a prompt takes in: pages may say anything


@dataclass
class Episode:
    """One episode while it is played; its samples are its turns."""

    task: Prompt
    key: GroupKey
    member: int  # of its group
    world: World
    number: int = -1  # among the episodes of a rollout that have begun
    seen: list[Observation] = field(default_factory=list)  # one more than turns were taken
    did: list[str] = field(default_factory=list)  # actions in words, one for each turn
    state: str = ""  # the environment's name for where it stands now
    num_invalid: int = 0  # in a row, up to now
    outcome: Outcome | None = None

    @property
    def turn(self) -> int:
        """Turns taken so far: the number of the one to come."""
        return len(self.did)


def turn_prompt(
    task: Prompt, seen: Sequence[Observation], did: Sequence[str], *, screenshots: int, history: int
) -> Prompt:
    """The prompt of the turn to come.

    Args:
        task: the goal, with what rewards need.
        seen: observations so far, the last one is now. did: actions so far in words.
        screenshots: how many are shown: the present one first, since actions are meant on it, then those before it.
        history: how many of the last actions are told.
    """
    shown = list(reversed(seen[-screenshots:]))
    lines = [seen[0].goal or task.text]
    if len(shown) > 1:
        lines.insert(0, f"The screen now: {MARK}")
        lines[1:1] = [f"The screen {ago} action{'s' if ago > 1 else ''} ago: {MARK}" for ago in range(1, len(shown))]
    if history and did:
        first = max(0, len(did) - history)
        lines += ["Done so far:", *(f"{number + 1}. {did[number]}" for number in range(first, len(did)))]
    if seen[-1].text:
        lines.append(seen[-1].text[:MAX_TEXT])
    return replace(task, text="\n".join(lines), media=tuple(observation.screenshot for observation in shown))


def harmless(text: str, tokens: Iterable[str]) -> str:
    """A stranger's text in which none of the given tokens is spelt: a space stands behind their first character."""
    for token in tokens:
        text = text.replace(token, f"{token[0]} {token[1:]}")
    return text
