"""Live tensors while clips are sampled and decoded, against the memory that `mmrl check` says before.

    python benchmarks/clip_memory.py

A random Wan pipeline with an autoencoder of 8 channels makes clips of 5 frames; mmrl's own collector samples and scores
groups of 2, 4 and 8 of them, decoded in chunks (`--chunks`), whole and in tiles. `measured` is the largest sum of bytes
of live tensors in a rollout above what is left when all groups are scored (states and log-probs, for the update). What
rewards need while they score is theirs, and not counted.
`said` are the two numbers of `check`: the videos that are held, and what decoding takes beside them. Where one chunk
is the whole batch, the decoded chunk is the batch, so that it is counted once. `groups` shows that more groups, sampled
one after the other, hold no more.
Bar: `measured_over_said` from 0.9 to 1.1; the most over the least of `groups` at most 1.02.
"""

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from typing import Any

from _common import argument_parser, emit

from mmrl.assembly.build import build, make_trainer
from mmrl.assembly.costs import memory_of_videos
from mmrl.core.config import RunConfig, load_config
from mmrl.modalities.tiny.pipelines.families import tiny_pipeline
from mmrl.modalities.tiny.pipelines.parts import wan_vae
from mmrl.modalities.tiny.text import randomise
from mmrl.system.live_tensors import LiveTensors

CONFIG = """
iterations: 1
group_size: {size}
prompts_per_iteration: {groups}
rollout_groups: 1
threads: 1
scoring: {{overlap: false}}
prompts: {{train: {folder}/prompts.txt}}
modality: {{name: diffusers_pipeline, model: {folder}/wan, output: video, height: {side}, width: {side}, num_frames: 5,
  arguments: {{max_sequence_length: 32}}, decode_batch: {chunk}, vae_tiling: {tiled}}}
sampler: {{name: flow_sde, num_steps: 2, sigmas: pipeline}}
rewards: [{{name: flicker}}]
advantage: {{name: grpo}}
loss: {{name: grpo}}
optimizer: {{learning_rate: 1.0e-4}}
"""
SIDES = {False: 64, True: 288}  # pixels; a tile of this autoencoder has 256
TOLERANCE, FLAT = 0.1, 1.02


def main() -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("--sizes", type=int, nargs="+", default=[2, 4, 8], help="clips of a group")
    parser.add_argument("--chunks", type=int, nargs="+", default=[1, 2], help="clips that are decoded at once")
    parser.add_argument("--groups", type=int, nargs="+", default=[1, 2, 4], help="groups, of 2 clips each")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_pipeline(folder)
        for tiled, chunk, size in product((False, True), arguments.chunks, arguments.sizes):
            config = config_of(folder, size, 1, chunk, tiled)
            said, measured = said_of(config), measured_of(config, folder)
            row = {"tiled": tiled, "chunk": chunk, "clips": size, "said_mib": mib(said), "measured_mib": mib(measured)}
            ratio = measured / said
            emit("clip_memory", **row, measured_over_said=round(ratio, 3), met=abs(ratio - 1) <= TOLERANCE)
        peaks = {count: measured_of(config_of(folder, 2, count, 1, False), folder) for count in arguments.groups}
        spread = max(peaks.values()) / min(peaks.values())
        shown = {count: mib(peak) for count, peak in peaks.items()}
        emit("clip_memory", groups=shown, spread=round(spread, 3), met=spread <= FLAT)


def write_pipeline(folder: Path) -> None:
    """Writes the pipeline and the prompts."""
    import torch

    pipeline = tiny_pipeline("wan21", 0)
    pipeline.vae = wan_vae(base_dim=8)
    randomise(pipeline.vae, torch.Generator().manual_seed(0))
    pipeline.save_pretrained(folder / "wan")
    (folder / "prompts.txt").write_text("\n".join(f"a dog and {count} cats" for count in range(8)))


def config_of(folder: Path, size: int, groups: int, chunk: int, tiled: bool) -> RunConfig:
    """Returns the settings of groups of `size` clips."""
    text = CONFIG.format(
        folder=folder, size=size, groups=groups, chunk=chunk, tiled=str(tiled).lower(), side=SIDES[tiled]
    )
    (folder / "clips.yaml").write_text(text)
    return load_config(str(folder / "clips.yaml"), [])


def said_of(config: RunConfig) -> int:
    """Returns the bytes that `check` says: of videos, and of decoding."""
    parts = build(config)
    shown = memory_of_videos(config, parts.policy, config.prompts_per_iteration)
    videos, decoding = (2**20 * value for name, value in shown.items() if "MiB" in name)
    is_whole = config.modality["decode_batch"] >= config.group_size
    return int(decoding if is_whole else videos + decoding)


def measured_of(config: RunConfig, folder: Path) -> int:
    """Returns the peak of live tensors of one collection, above what is left of it."""
    trainer = make_trainer(config, build(config), folder / "run")
    policy: Any = trainer.policy
    trainer.collector(0, trainer.sampling_weights)  # proves the pipeline, and encodes the prompts
    live, peaks, rollout = LiveTensors(), list[int](), policy.rollout

    def noted(*args: Any) -> Any:
        live.peak = live.now
        made = rollout(*args)
        peaks.append(live.peak)
        return made

    policy.rollout = noted
    with _counted_in_threads(live, policy._pipeline), live:
        collected = trainer.collector(1, trainer.sampling_weights)
    peak = max(peaks) - int(live.now)
    assert collected.rollout is not None and collected.rollout.outputs.videos is None, "they are dropped when scored"
    policy.close()
    return int(peak)


@contextmanager
def _counted_in_threads(live: LiveTensors, pipeline: Any) -> Iterator[None]:
    """Counts the tensors of decoding, which runs in the threads of paused calls."""
    places = [(pipeline.vae, "decode"), (pipeline.video_processor, "postprocess_video")]
    for part, name in places:
        part.__dict__[name] = _within(live, getattr(part, name))
    yield
    for part, name in places:
        del part.__dict__[name]


def _within(live: LiveTensors, function: Callable[..., Any]) -> Callable[..., Any]:
    def counted(*args: Any, **kwargs: Any) -> Any:
        with live:
            return function(*args, **kwargs)

    return counted


def mib(size: float) -> float:
    """Returns a size in MiB."""
    return round(size / 2**20, 2)


if __name__ == "__main__":
    main()
