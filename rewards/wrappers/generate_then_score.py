"""A frozen generator draws what the policy wrote as a prompt, and another reward judges what was drawn."""

import logging
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, ClassVar, Literal, Self

import torch
from pydantic import Field
from torch import Tensor

from mmrl.core.contracts import (
    Closing,
    License,
    Modality,
    Placement,
    Reader,
    Reward,
    RewardBatch,
    Sampler,
    Shrinking,
    Steered,
)
from mmrl.core.data import Outputs, Prompt
from mmrl.core.declarations import PolicyDeclaration, RewardDeclaration
from mmrl.core.keys import GroupKey, generator, seed_from
from mmrl.parsing.answers import ParseError, check_tag

from ..base.references import answer_text
from ..base.wrapper import RewardWrapper, check_judges_outputs_alone, check_judges_samples, is_changing, score_inner

MEDIA = ("images", "videos", "audio")  # that a generator makes
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class GenerateThenScore(RewardWrapper):
    """The score by `reward` of what a frozen generator draws from the prompt that the policy wrote.

    Prompt-A-Video (Ji et al. 2024, arXiv 2412.15156), PromptEnhancer (Wang et al. 2025, arXiv 2509.04545) and VPO
    (Cheng et al. 2025, arXiv 2503.20491) train the writer of prompts in this way; the generator is never trained. The
    generator is any modality of images or videos, which sees the written text alone. Its noise follows from `seed` and
    the prompt of the row: all members of a group are drawn from the same noise, and the same answer to the same row has
    the same score in every iteration, whatever stands beside it. With several `pictures` the score is their mean. In a
    batch a text that was written several times for a row is drawn and judged once.

    By default `reward` judges against what the user asked for: the row's prompt, or the field `request` of its target.

    An answer without a text (empty, without the `tag`, or longer than 10,000 letters) cannot be judged, as any sample
    for which `reward` raises; it scores `unreadable` where that is a number. Where `reward` raises for one sample of a
    batch, all of the batch are drawn once more, one by one.

    Raises ValueError for a generator that does not draw from text alone, a sampler that does not go with it, and an
    inner reward that does not judge single images or videos, or that changes from call to call.
    """

    # a modality as in a config, such as {name: sd3, model: ..., height: 512, width: 512}; `model` may be lab:NAME
    generator: Modality
    # how pictures are drawn: its num_steps, its guidance_scale, its grid
    sampler: Sampler
    # the reward of what is drawn; several are summed by {name: weighted, rewards: [...], weights: [...]}
    reward: Reward
    judged_by: Literal["request", "written"] = "request"  # the text that `reward` holds a picture against
    request: str | None = None  # the field of the target with what the user asked for; null: the row's prompt
    tag: str | None = None  # the part of an answer that is drawn, `<tag>...</tag>`; null: all of it
    unreadable: float | None = None  # the score of an answer without a text; null: the sample is left out
    pictures: Annotated[int, Field(ge=1)] = 1  # that are drawn of each text, each from its own noise
    texts_per_call: Annotated[int, Field(ge=1)] = 16  # whose pictures are drawn and judged together: bounds the memory
    seed: int = 0  # of the noise

    source: ClassVar[str] = (
        "Ji et al. 2024 (Prompt-A-Video), arXiv 2412.15156; Wang et al. 2025 (PromptEnhancer), arXiv 2509.04545; "
        "Cheng et al. 2025 (VPO), arXiv 2503.20491"
    )
    needs: ClassVar[frozenset[str]] = frozenset({"texts", "model"})  # beside those of the inner reward
    # there is no default: the terms of the generator that the config names
    license: ClassVar[License] = License("other", commercial=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_tag(self.tag)
        self._check_generator()
        inner = self.reward
        check_judges_samples(inner)
        check_judges_outputs_alone(inner)
        if is_changing(inner):
            raise ValueError("the inner reward changes from call to call; put generate_then_score inside of it")
        made = frozenset(MEDIA) & self.generator.makes
        if not made & inner.needs or (lacking := frozenset(MEDIA) & inner.needs - made):
            wanted = ", ".join(sorted(inner.needs)) or "nothing"
            raise ValueError(
                f"the inner reward must judge what the generator makes ({', '.join(sorted(made))}), got one that needs "
                f"{wanted}" + (f"; {', '.join(sorted(lacking))} must be of the generator" if made & inner.needs else "")
            )
        of_request = set() if self.request is None else {f"target.{self.request}"}
        low, high = inner.range
        if self.unreadable is not None:
            low, high = min(low, self.unreadable), max(high, self.unreadable)
        self.inherit(
            inner,
            needs=(inner.needs - made) | type(self).needs | of_request,
            range=(low, high),
            differentiable=False,
            batch_size=None,
        )

    def _check_generator(self) -> None:
        """Raises ValueError for a generator that does not draw from text alone, and a sampler that does not fit it."""
        if self.generator.sample_kind != "latents" or not frozenset(MEDIA) & self.generator.makes:
            made = ", ".join(sorted(self.generator.makes))
            raise ValueError(f"the generator must draw images or videos, got one that makes {made}")
        if self.sampler.sample_kind != "latents":
            raise ValueError(f"the sampler must plan latents, got one that plans {self.sampler.sample_kind}")
        if isinstance(self.sampler, Steered) and self.sampler.reward is not None:
            raise ValueError("the sampler must not select by a reward of its own; take one such as ode")
        known = PolicyDeclaration.of(self.generator).refuses_by_settings
        if known and isinstance(self.generator, Reader) and (why := self.generator.refusal(Prompt("a text alone"))):
            raise ValueError(f"the generator must draw from text alone: {why}")

    @property
    def declaration(self) -> RewardDeclaration:
        """Returns that of the inner reward, with the tag that is drawn; the generator serves one call at a time."""
        return replace(super().declaration, concurrency=1, answer_tag=self.tag)

    def prepare(self, placement: Placement) -> None:
        """Loads the frozen generator, on every process by itself, and what the inner reward needs."""
        self.generator.prepare(replace(placement, maximum=None, is_frozen=True))
        super().prepare(placement)

    def tiny(self, seed: int, folder: Path) -> Self:
        """Returns the same reward around the small twins of the generator and of the inner reward."""
        return replace(super().tiny(seed, folder), generator=self.generator.tiny(seed, folder / "generator"))

    def shrunk(self) -> AbstractContextManager[None]:
        """Keeps the constants small that the generator's twin needs small."""
        return self.generator.shrunk() if isinstance(self.generator, Shrinking) else nullcontext()

    def check(self, prompt: Prompt) -> None:
        """Raises ValueError where the request is no text, or the inner reward refuses the prompt."""
        super().check(replace(prompt, text=self.request_of(prompt)))

    def request_of(self, prompt: Prompt) -> str:
        """Returns what the user asked for. Raises ValueError where the field of the target holds no text."""
        asked = prompt.text if self.request is None else prompt.target.get(self.request)
        if not isinstance(asked, str) or not asked.strip():
            raise ValueError(f"target.{self.request} must be a text, got {asked!r} for {prompt.text!r}")
        return asked

    @torch.no_grad()
    def score(self, batch: RewardBatch) -> Tensor:
        """Returns the scores [B] float32, NaN for answers without a text where `unreadable` is null.

        Raises ParseError where no answer has a text and `unreadable` is null, and what the inner reward raises.
        """
        written = self._written(batch)
        names = [(id(prompt), text) for prompt, text in zip(batch.prompts, written, strict=True)]
        first = {name: row for row, name in reversed(list(enumerate(names))) if name[1] is not None}
        parts = torch.tensor(sorted(first.values()), dtype=torch.int64).split(self.texts_per_call)
        known = {names[row]: value for rows in parts if len(rows) for row, value in self._judged(batch, written, rows)}
        missing = torch.nan if self.unreadable is None else self.unreadable
        return torch.tensor([known.get(name, missing) for name in names], dtype=torch.float32)

    def _written(self, batch: RewardBatch) -> list[str | None]:
        """Returns the text of each answer, B, that is drawn; None: there is none.

        Raises ParseError where no answer has a text, and such answers have no score.
        """
        texts: list[str | None] = []
        why: ParseError | None = None
        assert batch.outputs.texts is not None, "scoring checks needs"
        for answer in batch.outputs.texts:
            try:
                texts.append(_text_in(answer, self.tag))
            except ParseError as error:
                texts.append(None)
                why = why or error
        if why is not None and self.unreadable is None:
            if not any(text is not None for text in texts):
                raise why
            log.warning("%d of %d answers have no text to draw: %s", texts.count(None), len(texts), why)
        return texts

    def _judged(self, batch: RewardBatch, written: Sequence[str | None], rows: Tensor) -> list[tuple[int, float]]:
        """Returns the rows [n] with the score of each: the mean over its pictures."""
        chosen = rows.tolist()
        keys = [self.key_of(batch.prompts[row]) for row in chosen]
        texts = [written[row] or "" for row in chosen]
        plans = [self.sampler.plan(self.generator, key, self.pictures) for key in keys]
        drawn = self.generator.rollout([Prompt(text) for text in texts], plans, keys)
        if isinstance(self.generator, Closing):
            self.generator.close()  # its threads; they are opened again by the next call
        if drawn.num_samples != self.pictures * len(chosen):
            raise ValueError(f"the sampler must plan {self.pictures} pictures of a text, got {drawn.num_samples}")
        places = drawn.prompt.argsort(stable=True)  # [n * pictures], text by text
        scores = score_inner(self.reward, self._as_batch(batch, texts, rows, drawn.outputs.select(places)))
        return list(zip(chosen, scores.float().view(len(chosen), -1).mean(1).tolist(), strict=True))

    def key_of(self, prompt: Prompt) -> GroupKey:
        """Returns the key from which the noise of all pictures for a row is made: of `seed` and its prompt alone."""
        return GroupKey(seed_from(self.seed, "generate_then_score", prompt.text), 0, 0)

    def _as_batch(self, batch: RewardBatch, texts: Sequence[str], rows: Tensor, drawn: Outputs) -> RewardBatch:
        """Returns what was drawn [n * pictures] as samples of their own, with the prompts that they are judged by."""
        each = rows.repeat_interleave(self.pictures)  # the row of each picture
        seeds = []
        asked = []
        for row, text in zip(rows.tolist(), texts, strict=True):
            prompt, key = batch.prompts[row], self.key_of(batch.prompts[row])
            judged = text if self.judged_by == "written" else self.request_of(prompt)
            asked += [replace(prompt, text=judged)] * self.pictures
            seeds += [key.seed_for("reward", text, place) for place in range(self.pictures)]
        number = torch.arange(len(each))
        return RewardBatch(
            prompts=tuple(asked),
            outputs=replace(batch.outputs.select(each), images=drawn.images, videos=drawn.videos, fps=drawn.fps,
                            audio=drawn.audio, audio_rate=drawn.audio_rate),
            group=batch.group[each],
            episode=number,
            turn=torch.zeros_like(number),
            seeds=tuple(seeds),
            iteration=batch.iteration,
            generator=generator(*seeds),
        )  # fmt: skip


def _text_in(answer: str, tag: str | None) -> str:
    """Returns the text of an answer that is drawn, without white space at its ends. Raises ParseError for none."""
    text = answer_text(answer, tag)
    if not text:
        raise ParseError("the answer is empty" if tag is None else f"<{tag}> is empty")
    return text
