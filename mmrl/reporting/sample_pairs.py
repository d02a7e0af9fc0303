"""The report's pairs of samples, before and after: pictures, videos, or answers with the picture of the question."""

from collections.abc import Sequence

from PIL import Image

from mmrl.reporting.formatting import breakable, number, shown_text
from mmrl.reporting.players import Players
from mmrl.reporting.samples import LARGEST, LARGEST_ANSWERED, TINY, Pairs, Sample, data_uri, look_of

MAX_PAIRS = 24
MAX_OPEN = 8  # pairs of which all is seen at once; the others are folded
LARGEST_STRIP = 768  # pixels of the width of a strip of frames
WIDE = 400  # pixels: wider ones were photographs or whole screens, which need half of the page


def about_pairs(pairs: Pairs | None) -> str:
    """Returns a sentence or two on what the pairs are."""
    if pairs is None:
        return ""
    shown, total = min(MAX_PAIRS, len(pairs.pairs)), len(pairs.pairs)
    cut = f" {shown} of {total} are shown." if shown < total else ""
    return f"The same prompt and seed at iterations {pairs.before} and {pairs.after}.{cut}"


def pair_cards(pairs: Pairs | None) -> str:
    """Returns a card for each of the first pairs; answers need more room than pictures alone."""
    if pairs is None:
        return ""
    shown, players = pairs.pairs[:MAX_PAIRS], Players()
    room = room_of([sample for pair in shown for sample in pair])
    return folded([_card(before, after, players) for before, after in shown], room, MAX_OPEN)


def folded(cards: Sequence[str], room: str, num_open: int) -> str:
    """Returns the first cards, and the others behind a line that opens them; `room`: the class of `room_of`."""
    first = f'<div class="pairs{room}">{"".join(cards[:num_open])}</div>'
    if len(cards) <= num_open + 1:
        return f'<div class="pairs{room}">{"".join(cards)}</div>'
    more = f'<div class="pairs{room}">{"".join(cards[num_open:])}</div>'
    title = f"<summary>{len(cards) - num_open} more prompts</summary>"
    return f'{first}<details class="more-pairs" data-name="pairs">{title}<div class="inside">{more}</div></details>'


def room_of(samples: Sequence[Sample]) -> str:
    """Returns the class of the room that a card needs: that of the whole page, of half of it, or of a third."""
    answers = [sample for sample in samples if sample.text is not None]
    is_large = any((picture := sample.picture()) and picture.width > WIDE for sample in answers)
    is_wide = answers or any(sample.video is not None or sample.conditions for sample in samples)
    return " full" if is_large else " wide" if is_wide else ""


def _card(before: Sample, after: Sample, players: Players) -> str:
    sides = "".join(
        f'<div><p class="side">{name}</p>{output(sample, name, players)}</div>'
        for name, sample in (("before", before), ("after", after))
    )
    if conditions := before.condition_pictures():
        shown = "".join(
            f'<p class="side">{shown_text(caption)}</p>{_image(picture, f"{caption}: {before.prompt}", LARGEST)}'
            for caption, picture in conditions
        )
        sides = f"<div>{shown}</div>{sides}"
    rows = "".join(
        f'<tr><th scope="row">{breakable(name)}</th><td class="right">{number(before.scores.get(name))}</td>'
        f'<td class="right{direction(before.scores.get(name), score)}">{number(score)}</td></tr>'
        for name, score in after.scores.items()
    )
    scores = f"<table><tbody>{rows}</tbody></table>" if rows else ""
    more = f", first of {before.num_images} images" if before.num_images > 1 and before.text is not None else ""
    three = " three" if conditions else ""
    return (
        f'<article class="card pair"><div><p class="prompt">{shown_text(before.question)}</p>'
        f'<p class="seed">seed {before.seed}{more}</p></div><div class="sides{three}">{sides}</div>{scores}</article>'
    )


def output(sample: Sample, name: str, players: Players) -> str:
    """Returns the picture, the video or the answer of a sample; `name` says which one, for screen readers."""
    if sample.video is not None:
        picture = sample.picture()
        label = f"{name}: {sample.prompt}"
        strip = "" if picture is None else _strip(picture, f"{label}, frames")
        return players.player(sample.video, label, is_tiny=picture is not None and picture.height <= TINY) + strip
    if sample.text is None:
        return _picture(sample, f"{name}: {sample.prompt}", LARGEST)
    answer = f'<pre class="answer">{shown_text(sample.text)}</pre>'
    if sample.file is None:
        return answer
    return _picture(sample, f"{name}: the image of the question, with what was answered", LARGEST_ANSWERED) + answer


def _picture(sample: Sample, label: str, largest: int) -> str:
    picture = sample.picture()
    if picture is None:
        return '<div class="missing">no picture</div>'
    return _image(picture, label, largest)


def _strip(picture: Image.Image, label: str) -> str:
    """Returns the frames of a video side by side."""
    uri = data_uri(picture, LARGEST_STRIP)
    return (
        f'<img class="strip" alt="{shown_text(label)}" width="{picture.width}" height="{picture.height}" src="{uri}">'
    )


def _image(picture: Image.Image, label: str, largest: int) -> str:
    return (
        f'<img{look_of(picture.size)} alt="{shown_text(label)}" width="{picture.width}" height="{picture.height}" '
        f'src="{data_uri(picture, largest)}">'
    )


def direction(before: float | None, after: float | None) -> str:
    if before is None or after is None or number(before) == number(after):  # as they are shown
        return ""
    return " up" if after > before else " down"
