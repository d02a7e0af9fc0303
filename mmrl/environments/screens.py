"""Forms, menus and wizards on small drawn windows, in this process: the embedded lab of episodes."""

from dataclasses import dataclass, field, replace

from mmrl.core.contracts import ConfigError
from mmrl.core.data import Observation, Prompt
from mmrl.labs.screens.drawing import SIZE
from mmrl.labs.tasks import world
from mmrl.labs.tasks.pages import PagePicture
from mmrl.parsing.actions.action import Action
from mmrl.parsing.answers import shown

MOST = 4096  # pixels a side


Now = tuple[int, world.State]  # the seed of a task, and where its episode stands


@dataclass
class Screens:
    """The tasks of `lab:tasks`: what is set, which menu is open and how far one is can be seen on the screen.

    A click on nothing changes nothing; a wrong one may lead to a page from which there is a way back. The reward is 1
    for the click that completes the goal and 0 for all else; `finish` and `answer` end the episode. Only clicks inside
    of the screen can be done. All of an episode follows from its task: the seed changes nothing.

    `size` is the side of the screenshots in pixels: the same layout, drawn larger, for models that want more pixels.
    """

    size: int = SIZE
    _now: Now | None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        if not SIZE <= self.size <= MOST:
            raise ValueError(f"size must be from {SIZE} to {MOST} pixels, got {self.size}")

    def reset(self, task: Prompt, seed: int) -> Observation:
        """The first page of a task; raises ConfigError for a prompt that is none of `lab:tasks`."""
        number = task.target.get("task")
        if not isinstance(number, int) or isinstance(number, bool):
            raise ConfigError(
                f"environment 'screens' plays the tasks of lab:tasks, whose target has a number 'task'; prompt "
                f"{shown(task.text)} has {', '.join(task.target) or 'none'}"
            )
        self._now = number, world.State()
        return replace(self._observation(), goal=world.task(number).goal)

    def step(self, action: Action) -> Observation:
        """Does a click; says so where the action is another one, or outside of the screen."""
        seed, state = self.snapshot()
        if state.is_done:
            return replace(self._observation("The task is over."), is_done=True)
        if action.kind in ("finish", "answer"):
            self._now = seed, replace(state, is_done=True)
            return replace(self._observation(), is_done=True)
        if action.kind != "click":
            return self._observation(f"This screen has no {action.kind.replace('_', ' ')}: it can only be clicked.")
        assert action.point is not None, "a click has a point"
        if not all(0 <= value < self.size for value in action.point):
            return self._observation("The click was outside of the screen.")
        x, y = (value * SIZE / self.size for value in action.point)
        after = world.task(seed).after(state, x, y)
        self._now = seed, after
        return replace(self._observation(), is_done=after.is_done, reward=float(after.is_done))

    def state_key(self) -> str:
        """The task, the page and what is set."""
        seed, state = self.snapshot()
        marked = ",".join(map(str, sorted(state.marked)))
        return f"{seed}/{state.page}/{marked}/{'done' if state.is_done else 'open'}"

    def snapshot(self) -> Now:
        """Where the episode stands."""
        if self._now is None:
            raise RuntimeError("the environment has no task: reset comes first")
        return self._now

    def restore(self, snapshot: Now) -> None:
        """Goes on from there."""
        self._now = snapshot

    def oracle(self) -> Action:
        """The click that brings the task nearest to its end."""
        seed, state = self.snapshot()
        task = world.task(seed)
        x, y = world.centre(world.oracle(task.names, task.look(state)))
        return Action("click", point=(x * self.size / SIZE, y * self.size / SIZE))

    def close(self) -> None:
        """Forgets the task."""
        self._now = None

    def _observation(self, text: str = "") -> Observation:
        seed, state = self.snapshot()
        return Observation(PagePicture(world.task(seed).look(state), self.size), text)
