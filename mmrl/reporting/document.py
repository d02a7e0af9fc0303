"""The frame of a page: one HTML document whose policy allows its own style and script alone."""

from base64 import b64encode
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256

from mmrl.reporting.charts import library
from mmrl.reporting.formatting import shown_text
from mmrl.reporting.theme import SCRIPT, STYLE

SERVED = "img-src 'self'; media-src 'self'; connect-src 'self'"  # what a page of a server loads


@dataclass(frozen=True)
class Section:
    """A part of a page with a link at its top; empty content leaves it out. All but the anchor is HTML."""

    title: str
    anchor: str
    about: str
    content: str

    def html(self) -> str:
        """Returns the whole section."""
        return (
            f'<section id="{self.anchor}"><h2>{self.title}</h2><p class="about">{self.about}</p>'
            f"{self.content}</section>"
        )


def loading_nothing(name: str, header: str, sections: Sequence[Section], *, own_style: str = "") -> str:
    """Returns a whole document that loads nothing.

    Args:
        name: in the window's title, as plain text. header: HTML above the links. own_style: CSS beside that of all
            pages.
    """
    present = [section for section in sections if section.content]
    of_uplot, uplot = library()
    body = header + links_to(present) + "".join(section.html() for section in present)
    style, script = of_uplot + STYLE + own_style, uplot + SCRIPT
    return document(name, f"<main>{body}</main>", style, script, "img-src data:; media-src data:")


def links_to(sections: Sequence[Section]) -> str:
    """Returns the links to all sections."""
    links = "".join(f'<a href="#{one.anchor}">{one.title}</a>' for one in sections)
    return f"<nav>{links}</nav>"


def document(name: str, body: str, style: str, script: str, allowed: str) -> str:
    """Returns a document with one style and one script; `allowed`: what its security policy lets it load."""
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy(style, script, allowed)}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{shown_text(name)} - mmrl</title><style>{style}</style></head><body>{body}"
        f'<div id="tip" role="status"></div><script>{script}</script></body></html>\n'
    )


def policy(style: str, script: str, allowed: str) -> str:
    """Returns a page's security policy: no style or script but these two, and nothing loads but what is allowed."""
    style, script = (b64encode(sha256(text.encode()).digest()).decode() for text in (style, script))
    return (
        f"default-src 'none'; {allowed}; style-src 'sha256-{style}'; script-src 'sha256-{script}'; "
        "base-uri 'none'; form-action 'none'"
    )


def served_policy(style: str, script: str) -> str:
    """Returns the security policy of a page that a server of this machine sends, and no other page shows in a frame."""
    return f"{policy(style, script, SERVED)}; frame-ancestors 'none'"


def grid(columns: str, cards: Sequence[str]) -> str:
    """Returns cards in columns (`two` or `three`); nothing where there are none."""
    return f'<div class="grid {columns}">{"".join(cards)}</div>' if cards else ""
