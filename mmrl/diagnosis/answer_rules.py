"""What the answers of a language model look like."""

from mmrl.diagnosis.history import History
from mmrl.diagnosis.symptoms import Rule, Symptom


def _answers_unfinished(history: History) -> Symptom | None:
    share = history.mean("answers/finished", 2)
    if share is None or share >= 0.5:
        return None
    return Symptom(
        "warning",
        f"only {100 * share:.0f}% of the answers end before the budget of tokens",
        share,
        "raise sampler.max_tokens; where lengths grow up to any budget add the reward overlong or length_window, or "
        "sampler.truncated: mask",
    )


def _answers_unreadable(history: History) -> Symptom | None:
    share = history.mean("answers/understood", 2)
    if share is None or share >= 0.5:
        return None
    return Symptom(
        "warning",
        f"{100 * share:.0f}% of the answers can be read as an action",
        share,
        "look at three answers (a run's report shows them), then change modality.dialect, modality.instructions or the "
        "prompt's template; a model that never writes the format needs examples first (SFT)",
    )


def _lengths_drift(history: History) -> Symptom | None:
    first, now = history.first("answers/tokens", 1), history.mean("answers/tokens")
    if first is None or now is None or max(first, now) < 32 or first / 2 < now < 2 * first:
        return None
    return Symptom(
        "note",
        f"answers had {first:.3g} tokens at first and have {now:.3g}",
        now,
        "look whether the reward pays for length (Singhal et al. 2023, arXiv 2310.03716): length_penalised, "
        "length_window; loss.normalise decides whether long answers weigh more",
    )


RULES: dict[str, Rule] = {
    "answers_unfinished": _answers_unfinished,
    "answers_unreadable": _answers_unreadable,
    "lengths_drift": _lengths_drift,
}
