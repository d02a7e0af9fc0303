"""Dense targets: they teach the tower what lies where, and the language model which one is meant.

Without them a model of this size does not learn to look: it answers with the most frequent place. The heads that read
the targets off are thrown away.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mmrl.labs.screens.drawing import COLOURS, KINDS, SIZE
from mmrl.labs.screens.world import Element, Screen

CELL = 28  # pixels, the side of the square that an image token stands for
NUM_ACROSS = SIZE // CELL
NUM_NAMES = len(COLOURS) + len(KINDS) + len(COLOURS) * len(KINDS)


class TowerHeads(nn.Module):
    """Heads that read from image tokens [S, 16, H] the colours, kinds and pairs in a cell, and a box centred there."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.presence = nn.Linear(width, NUM_NAMES)
        self.box = nn.Linear(width, 4)

    def loss(self, tokens: Tensor, screens: Sequence[Screen]) -> Tensor:
        """Returns the cross entropy of the presence plus the distance of the boxes, as a scalar."""
        presence, boxes, is_centre = tower_targets(screens)
        seen = F.binary_cross_entropy_with_logits(self.presence(tokens), presence)
        distance = F.smooth_l1_loss(self.box(tokens), boxes, reduction="none", beta=0.05).mean(-1)
        return 3 * seen + 3 * (distance * is_centre).sum() / is_centre.sum()


def tower_targets(screens: Sequence[Screen]) -> tuple[Tensor, Tensor, Tensor]:
    """Returns presence [S, 16, 34], 0 or 1; boxes [S, 16, 4] in sides of the screen; is_centre [S, 16], 0 or 1."""
    presence = torch.zeros(len(screens), NUM_ACROSS**2, NUM_NAMES)
    boxes, is_centre = torch.zeros(len(screens), NUM_ACROSS**2, 4), torch.zeros(len(screens), NUM_ACROSS**2)
    for number, screen in enumerate(screens):
        for element in screen.elements:
            colour, kind = list(COLOURS).index(element.colour), KINDS.index(element.kind)
            pair = len(COLOURS) + len(KINDS) + colour * len(KINDS) + kind
            for cell in covered_cells(element):
                presence[number, cell, [colour, len(COLOURS) + kind, pair]] = 1
            boxes[number, centre_cell(element)] = torch.tensor(element.box) / SIZE
            is_centre[number, centre_cell(element)] = 1
    return presence, boxes, is_centre


def covered_cells(element: Element) -> list[int]:
    """Returns the numbers of the image tokens of whose cells the element covers at least 4x4 pixels."""
    x1, y1, x2, y2 = element.box
    corners = [(cell % NUM_ACROSS * CELL, cell // NUM_ACROSS * CELL) for cell in range(NUM_ACROSS**2)]
    return [
        cell
        for cell, (left, top) in enumerate(corners)
        if min(x2, left + CELL) - max(x1, left) >= 4 and min(y2, top + CELL) - max(y1, top) >= 4
    ]


def centre_cell(element: Element) -> int:
    """Returns the number of the image token in whose cell the element's centre lies."""
    x1, y1, x2, y2 = element.box
    return (y1 + y2) // 2 // CELL * NUM_ACROSS + (x1 + x2) // 2 // CELL


class PointerHeads(nn.Module):
    """Heads that read from the state before the answer the cell and the box of the element in question."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.query = nn.Linear(width, 64)
        self.key = nn.Linear(width, 64)
        self.box = nn.Linear(width, 4)

    def loss(self, hidden: Tensor, image_tokens: Tensor, elements: Sequence[Element]) -> Tensor:
        """Returns the cross entropy of the cell plus the distance of the box, as a scalar.

        Args:
            hidden: [B, H], of the last token of B questions.
            image_tokens: [B, 16, H], of their screens.
            elements: B, those that are meant.
        """
        cells = torch.tensor([centre_cell(element) for element in elements])
        boxes = torch.tensor([element.box for element in elements]) / SIZE
        hidden, keys = (F.layer_norm(states, states.shape[-1:]) for states in (hidden, image_tokens))
        logits = torch.einsum("bh,bch->bc", self.query(hidden), self.key(keys)) / self.query.out_features**0.5
        return F.cross_entropy(logits, cells) + 5 * F.smooth_l1_loss(self.box(hidden), boxes, beta=0.05)
