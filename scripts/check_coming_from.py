"""Runs every example of docs/coming_from small: `python scripts/check_coming_from.py`, about a minute for each page.

`python scripts/check_coming_from.py NAME.yaml ...` runs those only. The exit status is 1 where one is not well.
"""

import re
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from mmrl.commands.check import check_tiny
from mmrl.core.config import load_config

FOLDER = Path(__file__).parents[1] / "docs" / "coming_from"
# A block that begins with the name of its file is a whole config; other blocks are parts of one.
BLOCK = re.compile(r"^```yaml\n(# ([\w-]+\.yaml)\b.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Example:
    """A config that a page shows whole."""

    page: Path
    name: str  # of its file
    text: str

    def write(self, folder: Path) -> Path:
        """Writes the file and returns its path."""
        path = folder / self.name
        path.write_text(self.text, encoding="utf-8")
        return path


def examples_of(page: Path) -> list[Example]:
    """Returns the configs of a page, in its order."""
    return [Example(page, name, text) for text, name in BLOCK.findall(page.read_text(encoding="utf-8"))]


def examples() -> list[Example]:
    """Returns the configs of all pages."""
    return [example for page in sorted(FOLDER.glob("*.md")) for example in examples_of(page)]


def main(chosen: list[str]) -> int:
    """Runs the examples and prints a line for each."""
    bad, known = 0, examples()
    if unknown := set(chosen) - {example.name for example in known}:
        sys.exit(f"no page has {', '.join(sorted(unknown))}; there are {', '.join(example.name for example in known)}")
    for example in known:
        if chosen and example.name not in chosen:
            continue
        start = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="mmrl-coming-from-") as folder:
            findings = check_tiny(load_config(example.write(Path(folder))))
        bad += not findings["is_good"]
        verdict = "well" if findings["is_good"] else f"NOT WELL: {findings}"
        print(f"{example.page.stem}/{example.name}: {verdict}, {time.monotonic() - start:.0f} s", flush=True)
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
