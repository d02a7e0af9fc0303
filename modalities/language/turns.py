"""The prompt of an agent in each turn of an episode: the goal, its last actions, its last observations."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from mmrl.core.data import Observation, Outcome, Prompt
from mmrl.core.keys import GroupKey

from ..encoding.inputs import MARK
from .environment_workers import World

NOT_UNDERSTOOD = "The last answer was not understood: it must be exactly one allowed action."
MAX_TEXT = 2000  # characters of an environment's text that enter a prompt: pages may hold any text


@dataclass
class Episode:
    """One running episode; its samples are its turns."""

    task: Prompt
    key: GroupKey
    member: int  # of its group
    world: World
    number: int = -1  # among the episodes of a rollout that have begun
    seen: list[Observation] = field(default_factory=list)  # one more than turns
    did: list[str] = field(default_factory=list)  # actions in words, one for each turn
    state: str = ""  # the environment's key of the present state
    num_invalid: int = 0  # invalid answers in a row, up to now
    outcome: Outcome | None = None

    @property
    def turn(self) -> int:
        """Returns the number of turns so far, which is the number of the next turn."""
        return len(self.did)


def turn_prompt(
    task: Prompt, seen: Sequence[Observation], did: Sequence[str], *, screenshots: int, history: int
) -> Prompt:
    """Returns the prompt of the next turn.

    Args:
        task: the goal, with the target of rewards.
        seen: observations so far, the last is the present one. did: actions so far in words.
        screenshots: how many are shown: the present one first, since actions are on it, then those before.
        history: how many of the last actions are listed.
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
    """Returns an untrusted text that spells none of the given tokens: a space stands behind their first character."""
    for token in tokens:
        text = text.replace(token, f"{token[0]} {token[1:]}")
    return text
