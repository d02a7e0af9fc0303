"""Makes the pictures of docs/gallery.md: `python scripts/gallery.py`, about 5 minutes on one core.

It trains quickstarts in `runs/gallery` (one that is finished is not made again), scores what one of them drew, and
photographs pages with a headless Chromium. The gallery says which command each picture comes from.
"""

import argparse
import io
import json
import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from curve_pictures import strip, train
from PIL import Image
from playwright.sync_api import sync_playwright

from mmrl.environments.base.chromium import find_executable
from mmrl.reporting.report import picture

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "docs" / "gallery"
LARGEST = 400_000  # bytes of a picture

QUICK = "evaluation.every=0 evaluation.num_prompts=64"
COMMANDS: Mapping[str, str] = {  # run: the command that the page shows
    "boxes": f"mmrl train quickstart_grounding iterations=80 {QUICK} --out runs/gallery/boxes",
    "spans": f"mmrl train quickstart_video iterations=40 {QUICK} --out runs/gallery/spans",
    "episodes": f"mmrl train quickstart_agent iterations=25 {QUICK} --out runs/gallery/episodes",
}
IMAGES = "runs/curves/images"  # a run of scripts/curve_pictures.py: the quickstart, with a reward that only measures
CLICKS = "runs/curves/clicks"  # another
REPORTED = f"mmrl report {CLICKS}"
SCORED = (
    f"mmrl score {IMAGES}/samples/000000 --reward shapes --reward 'jpeg_size weight=0.05' "
    "--html runs/gallery/scores.html"
)
SHEETS = ("boxes", "spans", "episodes")  # before and after, as contact sheets
ITERATIONS = (0, 5, 10, 20, 30)  # of `IMAGES`: what it drew while it learned
PAGES: Mapping[str, tuple[str, int, int]] = {  # picture: the page, and width and height of the window in pixels
    "report": (f"{CLICKS}/report.html", 1100, 1900),
    "scores": ("runs/gallery/scores.html", 1100, 1300),
}


def run(command: str, folder: Path) -> None:
    """Runs a command of the page in `folder`, with one thread."""
    program, *arguments = shlex.split(command)
    assert program == "mmrl"
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    settings = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(paths)}
    subprocess.run([sys.executable, "-m", "mmrl", *arguments], cwd=folder, env=settings, check=True)


def is_finished(folder: Path) -> bool:
    summary = folder / "summary.json"
    return summary.exists() and bool(json.loads(summary.read_text(encoding="utf-8"))["is_complete"])


def photograph(page: Path, width: int, height: int) -> Image.Image:
    """Returns the top of a page as a headless Chromium shows it; raises ConfigError where there is none."""
    with sync_playwright() as driver:
        program = find_executable(None, Path(driver.chromium.executable_path))
        with driver.chromium.launch(executable_path=program, chromium_sandbox=False) as browser:
            view = browser.new_page(viewport={"width": width, "height": height})
            view.goto(page.as_uri())
            return Image.open(io.BytesIO(view.screenshot()))


def save(sheet: Image.Image, name: str) -> None:
    """Writes a picture of the page as a PNG with a palette."""
    FOLDER.mkdir(exist_ok=True)
    target = FOLDER / f"{name}.png"
    sheet.convert("RGB").quantize(128, dither=Image.Dither.NONE).save(target, "PNG", optimize=True)
    print(f"{target.relative_to(ROOT)}: {target.stat().st_size} bytes")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--work", type=Path, default=ROOT, help="the folder where runs/gallery goes")
    parser.add_argument("--no-browser", action="store_true", help="leave out the pictures of pages")
    given = parser.parse_args()
    work = given.work.resolve()
    runs = work / "runs" / "gallery"
    for name, command in COMMANDS.items():
        if not is_finished(runs / name):
            run(command, work)
    for name in ("images", "clicks"):
        train(name, work / "runs" / "curves")
    save(strip(work / IMAGES, ITERATIONS), "learning")
    with tempfile.TemporaryDirectory() as folder:
        for name in SHEETS:
            with Image.open(picture(runs / name, Path(folder) / f"{name}.png")) as sheet:
                save(sheet, name)
    if not given.no_browser:
        run(REPORTED, work)
        run(SCORED, work)
        for name, (page, width, height) in PAGES.items():
            save(photograph(work / page, width, height), name)


if __name__ == "__main__":
    main()
