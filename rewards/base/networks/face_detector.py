"""MTCNN: the places of faces in an image, by three small networks with facenet-pytorch's names; and random ones."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.functional import interpolate

from .checkpoints import find_file, put_weights, read_weights
from .tiny import randomise

CELL, STRIDE = 12, 2  # side of what the first network sees, and the distance of its places, in pixels
FACTOR = 0.709  # of the sides of one level of the pyramid to those of the level before


class ProposalNet(nn.Module):
    """The first network: for each 12 x 12 pixels whether there is a face, and how far its box is off."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.prelu1 = nn.Conv2d(3, 10, 3), nn.PReLU(10)
        self.pool1 = nn.MaxPool2d(2, 2, ceil_mode=True)
        self.conv2, self.prelu2 = nn.Conv2d(10, 16, 3), nn.PReLU(16)
        self.conv3, self.prelu3 = nn.Conv2d(16, 32, 3), nn.PReLU(32)
        self.conv4_1, self.conv4_2 = nn.Conv2d(32, 2, 1), nn.Conv2d(32, 4, 1)

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the probabilities [B, h, w] and the offsets [B, 4, h, w] of images [B, 3, H, W] in [-1, 1]."""
        features = self.pool1(self.prelu1(self.conv1(images)))
        features = self.prelu3(self.conv3(self.prelu2(self.conv2(features))))
        return self.conv4_1(features).softmax(1)[:, 1], self.conv4_2(features)


class RefineNet(nn.Module):
    """The second network, for squares of 24 x 24 pixels."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.prelu1 = nn.Conv2d(3, 28, 3), nn.PReLU(28)
        self.pool1 = nn.MaxPool2d(3, 2, ceil_mode=True)
        self.conv2, self.prelu2 = nn.Conv2d(28, 48, 3), nn.PReLU(48)
        self.pool2 = nn.MaxPool2d(3, 2, ceil_mode=True)
        self.conv3, self.prelu3 = nn.Conv2d(48, 64, 2), nn.PReLU(64)
        self.dense4, self.prelu4 = nn.Linear(576, 128), nn.PReLU(128)
        self.dense5_1, self.dense5_2 = nn.Linear(128, 2), nn.Linear(128, 4)

    def forward(self, squares: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the probabilities [n] and the offsets [n, 4] of squares [n, 3, 24, 24] in [-1, 1]."""
        features = self.pool1(self.prelu1(self.conv1(squares)))
        features = self.prelu3(self.conv3(self.pool2(self.prelu2(self.conv2(features)))))
        features = self.prelu4(self.dense4(features.permute(0, 3, 2, 1).flatten(1)))
        return self.dense5_1(features).softmax(1)[:, 1], self.dense5_2(features)


class OutputNet(nn.Module):
    """The third network, for squares of 48 x 48 pixels; its five landmarks (`dense6_3`) are not used."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.prelu1 = nn.Conv2d(3, 32, 3), nn.PReLU(32)
        self.pool1 = nn.MaxPool2d(3, 2, ceil_mode=True)
        self.conv2, self.prelu2 = nn.Conv2d(32, 64, 3), nn.PReLU(64)
        self.pool2 = nn.MaxPool2d(3, 2, ceil_mode=True)
        self.conv3, self.prelu3 = nn.Conv2d(64, 64, 3), nn.PReLU(64)
        self.pool3 = nn.MaxPool2d(2, 2, ceil_mode=True)
        self.conv4, self.prelu4 = nn.Conv2d(64, 128, 2), nn.PReLU(128)
        self.dense5, self.prelu5 = nn.Linear(1152, 256), nn.PReLU(256)
        self.dense6_1, self.dense6_2, self.dense6_3 = nn.Linear(256, 2), nn.Linear(256, 4), nn.Linear(256, 10)

    def forward(self, squares: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the probabilities [n] and the offsets [n, 4] of squares [n, 3, 48, 48] in [-1, 1]."""
        features = self.pool1(self.prelu1(self.conv1(squares)))
        features = self.pool2(self.prelu2(self.conv2(features)))
        features = self.prelu4(self.conv4(self.pool3(self.prelu3(self.conv3(features)))))
        features = self.prelu5(self.dense5(features.permute(0, 3, 2, 1).flatten(1)))
        return self.dense6_1(features).softmax(1)[:, 1], self.dense6_2(features)


@dataclass(frozen=True)
class FaceDetector:
    """MTCNN (Zhang et al. 2016, arXiv 1604.02878) with the constants of timesler/facenet-pytorch, in float32."""

    proposal: ProposalNet
    refine: RefineNet
    output: OutputNet
    thresholds: tuple[float, float, float]  # of the probabilities of the three networks
    min_side: int  # of a face, in pixels

    @torch.no_grad()
    def boxes(self, image: Tensor) -> Tensor:
        """Returns the boxes [n, 5] of the faces of an image [3, H, W] in [0, 1]: x1, y1, x2, y2 and a probability.

        Proposals at all levels of a pyramid are merged (overlap 0.5 within a level, then 0.7), their squares are judged
        by the second network, merged (0.7), judged by the third, and merged by the share of the smaller box (0.7).
        """
        pixels = 255 * image[None].clamp(0, 1)
        boxes = self._proposals(pixels)
        boxes = _squares(_moved(boxes[:, :5], boxes[:, 5:], 0))
        for network, side, threshold in ((self.refine, 24, self.thresholds[1]), (self.output, 48, self.thresholds[2])):
            crops, boxes = _crops(pixels, boxes, side)
            if not len(boxes):
                break
            probability, offsets = network(crops)
            is_face = probability > threshold
            boxes = torch.cat([boxes[is_face, :4], probability[is_face, None]], 1)
            if network is self.refine:
                best = merged(boxes, 0.7)
                boxes = _squares(_moved(boxes[best], offsets[is_face][best], 1))
            else:
                boxes = _moved(boxes, offsets[is_face], 1)
                boxes = boxes[merged(boxes, 0.7, of_smaller=True)]
        return boxes

    def _proposals(self, pixels: Tensor) -> Tensor:
        """Returns the boxes [n, 9] of the first network: a box, its probability, and four offsets."""
        height, width = pixels.shape[-2:]
        scale, found = CELL / self.min_side, [pixels.new_zeros(0, 9)]
        while min(height, width) * scale >= CELL:
            level = interpolate(pixels, (int(height * scale + 1), int(width * scale + 1)), mode="area")
            probability, offsets = self.proposal(_centred(level))
            place = (probability[0] >= self.thresholds[0]).nonzero()  # [n, 2]: row and column
            corner = STRIDE * place.flip(1) + 1
            boxes = torch.cat([(corner / scale).floor(), ((corner + CELL - 1) / scale).floor()], 1)
            chosen = place.unbind(1)
            boxes = torch.cat([boxes, probability[0][chosen][:, None], offsets[0].permute(1, 2, 0)[chosen]], 1)
            found.append(boxes[merged(boxes, 0.5)])
            scale *= FACTOR
        boxes = torch.cat(found)
        return boxes[merged(boxes, 0.7)]


def merged(boxes: Tensor, overlap: float, *, of_smaller: bool = False) -> Tensor:
    """Returns the rows of boxes [n, 5 or more] without those that overlap a surer one by more than `overlap`.

    The overlap is that of intersection and union, or with `of_smaller` the intersection over the smaller of both, where
    sides count both ends.
    """
    if not of_smaller:
        from torchvision.ops import nms

        rows: Tensor = nms(boxes[:, :4].contiguous(), boxes[:, 4].contiguous(), overlap)
        return rows
    left, chosen = boxes[:, 4].argsort(descending=True, stable=True), []
    area = (boxes[:, 2] - boxes[:, 0] + 1) * (boxes[:, 3] - boxes[:, 1] + 1)
    while len(left):
        best, left = left[0], left[1:]
        chosen.append(best)
        sides = boxes[left, 2:4].minimum(boxes[best, 2:4]) - boxes[left, :2].maximum(boxes[best, :2]) + 1
        shared = sides.clamp_min(0).prod(1) / area[left].minimum(area[best])
        left = left[shared <= overlap]
    return torch.stack(chosen) if chosen else left


def _centred(pixels: Tensor) -> Tensor:
    return (pixels - 127.5) / 128


def _moved(boxes: Tensor, offsets: Tensor, both_ends: int) -> Tensor:
    """Returns boxes [n, 5] moved by offsets [n, 4] in units of their sides, which count both ends or not."""
    sides = boxes[:, 2:4] - boxes[:, :2] + both_ends
    return torch.cat([boxes[:, :4] + offsets * sides.repeat(1, 2), boxes[:, 4:]], 1)


def _squares(boxes: Tensor) -> Tensor:
    """Returns boxes [n, 5] as squares of their longer side around their middle."""
    sides = boxes[:, 2:4] - boxes[:, :2]
    longer = sides.amax(1, keepdim=True)
    corner = boxes[:, :2] + sides / 2 - longer / 2
    return torch.cat([corner, corner + longer, boxes[:, 4:]], 1)


def _crops(pixels: Tensor, boxes: Tensor, side: int) -> tuple[Tensor, Tensor]:
    """Returns the crops [m, 3, side, side] of pixels [1, 3, H, W] in the boxes, and the m boxes that have pixels."""
    height, width = pixels.shape[-2:]
    ends = boxes[:, :4].trunc().long()  # pixels are counted from 1, both ends included
    x1, y1, x2, y2 = (ends[:, n].clamp(*limit) for n, limit in enumerate(((1,), (1,), (None, width), (None, height))))
    has_pixels = (x2 > x1 - 1) & (y2 > y1 - 1)
    places = torch.stack([x1, y1, x2, y2], 1)[has_pixels].tolist()
    crops = [interpolate(pixels[..., b - 1 : d, a - 1 : c], (side, side), mode="area") for a, b, c, d in places]
    return _centred(torch.cat(crops)) if crops else pixels.new_zeros(0, 3, side, side), boxes[has_pixels]


FILES = ("pnet.pt", "rnet.pt", "onet.pt")


def load_face_detector(
    folder: str, thresholds: tuple[float, float, float], min_side: int, device: torch.device
) -> FaceDetector:
    """Loads the networks from `FILES` of a folder, here or on the hub; raises ConfigError where one is missing."""
    networks = ProposalNet(), RefineNet(), OutputNet()
    for name, network in zip(FILES, networks, strict=True):
        file = find_file("face detector", f"{folder}/{name}")
        put_weights("face detector", file, network, read_weights("face detector", file))
        network.to(device)
    return FaceDetector(*networks, thresholds, min_side)


def write_tiny_face_detector(folder: Path, seed: int, bias: Sequence[float] = (1.0, 1.5, 1.5)) -> None:
    """Writes random networks; `bias`: how much each of them leans to faces, in logits."""
    folder.mkdir(parents=True, exist_ok=True)
    generator = torch.Generator().manual_seed(seed)
    with torch.random.fork_rng(devices=[]):  # the constructors draw weights that are drawn anew
        networks = ProposalNet(), RefineNet(), OutputNet()
    proposal, refine, output = networks
    heads = (proposal.conv4_1, proposal.conv4_2), (refine.dense5_1, refine.dense5_2), (output.dense6_1, output.dense6_2)
    for name, network, (judges, moves), leaning in zip(FILES, networks, heads, bias, strict=True):
        randomise(network, generator)
        with torch.no_grad():
            judgement = dict(judges.named_parameters())["bias"]
            judgement[1] += leaning
            for parameter in moves.parameters():  # else boxes leave the image
                parameter.mul_(0.1)
        torch.save(network.state_dict(), folder / name)
