"""What a merged adapter changes in the log-probs of answers, said once for a run."""

import logging

import torch
from torch import Tensor

from ..loading.merging import MergedAdapters
from ..tokens.backbone import Answers
from ..tokens.trace import TokenTrace
from .rollout import TokenGenerator

COMPARED = 8  # answers of the first rollout
log = logging.getLogger(__name__)


def say_difference(policy: TokenGenerator, merged: MergedAdapters, trace: TokenTrace, prompt_of: Tensor) -> None:
    """Logs how far log-probs of the first sampled answers with merged adapters are from those with adapters apart.

    prompt_of: [B] the prompt of each answer. Nothing is said of greedy answers, nor a second time.
    """
    if trace.distribution.temperature == 0:
        return
    rows = torch.arange(min(COMPARED, len(prompt_of)))
    numbers, place = prompt_of[rows].unique(return_inverse=True)
    own = trace.completions.select(rows)
    answers = Answers(place, own.tokens, own.length)
    support = trace.completions.support_of(rows, torch.zeros_like(own.length), own.length)
    prompts = [trace.prompts[number] for number in numbers.tolist()]
    found = merged.compared(lambda: policy.log_probs(prompts, answers, trace.distribution, support)[0])
    if found is not None:
        off = (found[0] - found[1]).abs()
        log.warning(
            "lora.merge_rollouts: log-probs of %d tokens with the adapter merged differ from those of the update by "
            "%.2g nats in the mean, %.2g at most",
            *(len(off), float(off.mean()), float(off.max())),
        )
