"""The ways in which a command ends badly."""


class ConfigError(ValueError):
    """The user's input is wrong: says what was wrong, what was got and what is allowed. Exit code 2."""


class RunError(RuntimeError):
    """The run failed for a reason that is not the user's input (disk full, too many failed rewards). Exit code 1."""


class DivergedError(RunError):
    """A network gave NaN or infinity where its numbers must be finite: its weights are broken, mostly by training."""
