"""Makes the lab's checkpoint: the autoencoder first, then transformer and text encoders, at last on targets that lie.

1. honest: source, instruction and right target. A hint helps to find out which shape is meant: what the network puts
   out at the tokens of the source, which the pipeline drops, has to be the difference of target and source;
2. spoil: targets with another shape, kind or value than the instruction says, so that RL has something to mend.

The checkpoint before stage 2 is kept beside it as FOLDER_unspoilt, since RL cannot be asked for much more than that.
"""

import copy
import itertools
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from diffusers.models.autoencoders.autoencoder_kl import AutoencoderKL
from diffusers.pipelines.flux.pipeline_flux_kontext import FluxKontextPipeline
from torch import Tensor, nn

from mmrl.labs.edits import networks, world
from mmrl.labs.edits.verifier import Verdict, verify
from mmrl.labs.pipelines import move_average, new_optimizer, save
from mmrl.labs.teaching import command_line
from mmrl.media.pictures import as_tensor

AUTOENCODER_STEPS = 800
BATCH_SIZE = 128  # of the flow
FIRST_SEED = 2_000_000  # of the scenes: a range that no split holds


@dataclass(frozen=True)
class Lies:
    """How often a target differs from what the instruction says."""

    wrong: float = 0.0  # the probability that the shape is drawn anew, also the kind, also the value
    more: float = 0.0  # the probability of one more edit


@dataclass(frozen=True)
class Stage:
    """One part of the flow's training."""

    name: str
    num_steps: int
    peak: float  # of the learning rate
    num_scenes: int
    hint: float = 0.0  # weight of the loss at the tokens of the source
    lies: Lies = Lies()


HONEST = Stage("honest", 1600, 2e-3, num_scenes=24_000, hint=1.0)
SPOIL = Stage("spoil", 150, 1e-3, num_scenes=6_000, lies=Lies(wrong=0.2, more=0.05))


def pretrain(folder: Path, *, seed: int, scale: float = 1.0) -> None:
    """Trains everything from one seed; writes the checkpoint, and the one before spoiling. `scale` is of all steps."""
    autoencoder = train_autoencoder(max(1, round(AUTOENCODER_STEPS * scale)), seed)
    torch.manual_seed(seed)
    pipeline = networks.new_pipeline(autoencoder)
    for stage, path in ((HONEST, folder.with_name(f"{folder.name}_unspoilt")), (SPOIL, folder)):
        save(train_flow(pipeline, stage, seed, scale), path)
        pipeline = load(path)
        for split in world.SPLITS:
            print(f"{path.name} on {split} prompts: {_summary(evaluate(pipeline, split, 300))}", flush=True)


def load(folder: Path) -> FluxKontextPipeline:
    """Loads the pipeline of a folder, in float32."""
    return networks.without_progress_bar(FluxKontextPipeline.from_pretrained(folder, dtype=torch.float32))


def train_autoencoder(num_steps: int, seed: int, *, batch_size: int = 32, kl_weight: float = 1e-4) -> AutoencoderKL:
    """Trains an autoencoder on rendered pictures; its scaling and shift give latents of mean 0 and deviation 1."""
    torch.manual_seed(seed)  # the initial weights
    rng, generator = random.Random(FIRST_SEED + seed), torch.Generator().manual_seed(seed + 1)
    autoencoder: Any = networks.new_autoencoder()
    autoencoder.to(memory_format=torch.channels_last)
    step_optimizer = new_optimizer(list(autoencoder.parameters()), betas=(0.9, 0.999))
    start = time.monotonic()
    for step in range(num_steps):
        pictures = 2 * world.render([scene for _, scene in _any_edits(batch_size, rng)]) - 1
        posterior = autoencoder.encode(pictures.contiguous(memory_format=torch.channels_last)).latent_dist
        decoded = autoencoder.decode(posterior.sample(generator)).sample
        kl = 0.5 * (posterior.mean.square() + posterior.var - 1 - posterior.logvar).mean()
        loss = F.mse_loss(decoded, pictures) + 0.3 * F.l1_loss(decoded, pictures) + kl_weight * kl
        step_optimizer(loss, step, step / num_steps)
        if step % 200 == 199:
            verdict, seconds = _reconstruct(autoencoder, rng), time.monotonic() - start
            print(f"autoencoder {step + 1} {seconds:.0f}s loss {loss.item():.4f} {_summary(verdict)}", flush=True)
    with torch.no_grad():
        shown = world.render([scene for _, scene in _any_edits(512, rng)])
        latents = autoencoder.encode(2 * shown - 1).latent_dist.mean
    autoencoder.register_to_config(scaling_factor=1 / latents.std().item(), shift_factor=latents.mean().item())
    trained: AutoencoderKL = autoencoder.eval().requires_grad_(False)
    return trained


def _any_edits(count: int, rng: random.Random) -> list[tuple[world.Edit, world.Scene]]:
    """Returns random edits with their sources."""
    chosen = rng.choices(world.all_edits(), k=count)
    return [(edit, world.source(edit, rng)) for edit in chosen]


@torch.no_grad()
def _reconstruct(autoencoder: Any, rng: random.Random) -> Verdict:
    """Returns the verdict on right targets that went through the autoencoder."""
    edits = _any_edits(256, rng)
    targets = world.render([scene.edited(edit) for edit, scene in edits])
    decoded = autoencoder.decode(autoencoder.encode(2 * targets - 1).latent_dist.mean).sample / 2 + 0.5
    return verify(decoded, world.render([scene for _, scene in edits]), [edit.text for edit, _ in edits])


def _summary(verdict: Verdict) -> str:
    parts = {"correct": verdict.is_correct.float(), "is_done": verdict.is_done.float()}
    parts |= {"is_kept": verdict.is_kept.float(), "graded": verdict.graded, "done": verdict.done, "kept": verdict.kept}
    return " ".join(f"{name} {score.mean().item():.3f}" for name, score in parts.items())


@dataclass(frozen=True)
class Examples:
    """N examples, as tokens of the autoencoder."""

    sources: Tensor  # [N, 16, 16]
    targets: Tensor  # [N, 16, 16]
    instructions: Tensor  # [N] index into `all_edits()`


def examples(autoencoder: AutoencoderKL, count: int, lies: Lies, rng: random.Random) -> Examples:
    """Returns random sources with targets, of which some lie."""
    edits = _any_edits(count, rng)
    index = {edit: number for number, edit in enumerate(world.all_edits())}
    return Examples(
        _encode(autoencoder, [scene for _, scene in edits]),
        _encode(autoencoder, [spoilt(scene, edit, lies, rng) for edit, scene in edits]),
        torch.tensor([index[edit] for edit, _ in edits]),
    )


def _encode(autoencoder: AutoencoderKL, scenes: Sequence[world.Scene]) -> Tensor:
    parts = [world.render(scenes[first : first + 500]) for first in range(0, len(scenes), 500)]
    return torch.cat([networks.encode(autoencoder, part) for part in parts])


def spoilt(scene: world.Scene, edit: world.Edit, lies: Lies, rng: random.Random) -> world.Scene:
    """Returns the target of an edit, or of another, with probabilities."""
    form, kind, value = edit.form, edit.kind, edit.value
    if rng.random() < lies.wrong:
        form = rng.choice(scene.shapes).form
    if rng.random() < lies.wrong:
        kind = rng.choice(world.KINDS)
    if rng.random() < lies.wrong or kind != edit.kind:
        value = rng.choice(world.VALUES[kind])
    target = scene.edited(world.Edit(form, kind, value))
    if rng.random() < lies.more:
        kind = rng.choice(world.KINDS)
        target = target.edited(world.Edit(rng.choice(scene.shapes).form, kind, rng.choice(world.VALUES[kind])))
    return target


def train_flow(pipeline: FluxKontextPipeline, stage: Stage, seed: int, scale: float = 1.0) -> FluxKontextPipeline:
    """Trains velocity and text encoders on the examples of a stage; returns the running averages as a pipeline."""
    learned, averaged = copy.copy(pipeline), copy.copy(pipeline)
    networks_of = ("transformer", "text_encoder", "text_encoder_2")
    for name in networks_of:
        setattr(learned, name, copy.deepcopy(getattr(pipeline, name)).train().requires_grad_(True))
        setattr(averaged, name, copy.deepcopy(getattr(pipeline, name)).eval().requires_grad_(False))
    trained, slow = (nn.ModuleList(getattr(one, name) for name in networks_of) for one in (learned, averaged))
    rng, generator = random.Random(f"{stage.name} {seed}"), torch.Generator().manual_seed(seed + 2)
    num_steps = max(1, round(stage.num_steps * scale))
    pool = examples(learned.vae, max(BATCH_SIZE, round(stage.num_scenes * scale)), stage.lies, rng)
    step_optimizer = new_optimizer(list(trained.parameters()), betas=(0.9, 0.99), peak=stage.peak)
    start, losses = time.monotonic(), []
    for step in range(num_steps):
        flow, hint = _losses(learned, pool, generator)
        step_optimizer(flow + stage.hint * hint, step, step / num_steps)
        move_average(slow, trained, step, highest=0.99)
        losses.append(flow.item())
        if step % 100 == 99:
            mean_loss, seconds = sum(losses[-100:]) / 100, time.monotonic() - start
            score = _summary(evaluate(averaged, "train", 300))
            print(f"{stage.name} {step + 1} {seconds:.0f}s loss {mean_loss:.4f} on train prompts {score}", flush=True)
    return averaged


def _losses(pipeline: Any, pool: Examples, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Returns mean squared errors of the velocity and of the hint, for sigmas that are logit-normal, deviation 1.2."""
    rows = torch.randint(len(pool.sources), (BATCH_SIZE,), generator=generator)
    source, clean, instruction = pool.sources[rows], pool.targets[rows], pool.instructions[rows]
    embeds, pooled = networks.encode_instructions(pipeline)
    sigma = torch.sigmoid(1.2 * torch.randn(BATCH_SIZE, generator=generator))
    noise = torch.randn(clean.shape, generator=generator)
    noisy = torch.lerp(clean, noise, sigma[:, None, None])
    text = (embeds[instruction], pooled[instruction])
    velocity, at_source = networks.velocities(pipeline.transformer, noisy, source, sigma, text)
    return F.mse_loss(velocity, noise - clean), F.mse_loss(at_source, clean - source)


def evaluate(pipeline: FluxKontextPipeline, split: str, count: int) -> Verdict:
    """Returns the verdict on edits of the first prompts of a split, in ten steps from fixed noise."""
    asked = world.prompts(split)[:count]
    shape = (len(asked), networks.NUM_TOKENS, networks.TOKEN_WIDTH)
    noise = torch.randn(shape, generator=torch.Generator().manual_seed(123))
    sources = torch.stack([as_tensor(question.media[0].load()) for question in asked])
    texts = [question.text for question in asked]
    return verify(sample(pipeline, texts, sources, noise, num_steps=10), sources, texts)


@torch.no_grad()
def sample(pipeline: Any, texts: Sequence[str], sources: Tensor, noise: Tensor, num_steps: int) -> Tensor:
    """Samples pictures [B, 3, 32, 32] in [0, 1] from noise [B, 16, 16] by Euler's method on uniform sigmas."""
    index = {edit.text: number for number, edit in enumerate(world.all_edits())}
    rows = torch.tensor([index[text] for text in texts])
    embeds, pooled = networks.encode_instructions(pipeline)
    text, source = (embeds[rows], pooled[rows]), networks.encode(pipeline.vae, sources)
    tokens, sigmas = noise, torch.linspace(1, 0, num_steps + 1)
    for sigma, next_sigma in itertools.pairwise(sigmas):
        velocity, _ = networks.velocities(pipeline.transformer, tokens, source, sigma.expand(len(noise)), text)
        tokens = tokens + (next_sigma - sigma) * velocity
    return networks.decode(pipeline.vae, tokens)


if __name__ == "__main__":
    command_line(__doc__, pretrain)
