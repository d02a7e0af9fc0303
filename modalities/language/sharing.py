"""The proof of how an update shares prompts: log-probs and gradients must be those of plain rows, else rows are used.

Types of models that tests run share without this proof.
"""

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from ..encoding.inputs import EncodedPrompt
from ..tokens.attention import attention_of, takes_trees
from ..tokens.backbone import Answers
from ..tokens.sampling import SamplingDistribution
from .policy import TokenPolicy
from .probing import RAISED

# In nats of the mean over tokens, and in norms of a tensor's gradient. Rounding was 2e-6 and 3e-3 at most in float32 on
# 19 families; wrong masks, caches and tokens were above 0.1 in one of the two.
LEAST, LEAST_OF_GRADIENT, ROUNDINGS = 1e-3, 1e-2, 3.0
COMPARED = 8  # tensors whose gradients are compared
LARGEST = 2**24  # numbers in one of them, where smaller ones are trained
log = logging.getLogger(__name__)


def choose_sharing(
    policy: TokenPolicy, model: str, prompts: Sequence[EncodedPrompt], read: Mapping[str, Answers]
) -> None:
    """Sets the first of the ways that the policy wants which computes what plain rows do; plain rows where none does.

    read: ragged answers to the prompts, by what they hold.
    """
    ways = [way for way in policy.wanted_ways if way != "packed" or takes_trees(policy.backbone.model)]
    reasons = [
        f"packed rows: attention {attention_of(policy.backbone.model)} takes no tree mask"
        for way in policy.wanted_ways
        if way not in ways
    ]
    if ways:
        expected = _Computed.of(policy, prompts, read)
        with rounded_embeddings(policy.backbone.model, policy.precision):
            rounding = expected.off(_Computed.of(policy, prompts, read))
    for way in ways:
        policy.share(way)
        try:
            off = expected.off(_Computed.of(policy, prompts, read))
        except RAISED as error:
            if isinstance(error, torch.OutOfMemoryError):
                raise
            reasons.append(f"{way} does not work: {type(error).__name__}: {str(error).splitlines()[0]}")
            continue
        allowed = max(LEAST, ROUNDINGS * rounding[0]), max(LEAST_OF_GRADIENT, ROUNDINGS * rounding[1])
        if off[0] <= allowed[0] and off[1] <= allowed[1]:
            return
        reasons.append(
            f"{way} is off by {off[0]:.2g} nats a token and {off[1]:.2g} of a gradient (up to {allowed[0]:.2g} and "
            f"{allowed[1]:.2g} may be rounding)"
        )
    policy.share("none", "; ".join(reasons))
    if reasons:
        log.warning(
            "modality.sharing: %r shares no prompt in updates: %s. Each prompt is computed once for every one of its "
            "answers, not once for all: a group of 8 answers computes its prompt 8 times",
            *(model, "; ".join(reasons)),
        )


class _Computed:
    """Log-probs of answers, and gradients of a weighted sum of them."""

    def __init__(self, log_probs: Tensor, gradients: Mapping[str, Tensor]) -> None:
        self.log_probs, self.gradients = log_probs, gradients

    @classmethod
    def of(cls, policy: TokenPolicy, prompts: Sequence[EncodedPrompt], read: Mapping[str, Answers]) -> "_Computed":
        """Computes both as an update does."""
        chosen, parts = compared_tensors(policy.weights.parameters), list[Tensor]()
        totals = {name: torch.zeros_like(tensor, dtype=torch.float32) for name, tensor in chosen.items()}
        distribution = SamplingDistribution(1.0, banned=policy.banned)
        with torch.enable_grad():
            for answers in read.values():
                log_prob, _ = policy.log_probs(prompts, answers, distribution)
                weights = torch.linspace(-1, 1, len(log_prob), device=log_prob.device).cos()
                gradients = torch.autograd.grad((log_prob * weights).sum(), [*chosen.values()], allow_unused=True)
                for name, gradient in zip(chosen, gradients, strict=True):
                    if gradient is not None:
                        totals[name] += gradient.float()
                parts.append(log_prob.detach())
        return cls(torch.cat(parts), totals)

    def off(self, other: "_Computed") -> tuple[float, float]:
        """Returns how far the other is off: nats in the mean, and the largest relative difference of a gradient."""
        nats = (self.log_probs - other.log_probs).abs().mean()
        largest = max((float(gradient.norm()) for gradient in self.gradients.values()), default=0.0)
        relative = [
            float((other.gradients[name] - gradient).norm()) / max(float(gradient.norm()), 1e-4 * largest, 1e-30)
            for name, gradient in self.gradients.items()
        ]
        worst = max(relative, default=0.0)
        return float(nats), worst if all(one == one for one in relative) else float("inf")


def compared_tensors(trained: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Returns a few of the trained tensors, spread over the network.

    Left out where others remain: biases, whose gradient may be 0 but for rounding (those of keys), the first factors of
    adapters, whose gradient is 0 at the start, and large tensors.
    """
    names = list(trained)
    for is_left_out in (
        lambda name: name.endswith("bias"),
        lambda name: "lora_A" in name,
        lambda name: trained[name].numel() > LARGEST,
    ):
        names = [name for name in names if not is_left_out(name)] or names
    count = min(COMPARED, len(names))
    places = {round(number * (len(names) - 1) / max(1, count - 1)) for number in range(count)}
    return {names[place]: trained[names[place]] for place in sorted(places)}


@contextmanager
def rounded_embeddings(model: Any, precision: torch.dtype) -> Iterator[None]:
    """Makes every number of the embeddings off by one rounding."""
    size = torch.finfo(precision).eps

    def nudge(_module: Any, _given: Any, embedded: Tensor) -> Tensor:
        signs = 1 - 2 * (torch.arange(embedded.shape[-1], device=embedded.device) % 2)
        return embedded * (1 + size * signs).to(embedded.dtype)

    handle = model.get_input_embeddings().register_forward_hook(nudge)
    try:
        yield
    finally:
        handle.remove()
