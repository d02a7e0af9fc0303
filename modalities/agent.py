"""GUI agents that act for several turns: episodes in an environment, one sample per turn."""

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

import torch
from pydantic import Field
from torch import Tensor

from mmrl.core.actors import ActorSettings, Pool, connected
from mmrl.core.contracts import Environment, Explaining, Placement, Prepared, Reward, RunError, Twinned, Usage
from mmrl.core.data import Observation, Outputs, Prompt, Rollout
from mmrl.core.keys import GroupKey, seed_from
from mmrl.parsing.actions.action import Action
from mmrl.parsing.coordinates import Canvas
from mmrl.plans.answers import AnswerPlan, EpisodePlan

from .encoding.inputs import MARKS
from .gui import Gui
from .language.critics import NEEDS, critic_scores, highest, refusals, refused_texts
from .language.environment_workers import BrokenWorld, World, checked
from .language.placed_worlds import PlacedEnvironment, wait_for
from .language.rollout import decides
from .language.turns import NOT_UNDERSTOOD, Episode, harmless, turn_prompt
from .tokens.trace import TokenTrace

log = logging.getLogger(__name__)


@dataclass(kw_only=True)
class Agent(Gui):
    """A `gui` policy that plays the tasks of an environment turn by turn.

    Every turn is a sample. Its prompt is built anew from the goal, the last `history` actions in words, the text of the
    environment, and the last `screenshots` screenshots; observations never enter the loss. All episodes of a group
    begin in the same state, and turns with the same number and the same past share one prompt.

    An episode ends where the environment ends it or the agent's action is `finish` (outcome `done`), after the
    sampler's `max_turns` (`turn_limit`), after `invalid_limit` answers in a row that are no action (`invalid_limit`),
    or where the environment raises or takes longer than `step_seconds` for one call (`failed`). An episode that cannot
    begin, neither at the second try in a fresh copy, is left out and counted.

    With a `critic`, such as `{name: vlm_judge, of: texts, condition_image: true, prompt: agent_critic}`, an action that
    it refuses counts as a turn, after which the screen is the same; `turns/refused` counts these. An action that it
    cannot judge is done. Wanyan et al. 2025, "Look Before You Leap", arXiv 2506.04614, section 4.2.2, whose critic also
    suggests what to do instead: with `critic_words` the agent reads what the critic wrote. With `candidates` the critic
    chooses among several answers: Chen et al. 2025, "GUI-Shepherd", arXiv 2509.23738, and Hu et al. 2025, "Guiding VLM
    Agents with Process Rewards at Inference Time for GUI Navigation", arXiv 2504.16073.
    """

    sample_kind: ClassVar[Literal["latents", "tokens", "turns"]] = "turns"
    makes: ClassVar[frozenset[str]] = Gui.makes | {"step_rewards", "outcomes", "screens"}

    environment: Environment  # `{name: browser, width: 960}`, or one of your own, `{name: "my_world:Corridor"}`
    screenshots: Annotated[int, Field(ge=1)] = 1  # how many of the last screenshots are in a turn's prompt
    # How many of the last actions are in the prompt, in words. With 0, turns of the same screenshots share one prompt.
    history: Annotated[int, Field(ge=0)] = 4
    invalid_limit: Annotated[int, Field(ge=1)] = 3  # answers in a row that are no action, after which the episode ends
    # How long one call of the environment may take before its episode has failed.
    step_seconds: Annotated[float, Field(gt=0)] = 30.0
    parallel: Annotated[int, Field(ge=1)] = 64  # copies of the environment that are open at once
    pool: Pool = "threads"  # where these copies run: in this process, or each in an actor of a Ray cluster
    actors: ActorSettings = field(default_factory=ActorSettings)  # of `pool: ray`
    # A reward of answers that judges each action, with the screen and the goal, before it is done (GUI-Critic-R1). An
    # action below the threshold is not done: the agent is told so, and answers again in its next turn. null: all are.
    critic: Reward | None = None
    critic_threshold: Annotated[float, Field(ge=-1e6, le=1e6)] = 0.5  # the lowest score of an action that is done
    # Whether the agent reads the critic's reasons in the turn after a refusal; for critics that write some, such as a
    # `vlm_judge` whose prompt has `critique`.
    critic_words: bool = False
    # How many answers are sampled in each turn, of which the critic's best one counts (GUI-Shepherd). More than one is
    # for `mmrl evaluate`: what was chosen is no sample of the policy, and its gradient is biased.
    candidates: Annotated[int, Field(ge=1, le=1024)] = 1
    _free: list[World] = field(default_factory=list, init=False, repr=False)
    _waited: float = field(default=0.0, init=False, repr=False)  # seconds so far for environments
    _worked: float = field(default=0.0, init=False, repr=False)  # seconds so far that copies worked, side by side
    _meaningful: tuple[str, ...] = field(default=(), init=False, repr=False)  # texts that observations may not spell

    def __post_init__(self) -> None:
        """Raises ValueError for settings out of range, and for a dialect that names kinds of actions alone."""
        super().__post_init__()
        if self._dialect.has_bare_kinds:
            raise ValueError(
                f"an agent needs whole actions, and dialect {self.dialect!r} names kinds without their details"
            )
        lacks = [] if self.critic is None else sorted(need for need in self.critic.needs if not NEEDS.fullmatch(need))
        if self.critic is not None and (lacks or self.critic.granularity != "sample"):
            what = f"needs {', '.join(lacks)}" if lacks else f"judges a whole {self.critic.granularity}"
            raise ValueError(f"critic must judge an answer by its prompt before it is done, and this one {what}")
        if self.critic is None and self.candidates > 1:
            raise ValueError(f"candidates need a critic that chooses one of them, got {self.candidates} without")
        if self.critic_words and not (isinstance(self.critic, Explaining) and self.critic.is_explaining):
            raise ValueError("critic_words need a critic that writes its reasons, such as a judge whose prompt asks so")

    def tiny(self, seed: int, folder: Path) -> Self:
        """Returns the same settings on a random twin, with a twin of the critic's model."""
        small = super().tiny(seed, folder)
        critic = self.critic.tiny(seed, folder / "critic") if isinstance(self.critic, Twinned) else self.critic
        return replace(small, critic=critic)

    def prepare(self, placement: Placement) -> None:
        super().prepare(placement)
        if self.pool == "ray":
            connected(self.actors)  # an error comes before anything is sampled
        if isinstance(self.critic, Prepared):
            self.critic.prepare(placement)
        special = self.encoder.processor.tokenizer.all_special_tokens
        self._meaningful = tuple(sorted({*MARKS.values(), *self.encoder.media_tokens, *special}))

    def num_shown(self, prompt: Prompt) -> int:
        """Returns how many images the model sees with a prompt: one, in the first turn."""
        return 1

    def usage(self, prompt: Prompt, plan: Any, base: str) -> Usage:
        """Returns how transformers answers in the first turn of a task."""
        usage = super().usage(prompt, plan, base)
        note = (
            "The code answers the first turn of an episode: one action on a screenshot. The prompts of later turns are "
            f"written by mmrl, with `history: {self.history}` (actions so far) and `screenshots: {self.screenshots}`."
        )
        return replace(usage, notes=(*usage.notes, note))

    @torch.no_grad()
    def rollout(self, prompts: Sequence[Prompt], plans: Sequence[AnswerPlan], keys: Sequence[GroupKey]) -> Rollout:
        """Samples one group of episodes per task; the samples are the turns, episode by episode.

        Raises RunError where no episode could begin.
        """
        plan = plans[0]
        assert isinstance(plan, EpisodePlan), "the sampler's plan says how long an episode may be"
        members = [
            (task, key, member)
            for task, key, p in zip(prompts, keys, plans, strict=True)
            for member in range(p.num_samples)
        ]
        parts: list[Rollout] = []
        num_begun, why = 0, ""
        for start in range(0, len(members), self.parallel):
            episodes = [Episode(*member, self._world()) for member in members[start : start + self.parallel]]
            wait_for([episode.world for episode in episodes])
            why = self._reset(episodes) or why
            begun = [episode for episode in episodes if episode.seen]
            for number, episode in enumerate(begun, num_begun):
                episode.number = number
            num_begun += len(begun)
            parts += self._play(begun, plan)
        if not parts:
            raise RunError(f"modality.environment: no episode could begin; the last failure: {why}")
        counts = {"episodes/unstarted": len(members) - num_begun}
        rollout = replace(Rollout.join(parts), episode=torch.cat([part.episode for part in parts]))
        return replace(_in_order(rollout), counts={**rollout.counts, **counts})

    def _reset(self, episodes: Sequence[Episode]) -> str:
        """Begins all episodes, where needed at a second try in a fresh copy.

        Returns why the last episode that could not begin failed; an empty text where all began.
        """
        why = ""
        for episode in episodes:
            episode.world.begin(_beginning(episode))
        for episode in episodes:
            try:
                self._observe(episode, *checked(self._finished(episode.world)))
                continue
            except BrokenWorld:
                episode.world.leave()
            episode.world = self._fresh_world()
            wait_for([episode.world])
            episode.world.begin(_beginning(episode))
            try:
                self._observe(episode, *checked(self._finished(episode.world)))
            except BrokenWorld as error:
                episode.world.leave()
                why = str(error)
        return why

    def _play(self, episodes: Sequence[Episode], plan: EpisodePlan) -> Iterator[Rollout]:
        """Plays episodes side by side to their ends; yields a rollout for each turn, of the unfinished episodes."""
        going = list(episodes)
        while going:
            contexts, place = self._contexts(going)
            going.sort(key=lambda episode: place[episode.number])
            part, refused = self._answered(going, contexts, place, plan)
            part = replace(
                part,
                episode=torch.tensor([episode.number for episode in going]),
                turn=torch.tensor([episode.turn for episode in going]),
                anchor=torch.tensor([seed_from("anchor", episode.state) for episode in going]),
            )
            outputs = self._stepped(going, part.outputs, plan, refused)
            counts = {} if self.critic is None else {"turns/refused": sum(text is not None for text in refused)}
            yield replace(part, outputs=outputs, counts={**part.counts, **counts})
            self._put_back(episode.world for episode in going if episode.outcome not in (None, "failed"))
            going = [episode for episode in going if episode.outcome is None]

    def _answered(
        self,
        going: Sequence[Episode],
        contexts: Sequence[tuple[GroupKey, Prompt]],
        place: dict[int, int],
        plan: EpisodePlan,
    ) -> tuple[Rollout, tuple[str | None, ...]]:
        """Returns an answer to each episode, of several candidates the critic's choice; and where the critic refuses
        the action, what the agent reads next.
        """
        keys, prompts = [key for key, _ in contexts], [prompt for _, prompt in contexts]
        prompt_of = torch.tensor([place[episode.number] for episode in going for _ in range(self.candidates)])
        seeds = [_seed(episode, candidate) for episode in going for candidate in range(self.candidates)]
        trace = self.generate(prompts, prompt_of, seeds, plan)

        def assembled(trace: TokenTrace, prompt_of: Tensor) -> Rollout:
            is_decision = decides(trace, plan) if plan.temperature > 0 else None
            return self.assemble(prompts, keys, prompt_of, trace, is_decision)

        part = assembled(trace, prompt_of)
        if self.critic is None:
            return part, (None,) * len(going)
        scores = critic_scores(self.critic, part)
        if self.candidates > 1:
            rows = highest(scores, self.candidates)
            scores = scores[rows]
            part = assembled(replace(trace, completions=trace.completions.select(rows)), prompt_of[rows])
        is_refused = refusals(scores, self.critic_threshold, part)
        return part, refused_texts(self.critic, is_refused, part, with_words=self.critic_words)

    def _contexts(self, episodes: Sequence[Episode]) -> tuple[list[tuple[GroupKey, Prompt]], dict[int, int]]:
        """Returns the distinct prompts of the next turns, and the place of each episode's prompt, by its number."""
        places: dict[tuple[GroupKey, str, tuple[Any, ...]], int] = {}
        contexts: list[tuple[GroupKey, Prompt]] = []
        place = {}
        for episode in sorted(episodes, key=lambda episode: episode.number):
            prompt = turn_prompt(
                episode.task, episode.seen, episode.did, screenshots=self.screenshots, history=self.history
            )
            name = (episode.key, prompt.text, prompt.media)
            if name not in places:
                places[name] = len(contexts)
                contexts.append((episode.key, prompt))
            place[episode.number] = places[name]
        return contexts, place

    def _stepped(
        self, episodes: Sequence[Episode], outputs: Outputs, plan: EpisodePlan, refused: Sequence[str | None]
    ) -> Outputs:
        """Executes the actions that no critic refused; returns the outputs with rewards and outcomes of episodes."""
        assert outputs.actions is not None and outputs.canvases is not None, "an agent's answers are actions"
        for episode, action, text in zip(episodes, outputs.actions, refused, strict=True):
            if action is not None and text is None:
                episode.world.begin(_stepping(action))
        turns = zip(episodes, outputs.actions, outputs.canvases, refused, strict=True)
        rewards = [self._after(*turn, plan) for turn in turns]
        outcomes = tuple(episode.outcome for episode in episodes)
        screens = tuple(None if one.outcome == "failed" else one.seen[-1].screenshot for one in episodes)
        step_rewards = torch.tensor(rewards, dtype=torch.float32)
        return replace(outputs, step_rewards=step_rewards, outcomes=outcomes, screens=screens)

    def _after(
        self, episode: Episode, action: Action | None, canvas: Canvas | None, refused: str | None, plan: EpisodePlan
    ) -> float:
        """Finishes an episode's turn and returns its reward; the outcome, if any, is noted in the episode.

        `refused`: what the agent reads next where the action was refused.
        """
        is_refused = refused is not None
        if action is None:
            episode.num_invalid += 1
            episode.seen.append(replace(episode.seen[-1], text=NOT_UNDERSTOOD, reward=0.0))
            episode.did.append("an answer that was not understood")
        else:
            assert canvas is not None, "an action is in pixels of a screenshot"
            episode.num_invalid = 0
            episode.did.append(self._harmless(self._dialect.write(action, canvas)) + " (refused)" * is_refused)
            try:
                if refused is not None:
                    episode.seen.append(replace(episode.seen[-1], text=self._harmless(refused), reward=0.0))
                else:
                    self._observe(episode, *checked(self._finished(episode.world)))
            except BrokenWorld as error:
                episode.world.leave()
                episode.outcome = "failed"
                log.warning("an episode failed; its environment: %s", error)
                return 0.0
        now = episode.seen[-1]
        if now.is_done or (action is not None and action.kind == "finish" and not is_refused):
            episode.outcome = "done"
        elif episode.num_invalid >= self.invalid_limit:
            episode.outcome = "invalid_limit"
        elif episode.turn >= plan.max_turns:
            episode.outcome = "turn_limit"
        return now.reward

    def _observe(self, episode: Episode, observation: Observation, state: str) -> None:
        """Notes an observation of an episode. Its texts are not trusted: they may spell tokens with a meaning."""
        goal = None if observation.goal is None else self._harmless(observation.goal)
        episode.seen.append(replace(observation, text=self._harmless(observation.text), goal=goal))
        episode.state = state

    def environment_seconds(self) -> tuple[float, float]:
        return self._waited, self._worked

    def _finished(self, world: World) -> Any:
        """Returns the result of the call that a world has begun; raises as `World.finish` does."""
        started = time.perf_counter()
        try:
            return world.finish()
        finally:
            self._waited += time.perf_counter() - started
            self._worked += world.take_seconds()

    def _harmless(self, text: str) -> str:
        return harmless(text, self._meaningful)

    def _world(self) -> World:
        return self._free.pop() if self._free else self._fresh_world()

    def _fresh_world(self) -> World:
        if self.pool == "threads":
            return World(self.environment, self.step_seconds)
        world = World(PlacedEnvironment(self.environment, self.actors), self.step_seconds)
        assert isinstance(world.environment, PlacedEnvironment), "a copy of it"
        world.environment.start()
        return world

    def _put_back(self, worlds: Iterable[World]) -> None:
        self._free.extend(worlds)


def _beginning(episode: Episode) -> Callable[[Environment], tuple[Observation, str]]:
    """Returns the call that begins an episode: all episodes of a group have the group's seed."""
    task, seed = episode.task, episode.key.seed_for("episode")
    return lambda environment: (environment.reset(task, seed), environment.state_key())


def _stepping(action: Action) -> Callable[[Environment], tuple[Observation, str]]:
    """Returns the call that executes an action."""
    return lambda environment: (environment.step(action), environment.state_key())


def _seed(episode: Episode, candidate: int) -> int:
    """Returns the seed of an answer of an episode's next turn."""
    others = (candidate,) if candidate else ()
    return episode.key.seed_for("tokens", episode.member, episode.turn, *others)


def _in_order(rollout: Rollout) -> Rollout:
    """Returns the same samples, episode by episode and turn by turn, however many were played side by side."""
    order = torch.tensor(sorted(range(rollout.num_samples), key=lambda n: (rollout.episode[n], rollout.turn[n])))
    trace: TokenTrace = rollout.trace
    return replace(
        rollout,
        prompt=rollout.prompt[order],
        group=rollout.group[order],
        episode=rollout.episode[order],
        turn=rollout.turn[order],
        outputs=rollout.outputs.select(order),
        blocks=tuple(block.select(order) for block in rollout.blocks),
        trace=replace(trace, completions=trace.completions.select(order)),
        anchor=rollout.anchor[order],
        is_control=rollout.is_control[order],
    )
