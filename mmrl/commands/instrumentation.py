"""Instrumented plug-ins, which record what their calls return: the observations of a dry run."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from mmrl.assembly.compatibility import Parts
from mmrl.core.contracts import RewardBatch
from mmrl.scoring.calls import last_decisions


@dataclass
class Instrumented:
    """A stand-in for a plug-in, under the name of its class, that records what its methods return."""

    plugin: Any
    results: dict[str, list[Any]] = field(default_factory=dict)

    @classmethod
    def on(cls, plugin: Any) -> Any:
        """Returns an instrumented plug-in; messages name the class of the plug-in itself.

        Its class has a property for each attribute of the plug-in: from Python 3.12 on, `isinstance` with a protocol
        looks at the class and does not call `__getattr__`.
        """
        own = {*dir(cls), *cls.__dataclass_fields__}
        handed_on = {name: _handed_on(name) for name in dir(plugin) if not name.startswith("_") and name not in own}
        return type(type(plugin).__name__, (cls,), handed_on)(plugin)

    def __getattr__(self, name: str) -> Any:
        value = getattr(self.plugin, name)
        return (
            self._kept(name, value) if callable(value) and name in ("plan", "views", "score", "update_mask") else value
        )

    def __call__(self, *arguments: Any) -> Any:
        return self._kept("call", self.plugin)(*arguments)

    def _kept(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def called(*arguments: Any) -> Any:
            result = function(*arguments)
            self.results.setdefault(name, []).append(result)
            return result

        return called


def _handed_on(name: str) -> property:
    return property(lambda one: one.__getattr__(name))


@dataclass
class JitteredReward(Instrumented):
    """A reward whose scores differ a little by sample, so that groups have a spread and weights move.

    Most scores of samples of random twins are alike. A dense reward differs at the last decision of a sample.
    """

    size: float = 0.1

    @property
    def range(self) -> tuple[float, float]:
        low, high = self.plugin.range
        return low, high + self.size

    def score(self, batch: RewardBatch) -> torch.Tensor:
        return self._jittered(self._kept("score", self.plugin.score)(batch), batch)

    def score_with_examples(self, batch: RewardBatch) -> tuple[torch.Tensor, torch.Tensor]:
        """Scores as `score` does; of a plug-in that is `Fitted`, which has a `fit` too."""
        scores, examples = self.plugin.score_with_examples(batch)
        self.results.setdefault("score", []).append(scores)
        return self._jittered(scores, batch), examples

    def _jittered(self, scores: torch.Tensor, batch: RewardBatch) -> torch.Tensor:
        noise = torch.tensor([seed % 1000 / 1000 for seed in batch.seeds], device=scores.device)
        if scores.dim() == 1:
            return scores + self.size * noise
        return scores + self.size * noise[:, None] * last_decisions(batch.is_decision.to(scores.device))


def instrument(parts: Parts) -> tuple[Parts, dict[str, Instrumented]]:
    """Returns the parts with instrumented plug-ins, and these plug-ins by their names in a config."""
    sampler, advantage, loss = (
        Instrumented.on(parts.sampler),
        Instrumented.on(parts.advantage),
        Instrumented.on(parts.loss),
    )
    terms = tuple(replace(term, reward=JitteredReward.on(term.reward)) for term in parts.scorer.terms)
    instrumented = {"sampler": sampler, "advantage": advantage, "loss": loss}
    instrumented |= {f"reward {term.name}": term.reward for term in terms}
    evaluation = parts.evaluation
    if evaluation is not None:
        evaluation = replace(evaluation, sampler=Instrumented.on(evaluation.sampler))
        instrumented["evaluation.sampler"] = evaluation.sampler
    scorer = replace(parts.scorer, terms=terms)
    return replace(
        parts, sampler=sampler, advantage=advantage, loss=loss, scorer=scorer, evaluation=evaluation
    ), instrumented
