"""The page of `mmrl score`: every output with its scores, the best first, in one file that loads nothing."""

from base64 import b64encode
from collections.abc import Mapping
from hashlib import sha256
from html import escape
from pathlib import Path
from typing import Any

from PIL import Image

from mmrl.commands.score_items import Item
from mmrl.commands.score_results import NONE_JUDGED, Reckoning, Seeing, outputs_of
from mmrl.media.mp4 import Video, read_frames
from mmrl.media.pictures import StoredPicture
from mmrl.media.video import StoredClip, key_frames
from mmrl.reporting.drawing import Cell, filmstrip
from mmrl.reporting.formatting import breakable, count, number
from mmrl.reporting.players import Players
from mmrl.reporting.samples import TINY, data_uri, is_tiny
from mmrl.reporting.theme import STYLE
from mmrl.system.errors import ConfigError
from mmrl.training.held_out import answered

MAX_CARDS = 600  # of a page that a browser still opens at once; the rest is in --out
LARGEST = 384  # pixels of the longer side of a picture
NUM_FRAMES = 4  # of a video that are shown

OWN_STYLE = """
.cards { display: grid; grid-template-columns: repeat(auto-fill, minmax(230px, 1fr)); gap: 14px; }
.cards.answers { grid-template-columns: repeat(auto-fill, minmax(340px, 1fr)); }
.output { display: flex; flex-direction: column; gap: 8px; padding: 12px; }
.output img { display: block; width: 100%; height: auto; border-radius: 6px; background: var(--faint); }
.output video { display: block; width: 100%; height: auto; border-radius: 6px; background: var(--faint); }
.output .prompt { font-weight: 500; font-size: 14px; overflow-wrap: anywhere; max-height: 6em; overflow: auto; }
.output pre { margin: 0; font: inherit; font-size: 13px; white-space: pre-wrap; overflow-wrap: anywhere;
  max-height: 14em; overflow: auto; background: var(--page); border-radius: 6px; padding: 8px 10px; }
.output table { font-size: 13px; margin-top: auto; }
.output th, .output td { padding: 3px 0; }
.output .name { color: var(--soft); font-size: 12px; overflow-wrap: anywhere; }
.tools { display: flex; flex-wrap: wrap; gap: 8px; align-items: center; margin: 0 0 14px; color: var(--soft); }
button { font: inherit; font-size: 14px; color: var(--ink); background: var(--card); border: 1px solid var(--faint);
  border-radius: 16px; padding: 4px 14px; cursor: pointer; max-width: 100%; overflow-wrap: anywhere; }
button:hover { border-color: var(--accent); }
button[aria-pressed="true"] { background: var(--accent); color: var(--page); border-color: var(--accent); }
"""

SCRIPT = """
"use strict";
const cards = document.querySelector(".cards"), buttons = [...document.querySelectorAll("button")];
let column = 0, sign = -1;
const value = card => JSON.parse(card.dataset.scores)[column] ?? -Infinity;
const sort = () => {
  const missing = card => value(card) === -Infinity;
  cards.append(...[...cards.children].sort((a, b) => missing(a) - missing(b) || sign * (value(a) - value(b))));
  buttons.forEach((button, i) => {
    button.setAttribute("aria-pressed", i === column);
    button.textContent = button.dataset.name + (i === column ? (sign < 0 ? " \\u2193" : " \\u2191") : "");
  });
};
buttons.forEach((button, i) => button.addEventListener("click", () => {
  sign = i === column ? -sign : -1; column = i; sort();
}));
"""


def write_page(reckoning: Reckoning, file: Path, source: str, seeing: Seeing) -> None:
    """Writes the page. Raises ConfigError where a picture cannot be read any more."""
    rows = reckoning.rows()
    names = [*(["total"] if len(reckoning.scores.names) > 1 else []), *reckoning.scores.names]
    listed = [[row["total"], *row["scores"].values()][-len(names) :] for row in rows]
    order = sorted(range(len(rows)), key=lambda row: (listed[row][0] is None, -(listed[row][0] or 0.0)))
    players = Players()
    cards = [_card(reckoning.items[row], names, listed[row], seeing, players) for row in order[:MAX_CARDS]]
    is_text = reckoning.items[0].text is not None
    cut = f" The first {count(MAX_CARDS)} are shown." if len(rows) > MAX_CARDS else ""
    buttons = "".join(
        f'<button type="button" data-name="{escape(name)}" aria-pressed="{str(n == 0).lower()}">'
        f"{escape(name)}{' &darr;' if n == 0 else ''}</button>"
        for n, name in enumerate(names)
    )
    title = f"{escape(Path(source).name)} - mmrl score"
    text = (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{_policy()}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{title}</title><style>{STYLE}{OWN_STYLE}</style></head><body><main>"
        f'<header><p class="eyebrow">mmrl score</p><h1>{escape(source)}</h1>'
        f'<p class="lead">{count(len(rows))} outputs, the best first.{cut}</p></header>'
        f"<section><h2>Rewards</h2>{_table(reckoning)}</section>"
        f'<section><h2>Outputs</h2><p class="tools">sort by {buttons}</p>'
        f'<div class="cards{" answers" if is_text else ""}">{"".join(cards)}</div></section></main>'
        f"<script>{SCRIPT}</script></body></html>\n"
    )
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding="utf-8", errors="xmlcharrefreplace")  # names of files may be no UTF-8


def _policy() -> str:
    """Returns the page's security policy: nothing loads but inlined pictures, and no style or script but ours."""
    texts = (STYLE + OWN_STYLE, SCRIPT)
    style, script = (b64encode(sha256(text.encode()).digest()).decode() for text in texts)
    return (
        f"default-src 'none'; img-src data:; media-src data:; style-src 'sha256-{style}'; script-src 'sha256-{script}'"
    )


def _table(reckoning: Reckoning) -> str:
    heads = ("mean", "std", "min", "max", "failed")
    rows = "".join(
        f'<tr><th scope="row">{breakable(name)}</th>'
        + "".join(f'<td class="right">{_number(statistics, head)}</td>' for head in heads)
        + "</tr>"
        for name, statistics in reckoning.summary()["scores"].items()
    )
    columns = "".join(f'<th class="right">{head}</th>' for head in heads)
    failures = "".join(f'<p class="warning">{escape(failure)}</p>' for failure in reckoning.first_failures if failure)
    head = f"<thead><tr><th></th>{columns}</tr></thead>"
    return f'<div class="card"><table>{head}<tbody>{rows}</tbody></table></div>{failures}'


def _number(statistics: Mapping[str, Any], head: str) -> str:
    return NONE_JUDGED if head == "mean" and statistics["mean"] is None else number(statistics[head])


def _card(item: Item, names: list[str], scores: list[float | None], seeing: Seeing, players: Players) -> str:
    picture = _picture(item, seeing)
    shown = ""
    if item.file is not None and item.file.suffix.lower() == ".mp4":  # which browsers play
        is_small = picture is not None and picture.height <= TINY
        shown = players.player(item.file, item.name, is_tiny=is_small)
    if picture is not None:
        crisp = ' class="crisp"' if is_tiny(picture) or (item.is_video and picture.height <= TINY) else ""
        shown += (
            f'<img{crisp} loading="lazy" alt="{escape(item.name)}" width="{picture.width}" height="{picture.height}" '
            f'src="{data_uri(picture, LARGEST)}">'
        )
    rows = "".join(
        f'<tr><th scope="row">{breakable(name)}</th><td class="right">{number(score)}</td></tr>'
        for name, score in zip(names, scores, strict=True)
    )
    prompt = f'<p class="prompt">{escape(item.prompt.text)}</p>' if item.prompt.text else ""
    answer = "" if item.text is None else f"<pre>{escape(item.text)}</pre>"
    data = escape("[" + ",".join("null" if score is None else repr(score) for score in scores) + "]")
    return (
        f'<article class="card output" data-scores="{data}">{shown}{prompt}{answer}'
        f'<table><tbody>{rows}</tbody></table><p class="name">{escape(item.name)}</p></article>'
    )


def _picture(item: Item, seeing: Seeing) -> Image.Image | None:
    """Returns the output's picture, or the question's image with the answer drawn on it."""
    if item.file is None:
        return answered(item.prompt, outputs_of([item], seeing), 0)
    if not item.is_video:
        return StoredPicture(item.file.name, path=item.file).load()
    try:
        return Video(*read_frames(item.file)).strip(NUM_FRAMES)
    except ConfigError:  # it was judged by some of its frames
        frames = key_frames(StoredClip(item.file.name, path=item.file), NUM_FRAMES)
    return filmstrip([Cell(frame, f"{second:.1f} s") for second, frame in frames])
