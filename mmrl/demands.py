"""What rewards ask of the target of every prompt, checked once when the data is loaded."""

from dataclasses import dataclass
from functools import cached_property

from mmrl.contracts import Checking, Reward
from mmrl.data import Prompt


@dataclass(frozen=True)
class Demands:
    """The rewards of a run, by their names, as judges of its data."""

    rewards: tuple[tuple[str, Reward], ...] = ()

    def lacking(self, prompt: Prompt) -> tuple[str, str] | None:
        """The first field that the target lacks, and the name of the reward that needs it; None where it lacks none."""
        for name, reward in self.rewards:
            for need in sorted(need for need in reward.needs if need.startswith("target.")):
                if prompt.target.get(entry := need.removeprefix("target.")) is None:
                    return entry, name
        return None

    def fault(self, prompt: Prompt) -> str | None:
        """Why a reward could judge no answer to this prompt, in words; None where every one could."""
        for name, reward in self._checking:
            try:
                reward.check(prompt)
            except ValueError as error:
                return f"reward {name!r}: {error}"
        return None

    @cached_property
    def _checking(self) -> list[tuple[str, Checking]]:
        """Asked of a protocol once, and not for each row: that takes longer than to read the row."""
        return [(name, reward) for name, reward in self.rewards if isinstance(reward, Checking)]
