"""What all flow families share: sampling by plan, evaluation of decisions and of denoising, decoding in chunks.

Maths: docs/maths/flow-matching.md#noise-levels-and-velocities
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from mmrl.core.contracts import ConfigError, DifferentiableScore, Placement
from mmrl.core.data import DecisionBlock, Outputs, Prompt, Rollout
from mmrl.core.forward_outputs import Denoising, ForwardOutputs
from mmrl.core.keys import GroupKey, normal
from mmrl.core.numerics import Reduction
from mmrl.core.views import DecisionView, DenoisingView, OutputsView, View
from mmrl.core.weights import Weights
from mmrl.plans.flow import Plan

from .decisions import Conditioning, Decided, linear_mean
from .recorder import FACTS, Records
from .reward_gradients import differentiated, rendered
from .steering import judge_of
from .trace import FlowTrace
from .trajectory import Recorder
from .tree_sampling import Tree, sample_trees

LATENT_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(kw_only=True)
class FlowPolicy(ABC):
    """A flow-matching generator of images as a policy; a family supplies encoding, velocity and decoding.

    Latents live as x = (1 - sigma) * clean + sigma * noise; the network predicts the velocity noise - clean.

    `reduction` is the unit of log-probabilities (the papers' clip ranges are for `mean`); `network_batch` and
    `decode_batch` bound the samples of one network call and of one decoding during rollout; `latent_dtype` is how
    latents are stored between steps; `prompt_cache` is how many encoded prompts are kept. `recompute_activations`: a
    gradient through the sampler keeps the latents of its steps alone, and computes what is inside of each again.
    """

    forward_kinds: ClassVar[frozenset[str]] = frozenset({"decisions", "denoising", "outputs"})
    sample_kind: ClassVar[Literal["latents", "tokens", "turns"]] = "latents"
    makes: ClassVar[frozenset[str]] = frozenset({"images"})
    facts: ClassVar[frozenset[str]] = frozenset(FACTS)

    negative_prompt: str = ""
    reduction: Reduction = "mean"
    network_batch: int = 256
    decode_batch: int = 64
    latent_dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    prompt_cache: int = 4096
    recompute_activations: bool = True
    records_trajectories: bool = field(default=False, init=False, repr=False)
    num_calls: int = field(default=0, init=False, repr=False)  # network evaluations so far, in batch elements
    _placement: Placement | None = field(default=None, init=False, repr=False)
    _encoded: dict[str, Conditioning] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        for name in ("network_batch", "decode_batch", "prompt_cache"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")

    # What a family supplies.

    @property
    @abstractmethod
    def latent_shape(self) -> tuple[int, ...]:
        """Shape of the latent of one sample."""

    @property
    @abstractmethod
    def device(self) -> torch.device: ...

    @property
    @abstractmethod
    def weights(self) -> Weights: ...

    @abstractmethod
    def modules(self) -> Mapping[str, nn.Module]: ...

    @abstractmethod
    def sigmas(self, kind: Literal["pipeline", "uniform"], num_steps: int) -> list[float]:
        """The num_steps + 1 noise levels of the stock pipeline, or of the uniform grid under the family's shift."""

    @abstractmethod
    def velocity(self, latents: Tensor, sigma: Tensor, conditioning: Conditioning) -> Tensor:
        """The network: latents [n, ...], sigma [n], conditioning of n -> velocity [n, ...] in float32."""

    @abstractmethod
    def encode_prompts(self, texts: list[str]) -> Conditioning:
        """Text encoders, one row per text."""

    @abstractmethod
    def decode_latents(self, latents: Tensor) -> Tensor:
        """Clean latents [n, ...] -> images [n, 3, H, W] in [0, 1], float32."""

    @abstractmethod
    def encode_images(self, images: Tensor) -> Tensor:
        """Images [n, 3, H, W] in [0, 1] -> clean latents [n, ...] (the mean of the posterior)."""

    # What a family changes whose latents or levels are not a flow's own.

    def initial(self, noise: Tensor, sigma: Tensor) -> Tensor:
        """The first latents [n, ...], at the plans' first levels sigma [n], of standard normal noise [n, ...]."""
        return noise

    def final(self, latents: Tensor, sigma: Tensor) -> Tensor:
        """What is decoded of the last latents [n, ...], at the plans' last levels sigma [n]; a flow's are clean."""
        return latents

    def known(self, sigma: Tensor) -> Tensor:
        """The noise levels nearest to sigma [n] at which the network was trained; a flow was at all."""
        return sigma

    def negative(self) -> Conditioning:
        """What guidance leads away from, one row."""
        return self.conditioning([self.negative_prompt])

    # What every family has from here.

    def conditioning(self, texts: Sequence[str]) -> Conditioning:
        """One row per text; each distinct text is encoded once and kept while the cache has room."""
        missing = [text for text in dict.fromkeys(texts) if text not in self._encoded]
        if missing:
            with torch.no_grad():
                encoded = self.encode_prompts(missing)
            fresh = {text: encoded[torch.tensor([n])] for n, text in enumerate(missing)}
            kept = {text: self._encoded[text] for text in texts if text in self._encoded}
            if len(self._encoded) + len(fresh) > self.prompt_cache:
                self._encoded.clear()
            self._encoded.update(kept | fresh)
        return Conditioning.join([self._encoded[text] for text in texts])

    @torch.no_grad()
    def rollout(self, prompts: Sequence[Prompt], plans: Sequence[Plan], keys: Sequence[GroupKey]) -> Rollout:
        """Draws one group of images per prompt by its plan (see `_growth.sample_trees`)."""
        scales = {plan.guidance_scale for plan in plans}
        assert len(scales) == 1, f"the plans of one rollout must share one guidance scale, got {sorted(scales)}"
        scale, before = scales.pop(), self.num_calls
        conditioning = self.conditioning([prompt.text for prompt in prompts])
        like = torch.empty(0, dtype=LATENT_DTYPES[self.latent_dtype], device=self.device)

        def velocity(latents: Tensor, sigma: Tensor, prompt: Tensor) -> Tensor:
            parts = torch.arange(len(latents), device=self.device).split(self.network_batch)
            self._dummy_forwards(self._maximum(len(parts)) - len(parts))
            return torch.cat([self._guided(latents[r], sigma[r], conditioning[prompt[r]], scale) for r in parts])

        keeps = self.records_trajectories and all(plan.is_plain for plan in plans)
        records = Records(self.reduction, Recorder() if keeps else None)
        judge = judge_of(self, prompts, keys) if any(plan.choices for plan in plans) else None
        tree = sample_trees(
            plans, keys, velocity, self.latent_shape, like, initial=self.initial, records=records, judge=judge
        )
        clean = self.final(tree.clean, tree.sigma.to(self.device))
        images = torch.cat([self.decode_latents(part) for part in clean.split(self.decode_batch)])
        trace = FlowTrace(conditioning, scale, tree.decided, clean, tree.trajectory)
        rollout = self._rollout(prompts, keys, images, tree, trace, self.num_calls - before)
        return replace(rollout, levels=tuple(dict.fromkeys(plans[0].paths[0].levels)))

    @torch.no_grad()
    def dummy_rollout(self, plan: Plan) -> None:
        """Takes part in the network calls of other processes' rollouts."""
        for _ in range(plan.num_tree_steps):
            self._dummy_forwards(self._maximum(0))

    def dummy_forward(self) -> Tensor:
        """Takes part in the network call of one `forward` of other processes; 0, with a graph to all weights."""
        latents = torch.zeros(1, *self.latent_shape, device=self.device)
        return 0 * self.velocity(latents, latents.new_full((1,), 0.5), self.conditioning([""])).sum()

    def networks(self) -> Sequence[nn.Module]:
        return list(self.modules().values())

    def _dummy_forwards(self, count: int) -> None:
        for _ in range(count):
            self.dummy_forward()

    def _maximum(self, count: int) -> int:
        """The largest count of all processes where weights are sharded, since a network call is then one of all."""
        maximum = None if self._placement is None else self._placement.maximum
        return count if maximum is None else maximum(count)

    @torch.no_grad()
    def offline(self, prompts: Sequence[Prompt], outputs: Outputs, keys: Sequence[GroupKey]) -> Rollout:
        """Supplied images [P, 3, H, W], one per prompt, as a rollout without decisions."""
        if outputs.images is None or len(outputs.images) != len(prompts):
            got = "none" if outputs.images is None else str(len(outputs.images))
            raise ValueError(f"{len(prompts)} prompts need as many images, got {got}")
        images = outputs.images.to(self.device)
        clean = torch.cat([self.encode_images(part) for part in images.split(self.decode_batch)])
        clean = clean.to(LATENT_DTYPES[self.latent_dtype])
        prompt_indices, each = torch.tensor([key.prompt_index for key in keys]), torch.arange(len(prompts))
        tree = Tree(
            Decided.none(clean), clean, torch.zeros(len(each)), each, prompt_indices, DecisionBlock.none(len(each))
        )
        trace = FlowTrace(self.conditioning([prompt.text for prompt in prompts]), 1.0, tree.decided, clean)
        return self._rollout(prompts, keys, images, tree, trace, 0)

    def forward(self, rollout: Rollout, view: View) -> ForwardOutputs:
        """Decisions or denoising under the weights now in place."""
        if isinstance(view, DenoisingView):
            return self._denoise(rollout, view)
        if isinstance(view, OutputsView):
            return rendered(self, rollout, view)
        if not isinstance(view, DecisionView):
            raise ConfigError(
                f"a flow policy evaluates {', '.join(sorted(self.forward_kinds))}, not a {type(view).__name__}"
            )
        trace: FlowTrace = rollout.trace
        calls = view.calls.to(self.device)
        mean = self._mean(trace, calls)
        found = trace.decided.forward_outputs(rollout.blocks[view.block], calls, mean, self.reduction)
        if trace.gradient is None:
            return found
        return replace(found, gradient=trace.gradient[torch.isin(trace.decided.call, calls)])

    def differentiate(self, rollout: Rollout, rows: Tensor, score: DifferentiableScore, size: int) -> Rollout:
        """The rollout with the gradient of scores at every drawn latent of the samples `rows`, carried back under the
        weights now in place, `size` network calls at a time; decisions then tell it."""
        return differentiated(self, rollout, rows, score, size)

    def recorded(self, rollout: Rollout, view: View) -> ForwardOutputs:
        """The decisions as the weights that drew them saw them."""
        assert isinstance(view, DecisionView), "only decisions are recorded"
        decided: Decided = rollout.trace.decided
        calls = view.calls.to(self.device)
        return decided.forward_outputs(rollout.blocks[view.block], calls, decided.mean[calls], self.reduction)

    @torch.no_grad()
    def recompute(self, rollout: Rollout, size: int) -> Rollout:
        """The rollout with the means of its decisions computed again by the weights now in place."""
        trace: FlowTrace = rollout.trace
        calls = torch.arange(len(trace.decided.state), device=self.device)
        parts = calls.split(size) if len(calls) else ()
        self._dummy_forwards(self._maximum(len(parts)) - len(parts))
        means = [self._mean(trace, part) for part in parts]
        decided = replace(trace.decided, mean=torch.cat(means)) if means else trace.decided
        return replace(rollout, trace=replace(trace, decided=decided))

    def _mean(self, trace: FlowTrace, calls: Tensor) -> Tensor:
        """Mean of the next latents [n, ...] at the recorded states `calls` [n]."""
        decided = trace.decided
        state, conditioning = decided.state[calls], trace.conditioning[decided.prompt[calls]]
        velocity = self._guided(state, decided.sigma[calls], conditioning, trace.guidance_scale)
        return linear_mean(decided.transition[calls], state, velocity)

    def _guided(self, latents: Tensor, sigma: Tensor, conditioning: Conditioning, scale: float) -> Tensor:
        self.num_calls += len(latents) * (1 if scale == 1 else 2)
        return self.guided(latents, sigma, conditioning, scale)

    def guided(self, latents: Tensor, sigma: Tensor, conditioning: Conditioning, scale: float) -> Tensor:
        """Velocity under guidance, in one batched call (Ho & Salimans 2022, arXiv 2207.12598, eq. 6)."""
        if scale == 1:
            return self.velocity(latents, sigma, conditioning)
        negative = self.negative()[torch.zeros(len(latents), dtype=torch.int64)]
        both = self.velocity(latents.repeat(2, *[1] * (latents.dim() - 1)), sigma.repeat(2),
                             Conditioning.join([negative, conditioning]))  # fmt: skip
        without, guided = both.chunk(2)
        return without + scale * (guided - without)

    def _denoise(self, rollout: Rollout, view: DenoisingView) -> Denoising:
        trace: FlowTrace = rollout.trace
        clean = trace.clean[view.sample.to(self.device)].float()
        drawn = {seed: normal(seed, self.latent_shape) for seed in dict.fromkeys(view.noise_seed)}
        noise = torch.stack([drawn[seed] for seed in view.noise_seed]).to(self.device)
        sigma = self.known(view.sigma.to(self.device))
        level = sigma.view(-1, *[1] * (clean.dim() - 1))
        noisy = (1 - level) * clean + level * noise
        rows = rollout.prompt[view.sample].to(self.device)
        self.num_calls += len(noisy)
        prediction = self.velocity(noisy, sigma, trace.conditioning[rows])
        entry = torch.full((rollout.num_samples, view.num_noise_samples), -1)
        entry[view.sample, view.noise_sample] = torch.arange(view.num_calls)
        return Denoising(prediction, noise - clean, noisy, sigma, entry.to(self.device))

    def _rollout(
        self,
        prompts: Sequence[Prompt],
        keys: Sequence[GroupKey],
        images: Tensor,
        tree: Tree,
        trace: FlowTrace,
        num_calls: int,
    ) -> Rollout:
        return Rollout(
            prompts=tuple(prompts),
            keys=tuple(keys),
            prompt=tree.prompt,
            group=tree.group,
            episode=torch.arange(len(tree.group)),
            turn=torch.zeros(len(tree.group), dtype=torch.int64),
            outputs=Outputs(images=images),
            blocks=(tree.block,),
            trace=trace,
            num_calls=num_calls,
        )
