"""The progress of an agent's turn: what a judge says of the screen after it, less what it says of the screen before."""

from dataclasses import dataclass, replace
from typing import ClassVar

from torch import Tensor

from mmrl.core.contracts import Granularity, Reward, RewardBatch

from ..base.wrapper import RewardWrapper, score_inner


@dataclass(frozen=True)
class Progress(RewardWrapper):
    """The change of the predicted progress in a turn: p(screen after the turn) - p(screen before the turn).

    Zhang et al. 2025, "ProgRM: Build Better GUI Agents with Progress Rewards", arXiv 2505.18121: the reward of a step
    is the change of a predicted progress in [0, 1]. p is the inner reward of screens, such as `vlm_judge` with
    `of: screens` and `prompt: agent_progress`. It is asked twice in the same words, those of the turn's prompt, so that
    nothing but the screens makes the difference; the screen before a turn is the first image of its prompt. Where the
    question does not change from turn to turn (`history: 0`, and an environment without texts), the rewards of an
    episode add up to its last progress less that of its first screen, and a judge's cache spares half of the questions.

    The difference: ProgRM's p is a fine-tuned model, whose labels come from the longest common subsequences of
    successful episodes. Here p is the inner reward as it is. The paper's text was not at hand, so whether its p of the
    first screen is 0 was not seen.

    Raises ValueError where the inner reward does not judge screens turn by turn.
    """

    reward: Reward  # the progress that a screen shows, a reward of screens

    source: ClassVar[str] = "Zhang et al. 2025 (ProgRM), arXiv 2505.18121"
    granularity: ClassVar[Granularity] = "turn"
    needs: ClassVar[frozenset[str]] = frozenset({"screens", "prompt.image"})  # beside those of the inner reward

    def __post_init__(self) -> None:
        super().__post_init__()
        if "screens" not in self.reward.needs or self.reward.granularity not in ("sample", "turn"):
            raise ValueError(
                f"the inner reward must judge screens turn by turn, got one that needs "
                f"{', '.join(sorted(self.reward.needs)) or 'nothing'} and judges {self.reward.granularity}s"
            )
        low, high = self.reward.range
        self.inherit(self.reward, range=(low - high, high - low), granularity="turn", differentiable=False)

    def score(self, batch: RewardBatch) -> Tensor:
        """Returns the scores [B] float32; raises what the inner reward raises."""
        screens = tuple(prompt.media[0] for prompt in batch.prompts)
        before = replace(batch, outputs=replace(batch.outputs, screens=screens))
        return score_inner(self.reward, batch) - score_inner(self.reward, before)
