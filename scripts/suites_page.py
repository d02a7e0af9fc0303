"""Writes the table of docs/suites.md from the files of suites: `python scripts/suites_page.py`."""

from pathlib import Path

from mmrl.commands.suites import judges, number_in_words
from mmrl.core.suites import load_suite, suite_names

FILE = Path(__file__).parents[1] / "docs" / "suites.md"
START = "<!-- written by scripts/suites_page.py -->\n"


def page(text: str) -> str:
    """Returns the text of the page with a new table behind the mark."""
    return text.partition(START)[0] + START + "\n" + table()


def table() -> str:
    """Returns the suites as a table of markdown, with their published numbers and how each differs below."""
    lines = ["| suite | of | number | judge | samples |", "|---|---|---|---|---|"]
    notes: list[str] = []
    for name in suite_names():
        suite = load_suite(name).settings
        lines.append(
            f"| `{name}` | {suite.title}: {suite.kind} | {number_in_words(suite)} | "
            f"{', '.join(f'`{judge}`' for judge in judges(suite))} | {suite.samples_per_prompt} |"
        )
        known = "; ".join(f"{one.model} {one.number:g} ({one.source})" for one in suite.published)
        notes.append(
            f"- `{name}`: {suite.source}. Data: {suite.data}. {suite.note}{f' Published: {known}.' * bool(known)}"
        )
    return "\n".join([*lines, "", *notes, ""])


if __name__ == "__main__":
    FILE.write_text(page(FILE.read_text(encoding="utf-8")), encoding="utf-8")
