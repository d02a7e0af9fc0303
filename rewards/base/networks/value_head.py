"""Vision-language models with a head of numbers on their hidden states, and the names that their files have."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn

from mmrl.core.contracts import ConfigError, Placement

from .checkpoints import find_file, put_weights, read_weights
from .loading import loading
from .qwen_vl import as_patches, num_words, states_of
from .resizing import within_pixels
from .tiny import randomise
from .tiny_qwen import Family, tiny_config, tiny_processor, tiny_tokenizer
from .vlm import processed

if TYPE_CHECKING:
    from PIL.Image import Image

MARK = "<|Reward|>"  # the token whose hidden state the heads of HPSv3 and EditReward see
IMAGE = "<|image_pad|>"
# How names of a head of one linear layer begin: TRL's value head, sequence classification, InternLM's rewards.
HEADS = ("score", "v_head.summary", "v_head")
# How published names begin, and those of `MarkedNetwork`; Qwen's own moved with transformers 4.52.
_NAMES = (
    ("model.visual.", "body.visual."),
    ("model.language_model.", "body.language_model."),
    ("visual.", "body.visual."),
    ("model.", "body.language_model."),
    ("rm_heads.", "heads."),
    ("rm_head.", "heads.rm_head."),
)


def last_states(states: Tensor, mask: Tensor) -> Tensor:
    """Returns the hidden states [B, W] of the last token that counts, of states [B, L, W] and a mask [B, L].

    Padding may be on either side.
    """
    places = torch.arange(mask.shape[1], device=mask.device)
    last = (places * (mask != 0)).argmax(1)
    return states[torch.arange(len(states), device=states.device), last]


@dataclass(frozen=True)
class HeadedModel:
    """A frozen vision-language model without its head of words, its processor, and a head of numbers in float32."""

    body: Any
    processor: Any
    head: nn.Module

    @torch.no_grad()
    def scores(self, texts: Sequence[str], images: "Sequence[Sequence[Image]]") -> Tensor:
        """Returns the numbers [B, n] float32 that the head gives the last tokens of B texts with their images."""
        inputs = processed(self.processor, texts, images).to(self.body.device, self.body.dtype)
        with torch.autocast(self.body.device.type, enabled=False):
            states = self.body(**inputs, use_cache=False).last_hidden_state
            scores: Tensor = self.head(last_states(states, inputs["attention_mask"]).float())
        return scores


def load_headed(model: str, head: str, placement: Placement) -> HeadedModel:
    """Loads a model of transformers in the precision of the run, and its linear head of one number from a file.

    Args:
        model: hub name or folder of an image-text-to-text model with its processor. head: file of the head, here or
            owner/repository/file on the hub; its names begin with one of `HEADS`.
    Raises ConfigError where a part is missing or does not fit.
    """
    from transformers import AutoModel, AutoProcessor

    with loading("vision-language model", model, "an image-text-to-text model of transformers"):
        processor: Any = AutoProcessor.from_pretrained(model)
        body: Any = AutoModel.from_pretrained(model, dtype=placement.dtype)
    if getattr(processor, "chat_template", None) is None:
        raise ConfigError(f"{model!r} has no chat template; give a model that is tuned to follow instructions")
    file = find_file("value head", head)
    layer = linear_head(file, read_weights("value head", file), body.config.get_text_config().hidden_size)
    return HeadedModel(body.to(placement.device).eval().requires_grad_(False), processor, layer.to(placement.device))


def linear_head(file: Path, weights: dict[str, Tensor], width: int) -> nn.Linear:
    """Returns the frozen linear layer width-1 in a file's weights, with or without a bias.

    Raises ConfigError where no name begins with one of `HEADS`, or the shape is another.
    """
    for name in HEADS:
        if f"{name}.weight" in weights:
            own = {
                part: weights[f"{name}.{part}"].float() for part in ("weight", "bias") if f"{name}.{part}" in weights
            }
            layer = nn.Linear(width, 1, bias="bias" in own)
            put_weights("value head", file, layer, own)
            return layer
    raise ConfigError(f"{file} holds no value head: no name begins with {', '.join(HEADS)}")


def ranknet(width: int) -> nn.Sequential:
    """Returns the head width-1024-16-2 of HPSv3 and EditReward, whose numbers are mu and sigma."""
    return nn.Sequential(
        nn.Linear(width, 1024), nn.ReLU(), nn.Dropout(0.05), nn.Linear(1024, 16), nn.ReLU(), nn.Linear(16, 2)
    )


class MarkedNetwork(nn.Module):
    """Qwen2-VL or Qwen2.5-VL without the head that predicts words, with a `ranknet` by each of some names."""

    def __init__(self, body: Any, heads: Sequence[str]) -> None:
        super().__init__()
        self.body = body
        self.heads = nn.ModuleDict({name: ranknet(body.config.get_text_config().hidden_size) for name in heads})

    def forward(self, images: Sequence[Sequence[Tensor]], tokens: Tensor, mask: Tensor, mark: int) -> Tensor:
        """Returns the hidden states [B, W] at the mark, with a gradient to the images.

        Args:
            images: of each sample, in the order of the text, each [3, H, W] in [0, 1], H and W multiples of 28.
            tokens: [B, L]; mask: [B, L], 1 where they count, padded on the right.
        """
        vision = self.body.config.vision_config
        still = [as_patches(image.expand(1, 2, -1, -1, -1), vision) for own in images for image in own]
        patches, grid = (torch.cat(parts) for parts in zip(*still, strict=True))
        states = states_of(self.body, (patches, grid), tokens == self.body.config.image_token_id, tokens, mask)
        at_mark: Tensor = states[torch.arange(len(tokens), device=tokens.device), (tokens == mark).int().argmax(1)]
        return at_mark


@dataclass(frozen=True)
class MarkedModel:
    """A frozen `MarkedNetwork` with its processor."""

    network: MarkedNetwork
    processor: Any
    mark: int  # the token of `MARK`

    def scores(
        self, images: Sequence[Sequence[Tensor]], questions: Sequence[str], head: str, bounds: tuple[int, int]
    ) -> Tensor:
        """Returns mu and sigma [B, 2] float32 of B questions, each with one mark, with a gradient to the images.

        Args:
            images: of each sample, before the question, each [3, H, W] in [0, 1]. head: the name of one of the heads.
            bounds: the fewest and the most pixels of an image after resizing.
        """
        body = self.network.body
        vision = body.config.vision_config
        shown = [[within_pixels(image[None].to(body.device), *bounds)[0] for image in own] for own in images]
        chats = [
            [{"role": "user", "content": [{"type": "image"}] * len(own) + [{"type": "text", "text": question}]}]
            for own, question in zip(images, questions, strict=True)
        ]
        texts = self.processor.apply_chat_template(chats, tokenize=False, add_generation_prompt=True)
        pixels_of_token = (vision.patch_size * vision.spatial_merge_size) ** 2
        counts = [[image.shape[-2] * image.shape[-1] // pixels_of_token for image in own] for own in shown]
        texts = [_repeated(text, own) for text, own in zip(texts, counts, strict=True)]
        words = self.processor.tokenizer(texts, padding=True, return_tensors="pt").to(body.device)
        with torch.autocast(body.device.type, enabled=False):
            states = self.network(shown, words.input_ids, words.attention_mask, self.mark)
            numbers: Tensor = self.network.heads[head](states.float())
        return numbers


def _repeated(text: str, counts: Sequence[int]) -> str:
    """Returns the text with each mark of an image as often as the image has tokens."""
    first, *rest = text.split(IMAGE)
    return first + "".join(IMAGE * count + part for count, part in zip(counts, rest, strict=True))


def load_marked(
    what: str, checkpoint: str, base: str, heads: Sequence[str], family: Family, placement: Placement
) -> MarkedModel:
    """Loads the frozen network in the precision of the run, its heads in float32.

    Args:
        what: what errors call it. checkpoint: file of all weights, here or owner/repository/file on the hub.
        base: hub name or folder of the model that it was trained from, for sizes and processor. heads: their names.
        family: the model type that the base must have.
    Raises ConfigError where a part is missing or does not fit.
    """
    from transformers import AutoConfig, AutoProcessor

    with loading("base", base, "a Qwen2-VL or Qwen2.5-VL of transformers, with its processor"):
        processor: Any = AutoProcessor.from_pretrained(base)
        config: Any = AutoConfig.from_pretrained(base)
    if config.model_type != family:
        raise ConfigError(f"{base!r} is no {family}, on which {what} was trained")
    processor.tokenizer.add_special_tokens({"additional_special_tokens": [MARK]}, replace_extra_special_tokens=False)
    processor.tokenizer.padding_side = "right"
    file = find_file(what, checkpoint)
    weights = own_names(read_weights(what, file))
    config.get_text_config().vocab_size = num_words(what, file, weights, base, len(processor.tokenizer))
    of_body = {name.removeprefix("body."): value for name, value in weights.items() if name.startswith("body.")}
    with loading(what, str(file), f"the weights of {family}"):
        body, report = _body_class(family).from_pretrained(
            None, config=config, state_dict=of_body, dtype=placement.dtype, output_loading_info=True
        )
    if wrong := sorted([*report["missing_keys"], *report["unexpected_keys"]]):
        raise ConfigError(f"{file} does not hold the {what}: missing or unknown is {wrong[0]}")
    network = MarkedNetwork(body, heads)
    of_heads = {
        name.removeprefix("heads."): value.float() for name, value in weights.items() if name.startswith("heads.")
    }
    put_weights(what, file, network.heads, of_heads)
    network.eval().requires_grad_(False)
    return MarkedModel(network.to(placement.device), processor, processor.tokenizer.convert_tokens_to_ids(MARK))


def _body_class(family: Family) -> Any:
    from transformers import Qwen2_5_VLModel, Qwen2VLModel

    return {"qwen2_vl": Qwen2VLModel, "qwen2_5_vl": Qwen2_5_VLModel}[family]


def own_names(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Returns published weights by the names of `MarkedNetwork`, without the head that predicts words."""
    renamed = {}
    for name, value in weights.items():
        for left, right in _NAMES:
            if name.startswith(left):
                renamed[right + name.removeprefix(left)] = value
                break
    return renamed


def write_tiny_marked(folder: Path, seed: int, family: Family, names: Literal["rm_head", "rm_heads"]) -> Path:
    """Writes a random, small network with published names, and its base with a processor; returns the checkpoint.

    Args:
        names: of the heads: `rm_head` is one with the names of a Qwen before transformers 4.52, as HPSv3's, `rm_heads`
            are two with newer names, as EditReward's.
    """
    from safetensors.torch import save_file

    tokenizer = tiny_tokenizer()
    config = tiny_config(family, tokenizer, 1)
    heads = ("rm_head",) if names == "rm_head" else ("head_0", "head_1")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = MarkedNetwork(_body_class(family)(config), heads)
    randomise(network, torch.Generator().manual_seed(seed))
    tiny_processor(family, tokenizer).save_pretrained(folder)
    config.save_pretrained(folder)
    file = folder / "checkpoint.safetensors"
    save_file(published(network.state_dict(), names), file)
    return file


def published(own: dict[str, Tensor], names: Literal["rm_head", "rm_heads"]) -> dict[str, Tensor]:
    """Returns the weights of `MarkedNetwork` by published names, see `write_tiny_marked`."""
    pairs = (*_NAMES[2:4], _NAMES[5]) if names == "rm_head" else (*_NAMES[:2], _NAMES[4])
    renamed = {}
    for name, value in own.items():
        left, right = next((left, right) for left, right in pairs if name.startswith(right))
        renamed[left + name.removeprefix(right)] = value
    return renamed
