"""Agents: how episodes go and end, what a group shares, and that decisions are those of the turns."""

import math
import time
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest
import torch
from torch.testing import assert_close

from mmrl.core.contracts import ConfigError, RunError
from mmrl.core.data import Observation, Prompt, Rollout
from mmrl.core.keys import GroupKey
from mmrl.core.plugins import build
from mmrl.core.views import DecisionView
from mmrl.losses.grpo import Grpo
from mmrl.modalities.language.critics import REFUSED, highest, refused_texts
from mmrl.modalities.language.environment_workers import BrokenWorld, World
from mmrl.parsing.actions.action import Action
from mmrl.plans.answers import EpisodePlan
from mmrl.training.processes import Processes
from mmrl.training.update import Updater
from tests import toy_worlds
from tests.toy_worlds import Clicker, Corridor, Rightwards, Silent, Wordy, clicker
from tests.toys import loss_batch
from tests.vision_twins import picture

PLAN = EpisodePlan(num_samples=3, max_tokens=4, max_turns=4)
STEP_JUDGE = {"name": "vlm_judge", "of": "texts", "condition_image": True, "prompt": "agent_step"}  # writes one word
TASKS = (Prompt("go to the right", target={"n": 1}), Prompt("go right", target={"n": 2}))


def play(policy: Clicker, tasks: tuple[Prompt, ...] = TASKS, plan: EpisodePlan = PLAN) -> Rollout:
    keys = [GroupKey(5, 0, 10 + number) for number in range(len(tasks))]
    return policy.rollout(tasks, [plan] * len(tasks), keys)


@pytest.fixture(scope="module")
def rollout() -> Rollout:
    return play(clicker())


@pytest.mark.slow
def test_every_turn_is_a_sample_linked_by_episode_and_turn(rollout: Rollout) -> None:
    assert rollout.episode.unique().tolist() == list(range(6))
    for number in range(6):
        rows = (rollout.episode == number).nonzero()[:, 0]
        assert rollout.turn[rows].tolist() == list(range(len(rows))), "in order, without gaps"
        assert set(rollout.group[rows].tolist()) == {10 if number < 3 else 11}
    assert rollout.outputs.outcomes is not None
    ends = [outcome for outcome in rollout.outputs.outcomes if outcome is not None]
    assert len(ends) == 6 and set(ends) <= {"done", "turn_limit", "invalid_limit"}


@pytest.mark.slow
def test_an_episode_is_what_the_world_makes_of_its_actions(rollout: Rollout) -> None:
    outputs = rollout.outputs
    assert outputs.actions is not None and outputs.step_rewards is not None and outputs.outcomes is not None
    for number in range(6):
        rows = (rollout.episode == number).nonzero()[:, 0].tolist()
        world, task = Corridor(), rollout.prompts[int(rollout.prompt[rows[0]])]
        key = rollout.keys[int(rollout.prompt[rows[0]])]
        seen = world.reset(task, key.seed_for("episode"))
        for row in rows:
            assert rollout.prompts[int(rollout.prompt[row])].media == (seen.screenshot,)
            action = outputs.actions[row]
            seen = world.step(action) if action is not None else replace(seen, reward=0.0)
            assert float(outputs.step_rewards[row]) == seen.reward
            assert outputs.screens is not None and outputs.screens[row] == seen.screenshot  # after the action
        assert (outputs.outcomes[rows[-1]] == "done") == seen.is_done


@pytest.mark.slow
def test_turns_in_the_same_state_have_the_same_anchor(rollout: Rollout) -> None:
    looks = [rollout.prompts[number].media[0] for number in rollout.prompt.tolist()]
    for n, look in enumerate(looks):
        for m, other in enumerate(looks):
            assert (look == other) == bool(rollout.anchor[n] == rollout.anchor[m])


@pytest.mark.slow
def test_log_probs_of_a_replay_are_those_of_sampling(rollout: Rollout) -> None:
    policy, view = clicker(), DecisionView(torch.arange(rollout.num_samples))
    assert_close(policy.forward(rollout, view).values, policy.recorded(rollout, view).values, atol=1e-5, rtol=1e-5)
    assert int(rollout.blocks[0].call.max()) + 1 == rollout.num_samples == rollout.num_calls


@pytest.mark.slow
def test_a_group_reads_its_first_screenshot_once_as_the_plan_says() -> None:
    """A goal out of reach and no answer refused: all episodes last, and the corridor's states part them."""
    policy = clicker(environment=Corridor(places=99), invalid_limit=99, history=9)
    rollout = play(policy, TASKS[:1])
    apart = {(int(p), int(t)) for p, t in zip(rollout.prompt, rollout.turn, strict=True)}
    assert rollout.counts["calls/prompt_reads"] == len(apart) <= PLAN.shared_work["prompt_reads"]
    assert (rollout.prompt[rollout.turn == 0] == rollout.prompt[0]).all()
    assert rollout.num_calls == PLAN.num_rollout_calls == 12
    alone = replace(PLAN, num_samples=1)
    assert play(policy, TASKS[:1], alone).counts["calls/prompt_reads"] == alone.shared_work["prompt_reads"] == 4


@pytest.mark.slow
def test_episodes_that_part_after_their_first_turn_read_as_many_prompts_as_the_plan_predicts() -> None:
    """Every answer is another click, and the history tells it: 1 + G (T - 1) prompts for each task, not G T."""

    class Scattered(Clicker):
        def action(self, text: str, canvas: Any) -> Action:
            return Action("click", point=(crc32(text.encode()) % 4096 / 100, 5.0))

    policy = clicker(environment=Corridor(places=99), history=9)
    policy.__class__ = Scattered
    counts = play(policy).counts
    assert counts["calls/prompt_reads"] == 2 * PLAN.shared_work["prompt_reads"] == 2 * (1 + 3 * 3)


@pytest.mark.slow
@pytest.mark.parametrize("changes", [{"parallel": 1}, {"parallel": 4}, {"answer_batch": 1}], ids=str)
def test_how_many_episodes_run_at_once_changes_nothing(rollout: Rollout, changes: dict[str, int]) -> None:
    other = play(clicker(**changes))
    assert other.outputs.texts == rollout.outputs.texts
    assert other.outputs.outcomes == rollout.outputs.outcomes
    for name in ("group", "episode", "turn", "anchor"):
        assert torch.equal(getattr(other, name), getattr(rollout, name)), name
    view = DecisionView(torch.arange(rollout.num_samples))
    policy = clicker()
    sums = [policy.forward(one, view).values.sum(1) for one in (other, rollout)]
    assert_close(sums[0], sums[1], atol=1e-4, rtol=1e-4)


@pytest.mark.slow
def test_worlds_are_used_again_and_begin_anew() -> None:
    policy = clicker()
    first, second = play(policy), play(policy)
    assert first.outputs.texts == second.outputs.texts
    assert 0 < len(policy._free) <= 6


@pytest.mark.slow
@pytest.mark.parametrize("trouble", ["crash", "hang"])
def test_a_world_that_breaks_ends_its_episode_and_no_other(trouble: str, caplog: pytest.LogCaptureFixture) -> None:
    policy = clicker(step_seconds=0.4, environment=Corridor(places=99), invalid_limit=99)
    tasks = (Prompt("go", target={"trouble": trouble}), TASKS[0])
    rollout = play(policy, tasks)
    outcomes = rollout.outputs.outcomes
    assert outcomes is not None
    assert [outcome for outcome in outcomes if outcome] == ["failed"] * 3 + ["turn_limit"] * 3
    screens = rollout.outputs.screens
    assert screens is not None and [s is None for s in screens] == [one == "failed" for one in outcomes]
    assert rollout.turn[rollout.episode < 3].max() == 1, "the second step broke"
    assert len(policy._free) == 3, "a broken world is not used again"
    line = next(n for n, line in enumerate(Path(toy_worlds.__file__).read_text().splitlines(), 1) if "gave way" in line)
    said = {
        "crash": f"OSError: the floor gave way (at toy_worlds.py:{line})",
        "hang": "Corridor took more than step_seconds 0.4 (at toy_worlds.py:",
    }
    assert said[trouble] in caplog.text


@pytest.mark.parametrize(
    "wrong",
    [None, ("a", 0.0), {"reward": math.nan}, {"is_done": "no"}, {"text": None}, {"screenshot": [1]}, {"reward": "1"}],
    ids=str,
)
def test_what_is_no_observation_ends_its_episode_as_failed(wrong: Any) -> None:
    class Wrong(Corridor):
        def step(self, action: Any) -> Any:
            return replace(super().step(action), **wrong) if isinstance(wrong, dict) else wrong

    rollout = play(clicker(environment=Wrong(places=99), invalid_limit=99), TASKS[:1])
    assert rollout.outputs.outcomes is not None and "failed" in rollout.outputs.outcomes
    assert {outcome for outcome in rollout.outputs.outcomes if outcome} <= {"failed", "turn_limit"}


@pytest.mark.slow  # most of a second each, or more
@pytest.mark.timeout(60)
def test_the_time_of_worlds_runs_side_by_side_and_an_exit_is_no_hang() -> None:
    class Leaving(Corridor):
        def step(self, action: Any) -> Observation:
            raise SystemExit(3)

    def hang(environment: Any) -> None:
        time.sleep(30)

    worlds = [World(Corridor(), 0.5) for _ in range(40)]
    for world in worlds:
        world.begin(hang)
    for world in worlds:  # one after the other they would take 20 seconds
        with pytest.raises(BrokenWorld, match=r"more than step_seconds 0\.5"):
            world.finish()
    leaving = World(Leaving(), 5.0)
    leaving.begin(lambda environment: environment.step(Action("wait")))
    with pytest.raises(BrokenWorld, match="SystemExit: 3"):
        leaving.finish()


def test_the_seconds_of_worlds_are_their_own_and_are_taken_once() -> None:
    worlds = [World(Corridor(), 5.0) for _ in range(4)]
    started = time.perf_counter()
    for world in worlds:
        world.begin(lambda environment: time.sleep(0.02))
    for world in worlds:
        world.finish()
    waited, worked = time.perf_counter() - started, [world.take_seconds() for world in worlds]
    assert min(worked) >= 0.02 and max(worked) <= waited, "side by side"
    assert [world.take_seconds() for world in worlds] == [0.0] * 4


@pytest.mark.slow
def test_an_agent_counts_what_it_waited_for_its_world_and_what_the_copies_worked() -> None:
    class Slow(Corridor):
        def step(self, action: Action) -> Observation:
            time.sleep(0.02)
            return super().step(action)

    policy = clicker(environment=Slow(places=99), invalid_limit=99)
    assert policy.environment_seconds() == (0.0, 0.0)
    started, rollout = time.perf_counter(), play(policy)
    waited, worked = policy.environment_seconds()
    assert rollout.outputs.actions is not None
    steps = sum(action is not None for action in rollout.outputs.actions)
    assert steps > 0 and worked >= 0.02 * steps and 0.0 < waited < time.perf_counter() - started
    play(policy)
    more, _ = policy.environment_seconds()
    assert more > waited, "over all rollouts"


@pytest.mark.slow
def test_an_episode_that_cannot_begin_is_left_out_and_counted() -> None:
    tasks = (Prompt("go", target={"trouble": "closed"}), TASKS[0])
    rollout = play(clicker(), tasks)
    assert set(rollout.group.tolist()) == {11} and rollout.counts["episodes/unstarted"] == 3
    with pytest.raises(RunError, match=r"no episode could begin.*the door is closed"):
        play(clicker(), tasks[:1])


@pytest.mark.slow
def test_an_answer_that_is_no_action_is_told_so_and_ends_the_episode_in_the_end() -> None:
    class Mute(Clicker):
        def action(self, text: str, canvas: Any) -> None:
            return None

    policy = clicker(invalid_limit=2)
    policy.__class__ = Mute
    rollout = play(policy, TASKS[:1])
    assert rollout.outputs.outcomes is not None and rollout.outputs.step_rewards is not None
    assert rollout.outputs.outcomes == (None, "invalid_limit") * 3
    assert not rollout.outputs.step_rewards.any()
    told = rollout.prompts[int(rollout.prompt[1])].text
    assert "not understood" in told and "not understood" not in rollout.prompts[int(rollout.prompt[0])].text


@pytest.mark.slow
def test_answers_that_are_no_action_end_the_episode_only_in_a_row() -> None:
    class Stammering(Clicker):
        calls = 0

        def action(self, text: str, canvas: Any) -> Action | None:
            self.calls += 1
            return None if self.calls % 2 else Action("click", point=(40.0, 20.0))

    policy = clicker(invalid_limit=2, environment=Corridor(places=99))
    policy.__class__ = Stammering
    rollout = play(policy, TASKS[:1], replace(PLAN, num_samples=1))
    assert rollout.outputs.actions is not None
    assert [action is None for action in rollout.outputs.actions] == [True, False, True, False]
    assert rollout.outputs.outcomes == (None, None, None, "turn_limit")


@pytest.mark.slow
def test_an_action_that_a_critic_refuses_is_not_done_and_told() -> None:
    """Each episode is played again in a world of its own, without the clicks to the left."""
    tasks = (TASKS[0], Prompt("go", target={"trouble": "dark"}))
    rollout = play(clicker(critic=Rightwards(), environment=Corridor(places=99), history=9), tasks)
    outputs, num_refused = rollout.outputs, 0
    assert outputs.actions is not None and outputs.screens is not None
    for number in range(6):
        rows = (rollout.episode == number).nonzero()[:, 0].tolist()
        first = int(rollout.prompt[rows[0]])
        task, key = rollout.prompts[first], rollout.keys[first]
        world = Corridor(places=99)
        seen, told = world.reset(task, key.seed_for("episode")), ""
        for row in rows:
            prompt, action = rollout.prompts[int(rollout.prompt[row])], outputs.actions[row]
            assert prompt.media == (seen.screenshot,) and (REFUSED in prompt.text) == (told == REFUSED)
            is_refused = number < 3 and action is not None and action.point[0] < 28
            if action is not None and not is_refused:
                seen = world.step(action)
            num_refused += is_refused
            told = REFUSED if is_refused else ""
            assert outputs.screens[row] == seen.screenshot
        last = rollout.prompts[int(rollout.prompt[rows[-1]])].text
        did = [outputs.actions[row] for row in rows[:-1]]
        assert last.count("(refused)") == sum(number < 3 and one is not None and one.point[0] < 28 for one in did)
    assert rollout.counts["turns/refused"] == num_refused > 0


@pytest.mark.slow
def test_with_words_the_agent_reads_why_its_action_was_refused() -> None:
    """The critic of these tests writes about each text; the second task's critic cannot judge, and writes nothing."""
    tasks = (TASKS[0], Prompt("go", target={"trouble": "dark"}))
    critic = Wordy()
    rollout = play(clicker(critic=critic, critic_words=True, environment=Corridor(places=99)), tasks)
    outputs, num_refused = rollout.outputs, 0
    assert outputs.actions is not None and outputs.texts is not None
    for number in range(6):
        rows = (rollout.episode == number).nonzero()[:, 0].tolist()
        for row, after in pairwise(rows):
            action, prompt = outputs.actions[row], rollout.prompts[int(rollout.prompt[after])]
            is_refused = number < 3 and action is not None and action.point[0] < 28
            said = f"{REFUSED}\nThe critic: {len(outputs.texts[row])} bytes lead to the left, < image>"
            assert (said in prompt.text) == is_refused and ("The critic" in prompt.text) == is_refused
            num_refused += is_refused
    assert num_refused > 0
    assert rollout.counts["turns/refused"] == len(critic.explained) >= num_refused, "only refused answers"


def test_a_critic_without_words_says_that_it_refuses_alone() -> None:
    turns = play(clicker(), TASKS[:1])
    refused = [True, False] * turns.num_samples
    texts = refused_texts(Silent(), refused[: turns.num_samples], turns, with_words=True)
    assert texts == tuple(REFUSED if one else None for one in refused[: turns.num_samples])


@pytest.mark.slow
def test_of_several_answers_the_critic_chooses_the_first_best_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each answer is one of those that are sampled by the turn's own seeds, and a click to the left where all are."""
    policy = clicker(critic=Rightwards(), critic_threshold=0, candidates=4, environment=Corridor(places=99))
    drawn: dict[int, str] = {}
    draw = policy.generate

    def noted(prompts: Any, prompt_of: Any, seeds: Any, plan: Any) -> Any:
        trace = draw(prompts, prompt_of, seeds, plan)
        shown = [prompts[number] for number in prompt_of.tolist()]
        drawn.update(zip(seeds, policy.outputs_of(shown, trace, prompt_of, policy._pieces).texts or (), strict=True))
        return trace

    monkeypatch.setattr(policy, "generate", noted)
    rollout = play(policy, TASKS[:1])
    assert rollout.outputs.texts is not None and len(drawn) == 4 * rollout.num_samples
    key, is_good = rollout.keys[0], []
    for text, episode, turn in zip(rollout.outputs.texts, rollout.episode.tolist(), rollout.turn.tolist(), strict=True):
        paths = [("tokens", episode, turn), *(("tokens", episode, turn, other) for other in (1, 2, 3))]
        candidates = [drawn[key.seed_for(*path)] for path in paths]
        good = [one for one in candidates if policy.action(one, None) != Action("click", point=(10.0, 20.0))]
        assert text == (good or candidates)[0]
        is_good.append(bool(good))
    assert True in is_good
    replayed, view = clicker(), DecisionView(torch.arange(rollout.num_samples))
    assert_close(replayed.forward(rollout, view).values, policy.recorded(rollout, view).values, atol=1e-5, rtol=1e-5)


def test_a_choice_without_scores_is_the_last() -> None:
    nan, low = float("nan"), -math.inf
    scores = torch.tensor([0.1, 0.7, 0.7, nan, -1.0, low, nan, low, low, nan, nan, nan])
    assert highest(scores, 3).tolist() == [1, 4, 6, 9]
    assert highest(scores, 1).tolist() == list(range(12))


@pytest.mark.slow
def test_a_refused_answer_ends_no_episode() -> None:
    class Quitting(Clicker):
        def action(self, text: str, canvas: Any) -> Action:
            return Action("finish")

    for threshold, outcomes in ((0.5, ("done",) * 3), (2.0, (None, None, None, "turn_limit") * 3)):
        policy = clicker(critic=Rightwards(), critic_threshold=threshold, dialect="qwen")
        policy.__class__ = Quitting
        assert play(policy, TASKS[:1]).outputs.outcomes == outcomes


@pytest.mark.slow
def test_every_turn_of_every_episode_draws_by_numbers_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    policy, drawn = clicker(), []
    draw = policy.generate

    def noted(prompts: Any, prompt_of: Any, seeds: Any, plan: Any) -> Any:
        drawn.extend(seeds)
        return draw(prompts, prompt_of, seeds, plan)

    monkeypatch.setattr(policy, "generate", noted)
    rollout = play(policy)
    by_hand = {
        rollout.keys[prompt].seed_for("tokens", episode % PLAN.num_samples, turn)
        for prompt, episode, turn in zip(
            rollout.prompt.tolist(), rollout.episode.tolist(), rollout.turn.tolist(), strict=True
        )
    }
    assert set(drawn) == by_hand and len(drawn) == len(by_hand) == rollout.num_samples


class Workbench(Corridor):
    """Answers each action with what a tool found: a crop, then a frame, then the screen, and text each time."""

    def step(self, action: Action) -> Observation:
        seen = super().step(action)
        sizes = {1: (28, 56), 2: (84, 28)}
        found = seen.screenshot if self._steps not in sizes else picture(*sizes[self._steps], self._steps)
        return replace(seen, screenshot=found, text=f"stdout of call {self._steps}: 4{self._steps}", is_done=False)


@pytest.mark.slow
def test_crops_frames_screenshots_and_the_text_of_tools_never_enter_the_loss() -> None:
    """The gradient is that of -A log p summed over the tokens of the answers alone, by transformers' own forward.

    All that an environment gives is in the prompts of later turns, which the answers' log-probs depend on.
    """
    policy = clicker(environment=Workbench(), screenshots=3, history=2, invalid_limit=9)
    rollout = play(policy, TASKS[:1])
    block, completions = rollout.blocks[0], rollout.trace.completions
    last = [rollout.prompts[int(n)] for n in rollout.prompt[rollout.turn == 3]]
    assert len(last) == 3, "episodes of four turns"
    for prompt in last:
        assert "stdout of call 3: 43" in prompt.text and len(prompt.media) == 3
        read = policy.encode([prompt])[0]
        assert (read.token_types == 1).sum() >= 3 and len(read) > 30
    is_answer = torch.arange(block.edge.shape[1]) < completions.length[:, None]
    assert torch.equal(block.edge >= 0, is_answer), "a decision for each token of an answer, and for nothing else"
    assert rollout.outputs.num_tokens is not None and int(is_answer.sum()) == int(rollout.outputs.num_tokens.sum())

    batch = loss_batch(rollout)
    views = Grpo().views(rollout, torch.arange(rollout.num_samples), GroupKey(0, 0, 0))
    policy.modules()["model"].zero_grad()
    loss = Grpo(clip_low=0.2, clip_high=0.2, normalise="decision")
    assert Updater(policy, loss, Processes(), 3).accumulate(rollout, views, batch, "itself")
    got = _flat_gradient(policy)
    policy.modules()["model"].zero_grad()
    for row in range(rollout.num_samples):
        prompt, length = rollout.trace.prompts[int(rollout.prompt[row])], int(completions.length[row])
        answer = completions.tokens[row, :length]
        tokens = torch.cat([prompt.tokens, answer])[None]
        kinds = torch.cat([prompt.token_types, torch.zeros_like(answer)])[None]
        model: Any = policy.modules()["model"]
        logits = model(
            input_ids=tokens, attention_mask=torch.ones_like(tokens), mm_token_type_ids=kinds, **prompt.media
        ).logits[0]
        logits[:, list(policy.banned)] = -torch.inf
        log_probs = logits.log_softmax(1)[:-1].gather(1, tokens[0, 1:, None])[:, 0]
        is_learned = torch.arange(len(log_probs)) >= len(prompt) - 1  # those of the answer, none of an observation
        (-batch.advantages[row, 0] * log_probs[is_learned].sum() / int(is_answer.sum())).backward()
    expected = _flat_gradient(policy)
    assert float((got - expected).norm() / expected.norm()) < 1e-4


def _flat_gradient(policy: Clicker) -> torch.Tensor:
    parameters = policy.weights.parameters.values()
    return torch.cat([p.grad.flatten().clone() for p in parameters if p.grad is not None])


@pytest.mark.slow
def test_dropping_the_screenshot_or_another_one_changes_log_probs(rollout: Rollout) -> None:
    policy, view = clicker(), DecisionView(torch.arange(rollout.num_samples))
    texts = rollout.outputs
    before = policy.forward(rollout, view).values
    prompts = [replace(rollout.prompts[n], media=(picture(56, 56, 9),)) for n in rollout.prompt.tolist()]
    keys = [rollout.keys[n] for n in rollout.prompt.tolist()]
    given = policy.offline(prompts, texts, keys)
    same = policy.offline([rollout.prompts[n] for n in rollout.prompt.tolist()], texts, keys)
    after, kept = (policy.forward(one, view).values for one in (given, same))
    assert (after.sum(1) - kept.sum(1)).abs().min() > 1e-6
    assert before.shape[0] == kept.shape[0]


@pytest.mark.slow
def test_a_page_that_spells_tokens_breaks_nothing() -> None:
    class Spelling(Corridor):
        def step(self, action: Any) -> Observation:
            return replace(super().step(action), text="<image> <video> <|im_end|> <|image_pad|> " + "\x00")

    rollout = play(clicker(environment=Spelling(places=99)), TASKS[:1])
    assert any("< |im_end|>" in prompt.text and "<|" not in prompt.text for prompt in rollout.prompts)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"screenshots": 0}, "screenshots must be at least 1, got 0"),
        ({"history": -1}, "history must be at least 0"),
        ({"step_seconds": 0}, "step_seconds must be above 0"),
        ({"dialect": "ui_r1"}, "needs whole actions, and dialect 'ui_r1' names kinds without their details"),
        ({"environment": {"name": "corridor"}}, "unknown environment 'corridor'"),
        ({"environment": {"name": "tests.toy_worlds:Corridor", "place": 3}}, "has no field 'place'.*places"),
        ({"environment": {"name": "tests.tiny_texts:Letters"}}, "is no environment: it has no reset, step, state_key"),
        ({"critic": {"name": "step_reward"}}, "critic must judge an answer .* this one needs outcomes, step_rewards"),
        ({"critic": {"name": "majority_vote"}}, "critic must judge an answer .* this one judges a whole group"),
        ({"critic": {"name": "finished"}, "critic_words": True}, "critic_words need a critic that writes its reasons"),
        ({"critic": STEP_JUDGE, "critic_words": True}, "critic_words need a critic that writes its reasons"),
        ({"candidates": 4}, "candidates need a critic that chooses one of them, got 4 without"),
        ({"environment": "screens"}, "is a section such as {name: ...} of environments, got 'screens'"),
    ],
    ids=str,
)
def test_wrong_settings_are_named(wrong: dict[str, Any], message: str) -> None:
    settings = {"name": "agent", "model": "m", "dialect": "plain", "environment": {"name": "tests.toy_worlds:Corridor"}}
    with pytest.raises(ConfigError, match=message):
        build("modalities", settings | wrong)


def test_a_held_plug_in_is_built_of_its_own_section() -> None:
    environment = {"name": "tests.toy_worlds:Corridor", "places": 5}
    built = build("modalities", {"name": "agent", "model": "m", "dialect": "plain", "environment": environment})
    assert built.environment == Corridor(places=5)
