"""The base class of flow modalities: sampling by plan, forward outputs of decisions and denoising, decoding.

Maths: docs/maths/flow-matching.md#noise-levels-and-velocities
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from mmrl.core.checked import Checked
from mmrl.core.contracts import ConfigError, DifferentiableScore, Placement
from mmrl.core.data import DecisionBlock, Outputs, Prompt, Rollout
from mmrl.core.declarations import PolicyDeclaration
from mmrl.core.forward_outputs import Denoising, ForwardOutputs
from mmrl.core.keys import GroupKey, normal
from mmrl.core.numerics import Reduction
from mmrl.core.views import DecisionView, DenoisingView, OutputsView, View
from mmrl.core.weights import Weights
from mmrl.plans.flow import Plan
from mmrl.plans.offline import best_given

from .decisions import Conditioning, FlowDecisions, column, linear_mean, rows_of
from .recorder import FACTS, DecisionRecorder
from .reward_gradients import differentiated, rendered
from .steering import gradient_of, judge_of
from .trace import FlowTrace
from .trajectory import TrajectoryRecorder
from .tree_sampling import Initial, Tree, sample_trees

LATENT_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(kw_only=True)
class FlowPolicy(Checked, ABC):
    """A flow-matching generator of images as a policy; a family supplies encoding, velocity and decoding.

    Latents are x = (1 - sigma) * clean + sigma * noise; the network predicts the velocity noise - clean.
    """

    forward_kinds: ClassVar[frozenset[str]] = frozenset({"decisions", "denoising", "outputs"})
    sample_kind: ClassVar[Literal["latents", "tokens", "turns"]] = "latents"
    makes: ClassVar[frozenset[str]] = frozenset({"images", "latents"})

    negative_prompt: str = ""  # for guidance, in training and evaluation
    # The unit of log-probs, and with it of clip ranges: `mean` over a latent's d elements (as in the papers), `sum`
    # (the true density) or `rms` (sum / sqrt d).
    reduction: Reduction = "mean"
    network_batch: Annotated[int, Field(ge=1)] = 256  # largest batch of a network call during sampling
    decode_batch: Annotated[int, Field(ge=1)] = 64  # largest batch of a decoding
    # How latents are stored between steps; log-probs are those of the stored latents.
    latent_dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    prompt_cache: Annotated[int, Field(ge=1)] = 4096  # how many encoded prompts are kept
    # What these take of the device's memory, at most: one of Stable Diffusion 3 has 2.7 MB, one of FLUX.1 4.2 MB.
    prompt_cache_gb: Annotated[float, Field(ge=0)] = 1.0
    # A gradient through the sampler keeps only the latents of its steps, and computes the activations within each step
    # again: less memory, a third more time.
    recompute_activations: bool = True
    records_trajectories: bool = field(default=False, init=False, repr=False)
    renders_latents: bool = field(default=False, init=False, repr=False)
    num_calls: int = field(default=0, init=False, repr=False)  # network evaluations so far, in batch elements
    _placement: Placement | None = field(default=None, init=False, repr=False)
    _encoded: dict[str, Conditioning] = field(default_factory=dict, init=False, repr=False)

    @property
    def declaration(self) -> PolicyDeclaration:
        """Returns what rollouts provide: the facts of each decision."""
        return PolicyDeclaration(provides=frozenset(FACTS))

    # A family defines these.

    @property
    @abstractmethod
    def latent_shape(self) -> tuple[int, ...]:
        """Returns the shape of the latent of one sample."""

    @property
    @abstractmethod
    def device(self) -> torch.device:
        """Returns the device of the network."""

    @property
    @abstractmethod
    def weights(self) -> Weights:
        """Returns the trained tensors and their copies."""

    @abstractmethod
    def modules(self) -> Mapping[str, nn.Module]:
        """Returns the modules with trained weights, by name."""

    @abstractmethod
    def sigmas(self, kind: Literal["pipeline", "uniform"], num_steps: int) -> list[float]:
        """Returns the num_steps + 1 noise levels of the stock pipeline, or of the uniform grid under the family's
        shift."""

    @abstractmethod
    def velocity(self, latents: Tensor, sigma: Tensor, conditioning: Conditioning) -> Tensor:
        """Calls the network: latents [n, ...], sigma [n], conditioning of n prompts -> velocity [n, ...], float32."""

    @abstractmethod
    def encode_prompts(self, texts: list[str]) -> Conditioning:
        """Encodes texts by the text encoders, one row per text."""

    @abstractmethod
    def decode_latents(self, latents: Tensor) -> Tensor:
        """Decodes clean latents [n, ...] to images [n, 3, H, W] in [0, 1], float32."""

    @abstractmethod
    def encode_images(self, images: Tensor) -> Tensor:
        """Encodes images [n, 3, H, W] in [0, 1] to clean latents [n, ...] (the mean of the posterior)."""

    def encode_videos(self, videos: Tensor) -> Tensor:
        """Encodes clips [n, F, 3, H, W] in [0, 1] to clean latents [n, ...]; families of videos override this."""
        raise ConfigError("the policy makes images, and cannot encode clips of the data")

    # A family overrides these where its latents or noise levels are not those of a flow.

    def initial(self, noise: Tensor, sigma: Tensor) -> Tensor:
        """Returns the first latents [n, ...], at the plans' first levels sigma [n], from standard normal noise."""
        return noise

    def final(self, latents: Tensor, sigma: Tensor) -> Tensor:
        """Returns the latents to decode, from the last latents [n, ...] at the plans' last levels sigma [n].

        The last latents of a flow are clean.
        """
        return latents

    def known(self, sigma: Tensor) -> Tensor:
        """Returns the nearest noise levels to sigma [n] at which the network was trained; a flow was at all."""
        return sigma

    def negative(self) -> Conditioning:
        """Returns the conditioning of the negative prompt, which guidance leads away from: one row."""
        return self.conditioning([self.negative_prompt])

    def conditioning_of(self, prompts: Sequence[Prompt]) -> Conditioning:
        """Returns one row per prompt."""
        return self.conditioning([prompt.text for prompt in prompts])

    def decode(self, latents: Tensor, conditioning: Conditioning) -> Outputs:
        """Decodes clean latents [n, ...] of the n prompts behind the conditioning; see `decode_latents`."""
        return Outputs(images=self.decode_latents(latents))

    # Every family inherits the rest.

    def outputs_of(self, latents: Tensor, conditioning: Conditioning) -> Outputs:
        """Returns the outputs of clean latents [n, ...]: what they are decoded to, and themselves."""
        return replace(self.decode(latents, conditioning), latents=latents)

    def rendered_of(self, latents: Tensor, conditioning: Conditioning) -> Outputs:
        """Returns the outputs of latents with a graph, which are not decoded where no gradient needs the media."""
        return Outputs(latents=latents) if self.renders_latents else self.outputs_of(latents, conditioning)

    def conditioning(self, texts: Sequence[str]) -> Conditioning:
        """Returns one row per text; each distinct text is encoded once and kept while the cache has room."""
        missing = [text for text in dict.fromkeys(texts) if text not in self._encoded]
        if missing:
            with torch.no_grad():
                encoded = self.encoded(missing)
            fresh = {text: encoded[torch.tensor([n])] for n, text in enumerate(missing)}
            kept = {text: self._encoded[text] for text in texts if text in self._encoded}
            if len(self._encoded) + len(fresh) > self.prompt_cache or not self._has_room(fresh):
                self._encoded.clear()
            self._encoded.update(kept | fresh)
        return Conditioning.join([self._encoded[text] for text in texts])

    def _has_room(self, fresh: Mapping[str, Conditioning]) -> bool:
        """Returns whether encoded prompts may be kept beside those that are kept."""
        held = sum(one.num_bytes for one in (*self._encoded.values(), *fresh.values()))
        return held <= 1e9 * self.prompt_cache_gb

    def encoded(self, texts: list[str]) -> Conditioning:
        """Returns one row per text, encoded now or in a former run."""
        return self.encode_prompts(texts)

    @torch.no_grad()
    def rollout(self, prompts: Sequence[Prompt], plans: Sequence[Plan], keys: Sequence[GroupKey]) -> Rollout:
        """Samples one group of images per prompt by its plan (see `tree_sampling.sample_trees`)."""
        scales = {plan.guidance_scale for plan in plans}
        assert len(scales) == 1, f"the plans of one rollout must share one guidance scale, got {sorted(scales)}"
        scale, before = scales.pop(), self.num_calls
        conditioning = self.conditioning_of(prompts)
        like = torch.empty(0, dtype=LATENT_DTYPES[self.latent_dtype], device=self.device)

        def velocity(latents: Tensor, sigma: Tensor, prompt: Tensor) -> Tensor:
            parts = [part.split(self.network_batch) for part in (latents, sigma, prompt)]
            self._dummy_forwards(self._maximum(len(parts[0])) - len(parts[0]))
            return torch.cat([self._guided(x, s, conditioning[p], scale) for x, s, p in zip(*parts, strict=True)])

        keeps = self.records_trajectories and all(plan.is_plain for plan in plans)
        records = DecisionRecorder(self.reduction, TrajectoryRecorder() if keeps else None)
        judge = judge_of(self, prompts, keys, conditioning) if any(plan.choices for plan in plans) else None
        is_guided = any(plan.reward_guidance is not None for plan in plans)
        gradient = gradient_of(self, prompts, keys, conditioning) if is_guided else None
        tree = sample_trees(
            *(plans, keys, velocity, self.latent_shape, like),
            initial=self._first_latents(prompts, plans),
            records=records,
            judge=judge,
            gradient=gradient,
        )
        clean = self.final(tree.clean, tree.sigma.to(self.device))
        parts = torch.arange(len(clean)).split(self.decode_batch)
        decoded = (self.decode(clean[rows], conditioning[tree.prompt[rows]]) for rows in parts)
        outputs = replace(Outputs.filled(decoded, len(clean)), latents=clean)
        trace = FlowTrace(conditioning, scale, tree.decided, clean, tree.trajectory)
        rollout = self._rollout(prompts, keys, outputs, tree, trace, self.num_calls - before)
        levels = tuple(dict.fromkeys(plans[0].paths[0].levels))
        return replace(rollout, levels={key.prompt_index: levels for key in keys})

    def _first_latents(self, prompts: Sequence[Prompt], plans: Sequence[Plan]) -> Initial:
        """Returns what makes the first latents of plans of one sampler from noise."""
        if not plans[0].from_given:
            return self.initial
        assert all(plan.from_given for plan in plans), "the plans of one rollout are those of one sampler"
        clean = self._encoded_outputs(best_given(self, prompts, plans[0]))  # [P, ...]
        of_root = clean[torch.arange(len(plans)).repeat_interleave(torch.tensor([plan.roots for plan in plans]))]

        def noised(noise: Tensor, sigma: Tensor) -> Tensor:
            level = column(sigma, noise)
            return (1 - level) * of_root.to(noise) + level * noise

        return noised

    def _encoded_outputs(self, outputs: Outputs) -> Tensor:
        """Returns the clean latents [n, ...] of images or clips of the data."""
        videos, images = outputs.videos, outputs.images
        if videos is not None:
            parts = [self.encode_videos(part.to(self.device)) for part in videos.split(self.decode_batch)]
        else:
            assert images is not None, "latents are of images or videos"
            parts = [self.encode_images(part.to(self.device)) for part in images.split(self.decode_batch)]
        return torch.cat(parts)

    @torch.no_grad()
    def dummy_rollout(self, plan: Plan) -> None:
        """Takes part in the network calls of one rollout of other processes by plans of this shape."""
        for _ in range(plan.num_tree_steps):
            self._dummy_forwards(self._maximum(0))

    def dummy_forward(self) -> Tensor:
        """Takes part in one `forward` of other processes; returns 0, with a graph to all weights."""
        latents = torch.zeros(1, *self.latent_shape, device=self.device)
        return 0 * self.velocity(latents, latents.new_full((1,), 0.5), self.conditioning([""])).sum()

    def networks(self) -> Sequence[nn.Module]:
        """Returns the modules that are called, each a tree of its own."""
        return list(self.modules().values())

    def _dummy_forwards(self, count: int) -> None:
        for _ in range(count):
            self.dummy_forward()

    def _maximum(self, count: int) -> int:
        """Returns the maximum of a count over processes where weights are sharded, else the count.

        With sharded weights every network call is one of all processes.
        """
        maximum = None if self._placement is None else self._placement.maximum
        return count if maximum is None else maximum(count)

    @torch.no_grad()
    def offline(self, prompts: Sequence[Prompt], outputs: Outputs, keys: Sequence[GroupKey]) -> Rollout:
        """Returns a rollout of supplied images [P, 3, H, W] or clips [P, F, 3, H, W], without decisions.

        There is one per prompt. Raises ValueError for another number of them than of prompts.
        """
        media = outputs.images if outputs.videos is None else outputs.videos
        if media is None or len(media) != len(prompts):
            kind = "images" if outputs.videos is None else "videos"
            raise ValueError(
                f"{len(prompts)} prompts need as many {kind}, got {'none' if media is None else len(media)}"
            )
        clean = self._encoded_outputs(outputs).to(LATENT_DTYPES[self.latent_dtype])
        prompt_indices, each = torch.tensor([key.prompt_index for key in keys]), torch.arange(len(prompts))
        tree = Tree(
            FlowDecisions.none(clean),
            clean,
            torch.zeros(len(each)),
            each,
            prompt_indices,
            DecisionBlock.none(len(each)),
        )
        trace = FlowTrace(self.conditioning_of(prompts), 1.0, tree.decided, clean)
        media = media.to(self.device)
        moved = replace(outputs, images=media) if outputs.videos is None else replace(outputs, videos=media)
        return self._rollout(prompts, keys, replace(moved, latents=clean), tree, trace, 0)

    def forward(self, rollout: Rollout, view: View) -> ForwardOutputs:
        """Returns the forward outputs of a view of decisions, denoising or outputs, by the weights now in place.

        Raises ConfigError for a view of another kind.
        """
        if isinstance(view, DenoisingView):
            return self._denoise(rollout, view)
        if isinstance(view, OutputsView):
            return rendered(self, rollout, view)
        if not isinstance(view, DecisionView):
            raise ConfigError(
                f"a flow policy evaluates {', '.join(sorted(self.forward_kinds))}, not a {type(view).__name__}"
            )
        trace: FlowTrace = rollout.trace
        mean = self._mean(trace, view.calls)
        outputs = trace.decided.forward_outputs(rollout.blocks[view.block], view.calls, mean, self.reduction)
        if trace.gradient is None:
            return outputs
        edges = torch.isin(trace.decided.call, view.calls).nonzero().squeeze(1)
        return replace(outputs, gradient=rows_of(trace.gradient, edges, self.device))

    def differentiate(self, rollout: Rollout, rows: Tensor, score: DifferentiableScore, size: int) -> Rollout:
        """Returns the rollout with the gradient of the scores at every sampled latent of the samples `rows`.

        The gradient is carried back through the weights now in place, `size` network calls at a time. The forward
        outputs of decisions then hold it.
        """
        return differentiated(self, rollout, rows, score, size)

    def recorded(self, rollout: Rollout, view: View) -> ForwardOutputs:
        """Returns the forward outputs of decisions by the weights that sampled the rollout, from its trace."""
        assert isinstance(view, DecisionView), "only decisions are recorded"
        decided: FlowDecisions = rollout.trace.decided
        mean = rows_of(decided.mean, view.calls, self.device)
        return decided.forward_outputs(rollout.blocks[view.block], view.calls, mean, self.reduction)

    @torch.no_grad()
    def recompute(self, rollout: Rollout, size: int) -> Rollout:
        """Returns the rollout with the means of its decisions computed again by the weights now in place.

        `size` network calls are made at a time.
        """
        trace: FlowTrace = rollout.trace
        calls = torch.arange(len(trace.decided.state))
        parts = calls.split(size) if len(calls) else ()
        self._dummy_forwards(self._maximum(len(parts)) - len(parts))
        place = trace.decided.mean.device
        means = [self._mean(trace, part).to(place) for part in parts]
        decided = replace(trace.decided, mean=torch.cat(means)) if means else trace.decided
        return replace(rollout, trace=replace(trace, decided=decided))

    def _mean(self, trace: FlowTrace, calls: Tensor) -> Tensor:
        """Returns the mean of the next latents [n, ...] at the recorded states `calls` [n], on the CPU."""
        decided = trace.decided
        state = rows_of(decided.state, calls, self.device)
        conditioning = trace.conditioning[decided.prompt[calls]]
        velocity = self._guided(state, decided.sigma[calls], conditioning, trace.guidance_scale)
        return linear_mean(rows_of(decided.transition, calls, self.device), state, velocity)

    def _guided(self, latents: Tensor, sigma: Tensor, conditioning: Conditioning, scale: float) -> Tensor:
        """Returns the guided velocity, and counts the network calls."""
        self.num_calls += len(latents) * (1 if scale == 1 else 2)
        return self.guided(latents, sigma, conditioning, scale)

    def guided(self, latents: Tensor, sigma: Tensor, conditioning: Conditioning, scale: float) -> Tensor:
        """Returns the velocity under classifier-free guidance, in one batched call.

        Ho & Salimans 2022, arXiv 2207.12598, eq. 6. `sigma` may be on the CPU.
        """
        sigma = sigma.to(latents.device)
        if scale == 1:
            return self.velocity(latents, sigma, conditioning)
        negative = self.negative()[torch.zeros(len(latents), dtype=torch.int64)]
        both = self.velocity(latents.repeat(2, *[1] * (latents.dim() - 1)), sigma.repeat(2),
                             Conditioning.join([negative, conditioning]))  # fmt: skip
        without, guided = both.chunk(2)
        return without + scale * (guided - without)

    def _denoise(self, rollout: Rollout, view: DenoisingView) -> Denoising:
        """Returns the network's predictions on the clean latents of the view, noised to its levels."""
        trace: FlowTrace = rollout.trace
        clean = rows_of(trace.clean, view.sample, self.device).float()
        by_seed = {seed: normal(seed, self.latent_shape) for seed in dict.fromkeys(view.noise_seed)}
        noise = torch.stack([by_seed[seed] for seed in view.noise_seed]).to(self.device)
        on_host = self.known(view.sigma)
        sigma = on_host.to(self.device)
        noisy = (1 - column(sigma, clean)) * clean + column(sigma, clean) * noise
        self.num_calls += len(noisy)
        prediction = self.guided(noisy, on_host, trace.conditioning[rollout.prompt[view.sample]], 1.0)
        entry = torch.full((rollout.num_samples, view.num_noise_samples), -1)
        entry[view.sample, view.noise_sample] = torch.arange(view.num_calls)
        return Denoising(prediction, noise - clean, noisy, sigma, entry.to(self.device))

    def _rollout(
        self,
        prompts: Sequence[Prompt],
        keys: Sequence[GroupKey],
        outputs: Outputs,
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
            outputs=outputs,
            blocks=(tree.block,),
            trace=trace,
            num_calls=num_calls,
        )
