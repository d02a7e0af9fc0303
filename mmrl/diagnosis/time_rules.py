"""Where the time of an iteration goes, and what its memory does."""

from collections.abc import Sequence
from statistics import median

from mmrl.diagnosis.history import History
from mmrl.diagnosis.symptoms import Rule, Symptom

GROWTH = 1.3  # of memory since the first iterations: buffers are filled by then
LEAST = 0.5  # GiB of growth: less is noise


def _rewards_are_slow(history: History) -> Symptom | None:
    share = _share(history, [name for name in history.values if name.startswith("time/reward/")])
    if share <= 0.5:
        return None
    return Symptom(
        "note",
        f"rewards take {100 * share:.0f}% of an iteration",
        share,
        "set rollout_groups so that a chunk is scored while the next is sampled, a larger batch_size of the reward, or "
        "`mmrl serve` on another device",
    )


def _media_are_slow(history: History) -> Symptom | None:
    share = _share(history, ["time/decoding"])
    if share <= 0.2:
        return None
    return Symptom(
        "note",
        f"rollouts wait {100 * share:.0f}% of an iteration for prompts to be read, decoded and encoded",
        share,
        "raise data.workers, so that the next prompts are read during the update; store smaller images or clips",
    )


def _environments_are_slow(history: History) -> Symptom | None:
    share = _share(history, ["time/environment"])
    if share <= 0.5:
        return None
    return Symptom(
        "note",
        f"rollouts wait {100 * share:.0f}% of an iteration for their environments",
        share,
        "run more copies of the environment side by side (modality.parallel), or faster ones",
    )


def _memory_grows(history: History) -> Symptom | None:
    """A process that holds on to what an iteration made ends by the memory's end, hours later."""
    phases = [_growth(history, name) for name in ("memory/rollout", "memory/update")]
    host, update = (history.mean(name, 1) for name in ("memory/host", "memory/update"))
    if host is not None and host != update:  # the phases are those of a GPU
        rising = {
            "of the CPU's memory": _largest([_growth(history, "memory/host")]),
            "of the GPU's memory": _largest(phases),
        }
    else:
        rising = {"of memory" if host is None else "of the CPU's memory": _largest(phases)}
    grown = {whose: pair for whose, pair in rising.items() if pair is not None}
    if not grown:
        return None
    causes = [
        f"{first:.3g} GiB {whose} in iterations 3 to 5 and {now:.3g} now" for whose, (first, now) in grown.items()
    ]
    return Symptom(
        "warning",
        f"a process held {', and '.join(causes)}",
        max(now - first for first, now in grown.values()),
        "look at rewards, environments and callbacks of your own: what they keep of each batch is never freed; longer "
        "answers also need more",
    )


def _largest(pairs: Sequence[tuple[float, float] | None]) -> tuple[float, float] | None:
    """Returns the pair that rises most, of those that are there."""
    return max((pair for pair in pairs if pair is not None), key=lambda pair: pair[1] - pair[0], default=None)


def _growth(history: History, name: str) -> tuple[float, float] | None:
    pairs = history.values.get(name, [])
    if len(pairs) < 8:
        return None
    first, now = (median(value for _, value in some) for some in (pairs[2:5], pairs[-3:]))
    return (first, now) if now > max(GROWTH * first, first + LEAST) else None


def _share(history: History, names: Sequence[str]) -> float:
    """Returns the share of an iteration that is spent on what the metrics `names` count."""
    whole = history.mean("time/iteration", 3)
    return sum(history.mean(name, 3) or 0.0 for name in names) / whole if whole else 0.0


RULES: dict[str, Rule] = {
    "rewards_are_slow": _rewards_are_slow,
    "media_are_slow": _media_are_slow,
    "environments_are_slow": _environments_are_slow,
    "memory_grows": _memory_grows,
}
