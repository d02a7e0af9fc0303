"""VQAScore: the probability that a vision-language model says yes when asked whether an image fits its prompt."""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import ClassVar, Self

import torch
from torch import Tensor

from mmrl.core.contracts import Granularity, License, Placement, RewardBatch

from ..base.networks.vlm import Vlm, check_question, load_vlm, pictures, write_tiny_vlm


@dataclass
class VqaScore:
    """VQAScore: P("Yes" | image, 'Does this figure show "{prompt}"? Please answer yes or no.'), in [0, 1].

    Lin et al. 2024, "VQAScore", arXiv 2404.01291, section 3. The probability of the answer's first token, over the
    whole vocabulary at temperature 1. `normalised` divides by P("Yes") + P("No"), which does not fall where a model
    prefers other words.

    Any image-text-to-text model of transformers with a chat template can answer, the question after the image. The
    paper's own CLIP-FlanT5 is not one of them. Its code (github.com/linzhiqiu/t2v_metrics) also asks each of its other
    models in words of their own ('Does this image show "{prompt}"?' for Qwen2-VL, which `question` can say), and takes
    the first of an answer's tokens where it has more, so that "Yeah" and "Yes" may count alike. Here an answer must be
    one token: ConfigError. Images are rounded to 8 bits, so there is no gradient. Weights are in the precision of the
    run, probabilities in float32.
    """

    source: ClassVar[str] = "Lin et al. 2024 (VQAScore), arXiv 2404.01291"
    range: ClassVar[tuple[float, float]] = (0.0, 1.0)
    granularity: ClassVar[Granularity] = "sample"
    differentiable: ClassVar[bool] = False
    needs: ClassVar[frozenset[str]] = frozenset({"images", "model"})
    batch_size: ClassVar[int | None] = 16
    license: ClassVar[License] = License("Apache-2.0", commercial=True)  # the model card

    model: str = "Qwen/Qwen2.5-VL-7B-Instruct"  # hub name or folder of the vision-language model
    # text after the image; {prompt} stands for the prompt
    question: str = 'Does this figure show "{prompt}"? Please answer yes or no.'
    yes: str = "Yes"  # answer of a fitting image, one token; spaces before it and capitals count
    no: str = "No"  # the other answer, one token; used with normalised only
    normalised: bool = False  # whether the probability is divided by that of both answers
    _vlm: Vlm | None = field(default=None, init=False, repr=False, compare=False)
    _tokens: tuple[int, ...] = field(default=(), init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_question(self.question)
        if self.normalised and self.yes == self.no:
            raise ValueError(f"yes and no must differ, got {self.yes!r} for both")

    def tiny(self, seed: int, folder: Path) -> Self:
        """Returns the same reward on a random model of small sizes, written to `folder`."""
        write_tiny_vlm(folder, seed, (self.yes, self.no))
        return replace(self, model=str(folder))

    def prepare(self, placement: Placement) -> None:
        """Loads the model; raises ConfigError where it is missing or an answer is more than one of its tokens."""
        self._vlm = load_vlm(self.model, placement)
        self._tokens = tuple(
            self._vlm.token(word) for word in ((self.yes, self.no) if self.normalised else (self.yes,))
        )

    @torch.no_grad()
    def score(self, batch: RewardBatch) -> Tensor:
        """Returns the scores [B] float32; raises ValueError for an image that holds NaN or infinity."""
        assert self._vlm is not None, "prepare comes before score"
        images = batch.outputs.images
        assert images is not None, "scoring checks needs"
        questions = [self.question.replace("{prompt}", prompt.text) for prompt in batch.prompts]
        log_probs = self._vlm.log_probs([[image] for image in pictures(images)], questions, self._tokens)
        return log_probs.softmax(1)[:, 0] if self.normalised else log_probs[:, 0].exp()
