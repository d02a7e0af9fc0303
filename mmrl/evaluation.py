"""Held-out evaluation: fixed prompts, fixed noise, a sampler of its own."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from mmrl.contracts import Modality, RunError, Sampler
from mmrl.data import Prompt, Rollout, Scores, WeightsName
from mmrl.engine import Engine
from mmrl.keys import GroupKey
from mmrl.scoring import Scorer


@dataclass(frozen=True)
class SavedSample:
    """One sample for a person to look at."""

    prompt: str
    seed: int
    scores: dict[str, float]
    image: torch.Tensor | None = None  # [3, H, W] in [0, 1]
    text: str | None = None


@dataclass(frozen=True)
class Result:
    """What one evaluation found; the same on all processes but for the samples, which the main one holds."""

    score: float  # mean total over all samples that could be judged
    metrics: dict[str, float]
    samples: list[SavedSample]


@dataclass(frozen=True)
class Evaluator:
    """Draws `samples_per_prompt` samples for each prompt, always with the same noise, and scores them."""

    policy: Modality
    sampler: Sampler
    scorer: Scorer
    engine: Engine
    prompts: tuple[Prompt, ...]
    weights: WeightsName
    samples_per_prompt: int
    seed: int
    chunk: int  # prompts sampled at once
    saved_samples: int = 0

    def __call__(self) -> Result:
        """Evaluates the policy under `weights`; every process must call it."""
        numbered = [(GroupKey(self.seed, 0, n), prompt) for n, prompt in enumerate(self.prompts)]
        mine = self.engine.share(numbered)
        parts: list[Scores] = []
        samples: list[SavedSample] = []
        with self.policy.weights(self.weights):
            for start in range(0, len(mine), self.chunk):
                keys, prompts = zip(*mine[start : start + self.chunk], strict=True)
                plans = [self.sampler.plan(self.policy, key, self.samples_per_prompt) for key in keys]
                rollout = self.policy.rollout(prompts, plans, keys)
                judgement = self.scorer.judge(rollout, 0)
                parts.append(judgement.scores)
                samples += self._first_of_each(rollout, judgement.scores, self.saved_samples - len(samples))
        return self._result(Scores.join(self.engine.gather(parts)), samples)

    def _result(self, scores: Scores, samples: list[SavedSample]) -> Result:
        self.scorer.check(scores)
        if not scores.valid.any():
            raise RunError("held-out evaluation: not one sample could be judged")
        order = scores.group.argsort(stable=True)  # sums must not depend on how prompts fell on processes
        scores = scores.select(order)
        score = float(scores.total[scores.valid].double().mean())
        metrics = {"held_out/score": score, "held_out/failed": float((~scores.valid).sum())}
        for name, column in zip(scores.names, scores.values.unbind(1), strict=True):
            judged = column[~column.isnan()]
            metrics[f"held_out/{name}/mean"] = float(judged.double().mean())
            metrics[f"held_out/{name}/std"] = float(judged.double().std(correction=0))
        return Result(score, metrics, samples)

    def _first_of_each(self, rollout: Rollout, scores: Scores, count: int) -> list[SavedSample]:
        """The first sample of each of the first `count` prompts of a rollout."""
        saved = []
        for number in range(min(count, len(rollout.prompts)) if self.engine.is_main else 0):
            row = int((rollout.prompt == number).nonzero()[0])
            values = dict(zip(scores.names, scores.values[row].tolist(), strict=True))
            outputs = rollout.outputs
            saved.append(
                SavedSample(
                    prompt=rollout.prompts[number].text,
                    seed=rollout.keys[number].draw,
                    scores=values,
                    image=None if outputs.images is None else outputs.images[row].cpu(),
                    text=None if outputs.texts is None else outputs.texts[row],
                )
            )
        return saved


def save_samples(samples: Sequence[SavedSample], folder: Path) -> None:
    """Writes pictures and `samples.json` for the report."""
    from PIL import Image

    folder.mkdir(parents=True, exist_ok=True)
    listed: list[dict[str, Any]] = []
    for number, sample in enumerate(samples):
        scores = {name: value for name, value in sample.scores.items() if value == value}  # NaN: could not be judged
        entry: dict[str, Any] = {"prompt": sample.prompt, "seed": sample.seed, "scores": scores}
        if sample.image is not None:
            entry["file"] = f"{number:03d}.png"
            pixels = (sample.image * 255).round().to(torch.uint8).permute(1, 2, 0).numpy()
            Image.fromarray(pixels).save(folder / entry["file"])
        if sample.text is not None:
            entry["text"] = sample.text
        listed.append(entry)
    kind = "image" if samples and samples[0].image is not None else "text"
    (folder / "samples.json").write_text(json.dumps({"kind": kind, "samples": listed}, indent=1), encoding="utf-8")
