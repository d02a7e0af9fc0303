"""Forms, menus and wizards on small drawn windows, in this process: the embedded lab of episodes."""

from dataclasses import dataclass, field, replace
from typing import Annotated

from pydantic import Field

from mmrl.core.checked import Checked
from mmrl.core.contracts import ConfigError
from mmrl.core.data import Observation, Prompt
from mmrl.labs.screens.drawing import SIZE
from mmrl.labs.tasks import world
from mmrl.labs.tasks.pages import PagePicture
from mmrl.parsing.actions.action import Action
from mmrl.parsing.answers import shown

MOST = 4096  # pixels a side


Now = tuple[int, world.State]  # the number of a task, and the state of its episode


@dataclass
class Screens(Checked):
    """The tasks of `lab:tasks`, whose whole state is visible: the screen shows settings, menus and progress.

    A click on nothing changes nothing; a wrong click may lead to a page from which there is a way back. The reward is 1
    for the click that completes the goal and 0 for all else; `finish` and `answer` end the episode. Only clicks inside
    of the screen are possible. An episode depends on its task alone: the seed changes nothing.
    """

    # Side of the screenshots in pixels: the same layout, drawn larger, for models that want more pixels.
    size: Annotated[int, Field(ge=SIZE, le=MOST)] = SIZE
    _now: Now | None = field(default=None, init=False, repr=False)

    def reset(self, task: Prompt, seed: int) -> Observation:
        """Begins a task and returns its first page; raises ConfigError for a prompt that is none of `lab:tasks`."""
        number = task.target.get("task")
        if not isinstance(number, int) or isinstance(number, bool):
            raise ConfigError(
                f"environment 'screens' plays the tasks of lab:tasks, whose target has a number 'task'; prompt "
                f"{shown(task.text)} has {', '.join(task.target) or 'none'}"
            )
        self._now = number, world.State()
        return replace(self._observation(), goal=world.task(number).goal)

    def step(self, action: Action) -> Observation:
        """Does a click and returns the page; its text refuses other actions, and clicks outside of the screen."""
        number, state = self.snapshot()
        if state.is_done:
            return replace(self._observation("The task is over."), is_done=True)
        if action.kind in ("finish", "answer"):
            self._now = number, replace(state, is_done=True)
            return replace(self._observation(), is_done=True)
        if action.kind != "click":
            return self._observation(f"This screen has no {action.kind.replace('_', ' ')}: it can only be clicked.")
        assert action.point is not None, "a click has a point"
        if not all(0 <= value < self.size for value in action.point):
            return self._observation("The click was outside of the screen.")
        x, y = (value * SIZE / self.size for value in action.point)
        after = world.task(number).after(state, x, y)
        self._now = number, after
        return replace(self._observation(), is_done=after.is_done, reward=float(after.is_done))

    def state_key(self) -> str:
        """Returns the task, the page and the marked elements as text."""
        number, state = self.snapshot()
        marked = ",".join(map(str, sorted(state.marked)))
        return f"{number}/{state.page}/{marked}/{'done' if state.is_done else 'open'}"

    def snapshot(self) -> Now:
        """Returns the state of the episode; raises RuntimeError before the first `reset`."""
        if self._now is None:
            raise RuntimeError("the environment has no task: reset comes first")
        return self._now

    def restore(self, snapshot: Now) -> None:
        """Continues the episode from a state that `snapshot` returned."""
        self._now = snapshot

    def oracle(self) -> Action:
        """Returns the next click of a shortest way to the goal."""
        number, state = self.snapshot()
        task = world.task(number)
        x, y = world.centre(world.oracle(task.names, task.look(state)))
        return Action("click", point=(x * self.size / SIZE, y * self.size / SIZE))

    def close(self) -> None:
        """Forgets the task."""
        self._now = None

    def _observation(self, text: str = "") -> Observation:
        number, state = self.snapshot()
        return Observation(PagePicture(world.task(number).look(state), self.size), text)
