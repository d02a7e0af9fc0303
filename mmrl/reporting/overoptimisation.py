"""Rewards against the distance from the reference: a held-out score has a peak there, and training may go beyond it."""

import math
from array import array
from collections.abc import Sequence
from dataclasses import dataclass

from mmrl.reporting.charts import Line
from mmrl.reporting.curves import Axes, Diagnostic, card
from mmrl.reporting.formatting import number
from mmrl.reporting.record import Record, Series
from mmrl.system.errors import ConfigError
from mmrl.system.yaml_text import parse_yaml

FEWEST = 3  # evaluations below which nothing is plotted
FEWEST_OF_FIT = 5  # the same of the fit, which has two numbers
STEPS = 60  # of the fit's curve
DISTANCE = "sqrt(KL)"


@dataclass(frozen=True)
class Fit:
    """The gain of a score at a distance d from the reference: R(d) = d (alpha - beta log d), and R(0) = 0.

    Gao et al. 2022, "Scaling Laws for Reward Model Overoptimization", arXiv 2210.10760, section 1: the form of
    reinforcement learning, d the root of the KL. Another unit of the KL changes alpha alone by a constant, and both by
    a factor.
    """

    alpha: float
    beta: float
    error: float  # root of the mean square of what the points are off

    def __call__(self, distance: float) -> float:
        return distance * (self.alpha - self.beta * math.log(distance)) if distance > 0 else 0.0

    @property
    def peak(self) -> float | None:
        """Returns the distance of the largest gain, exp(alpha / beta - 1); None where the curve only rises or falls."""
        if self.beta <= 0 or self.alpha / self.beta > 50:
            return None
        return math.exp(self.alpha / self.beta - 1)


def fitted(distances: Sequence[float], gains: Sequence[float]) -> Fit | None:
    """Returns the fit with the least squares; None where it is not determined.

    Args:
        distances: above 0. gains: what the score is above that of the reference, as many.
    """
    import numpy as np

    d, gain = np.asarray(distances, dtype=float), np.asarray(gains, dtype=float)
    if len(set(distances)) < FEWEST_OF_FIT - 1:
        return None
    columns = np.stack([d, -d * np.log(d)], axis=1)
    (alpha, beta), *_ = np.linalg.lstsq(columns, gain, rcond=None)
    error = float(np.sqrt(np.mean((columns @ np.array([alpha, beta]) - gain) ** 2)))
    return Fit(float(alpha), float(beta), error)


def distance_curves(record: Record) -> list[str]:
    """Returns the cards of the held-out scores and of the training reward over the distance from the reference.

    None where the run measures no KL to the reference, or has fewer than three evaluations.
    """
    scores = record.finite("held_out/score")
    places = _distances(record, scores)
    if scores is None or len(places) < FEWEST or not max(places.values()) > 0:
        return []
    span, held_out = (0.0, max(places.values())), [_over(places, scores, "held-out score", 1)]
    rewards = [name for name in record.metrics if name.startswith("held_out/") and name.count("/") == 2]
    rewards = [name for name in rewards if name.endswith("/mean")]
    if len(rewards) > 1:  # one alone is the score
        held_out += [
            _over(places, series, name.split("/")[1], colour)
            for name, colour in zip(rewards, (4, 5, 6, 7, 8), strict=False)
            if (series := record.finite(name)) and len(places.keys() & set(series.iterations)) >= FEWEST
        ]
    lines, hint = _of_fit(places, scores)
    axes = Axes(span, name=DISTANCE)
    cards = [card(axes, Diagnostic("Held-out score by distance", {}, "score", hint), [*held_out, *lines])]
    reward = record.finite("reward/mean")
    if reward is not None:
        at = dict(zip(reward.iterations, reward.values, strict=True))
        means = {iteration: _near(at, iteration) for iteration in places}
        known = {iteration: mean for iteration, mean in means.items() if mean is not None}
        series = Series(array("d", known), array("d", known.values()))
        hint = (
            "The same distances. What goes on rising here, where the held-out score falls, is paid for and not meant."
        )
        one = _over(places, series, "reward", 2)
        cards.append(card(axes, Diagnostic("Training reward by distance", {}, "reward", hint), [one]))
    return cards


def _distances(record: Record, scores: Series | None) -> dict[float, float]:
    """Returns the root of the KL at each evaluation, 0 before training, by iteration; empty where there is no KL."""
    kl = record.finite("loss/kl")
    if scores is None or kl is None or not _is_to_reference(record.config):
        return {}
    at = dict(zip(kl.iterations, kl.values, strict=True))
    found = {one: 0.0 if one == 0 else _near(at, one) for one in scores.iterations}
    return {one: math.sqrt(max(0.0, size)) for one, size in found.items() if size is not None}


def _is_to_reference(config: str | None) -> bool:
    """Returns whether the KL of a run is that to the reference, and not to the averaged weights."""
    try:
        settings = parse_yaml(config or "", "config.yaml")
    except ConfigError:
        return True
    loss = settings.get("loss") if isinstance(settings, dict) else None
    return not isinstance(loss, dict) or loss.get("kl_to", "reference") == "reference"


def _near(at: dict[float, float], iteration: float) -> float | None:
    """Returns the mean over the iteration before an evaluation and the one after it, of those that are there."""
    there = [at[one] for one in (iteration, iteration + 1) if one in at]
    return sum(there) / len(there) if there else None


def _over(places: dict[float, float], series: Series, name: str, colour: int) -> Line:
    """Returns the line of a metric over the distances, in their order."""
    at = dict(zip(series.iterations, series.values, strict=True))
    points = sorted((distance, at[iteration]) for iteration, distance in places.items() if iteration in at)
    return Line(name, Series(array("d", [x for x, _ in points]), array("d", [y for _, y in points])), colour=colour)


def _of_fit(places: dict[float, float], scores: Series) -> tuple[list[Line], str]:
    """Returns the curve of the fit and its peak, and what they say."""
    at = dict(zip(scores.iterations, scores.values, strict=True))
    about = "Each point is an evaluation; the distance is the root of the KL to the reference (loss/kl). "
    after = [(places[one], at[one]) for one in places if places[one] > 0]
    fit = fitted([d for d, _ in after], [score - at[0] for _, score in after]) if 0 in at else None
    if fit is None:
        return [], about + "Where the score falls beyond a peak, the reward is over-optimised."
    last = max(places.values())
    steps = [last * step / STEPS for step in range(STEPS + 1)]
    lines = [Line("fit", Series(array("d", steps), array("d", [at[0] + fit(d) for d in steps])), colour=3)]
    said = f"The fit, d (alpha - beta log d), is off by {number(fit.error)} in the root of the mean square"
    if fit.peak is None or fit.peak > last or fit(fit.peak) <= 0:
        return lines, f"{about}{said}, and has no peak so far."
    top = at[0] + fit(fit.peak)
    lines.append(Line("peak of the fit", Series(array("d", [fit.peak]), array("d", [top])), colour=8))
    return lines, (
        f"{about}{said}; its peak is {number(top)} at a KL of {number(fit.peak**2)}. Beyond it the reward is "
        f"over-optimised: evaluation.max_kl ends a run there."
    )
