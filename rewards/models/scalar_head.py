"""Any vision-language reward model that is a model of transformers with one number as its head."""

import math
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, ClassVar, Literal, Self

import torch
from pydantic import Field
from torch import Tensor

from mmrl.core.checked import Checked
from mmrl.core.contracts import Granularity, License, Placement, RewardBatch
from mmrl.core.data import Prompt

from ..base.networks.checkpoints import check_suffix
from ..base.networks.tiny_qwen import write_tiny_qwen
from ..base.networks.value_head import HeadedModel, load_headed
from ..base.networks.vlm import IMAGE_MARK, chat_of, pictures, text_part


@dataclass
class ScalarHead(Checked):
    """(head(h) - mean) / std, where h is the last hidden state of a conversation's last token.

      texts   the prompt with its images, then the answer, as a finished turn of the chat template
      images  the image that was made, then the prompt's text, in one turn of the user

    The default is Skywork-VL Reward (Wang et al. 2025, arXiv 2505.07263, section 3), Qwen2.5-VL-7B with a linear layer
    of one number, trained on pairs of answers: its model card reads the head at the last token that is no padding, and
    weights and bias stand in value_head.safetensors as `v_head.summary`. The head computes in float32, as TRL's value
    head does. Scores are unbounded, since a linear layer has no ends; `mean` and `std` are yours, as its authors
    publish none. To judge made images by it is ours: Skywork's is trained on answers alone.

    Other models: those that transformers has a class for, with a head of one linear layer whose name is one of `HEADS`
    in `rewards/base/networks/value_head.py`. IXC-2.5-Reward (arXiv 2501.12368) has a class of its own, and code of a
    model is not run here. Videos: `frame_mean` around this reward with `of: images`.
    """

    source: ClassVar[str] = "Wang et al. 2025 (Skywork-VL Reward), arXiv 2505.07263, Skywork/Skywork-VL-Reward-7B"
    range: ClassVar[tuple[float, float]] = (-math.inf, math.inf)
    granularity: ClassVar[Granularity] = "sample"
    differentiable: ClassVar[bool] = False
    needs: ClassVar[frozenset[str]] = frozenset({"texts", "model"})  # or images
    batch_size: ClassVar[int | None] = 8
    license: ClassVar[License] = License("MIT", commercial=True)  # Skywork/Skywork-VL-Reward-7B

    of: Literal["texts", "images"] = "texts"  # what is judged: answers about the prompt's images, or images made for it
    model: str = "Skywork/Skywork-VL-Reward-7B"  # hub name or folder of an image-text-to-text model of transformers
    # the head's weights: a file, or owner/repository/file on the hub
    head: str = "Skywork/Skywork-VL-Reward-7B/value_head.safetensors"
    mean: Annotated[float, Field(allow_inf_nan=False)] = 0.0  # subtracted from the head's number
    std: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1.0  # then divided by
    _model: HeadedModel | None = field(default=None, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_suffix("head", self.head)
        object.__setattr__(self, "needs", frozenset({self.of, "model"}))

    def tiny(self, seed: int, folder: Path) -> Self:
        """Returns the same reward on a random Qwen2.5-VL of small sizes with a random head, written to `folder`."""
        from safetensors.torch import save_file

        width = write_tiny_qwen(folder, seed, "qwen2_5_vl").get_text_config().hidden_size
        generator = torch.Generator().manual_seed(seed)
        head = folder / "value_head.safetensors"
        weights = {"weight": torch.randn(1, width, generator=generator), "bias": torch.randn(1, generator=generator)}
        save_file({f"v_head.summary.{name}": value for name, value in weights.items()}, head)
        return replace(self, model=str(folder), head=str(head))

    def prepare(self, placement: Placement) -> None:
        """Loads the model and its head; raises ConfigError where one is missing or does not fit."""
        self._model = load_headed(self.model, self.head, placement)

    def check(self, prompt: Prompt) -> None:
        """Raises ValueError for a prompt with videos, or with another number of marks than of images."""
        if self.of == "texts" and prompt.clips:
            raise ValueError(f"scalar_head sees no videos in prompts, as in {prompt.text!r:.100}")
        if self.of == "texts" and (marks := prompt.text.count(IMAGE_MARK)) not in (0, len(prompt.media)):
            raise ValueError(f"{prompt.text!r:.100} has {marks} marks {IMAGE_MARK} and {len(prompt.media)} images")

    @torch.no_grad()
    def score(self, batch: RewardBatch) -> Tensor:
        """Returns the scores [B] float32; raises ValueError as `check` does, and for pixels of NaN or infinity."""
        assert self._model is not None, "prepare comes before score"
        outputs, template = batch.outputs, self._model.processor.apply_chat_template
        for prompt in batch.prompts:
            self.check(prompt)
        if self.of == "texts":
            assert outputs.texts is not None, "scoring checks needs"
            chats = [
                [*chat_of(prompt), {"role": "assistant", "content": [text_part(answer)]}]
                for prompt, answer in zip(batch.prompts, outputs.texts, strict=True)
            ]
            shown = [[picture.load().convert("RGB") for picture in prompt.media] for prompt in batch.prompts]
        else:
            assert outputs.images is not None, "scoring checks needs"
            contents = [[{"type": "image"}, text_part(prompt.text)] for prompt in batch.prompts]
            chats = [[{"role": "user", "content": content}] for content in contents]
            shown = [[image] for image in pictures(outputs.images)]
        texts = [template(chat, tokenize=False, add_generation_prompt=False) for chat in chats]
        return (self._model.scores(texts, shown)[:, 0] - self.mean) / self.std
