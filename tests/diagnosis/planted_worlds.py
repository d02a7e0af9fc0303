"""A world that takes its time, for the faults of tests/diagnosis/faults.py."""

import time
from dataclasses import dataclass

from mmrl.core.data import Observation
from mmrl.environments.screens import Screens
from mmrl.parsing.actions.action import Action


@dataclass
class SlowScreens(Screens):
    """Waits before each answer."""

    def step(self, action: Action) -> Observation:
        """Does a click, late."""
        time.sleep(1.5)
        return super().step(action)
