"""The rows of `mmrl list suites`: benchmarks by name, what they test, and what judges them."""

from typing import Any

from mmrl.core.config import DatasetSettings, label_of
from mmrl.core.suites import SuiteSettings, load_suite, suite_names


def rows() -> list[dict[str, Any]]:
    """Returns one row per shipped suite, as its file says: what it is, its data, its judge and its numbers."""
    return [_row(name, load_suite(name).settings) for name in suite_names()]


def _row(name: str, suite: SuiteSettings) -> dict[str, Any]:
    return {
        "name": name,
        "summary": f"{suite.title}: {suite.kind}, {number_in_words(suite)}, judged by {', '.join(judges(suite))}",
        "title": suite.title,
        "source": suite.source,
        "kind": suite.kind,
        "data": suite.data,
        "prompts": [path for part in suite.parts for path in paths_of(part)],
        "samples_per_prompt": suite.samples_per_prompt,
        "rewards": judges(suite),
        "number": suite.number.model_dump(mode="json"),
        "published": [one.model_dump(mode="json") for one in suite.published],
        "note": suite.note,
    }


def paths_of(part: DatasetSettings) -> tuple[str, ...]:
    """Returns the paths of a data set, one or several."""
    return (part.path,) if isinstance(part.path, str) else part.path


def judges(suite: SuiteSettings) -> list[str]:
    """Returns the labels of the rewards that judge."""
    return [str(label_of(reward)) for reward in suite.rewards]


def number_in_words(suite: SuiteSettings) -> str:
    """Returns how the number of a suite is computed, in a few words."""
    number = suite.number
    words = {
        "mean": "mean over samples",
        "mean_of_kinds": f"mean over each {number.by} of its mean",
        "share_at_least": "share of samples",
        "best_of": "mean of the best sample of each prompt",
        "ratio": f"sum over samples by that of {number.over}",
    }
    at_least = "" if number.at is None else f" with a score of at least {number.at:g}"
    return f"{words[number.how]}{at_least}{' in percent' if number.unit == 'percent' else ''}"
