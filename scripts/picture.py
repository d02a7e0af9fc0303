"""Draws a before-and-after picture from a run of the quickstart of that name: `scripts/picture.py RUN [NAME]`."""

import sys
from pathlib import Path

from mmrl.reporting.report import picture

NAMES = ("quickstart", "quickstart_gui", "quickstart_grounding")


def main() -> None:
    run, *rest = sys.argv[1:] or [""]
    name = rest[0] if rest else NAMES[0]
    if not run or len(rest) > 1 or name not in NAMES:
        sys.exit(
            f"usage: python scripts/picture.py RUN [{' | '.join(NAMES)}]   (RUN: the directory of a full quickstart)"
        )
    print(picture(Path(run), Path(__file__).parents[1] / "docs" / "images" / f"{name}.png"))


if __name__ == "__main__":
    main()
