"""Batches whose prompts say what their images are for."""

from dataclasses import replace

from mmrl.core.contracts import RewardBatch
from mmrl.media.pictures import Role


def with_roles(batch: RewardBatch, roles: tuple[Role, ...]) -> RewardBatch:
    """The same batch, with the roles of every prompt's images."""
    return replace(batch, prompts=tuple(replace(prompt, roles=roles) for prompt in batch.prompts))
