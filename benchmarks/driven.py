"""The driven Stable Diffusion 3 against the hand-written one: the same weights, plan, rollout and update.

    python benchmarks/driven.py --pairs 9

Both run mmrl's own collector and updater in turns in one process; they differ in the modality alone (`sd3` or
`diffusers_pipeline`). `lab` is the pipeline of `lab:shapes`, whose network is so small that everything beside it shows;
`layers8` is a random pipeline whose network has 8 layers of width 256. `beside_ms` is the CPU time of one evaluation
(one step of all samples of an iteration) less that of its network calls. Seconds are wall time, on one thread.
Bar: on `layers8` the driven one takes at most 1.10 times as long.
"""

import json
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

import torch
from _common import Seconds, argument_parser, emit, in_turns, median_ratio, median_seconds, trainer_of

from mmrl.core.keys import GroupKey, normal
from mmrl.training.minibatches import batch_of
from mmrl.training.trainer import Trainer
from mmrl.training.update import Updater, select_groups, views_of

MODELS = ("lab", "layers8")
SIZES = {"lab": (8, 16, 1, 32), "layers8": (3, 4, 8, 32)}  # prompts, samples of each, tokens of T5, pixels
SCALES = (1.0, 4.5)
BAR = {"layers8": 1.10}


@dataclass(frozen=True)
class Case:
    """What is compared."""

    model: str
    train: str
    scale: float  # of guidance
    replay: str  # of the driven one


@dataclass
class Side:
    """Times the collector, the updater and single evaluations of one policy."""

    trainer: Trainer
    number: int = 0
    beside: list[float] = field(default_factory=list)  # milliseconds of CPU, one for each evaluation

    def __call__(self) -> Seconds:
        trainer, processes = self.trainer, self.trainer.processes
        trainer.optimizer.zero_grad()
        start = time.perf_counter()
        collected = trainer.collector(self.number, trainer.sampling_weights)
        sampled = time.perf_counter()
        batch = batch_of(collected, trainer.advantage, processes.device)
        rows, part = select_groups(batch, collected.kept)
        views = views_of(trainer.loss, collected.rollout, rows, part, GroupKey(trainer.config.seed, self.number, 0))
        updater = Updater(trainer.policy, trainer.loss, processes, trainer.config.updates.calls_at_once)
        updater.accumulate(collected.rollout, views, part, "itself")
        seconds = {"rollout": sampled - start, "update": time.perf_counter() - sampled}
        self.number += 1
        self._evaluate(collected.rollout)
        return seconds

    @torch.no_grad()
    def _evaluate(self, rollout: Any) -> None:
        policy: Any = self.trainer.policy
        prompts = rollout.trace.conditioning[rollout.prompt]
        states = normal(1, (rollout.num_samples, *policy.latent_shape))
        sigma = torch.full((rollout.num_samples,), 0.7)
        with network_time(policy) as inside:
            start = time.process_time()
            policy.guided(states, sigma, prompts, rollout.trace.guidance_scale)
            self.beside.append(1000 * (time.process_time() - start - sum(inside)))


@contextmanager
def network_time(policy: Any) -> Iterator[list[float]]:
    """Yields a list to which each network call adds its seconds of CPU."""
    seconds: list[float] = []
    network = policy._pipeline.transformer
    before = network.register_forward_pre_hook(lambda *_: seconds.append(-time.process_time()))
    after = network.register_forward_hook(lambda *_: seconds.append(time.process_time()))
    try:
        yield seconds
    finally:
        before.remove()
        after.remove()


def write_layers8(folder: Path) -> None:
    """A random Stable Diffusion 3 whose network has 8 layers of width 256."""
    from diffusers import SD3Transformer2DModel

    from mmrl.modalities.tiny.sd3 import write_tiny_sd3

    write_tiny_sd3(folder, 0)
    kind: Any = SD3Transformer2DModel
    small = kind.from_pretrained(folder, subfolder="transformer").config
    sizes = {"num_layers": 8, "num_attention_heads": 4, "attention_head_dim": 64, "caption_projection_dim": 256}
    torch.manual_seed(0)
    network = kind.from_config({**small, **sizes})
    torch.nn.init.normal_(network.proj_out.weight, std=0.02)  # else the outputs do not depend on the inputs
    network.save_pretrained(folder / "transformer")


def side(modality: str, case: Case, options: Any, folder: Path) -> Side:
    model = case.model
    prompts, members, length, pixels = SIZES[model]
    settings: dict[str, Any] = {"model": "lab:shapes" if model == "lab" else str(folder / model)}
    settings |= {"name": modality, "height": pixels, "width": pixels}
    lengths = {"max_sequence_length": length}
    settings |= lengths if modality == "sd3" else {"arguments": lengths, "replay": case.replay == "on"}
    if case.train == "lora":
        settings["lora"] = {"rank": 8, "alpha": 16, "targets": ["attn.to_q", "attn.to_k", "attn.to_v"]}
    overrides = [
        f"threads={options.threads}", f"modality={json.dumps(settings)}",
        "sampler={name: flow_sde, sigmas: uniform, noise_level: 1.0}", f"sampler.guidance_scale={case.scale}",
        f"group_size={members}", f"prompts_per_iteration={prompts}", f"sampler.num_steps={options.steps}",
        f"updates.micro_batch={prompts * members}", "loss={name: grpo}",
    ]  # fmt: skip
    return Side(trainer_of("quickstart_policy_gradient", overrides, folder / modality))


def measure(case: Case, options: Any, folder: Path) -> None:
    """Runs one case and prints its line."""
    by_hand, driven = (side(name, case, options, folder) for name in ("sd3", "diffusers_pipeline"))
    torch.manual_seed(0)
    pairs = in_turns(driven, by_hand, options.pairs)
    emit(
        "driven",
        **asdict(case),
        pairs=options.pairs,
        ratio=round(median_ratio(pairs, "rollout", "update"), 3),
        ratio_rollout=round(median_ratio(pairs, "rollout"), 3),
        ratio_update=round(median_ratio(pairs, "update"), 3),
        bar=BAR.get(case.model),
        beside_ms={"driven": middle(driven.beside), "sd3": middle(by_hand.beside)},
        gradient_difference=gradient_difference(driven.trainer.policy, by_hand.trainer.policy),
        seconds_driven=median_seconds([first for first, _ in pairs]),
        seconds_sd3=median_seconds([second for _, second in pairs]),
    )


def gradient_difference(driven: Any, by_hand: Any) -> float | None:
    """norm(difference) / norm of the last gradients; None where all rewards were equal, so that there is none.

    The hand-written policy freezes weights that reach no output.
    """
    other = driven.weights.parameters
    pairs = [(other[name].grad, weight.grad) for name, weight in by_hand.weights.parameters.items()]
    ours, theirs = (torch.cat([part.flatten() for part in parts]) for parts in zip(*pairs, strict=True))
    return float((ours - theirs).norm() / theirs.norm()) if bool(theirs.any()) else None


def middle(values: Sequence[float]) -> float:
    """Median, without the first."""
    return round(statistics.median(values[1:]), 2)


def main() -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("--pairs", type=int, default=9)
    parser.add_argument("--steps", type=int, default=4, help="of sampling")
    parser.add_argument("--models", nargs="+", choices=MODELS, default=MODELS)
    parser.add_argument("--train", nargs="+", choices=("full", "lora"), default=("full", "lora"))
    parser.add_argument("--scales", nargs="+", type=float, default=SCALES)
    parser.add_argument("--replay", nargs="+", choices=("on", "off"), default=("off", "on"))
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    with tempfile.TemporaryDirectory() as folder:
        write_layers8(Path(folder) / "layers8")
        for model in options.models:
            for train, scale, replay in product(options.train, options.scales, options.replay):
                measure(Case(model, train, scale, replay), options, Path(folder))


if __name__ == "__main__":
    main()
