"""A policy of a few logits: what the core must serve without knowing a modality."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

import torch
from torch import Tensor, nn

from mmrl.core.contracts import LossBatch, LossTerms, OutputsByWeights, Placement, Scope
from mmrl.core.data import DecisionBlock, Outputs, Prompt, Rollout, WeightsName
from mmrl.core.forward_outputs import TokenDecisions
from mmrl.core.keys import GroupKey, generator
from mmrl.core.numerics import group_sum, normalised_weights
from mmrl.core.views import DecisionView, View
from mmrl.core.weights import Weights
from mmrl.losses.base.decisions import DecisionLoss

VOCABULARY, LENGTH = 5, 4


@dataclass(frozen=True)
class TokenTrace:
    tokens: Tensor  # [B, K], -1 behind the end
    log_prob: Tensor  # [B, K] when they were drawn

    @classmethod
    def join(cls, parts: Sequence[Self]) -> Self:
        return cls(torch.cat([p.tokens for p in parts]), torch.cat([p.log_prob for p in parts]))


class ToyTokens:
    """Answers of 1 to 4 tokens, each from its own logits; one network call per answer."""

    forward_kinds: ClassVar[frozenset[str]] = frozenset({"decisions"})
    sample_kind: ClassVar[Literal["latents", "tokens", "turns"]] = "tokens"
    makes: ClassVar[frozenset[str]] = frozenset({"texts"})

    def __init__(self) -> None:
        self.network = nn.Linear(LENGTH, VOCABULARY)
        with torch.no_grad():
            weight = torch.linspace(-1, 1, LENGTH * VOCABULARY).view(VOCABULARY, LENGTH)
            self.network.weight.copy_(weight.roll(3))
            self.network.bias.zero_()
        self.weights = Weights({f"network.{name}": p for name, p in self.network.named_parameters()})
        self.num_calls = 0

    def prepare(self, placement: Placement) -> None: ...
    def tiny(self, seed: int, folder: Path) -> Self:
        return self

    def modules(self) -> Mapping[str, nn.Module]:
        return {"network": self.network}

    def _log_probs(self) -> Tensor:
        logits: Tensor = self.network(torch.eye(LENGTH))
        return logits.log_softmax(1)  # [K, V]

    @torch.no_grad()
    def rollout(self, prompts: Sequence[Prompt], plans: Sequence[int], keys: Sequence[GroupKey]) -> Rollout:
        rows, which = [], []
        for number, (size, key) in enumerate(zip(plans, keys, strict=True)):
            source = generator(key.seed_for("tokens"))
            drawn = torch.multinomial(self._log_probs().exp(), size, replacement=True, generator=source).T  # [G, K]
            ends = torch.randint(1, LENGTH + 1, (size,), generator=source)
            rows.append(torch.where(torch.arange(LENGTH) < ends[:, None], drawn, -1))
            which += [number] * size
        tokens = torch.cat(rows)
        self.num_calls += len(tokens)
        return self._assembled(prompts, keys, tokens, torch.tensor(which))

    def _assembled(
        self, prompts: Sequence[Prompt], keys: Sequence[GroupKey], tokens: Tensor, prompt: Tensor
    ) -> Rollout:
        is_there, count = tokens >= 0, torch.arange(len(tokens))
        return Rollout(
            prompts=tuple(prompts),
            keys=tuple(keys),
            prompt=prompt,
            group=torch.tensor([key.prompt_index for key in keys])[prompt],
            episode=count,
            turn=torch.zeros_like(count),
            outputs=Outputs(texts=tuple(" ".join(map(str, row[row >= 0].tolist())) for row in tokens)),
            blocks=(
                DecisionBlock(
                    call=torch.where(is_there, count[:, None], -1),
                    edge=torch.where(is_there, torch.arange(tokens.numel()).view_as(tokens), -1),
                    weight=is_there.float(),
                ),
            ),
            trace=TokenTrace(tokens, self._taken(tokens, count).detach()),
            num_calls=len(tokens),
        )

    def _taken(self, tokens: Tensor, rows: Tensor) -> Tensor:
        taken = self._log_probs()[torch.arange(LENGTH), tokens.clamp(min=0)]  # [B, K]
        inside = torch.isin(torch.arange(len(tokens)), rows)[:, None] & (tokens >= 0)
        return torch.where(inside, taken, torch.zeros(()))

    def forward(self, rollout: Rollout, view: View) -> TokenDecisions:
        assert isinstance(view, DecisionView)
        self.num_calls += len(view.calls)
        return TokenDecisions(self._taken(rollout.trace.tokens, view.calls))

    def recorded(self, rollout: Rollout, view: View) -> TokenDecisions:
        return TokenDecisions(rollout.trace.log_prob * (view.weight(rollout) > 0))

    def recompute(self, rollout: Rollout, size: int) -> Rollout:
        fresh = self._taken(rollout.trace.tokens, torch.arange(rollout.num_samples)).detach()
        return replace(rollout, trace=replace(rollout.trace, log_prob=fresh))

    def taken(self, rollout: Rollout, row: int) -> dict[str, Tensor]:
        return {"tokens": rollout.trace.tokens[row], "log_prob": rollout.trace.log_prob[row]}

    def replayed(
        self, prompts: Sequence[Prompt], samples: Sequence[Mapping[str, Tensor]], keys: Sequence[GroupKey], plan: int
    ) -> Rollout:
        tokens = torch.stack([one["tokens"] for one in samples])
        drawn = self._assembled(prompts, keys, tokens, torch.arange(len(samples)))
        trace = TokenTrace(tokens, torch.stack([one["log_prob"] for one in samples]))
        return replace(drawn, trace=trace, num_calls=0)

    def offline(self, prompts: Sequence[Prompt], outputs: Outputs, keys: Sequence[GroupKey]) -> Rollout:
        raise AssertionError("not part of these tests")

    def export(self, folder: Path) -> None:
        raise AssertionError("not part of these tests")


@dataclass(frozen=True)
class SequenceRatio(DecisionLoss):
    """A loss whose ratio is that of the whole answer (as GSPO's): its scope is a path."""

    scope: ClassVar[Scope] = "path"

    @property
    def needs(self) -> frozenset[WeightsName]:
        return frozenset({"old"})

    def measure(self, evaluations: OutputsByWeights) -> tuple[Tensor, ...]:
        return (evaluations.trained.log_ratio(evaluations.old),)

    def __call__(self, measures: tuple[Tensor, ...], batch: LossBatch) -> LossTerms:
        length = batch.weight.sum(1, keepdim=True).clamp(min=1)
        ratio = (measures[0].sum(1, keepdim=True) / length).exp()  # [B, 1]
        terms = torch.maximum(-batch.advantages * ratio, -batch.advantages * ratio.clamp(0.9, 1.1))
        return LossTerms(terms, {"ratio": ratio.detach().expand_as(terms)})


@dataclass(frozen=True)
class AnswerRatio(SequenceRatio):
    """The same with the ratio of the whole answer measured as one number: [B, 1], not [B, K]."""

    def measure(self, evaluations: OutputsByWeights) -> tuple[Tensor, ...]:
        return (evaluations.trained.log_ratio(evaluations.old).sum(1, keepdim=True),)


@dataclass(frozen=True)
class GroupPreference(DecisionLoss):
    """-log sigmoid of the advantage-weighted sum of log-probs over a whole group (as DGPO's): its scope is a group."""

    scope: ClassVar[Scope] = "group"

    def measure(self, evaluations: OutputsByWeights) -> tuple[Tensor, ...]:
        return (evaluations.trained.log_prob(),)

    def __call__(self, measures: tuple[Tensor, ...], batch: LossBatch) -> LossTerms:
        per_sample = (batch.advantages * measures[0] * (batch.weight > 0)).sum(1)
        whole = group_sum(per_sample, batch.group)
        return LossTerms(-torch.nn.functional.logsigmoid(whole)[:, None].expand_as(batch.weight), {})

    def coefficients(self, batch: LossBatch) -> tuple[Tensor, Tensor]:
        return normalised_weights(batch.weight, batch.group, "group")


def toy_rollout(num_groups: int = 3, group_size: int = 4) -> tuple[ToyTokens, Rollout]:
    policy = ToyTokens()
    keys = [GroupKey(0, 0, n) for n in range(num_groups)]
    return policy, policy.rollout([Prompt("?")] * num_groups, [group_size] * num_groups, keys)


def loss_batch(rollout: Rollout, **changes: Any) -> LossBatch:
    advantages = torch.linspace(-1.5, 1.2, rollout.num_samples)[:, None]
    batch = LossBatch(advantages, torch.ones_like(advantages), rollout.group, advantages[:, 0])
    return replace(batch, **changes)
