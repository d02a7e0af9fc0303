"""How long the loop waits for screenshots to be decoded and encoded, and how long a run with many rows takes to start.

    python benchmarks/data_loading.py screenshots            # 512 PNGs of 1920 x 1080, an update that sleeps 2 s
    python benchmarks/data_loading.py rows --rows 100000     # seconds of `mmrl check` on JSON lines with images

`screenshots` writes the pictures into a temporary folder, and takes them 8 at a time through the encoder of a small
Qwen2.5-VL, whose processor is the real one. The update sleeps, as the process does beside a GPU. `rows` starts
processes, with an empty cache of headers before the first.
"""

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import torch
from _common import argument_parser, emit
from PIL import Image, ImageDraw

from mmrl.core.config import DatasetSettings
from mmrl.core.contracts import Placement
from mmrl.modalities.encoding.inputs import EncodedPrompt
from mmrl.modalities.tiny.vision_language import write_tiny
from mmrl.modalities.vision_language import VisionLanguage
from mmrl.prompts.stream import PromptStream, load_prompts

SIZE = (1920, 1080)
PIXELS = 1_500_000  # of an image after resizing: about 1,900 tokens


def write_screens(folder: Path, count: int) -> Path:
    """Writes pictures like screens, flat areas with noise and lines of small marks, and the rows that name them."""
    rng = random.Random(0)
    noise = Image.effect_noise((SIZE[0] // 2, SIZE[1] // 2), 40).convert("RGB")  # as of a photograph on the page
    rows = []
    for number in range(count):
        image = Image.new("RGB", SIZE, (rng.randrange(200, 256),) * 3)
        image.paste(noise, (rng.randrange(SIZE[0] // 2), rng.randrange(SIZE[1] // 2)))
        pen = ImageDraw.Draw(image)
        for _ in range(600):
            x, y = rng.randrange(SIZE[0]), rng.randrange(SIZE[1])
            colour = tuple(rng.randrange(256) for _ in range(3))
            pen.rectangle((x, y, x + rng.randrange(2, 60), y + rng.randrange(2, 14)), fill=colour)
        image.save(folder / f"{number}.png", compress_level=6)
        rows.append({"prompt": "click the red button", "image": f"{number}.png", "box": [10, 10, 90, 60]})
    path = folder / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def loop(policy: VisionLanguage, stream: PromptStream, arguments: argparse.Namespace) -> tuple[list[float], str]:
    """Returns the seconds of each iteration that the loop waits for its prompts, and a digest of what it got."""
    waited, digest = [], 0
    for _ in range(arguments.images // arguments.batch):
        started = time.perf_counter()
        encoded = policy.encode([prompt for _, prompt in stream.take(arguments.batch)])
        waited.append(time.perf_counter() - started)
        digest = hash((digest, *map(digest_of, encoded)))
        policy.prefetch([prompt for _, prompt in stream.upcoming(arguments.batch)])
        time.sleep(arguments.update)
    return waited, f"{digest:x}"


def digest_of(encoded: EncodedPrompt) -> int:
    """Returns a number that depends on every bit of the tensors."""
    tensors = (encoded.tokens, encoded.positions, *encoded.media.values())
    return hash(tuple(hash(tensor.contiguous().numpy().tobytes()) for tensor in tensors))


def screenshots(arguments: argparse.Namespace) -> None:
    """Measures the loop without threads, and with them."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        rows = write_screens(folder, arguments.images)
        write_tiny("qwen2_5_vl", 1, folder / "model")
        prompts = load_prompts(DatasetSettings(path=str(rows)))
        seconds, digests = {}, set()
        for workers in (0, arguments.workers):
            policy = VisionLanguage(model=str(folder / "model"), max_pixels=PIXELS, prompt_cache=1)
            policy.prepare(Placement(torch.device("cpu"), torch.float32))
            policy.use_workers(workers, 4 * 2**30)
            waited, digest = loop(policy, PromptStream([prompts], [1.0], 0), arguments)
            policy.close()
            digests.add(digest)
            key = "before" if workers == 0 else "after"
            seconds[key], seconds[f"{key}_without_first"] = sum(waited), sum(waited[1:])
    shown = {key: round(value, 2) for key, value in seconds.items()}
    share = seconds["after"] / seconds["before"]
    emit("data_loading/screenshots", **vars(arguments), seconds_waited=shown, share=round(share, 3),
         is_same=len(digests) == 1)  # fmt: skip


def rows(arguments: argparse.Namespace) -> None:
    """Measures how long `mmrl check` takes with and without the rows."""
    with tempfile.TemporaryDirectory() as name:
        folder, home = Path(name), Path(name) / "home"
        (folder / "images").mkdir()
        home.mkdir()
        Image.new("RGB", (640, 480), (9, 90, 200)).save(folder / "first.png")
        content = (folder / "first.png").read_bytes()
        with (folder / "rows.jsonl").open("w") as file:
            for number in range(arguments.rows):
                (folder / "images" / f"{number}.png").write_bytes(content)
                row = {"prompt": f"How many red boxes are in picture {number}?", "images": [f"images/{number}.png"],
                       "answer": str(number % 9), "id": number}  # fmt: skip
                file.write(json.dumps(row | ({"box": [10, 10, 90, 60]} if arguments.boxes else {})) + "\n")
        (folder / "few.jsonl").write_text(json.dumps(row | ({"box": [1, 1, 9, 6]} if arguments.boxes else {})) + "\n")
        seconds = {}
        for key in ("few", "rows", "rows_again"):
            data = folder / f"{key.removesuffix('_again')}.jsonl"
            seconds[key] = check(arguments.config, data, home)
    emit("data_loading/rows", **vars(arguments), seconds={key: round(value, 2) for key, value in seconds.items()})


def check(config: str, data: Path, home: Path) -> float:
    """Returns the seconds of a check of a config with these rows as its training prompts."""
    settings = [f"prompts.train={{path: {data}}}", "prompts.held_out=null", "evaluation=null"]
    started = time.perf_counter()
    command = [sys.executable, "-m", "mmrl", "check", config, *settings]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env={**os.environ, "HOME": str(home)})
    return time.perf_counter() - started


def main(given: Sequence[str] | None = None) -> None:
    """Runs the benchmark that the command line names."""
    parser = argument_parser(__doc__)
    parser.add_argument("what", choices=("screenshots", "rows"))
    parser.add_argument("--images", type=int, default=512)
    parser.add_argument("--batch", type=int, default=8, help="prompts of an iteration")
    parser.add_argument("--update", type=float, default=2.0, help="seconds that the update sleeps")
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--boxes", action="store_true", help="rows with a box, for which each image's size is needed")
    parser.add_argument("--config", default="geometry3k_qwen25vl_7b")
    arguments = parser.parse_args(given)
    torch.set_num_threads(arguments.threads)
    {"screenshots": screenshots, "rows": rows}[arguments.what](arguments)


if __name__ == "__main__":
    main()
