"""Draws docs/images/quickstart.png, the picture of the README, from the run directory of a quickstart."""

import sys
from pathlib import Path

from mmrl.report import picture


def main() -> None:
    if len(sys.argv) != 2:
        sys.exit("usage: python scripts/picture.py RUN   (RUN: the directory of a full quickstart)")
    print(picture(Path(sys.argv[1]), Path(__file__).parents[1] / "docs" / "images" / "quickstart.png"))


if __name__ == "__main__":
    main()
