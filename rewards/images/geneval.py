"""Does an image show the objects, numbers, colours and places that its prompt asks for?"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import Annotated, ClassVar, Literal, Self

import torch
from pydantic import Field
from torch import Tensor
from torch.nn.functional import normalize

from mmrl.core.checked import Checked
from mmrl.core.contracts import Granularity, License, Placement, RewardBatch
from mmrl.core.data import Prompt

from ..base.networks.clip import Clip, Library, load_clip, write_tiny_clip
from ..base.networks.detectors import Detector, load_detector, write_tiny_detector
from ..base.networks.resizing import check_finite
from ..base.scenes import (
    COLORS,
    Colors,
    DetectedObject,
    Objects,
    Scene,
    graded_parts,
    is_correct,
    read_scene,
    same_name,
)

Form = Literal["graded", "strict", "geneval"]
GREY = 0x99 / 255  # what stands around an object while its colour is judged
PHRASES = ("a photo of a {} {}", "a photo of a {}-colored {}", "a photo of a {} object")
LONGEST = 8  # crops of a longer side to short side are cut to their middle, which is all that CLIP sees of them


@dataclass
class Geneval(Checked):
    """The share of the scene that a prompt asks for which a detector sees in the image, in [0, 1].

    Ghosh et al. 2023 (GenEval, arXiv 2310.11513): objects surer than `threshold` (`counting_threshold` where numbers
    are asked for), at most `max_objects` of a class; colours by CLIP among ten, on the object cut out on grey; places
    by the centres of the boxes. The target is GenEval's metadata: `include` is a list of {class, count, color,
    position: [relation, number of an earlier entry]}, `exclude` of {class, count} that are too many, `tag` says
    "counting" (without it: some count is above 1). As rewards, Liu et al. 2025 (Flow-GRPO, arXiv 2505.05470), `form`:
      graded   mean over all that is asked: max(0, 1 - |found - count| / count) for each object; where that is exact,
               the share that has the colour, and 1 if all are where they should be; 0 for these two where it is not
      strict   1 if all of that is fulfilled exactly, else 0
      geneval  GenEval's verdict: at least so many, whose surest have the colour and place, fewer than each exclude

    flow_grpo's reward server differs. There the number of objects can cost any amount: 16 dogs for one are -14, here 0.
    An object in the wrong place gets both a 0 and a 1 there, 2/3 with its number, here 1/2. A wrong colour drops the
    place from the mean there, here the place is 0. `exclude` is ignored there; here it is a part where it names a class
    that is not asked for (of others the exact number is judged).

    The detector is transformers' Mask2Former of the same checkpoint family instead of mmdet's: objects on the edge of a
    threshold may differ. Any other model for object detection gives boxes without masks: then the colour is that of the
    box, with the surroundings of the object. A class that the detector does not know, and a scene that no image could
    show, are errors.
    """

    source: ClassVar[str] = "Ghosh et al. 2023 (GenEval), arXiv 2310.11513; Liu et al. 2025, arXiv 2505.05470"
    range: ClassVar[tuple[float, float]] = (0.0, 1.0)
    granularity: ClassVar[Granularity] = "sample"
    differentiable: ClassVar[bool] = False
    needs: ClassVar[frozenset[str]] = frozenset({"images", "target.include", "model"})
    batch_size: ClassVar[int | None] = 16
    # the model zoo of facebookresearch/Mask2Former; the card of the converted weights says "other"; CLIP has MIT
    license: ClassVar[License] = License("CC-BY-NC-4.0", commercial=False)

    form: Form = "graded"  # how the scene is scored; Flow-GRPO trains with graded
    detector: str = "facebook/mask2former-swin-small-coco-instance"  # hub name or folder of the detector
    clip: str = "openai/clip-vit-large-patch14"  # hub name, open_clip name or folder of the CLIP that judges colours
    clip_library: Library = "transformers"  # the library that loads the CLIP
    clip_pretrained: str | None = None  # open_clip only: tag or weights file
    # confidence above which an object counts; GenEval's, as the next three
    threshold: Annotated[float, Field(ge=0, lt=1)] = 0.3
    counting_threshold: Annotated[float, Field(ge=0, lt=1)] = 0.9  # the same where numbers are asked for
    max_objects: Annotated[int, Field(ge=1)] = 16  # objects of a class that are looked at, the surest ones
    margin: Annotated[float, Field(ge=0, lt=math.inf)] = 0.1  # share of both sizes that centres must be apart beyond
    _detector: Detector | None = field(default=None, init=False, repr=False, compare=False)
    _clip: Clip | None = field(default=None, init=False, repr=False, compare=False)
    _phrases: dict[str, Tensor] = field(default_factory=dict, init=False, repr=False, compare=False)  # by class

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.clip_pretrained is not None and self.clip_library != "open_clip":
            raise ValueError(f"clip_pretrained is open_clip's, got it with clip_library {self.clip_library!r}")

    def tiny(self, seed: int, folder: Path) -> Self:
        """Returns the same reward with a random Mask2Former and a random CLIP of small sizes, written to `folder`."""
        write_tiny_detector(folder / "detector", seed)
        write_tiny_clip(self.clip_library, folder / "clip", seed, embedding=16)
        return replace(self, detector=str(folder / "detector"), clip=str(folder / "clip"), clip_pretrained=None)

    def prepare(self, placement: Placement) -> None:
        """Loads the model; raises ConfigError where it cannot be loaded."""
        self._detector = load_detector(self.detector, placement.device)
        self._clip = load_clip(self.clip_library, self.clip, self.clip_pretrained, placement.device)
        self._phrases.clear()

    def check(self, prompt: Prompt) -> None:
        """Raises ValueError where the target is no scene, or, once prepared, one of unknown classes."""
        self._scene(prompt)

    def score(self, batch: RewardBatch) -> Tensor:
        """Returns the scores [B] float32.

        Raises ValueError as `check` does, and for images that hold NaN or infinity.
        """
        images = batch.outputs.images
        assert self._detector is not None, "prepare comes before score"
        assert images is not None, "scoring checks needs"
        check_finite(images)
        scenes = [self._scene(prompt) for prompt in batch.prompts]  # before the slow part
        images = images.detach().float().clamp(0, 1)
        detections = self._detector.find(images, min(self.threshold, self.counting_threshold))
        each = zip(images, detections, scenes, strict=True)
        return torch.tensor([self._judge(image, objects, scene) for image, objects, scene in each])

    def _judge(self, image: Tensor, detections: Objects, scene: Scene) -> float:
        least = self.counting_threshold if scene.is_counting else self.threshold
        objects = {
            name: [one for one in each if one.score > least][: self.max_objects] for name, each in detections.items()
        }
        colors: Colors = partial(self._colors, image)
        if self.form == "geneval":
            return float(is_correct(objects, scene, colors, self.margin))
        parts = graded_parts(objects, scene, colors, self.margin)
        return float(min(parts) == 1) if self.form == "strict" else sum(parts) / len(parts)

    def _scene(self, prompt: Prompt) -> Scene:
        scene = read_scene(prompt, self.max_objects)
        if self._detector is None:
            return scene  # what classes there are is known once it is loaded
        known = self._detector.classes
        for clause in (*scene.include, *scene.exclude):
            if same_name(clause.name) not in known:
                near = get_close_matches(same_name(clause.name[:100]), known, n=1)
                hint = f" (did you mean {known[near[0]]!r}?)" if near else f"; it knows {', '.join(known.values())}"
                raise ValueError(f"the detector {self.detector!r} knows no {clause.name!r}{hint}; for {prompt.text!r}")
        return scene

    def _colors(self, image: Tensor, chosen: Sequence[DetectedObject], name: str) -> list[str]:
        """Returns the colour of each object of a class in an image [3, H, W], among COLORS."""
        assert self._clip is not None
        if name not in self._phrases:
            texts = [phrase.format(color, name) for color in COLORS for phrase in PHRASES]
            self._phrases[name] = normalize(self._clip.texts(texts).unflatten(0, (len(COLORS), -1)).mean(1), dim=-1)
        with torch.no_grad():
            embeddings = torch.cat([self._clip.images(cut_out(image, one)[None]) for one in chosen])
        return [COLORS[place] for place in (embeddings @ self._phrases[name].T).argmax(1).tolist()]


def cut_out(image: Tensor, detected: DetectedObject) -> Tensor:
    """Returns an object [3, h, w] in its box, grey where its mask is not; sides as Pillow rounds them, at least 1."""
    if detected.mask is not None:
        image = torch.where(detected.mask.to(image.device), image, GREY)
    height, width = image.shape[1:]
    x1, y1, x2, y2 = (round(side) for side in detected.box)
    left, top = min(x1, width - 1), min(y1, height - 1)
    crop = image[:, top : max(y2, top + 1), left : max(x2, left + 1)]
    longest = LONGEST * min(crop.shape[1:])
    down, right = (max(0, side - longest) // 2 for side in crop.shape[1:])
    return crop[:, down : crop.shape[1] - down, right : crop.shape[2] - right]
