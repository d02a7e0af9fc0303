"""Prompts that the prepared policy cannot read, or cannot read to the end: reported before anything is sampled."""

import logging
from collections.abc import Sequence

from mmrl.core.config import DatasetSettings
from mmrl.core.contracts import ConfigError, Cut, Cutting, Modality, Reader
from mmrl.core.data import Prompt
from mmrl.prompts.datasets import LISTED

log = logging.getLogger(__name__)
SHOWN = 60  # characters of a prompt


def reader_of(policy: Modality) -> Reader | None:
    """Returns the policy where it reads the prompts' media; None for others, such as agents, which read screens."""
    return policy if policy.sample_kind != "turns" and isinstance(policy, Reader) else None


def readable(reader: Reader, prompts: Sequence[Prompt], source: str | DatasetSettings) -> tuple[Prompt, ...]:
    """Returns the prompts of a source that the prepared policy can read.

    Raises ConfigError for the first prompt that it cannot read, by file and line, unless the source has
    `bad_rows: skip`; and where no prompt is left.
    """
    skips = isinstance(source, DatasetSettings) and source.bad_rows == "skip"
    kept, refused = [], list[str]()
    for prompt in prompts:
        why = reader.refusal(prompt)
        if why is None:
            kept.append(prompt)
            continue
        if not skips:
            raise ConfigError(f"prompts: {why}")
        refused.append(why)
        if len(refused) <= LISTED:
            log.warning("prompts: skipped %s", why)
    if refused:
        log.warning("prompts: the model cannot read %d of %d, which are skipped", len(refused), len(prompts))
    if not kept:
        raise ConfigError(f"prompts: the model can read none of {len(prompts)}, the first: {refused[0]}")
    return tuple(kept)


def warn_cut(policy: Modality, prompts: Sequence[Prompt], source: str | DatasetSettings | None) -> None:
    """Says in one warning how many prompts of a source are longer than the policy reads, and where the first is cut.

    `source`: None for those of the command line.
    """
    if not isinstance(policy, Cutting):
        return
    texts = [prompt.text for prompt in prompts]
    cut = [(prompt, cuts) for prompt, cuts in zip(prompts, policy.cuts(texts), strict=True) if cuts]
    if not cut:
        return
    first, cuts = cut[0]
    place = source.path if isinstance(source, DatasetSettings) else source
    whole = len(first.text) <= SHOWN
    log.warning(
        "prompts: the model reads only the beginning of %d of %d%s; the first%s: %r: %s",
        *(len(cut), len(prompts), f" of {place}" if place else ""),
        *(f", {first.source}" if first.source else "", first.text if whole else f"{first.text[:SHOWN]} ..."),
        "; ".join(f"{c.encoder} reads {c.num_read} of its {c.num_tokens} tokens, up to {_end(first, c)}" for c in cuts),
    )


def _end(prompt: Prompt, cut: Cut) -> str:
    is_all = prompt.text.startswith(cut.end)
    return repr(cut.end if is_all else f"... {cut.end}")
