"""What a rollout of answers leaves behind: enough to evaluate it again, and its tokens as a table of decisions."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from mmrl.data import DecisionBlock
from mmrl.modalities._answers import Drawn
from mmrl.modalities._distribution import Shaping
from mmrl.modalities._inputs import EncodedPrompt
from mmrl.views import DecisionView


@dataclass(frozen=True)
class TokenTrace:
    """What a token policy needs to evaluate a rollout again."""

    prompts: tuple[EncodedPrompt, ...]  # P
    drawn: Drawn  # B answers
    shaping: Shaping
    is_recorded: bool  # the log-probs are there; False for answers from elsewhere

    @classmethod
    def join(cls, parts: "Sequence[TokenTrace]") -> "TokenTrace":
        """One trace of all, in order."""
        assert len({(part.shaping, part.is_recorded) for part in parts}) == 1, "rollouts of different distributions"
        prompts = tuple(prompt for part in parts for prompt in part.prompts)
        return cls(prompts, Drawn.join([part.drawn for part in parts]), parts[0].shaping, parts[0].is_recorded)


def rows_of(block: DecisionBlock, view: DecisionView) -> Tensor:
    """The samples [n] behind the view's calls, in the order of the calls."""
    if not block.call.shape[1]:
        return torch.empty(0, dtype=torch.int64)
    number = block.call[:, 0]  # every answer has a first token
    rows = torch.isin(number, view.calls).nonzero()[:, 0]
    return rows[number[rows].argsort()]


def answer_block(trace: TokenTrace, prompt_of: Tensor, is_decision: Tensor) -> DecisionBlock:
    """One call per answer, one edge per token; groups stay together, short ones first, short answers first in each."""
    length = trace.drawn.length
    longest = torch.zeros(len(trace.prompts), dtype=torch.int64).scatter_reduce(0, prompt_of, length, "amax")
    longest += torch.tensor([len(prompt) for prompt in trace.prompts])
    rows = is_decision.nonzero()[:, 0]
    order = sorted(rows.tolist(), key=lambda row: (int(longest[prompt_of[row]]), int(prompt_of[row]), int(length[row])))
    number = torch.full((len(prompt_of),), -1)
    number[torch.tensor(order, dtype=torch.int64)] = torch.arange(len(order))
    is_edge = (torch.arange(trace.drawn.tokens.shape[1]) < length[:, None]) & is_decision[:, None]  # [B, K]
    edge = torch.where(is_edge, is_edge.flatten().cumsum(0).view_as(is_edge) - 1, -1)
    return DecisionBlock(torch.where(is_edge, number[:, None], -1), edge, is_edge.float())
