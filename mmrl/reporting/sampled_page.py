"""The page of a folder that `mmrl sample` wrote: samples by their prompts, and episodes turn by turn."""

from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path

from mmrl.reporting.contact_sheet import sampled_sheet
from mmrl.reporting.document import Section, loading_nothing
from mmrl.reporting.formatting import breakable, count, counted, number, shown_text
from mmrl.reporting.players import Players
from mmrl.reporting.sample_cards import Inlined, cell
from mmrl.reporting.samples import LARGEST_ANSWERED, Sample, SavedTurn, read_snapshot
from mmrl.system.files import replace_file

MAX_SAMPLES = 240  # of a page; others are in the folder alone
MAX_TURNS = 240  # of all episodes of a page

STYLE = """
.marks { display: grid; gap: 6px; margin: 20px 0 0; max-width: 46em; }
.marks > div { display: flex; align-items: center; gap: 10px; }
.marks dt { flex: none; width: 40px; font-weight: 600; text-align: center; } .marks dd { color: var(--soft); }
.marks svg { display: block; width: 40px; height: 20px; } .marks path { fill: none; stroke-width: 4; stroke: #d55e00; }
.turns { display: grid; grid-template-columns: repeat(3, minmax(0, 1fr)); gap: 14px; }
.turn { display: flex; flex-direction: column; gap: 8px; }
.turn h3 { display: flex; justify-content: space-between; gap: 10px; }
.turn h3 b { font-weight: 600; white-space: nowrap; } .turn h3 b.good { color: var(--good); }
.turn h3 b.bad { color: var(--bad); }
.turn .action { overflow-wrap: anywhere; unicode-bidi: isolate; max-height: 6em; overflow: auto; }
.watch { max-width: 640px; margin-bottom: 14px; }
.episode table { margin-bottom: 14px; max-width: 640px; }
.episode .prompt { white-space: pre-line; overflow-wrap: anywhere; max-height: 12em; overflow: auto; font-weight: 500;
  margin-bottom: 8px; }
.means { max-width: 640px; margin-top: 16px; }
.means, .episode table { table-layout: fixed; } .means .right { width: 6em; }
.episode table .right { white-space: normal; }
@media (max-width: 900px) { .turns { grid-template-columns: repeat(2, minmax(0, 1fr)); } }
@media (max-width: 640px) { .turns { grid-template-columns: minmax(0, 1fr); } }
"""

MARKS = (  # paths of swatches of 40 x 20, and what they mean
    (
        "M14 4 L26 16 M14 16 L26 4",
        "where the action of the turn points: a click, a move, the start of a drag or scroll",
    ),
    ("M4 3 H13 M18 3 H27 M31 3 H36 V8 M36 13 V17 H31 M27 17 H18 M13 17 H4 V12 M4 8 V3", "the box that was answered"),
    ("M2 10 H9 M14 10 H21 M26 10 H31 M30 5 L38 15 M30 15 L38 5", "the way of a drag; the small cross is its end"),
)


def write_sampled_page(folder: Path, name: str) -> None:
    """Writes `index.html`, one file that loads nothing, and `contact_sheet.png` where there are pictures.

    Raises ConfigError where samples.json of the folder is not what `mmrl sample` writes.
    """
    samples = read_snapshot(0, folder / "samples.json").samples
    if not any(sample.turns for sample in samples) and (sheet := sampled_sheet(samples)) is not None:
        sheet.save(folder / "contact_sheet.png", "PNG")
    replace_file(folder / "index.html", sampled_page(samples, name).encode(errors="xmlcharrefreplace"))


def sampled_page(samples: Sequence[Sample], name: str) -> str:
    """Returns the page of samples, those of one prompt beside each other."""
    episodes = [sample for sample in samples if sample.turns]
    what, shown = ("sample", "prompt"), list(samples[:MAX_SAMPLES])
    if episodes:
        what, shown = ("episode", "task"), _some_episodes(episodes)
        sections = _episode_sections(shown)
    else:
        sections = [Section("Samples", "samples", "", _by_prompt(shown))]
    num_prompts = len({(sample.prompt, sample.seed) for sample in samples})
    cut = (
        "" if len(shown) == len(samples) else f" The first {count(len(shown))} are on this page, all are in its folder."
    )
    header = (
        f'<header><p class="eyebrow">mmrl sample</p><h1>{shown_text(name)}</h1>'
        f'<p class="lead">{counted(len(samples), what[0])} of {counted(num_prompts, what[1])}.{cut}</p>'
        f"{_means(samples)}{_legend() if episodes else ''}</header>"
    )
    return loading_nothing(f"{name}, samples", header, sections, own_style=STYLE)


def mean_scores(samples: Sequence[Sample]) -> dict[str, tuple[float, int]]:
    """Returns the mean of each score over the samples that have it, and their number."""
    values: dict[str, list[float]] = {}
    for sample in samples:
        for name, value in sample.scores.items():
            if value is not None:
                values.setdefault(name, []).append(value)
    return {name: (sum(some) / len(some), len(some)) for name, some in values.items()}


def _means(samples: Sequence[Sample]) -> str:
    rows = "".join(
        f'<tr><th scope="row">{breakable(name)}</th><td class="right">{number(mean)}</td>'
        f'<td class="right">{count(judged)}</td></tr>'
        for name, (mean, judged) in mean_scores(samples).items()
    )
    head = '<thead><tr><th>reward</th><th class="right">mean</th><th class="right">judged</th></tr></thead>'
    return f'<table class="means">{head}<tbody>{rows}</tbody></table>' if rows else ""


def _by_prompt(samples: Sequence[Sample]) -> str:
    """Returns a card for each prompt with its samples side by side."""
    media, cards = Inlined(), []
    for (_, question), members in groupby(samples, key=lambda one: (one.seed, one.question)):
        cells = "".join(f"<div>{cell(sample, media)}</div>" for sample in members)
        cards.append(
            f'<article class="card pair group"><p class="prompt">{shown_text(question)}</p>'
            f'<div class="members">{cells}</div></article>'
        )
    return "".join(cards)


def _some_episodes(episodes: Sequence[Sample]) -> list[Sample]:
    """Returns the first episode, and those after it as long as there is room for their turns."""
    shown: list[Sample] = []
    turns = 0
    for episode in episodes:
        turns += len(episode.turns)
        if shown and turns > MAX_TURNS:
            break
        shown.append(episode)
    return shown


def _legend() -> str:
    marks = "".join(
        f'<div><dt><svg viewBox="0 0 40 20" aria-hidden="true"><path d="{path}"/></svg></dt><dd>{text}</dd></div>'
        for path, text in MARKS
    )
    reward = "<div><dt>+1</dt><dd>the environment's reward for the turn, at its right</dd></div>"
    return f'<dl class="marks" aria-label="legend">{marks}{reward}</dl>'


def _episode_sections(episodes: Sequence[Sample]) -> list[Section]:
    media, players = Inlined(), Players()
    return [
        Section(f"Episode {place}", f"episode-{place}", "", _episode(episode, media, players))
        for place, episode in enumerate(episodes, 1)
    ]


def _episode(episode: Sample, media: Inlined, players: Players) -> str:
    label = f"recording of: {episode.prompt[:200]}"
    video = "" if episode.recording is None else players.player(episode.recording, label, is_tiny=False)
    turns = "".join(_turn(place, turn, media) for place, turn in enumerate(episode.turns, 1))
    rewards = [turn.reward for turn in episode.turns]
    total = None if None in rewards else sum(reward for reward in rewards if reward is not None)
    facts: Mapping[str, str] = {
        "how it ended": shown_text(episode.outcome.replace("_", " ")),
        "turns": count(len(episode.turns)),
        "sum of the environment's rewards": number(total),
        **{breakable(name): number(value) for name, value in episode.scores.items()},
    }
    rows = "".join(f'<tr><th scope="row">{name}</th><td class="right">{fact}</td></tr>' for name, fact in facts.items())
    last = ""
    if episode.last_screen is not None:
        picture = media.picture(episode.last_screen, f"the last screen of: {episode.prompt[:200]}", LARGEST_ANSWERED)
        last = f'<article class="card pair turn"><h3>The last screen</h3>{picture}</article>'
    return (
        f'<div class="episode"><p class="prompt">{shown_text(episode.question)}</p>'
        f"<table><tbody>{rows}</tbody></table>"
        f'<div class="pair watch">{video}</div><div class="turns">{turns}{last}</div></div>'
    )


def _turn(place: int, turn: SavedTurn, media: Inlined) -> str:
    label = f"the screen of turn {place} with its action"
    picture = "" if turn.screen is None else media.picture(turn.screen, label, LARGEST_ANSWERED)
    kind = "" if not turn.reward else ' class="good"' if turn.reward > 0 else ' class="bad"'
    reward = "" if turn.reward is None else f"<b{kind}>{'+' if turn.reward > 0 else ''}{number(turn.reward)}</b>"
    return (
        f'<article class="card pair turn"><h3>Turn {place} {reward}</h3>{picture}'
        f'<p class="action">{shown_text(turn.action)}</p><pre class="answer">{shown_text(turn.answer)}</pre></article>'
    )
