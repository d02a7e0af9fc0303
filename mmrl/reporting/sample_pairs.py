"""The report's pairs of samples, before and after: pictures, answers, or answers with the picture of the question."""

from html import escape

from mmrl.reporting.formatting import breakable, number
from mmrl.reporting.samples import LARGEST, LARGEST_ANSWERED, Pairs, Sample, data_uri, is_tiny

MAX_PAIRS = 24
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
    shown = pairs.pairs[:MAX_PAIRS]
    answers = [sample for pair in shown for sample in pair if sample.text is not None]
    is_large = any((picture := sample.picture()) and picture.width > WIDE for sample in answers)
    room = " full" if is_large else " wide" if answers else ""
    return f'<div class="pairs{room}">{"".join(_card(before, after) for before, after in shown)}</div>'


def _card(before: Sample, after: Sample) -> str:
    sides = "".join(
        f'<div><p class="side">{name}</p>{_output(sample, name)}</div>'
        for name, sample in (("before", before), ("after", after))
    )
    rows = "".join(
        f'<tr><th scope="row">{breakable(name)}</th><td class="right">{number(before.scores.get(name))}</td>'
        f'<td class="right{_direction(before.scores.get(name), score)}">{number(score)}</td></tr>'
        for name, score in after.scores.items()
    )
    scores = f"<table><tbody>{rows}</tbody></table>" if rows else ""
    more = f", first of {before.num_images} images" if before.num_images > 1 else ""
    return (
        f'<article class="card pair"><div><p class="prompt">{escape(before.question)}</p>'
        f'<p class="seed">seed {before.seed}{more}</p></div><div class="sides">{sides}</div>{scores}</article>'
    )


def _output(sample: Sample, name: str) -> str:
    if sample.text is None:
        return _picture(sample, f"{name}: {sample.prompt}", LARGEST)
    answer = f'<pre class="answer">{escape(sample.text)}</pre>'
    if sample.file is None:
        return answer
    return _picture(sample, f"{name}: the image of the question, with what was answered", LARGEST_ANSWERED) + answer


def _picture(sample: Sample, label: str, largest: int) -> str:
    picture = sample.picture()
    if picture is None:
        return '<div class="missing">no picture</div>'
    crisp = ' class="crisp"' if is_tiny(picture) else ""
    return (
        f'<img{crisp} alt="{escape(label)}" width="{picture.width}" height="{picture.height}" '
        f'src="{data_uri(picture, largest)}">'
    )


def _direction(before: float | None, after: float | None) -> str:
    if before is None or after is None or before == after:
        return ""
    return " up" if after > before else " down"
