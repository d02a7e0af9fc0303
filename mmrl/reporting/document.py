"""The frame of a page that loads nothing: one HTML document whose policy allows its own style and script alone."""

from base64 import b64encode
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from html import escape

from mmrl.reporting.charts import library
from mmrl.reporting.theme import SCRIPT, STYLE


@dataclass(frozen=True)
class Section:
    """A part of a page with a link at its top; empty content leaves it out. All but the anchor is HTML."""

    title: str
    anchor: str
    about: str
    content: str


def document(title: str, header: str, sections: Sequence[Section], *, own_style: str = "") -> str:
    """Returns the whole document.

    Args:
        title: of the window, as plain text. header: HTML above the links. own_style: CSS beside that of all pages.
    """
    present = [section for section in sections if section.content]
    links = "".join(f'<a href="#{section.anchor}">{section.title}</a>' for section in present)
    body = "".join(
        f'<section id="{section.anchor}"><h2>{section.title}</h2><p class="about">{section.about}</p>'
        f"{section.content}</section>"
        for section in present
    )
    of_uplot, uplot = library()
    style, script = of_uplot + STYLE + own_style, uplot + SCRIPT
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{_policy(style, script)}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{style}</style></head><body><main>"
        f"{header}<nav>{links}</nav>{body}</main>"
        f'<div id="tip" role="status"></div><script>{script}</script></body></html>\n'
    )


def _policy(*texts: str) -> str:
    """Returns the page's security policy: nothing loads but inlined media, and no style or script but these two."""
    style, script = (b64encode(sha256(text.encode()).digest()).decode() for text in texts)
    return (
        "default-src 'none'; img-src data:; media-src data:; "
        f"style-src 'sha256-{style}'; script-src 'sha256-{script}'; "
        "base-uri 'none'; form-action 'none'"
    )


def grid(columns: str, cards: Sequence[str]) -> str:
    """Returns cards in columns (`two` or `three`); nothing where there are none."""
    return f'<div class="grid {columns}">{"".join(cards)}</div>' if cards else ""
