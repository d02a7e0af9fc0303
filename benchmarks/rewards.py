"""What scoring costs: seconds of each cheap reward, and how much of a slow reward hides behind sampling.

    PYTHONPATH=. python benchmarks/rewards.py --pairs 5

A reward is asked once about a whole batch and, in turns with that, about each sample (each group or episode, where it
judges those) alone, as a loop over samples does. Bar: what is vectorised takes at most a tenth of the loop. Then a
lab trains with a reward that waits as long as sampling takes (`_overlap.py`). Bar: sampling and scoring together take
at most 1.15 of the longer of the two.
"""

import gc
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from statistics import median

import torch
from _common import Clock, Seconds, argument_parser, emit, in_turns, median_ratio
from _overlap import add_options, measure_overlap
from _reward_examples import all_mixes, batch_for, cheap_rewards, scores_for
from torch import Tensor

from mmrl.core.contracts import Reward, RewardBatch
from mmrl.core.data import Scores
from mmrl.core.declarations import MixDeclaration
from mmrl.core.reward_batches import select, units_of
from mmrl.parsing.answers import ParseError, extract, read_span
from mmrl.rewards.base.grounding import answered_boxes, answered_clicks

# One formula over the whole batch; the others are loops over samples by their nature (texts, files, matchings).
VECTORISED = frozenset(
    {
        "annealed", "box_iou", "clip_range", "episode_success", "finished", "flicker", "gated", "gaussian_click",
        "gui_g1", "length_penalised", "motion_smoothness", "overlong", "point_in_box", "router", "running_normalised",
        "shapes", "step_reward", "temporal_contrast", "trusted", "uncertainty_weighted",
    }
)  # fmt: skip
LARGE = ("flicker", "motion_smoothness")  # of large clips the arithmetic is all: no loop costs more than that
CLICKS = ("click_distance", "gaussian_click", "point_in_box")  # read answers, or actions that were read before


def timed(work: Callable[[], object]) -> Seconds:
    clock = Clock()
    work()
    return {"score": clock()}


def readers(name: str, reward: Reward, batch: RewardBatch) -> Callable[[], object] | None:
    """What reads the answers of rewards of places and spans, without judging them: Python, one text after the other."""
    tag = getattr(reward, "tag", None)
    if name in ("box_iou", "gui_g1"):
        return partial(answered_boxes, batch, tag)
    if name in CLICKS:
        return partial(answered_clicks, batch, tag)
    return partial(_read_spans, batch, tag) if name == "temporal_iou" else None


def _read_spans(batch: RewardBatch, tag: str | None) -> None:
    for text in batch.outputs.texts or ():
        try:
            read_span(extract(text, tag))
        except ParseError:
            continue


def measure_reward(name: str, reward: Reward, batch: RewardBatch, pairs: int, given: str = "answers") -> None:
    """One JSON line: the reward of a batch against the loop over its samples; `given`: what it reads."""
    alone = [select(batch, rows) for rows in units_of(reward, batch)]
    measured = in_turns(
        lambda: timed(lambda: [reward.score(one) for one in alone]), lambda: timed(lambda: reward.score(batch)), pairs
    )
    more: dict[str, object] = {"bar": 10} if name in VECTORISED and given != "large clips" else {}
    if given == "answers" and (reader := readers(name, reward, batch)) is not None:
        both = in_turns(lambda: timed(reader), lambda: timed(lambda: reward.score(batch)), pairs)
        more["reading_share"] = round(median_ratio(both, "score"), 2)
    seconds = median(second["score"] for _, second in measured)
    emit(
        "rewards",
        reward=name,
        given=given,
        samples=len(batch),
        calls_of_loop=len(alone),
        pairs=pairs,
        speedup=round(median_ratio(measured, "score"), 2),
        seconds=round(seconds, 6),
        microseconds_per_sample=round(1e6 * seconds / len(batch), 2),
        seconds_loop=round(median(first["score"] for first, _ in measured), 6),
        is_vectorised=name in VECTORISED,
        **more,
    )


def given_actions(batch: RewardBatch) -> RewardBatch:
    """The same answers as a GUI policy hands them on: read already."""
    return replace(batch, outputs=replace(batch.outputs, actions=tuple(answered_clicks(batch, None))))


def _totals(parts: Sequence[Scores]) -> list[Tensor]:
    return [part.total for part in parts]


def measure_mixes(samples: int, pairs: int) -> None:
    """One JSON line for each mix: all samples against the loop over them, or over groups where it compares those."""
    for name, mix in all_mixes():
        scores = scores_for(samples, mix)
        is_relative = MixDeclaration.of(mix).is_relative
        units = scores.group.unique() if is_relative else torch.arange(samples)
        alone = [scores.select(scores.group == unit if is_relative else unit[None]) for unit in units]
        measured = in_turns(partial(timed, partial(_totals, alone)), partial(timed, partial(_totals, [scores])), pairs)
        emit(
            "mixes",
            mix=name,
            samples=samples,
            calls_of_loop=len(alone),
            pairs=pairs,
            speedup=round(median_ratio(measured, "score"), 2),
            milliseconds=round(1e3 * median(second["score"] for _, second in measured), 3),
            is_vectorised=name != "lexicographic",  # which sorts group by group
        )


def main() -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--answers", type=int, default=1024)
    parser.add_argument("--images", type=int, default=256, help="and clips")
    parser.add_argument("--side", type=int, default=512, help="pixels of an image; clips have a quarter")
    parser.add_argument("--rewards", nargs="*", help="names; default: all cheap ones")
    parser.add_argument("--only", choices=["throughput", "overlap"], help="default: both")
    add_options(parser)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    if options.only != "overlap":
        for name, reward, example in cheap_rewards(options.rewards):
            batch = batch_for(name, reward, example, options.answers, options.images, options.side)
            given = "large clips" if name in LARGE else "media" if batch.outputs.texts is None else "answers"
            measure_reward(name, reward, batch, options.pairs, given)
            if name in LARGE:
                small = batch_for(name, reward, example, options.answers, options.images, side=32)
                measure_reward(name, reward, small, options.pairs, "small clips")
            if name in CLICKS:
                measure_reward(name, reward, given_actions(batch), options.pairs, "actions")
            del batch
            gc.collect()
        measure_mixes(options.answers, options.pairs)
    if options.only != "throughput":
        measure_overlap(options)


if __name__ == "__main__":
    main()
