"""One iteration of mmrl against a plain Flow-GRPO loop on the same model, prompts and noise.

    python benchmarks/flow_iteration.py --pairs 9

The plain loop (`Plain`) is what a training script does: it batches all members of a group at each step, computes every
member from step 0, stores log-probs, and goes backward one timestep at a time. mmrl runs its own collector, policy and
updater. Both take turns in one process; both end with the same gradient, which is printed.
Bars: one random step after a shared prefix of 2: update >= 7x, rollout + update >= 1.5x, with decoding and scoring
>= 1.3x; all nine steps random: not slower, and with members of small advantages left out by chance >= 1.3x with
decoding and scoring. The plain loop itself: at most 1.05x its own bare network calls.
"""

import copy
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from _common import Clock, Seconds, argument_parser, emit, in_turns, median_ratio, median_seconds
from _timed import MmrlIteration
from diffusers import StableDiffusion3Pipeline
from torch import Tensor, nn

from mmrl import labs
from mmrl.core.config import load_config
from mmrl.core.keys import GroupKey, normal
from mmrl.labs.shapes.world import verify
from mmrl.prompts.stream import PromptStream
from mmrl.training.trainer import Trainer

GROUPS, MEMBERS, STEPS = 8, 24, 10
CASES: dict[str, tuple[range, int, float]] = {  # random steps, initial latents of a group, mmrl's updates.min_advantage
    "shared": (range(2, 3), 1, 0),  # one random step after a prefix of 2 that all members share
    "all": (range(STEPS - 1), MEMBERS, 0),  # nothing to share
    "all_from_one_latent": (range(STEPS - 1), 1, 0),
    "all_by_advantage": (range(STEPS - 1), MEMBERS, 1.2),  # the same gradient in expectation only
}
Text = tuple[Tensor, Tensor]  # states [n, L, D], pooled [n, D]


@dataclass(frozen=True)
class Noise:
    """The draws of one iteration of B samples; T steps of which some are random."""

    root: Tensor  # [B, C, H, W]
    steps: dict[int, Tensor]  # [B, C, H, W] of each random step


@dataclass(frozen=True)
class Decision:
    """One random step of a plain rollout, as it is stored."""

    number: int  # of the step
    latents: Tensor  # [B, C, H, W]
    following: Tensor  # [B, C, H, W]
    log_prob: Tensor  # [B]


@dataclass
class Plain:
    """Flow-GRPO (Liu et al. 2025, arXiv 2505.05470) as a loop over the parts of a diffusers pipeline."""

    num_steps: int
    noise_level: float = 0.7
    clip: float = 1e-4
    pipeline: Any = None  # the lab's, loaded where none is given
    forwards: int = field(default=0, init=False)  # network calls in batch elements; a backward pass counts as two

    def __post_init__(self) -> None:
        self.sigmas = torch.linspace(1, 0, self.num_steps + 1).tolist()
        if self.pipeline is None:
            absent = dict.fromkeys(("text_encoder_3", "tokenizer_3", "image_encoder", "feature_extractor"))
            self.pipeline = StableDiffusion3Pipeline.from_pretrained(labs.checkpoint("shapes"), **absent)
            self.pipeline.vae.to(memory_format=torch.channels_last).requires_grad_(False)
            self.pipeline.transformer.eval()

    @property
    def parameters(self) -> list[nn.Parameter]:
        return list(self.pipeline.transformer.parameters())

    @torch.no_grad()
    def encode(self, prompts: list[str]) -> Text:
        states, _, pooled, _ = self.pipeline.encode_prompt(
            prompts, None, None, device="cpu", do_classifier_free_guidance=False, max_sequence_length=1
        )
        return states, pooled

    @torch.no_grad()
    def rollout(self, text: Text, noise: Noise) -> tuple[Tensor, list[Decision]]:
        """Clean latents [B, C, H, W] for B texts, and the decisions behind them."""
        latents, decisions = noise.root, []
        for number, (sigma, sigma_next) in enumerate(pairwise(self.sigmas)):
            velocity = self.velocity(latents, sigma, text)
            if number in noise.steps:
                mean, std = self.transition(latents, velocity, number)
                following = mean + std * noise.steps[number]
                decisions.append(Decision(number, latents, following, log_prob(following, mean, std)))
            else:
                following = latents + (sigma_next - sigma) * velocity
            latents = following
        return latents, decisions

    @torch.no_grad()
    def decode(self, latents: Tensor) -> Tensor:
        """Images [B, 3, H, W] in [0, 1]."""
        vae = self.pipeline.vae
        scaled = latents / vae.config.scaling_factor + vae.config.shift_factor
        images = torch.cat([vae.decode(part, return_dict=False)[0] for part in scaled.split(64)])
        return (images / 2 + 0.5).clamp(0, 1)

    def backward(self, text: Text, decisions: Sequence[Decision], advantages: Tensor) -> None:
        """Adds the gradient of the clipped objective, one timestep after the other."""
        for decision in decisions:
            velocity = self.velocity(decision.latents, self.sigmas[decision.number], text)
            mean, std = self.transition(decision.latents, velocity, decision.number)
            ratio = (log_prob(decision.following, mean, std) - decision.log_prob).exp()
            clipped = ratio.clamp(1 - self.clip, 1 + self.clip)
            loss = torch.maximum(-advantages * ratio, -advantages * clipped).mean()
            (loss / len(decisions)).backward()

    def velocity(self, latents: Tensor, sigma: float, text: Text) -> Tensor:
        self.forwards += len(latents) * (3 if torch.is_grad_enabled() else 1)
        return self.pipeline.transformer(  # type: ignore[no-any-return]
            hidden_states=latents,
            timestep=torch.full((len(latents),), 1000 * sigma),
            encoder_hidden_states=text[0],
            pooled_projections=text[1],
            return_dict=False,
        )[0]

    def transition(self, latents: Tensor, velocity: Tensor, number: int) -> tuple[Tensor, float]:
        """Mean and standard deviation of the next latents (eq. 9 of the paper)."""
        sigma, step = self.sigmas[number], self.sigmas[number + 1] - self.sigmas[number]
        diffusion = self.noise_level * (sigma / (1 - min(sigma, self.sigmas[1]))) ** 0.5
        noise = latents + (1 - sigma) * velocity
        mean = latents + velocity * step + diffusion**2 / (2 * sigma) * noise * step
        return mean, diffusion * (-step) ** 0.5


def log_prob(latents: Tensor, mean: Tensor, std: float) -> Tensor:
    """[B] mean over the latents' elements, but for the constant that ratios cancel."""
    return (-(latents - mean).square() / (2 * std**2)).flatten(1).mean(1)


def group_advantages(rewards: Tensor, group_size: int) -> Tensor:
    """[B] off the mean of the group, in units of the batch's spread inside groups."""
    grouped = rewards.view(-1, group_size)
    centred = (grouped - grouped.mean(1, keepdim=True)).flatten()
    return centred / (centred.square().mean().sqrt() + 1e-4)


@dataclass
class PlainIteration:
    """Times the plain loop on the prompts and the noise that mmrl's iteration of the same number draws."""

    plain: Plain
    stream: PromptStream
    case: str
    number: int = 0

    def __call__(self) -> Seconds:
        draws, plain = self.stream.take(GROUPS), self.plain
        prompts = [prompt.text for _, prompt in draws]
        noise = self._noise([GroupKey(self.stream.seed, self.number, draw) for draw, _ in draws])
        self.number += 1
        plain.pipeline.transformer.zero_grad()
        clock = Clock()
        text = self._text(prompts)
        latents, decisions = plain.rollout(text, noise)
        rollout = clock()
        images = plain.decode(latents)
        decoding = clock()
        rewards = verify(images, [prompt for prompt in prompts for _ in range(MEMBERS)]).graded
        scoring = clock()
        plain.backward(text, decisions, group_advantages(rewards, MEMBERS))
        return {"rollout": rollout, "decoding": decoding, "scoring": scoring, "update": clock()}

    def bare(self) -> Seconds:
        """The network calls of an iteration and nothing else."""
        plain, (is_random, *_) = self.plain, CASES[self.case]
        text = self._text(["red circle top left"] * GROUPS)
        latents = torch.zeros(GROUPS * MEMBERS, 4, 4, 4)
        plain.pipeline.transformer.zero_grad()
        clock = Clock()
        with torch.no_grad():
            for _ in range(STEPS):
                plain.velocity(latents, 0.5, text)
        rollout = clock()
        for _ in is_random:
            plain.velocity(latents, 0.5, text).sum().backward()
        return {"rollout": rollout, "update": clock()}

    def _text(self, prompts: list[str]) -> Text:
        states, pooled = self.plain.encode(prompts)
        return states.repeat_interleave(MEMBERS, 0), pooled.repeat_interleave(MEMBERS, 0)

    def _noise(self, keys: list[GroupKey]) -> Noise:
        is_random, roots, _ = CASES[self.case]
        root = torch.cat([normal(key.seed_for("root"), (roots, 4, 4, 4)).expand(MEMBERS, 4, 4, 4) for key in keys])
        shape = (MEMBERS, 4, 4, 4)
        return Noise(root, {n: torch.cat([normal(key.seed_for("step", n), shape) for key in keys]) for n in is_random})


def mmrl_iteration(case: str, folder: Path, threads: int) -> MmrlIteration:
    is_random, roots, min_advantage = CASES[case]
    window = f"{{mode: range, first: {is_random.start}, last: {is_random.stop}}}"
    config = load_config("quickstart_policy_gradient", [
        f"threads={threads}", f"group_size={MEMBERS}", f"prompts_per_iteration={GROUPS}",
        "sampler={name: flow_sde, sigmas: uniform, noise_level: 0.7}", f"sampler.num_steps={STEPS}",
        f"sampler.share_noise={str(roots == 1).lower()}", f"sampler.window={window}",
        "loss={name: grpo}", "advantage={name: grpo, std: centred_batch}",
        f"updates.micro_batch={GROUPS * MEMBERS}", f"updates.min_advantage={min_advantage}",
    ])  # fmt: skip
    return MmrlIteration.of(config, folder)


def gradient_difference(trainer: Trainer, plain: Plain) -> float:
    """norm(difference) / norm of the gradients that both hold."""
    names = dict(plain.pipeline.transformer.named_parameters())
    pairs = [(p.grad, names[n.removeprefix("transformer.")].grad) for n, p in trainer.policy.weights.parameters.items()]
    ours, theirs = (torch.cat([g.flatten() for g in side if g is not None]) for side in zip(*pairs, strict=True))
    return float((ours - theirs).norm() / theirs.norm())


def measure(case: str, num_pairs: int, threads: int, folder: Path) -> None:
    """Runs one case and prints its line."""
    mmrl = mmrl_iteration(case, folder, threads)
    plain = PlainIteration(Plain(STEPS), copy.deepcopy(mmrl.trainer.collector.prompts), case)
    pairs = in_turns(plain, mmrl, num_pairs)
    difference = gradient_difference(mmrl.trainer, plain.plain)
    against_bare = in_turns(plain, plain.bare, num_pairs)
    calls, plain.plain.forwards = mmrl.policy.num_calls, 0
    collected = mmrl.trainer.collector(mmrl.number, "trained").num_calls
    plain()
    emit(
        "flow_iteration",
        case=case,
        pairs=num_pairs,
        speedup_update=round(median_ratio(pairs, "update"), 3),
        speedup_rollout_and_update=round(median_ratio(pairs, "rollout", "update"), 3),
        speedup_with_decoding_and_scoring=round(median_ratio(pairs, *pairs[0][0]), 3),
        plain_over_its_bare_calls=round(median_ratio(against_bare, "rollout", "update"), 3),
        gradient_difference=difference,
        forward_equivalents_per_group={
            "mmrl": (3 * calls / mmrl.number - 2 * collected) / GROUPS,
            "plain": plain.plain.forwards / GROUPS,
        },
        seconds_mmrl=median_seconds([second for _, second in pairs]),
        seconds_plain=median_seconds([first for first, _ in pairs]),
    )


def main() -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("--pairs", type=int, default=9)
    parser.add_argument("--cases", nargs="+", choices=list(CASES), default=list(CASES))
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    for case in options.cases:
        with tempfile.TemporaryDirectory() as folder:
            measure(case, options.pairs, options.threads, Path(folder))


if __name__ == "__main__":
    main()
