"""The site: a strict build, links that lead somewhere, nothing loaded from elsewhere; its hooks and its pictures."""

import os
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import concept_pictures
import pytest
import site_hooks

ROOT = Path(__file__).parents[1]
LOADED = {"img": "src", "script": "src", "link": "href", "iframe": "src", "source": "srcset"}


class Parts(HTMLParser):
    """The links, the loaded files and the anchors of a page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.anchors: set[str] = {""}
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value for name, value in attrs if value}
        self.anchors |= {values[name] for name in ("id", "name") if name in values}
        if tag == "a" and "href" in values:
            self.links.append(values["href"])
        if tag in LOADED and LOADED[tag] in values and values.get("rel") != "canonical":
            self.loaded.append(values[LOADED[tag]])


@pytest.mark.slow  # half a minute: every page and the whole API reference
def test_the_site_is_built_strictly_and_every_link_leads_somewhere(tmp_path: Path) -> None:
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert built.returncode == 0, built.stderr
    pages = {path: Parts(path.read_text(encoding="utf-8")) for path in tmp_path.rglob("*.html")}
    assert sum(path.name == "index.html" for path in pages) >= 20
    broken = [
        f"{page.relative_to(tmp_path)}: {link}"
        for page, parts in pages.items()
        if page.name != "404.html"  # whose links begin at the root of a server
        for link in (*parts.links, *parts.loaded)
        if not leads_somewhere(link, page, pages)
    ]
    assert not broken, broken[:20]
    elsewhere = {link for parts in pages.values() for link in parts.loaded if urlsplit(link).netloc}
    assert not elsewhere, "the site loads nothing from elsewhere"


def leads_somewhere(link: str, page: Path, pages: dict[Path, Parts]) -> bool:
    """Whether a file of the site has the link's name and anchor; links to elsewhere are not followed."""
    parts = urlsplit(link)
    if parts.scheme or parts.netloc:
        return True
    target = Path(os.path.normpath(page.parent / unquote(parts.path))) if parts.path else page
    if target.is_dir():
        target /= "index.html"
    return target.is_file() and (target not in pages or unquote(parts.fragment) in pages[target].anchors)


def test_links_are_found_outside_of_code_only() -> None:
    text = 'a [`b`](c.md#d), `[e](f.md)`, <img src="g.png">\n\n```text\n[h](i.md)\n```\n[j](../k.py) ![l](m.svg)\n'
    found = [match["target"] for match in site_hooks.LINK.finditer(text) if not match["code"]]
    assert found == ["c.md#d", "g.png", "../k.py", "m.svg"]


@pytest.mark.slow
@pytest.mark.parametrize("name", concept_pictures.PLANS)
def test_the_pictures_of_plans_are_those_of_the_samplers(name: str) -> None:
    drawn = concept_pictures.plan_picture(concept_pictures.plan_of(name))
    assert (concept_pictures.FOLDER / f"plan_{name}.svg").read_text(encoding="utf-8") == drawn


@pytest.mark.slow
def test_a_picture_of_a_plan_has_a_dot_for_each_call_and_a_square_for_each_sample() -> None:
    plan = concept_pictures.plan_of("branch_grpo")
    drawn = concept_pictures.plan_picture(plan)
    assert drawn.count("<circle") == 1 + 2 + 4 + 5 * 8 == plan.num_rollout_calls
    assert drawn.count('width="8"') == 8
    assert drawn.count(concept_pictures.CHOSEN) == 2 + 4 + 8 + 4 * 8  # edges of the seven random steps
