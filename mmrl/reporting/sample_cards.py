"""Cards of saved samples, of one iteration or over time: inside of the page, or with media that a server has."""

from collections.abc import Sequence
from html import escape
from itertools import groupby
from pathlib import Path
from typing import Protocol
from urllib.parse import quote

from PIL import Image

from mmrl.reporting.formatting import breakable, number, shown_text
from mmrl.reporting.players import Players
from mmrl.reporting.samples import LARGEST, LARGEST_ANSWERED, TINY, Sample, Snapshot, data_uri, look_of

TITLES = {"best": "best", "worst": "worst", "widest": "widest spread"}
MAX_CARDS = 24
MAX_STEPS = 24  # iterations side by side


class Media(Protocol):
    """How a page shows the files of samples."""

    def picture(self, file: Path, label: str, largest: int) -> str:
        """Returns the element of a picture, its longer side `largest` pixels at most where it is inlined."""
        ...

    def video(self, sample: Sample, label: str) -> str:
        """Returns the element that plays a sample's video."""
        ...


class Inlined:
    """Media inside of a page that loads nothing."""

    def __init__(self) -> None:
        self._players = Players()

    def picture(self, file: Path, label: str, largest: int) -> str:
        try:
            with Image.open(file) as opened:
                picture = opened.convert("RGB")
        except OSError:
            return '<div class="missing">no picture</div>'
        return _image(picture.size, label, data_uri(picture, largest))

    def video(self, sample: Sample, label: str) -> str:
        assert sample.video is not None, "asked where there is one"
        picture = sample.picture()
        return self._players.player(sample.video, label, is_tiny=picture is not None and picture.height <= TINY)


class Served:
    """Media that the server of the page sends from a run directory."""

    def __init__(self, run: Path) -> None:
        self._run = run

    def picture(self, file: Path, label: str, largest: int) -> str:
        try:
            with Image.open(file) as opened:  # reads the header alone
                size = opened.size
        except OSError:
            return '<div class="missing">no picture</div>'
        return _image(size, label, self._address(file))

    def video(self, sample: Sample, label: str) -> str:
        assert sample.video is not None, "asked where there is one"
        source = escape(self._address(sample.video))
        return f'<video controls loop muted playsinline aria-label="{shown_text(label)}" src="{source}"></video>'

    def _address(self, file: Path) -> str:
        """Returns the path of a file at the server; its time of change makes a browser load a new one."""
        try:
            changed = file.stat().st_mtime_ns
        except OSError:
            changed = 0
        inside = Path(file.parent.parent.name, file.parent.name, file.name)
        if file.parent.name == "questions":
            inside = file.resolve().relative_to(self._run.resolve())
        return f"/media/{quote(inside.as_posix())}?{changed}"


def sample_cards(snapshot: Snapshot, media: Media) -> str:
    """Returns a card for each of the first samples of an iteration."""
    shown = snapshot.samples[:MAX_CARDS]
    is_wide = any(sample.text is not None or sample.conditions for sample in shown)
    cards = "".join(
        f'<article class="card pair"><p class="prompt">{shown_text(sample.question)}</p>{cell(sample, media)}</article>'
        for sample in shown
    )
    return f'<div class="pairs{" wide" if is_wide else ""}">{cards}</div>'


def group_cards(snapshot: Snapshot, media: Media) -> str:
    """Returns a card for each saved group of a training iteration: its prompt, and its samples by their totals."""
    cards = []
    for (places, prompt, _), members in groupby(snapshot.samples, key=lambda one: (one.places, one.question, one.seed)):
        words = ", ".join(TITLES[place] for place in places)
        cells = "".join(f"<div>{cell(sample, media)}</div>" for sample in members)
        cards.append(
            f'<article class="card pair group"><h3>Group: {words}</h3><p class="prompt">{shown_text(prompt)}</p>'
            f'<div class="members">{cells}</div></article>'
        )
    return "".join(cards)


def over_time(snapshots: Sequence[Snapshot], media: Media) -> str:
    """Returns a row for each prompt of the last iteration: its samples of all of these iterations, side by side."""
    if not snapshots:
        return ""
    by_name = [{(one.prompt, one.seed): one for one in snapshot.samples} for snapshot in snapshots]
    rows = []
    for sample in snapshots[-1].samples[:MAX_CARDS]:
        name = (sample.prompt, sample.seed)
        cells = "".join(
            f'<div><p class="side">iteration {snapshot.iteration}</p>{cell(known[name], media)}</div>'
            for snapshot, known in zip(snapshots, by_name, strict=True)
            if name in known
        )
        rows.append(
            f'<article class="card pair"><p class="prompt">{shown_text(sample.question)}</p>'
            f'<div class="film" tabindex="0">{cells}</div></article>'
        )
    return "".join(rows)


def some_of(iterations: Sequence[int]) -> list[int]:
    """Returns at most `MAX_STEPS` of the iterations, evenly spaced with the first and the last."""
    if len(iterations) <= MAX_STEPS:
        return list(iterations)
    last = len(iterations) - 1
    return [iterations[round(step * last / (MAX_STEPS - 1))] for step in range(MAX_STEPS)]


def cell(sample: Sample, media: Media) -> str:
    """Returns a sample's picture, video or answer, and its scores."""
    label = f"sample of: {sample.prompt[:200]}"
    conditions = "".join(media.picture(file, f"condition: {label}", LARGEST) for file in sample.conditions[:1])
    if sample.video is not None:
        output = media.video(sample, label)
    elif sample.file is not None:
        output = media.picture(sample.file, label, LARGEST if sample.text is None else LARGEST_ANSWERED)
    else:
        output = ""
    answer = "" if sample.text is None else f'<pre class="answer">{shown_text(sample.text)}</pre>'
    total = () if sample.total is None else (("total", sample.total),)
    rows = "".join(
        f'<tr><th scope="row">{breakable(name)}</th><td class="right">{number(value)}</td></tr>'
        for name, value in (*total, *sample.scores.items())
    )
    return f"{conditions}{output}{answer}<table><tbody>{rows}</tbody></table>"


def _image(size: tuple[int, int], label: str, source: str) -> str:
    return (
        f'<img{look_of(size)} loading="lazy" alt="{shown_text(label)}" width="{size[0]}" height="{size[1]}" '
        f'src="{escape(source)}">'
    )
