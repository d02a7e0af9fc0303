"""The state of a run in a checkpoint, checked field by field before anything is restored."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from mmrl.core.config import RunConfig
from mmrl.run_directory.manifest import DamagedError

FAR = 3  # iterations in a row whose KL must be above `evaluation.max_kl`: one alone may be a spike of an estimator


@dataclass
class Progress:
    """The progress of a run; with the tensors, all that a checkpoint holds."""

    iteration: int = 0  # done
    train_seconds: float = 0.0  # of iterations with scoring and saving, without evaluation
    network_calls: int = 0  # network evaluations for training, all processes, in batch elements
    before: float | None = None  # held-out score before training
    latest: float | None = None
    best: float | None = None
    best_iteration: int | None = None
    idle: int = 0  # iterations in which nothing could be learned: all samples of every group scored alike
    stuck: int = 0  # iterations in a row, to the last one, without one finite gradient
    evaluated: int | None = None  # iteration of the last evaluation
    stalled: int = 0  # evaluations in a row, to the last one, without a new best held-out score
    kl: list[float] = field(default_factory=list)  # to the reference, of the newest iterations, `FAR` at most
    logged: int = 0  # lines of metrics.jsonl so far
    others_before: dict[str, float] = field(default_factory=dict)  # held-out scores under further samplers
    others_latest: dict[str, float] = field(default_factory=dict)

    def is_over(self, config: RunConfig) -> bool:
        """Returns whether a limit beside the number of iterations ends the run: of time, new best scores, KL."""
        is_time_up = config.max_seconds is not None and self.train_seconds >= config.max_seconds
        limit = None if config.evaluation is None else config.evaluation.stop_after
        return is_time_up or (limit is not None and self.stalled >= limit) or self.is_far(config)

    def is_far(self, config: RunConfig) -> bool:
        """Returns whether the policy left the KL that `evaluation.max_kl` allows: an end before over-optimisation.

        Gao et al. 2022, "Scaling Laws for Reward Model Overoptimization", arXiv 2210.10760: what a held-out judge says
        of a policy is a function of its distance from the reference, with a peak.
        """
        budget = None if config.evaluation is None else config.evaluation.max_kl
        return budget is not None and len(self.kl) == FAR and min(self.kl) > budget

    def add_kl(self, kl: float | None) -> None:
        """Adds the KL to the reference of an iteration; None where there was none, such as one without a step."""
        if kl is not None and math.isfinite(kl):
            self.kl = [*self.kl, kl][-FAR:]


Count = Annotated[int, Field(ge=0)]


class _Prompts(BaseModel):
    counts: list[Count]
    num_unread: Count
    num_again: Count
    sizes: list[Count]
    digest: str


class _Optimizer(BaseModel):
    class_name: Annotated[str, Field(alias="class")]
    scalars: dict[str, dict[str, Any]]
    groups: list[dict[str, Any]]


class SavedState(BaseModel):
    """The state of a run in a checkpoint; plug-ins and the prompts' source check their own parts."""

    model_config = ConfigDict(strict=True, frozen=True)

    progress: Progress
    prompts: _Prompts
    plugins: dict[str, Any]
    engine: dict[str, Any]
    optimizer: _Optimizer
    settings: dict[str, Any] | None = None  # those that may not change; None: written before they were kept
    mmrl: str | None = None  # the version that wrote it


def check_state(state: Mapping[str, Any], where: object) -> SavedState:
    """Returns the state with every field of its type. Raises DamagedError, with the field's name, for any other.

    `where`: the checkpoint, as messages call it.
    """
    try:
        return SavedState.model_validate_json(json.dumps(state))  # in JSON, an object may be a dataclass
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(map(str, first["loc"]))
        raise DamagedError(f"the state of the checkpoint {where} is damaged: {field}: {first['msg']}") from error
