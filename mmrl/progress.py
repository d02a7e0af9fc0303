"""How far a run is."""

from dataclasses import dataclass, field


@dataclass
class Progress:
    """How far a run is; with the tensors, all that a checkpoint holds."""

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
    logged: int = 0  # lines of metrics.jsonl so far
    others_before: dict[str, float] = field(default_factory=dict)  # held-out scores under further samplers
    others_latest: dict[str, float] = field(default_factory=dict)
