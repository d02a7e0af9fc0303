"""Which process of a run this one is, as accelerate launch and torchrun say in its environment."""

import os


def is_main() -> bool:
    """Returns whether this process writes the run directory: the first of the run, on whatever machine."""
    return os.environ.get("RANK", "0") == "0"


def is_alone() -> bool:
    """Returns whether the run has no other process."""
    return os.environ.get("WORLD_SIZE", "1") == "1"


def is_first_here() -> bool:
    """Returns whether this process is the first of the run on this machine: the one that prints errors."""
    return os.environ.get("LOCAL_RANK", "0") == "0"
