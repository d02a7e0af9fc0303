"""Held-out evaluation: always the same noise, whatever the chunks; its mean, its failures, its saved samples."""

import json
import math
import statistics
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Literal

import pytest
import torch
from PIL import Image
from torch import Tensor

from mmrl.core.contracts import Granularity, RewardBatch, RunError
from mmrl.core.data import Outputs, Prompt, Rollout, Scores
from mmrl.core.keys import GroupKey
from mmrl.parsing.actions.action import Action
from mmrl.parsing.coordinates import Canvas
from mmrl.plans.answers import EpisodePlan
from mmrl.reporting.drawing import GAP, LINE, PREDICTED, TRUE
from mmrl.scoring.metrics import score_metrics
from mmrl.scoring.scorer import RewardTerm, Scorer
from mmrl.training.held_out import Evaluator, SavedSample, _result, save_samples, saved_sample
from mmrl.training.processes import Processes
from tests.parameters import in_one_test
from tests.toy_worlds import Corridor, clicker
from tests.toys import ToyTokens

PROMPTS = tuple(Prompt(text) for text in "abcde")


class GroupSizes:
    """A sampler whose plan is the size of the group."""

    sample_kind: ClassVar[Literal["latents", "tokens", "turns", "given"]] = "tokens"

    def plan(self, policy: Any, key: GroupKey, group_size: int) -> int:
        return group_size


@dataclass(frozen=True)
class TokenSum:
    """Sum of the tokens of an answer; NaN for the prompts `unjudged`."""

    source: ClassVar[str] = "a test"
    range: ClassVar[tuple[float, float]] = (0.0, math.inf)
    granularity: ClassVar[Granularity] = "sample"
    differentiable: ClassVar[bool] = False
    needs: ClassVar[frozenset[str]] = frozenset({"texts"})
    batch_size: ClassVar[int | None] = None

    unjudged: str = ""
    power: float = 1.0

    def score(self, batch: RewardBatch) -> Tensor:
        assert batch.outputs.texts is not None
        sums = [sum(map(int, text.split())) ** self.power for text in batch.outputs.texts]
        judged = [prompt.text not in self.unjudged for prompt in batch.prompts]
        values = [one if is_judged else math.nan for one, is_judged in zip(sums, judged, strict=True)]
        return torch.tensor(values, dtype=torch.float32)


def evaluator(*rewards: RewardTerm, max_failed_share: float = 1.0, **changes: Any) -> Evaluator:
    made = Evaluator(
        policy=ToyTokens(),
        sampler=GroupSizes(),
        scorer=Scorer(rewards or (RewardTerm("sum", TokenSum()),), max_failed_share),
        processes=Processes(),
        prompts=PROMPTS,
        weights="trained",
        samples_per_prompt=3,
        seed=7,
        chunk=2,
        saved_samples=len(PROMPTS),
    )
    return replace(made, **changes)


def answers(policy: ToyTokens, seed: int = 7) -> list[list[int]]:
    """The sums of the answers to each prompt, drawn one prompt at a time."""
    drawn = [policy.rollout([prompt], [3], [GroupKey(seed, 0, n)]) for n, prompt in enumerate(PROMPTS)]
    return [[sum(map(int, text.split())) for text in rollout.outputs.texts or ()] for rollout in drawn]


def test_the_score_is_the_mean_over_all_samples() -> None:
    sums = [one for group in answers(ToyTokens()) for one in group]
    result = evaluator()()
    assert len(set(sums)) > 3
    assert result.score == pytest.approx(statistics.fmean(sums))
    assert result.metrics == pytest.approx({
        "held_out/score": statistics.fmean(sums),
        "held_out/standard_error": statistics.pstdev(sums) / len(sums) ** 0.5,
        "held_out/failed": 0.0,
        "held_out/best_of_prompt": statistics.fmean(max(group) for group in answers(ToyTokens())),
        "held_out/sum/mean": statistics.fmean(sums),
        "held_out/sum/std": statistics.pstdev(sums),
    })  # fmt: skip


def test_the_best_of_a_prompt_is_that_of_its_judged_episodes() -> None:
    """Prompt 0: episodes of 1 and 3 turns worth 0.5 and (0.3 + 0.6 + 0.9) / 3; prompt 4: one was not judged."""
    values = torch.tensor([[0.5], [0.3], [0.6], [0.9], [0.2], [9.0]])
    valid = torch.tensor([True] * 5 + [False])
    group, episode = torch.tensor([0, 0, 0, 0, 4, 4]), torch.tensor([7, 2, 2, 2, 3, 5])
    scores = Scores(values, ("a",), (1.0,), valid, group, episode=episode, turn=torch.tensor([0, 0, 1, 2, 0, 0]))
    assert _result(scores, []).metrics["held_out/best_of_prompt"] == pytest.approx((0.6 + 0.2) / 2)
    alone = scores.select(torch.tensor([0, 4]))
    assert "held_out/best_of_prompt" not in _result(alone, []).metrics


@pytest.mark.parametrize("chunk", [1, 2, 100])
def test_the_score_is_reported_by_a_field_of_the_target(chunk: int) -> None:
    themes = ["b/c" if number % 3 else "a" for number in range(len(PROMPTS))]
    prompts = tuple(replace(one, target={"theme": theme}) for one, theme in zip(PROMPTS, themes, strict=True))
    found = evaluator(prompts=prompts, by="theme", chunk=chunk)()
    plain = evaluator(prompts=prompts, chunk=chunk)()
    sums = answers(ToyTokens())
    for theme, name in (("a", "a"), ("b/c", "b c")):
        own = [value for one, of in zip(sums, themes, strict=True) if of == theme for value in one]
        assert found.metrics.pop(f"held_out/score/{name}") == pytest.approx(statistics.fmean(own))
    assert found.metrics == plain.metrics and found.score == plain.score


def test_a_theme_that_could_not_be_judged_has_no_score() -> None:
    prompts = tuple(replace(one, target={"theme": f"{number}"}) for number, one in enumerate(PROMPTS))
    broken = RewardTerm("sum", TokenSum(unjudged=PROMPTS[0].text))
    metrics = evaluator(broken, prompts=prompts, by="theme")().metrics
    unjudged = {f"held_out/score/{number}" for number, one in enumerate(PROMPTS) if one.text in PROMPTS[0].text}
    assert "held_out/score/0" in unjudged and not unjudged & set(metrics)
    assert len([name for name in metrics if name.startswith("held_out/score/")]) == len(PROMPTS) - len(unjudged)


@pytest.mark.slow
@in_one_test("chunk", [1, 3, 5, 100])
def test_chunks_change_nothing(chunk: int) -> None:
    assert evaluator(chunk=chunk)() == evaluator()()


def test_the_noise_is_fixed_by_the_seed_alone() -> None:
    first = evaluator()()
    torch.rand(10)
    again = evaluator()
    assert again() == first and again() == first
    assert evaluator(seed=8)() != first
    assert evaluator(seed=8)().score == pytest.approx(
        statistics.fmean(one for group in answers(ToyTokens(), 8) for one in group)
    )


def test_the_named_weights_are_evaluated_and_the_trained_ones_put_back() -> None:
    subject = evaluator()
    policy: Any = subject.policy
    policy.weights.keep("averaged")
    with torch.no_grad():
        policy.network.bias.copy_(torch.tensor([0.0, 0.0, 0.0, 0.0, 50.0]))  # always token 4
    before = evaluator()()
    assert replace(subject, weights="averaged")() == before
    assert policy.network.bias[4] == 50.0
    texts = [sample.text or "" for sample in subject().samples]
    assert all(set(text.split()) == {"4"} for text in texts)


def test_rewards_are_weighed_and_one_of_weight_zero_is_only_watched() -> None:
    sums = [one for group in answers(ToyTokens()) for one in group]
    watched = RewardTerm("watched", TokenSum(unjudged="abcde"), 0.0)
    result = evaluator(RewardTerm("sum", TokenSum(), 0.5), RewardTerm("squares", TokenSum(power=2.0), 2.0), watched)()
    assert result.score == pytest.approx(statistics.fmean(0.5 * one + 2 * one**2 for one in sums))
    assert result.metrics["held_out/squares/mean"] == pytest.approx(statistics.fmean(one**2 for one in sums))
    assert result.metrics["held_out/failed"] == 0 and "held_out/watched/mean" not in result.metrics


def test_samples_that_cannot_be_judged_are_counted_and_left_out_of_the_mean() -> None:
    groups = answers(ToyTokens())
    judged = [one for n in (0, 2, 3) for one in groups[n]]
    result = evaluator(RewardTerm("sum", TokenSum(unjudged="be")))()
    assert result.metrics["held_out/failed"] == 6
    assert result.score == pytest.approx(statistics.fmean(judged))
    assert result.metrics["held_out/sum/std"] == pytest.approx(statistics.pstdev(judged))
    assert [math.isnan(sample.scores["sum"]) for sample in result.samples] == [False, True, False, False, True]


def test_too_many_failures_end_the_run_and_so_does_a_set_without_one_judged_sample() -> None:
    with pytest.raises(RunError, match="6 of 15 samples could not be judged"):
        evaluator(RewardTerm("sum", TokenSum(unjudged="be")), max_failed_share=0.3)()
    with pytest.raises(RunError, match="not one sample could be judged; first failure: sum: "):
        evaluator(RewardTerm("sum", TokenSum(unjudged="abcde")))()


EVERY = [0, 1, 2, 3, 4]


@pytest.mark.parametrize("count", [0, 1, 2, 5, 9])
def test_saved_samples_are_the_first_of_a_fixed_choice_of_prompts(count: int) -> None:
    result = evaluator(saved_samples=count)()
    draws = [sample.seed for sample in result.samples]
    assert draws == sorted(set(draws)) and len(draws) == min(count, len(EVERY)) and set(draws) <= set(EVERY)
    assert draws == [sample.seed for sample in evaluator(saved_samples=count, chunk=1)().samples]
    firsts = answers(ToyTokens())
    for sample in result.samples:
        assert sample.prompt == PROMPTS[sample.seed].text
        assert sample.text is not None and sum(map(int, sample.text.split())) == firsts[sample.seed][0]
        assert sample.scores == {"sum": firsts[sample.seed][0]}


def test_saved_pictures_and_scores_can_be_read_back(tmp_path: Path) -> None:
    pixels = torch.zeros(2, 3, 2, 4)
    pixels[1, 0, 1, 3], pixels[1, 2, 0, 0] = 1.0, 0.5
    policy, key = ToyTokens(), GroupKey(0, 0, 4)
    drawn = replace(policy.rollout([Prompt("a <b>")], [2], [key]), outputs=Outputs(images=pixels))
    save_samples([saved_sample(drawn, 1, {"good": 0.25, "failed": math.nan})], tmp_path / "samples")
    page = json.loads((tmp_path / "samples" / "samples.json").read_text(encoding="utf-8"))
    assert page["kind"] == "image"
    (entry,) = page["samples"]
    assert (entry["prompt"], entry["seed"], entry["scores"]) == ("a <b>", 4, {"good": 0.25})
    with Image.open(tmp_path / "samples" / entry["file"]) as picture:
        assert picture.size == (4, 2)
        assert [picture.getpixel(at) for at in ((3, 1), (0, 0))] == [(255, 0, 0), (0, 0, 128)]


def test_saved_answers_are_kept_as_text(tmp_path: Path) -> None:
    save_samples([SavedSample("a", 0, {"sum": 3.0}, text="1 2")], tmp_path)
    page = json.loads((tmp_path / "samples.json").read_text(encoding="utf-8"))
    assert page == {"kind": "text", "samples": [{"prompt": "a", "seed": 0, "scores": {"sum": 3.0}, "text": "1 2"}]}


@dataclass(frozen=True)
class Grey:
    """A grey image of 64 x 64 pixels."""

    level: int = 128

    @property
    def size(self) -> tuple[int, int]:
        return 64, 64

    def load(self) -> Image.Image:
        return Image.new("RGB", (64, 64), (self.level,) * 3)


QUESTION = Prompt("<image><image> where?", (Grey(), Grey(9)), {"box": [8, 8, 24, 24]})


def answered(**outputs: Any) -> Rollout:
    """One answer about two images."""
    rollout = ToyTokens().rollout([QUESTION], [1], [GroupKey(0, 0, 3)])
    return replace(rollout, outputs=Outputs(**{"texts": ("(500, 500)",), **outputs}))


def colours(sample: SavedSample) -> set[Any]:
    assert sample.image is not None
    return set(sample.image.crop((0, 0, 320, 320)).get_flattened_data())


def test_an_answer_is_drawn_on_the_first_image_of_its_question_beside_the_truth(tmp_path: Path) -> None:
    canvas = Canvas((64, 64), (28, 28), "thousand")
    sample = saved_sample(answered(canvases=(canvas,)), 0, {})
    assert (sample.text, sample.num_images, sample.seed) == ("(500, 500)", 2, 3)
    assert sample.image is not None and sample.image.getpixel((160, 160)) == PREDICTED.colour
    assert {TRUE.colour, PREDICTED.colour, (128, 128, 128)} <= colours(sample)
    save_samples([sample], tmp_path)
    page = json.loads((tmp_path / "samples.json").read_text(encoding="utf-8"))
    (entry,) = page["samples"]
    assert (entry["file"], entry["text"], entry["num_images"]) == ("000.png", "(500, 500)", 2)
    with Image.open(tmp_path / "000.png") as picture:
        assert picture.size == sample.image.size


@pytest.mark.slow
def test_an_action_goes_before_the_text_and_what_is_not_understood_is_not_drawn() -> None:
    canvas = Canvas((64, 64), (64, 64), "original")
    acted = saved_sample(answered(canvases=(canvas,), actions=(Action("click", point=(48.0, 8.0)),)), 0, {})
    assert acted.image is not None and acted.image.getpixel((240, 40)) == PREDICTED.colour
    for changes in ({"actions": (None,), "canvases": (canvas,)}, {"texts": ("here",), "canvases": (canvas,)}, {}):
        assert PREDICTED.colour not in colours(saved_sample(answered(**changes), 0, {}))


def test_a_question_without_image_has_none_beside_its_answer() -> None:
    sample = saved_sample(
        ToyTokens().rollout([Prompt("?", target={"box": [1, 2, 3, 4]})], [1], [GroupKey(0, 0, 0)]), 0, {}
    )
    assert sample.image is None and sample.num_images == 0


def test_the_score_of_episodes_does_not_count_long_ones_more() -> None:
    """An episode of three turns that fails and one of a single turn that succeeds: one half."""
    names = torch.tensor([0, 0, 0, 1])
    made = Scores(
        torch.tensor([[0.0], [0.0], [0.0], [1.0]]),
        ("r",),
        (1.0,),
        torch.ones(4, dtype=torch.bool),
        names * 0,
        names,
        names,
    )
    found = _result(made, [])
    trained = score_metrics(made, torch.zeros(len(made.group), dtype=torch.bool))["reward/r/mean"]
    assert found.score == found.metrics["held_out/r/mean"] == trained == 0.5
    assert found.metrics["held_out/r/std"] == 0.5
    control = replace(
        made, is_control=torch.tensor([True, True, False, False]), valid=torch.tensor([False] * 2 + [True] * 2)
    )
    assert _result(control, []).metrics["held_out/r/mean"] == 0.5, "controls count in no mean"
    broken = replace(made, valid=torch.tensor([True, False, True, True]))
    assert _result(broken, []).score == 0.5


@pytest.mark.slow
def test_an_episode_is_saved_as_a_strip_of_its_turns() -> None:
    rollout = clicker(environment=Corridor(places=99), invalid_limit=99).rollout(
        [Prompt("go")], [EpisodePlan(num_samples=1, max_tokens=4, max_turns=3)], [GroupKey(1, 0, 8)]
    )
    saved = saved_sample(rollout, 0, {"r": 0.5})
    assert saved.image is not None and saved.text is not None and saved.seed == 8
    texts = rollout.outputs.texts or ()
    assert saved.text == "\n".join([*(f"{n}. {text}" for n, text in enumerate(texts, 1)), "(turn_limit)"])
    # each screen of 56 pixels grows fivefold, its colour tells the place, and the click is marked on it; two in a row
    assert saved.image.width == 2 * 280 + 8
    last = (rollout.outputs.screens or ())[-1]
    assert last is not None
    screens = [rollout.prompts[int(rollout.prompt[turn])].media[0] for turn in range(3)] + [last]
    for place, screen in enumerate(screens):
        row, column = divmod(place, 2)
        shown = saved.image.getpixel((column * 288 + 2, row * (280 + LINE + GAP) + 2))
        assert shown == screen.load().getpixel((0, 0))
    colours = saved.image.getcolors(10**6) or []
    assert any(colour == PREDICTED.colour for _, colour in colours)


def test_a_saved_sample_has_of_its_target_what_json_can_hold(tmp_path: Path) -> None:
    target = {"box": (1.0, 2.0, 3.0, 4.0), "answer": "x", "bytes": b"x", "spans": [{"of": (0, 1)}], "nan": float("nan")}
    save_samples([SavedSample("p", 0, {}, text="x", target=target, action=Action("wait", amount=0))], tmp_path)
    (entry,) = json.loads((tmp_path / "samples.json").read_text(encoding="utf-8"))["samples"]
    assert entry["target"] == {"box": [1.0, 2.0, 3.0, 4.0], "answer": "x", "spans": [{"of": [0, 1]}]}
    assert entry["action"] == {"kind": "wait", "amount": 0}
