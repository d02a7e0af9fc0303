"""Makes the lab's checkpoint: the autoencoder first, then transformer and text encoder together on noisy captions.

The autoencoder learns on stills before it learns on clips: on clips alone it drew one blob for all shapes.

The captions lie: each of colour, shape and direction is redrawn with probability 0.25, so that the model learns to draw
well and to obey less than half of the time. That is what RL against the verifier has to repair.
"""

import argparse
import copy
import time
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from diffusers.models.autoencoders.autoencoder_kl_ltx import AutoencoderKLLTXVideo
from diffusers.pipelines.ltx.pipeline_ltx import LTXPipeline
from diffusers.schedulers.scheduling_flow_match_euler_discrete import FlowMatchEulerDiscreteScheduler
from torch import Tensor, nn

from mmrl.labs.motion import networks, world
from mmrl.labs.pipelines import move_average, new_optimizer, save
from mmrl.labs.shapes.world import BACKGROUND, SHAPES

CAPTION_NOISE = 0.25  # the probability that an attribute of a caption is redrawn
EMPTY_CAPTION = 0.10  # the probability of an empty caption, so that guidance can be tried
BATCH_SIZE = 256  # of the flow
KL_WEIGHT = 1e-4
SHAPE_WEIGHT = 9.0  # of the autoencoder's error on the shape and near it; 1 elsewhere
HINT_WEIGHT = 0.1  # of the loss of the head that names the shape


def pretrain(folder: Path, *, seed: int, num_still_steps: int, num_clip_steps: int, num_flow_steps: int) -> None:
    """Trains everything from one seed and writes an LTXPipeline, in half precision, into the folder."""
    autoencoder = train_autoencoder(num_still_steps, num_clip_steps, seed)
    save(train_flow(autoencoder, num_flow_steps, seed), folder)
    shipped = load(folder)
    for split in ("held_out", "train"):
        verdict = evaluate(shipped, world.prompts(split), 16 if split == "held_out" else 8)
        print(f"{folder} on {split} prompts: {_summary(verdict)}", flush=True)


def train_autoencoder(num_still_steps: int, num_clip_steps: int, seed: int) -> AutoencoderKLLTXVideo:
    """Trains an autoencoder on rendered stills, which teach the shapes, then on clips.

    It normalises latents to mean 0 and deviation 1.
    """
    torch.manual_seed(seed)  # the initial weights
    generator = torch.Generator().manual_seed(seed + 1)
    autoencoder: Any = networks.new_autoencoder()
    heads = [nn.Linear(num_tokens * networks.NUM_CHANNELS, len(SHAPES)) for num_tokens in (4, 12)]
    _train_on(autoencoder, heads[0], num_still_steps, generator, are_stills=True)
    _train_on(autoencoder, heads[1], num_clip_steps, generator, are_stills=False)
    autoencoder.eval().requires_grad_(False)
    latents = encode_world(autoencoder, 4, generator)
    autoencoder.latents_mean.copy_(latents.mean((0, 1)))
    autoencoder.latents_std.copy_(latents.std((0, 1)))
    trained: AutoencoderKLLTXVideo = autoencoder
    return trained


def _train_on(
    autoencoder: Any, head: nn.Linear, num_steps: int, generator: torch.Generator, *, are_stills: bool
) -> None:
    """Trains on 64 stills or 8 clips a step; the head, which is thrown away, has to name the shape from the latents."""
    kind, render, batch_size = ("stills", world.render_stills, 64) if are_stills else ("clips", world.render, 8)
    step_optimizer = new_optimizer([*autoencoder.parameters(), *head.parameters()], betas=(0.9, 0.99))
    start = time.monotonic()
    for step in range(num_steps):
        prompts = _any_prompts(batch_size, generator)
        clips = 2 * render(prompts, generator).transpose(1, 2) - 1  # [B, 3, F, H, W]
        posterior = autoencoder.encode(clips).latent_dist
        latents = posterior.sample(generator)
        error = autoencoder.decode(latents).sample - clips
        weight = 1 + (SHAPE_WEIGHT - 1) * _near_shape(clips)
        kl = 0.5 * (posterior.mean.square() + posterior.var - 1 - posterior.logvar).mean()
        hint = F.cross_entropy(head(latents.flatten(1)), world.attributes(prompts).shape)
        loss = (weight * (error.square() + 0.3 * error.abs())).mean() + KL_WEIGHT * kl + HINT_WEIGHT * hint
        step_optimizer(loss, step, (step + 1) / num_steps)
        if step % 200 == 199:
            seen = f"hint {hint.item():.4f} {_summary(_reconstruct(autoencoder, render, generator))}"
            print(f"{kind} {step + 1} {time.monotonic() - start:.0f}s loss {loss.item():.4f} {seen}", flush=True)


def _near_shape(clips: Tensor) -> Tensor:
    """Returns 1 on the shape and up to 2 pixels beside it, else 0: [B, 1, F, H, W] of clips in [-1, 1]."""
    is_drawn = (clips - (2 * BACKGROUND - 1)).amax(1, keepdim=True) > 0.1
    return F.max_pool3d(is_drawn.float(), (1, 5, 5), 1, (0, 2, 2))


@torch.no_grad()
def _reconstruct(autoencoder: Any, render: Any, generator: torch.Generator) -> world.Verdict:
    """Returns the verdict on what the autoencoder makes of each prompt; a still is repeated, so its motion is wrong."""
    prompts = world.all_prompts()
    clips = 2 * render(prompts, generator).transpose(1, 2) - 1
    decoded = autoencoder.decode(autoencoder.encode(clips).latent_dist.mean).sample.transpose(1, 2) / 2 + 0.5
    return world.verify(decoded.expand(-1, world.NUM_FRAMES, -1, -1, -1), prompts)


@torch.no_grad()
def encode_world(autoencoder: Any, num_clips: int, generator: torch.Generator) -> Tensor:
    """Returns latents [96 * num_clips, 12, 16] of `num_clips` drawings of all prompts in turn."""
    prompts = world.all_prompts()
    drawn = [networks.to_latents(autoencoder, world.render(prompts, generator)) for _ in range(num_clips)]
    return torch.cat(drawn)


def _any_prompts(count: int, generator: torch.Generator) -> list[str]:
    prompts = world.all_prompts()
    return [prompts[index] for index in torch.randint(0, len(prompts), (count,), generator=generator).tolist()]


def _summary(verdict: world.Verdict) -> str:
    parts = {"correct": verdict.is_correct.float(), "graded": verdict.graded, "colour": verdict.colour}
    parts |= {"shape": verdict.shape, "motion": verdict.motion}
    return " ".join(f"{name} {score.mean().item():.4f}" for name, score in parts.items())


def train_flow(autoencoder: AutoencoderKLLTXVideo, num_steps: int, seed: int, *, num_clips: int = 48) -> LTXPipeline:
    """Trains velocity and text encoder on `num_clips` drawings of each prompt with noisy captions.

    Returns their running averages as a pipeline.
    """
    torch.manual_seed(seed)  # the initial weights
    generator = torch.Generator().manual_seed(seed + 2)
    tokenizer = networks.new_tokenizer()
    transformer, text_encoder = networks.new_transformer(), networks.new_text_encoder(tokenizer)
    learned = nn.ModuleList([transformer, text_encoder])
    averaged = copy.deepcopy(learned).eval().requires_grad_(False)
    clean_latents = encode_world(autoencoder, num_clips, generator)
    step_optimizer = new_optimizer(list(learned.parameters()), betas=(0.9, 0.99))
    pipeline = _pipeline(autoencoder, averaged)
    start, losses = time.monotonic(), []
    for step in range(num_steps):
        shown = torch.randint(0, len(clean_latents), (BATCH_SIZE,), generator=generator)
        captions = noisy_captions(shown % world.NUM_PROMPTS, generator)
        states, mask = networks.encode_text(text_encoder, tokenizer, [*world.all_prompts(), ""])  # [97, 5, 64], [97, 5]
        loss = _flow_loss(transformer, clean_latents[shown], (states[captions], mask[captions]), generator)
        step_optimizer(loss, step, (step + 1) / num_steps)
        move_average(averaged, learned, step)
        losses.append(loss.item())
        if step % 250 == 249:
            held_out = _summary(evaluate(pipeline, world.prompts("held_out"), 4))
            mean_loss, seconds = sum(losses[-250:]) / 250, time.monotonic() - start
            print(f"flow {step + 1} {seconds:.0f}s loss {mean_loss:.4f} held-out {held_out}", flush=True)
    return _pipeline(
        autoencoder, averaged
    )  # with a new tokenizer: one that was used writes its last padding to its file


def _flow_loss(transformer: Any, clean: Tensor, text: tuple[Tensor, Tensor], generator: torch.Generator) -> Tensor:
    """Returns the mean squared error of velocities `noise - clean`, for sigmas that are logit-normal, deviation 1.2."""
    sigma = torch.sigmoid(1.2 * torch.randn(len(clean), generator=generator))
    noise = torch.randn(clean.shape, generator=generator)
    mixed = clean + sigma[:, None, None] * (noise - clean)
    return F.mse_loss(networks.velocity(transformer, mixed, sigma, text), noise - clean)


def noisy_captions(prompts: Tensor, generator: torch.Generator) -> Tensor:
    """Returns captions [B], some wrong, of clips of `prompts` [B]: indices of `all_prompts()`, 96 for none."""
    shown = world.attributes_at(prompts)
    true = torch.stack([shown.colour, shown.shape, shown.direction])  # [3, B]
    redrawn = torch.stack([torch.randint(0, count, prompts.shape, generator=generator) for count in (6, 4, 4)])
    is_redrawn = torch.rand(true.shape, generator=generator) < CAPTION_NOISE
    colour, shape, direction = torch.where(is_redrawn, redrawn, true)
    captions = world.Attributes(colour, shape, direction).prompt_index
    is_empty = torch.rand(prompts.shape, generator=generator) < EMPTY_CAPTION
    return torch.where(is_empty, world.NUM_PROMPTS, captions)


def _pipeline(autoencoder: AutoencoderKLLTXVideo, learned: nn.ModuleList) -> LTXPipeline:
    """Returns the networks as a pipeline; `learned` holds the transformer and the text encoder."""
    components: dict[str, Any] = {
        "transformer": learned[0],
        "scheduler": FlowMatchEulerDiscreteScheduler(shift=1.0),
        "vae": autoencoder,
        "text_encoder": learned[1],
        "tokenizer": networks.new_tokenizer(),
    }
    return _without_progress_bar(LTXPipeline(**components))


def load(folder: Path) -> LTXPipeline:
    """Loads the pipeline of a folder, in float32."""
    return _without_progress_bar(LTXPipeline.from_pretrained(folder, dtype=torch.float32))


def _without_progress_bar(pipeline: Any) -> LTXPipeline:
    pipeline.set_progress_bar_config(disable=True)
    quiet: LTXPipeline = pipeline
    return quiet


@torch.no_grad()
def sample(pipeline: Any, prompts: list[str], noise: Tensor, num_steps: int) -> Tensor:
    """Samples clips [B, 9, 3, 32, 32] in [0, 1] from noise [B, 12, 16] by Euler's method on uniform sigmas."""
    text = networks.encode_text(pipeline.text_encoder, pipeline.tokenizer, prompts)
    latents = networks.sample(pipeline.transformer, text, noise, num_steps)
    return networks.to_clips(pipeline.vae, latents).clamp(0, 1)


def evaluate(pipeline: LTXPipeline, prompts: list[str], num_clips: int) -> world.Verdict:
    """Returns the verdict on `num_clips` clips of each prompt, in ten steps from fixed noise."""
    repeated = [prompt for prompt in prompts for _ in range(num_clips)]
    noise = torch.randn(len(repeated), *networks.LATENT_SHAPE, generator=torch.Generator().manual_seed(123))
    return world.verify(sample(pipeline, repeated, noise, num_steps=10), repeated)


def main() -> None:
    """Runs the command line on one thread, so that a seed gives the same weights on the same machine."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder for the checkpoint")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--num-still-steps", type=int, default=1500)
    parser.add_argument("--num-clip-steps", type=int, default=3000)
    parser.add_argument("--num-flow-steps", type=int, default=2000)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    pretrain(
        arguments.out,
        seed=arguments.seed,
        num_still_steps=arguments.num_still_steps,
        num_clip_steps=arguments.num_clip_steps,
        num_flow_steps=arguments.num_flow_steps,
    )


if __name__ == "__main__":
    main()
