"""How hard prompts are by the scores of their groups, and harder and easier forms of them."""

import math
import re
from dataclasses import dataclass, field, replace
from typing import Any

from mmrl.core.data import Prompt, Scores
from mmrl.core.keys import seed_from
from mmrl.media.video import NoisyClip
from mmrl.scoring.metrics import plain_total

GUIDE = "The right answer is {answer}. Think it through all the same, step by step, as if you did not know it."
CUE = "Somebody began to think like this: {cue}"
_THOUGHT = re.compile(r"<think>(.*?)(?:</think>|<answer>|$)", re.DOTALL)


@dataclass
class Difficulty:
    """The difficulty of a prompt: the mean total of the last `window` groups minus that of the prompt's own group.

    Park et al. 2025, "DeepVideo-R1", arXiv 2506.07464, equation 9: above 0 a prompt is hard, below it is easy. The
    paper compares with the groups of the last W steps, and has W = 100 samples in its appendix C.1. Groups of the
    first iteration are compared with each other. Groups of changed prompts do not count.
    """

    window: int = 100
    recent: list[float] = field(init=False, default_factory=list)  # mean totals of the last groups, the newest last
    _own: set[int] = field(init=False, default_factory=set, repr=False)  # prompts as they are, of this iteration

    def __call__(self, scores: Scores) -> dict[int, float]:
        """Returns the difficulties of prompts as they are, by prompt index; of those with a valid sample."""
        means = group_means(scores)
        known = self.recent or list(means.values())
        self._own = set(means)
        return {index: math.fsum(known) / len(known) - mean for index, mean in means.items()}

    def update(self, scores: Scores) -> None:
        """Records the groups of an iteration."""
        means = group_means(scores)
        self.recent = [*self.recent, *(means[index] for index in sorted(self._own & means.keys()))][-self.window :]
        self._own = set()

    def state_dict(self) -> dict[str, Any]:
        return {"recent": list(self.recent)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.recent = list(state["recent"])


def group_means(scores: Scores) -> dict[int, float]:
    """Returns the mean plain total of the valid samples of each prompt, ascending by prompt index."""
    totals = plain_total(scores).double()
    rows = {index: scores.valid & (scores.prompt_index == index) for index in scores.prompt_index.unique().tolist()}
    return {index: float(totals[own].mean()) for index, own in rows.items() if own.any()}


def guide(prompt: Prompt, name: str) -> Prompt | None:
    """Returns the prompt with its right answer, the field `name` of its target, behind it; None without one."""
    given = prompt.target.get(name)
    answer = ", ".join(map(str, given)) if isinstance(given, list | tuple) else given
    if not isinstance(answer, str | int | float) or not str(answer).strip():
        return None
    return replace(prompt, text=f"{prompt.text}\n{GUIDE.format(answer=answer)}")


def cued(prompt: Prompt, text: str, share: float) -> Prompt | None:
    """Returns the prompt with the first words of the thought of an answer, a share of them; None without a thought.

    The thought stands in `<think>`, or is all before `<answer>` where there is no such tag.
    """
    match = _THOUGHT.search(text)
    words = (match[1] if match else text.partition("<answer>")[0]).split()
    if not words:
        return None
    cue = " ".join(words[: math.ceil(min(1.0, share) * len(words))])
    return replace(prompt, text=f"{prompt.text}\n{CUE.replace('{cue}', cue)}")


def noisy(prompt: Prompt, std: float, *key: int | str) -> Prompt | None:
    """Returns the prompt with noise of a standard deviation (white is 1) on the frames of its clips; None without."""
    if not prompt.clips or std <= 0:
        return None
    clips = (NoisyClip(clip, seed_from(*key, number), std) for number, clip in enumerate(prompt.clips))
    return replace(prompt, clips=tuple(clips))
