"""Held-out evaluation: fixed prompts, fixed noise, a sampler of its own."""

import json
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from hashlib import blake2b
from io import BytesIO
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from mmrl.core.contracts import Keeping, Modality, RunError, Sampler
from mmrl.core.data import Outputs, Prompt, Rollout, Scores, WeightsName
from mmrl.core.keys import GroupKey, generator, prompt_index_of
from mmrl.core.numerics import group_max, group_sum
from mmrl.media.mp4 import Sound, Video, frames_of
from mmrl.media.pictures import Picture, Role
from mmrl.parsing.actions.action import Action
from mmrl.parsing.coordinates import Canvas
from mmrl.plans.groups import GroupPlan
from mmrl.plans.sizes import policy_for
from mmrl.reporting import drawing, timeline
from mmrl.reporting.recording import Recording, Turn
from mmrl.scoring.metrics import mean_and_std, num_failed
from mmrl.scoring.scorer import Judgement, Scorer
from mmrl.system.errors import HangError, raised
from mmrl.system.files import replace_file
from mmrl.system.progress_bars import Counter
from mmrl.training.processes import Processes
from mmrl.training.sharding import dummy_rollout

STRIP = 6  # frames of a saved video that its picture shows

Counting = Callable[[str, int], Counter]


def uncounted(what: str, total: int) -> Counter:
    """Returns a counter that shows nothing."""
    return Counter(what, total, None)


def sampled_share(policy: Modality, plans: Sequence[GroupPlan], before: int) -> float:
    """Returns how many prompts a running rollout has sampled, as a fraction, from the network calls since `before`."""
    planned = max(1, sum(plan.num_rollout_calls * plan.forwards_per_call for plan in plans))
    return float(len(plans) * min(1.0, (policy.num_calls - before) / planned))


class EvaluationStopped(Exception):
    """A stop that was requested before all prompts were evaluated."""


@dataclass(frozen=True)
class SavedSample:
    """One sample for people to look at."""

    prompt: str
    seed: int
    scores: dict[str, float]
    image: Image.Image | None = None  # the sample; else the question's first image with the answer's place on it
    video: Video | None = None  # the sample
    text: str | None = None  # the answer
    num_images: int = 0  # of the question
    media: tuple[Picture, ...] = ()  # the question's images, as far as they are kept to judge the answer again
    roles: tuple[Role, ...] = ()  # of these images, in order; (): the data does not say
    canvas: Canvas | None = None  # of the first of them: what coordinates in the answer are counted in
    has_actions: bool = False  # whether answers are read as actions
    action: Action | None = None  # the action that the answer writes, in pixels of the original screenshot
    target: Mapping[str, Any] = field(default_factory=dict)  # what the rewards judged it by
    total: float | None = None  # of a training sample: what the rewards are worth
    places: tuple[str, ...] = ()  # of a training sample's group in its iteration: best, worst, widest
    recording: Recording | None = None  # of an episode


@dataclass(frozen=True)
class Result:
    """The outcome of one held-out evaluation, the same on all processes."""

    score: float  # mean total over all samples that could be judged, or over episodes of the mean over their turns
    metrics: dict[str, float]
    samples: list[SavedSample]


@dataclass(frozen=True)
class Evaluator:
    """Held-out evaluation: `samples_per_prompt` samples of each prompt, always of the same noise, and their scores."""

    policy: Modality
    sampler: Sampler
    scorer: Scorer
    processes: Processes
    prompts: tuple[Prompt, ...]
    weights: WeightsName
    samples_per_prompt: int
    seed: int
    chunk: int  # prompts sampled at once
    iteration: int = 0  # whose schedules of rewards hold, the same for all evaluations of a run
    saved_samples: int = 0
    by: str | None = None  # field of the target by whose values the scores are reported as well

    def __call__(self, is_stopping: Callable[[], bool] = lambda: False, *, counting: Counting = uncounted) -> Result:
        """Evaluates the policy under `weights`. Every process must call it.

        Args:
            is_stopping: called before each chunk, with the same answer on all processes.
            counting: makes the counter that shows how many prompts of this process are done.
        Raises:
            EvaluationStopped: `is_stopping` returned True. RunError: no sample, or too few, could be scored.
        """
        local = self.processes.share([(GroupKey(self.seed, 0, n), prompt) for n, prompt in enumerate(self.prompts)])
        with counting("evaluation", len(local)) as counter:
            judgements, samples = self._judged_chunks(local, is_stopping, counter)
        everyone = Judgement.join(self.processes.gather(judgements))
        self.scorer.check(everyone.scores, everyone.first_failures, "held-out evaluation: ")
        if not everyone.scores.valid.any():
            first = next((message for message in everyone.first_failures if message), "without a reason")
            words = f"held-out evaluation: not one sample could be judged; first failure: {first}"
            raise RunError(words) from raised(first)
        samples = sorted(self.processes.gather(samples), key=lambda sample: sample.seed)
        kinds = [] if self.by is None else [str(prompt.target[self.by]) for prompt in self.prompts]
        return _result(everyone.scores, samples, kinds)

    def _judged_chunks(
        self, local: Sequence[tuple[GroupKey, Prompt]], is_stopping: Callable[[], bool], counter: Counter
    ) -> tuple[list[Judgement], list[SavedSample]]:
        """Returns the judgements of this process's prompts, chunk by chunk, and some samples to look at."""
        judgements: list[Judgement] = []
        samples: list[SavedSample] = []
        most = -(-len(self.prompts) // self.processes.num_processes)  # prompts of one process
        for start in range(0, most, self.chunk):
            if is_stopping():
                raise EvaluationStopped
            chunk = local[start : start + self.chunk]
            sample = partial(self.judged_chunk, chunk, counter)
            judgement, more = self.processes.sampled(self.policy, self.weights, sample)
            judgements += judgement
            samples += more
            counter.add(len(chunk))
        return judgements, samples

    def judged_chunk(
        self, chunk: Sequence[tuple[GroupKey, Prompt]], counter: Counter
    ) -> tuple[list[Judgement], list[SavedSample]]:
        """Returns the judgement of a chunk of prompts, and samples to look at; none where there are no prompts."""
        if not chunk:
            if self.processes.is_sharded:
                dummy_rollout(self.policy, self.sampler, self.samples_per_prompt)
            return [], []
        keys, prompts = zip(*chunk, strict=True)
        plans = [
            self.sampler.plan(policy_for(self.policy, prompt), key, self.samples_per_prompt)
            for key, prompt in zip(keys, prompts, strict=True)
        ]
        counter.begin(partial(sampled_share, self.policy, plans, self.policy.num_calls))
        rollout = self.policy.rollout(prompts, plans, keys)
        judgement = self._judged(rollout)
        samples = self._chosen(rollout, judgement.scores)
        if isinstance(self.policy, Keeping):
            self.policy.forget()
        return [judgement], samples

    def _judged(self, rollout: Rollout) -> Judgement:
        try:
            return self.scorer.judge(rollout, self.iteration, has_properties=False).without_examples()
        except HangError as error:
            raise HangError(f"held-out evaluation: {error}") from error

    def _chosen(self, rollout: Rollout, scores: Scores) -> list[SavedSample]:
        """Returns the first sample of some prompts anywhere in the held-out set, the same ones in each evaluation."""
        order = torch.randperm(len(self.prompts), generator=generator(self.seed, "saved"))
        spread = set(order[: self.saved_samples].tolist())
        rows = {group: row for row, group in reversed(list(enumerate(rollout.group.tolist()))) if group in spread}
        return [
            saved_sample(rollout, row, dict(zip(scores.names, scores.values[row].tolist(), strict=True)))
            for _, row in sorted(rows.items())
        ]


def _result(scores: Scores, samples: list[SavedSample], kinds: Sequence[str] = ()) -> Result:
    """Returns the result; `kinds` has one of each held-out prompt, by which scores are reported as well, or none."""
    scores = scores.select(scores.group.argsort(stable=True))  # sums must not depend on how prompts fell on processes
    share = scores.share  # every episode counts alike, however many turns it took
    total = scores.total.nan_to_num().double()
    score = float((total * share).sum() / share.sum())
    error = float((share * (total - score).square()).sum().sqrt() / share.sum())  # std / sqrt(N)
    metrics = {"held_out/score": score, "held_out/standard_error": error, "held_out/failed": float(num_failed(scores))}
    if (best := _mean_of_best(scores, total * share)) is not None:
        metrics["held_out/best_of_prompt"] = best
    kind_of = [kinds[number] for number in prompt_index_of(scores.group).tolist()] if kinds else []
    for kind in sorted(set(kind_of)):
        own = torch.tensor([one == kind for one in kind_of])
        if share[own].sum() > 0:  # else none of them could be judged
            metrics[f"held_out/score/{kind.replace('/', ' ')}"] = float((total * share)[own].sum() / share[own].sum())
    for name, column in zip(scores.names, scores.values.unbind(1), strict=True):
        metrics |= mean_and_std(f"held_out/{name}", column, scores.share_of(~column.isnan() & ~scores.is_control))
    return Result(score, metrics, samples)


def _mean_of_best(scores: Scores, worth: Tensor) -> float | None:
    """Returns the mean over prompts of the best sample's score: pass@k of rewards that are 0 or 1, with k samples each.

    Episodes count as one sample, and what could not be judged as none. None where no prompt has two samples.

    Args:
        worth: [B] float64: the totals, by the share that a turn has of its episode; 0 for what was not judged.
    """
    ends = (scores.share > 0).nonzero()[:, 0]
    if len(ends) == 0:
        return None
    rows = ends[_firsts(scores.episode[ends])]  # one of each judged episode
    group = prompt_index_of(scores.group[rows])
    if len(group.unique()) == len(group):
        return None
    best = group_max(group_sum(worth, scores.episode)[rows], group)
    return float(best[_firsts(group)].mean())


def _firsts(numbers: Tensor) -> Tensor:
    """Returns the first place of each different number of [B]."""
    different, place = numbers.unique(return_inverse=True)
    rows = torch.arange(len(numbers))
    return rows.new_full((len(different),), len(numbers)).scatter_reduce(0, place, rows, "amin")


def saved_sample(rollout: Rollout, row: int, scores: dict[str, float]) -> SavedSample:
    """Returns sample `row` of a rollout, or the episode that begins with it. The seed is the group's number."""
    number, outputs = int(rollout.prompt[row]), rollout.outputs
    if outputs.outcomes is not None:
        return _saved_episode(rollout, row, scores)
    if outputs.each is not None:  # samples of several sizes
        outputs, row = outputs.each[row], 0
    prompt, video = rollout.prompts[number], _video(outputs, row)
    image = None if video is None else video.strip(STRIP)
    if video is None:
        image = _picture(outputs, row) if outputs.images is not None else answered(prompt, outputs, row)
    return SavedSample(
        prompt=prompt.text,
        seed=rollout.keys[number].prompt_index,
        scores=scores,
        image=image,
        video=video,
        text=None if outputs.texts is None else outputs.texts[row],
        num_images=len(prompt.media),
        media=prompt.media,
        roles=prompt.roles,
        canvas=None if outputs.canvases is None else outputs.canvases[row],
        has_actions=outputs.actions is not None,
        action=None if outputs.actions is None else outputs.actions[row],
        target=prompt.target,
    )


def _saved_episode(rollout: Rollout, row: int, scores: dict[str, float]) -> SavedSample:
    """Returns an episode: screens with the actions on them and rewards, and the answers by lines, the outcome last."""
    turns = (rollout.episode == rollout.episode[row]).nonzero()[:, 0]
    rows: list[int] = turns[rollout.turn[turns].argsort()].tolist()
    outputs = rollout.outputs
    texts, actions, outcomes = outputs.texts, outputs.actions, outputs.outcomes
    assert texts is not None and actions is not None and outcomes is not None, "an episode is answers that are actions"
    prompts = [rollout.prompts[int(rollout.prompt[one])] for one in rows]
    recording = Recording(
        tuple(
            Turn(
                screen=prompt.media[0],
                answer=texts[one],
                action=actions[one],
                reward=None if outputs.step_rewards is None else float(outputs.step_rewards[one]),
            )
            for prompt, one in zip(prompts, rows, strict=True)
        ),
        None if outputs.screens is None else outputs.screens[rows[-1]],
        outcomes[rows[-1]] or "cut",
    )
    answers = [f"{number}. {turn.answer}" for number, turn in enumerate(recording.turns, 1)]
    return SavedSample(
        prompt=prompts[0].text,
        seed=int(rollout.group[row]),
        scores=scores,
        image=recording.strip(),
        text="\n".join([*answers, f"({recording.outcome})"]),
        num_images=len(prompts[0].media),
        recording=recording,
    )


def _video(outputs: Outputs, row: int) -> Video | None:
    """Returns the video of a sample; None where samples are no videos."""
    if outputs.videos is None:
        return None
    assert outputs.fps is not None, "videos come with their frames per second"
    sound = None
    if outputs.audio is not None and outputs.audio_rate is not None:
        sound = Sound(outputs.audio[row].detach().float().cpu(), outputs.audio_rate[row])
    return Video(frames_of(outputs.videos[row]), outputs.fps[row], sound)


def _picture(outputs: Outputs, row: int) -> Image.Image:
    assert outputs.images is not None
    pixels = (outputs.images[row].cpu() * 255).round().to(torch.uint8).permute(1, 2, 0)  # [H, W, 3]
    return Image.fromarray(pixels.numpy())


def answered(prompt: Prompt, outputs: Outputs, row: int) -> Image.Image | None:
    """Returns the question's first clip or image with the true and the predicted place, where there are any."""
    if prompt.clips:
        return timeline.answered(prompt.clips[0], prompt.target, None if outputs.texts is None else outputs.texts[row])
    if not prompt.media:
        return None
    action = None if outputs.actions is None else outputs.actions[row]
    if action is not None:
        predicted = drawing.action_marks(action)
    elif outputs.actions is None and outputs.texts is not None and outputs.canvases is not None:
        predicted = drawing.answer_marks(outputs.texts[row], outputs.canvases[row])
    else:
        predicted = drawing.Marks()
    return drawing.render(prompt.media[0].load(), drawing.true_marks(prompt.target), predicted)


def save_samples(
    samples: Sequence[SavedSample],
    folder: Path,
    questions: Path | None = None,
    *,
    after: Sequence[dict[str, Any]] = (),
) -> None:
    """Writes pictures, videos and `samples.json` for the report, with what rewards need to judge the answers again.

    `questions`: the folder of the questions' images, each written once; by default a folder inside. `after`: the
    entries of samples that were saved there before, which stay.
    """
    questions = questions or folder / "questions"
    folder.mkdir(parents=True, exist_ok=True)
    numbered = enumerate(samples, len(after))
    listed = [*after, *(saved_entry(sample, folder, number, questions) for number, sample in numbered)]
    write_listing(listed, folder)


def write_listing(listed: Sequence[dict[str, Any]], folder: Path) -> None:
    """Writes `samples.json` of entries of saved samples, which are all of one kind."""
    kind = "text"
    if listed and "text" not in listed[0]:
        kind = "video" if "strip" in listed[0] else "image"
    # in one step: a page that is open beside the run may read at any moment
    replace_file(folder / "samples.json", json.dumps({"kind": kind, "samples": listed}, indent=1).encode())


def saved_entry(
    sample: SavedSample, folder: Path, number: int, questions: Path, *, has_recording: bool = False
) -> dict[str, Any]:
    """Writes the files of a sample, whose names begin with its number; returns its entry of `samples.json`.

    `has_recording`: of an episode a video and the screen of each turn are written as well.
    """
    scores = {name: value for name, value in sample.scores.items() if value == value}  # NaN: could not be judged
    entry: dict[str, Any] = {"prompt": sample.prompt, "seed": sample.seed, "scores": scores}
    if sample.image is not None:
        entry["file"] = f"{number:03d}.png"
        sample.image.save(folder / entry["file"])
    if sample.video is not None:  # the image is a strip of its frames
        entry |= {"file": f"{number:03d}.mp4", "strip": entry["file"]}
        entry |= {"num_frames": len(sample.video.frames), "fps": sample.video.fps}
        sample.video.save(folder / entry["file"])
    if sample.text is not None:
        entry["text"] = sample.text
    if sample.num_images:
        entry["num_images"] = sample.num_images
    if sample.media:
        entry["images"] = [os.path.relpath(_kept(one, questions), folder) for one in sample.media]
    if sample.roles:
        entry["roles"] = list(sample.roles)
    if sample.canvas is not None:
        entry["canvas"] = asdict(sample.canvas)
    if sample.has_actions:
        entry["action"] = None
    if sample.action is not None:
        fields_of_action = asdict(sample.action)
        is_kind_only = ["is_kind_only"] if sample.action.is_kind_only else []
        entry["action"] = {name: fields_of_action[name] for name in ("kind", *sample.action.parts, *is_kind_only)}
    if target := {name: kept for name, value in sample.target.items() if (kept := plain(value)) is not None}:
        entry["target"] = target
    if sample.places:
        entry |= {"total": sample.total, "places": list(sample.places)}
    if sample.recording is not None:
        entry |= _episode_entry(sample.recording, folder, number, has_files=has_recording)
    return entry


def _episode_entry(recording: Recording, folder: Path, number: int, *, has_files: bool) -> dict[str, Any]:
    """Returns what an entry says of an episode; with `has_files` writes its video and its screens."""
    turns: list[dict[str, Any]] = [
        {"answer": turn.answer, "action": turn.words, "reward": turn.reward} for turn in recording.turns
    ]
    entry: dict[str, Any] = {"outcome": recording.outcome, "turns": turns}
    if has_files:
        for place, (turn, listed) in enumerate(zip(recording.turns, turns, strict=True), 1):
            listed["screen"] = f"{number:03d}_turn_{place:02d}.png"
            turn.picture.save(folder / listed["screen"])
        entry["recording"] = f"{number:03d}.mp4"
        recording.save_video(folder / entry["recording"])
        if (last := recording.last_picture) is not None:
            entry["last_screen"] = f"{number:03d}_last.png"
            last.save(folder / entry["last_screen"])
    return entry


def _kept(picture: Picture, folder: Path) -> Path:
    """Returns the file of an image in the folder, named by its pixels; the same image is written once."""
    image = picture.load()
    digest = blake2b(repr(image.size).encode() + image.tobytes(), digest_size=12).hexdigest()
    file = folder / f"{digest}.png"
    if not file.exists():
        folder.mkdir(parents=True, exist_ok=True)
        content = BytesIO()
        image.save(content, "PNG")
        replace_file(file, content.getvalue())
    return file


def plain(value: Any) -> Any:
    """Returns the part of a target's value that JSON can hold; None where there is none."""
    if isinstance(value, str | bool | int) or (isinstance(value, float) and math.isfinite(value)):
        return value
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    if isinstance(value, Mapping):
        return {str(name): plain(one) for name, one in value.items()}
    return None
