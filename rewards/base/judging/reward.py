"""The base of rewards that ask judges: from samples to questions, from replies to scores."""

import math
import re
from abc import ABC, abstractmethod
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self

import torch
from pydantic import Field
from torch import Tensor

from mmrl.core.checked import Checked
from mmrl.core.contracts import Granularity, Placement, Prompt, RewardBatch
from mmrl.core.declarations import RewardDeclaration
from mmrl.core.keys import generator
from mmrl.core.numerics import MOST

from .api import ApiJudge, check_key
from .local import LocalJudge
from .memory import Ledger, Memory
from .panel import Asking, Meta, Panel, Reader
from .prompt_files import OF_GROUPS, OF_LISTS, Criterion, JudgePrompt, criteria_of, load_prompt, numbered
from .questions import Question, Reply, UnansweredError
from .settings import Combine, JudgeModel, MetaJudge
from .tournaments import Pair, Tier, ranked, rates_of_pairs, rates_of_tiers
from .twins import TinyJudge, write_tiny_judge
from .verdicts import (
    choices_of,
    is_yes,
    level_of,
    number_of,
    numbers_of,
    places_of,
    preference_of,
    reasons_in,
    scaled,
    share_of_yes,
    verdict_in,
)

if TYPE_CHECKING:
    from PIL.Image import Image

_MARK = re.compile(r"\s*<(?:image|video)>\s*")  # of the places of media in a prompt
Against = Literal["all", "tournament", "one", "reference"]


@dataclass
class JudgeReward(Checked, ABC):
    """The base of `vlm_judge` and `text_judge`; see these. All scores are in [0, 1]."""

    prompt: str  # what is asked: the name of a shipped prompt file, or the path of a YAML file
    judges: tuple[JudgeModel, ...] = (JudgeModel(),)  # each is asked every question
    votes: Annotated[int, Field(ge=1, le=1024)] = 1  # of each judge to each question
    # what several judges and votes make: their mean, the lowest, or the mean less the standard deviation
    combine: Combine = "mean"
    # who judges the replies, so that the votes that it trusts most count alone (DeepSeek-GRM); null: all votes count
    meta: MetaJudge | None = None
    # of pairs: all of a group, as many as sorting takes, each with one random member, or each with the reference
    compare: Against = "all"
    choose_by: str | None = None  # field of the target that names the question, where the prompt file has several
    criteria: str | None = None  # field of the target with the rubric or the constraints; null: those of the file
    reference: str | None = None  # field of the target with the reference, a text; null: there is none
    cache: str | None = None  # folder that keeps replies and what was spent, over runs; null: memory alone
    max_tokens_spent: Annotated[int, Field(ge=0, le=10**15)] | None = (
        None  # after which nothing is asked; null: no bound
    )
    max_cost: Annotated[float, Field(ge=0, lt=math.inf)] | None = None  # the same, in the unit of the prices
    questions_at_once: Annotated[int, Field(ge=1, le=MOST)] = 8  # in one batch of a judge that runs here

    range: ClassVar[tuple[float, float]] = (0.0, 1.0)
    granularity: ClassVar[Granularity] = "sample"  # group, where the prompt compares
    differentiable: ClassVar[bool] = False
    needs: ClassVar[frozenset[str]] = frozenset()
    batch_size: ClassVar[int | None] = None
    sees_images: ClassVar[bool] = False  # whether a judge's model is one of images and text

    _file: JudgePrompt = field(init=False, repr=False, compare=False)
    _panel: Panel | None = field(default=None, init=False, repr=False, compare=False)
    _twin_seed: int | None = field(default=None, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        self._file = load_prompt(self.prompt)
        if not self.judges:
            raise ValueError("judges must hold at least one judge")
        if self.votes > 1 and any(judge.temperature == 0 for judge in self.judges):
            raise ValueError("several votes of a judge at temperature 0 are the same: give a temperature or votes: 1")
        if self.meta is not None:
            self._check_meta(self.meta)
        if self.compare != "all" and self._file.form != "pairwise":
            raise ValueError(f"compare goes with prompts of the form pairwise, got {self._file.form}")
        if self.criteria is not None and self._file.form not in OF_LISTS:
            raise ValueError(f"criteria go with prompts of the forms rubric and constraints, got {self._file.form}")
        if self._file.form in OF_LISTS and self.criteria is None and not self._file.criteria:
            raise ValueError("the prompt has no criteria: name the field of the target that has them in `criteria`")
        if (self.choose_by is None) == isinstance(self._file.question, Mapping):
            raise ValueError("choose_by goes with a prompt file of several questions, and such a file needs it")
        is_compared = self._file.form == "pairwise" and self.compare == "reference"
        if (is_compared or "reference" in self._file.places) and self.reference is None:
            raise ValueError("the judge compares with a reference: name its field of the target in `reference`")
        is_of_groups = self._file.form in OF_GROUPS or (self._file.form == "pairwise" and not is_compared)
        object.__setattr__(self, "granularity", "group" if is_of_groups else "sample")
        fields = {self.choose_by, self.criteria, self.reference} - {None}
        fields |= {place.partition(".")[2] for place in self._file.places if place.startswith("target.")}
        asked = self.judges if self.meta is None else (*self.judges, self.meta.judge)
        served = {"service"} if any(judge.url is not None for judge in asked) else set()
        local = {"model"} if any(judge.url is None for judge in asked) else set()
        object.__setattr__(self, "needs", frozenset({f"target.{name}" for name in fields} | served | local))

    def _check_meta(self, meta: MetaJudge) -> None:
        file, count = load_prompt(meta.prompt), len(self.judges) * self.votes
        if file.form != "yes_no" or not {"prompt", "answer"} >= file.places or len(file.variants) > 1:
            raise ValueError(
                f"the prompt of meta must be of form yes_no with {{prompt}} and {{answer}} alone, got {meta.prompt!r}"
            )
        if self._file.form == "yes_no" and not self._file.critique:
            raise ValueError("meta reads what judges wrote, and a judge of form yes_no without critique writes nothing")
        if count < 2 or (meta.kept is not None and meta.kept > count):
            raise ValueError(f"meta keeps some of several votes, got {count} and kept: {meta.kept}")

    @property
    def declaration(self) -> RewardDeclaration:
        """Returns that win rates and rankings are relative: their mean in a group is 1/2."""
        form = self._file.form
        is_relative = form == "ranking" or (form == "pairwise" and self.compare != "reference")
        return RewardDeclaration(is_relative=is_relative)

    def check(self, prompt: Prompt) -> None:
        """Raises ValueError where a prompt's target has no question, no criteria or no reference that can be asked."""
        target = prompt.target
        if self.choose_by is not None and isinstance(self._file.question, Mapping):
            chosen = str(target[self.choose_by])
            if chosen not in self._file.question:
                there = ", ".join(self._file.question)
                raise ValueError(f"target.{self.choose_by} must be one of {there}, got {chosen!r} for {prompt.text!r}")
        self._criteria(prompt)
        if self.reference is not None and not str(target[self.reference]).strip():
            raise ValueError(f"target.{self.reference} must hold a reference, got {target[self.reference]!r}")

    def tiny(self, seed: int, folder: Path) -> Self:
        """Returns the same reward whose judge is a random small model; it is asked, and its verdicts are made up."""
        write_tiny_judge(folder, seed, self.sees_images)
        model = replace(self.judges[0], model=str(folder), url=None, structured=False, max_tokens=4)
        meta = None if self.meta is None else replace(self.meta, judge=replace(model, temperature=0.0))
        twin = replace(self, judges=(model,) * len(self.judges), meta=meta, cache=None)
        twin._twin_seed = seed
        return twin

    def prepare(self, placement: Placement) -> None:
        """Loads the models that judge here. Raises ConfigError where one is missing, or a key cannot be one."""
        judges = [(settings, self._asking(settings, self._file, placement)) for settings in self.judges]
        folder = None if self.cache is None else Path(self.cache)
        memory = Memory(folder)
        ledger = Ledger(folder, self.max_tokens_spent, self.max_cost)
        meta = None
        if self.meta is not None:
            file, kept = load_prompt(self.meta.prompt), self.meta.kept or len(judges) * self.votes // 2
            asking = self._asking(self.meta.judge, file, placement)
            meta = Meta(self.meta.judge, asking, file, lambda reply: _share_of_yes(file, reply), kept)
        self._panel = Panel(judges, self.votes, self.combine, memory, ledger, meta)

    def _asking(self, settings: JudgeModel, file: JudgePrompt, placement: Placement) -> Asking:
        """Returns a judge that can be asked by a prompt file."""
        if settings.url is not None:
            check_key(settings)
            return ApiJudge(settings)
        here = LocalJudge(settings, placement, sees_images=self.sees_images, at_once=self.questions_at_once)
        return here if self._twin_seed is None else TinyJudge(here, file)

    def spent(self) -> dict[str, float]:
        """Returns what was asked so far and what it cost, by name."""
        if self._panel is None:
            return {}
        spent = self._panel.ledger.spent
        return {"requests": float(spent.requests), "tokens": float(spent.tokens), "cost": spent.cost}

    @torch.no_grad()
    def score(self, batch: RewardBatch) -> Tensor:
        """Returns the scores [B] float32.

        Raises:
            UnansweredError: a sample has no answer that counts.
            RunError: the budget is spent.
            ConfigError: an address refuses every question.
        """
        form = self._file.form
        if form == "pairwise":
            return self._by_pairs(batch)
        if form in OF_GROUPS:
            return self._by_groups(batch)
        return whole(self._values(*self._about_samples(batch), batch))

    @property
    def is_explaining(self) -> bool:
        """Whether the judge writes reasons about single samples."""
        return self._file.critique and self.granularity == "sample" and self._file.form != "pairwise"

    @torch.no_grad()
    def reasons(self, batch: RewardBatch) -> tuple[str, ...]:
        """Returns B texts: what a judge wrote about each sample before its verdict, without the verdict.

        Of several votes it is the one with the lowest verdict. Replies that are known are not asked for again.
        """
        assert self._panel is not None, "prepare comes before score"
        replies = self._panel.lowest(*self._about_samples(batch))
        return tuple("" if reply is None else reasons_in(reply.text, self._file.label) for reply in replies)

    # ---- what a subclass shows

    @abstractmethod
    def shown(self, batch: RewardBatch, row: int) -> "tuple[list[Image], str]":
        """Returns the images of a sample that the judge sees, and its answer, empty where it is no text."""

    @abstractmethod
    def condition(self, batch: RewardBatch, row: int) -> "list[Image]":
        """Returns the images of a sample's prompt that the judge sees first."""

    # ---- questions

    def exercise(self, prompt: Prompt, answer: str, is_right: bool) -> tuple[str, str]:
        """Returns what is asked about an answer, and the word that is the right verdict: what a judge can learn from.

        Raises ValueError for a prompt file that asks for more than one word.
        """
        if self._file.form != "yes_no" or self._file.critique:
            raise ValueError(
                f"the judge's prompt must ask for one word (form yes_no, no critique), got {self.prompt!r}"
            )
        return self._text(prompt, {"answer": answer}), self._file.words[0 if is_right else 1]

    def _text(self, prompt: Prompt, values: Mapping[str, str], *, is_structured: bool = False) -> str:
        """Returns the question about a prompt with all places filled."""
        target = {f"target.{name}": str(value) for name, value in prompt.target.items()}
        reference = {} if self.reference is None else {"reference": str(prompt.target[self.reference])}
        every = {"prompt": _MARK.sub(" ", prompt.text).strip(), "before": "", **target, **reference, **values}
        variant = None if self.choose_by is None else str(prompt.target[self.choose_by])
        return self._file.ask(variant, every, is_structured=is_structured)

    def _question(
        self, batch: RewardBatch, row: int, values: Mapping[str, str], *, count: int, images: "Any" = None
    ) -> Question:
        """Returns the question about a sample, or with `images` about several."""
        prompt, file = batch.prompts[row], self._file
        if images is None:
            images, answer = self.shown(batch, row)
            values = {**values, "answer": answer}
        is_structured = any(judge.structured for judge in self.judges)
        words = file.words if file.form == "yes_no" and not file.critique else ()
        return Question(
            text=self._text(prompt, values, is_structured=is_structured and not words),
            system=file.system,
            images=(*self.condition(batch, row), *images),
            words=words,
            schema=None if words or not is_structured else file.schema(count),
        )

    def _about_samples(self, batch: RewardBatch) -> tuple[list[Question], list[Reader]]:
        """Returns the question about each sample, and how its reply is read."""
        every = [self._criteria(prompt) for prompt in batch.prompts]
        questions = [
            self._question(batch, row, {"criteria": numbered([one.text for one in criteria])}, count=len(criteria))
            for row, criteria in enumerate(every)
        ]
        return questions, [self._reader(criteria) for criteria in every]

    def _criteria(self, prompt: Prompt) -> tuple[Criterion, ...]:
        if self._file.form not in OF_LISTS:
            return ()
        return self._file.criteria if self.criteria is None else criteria_of(prompt.target[self.criteria])

    # ---- verdicts

    def _values(
        self, questions: Sequence[Question], readers: Sequence[Reader], batch: RewardBatch
    ) -> list[float | UnansweredError]:
        assert self._panel is not None, "prepare comes before score"
        return self._panel.values(questions, readers, batch.iteration)

    def verdict(self, reply: Reply) -> Any:
        """Returns the verdict that a written reply ends with. Raises UnansweredError where there is none."""
        return _verdict_of(self._file, reply)

    def _reader(self, criteria: Sequence[Criterion]) -> Reader:
        """Returns how a reply about one sample is read, as a score in [0, 1]."""
        low, high = self._file.scale
        readers: dict[str, Reader] = {
            "number": lambda reply: (
                level_of(self.verdict(reply), self._file.levels)
                if self._file.levels
                else scaled(number_of(self.verdict(reply), low, high), low, high)
            ),
            "yes_no": lambda reply: _share_of_yes(self._file, reply),
            "rubric": lambda reply: rubric_score(
                criteria, [scaled(one, low, high) for one in numbers_of(self.verdict(reply), len(criteria), low, high)]
            ),
            "constraints": lambda reply: float(all(choices_of(self.verdict(reply), len(criteria)))),
        }
        return readers[self._file.form]

    # ---- groups

    def _by_groups(self, batch: RewardBatch) -> Tensor:
        """Returns the scores of questions that show a whole group, in a random order: no place has an advantage."""
        questions: list[Question] = []
        readers: list[Reader] = []
        members: list[int] = []
        for rows in map(Tensor.tolist, batch.members()):
            if not rows:
                continue
            order = torch.randperm(len(rows), generator=generator(*(batch.seeds[row] for row in rows))).tolist()
            shown = [self.shown(batch, rows[place]) for place in order]
            values = {"answers": numbered([answer for _, answer in shown]), "count": str(len(rows))}
            images = [image for own, _ in shown for image in own]
            question = self._question(batch, rows[0], values, count=len(rows), images=images)
            # one number for each member: the question is asked once, and its reply read for each
            questions += [question] * len(rows)
            readers += [self._member_reader(len(rows), place) for place in range(len(rows))]
            members += [rows[place] for place in order]
        scores: list[float | UnansweredError] = [0.5] * len(batch)
        for member, value in zip(members, self._values(questions, readers, batch), strict=True):
            scores[member] = value
        return whole(scores)

    def _member_reader(self, count: int, place: int) -> Reader:
        """Returns how the score of the member at a place of the shown order is read."""
        low, high = self._file.scale
        if self._file.form == "ranking":
            last = max(count - 1, 1)
            return lambda reply: 1 - places_of(self.verdict(reply), count)[place] / last if count > 1 else 0.5
        return lambda reply: scaled(numbers_of(self.verdict(reply), count, low, high)[place], low, high)

    def _by_pairs(self, batch: RewardBatch) -> Tensor:
        if self.compare == "reference":
            rows = list(range(len(batch)))
            found = self._preferences(batch, [(row, -1) for row in rows])
            return whole([found[row, -1] for row in rows])
        scores: list[float | UnansweredError] = [0.5] * len(batch)
        groups = [rows.tolist() for rows in batch.members()]
        if self.compare == "tournament":
            for row, rate in self._by_sorting(batch, groups).items():
                scores[row] = rate
            return whole(scores)
        pairs = [pair for rows in groups for pair in self._pairs(batch, rows)]
        found = self._preferences(batch, pairs)
        read = {pair: value for pair, value in found.items() if not isinstance(value, UnansweredError)}
        for row, mean in enumerate(rates_of_pairs(len(batch), read)):
            if mean is not None:
                scores[row] = mean
            elif failed := [value for pair, value in found.items() if row in pair]:
                scores[row] = failed[0]  # none of its pairs has an answer
        return whole(scores)

    def _pairs(self, batch: RewardBatch, rows: list[int]) -> list[Pair]:
        if self.compare == "all" or len(rows) < 2:
            return list(combinations(rows, 2))
        drawn = generator(*(batch.seeds[row] for row in rows))
        anchor = rows[int(torch.randint(len(rows), (1,), generator=drawn))]
        return [(row, anchor) for row in rows if row != anchor]

    def _by_sorting(self, batch: RewardBatch, groups: list[list[int]]) -> dict[int, float | UnansweredError]:
        """Returns the rates of sorted groups; the next pairs of all groups are asked at once."""
        rates: dict[int, float | UnansweredError] = {}
        sorting: list[tuple[list[int], Generator[Pair, float, list[Tier]], float | None]]
        sorting = [(rows, ranked(rows), None) for rows in groups if rows]
        while sorting:
            waiting = []
            for rows, sort, preference in sorting:
                try:
                    waiting.append((rows, sort, next(sort) if preference is None else sort.send(preference)))
                except StopIteration as finished:
                    rates |= rates_of_tiers(finished.value)
            found = self._preferences(batch, [pair for _, _, pair in waiting])
            sorting = []
            for rows, sort, pair in waiting:
                value = found[pair]
                if isinstance(value, UnansweredError):  # a sort cannot go on without it
                    rates |= dict.fromkeys(rows, value)
                else:
                    sorting.append((rows, sort, value))
        return rates

    def _preferences(self, batch: RewardBatch, pairs: Sequence[Pair]) -> dict[Pair, float | UnansweredError]:
        """Returns in [0, 1] how far the first of each pair is preferred: the mean of both orders.

        The second may be -1, the reference. An UnansweredError where an order has no answer.
        """
        words = self._file.words
        orders = [order for first, second in pairs for order in ((first, second), (second, first))]
        questions = [self._pair_question(batch, *order) for order in orders]
        readers: list[Reader] = [lambda reply: preference_of(self.verdict(reply), *words)] * len(questions)
        values = self._values(questions, readers, batch)
        found: dict[Pair, float | UnansweredError] = {}
        for pair, one, other in zip(pairs, values[::2], values[1::2], strict=True):
            if isinstance(one, UnansweredError) or isinstance(other, UnansweredError):
                found[pair] = one if isinstance(one, UnansweredError) else other
            else:
                found[pair] = (one + 1 - other) / 2
        return found

    def _pair_question(self, batch: RewardBatch, first: int, second: int) -> Question:
        row = max(first, second)
        sides: list[tuple[list[Image], str]] = []
        for side in (first, second):
            reference = None if self.reference is None or side >= 0 else str(batch.prompts[row].target[self.reference])
            sides.append(self.shown(batch, side) if reference is None else ([], reference))
        values = {"first": sides[0][1], "second": sides[1][1]}
        return self._question(batch, row, values, count=2, images=[*sides[0][0], *sides[1][0]])


def rubric_score(criteria: Sequence[Criterion], grades: Sequence[float]) -> float:
    """Returns the weighted mean of grades in [0, 1], in [0, 1].

    With weights w and grades g it is sum(w g) / sum(w over w > 0), not below 0: a fault, with a weight below 0, is
    subtracted as far as it is there. A sample that misses a criterion (g < 1/2) scores at most its cap.
    """
    positive = sum(one.weight for one in criteria if one.weight > 0)
    total = sum(one.weight * grade for one, grade in zip(criteria, grades, strict=True))
    score = min(max(total / positive, 0.0), 1.0) if positive else 1.0 - min(max(-total, 0.0), 1.0)
    caps = [one.cap for one, grade in zip(criteria, grades, strict=True) if one.cap is not None and grade < 0.5]
    return min([score, *caps])


def _verdict_of(file: JudgePrompt, reply: Reply) -> Any:
    return verdict_in(reply.text, file.label, is_bare=not file.critique)


def _share_of_yes(file: JudgePrompt, reply: Reply) -> float:
    """Returns P(yes) of a reply's first word, or 1 or 0 of a written verdict."""
    if reply.log_probs is not None:
        return share_of_yes(reply.log_probs)
    return float(is_yes(_verdict_of(file, reply), file.words[:1], file.words[1:]))


def whole(values: Sequence[float | UnansweredError]) -> Tensor:
    """Returns all scores [B]; raises the first error among them."""
    for value in values:
        if isinstance(value, UnansweredError):
            raise value
    return torch.tensor([float(value) for value in values if not isinstance(value, UnansweredError)])
