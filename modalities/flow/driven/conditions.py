"""Condition images: which argument of a call takes which image of a prompt, and masks in black and white."""

from collections.abc import Container, Sequence
from typing import TYPE_CHECKING, Any

from mmrl.core.contracts import ConfigError
from mmrl.core.data import Prompt
from mmrl.media.pictures import Picture
from mmrl.media.roles import fits, is_mask, role_of
from mmrl.system.spelling import nearest

from ...encoding.inputs import called

if TYPE_CHECKING:
    from PIL.Image import Image

IMAGE_ARGUMENTS = ("image", "images", "reference_images")  # of the plain case, the first that a call has
HALF = 128  # grey levels from here on are white in a mask
_PARTS = ("image", "mask", "control", "reference")  # of names of arguments that may take pictures
_NO_PICTURES = ("num_", "embeds", "latents", "scale", "processor", "length", "guidance", "prompt")


def picture_arguments(takes: frozenset[str]) -> list[str]:
    """Returns the arguments among those of a call that take pictures, by their names."""
    found = [
        name for name in takes if any(part in name for part in _PARTS) and not any(n in name for n in _NO_PICTURES)
    ]
    return sorted(found)


def condition_arguments(pipeline: Any, takes: frozenset[str], names: Sequence[str], count: int) -> tuple[str, ...]:
    """Returns the argument for each image of a prompt.

    Args:
        pipeline: of diffusers. takes: the arguments of its call.
        names: of `conditions`; empty: `count` images, all for the argument that takes the picture.
    Raises:
        ConfigError: the call takes no such argument; its message begins with the setting's name.
    """
    kind, known = type(pipeline).__name__, picture_arguments(takes)
    listed = f"it takes images as {', '.join(known)}" if known else "it takes no images"
    for name in names:
        if name not in takes:
            near = nearest(name, known, likeness=0.5)
            raise ConfigError(f"conditions: {kind} takes no {name!r}{_maybe(near)}; {listed}")
        if name not in known:
            raise ConfigError(f"conditions: {name!r} of {kind} takes no images; {listed}")
    if names or not count:
        return tuple(names)
    plain = next((name for name in IMAGE_ARGUMENTS if name in takes), None)
    if plain is None and known:
        raise ConfigError(
            f"condition_images: {kind} has none of {', '.join(IMAGE_ARGUMENTS)}; {listed}: set conditions"
        )
    if plain is None:
        raise ConfigError(f"condition_images: {kind} takes no image, and the prompts have {count}; set it to 0")
    return (plain,) * count


def assigned(prompt: Prompt, arguments: Sequence[str]) -> list[Picture]:
    """Returns the image of a prompt for each argument: in order, and where the data says roles, the next that fits.

    A mask that no argument takes is left to the rewards. Raises ValueError where the images are not those asked for.
    """
    left = list(zip(prompt.roles or map(role_of, arguments), prompt.media, strict=False))
    if not prompt.roles and len(prompt.media) != len(arguments):
        raise ValueError("another number of images")
    found = []
    for name in arguments:
        place = next((n for n, (role, _) in enumerate(left) if fits(role, name)), None)
        if place is None:
            raise ValueError(f"no image for {name}")
        found.append(left.pop(place)[1])
    if any(role != "mask" for role, _ in left):
        raise ValueError("images that no argument takes")
    return found


def pictures_of(prompt: Prompt, arguments: Sequence[str], size: tuple[int, int] | None) -> dict[str, Any]:
    """Returns the images of a prompt by argument: a picture, or a list where an argument takes several.

    `size`: width and height in pixels of the pipeline's pictures, where it is given them.
    """
    found: dict[str, list[Any]] = {}
    for picture, name in zip(assigned(prompt, arguments), arguments, strict=True):
        image = picture.load()
        found.setdefault(name, []).append(mask_of(image, size) if is_mask(name) else image)
    return {name: images[0] if len(images) == 1 else images for name, images in found.items()}


def mask_of(image: "Image", size: tuple[int, int] | None) -> "Image":
    """Returns a mask with one channel of 0 and 255, each pixel that of the nearest place, never a mean of several.

    A pipeline resizes smoothly, which moves the border of a mask, so that it gets masks of its own size.
    """
    from PIL import Image

    mask = image.convert("L").point(lambda level: 255 if level >= HALF else 0)
    return mask if size is None or mask.size == size else mask.resize(size, Image.Resampling.NEAREST)


def condition_file(number: int) -> str:
    """Returns the name of the file of a condition image, counted from 0, beside the code that loads it."""
    return f"condition_{number}.png"


def code_of_conditions(arguments: Sequence[str], size: tuple[int, int] | None) -> dict[str, str]:
    """Returns Python that loads the images `condition_0.png` and so on, by argument, as `pictures_of` makes them."""
    found: dict[str, list[str]] = {}
    for number, name in enumerate(arguments):
        code = f'load_image("{condition_file(number)}")'
        if is_mask(name):
            code += f'.convert("L").point(lambda level: 255 if level >= {HALF} else 0)'
            code += "" if size is None else f".resize({size}, 0)"
        found.setdefault(name, []).append(code)
    return {name: codes[0] if len(codes) == 1 else f"[{', '.join(codes)}]" for name, codes in found.items()}


def refusal_of(prompt: Prompt, conditions: Sequence[str], count: int) -> str | None:
    """Returns why a pipeline is not given a prompt, and which prompt it is; None: no reason found.

    See `refusal` for the arguments.
    """
    why = "it has a video, which no pipeline is given" if prompt.clips else refusal(prompt, conditions, count)
    return None if why is None else f"{called(prompt)}: {why}"


def broken(prompt: Prompt) -> str | None:
    """Returns which image of a prompt cannot be read, and why; None: all can."""
    try:
        for picture in prompt.media:
            picture.load()
    except ConfigError as error:
        return f"{called(prompt)}: {error}"
    return None


def refusal(prompt: Prompt, conditions: Sequence[str], count: int) -> str | None:
    """Returns why the images of a prompt are not those that the settings ask for; None: they are.

    `conditions`: the arguments, as set. `count`: of `condition_images`, where there are none.
    """
    try:
        assigned(prompt, conditions or ("image",) * count)
    except ValueError:
        num = len(prompt.media)
        roles = f" ({', '.join(prompt.roles)})" if prompt.roles else ""
        setting = f"conditions is [{', '.join(conditions)}]" if conditions else f"condition_images is {count}"
        return f"it has {num} image{'' if num == 1 else 's'}{roles}, and {setting}"
    return None


def missing(pipeline: Any, given: Container[str]) -> list[str]:
    """Returns the arguments without a default that take pictures and are not given."""
    import inspect

    parameters = inspect.signature(type(pipeline).__call__).parameters
    pictures = picture_arguments(frozenset(parameters))
    return [name for name in pictures if parameters[name].default is inspect.Parameter.empty and name not in given]


def _maybe(name: str | None) -> str:
    return f" (did you mean {name!r}?)" if name else ""
