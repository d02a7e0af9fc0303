"""Judges of pictures: what they are shown, and replies of small models against the plain use of transformers."""

import math
import random
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoModelForImageTextToText, AutoProcessor, AutoTokenizer

from mmrl.core.contracts import ConfigError, RewardBatch
from mmrl.core.data import Outputs, Prompt
from mmrl.core.reward_batches import select
from mmrl.media.pictures import Picture, StoredPicture
from mmrl.rewards.base.judging.local import LocalJudge
from mmrl.rewards.base.judging.memory import Ledger, Memory
from mmrl.rewards.base.judging.panel import Panel
from mmrl.rewards.base.judging.questions import Question, Reply, UnansweredError
from mmrl.rewards.base.judging.settings import JudgeModel
from mmrl.rewards.base.judging.twins import write_tiny_judge
from mmrl.rewards.judges.text_judge import TextJudge
from mmrl.rewards.judges.vlm_judge import VlmJudge, chosen_frames
from tests.rewards.example import GROUP, Example, make_batch
from tests.rewards.pictures import CPU, SIDE, random_images, random_pictures, random_texts, to_pil
from tests.vision_twins import picture

EXAMPLE = Example(random_batch=random_pictures, settings={"prompt": "image_quality"})


def shot(seed: int) -> Picture:
    return picture(12, 8, seed)


class Noting:
    """Says the same to all, and keeps the questions."""

    def __init__(self, said: str) -> None:
        self.said, self.questions = said, list[Question]()

    def ask(self, questions: Sequence[Question], seeds: Sequence[int]) -> list[Reply | UnansweredError]:
        self.questions += questions
        return [Reply(self.said) for _ in questions]


class Saying(Noting):
    """Gives the log-probs of both words, question by question."""

    def __init__(self, log_probs: Sequence[tuple[float, float]]) -> None:
        super().__init__("")
        self.log_probs = log_probs

    def ask(self, questions: Sequence[Question], seeds: Sequence[int]) -> list[Reply | UnansweredError]:
        self.questions += questions
        return [Reply("", log_probs=one) for one in self.log_probs]


def stored(seed: int) -> StoredPicture:
    content = BytesIO()
    shot(seed).load().convert("RGB").save(content, "PNG")
    return StoredPicture(f"reference {seed}", content=content.getvalue())


def noted(reward: VlmJudge, said: str) -> Noting:
    judge = Noting(said)
    reward._panel = Panel([(JudgeModel(), judge)], 1, "mean", Memory(None), Ledger(None, None, None))
    return judge


def test_the_original_comes_before_the_edit() -> None:
    reward = VlmJudge("edit_instruction", condition_image=True)
    judge = noted(reward, "Score: 5")
    images = random_images(random.Random(0), 2)
    batch = make_batch(Outputs(images=images), ["<image> make it red"] * 2, media=[(shot(1),), (shot(2),)])
    assert reward.score(batch).tolist() == [1, 1] and {"images", "prompt.image"} <= reward.needs
    for number, question in enumerate(judge.questions):
        original, edit = question.images
        assert original.tobytes() == shot(number + 1).load().convert("RGB").tobytes()
        assert edit.tobytes() == to_pil(images)[number].tobytes()
        assert "make it red" in question.text and "<image>" not in question.text


def test_the_reference_comes_before_the_sample_with_the_criteria_of_its_row() -> None:
    reward = VlmJudge("reward_dance", reference_image=True)
    judge = Saying([(math.log(0.6), math.log(0.2)), (math.log(0.1), math.log(0.3))])
    reward._panel = Panel([(JudgeModel(), judge)], 1, "mean", Memory(None), Ledger(None, None, None))
    images = random_images(random.Random(0), 2)
    references = [stored(number) for number in range(2)]
    targets = [{"given": (one,), "criteria": f"sharper {number}"} for number, one in enumerate(references)]
    batch = make_batch(Outputs(images=images), ["a"] * 2, targets=targets)
    torch.testing.assert_close(reward.score(batch), torch.tensor([0.75, 0.25]))
    assert {"images", "target.given", "target.criteria"} <= reward.needs
    for number, question in enumerate(judge.questions):
        reference, sample = question.images
        assert reference.tobytes() == references[number].load().tobytes()
        assert sample.tobytes() == to_pil(images)[number].tobytes()
        assert f"sharper {number}" in question.text and question.words == ("yes", "no")


def test_a_reference_must_be_a_picture_that_the_row_brings() -> None:
    reward = VlmJudge("reward_dance", reference_image=True)
    reward.check(Prompt("a", target={"given": (stored(0),), "criteria": "b"}))
    with pytest.raises(ValueError, match="picture as the reference, got \\('an answer',\\)"):
        reward.check(Prompt("a", target={"given": ("an answer",), "criteria": "b"}))
    with pytest.raises(ValueError, match="reference_image goes with what is seen"):
        VlmJudge("critique_then_score", of="texts", reference_image=True)


def test_each_turn_of_an_agent_is_judged_by_the_screen_after_it() -> None:
    reward = VlmJudge("web_page_step", of="screens")
    before, after = [shot(number) for number in range(3)], [shot(10), shot(11), None]

    class Looking(Noting):
        def ask(self, questions: Sequence[Question], seeds: Sequence[int]) -> list[Reply | UnansweredError]:
            self.questions += questions
            place = {one.load().convert("RGB").tobytes(): n for n, one in enumerate(after) if one is not None}
            return [Reply(f"Fine.\nScore: {(5, 2)[place[one.images[0].tobytes()]]}") for one in questions]

    judge = Looking("")
    reward._panel = Panel([(JudgeModel(), judge)], 1, "mean", Memory(None), Ledger(None, None, None))
    outputs, page = Outputs(texts=("a", "b", "c"), screens=tuple(after)), {"page": "a page about tea"}
    batch = make_batch(outputs, ["turn"] * 3, [page] * 3, media=[(one,) for one in before])
    assert reward.score(select(batch, torch.tensor([0, 1]))).tolist() == pytest.approx([1, 0.4])  # of 0 to 5
    assert all("about tea" in one.text and len(one.images) == 1 for one in judge.questions)
    assert {"screens", "target.page"} <= reward.needs and reward.granularity == "sample"
    with pytest.raises(ValueError, match="the environment broke in this turn"):
        reward.score(select(batch, torch.tensor([2])))


def test_a_step_of_an_agent_is_judged_by_the_screen_before_it() -> None:
    """Two turns of an episode: each question has its own screen, what the agent was told, and its own answer."""
    reward = VlmJudge("agent_step", of="texts", condition_image=True)
    judge = Saying([(math.log(0.3), math.log(0.1)), (math.log(0.2), math.log(0.6))])
    reward._panel = Panel([(JudgeModel(), judge)], 1, "mean", Memory(None), Ledger(None, None, None))
    told, said = ["Open it", "Open it\nDone so far:\n1. click(1, 2)"], ["click(1, 2)", "click(3, 4)"]
    batch = make_batch(Outputs(texts=tuple(said)), told, media=[(stored(0),), (stored(1),)])
    torch.testing.assert_close(reward.score(batch), torch.tensor([0.75, 0.25]))
    for number, question in enumerate(judge.questions):
        (screen,) = question.images
        assert screen.tobytes() == stored(number).load().convert("RGB").tobytes()
        assert told[number] in question.text and said[number] in question.text and question.words == ("yes", "no")
    assert {"texts", "prompt.image"} <= reward.needs and reward.granularity == "sample"


def test_a_pair_is_shown_in_both_orders() -> None:
    reward = VlmJudge("image_pair")
    judge = noted(reward, "Better: 1")
    images = random_images(random.Random(0), 2)
    reward.score(make_batch(Outputs(images=images), ["a"] * 2, group_size=2))
    first, second = (image.tobytes() for image in to_pil(images))
    shown = [[image.tobytes() for image in question.images] for question in judge.questions]
    assert shown == [[first, second], [second, first]]


def test_a_video_is_shown_by_frames_from_end_to_end() -> None:
    video = torch.arange(9.0)[:, None, None, None].expand(9, 3, 2, 2) / 8
    assert chosen_frames(video, 3)[:, 0, 0, 0].tolist() == [0, 0.5, 1] and len(chosen_frames(video, 20)) == 9
    assert chosen_frames(video, 1)[:, 0, 0, 0].tolist() == [0]
    reward = VlmJudge("video_quality", of="videos", num_frames=3)
    judge = noted(reward, "Grades: [1, 3, 5]")
    assert reward.score(make_batch(Outputs(videos=video[None]), ["a"], group_size=1)).tolist() == [0.5]
    assert len(judge.questions[0].images) == 3 and "videos" in reward.needs


def test_an_answer_about_a_picture() -> None:
    reward = VlmJudge("critique_then_score", of="texts", condition_image=True, tag="answer")
    judge = noted(reward, "Score: 5")
    outputs = Outputs(texts=("<answer>red</answer>",))
    batch = make_batch(outputs, ["<image> which colour?"], media=[(shot(1),)], group_size=1)
    assert reward.score(batch).tolist() == [0.5]
    assert len(judge.questions[0].images) == 1 and "red" in judge.questions[0].text
    with pytest.raises(ValueError, match="tag goes with answers"):
        VlmJudge("image_quality", tag="answer")


def test_the_question_goes_by_the_rows_task() -> None:
    reward = VlmJudge("task_and_criterion", condition_image=True, choose_by="task")
    noted(reward, "yes")
    assert {"target.task", "target.criterion", "prompt.image"} <= reward.needs
    row: dict[str, Any] = {"task": "remove", "criterion": "no trace"}
    images = random_images(random.Random(0), 1)
    batch = make_batch(Outputs(images=images), ["the car"], [row], media=[(shot(1),)], group_size=1)
    question = reward._question(batch, 0, {}, count=0)
    assert "Something was removed" in question.text and "no trace" in question.text and question.words == ("yes", "no")
    with pytest.raises(ValueError, match=r"target.task must be one of fill, extend, remove, text, got 'paint'"):
        reward.check(Prompt("x", target={"task": "paint", "criterion": ""}))


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[bool, Path]:
    made = {sees: tmp_path_factory.mktemp(f"judge_{sees}") for sees in (False, True)}
    for sees, folder in made.items():
        write_tiny_judge(folder, 0, sees)
    return made


def questions(sees_images: bool) -> list[Question]:
    images = to_pil(random_images(random.Random(3), 3, SIDE))
    texts = random_texts(random.Random(1), 3)
    return [
        Question(f"{text} 🙂?", images=(image,) if sees_images else ())
        for text, image in zip(texts, images, strict=True)
    ]


def plain(folder: Path, sees_images: bool, question: Question) -> tuple[Any, Any, Any]:
    """The model, its tokenizer and the inputs of one question, without mmrl."""
    if not sees_images:
        model, tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
        return model, tokenizer, tokenizer(f"user: {question.text}\nassistant: ", return_tensors="pt")
    model, processor = AutoModelForImageTextToText.from_pretrained(folder), AutoProcessor.from_pretrained(folder)
    chat = f"USER: <image>{question.text}\nASSISTANT: "
    return model, processor.tokenizer, processor(text=chat, images=question.images[0], return_tensors="pt")


@pytest.mark.slow
@pytest.mark.parametrize("sees_images", [False, True])
def test_first_words_are_those_of_the_plain_model(folders: dict[bool, Path], sees_images: bool) -> None:
    judge = LocalJudge(JudgeModel(str(folders[sees_images])), CPU, sees_images=sees_images, at_once=3)
    every = [Question(one.text, images=one.images, words=("yes", "no")) for one in questions(sees_images)]
    for question, reply in zip(every, judge.ask(every, [0, 1, 2]), strict=True):
        model, tokenizer, inputs = plain(folders[sees_images], sees_images, question)
        with torch.no_grad():
            log_probs = model(**inputs).logits[0, -1].log_softmax(0)
        assert isinstance(reply, Reply) and reply.log_probs is not None
        expected = [float(log_probs[tokenizer.convert_tokens_to_ids(word)]) for word in ("yes", "no")]
        assert reply.log_probs == pytest.approx(expected, abs=1e-4)  # no other spelling is one token
    with pytest.raises(ConfigError, match="'maybe' must be one token"):
        judge.ask([Question("?", words=("maybe", "no"), images=every[0].images)], [0])


@pytest.mark.slow  # loads models for each question
@pytest.mark.parametrize("sees_images", [False, True])
def test_a_written_reply_is_that_of_the_plain_model(folders: dict[bool, Path], sees_images: bool) -> None:
    settings = JudgeModel(str(folders[sees_images]), max_tokens=40)
    judge = LocalJudge(settings, CPU, sees_images=sees_images, at_once=3)
    every = questions(sees_images)
    for question, reply in zip(every, judge.ask(every, [0, 1, 2]), strict=True):
        model, tokenizer, inputs = plain(folders[sees_images], sees_images, question)
        made = model.generate(**inputs, max_new_tokens=40, do_sample=False)[0, inputs["input_ids"].shape[1] :].tolist()
        if tokenizer.eos_token_id not in made:
            assert isinstance(reply, UnansweredError) and "cut at max_tokens" in str(reply)
        else:
            assert isinstance(reply, Reply)
            assert reply.text == tokenizer.decode(made[: made.index(tokenizer.eos_token_id)])


@pytest.mark.slow
def test_votes_of_a_model_here_depend_on_their_seed_alone(folders: dict[bool, Path]) -> None:
    judge = LocalJudge(
        JudgeModel(str(folders[False]), temperature=1.0, max_tokens=3), CPU, sees_images=False, at_once=2
    )
    judge._tokenizer.eos_token = "e"  # a letter, so that most replies end
    state = torch.random.get_rng_state()
    texts = [Question("a"), Question("a"), Question("a")]
    one, other = judge.ask(texts, [1, 2, 1]), judge.ask(texts[:1], [1])
    assert str(one[0]) == str(one[2]) == str(other[0])
    assert torch.equal(torch.random.get_rng_state(), state)  # the run's own random numbers are as before


def test_models_that_are_no_judges_are_refused(tmp_path: Path) -> None:
    reward = TextJudge("critique_then_score", judges=(JudgeModel(str(tmp_path / "none")),))
    with pytest.raises(ConfigError, match="cannot load the language model"):
        reward.prepare(CPU)


def batch_of(count: int) -> RewardBatch:
    return make_batch(Outputs(images=random_images(random.Random(0), count)), random_texts(random.Random(1), count))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["image_pair", "image_fits", "vision_reward", "unified_reward_think"])
def test_a_dry_run_asks_a_small_model_and_gets_verdicts_of_every_form(name: str, tmp_path: Path) -> None:
    twin = VlmJudge(name).tiny(0, tmp_path)
    twin.prepare(CPU)
    scores = twin.score(batch_of(GROUP))
    assert scores.shape == (GROUP,) and len(scores.unique()) > 1 and ((scores >= 0) & (scores <= 1)).all()
