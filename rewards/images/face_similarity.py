"""Does an image show the person of its prompt's picture? The likeness of the largest faces of both."""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, ClassVar, Self

import torch
from pydantic import Field
from torch import Tensor

from mmrl.core.checked import Checked
from mmrl.core.contracts import Granularity, License, Placement, RewardBatch
from mmrl.media.pictures import Picture, as_tensor

from ..base.networks.checkpoints import check_suffix
from ..base.networks.face_detector import FaceDetector, load_face_detector, write_tiny_face_detector
from ..base.networks.facenet import SIDE, InceptionResnetV1, load_facenet, write_tiny_facenet

NO_FACE = -1.0  # the lowest cosine
MOST_PIXELS = 1024  # of the longer side of a prompt's picture; a larger one is shrunk to it
Probability = Annotated[float, Field(gt=0, lt=1)]


@dataclass
class FaceSimilarity(Checked):
    """The cosine of the embeddings of two faces, in [-1, 1]; -1 where the image has no face.

    The identity reward of ID-Aligner (Chen et al. 2024, arXiv 2404.15449): a detector cuts out the face, a network for
    recognition says how alike it is to that of the prompt's first image. Which networks the paper takes could not be
    verified; here they are MTCNN (Zhang et al. 2016, arXiv 1604.02878) and FaceNet's Inception-ResNet v1 (Schroff et
    al. 2015, arXiv 1503.03832) as timesler/facenet-pytorch has both: the largest box, its pixels resized to 160 x 160
    (bilinear), values (x - 127.5) / 128. The gradient goes through the pixels of the face; the place of the box has
    none.

    Samples without a face are counted as the metric `without_face`, since the process started. Prompts' pictures with
    sides above 1024 pixels are shrunk; one without a face raises.
    """

    source: ClassVar[str] = "Chen et al. 2024 (ID-Aligner), arXiv 2404.15449; github.com/timesler/facenet-pytorch"
    range: ClassVar[tuple[float, float]] = (-1.0, 1.0)
    granularity: ClassVar[Granularity] = "sample"
    differentiable: ClassVar[bool] = True
    needs: ClassVar[frozenset[str]] = frozenset({"images", "prompt.image", "model"})
    batch_size: ClassVar[int | None] = 32
    license: ClassVar[License] = License("MIT", commercial=True)  # of the repository; the faces are of VGGFace2

    # Folder with pnet.pt, rnet.pt and onet.pt, here or owner/repository on the hub; the package facenet-pytorch has
    # them in its folder `data`
    detector: str
    # File of Inception-ResNet v1, here or owner/repository/file on the hub; 20180402-114759-vggface2.pt of the releases
    # of facenet-pytorch
    model: str
    # Of the detector's three networks, from which probability on there is a face; facenet-pytorch's
    thresholds: tuple[Probability, Probability, Probability] = (0.6, 0.7, 0.7)
    min_face: Annotated[int, Field(ge=12)] = 20  # side of the smallest face that is looked for, in pixels
    _detector: FaceDetector | None = field(default=None, init=False, repr=False, compare=False)
    _embedder: InceptionResnetV1 | None = field(default=None, init=False, repr=False, compare=False)
    _without_face: int = field(default=0, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_suffix("model", self.model)

    def tiny(self, seed: int, folder: Path) -> Self:
        """Returns the same reward on random networks, written to `folder`, the embedder with few channels."""
        write_tiny_face_detector(folder, seed)
        write_tiny_facenet(folder / "facenet.pt", seed)
        return replace(self, detector=str(folder), model=str(folder / "facenet.pt"), thresholds=(0.4, 0.4, 0.4))

    def prepare(self, placement: Placement) -> None:
        """Loads the networks; raises ConfigError where one is missing or does not fit."""
        self._detector = load_face_detector(self.detector, self.thresholds, self.min_face, placement.device)
        self._embedder = load_facenet(self.model, placement.device)

    def spent(self) -> dict[str, float]:
        """Returns how many samples had no face so far."""
        return {"without_face": float(self._without_face)}

    def score(self, batch: RewardBatch) -> Tensor:
        """Returns the scores [B] float32; with a gradient to the images where they require one.

        Raises ValueError for a prompt whose picture has no face.
        """
        assert batch.outputs.images is not None, "scoring checks needs"
        assert self._detector is not None and self._embedder is not None, "prepare comes before score"
        device = self._embedder.last_linear.weight.device
        with torch.autocast(device.type, enabled=False):
            with torch.no_grad():
                wanted = self._of_prompts(batch, self._embedder, device)  # [B, D]
            images = batch.outputs.images.to(device, torch.float32)
            faces = [self._face(image) for image in images]
            rows = [row for row, face in enumerate(faces) if face is not None]
            self._without_face += len(faces) - len(rows)
            scores = images.new_full((len(images),), NO_FACE)
            if rows:
                embeddings = self._embedder(torch.stack([face for face in faces if face is not None]))
                scores = scores.index_put((torch.tensor(rows, device=device),), (embeddings * wanted[rows]).sum(1))
        return scores.clamp(-1, 1)

    def _of_prompts(self, batch: RewardBatch, embedder: InceptionResnetV1, device: torch.device) -> Tensor:
        """Returns the embeddings [B, D] of the faces of the prompts, each picture seen once."""
        pictures = [prompt.media[0] for prompt in batch.prompts]
        faces = {id(picture): self._needed_face(picture, device) for picture in {id(p): p for p in pictures}.values()}
        found = dict(zip(faces, embedder(torch.stack(list(faces.values()))), strict=True))
        return torch.stack([found[id(picture)] for picture in pictures])

    def _needed_face(self, picture: Picture, device: torch.device) -> Tensor:
        from torchvision.transforms.v2.functional import InterpolationMode, resize

        image = as_tensor(picture.load()).to(device)
        if (longer := max(image.shape[-2:])) > MOST_PIXELS:
            size = [max(1, round(side * MOST_PIXELS / longer)) for side in image.shape[-2:]]
            image = resize(image, size, InterpolationMode.BILINEAR, antialias=True)
        face = self._face(image)
        if face is None:
            raise ValueError("no face is found in the prompt's picture")
        return face

    def _face(self, image: Tensor) -> Tensor | None:
        """Returns the largest face [3, 160, 160] in [-1, 1] of an image [3, H, W] in [0, 1]; None: there is none."""
        from torchvision.transforms.v2.functional import InterpolationMode, resize

        assert self._detector is not None, "prepare comes before score"
        boxes = self._detector.boxes(image.detach())
        height, width = image.shape[-2:]
        low = boxes[:, :2].clamp_min(0).long()
        high = torch.stack([boxes[:, 2].clamp_max(width), boxes[:, 3].clamp_max(height)], 1).long()
        seen = (high > low).all(1)
        if not bool(seen.any()):
            return None
        area = (boxes[:, 2:4] - boxes[:, :2]).prod(1)
        largest = int(torch.where(seen, area, -torch.inf).argmax())
        (x1, y1), (x2, y2) = low[largest].tolist(), high[largest].tolist()
        face: Tensor = resize(image[:, y1:y2, x1:x2], [SIDE, SIDE], InterpolationMode.BILINEAR, antialias=True)
        return (255 * face.clamp(0, 1) - 127.5) / 128
