"""Rewards as reward functions of TRL's trainers (GRPOTrainer and its kin, checked with TRL 1.16)."""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from mmrl.core.data import Prompt
from mmrl.core.reward_batches import IMAGE
from mmrl.interop import Answers, Judge, Section, check_lengths, judge_for, pictures, plain
from mmrl.parsing.actions.dialects import DialectName
from mmrl.parsing.coordinates import Convention
from mmrl.system.errors import ConfigError
from mmrl.system.spelling import did_you_mean

IMAGES = ("images", "image")  # the columns of images that TRL knows
NO_COLUMNS = ("environments",)  # lists that TRL gives beside the columns of the data set


def reward_function(
    reward: Section,
    *,
    target: Mapping[str, str] | None = None,
    images: str | None = None,
    coordinates: Convention = "original",
    dialect: DialectName | None = None,
    num_generations: int | None = None,
    end_tokens: Collection[int] = (),
    device: str = "cpu",
) -> "RewardFunction":
    """Returns one reward as an entry of `reward_funcs`: `reward_function("box_iou", target={"box": "bbox"})`.

    Args:
        reward: a name, or a section as in a config; its `label` is its name in TRL's logs. Weights belong to TRL's
            `reward_weights`.
        target: the column of the data set for each field of the target. Every other column is a field of its own name.
        images: the column of the prompt's images; None: `images` or `image`, or the images inside the messages.
        coordinates: the unit of points and boxes in the answers; `resized` is refused, since TRL does not give it.
        dialect: how answers are read as actions of a GUI; None: answers are no actions.
        num_generations: the setting of the trainer, to check that groups are whole, and to separate two groups of equal
            prompts. None: neighboring answers to equal prompts are a group; for evaluations with another number.
        end_tokens: ids of tokens that end an answer; an answer without one was cut off. For rewards of `is_finished`.
    Raises:
        ConfigError: an unknown reward or setting, or a reward that needs more than TRL provides.
    """
    if not isinstance(reward, str) and "weight" in reward:
        raise ConfigError("a weight belongs to `reward_weights` of TRL's settings; a reward function has none")
    if num_generations is not None and num_generations < 1:
        raise ConfigError(f"num_generations must be at least 1, got {num_generations}")
    makes = {"num_tokens"} | ({"is_finished"} if end_tokens else set())
    judge = judge_for("TRL", reward, makes=makes, mix=None, coordinates=coordinates, dialect=dialect, device=device)
    return RewardFunction(judge, dict(target or {}), images, num_generations, frozenset(end_tokens))


@dataclass(frozen=True)
class RewardFunction:
    """A reward function for TRL's trainers, made by `reward_function`."""

    judge: Judge
    target: Mapping[str, str]  # field: column
    images: str | None
    num_generations: int | None
    end_tokens: frozenset[int]

    @property
    def __name__(self) -> str:  # TRL's logs call it that
        return self.judge.scorer.names[0]

    def __call__(
        self,
        prompts: Sequence[Any],
        completions: Sequence[Any],
        completion_ids: Sequence[Sequence[int]] | None = None,
        trainer_state: Any = None,
        log_metric: Callable[[str, float], None] | None = None,
        **columns: Any,
    ) -> list[float | None]:
        """Returns B scores, None where the reward does not apply or could not judge.

        The reward does not apply to a row whose image or needed target is None, as in mixtures of tasks. The share of
        the other answers that it could not judge is the metric `rewards/<name>/failed`.

        Args:
            prompts: B texts or lists of messages; the prompts of a group are neighbors. completions: B texts or lists
                messages; the assistant's last message is the answer. completion_ids: the tokens of each of B.
            trainer_state: its `global_step` is the iteration of schedules. columns: of the data set, B values each.
        Raises:
            ConfigError: a column is missing or of another length, groups are not whole, or a target does not fit.
        """
        values = {name: column for name, column in columns.items() if _is_column(name, column)}
        tokens = {} if completion_ids is None else {"completion_ids": completion_ids}
        check_lengths(len(prompts), "prompts", {"completions": completions, **tokens, **values})
        questions = self._prompts(prompts, values)
        group = self._groups(_runs(questions))
        scores: list[float | None] = [None] * len(questions)
        if not (rows := [row for row, prompt in enumerate(questions) if self._applies_to(prompt, values)]):
            return scores
        iteration = 0 if trainer_state is None else int(trainer_state.global_step)
        texts = [_answer(completions[row]) for row in rows]
        ids = None if completion_ids is None else [completion_ids[row] for row in rows]
        answers = self._answers([questions[row] for row in rows], texts, [group[row] for row in rows], ids, iteration)
        judged = self.judge(answers).values[:, 0].tolist()
        for row, value in zip(rows, judged, strict=True):
            scores[row] = None if math.isnan(value) else value
        if log_metric is not None:
            log_metric(f"rewards/{self.__name__}/failed", sum(map(math.isnan, judged)) / len(judged))
        return scores

    def _answers(
        self,
        prompts: Sequence[Prompt],
        texts: Sequence[str],
        group: Sequence[int],
        ids: Sequence[Sequence[int]] | None,
        iteration: int,
    ) -> Answers:
        return Answers(
            prompts=tuple(prompts),
            texts=tuple(texts),
            group=tuple(group),
            num_tokens=None if ids is None else tuple(map(len, ids)),
            is_finished=None if ids is None or not self.end_tokens else tuple(map(self._is_finished, ids)),
            iteration=iteration,
        )

    def _prompts(self, prompts: Sequence[Any], columns: Mapping[str, Sequence[Any]]) -> list[Prompt]:
        """Returns B prompts. Raises ConfigError for a missing column."""
        column = self.images or next((name for name in IMAGES if name in columns), None)
        fields = {name: name for name in columns if name not in (*IMAGES, column)} | dict(self.target)
        needed = {name: fields.get(name, name) for name in (*self.judge.target_fields, *self.target)}
        for name, wanted in (*needed.items(), *([("images", column)] if column else [])):
            if wanted not in columns:
                raise ConfigError(
                    f"reward {self.__name__!r} reads {name!r} from the column {wanted!r}, which the data set does not "
                    f"have{did_you_mean(wanted, columns)}"
                )
        read: list[Prompt] = []
        for row, prompt in enumerate(prompts):
            text, system, inside = _question(prompt)
            given = inside if column is None else columns[column][row]
            target = {name: plain(columns[where][row]) for name, where in fields.items()}
            target = {name: value for name, value in target.items() if value is not None}
            made = Prompt(text, pictures(given, column or "image of a prompt"), target, system)
            if read and _is_same_question(read[-1], made):  # then nobody decodes its images again
                made = replace(made, media=read[-1].media)
            read.append(made)
        return read

    def _applies_to(self, prompt: Prompt, columns: Mapping[str, Any]) -> bool:
        """Returns whether a row has an image and the needed fields, as far as there are columns for them."""
        has_images = self.images is not None or any(name in columns for name in IMAGES)
        needs_image = has_images and not self.judge.needs.isdisjoint({IMAGE, "canvases"})
        has_targets = all(name in prompt.target for name in self.judge.target_fields)
        return has_targets and (bool(prompt.media) or not needs_image)

    def _groups(self, runs: Sequence[int]) -> list[int]:
        """Returns each row's group, from the lengths of runs of equal prompts. Raises ConfigError for a split group."""
        size = self.num_generations
        if size is not None and any(length % size for length in runs):
            raise ConfigError(
                f"needs {size} answers to each prompt (num_generations), one behind the other, got {runs}; is the "
                "batch of a process no multiple of it, or the number another one at evaluation?"
            )
        if size is None and self.judge.compares and len(set(runs)) > 1:
            raise ConfigError(
                f"{self.judge.compares} compares the answers to a prompt, which must be equally many, one behind the "
                f"other, got {runs}; is the batch of a process no multiple of num_generations? If the data set has "
                "equal rows, set num_generations"
            )
        sizes = runs if size is None else [size] * (sum(runs) // size)
        return [number for number, length in enumerate(sizes) for _ in range(length)]

    def _is_finished(self, ids: Sequence[int]) -> bool:
        return bool(ids) and int(ids[-1]) in self.end_tokens


def _is_same_question(one: Prompt, other: Prompt) -> bool:
    """Returns whether two prompts ask the same; targets may differ, since trainers can add columns to each answer."""
    return (one.text, one.system, one.media) == (other.text, other.system, other.media)


def _runs(prompts: Sequence[Prompt]) -> list[int]:
    """Returns the lengths of the runs of equal prompts."""
    lengths: list[int] = []
    for row, prompt in enumerate(prompts):
        if row and _is_same_question(prompts[row - 1], prompt):
            lengths[-1] += 1
        else:
            lengths.append(1)
    return lengths


def _is_column(name: str, value: Any) -> bool:
    """Returns whether an argument is a column; TRL also hands over functions, a state, and more in later releases."""
    return isinstance(value, list | tuple) and name not in NO_COLUMNS


def _question(prompt: Any) -> tuple[str, str | None, list[Any]]:
    """Returns the text of a prompt without its system message, the system message, and the images inside."""
    if isinstance(prompt, str):
        return prompt, None, []
    systems = [message for message in prompt if message["role"] == "system"]
    others = [message for message in prompt if message["role"] != "system"]
    parts = [part for message in others for part in _parts(message)]
    inside = [part["image"] for part in parts if part.get("image") is not None]
    system = "\n".join(map(_text, systems)) if systems else None
    return "\n".join(text for text in map(_text, others) if text), system, inside


def _answer(completion: Any) -> str:
    """Returns a text as it is, or the text of the assistant's last message after its tool calls; may be empty."""
    if isinstance(completion, str):
        return completion
    said = [message for message in completion if message["role"] == "assistant"]
    return _text(said[-1]) if said else ""


def _text(message: Mapping[str, Any]) -> str:
    return "".join(part["text"] for part in _parts(message) if part.get("text") is not None)


def _parts(message: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Returns the content of a message as a list of parts, in whichever form it stands; None is a tool call alone."""
    content = message.get("content")
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    return list(content or [])
