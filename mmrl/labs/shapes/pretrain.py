"""Makes the lab's checkpoint: the autoencoder first, then transformer and text encoders together on noisy captions.

The captions lie: each of colour, shape and cell is redrawn with probability 0.25, so that the model learns to draw well
and to obey half of the time. That is what RL against the verifier has to repair.
"""

import argparse
import copy
import itertools
import time
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from diffusers.models.autoencoders.autoencoder_kl import AutoencoderKL
from diffusers.pipelines.stable_diffusion_3.pipeline_stable_diffusion_3 import StableDiffusion3Pipeline
from diffusers.schedulers.scheduling_flow_match_euler_discrete import FlowMatchEulerDiscreteScheduler
from torch import Tensor, nn
from transformers import CLIPTokenizer

from mmrl.labs.pipelines import move_average, new_optimizer, save
from mmrl.labs.shapes import networks, world

CAPTION_NOISE = 0.25  # the probability that an attribute of a caption is redrawn
EMPTY_CAPTION = 0.10  # the probability of an empty caption, so that guidance can be tried
BATCH_SIZE = 256  # of the flow


def pretrain(folder: Path, *, seed: int, num_autoencoder_steps: int, num_flow_steps: int) -> None:
    """Trains everything from one seed and writes a StableDiffusion3Pipeline, in half precision, into the folder."""
    autoencoder = train_autoencoder(num_autoencoder_steps, seed)
    pipeline = train_flow(autoencoder, num_flow_steps, seed)
    save(pipeline, folder)
    shipped = load(folder)
    for split in ("held_out", "train"):
        verdict = evaluate(shipped, world.prompts(split), 8 if split == "held_out" else 4)
        print(f"{folder} on {split} prompts: {_summary(verdict)}", flush=True)


def train_autoencoder(num_steps: int, seed: int, *, batch_size: int = 32, kl_weight: float = 1e-4) -> AutoencoderKL:
    """Trains an autoencoder on rendered images; its scaling and shift give latents of mean 0 and deviation 1."""
    torch.manual_seed(seed)  # the initial weights
    generator = torch.Generator().manual_seed(seed + 1)
    autoencoder: Any = networks.new_autoencoder()
    autoencoder.to(memory_format=torch.channels_last)
    step_optimizer = new_optimizer(list(autoencoder.parameters()), betas=(0.9, 0.999))
    start = time.monotonic()
    for step in range(num_steps):
        images = 2 * world.render(_any_prompts(batch_size, generator), generator) - 1
        posterior = autoencoder.encode(images.contiguous(memory_format=torch.channels_last)).latent_dist
        decoded = autoencoder.decode(posterior.sample(generator)).sample
        kl = 0.5 * (posterior.mean.square() + posterior.var - 1 - posterior.logvar).mean()
        loss = F.mse_loss(decoded, images) + 0.3 * F.l1_loss(decoded, images) + kl_weight * kl
        step_optimizer(loss, step, step / num_steps)
        if step % 250 == 249:
            verdict = _reconstruct(autoencoder, _any_prompts(256, generator), generator)
            seconds = time.monotonic() - start
            print(f"autoencoder {step + 1} {seconds:.0f}s loss {loss.item():.4f} {_summary(verdict)}", flush=True)
    latents = encode_world(autoencoder, 8, generator)
    autoencoder.register_to_config(scaling_factor=1 / latents.std().item(), shift_factor=latents.mean().item())
    trained: AutoencoderKL = autoencoder.eval().requires_grad_(False)
    return trained


@torch.no_grad()
def encode_world(autoencoder: AutoencoderKL, num_images: int, generator: torch.Generator) -> Tensor:
    """Returns unscaled latents [216 * num_images, 4, 4, 4] of `num_images` drawings of all prompts in turn."""
    prompts = world.all_prompts()
    return torch.cat(
        [autoencoder.encode(2 * world.render(prompts, generator) - 1).latent_dist.mean for _ in range(num_images)]
    )


@torch.no_grad()
def _reconstruct(autoencoder: AutoencoderKL, prompts: list[str], generator: torch.Generator) -> world.Verdict:
    latents = autoencoder.encode(2 * world.render(prompts, generator) - 1).latent_dist.mean
    return world.verify(autoencoder.decode(latents).sample / 2 + 0.5, prompts)


def _any_prompts(count: int, generator: torch.Generator) -> list[str]:
    prompts = world.all_prompts()
    return [prompts[index] for index in torch.randint(0, len(prompts), (count,), generator=generator).tolist()]


def _summary(verdict: world.Verdict) -> str:
    parts = {"correct": verdict.is_correct.float(), "graded": verdict.graded, "colour": verdict.colour}
    parts |= {"shape": verdict.shape, "position": verdict.position}
    return " ".join(f"{name} {score.mean().item():.4f}" for name, score in parts.items())


def train_flow(
    autoencoder: AutoencoderKL, num_steps: int, seed: int, *, num_images: int = 48
) -> StableDiffusion3Pipeline:
    """Trains velocity and text encoders on `num_images` drawings of each prompt with noisy captions.

    Returns their running averages as a pipeline.
    """
    torch.manual_seed(seed)  # the initial weights
    generator = torch.Generator().manual_seed(seed + 2)
    tokenizer = networks.new_tokenizer()
    tokens = torch.tensor(_tokens(tokenizer, [*world.all_prompts(), ""]))  # [217, 6]
    transformer = networks.new_transformer()
    text_encoders = [networks.new_text_encoder(width, tokenizer) for width in networks.CLIP_WIDTHS]
    learned = nn.ModuleList([transformer, *text_encoders])
    averaged = copy.deepcopy(learned).eval().requires_grad_(False)
    clean_latents = _scaled_world(autoencoder, num_images, generator)
    step_optimizer = new_optimizer(list(learned.parameters()), betas=(0.9, 0.99))
    pipeline = _pipeline(autoencoder, averaged)
    start, losses = time.monotonic(), []
    for step in range(num_steps):
        shown = torch.randint(0, len(clean_latents), (BATCH_SIZE,), generator=generator)
        embeds, pooled = networks.encode_tokens(tokens, *text_encoders)  # [217, 7, 96], [217, 80]
        captions = noisy_captions(shown % world.NUM_PROMPTS, generator)
        loss = _flow_loss(transformer, clean_latents[shown], embeds[captions], pooled[captions], generator)
        step_optimizer(loss, step, step / num_steps)
        move_average(averaged, learned, step)
        losses.append(loss.item())
        if step % 250 == 249:
            held_out = _summary(evaluate(pipeline, world.prompts("held_out"), 4))
            mean_loss, seconds = sum(losses[-250:]) / 250, time.monotonic() - start
            print(f"flow {step + 1} {seconds:.0f}s loss {mean_loss:.4f} held-out {held_out}", flush=True)
    return pipeline


def _flow_loss(transformer: Any, clean: Tensor, embeds: Tensor, pooled: Tensor, generator: torch.Generator) -> Tensor:
    """Returns the mean squared error of velocities `noise - clean`, for sigmas that are logit-normal, deviation 1.2."""
    sigma = torch.sigmoid(1.2 * torch.randn(len(clean), generator=generator))
    noise = torch.randn(clean.shape, generator=generator)
    mixed = clean + sigma[:, None, None, None] * (noise - clean)
    return F.mse_loss(transformer(mixed, embeds, pooled, 1000 * sigma).sample, noise - clean)


def noisy_captions(prompts: Tensor, generator: torch.Generator) -> Tensor:
    """Returns captions [B], some wrong, of drawings of `prompts` [B]: indices of `all_prompts()`, 216 for none."""
    shown = world.attributes_at(prompts)
    true = torch.stack([shown.colour, shown.shape, shown.cell])  # [3, B]
    redrawn = torch.stack([torch.randint(0, count, prompts.shape, generator=generator) for count in (6, 4, 9)])
    is_redrawn = torch.rand(true.shape, generator=generator) < CAPTION_NOISE
    colour, shape, cell = torch.where(is_redrawn, redrawn, true)
    captions = world.Attributes(colour, shape, cell).prompt_index
    is_empty = torch.rand(prompts.shape, generator=generator) < EMPTY_CAPTION
    return torch.where(is_empty, world.NUM_PROMPTS, captions)


def _scaled_world(autoencoder: AutoencoderKL, num_images: int, generator: torch.Generator) -> Tensor:
    latents = encode_world(autoencoder, num_images, generator)
    scaled: Tensor = (latents - autoencoder.config["shift_factor"]) * autoencoder.config["scaling_factor"]
    return scaled


def _tokens(tokenizer: CLIPTokenizer, prompts: list[str]) -> list[list[int]]:
    tokens: list[list[int]] = tokenizer(prompts, padding="max_length", truncation=True).input_ids
    return tokens


def _pipeline(autoencoder: AutoencoderKL, learned: nn.ModuleList) -> StableDiffusion3Pipeline:
    """Returns the networks as a pipeline; `learned` holds the transformer and the two text encoders."""
    components: dict[str, Any] = {
        "transformer": learned[0],
        "scheduler": FlowMatchEulerDiscreteScheduler(shift=1.0),
        "vae": autoencoder,
        "text_encoder": learned[1],
        "tokenizer": networks.new_tokenizer(),
        "text_encoder_2": learned[2],
        "tokenizer_2": networks.new_tokenizer(),
        "text_encoder_3": None,
        "tokenizer_3": None,
    }
    return _without_progress_bar(StableDiffusion3Pipeline(**components))


def load(folder: Path) -> StableDiffusion3Pipeline:
    """Loads the pipeline of a folder, in float32."""
    # diffusers wants to be told of a missing T5, even where model_index.json says null
    return _without_progress_bar(
        StableDiffusion3Pipeline.from_pretrained(folder, text_encoder_3=None, tokenizer_3=None, dtype=torch.float32)
    )


def _without_progress_bar(pipeline: Any) -> StableDiffusion3Pipeline:
    pipeline.set_progress_bar_config(disable=True)
    stable_diffusion: StableDiffusion3Pipeline = pipeline
    return stable_diffusion


@torch.no_grad()
def sample(pipeline: StableDiffusion3Pipeline, prompts: list[str], noise: Tensor, num_steps: int) -> Tensor:
    """Samples images [B, 3, 32, 32] in [0, 1] from noise [B, 4, 4, 4] by Euler's method on uniform sigmas."""
    embeds, _, pooled, _ = pipeline.encode_prompt(
        prompts, prompts, prompts, do_classifier_free_guidance=False, max_sequence_length=networks.MAX_SEQUENCE_LENGTH
    )
    latents, sigmas = noise, torch.linspace(1, 0, num_steps + 1)
    for sigma, next_sigma in itertools.pairwise(sigmas):
        velocity = pipeline.transformer(latents, embeds, pooled, (1000 * sigma).expand(len(noise))).sample
        latents = latents + (next_sigma - sigma) * velocity
    latents = latents / pipeline.vae.config.scaling_factor + pipeline.vae.config.shift_factor
    images: Tensor = pipeline.vae.decode(latents).sample / 2 + 0.5
    return images.clamp(0, 1)


def evaluate(pipeline: StableDiffusion3Pipeline, prompts: list[str], num_images: int) -> world.Verdict:
    """Returns the verdict on `num_images` drawings of each prompt, in ten steps from fixed noise."""
    repeated = [prompt for prompt in prompts for _ in range(num_images)]
    noise = torch.randn(len(repeated), *networks.LATENT_SHAPE, generator=torch.Generator().manual_seed(123))
    return world.verify(sample(pipeline, repeated, noise, num_steps=10), repeated)


def main() -> None:
    """Runs the command line on one thread, so that a seed gives the same weights on the same machine."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder for the checkpoint")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--num-autoencoder-steps", type=int, default=2000)
    parser.add_argument("--num-flow-steps", type=int, default=2000)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    pretrain(
        arguments.out,
        seed=arguments.seed,
        num_autoencoder_steps=arguments.num_autoencoder_steps,
        num_flow_steps=arguments.num_flow_steps,
    )


if __name__ == "__main__":
    main()
