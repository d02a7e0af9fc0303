"""Prompts that the prepared policy cannot read: those that are seen to be so are found before the first iteration."""

import logging
from collections.abc import Sequence

from mmrl.config import DatasetSettings
from mmrl.contracts import ConfigError, Modality, Reader
from mmrl.data import Prompt
from mmrl.datasets import LISTED

log = logging.getLogger(__name__)


def reader_of(policy: Modality) -> Reader | None:
    """The policy, where its prompts are what it reads; an agent reads what its environment shows."""
    return policy if policy.draws == "tokens" and isinstance(policy, Reader) else None


def readable(reader: Reader, prompts: Sequence[Prompt], source: str | DatasetSettings) -> tuple[Prompt, ...]:
    """The prompts of a source that the prepared policy does not refuse.

    Raises ConfigError for the first refused one, by file and line, unless the source says `bad_rows: skip`, and where
    none is left.
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
