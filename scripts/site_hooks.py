"""Lets links of docs/ leave docs/: what they lead to becomes a page of the site. Also makes the API reference.

mkdocs calls the functions `on_...` (mkdocs.yml names this file). A linked Markdown file is rendered, a linked source
file is shown with its code highlighted, a linked folder as the list of its files; files that nobody links get no page.
The text that stands in git is the same that GitHub shows: links are rewritten here, while the site is built.
"""

import os
import re
from html import escape
from pathlib import Path

import public_api
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page
from mkdocs.utils import get_relative_url

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
OUTSIDE = "repository"  # the folder of the site for pages of files outside docs/
IN_NAV = {f"{OUTSIDE}/{name}.md" for name in ("benchmarks/README", "CONTRIBUTING", "CHANGELOG")}  # see docs/.nav.yml
LANGUAGES = {".py": "python", ".yaml": "yaml", ".yml": "yaml", ".toml": "toml", ".sh": "bash", ".js": "javascript"}
PICTURES = (".png", ".svg", ".jpg", ".gif", ".webp")
# A code block or an inline code, which hold no links; or a link, of Markdown or HTML.
LINK = re.compile(
    r"(?P<code>^(?P<fence> *(?:`{3,}|~{3,})).*?^(?P=fence)`* *$|(?P<ticks>`+)(?!`).+?(?<!`)(?P=ticks)(?!`))"
    r"|(?P<open>\]\(|\b(?:src|srcset|href)=\")(?P<target>[^)\s\"]+)",
    re.MULTILINE | re.DOTALL,
)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the pages of the API reference, and a page for each file outside docs/ that a page links."""
    for path, text in _reference().items():
        files.append(File.generated(config, path.relative_to(DOCS).as_posix(), content=text))
    pages = (DOCS / file.src_uri for file in files)
    waiting = [path for path in pages if path.suffix in (".md", ".ipynb") and path.is_file()]
    made: set[Path] = set()
    while waiting:
        page = waiting.pop()
        for target in _targets(page.read_text(encoding="utf-8")):
            path = (page.parent / target.partition("#")[0]).resolve()
            if path in made or path.is_relative_to(DOCS) or not path.is_relative_to(ROOT) or not path.exists():
                continue
            made.add(path)
            files.append(_generated(path, config))
            if path.suffix == ".md":
                waiting.append(path)
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Rewrites the links of a page."""
    own = page.file.src_uri

    def rewritten(match: re.Match[str]) -> str:
        if match["code"] or _is_elsewhere(match["target"]):
            return match[0]
        if match["open"] != "](":  # HTML: mkdocs leaves its links alone
            return match["open"] + _address(match["target"], page, files)
        name, hash_, anchor = match["target"].partition("#")
        place = os.path.relpath(_place((_origin(own).parent / name).resolve()), Path(own).parent) if name else ""
        return "](" + place + hash_ + anchor

    return LINK.sub(rewritten, markdown)


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Mends a page: bars in tables, which are written with a backslash; links and scripts of notebooks."""
    html = re.sub(r"<td.*?</td>", lambda cell: cell[0].replace(r"\|", "|"), html, flags=re.DOTALL)
    if not page.file.src_uri.endswith(".ipynb"):
        return html
    html = re.sub(r"<script type=\"module\">(?:(?!</script>).)*mermaid.*?</script>", "", html, flags=re.DOTALL)
    links = r'(href=")([^"#:]+\.\w+(?:#[^"]*)?)'
    return re.sub(links, lambda link: link[1] + _address(link[2], page, files), html)


def _address(target: str, page: Page, files: Files) -> str:
    """Returns the link of a page to a file of the repository, as the site has it; what is no such file as it is."""
    name, hash_, anchor = target.partition("#")
    file = files.get_file_from_path(_place((_origin(page.file.src_uri).parent / name).resolve())) if name else None
    return get_relative_url(file.url, page.file.url) + hash_ + anchor if file else target


def _targets(markdown: str) -> list[str]:
    found = (match["target"] for match in LINK.finditer(markdown) if not match["code"])
    return [target for target in found if not _is_elsewhere(target)]


def _is_elsewhere(target: str) -> bool:
    return target.startswith(("http:", "https:", "mailto:", "data:"))


def _place(path: Path) -> str:
    """Returns where a file or folder of the repository is on the site, as a path in docs/."""
    if path.is_relative_to(DOCS):
        return path.relative_to(DOCS).as_posix()
    if not path.is_relative_to(ROOT):
        return path.as_posix()  # no file of the repository: mkdocs says that there is none
    inside = path.relative_to(ROOT).as_posix()
    return f"{OUTSIDE}/{inside}" + ("" if path.suffix == ".md" or path.suffix in PICTURES else ".md")


def _origin(src_uri: str) -> Path:
    """Returns the file that a page shows."""
    if not src_uri.startswith(f"{OUTSIDE}/"):
        return DOCS / src_uri
    path = ROOT / src_uri.removeprefix(f"{OUTSIDE}/")
    return path if path.exists() else path.with_suffix("")


def _generated(path: Path, config: MkDocsConfig) -> File:
    place = _place(path)
    if path.suffix in PICTURES:
        return File.generated(config, place, abs_src_path=str(path))
    if path.suffix == ".md":
        inclusion = InclusionLevel.INCLUDED if place in IN_NAV else InclusionLevel.NOT_IN_NAV
        return File.generated(config, place, content=path.read_text(encoding="utf-8"), inclusion=inclusion)
    if path.is_dir():
        names = sorted(
            inner.name + "/" * inner.is_dir() for inner in path.iterdir() if not inner.name.startswith((".", "_"))
        )
        content = f"# {path.relative_to(ROOT)}\n\n" + "".join(f"- `{escape(name)}`\n" for name in names)
    else:
        code = path.read_text(encoding="utf-8")
        content = "---\nsearch: {exclude: true}\n---\n"
        content += f"# {path.relative_to(ROOT)}\n\n````` {LANGUAGES.get(path.suffix, 'text')}\n{code}\n`````\n"
    return File.generated(config, place, content=content, inclusion=InclusionLevel.NOT_IN_NAV)


def _reference() -> dict[Path, str]:
    """Returns the pages of the API reference, one for each subject of `PUBLIC` in scripts/public_api.py."""
    pages = {}
    for subject, modules in public_api.modules().items():
        text = f"# {subject}\n"
        for module, names in modules.items():
            text += f"\n## {module}\n"
            for name in names:
                if not name.is_member:
                    text += f"\n::: {name.path}\n"
        pages[DOCS / "reference" / f"{subject.lower().replace(' ', '_')}.md"] = text
    return pages
