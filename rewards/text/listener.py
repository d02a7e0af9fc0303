"""How sure a second, frozen vision-language model is of the right answer after the thought of a sample."""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Self

import torch
from torch import Tensor

from mmrl.core.checked import Checked
from mmrl.core.contracts import Granularity, License, Placement, RewardBatch
from mmrl.core.data import Prompt
from mmrl.core.declarations import RewardDeclaration
from mmrl.core.likelihoods import right_answer_of
from mmrl.parsing.answers import ParseError, check_tag, tagged

from ..base.networks.vlm import Vlm, chat_of, load_vlm, write_tiny_vlm

if TYPE_CHECKING:
    from PIL.Image import Image


@dataclass
class Listener(Checked):
    """P(right answer | images, question, the sample's thought) by a frozen vision-language model, in [0, 1].

    Gambashidze et al. 2025, "Listener-Rewarded Thinking in VLMs for Image Preferences", arXiv 2506.22832. The listener
    sees the images and the question as the policy does, and the text before the answer's `tag` as the beginning of its
    own reply. What the sample answered is not shown. The score is the probability that the listener goes on with the
    right answer and the closing tag, the product over their tokens, at temperature 1. With `options` it is divided by
    the sum of those of all options, so that a listener that prefers other words has an opinion all the same.

    The reader of `answer_likelihood` is the policy itself; the listener does not learn with it. Where it trusts words
    more than images, it believes any thought that names a conclusion: watch the accuracy beside it. A sample without
    exactly one tag scores 0. Special tokens of the listener that a thought spells are shown with a space in them. The
    paper's own words to the listener and its normaliser could not be verified.
    """

    source: ClassVar[str] = "Gambashidze et al. 2025, arXiv 2506.22832"
    range: ClassVar[tuple[float, float]] = (0.0, 1.0)
    granularity: ClassVar[Granularity] = "sample"
    differentiable: ClassVar[bool] = False
    needs: ClassVar[frozenset[str]] = frozenset({"texts", "prompt.image", "target.answer", "model"})
    batch_size: ClassVar[int | None] = 8
    license: ClassVar[License] = License("Apache-2.0", commercial=True)  # the model card

    model: str = "Qwen/Qwen2.5-VL-7B-Instruct"  # hub name or folder of the vision-language model
    options: tuple[str, ...] = ()  # the answers to choose from, such as [1, 2] in quotes; empty: any
    tag: str = "answer"  # the tag of the answer, `<tag>...</tag>`
    _vlm: Vlm | None = field(default=None, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_tag(self.tag)
        if len(set(self.options)) != len(self.options) or len(self.options) == 1 or "" in self.options:
            raise ValueError(f"options must be two or more different texts, or none, got {list(self.options)}")

    @property
    def declaration(self) -> RewardDeclaration:
        """Returns the tag that the answer stands in."""
        return RewardDeclaration(answer_tag=self.tag)

    def tiny(self, seed: int, folder: Path) -> Self:
        """Returns the same reward on a random model of small sizes, written to `folder`."""
        write_tiny_vlm(folder, seed, (*self.options, f"</{self.tag}>"))
        return replace(self, model=str(folder))

    def prepare(self, placement: Placement) -> None:
        """Loads the model; raises ConfigError where it cannot be loaded."""
        self._vlm = load_vlm(self.model, placement)

    def check(self, prompt: Prompt) -> None:
        """Raises ValueError for a video, and for a right answer that is no text or not among the options."""
        if prompt.clips:
            raise ValueError(f"the listener sees images, and {prompt.text!r} brings a video")
        answer = right_answer_of(prompt)
        if answer is None:
            given = prompt.target.get("answer")
            raise ValueError(f"target.answer must be a text or a list of texts, got {given!r} for {prompt.text!r}")
        if self.options and answer not in self.options:
            raise ValueError(f"target.answer must be one of {list(self.options)}, got {answer!r} for {prompt.text!r}")

    def score(self, batch: RewardBatch) -> Tensor:
        """Returns the scores [B] float32."""
        assert batch.outputs.texts is not None, "scoring checks needs"
        scores = torch.zeros(len(batch))
        thoughts = [self._thought(text) for text in batch.outputs.texts]
        rows = [row for row, thought in enumerate(thoughts) if thought is not None]
        if rows:
            scores[rows] = self._probabilities(
                [batch.prompts[row] for row in rows], [thought for thought in thoughts if thought is not None]
            ).cpu()
        return scores

    def _probabilities(self, prompts: list[Prompt], thoughts: list[str]) -> Tensor:
        """Returns the probabilities [n] of the right answers behind n thoughts."""
        assert self._vlm is not None, "prepare comes before score"
        vlm, close = self._vlm, f"</{self.tag}>"
        chats = [chat_of(prompt) for prompt in prompts]
        images: list[list[Image]] = [[picture.load().convert("RGB") for picture in prompt.media] for prompt in prompts]
        right = [right_answer_of(prompt) or "" for prompt in prompts]
        if not self.options:
            return vlm.reply_log_probs(chats, images, thoughts, [answer + close for answer in right]).exp()
        found = [vlm.reply_log_probs(chats, images, thoughts, [one + close] * len(chats)) for one in self.options]
        places = torch.tensor([self.options.index(answer) for answer in right], device=found[0].device)
        return torch.stack(found).softmax(0).gather(0, places[None])[0]

    def _thought(self, text: str) -> str | None:
        """Returns a sample's text up to its answer, the opening tag included; None where there is no one answer."""
        try:
            tagged(text, (self.tag,))
        except ParseError:
            return None
        assert self._vlm is not None, "prepare comes before score"
        opening = f"<{self.tag}>"
        thought = text[: text.index(opening)]
        for token in self._vlm.tokenizer.all_special_tokens:
            thought = thought.replace(token, f"{token[0]} {token[1:]}")
        return thought + opening
