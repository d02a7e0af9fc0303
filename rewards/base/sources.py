"""The images of prompts by what they are for, as large as the outputs that are compared with them."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Literal

import torch
from torch import Tensor

from mmrl.core.contracts import RewardBatch
from mmrl.core.data import Prompt
from mmrl.media.pictures import Picture, Role, as_tensor

Source = Literal["map", "picture", "given"]  # what an image is compared with: its `control`, its `image`, an output
HALF = 0.5  # of the range: lighter is white in a mask


def picture_of(prompt: Prompt, role: Role) -> Picture:
    """Returns the image of a prompt for a role. Where the data says no roles, the first image is the one to edit.

    Raises ValueError for a prompt without such an image.
    """
    if not prompt.roles and role == "image" and prompt.media:
        return prompt.media[0]
    found = [picture for picture, own in zip(prompt.media, prompt.roles, strict=False) if own == role]
    if not found:
        has = ", ".join(prompt.roles) or f"{len(prompt.media)} images without roles"
        raise ValueError(f"needs an image of the role {role!r}, and the row has {has}; the layout 'edit' says roles")
    return found[0]


def given_picture(prompt: Prompt) -> Picture:
    """Returns the picture that the data brings as an output for a prompt, the best by its scores.

    Raises ValueError for a prompt without one.
    """
    given, scores = prompt.target.get("given", ()), prompt.target.get("given_scores", ())
    if not given:
        raise ValueError("needs a picture that the row brings as an output; the field 'edited' of the layout 'edit'")
    best = max(range(len(scores)), key=lambda number: scores[number]) if len(scores) == len(given) else 0
    if isinstance(given[best], str):
        raise ValueError("needs a picture that the row brings as an output, got a text")
    picture: Picture = given[best]
    return picture


def check_source(prompt: Prompt, source: Source) -> None:
    """Raises ValueError for a prompt without the image that outputs are compared with."""
    _of_source(prompt, source)


def compared_with(batch: RewardBatch, source: Source, size: tuple[int, int]) -> Tensor:
    """Returns the images [B, 3, H, W] in [0, 1] that outputs are compared with, resized (bicubic) to (H, W)."""
    return _each([_of_source(prompt, source) for prompt in batch.prompts], partial(_resized, size=size))


def label_maps_of(batch: RewardBatch, use: Callable[[Tensor], Tensor]) -> Tensor:
    """Returns `use` of the prompts' control maps [1, 3, h, w], as large as they are, in one tensor."""
    return _each([_of_source(prompt, "map") for prompt in batch.prompts], use)


def _of_source(prompt: Prompt, source: Source) -> Picture:
    if source == "given":
        return given_picture(prompt)
    return picture_of(prompt, "control" if source == "map" else "image")


def sources_of(batch: RewardBatch, role: Role, size: tuple[int, int]) -> Tensor:
    """Returns the images [B, 3, H, W] in [0, 1] of the prompts, resized (bicubic) to (H, W); each is opened once."""
    return _each([picture_of(prompt, role) for prompt in batch.prompts], partial(_resized, size=size))


def masks_of(batch: RewardBatch, size: tuple[int, int]) -> Tensor:
    """Returns the masks [B, 1, H, W] of the prompts: 1 where to edit, 0 elsewhere, by the nearest pixel."""
    return _each([picture_of(prompt, "mask") for prompt in batch.prompts], partial(_binary, size=size))


def _each(pictures: Sequence[Picture], use: Callable[[Tensor], Tensor]) -> Tensor:
    """Returns `use` of each picture, one below the other; each is opened once."""
    made = {id(picture): use(as_tensor(picture.load())[None]) for picture in {id(p): p for p in pictures}.values()}
    return torch.cat([made[id(picture)] for picture in pictures])


def _resized(image: Tensor, size: tuple[int, int]) -> Tensor:
    from torchvision.transforms.v2.functional import InterpolationMode, resize

    if tuple(image.shape[-2:]) == size:
        return image
    result: Tensor = resize(image, list(size), interpolation=InterpolationMode.BICUBIC, antialias=True)
    return result.clamp(0, 1)  # bicubic resizing overshoots


def _binary(image: Tensor, size: tuple[int, int]) -> Tensor:
    weights = torch.tensor([0.299, 0.587, 0.114]).view(1, 3, 1, 1)  # of luma, as Pillow's conversion to grey
    grey = (image * weights).sum(1, keepdim=True)
    mask = (grey >= HALF).float()
    return torch.nn.functional.interpolate(mask, size, mode="nearest-exact")
