"""What a full mmrl iteration costs above its own network calls, text encoding, decoding, scoring and optimizer steps.

    python benchmarks/overhead.py --pairs 20

mmrl's iteration (collect, score, advantages, updates, averages, one JSON line) and the bare calls at the same batch
shapes take turns in one process, each on weights of its own. Bar: the median ratio is at most 1.10.
"""

import copy
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from _common import Clock, Seconds, argument_parser, emit, in_turns, median_ratio, median_seconds, trainer_of
from torch import Tensor, nn

from mmrl.core.keys import GroupKey
from mmrl.labs.shapes.world import verify
from mmrl.prompts.stream import PromptStream
from mmrl.reporting.metrics_log import MetricsLog
from mmrl.training.trainer import Trainer


@dataclass(frozen=True)
class Shapes:
    """The batch shapes of one iteration."""

    fresh: list[str]  # prompts whose text was not encoded before
    prompts: list[str]  # one for each sample
    rollout_calls: list[int]  # batch elements of each network call while sampling
    update_calls: list[int]  # and of each micro-batch of one optimizer step


@dataclass
class Bare:
    """The same work without mmrl: plain calls of the pipeline's parts, an optimizer, an average of the weights."""

    trainer: Trainer
    pipeline: Any = field(init=False)
    transformer: Any = field(init=False)
    trained: list[nn.Parameter] = field(init=False)
    average: list[Tensor] = field(init=False)
    optimizer: torch.optim.Optimizer = field(init=False)
    iteration: int = 0

    def __post_init__(self) -> None:
        trainer = self.trainer
        self.pipeline = trainer.policy._pipeline  # type: ignore[attr-defined]  # the parts themselves
        self.transformer = copy.deepcopy(self.pipeline.transformer)
        self.trained = [parameter for parameter in self.transformer.parameters() if parameter.requires_grad]
        self.average = [parameter.detach().clone() for parameter in self.trained]
        settings = trainer.config.optimizer
        self.optimizer = torch.optim.AdamW(self.trained, lr=settings.learning_rate, betas=settings.betas)
        config, sets = trainer.config, trainer.collector.prompts
        self._stream = PromptStream(sets.sets, sets.weights, config.seed)
        self._encoded: set[str] = set()
        self._states, self._pooled = self._encode(["red circle top left"])

    def __call__(self) -> Seconds:
        shapes, config = self._next_shapes(), self.trainer.config
        clock = Clock()
        if shapes.fresh:
            self._encode(shapes.fresh)
        with torch.no_grad():
            for count in shapes.rollout_calls:
                self._network(count)
            images = [self._decode(part) for part in torch.randn(len(shapes.prompts), 4, 4, 4).split(64)]
        verify(torch.cat(images), shapes.prompts)
        for _ in range(config.updates.epochs * config.updates.minibatches):
            for count in shapes.update_calls:
                if config.loss["name"] == "nft":
                    with torch.no_grad():
                        self._network(count)  # the old weights
                self._network(count).sum().backward()
            nn.utils.clip_grad_norm_(self.trained, 1.0)
            self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=True)
            if config.averaging is not None:
                torch._foreach_lerp_(self.average, [parameter.data for parameter in self.trained], 0.5)
        if config.loss["name"] == "nft":
            torch._foreach_lerp_(self.average, [parameter.data for parameter in self.trained], 0.5)
        return {"iteration": clock()}

    def _next_shapes(self) -> Shapes:
        """Those of mmrl's iteration of the same number."""
        trainer, config = self.trainer, self.trainer.config
        draws = self._stream.take(config.prompts_per_iteration)
        keys = [GroupKey(config.seed, self.iteration, number) for number, _ in draws]
        self.iteration += 1
        plans = [trainer.collector.sampler.plan(trainer.policy, key, config.group_size) for key in keys]
        texts = [prompt.text for _, prompt in draws]
        fresh = [text for text in dict.fromkeys(texts) if text not in self._encoded]
        self._encoded.update(fresh)
        decisions = sum(plan.num_update_calls for plan in plans)
        per_step = len(draws) * config.group_size * config.loss["draws"] if "draws" in config.loss else decisions
        size = config.updates.calls_at_once
        return Shapes(
            fresh=fresh,
            prompts=[text for text in texts for _ in range(config.group_size)],
            rollout_calls=[sum(nodes) for nodes in zip(*(plan.num_nodes() for plan in plans), strict=True)],
            update_calls=[min(size, per_step - start) for start in range(0, per_step, size)],
        )

    @torch.no_grad()
    def _encode(self, texts: list[str]) -> tuple[Tensor, Tensor]:
        length = self.trainer.config.modality["max_sequence_length"]
        states, _, pooled, _ = self.pipeline.encode_prompt(
            texts, None, None, device="cpu", do_classifier_free_guidance=False, max_sequence_length=length
        )
        return states, pooled

    def _network(self, count: int) -> Tensor:
        return self.transformer(  # type: ignore[no-any-return]
            hidden_states=torch.zeros(count, 4, 4, 4),
            timestep=torch.full((count,), 500.0),
            encoder_hidden_states=self._states.repeat(count, 1, 1),
            pooled_projections=self._pooled.repeat(count, 1),
            return_dict=False,
        )[0]

    def _decode(self, latents: Tensor) -> Tensor:
        return self.pipeline.vae.decode(latents, return_dict=False)[0].clamp(0, 1)  # type: ignore[no-any-return]


@dataclass
class Full:
    """mmrl's own iteration, with its line in metrics.jsonl."""

    trainer: Trainer
    log: MetricsLog

    def __call__(self) -> Seconds:
        clock, progress = Clock(), self.trainer.progress
        metrics = self.trainer._iterate(progress.iteration)
        progress.iteration += 1
        self.log.write(progress.iteration, metrics)
        return {"iteration": clock()}


def main() -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("--pairs", type=int, default=20)
    parser.add_argument("--configs", nargs="+", default=["quickstart", "quickstart_policy_gradient"])
    options = parser.parse_args()
    for config in options.configs:
        with tempfile.TemporaryDirectory() as folder:
            trainer = trainer_of(config, [f"threads={options.threads}"], Path(folder))
            full = Full(trainer, MetricsLog(Path(folder) / "metrics.jsonl"))
            pairs = in_turns(full, Bare(trainer), options.pairs)
        emit(
            "overhead",
            config=config,
            pairs=options.pairs,
            ratio=round(median_ratio(pairs, "iteration"), 4),
            bar=1.10,
            seconds_mmrl=median_seconds([first for first, _ in pairs]),
            seconds_bare=median_seconds([second for _, second in pairs]),
        )


if __name__ == "__main__":
    main()
