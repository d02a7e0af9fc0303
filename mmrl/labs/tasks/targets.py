"""Dense targets of the tower: what lies where, as in the screens lab, and what is set."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mmrl.labs.screens.targets import NUM_ACROSS, PointerHeads, TowerHeads, covered_cells
from mmrl.labs.screens.world import Element
from mmrl.labs.tasks.pages import BACK, PAIRS, Look


class LookHeads(nn.Module):
    """Heads that read from image tokens [S, 16, H] the contents of a cell: elements, the way back, and set elements."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.elements = TowerHeads(width)
        self.state = nn.Linear(width, 1 + len(PAIRS))

    def loss(self, tokens: Tensor, looks: Sequence[Look]) -> Tensor:
        """Returns the loss of the elements plus the cross entropy of the state, as a scalar."""
        of_elements = self.elements.loss(tokens, [look.screen for look in looks])
        return of_elements + 3 * F.binary_cross_entropy_with_logits(self.state(tokens), state_targets(looks))


def state_targets(looks: Sequence[Look]) -> Tensor:
    """Returns [S, 16, 25] of 0 and 1: the cell holds the way back; it holds the element of a name, which is set.

    A cell holds an element that covers at least 4x4 pixels of it.
    """
    targets = torch.zeros(len(looks), NUM_ACROSS**2, 1 + len(PAIRS))
    for number, look in enumerate(looks):
        if look.has_back:
            targets[number, covered_cells(BACK), 0] = 1
        for marked in look.marked:
            element = look.screen.elements[marked]
            targets[number, covered_cells(element), 1 + PAIRS.index((element.colour, element.kind))] = 1
    return targets


class NameHeads(nn.Module):
    """Heads that read from the state at each name of a goal whether its element is here and not set, and where."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.is_open = nn.Linear(width, 1)
        self.where = PointerHeads(width)

    def loss(self, hidden: Tensor, image_tokens: Tensor, elements: Sequence[Element | None]) -> Tensor:
        """Returns the cross entropy of "here and not set" plus the pointer's loss where that is true, as a scalar.

        Args:
            hidden: [N, H], of the last token of N names.
            image_tokens: [N, 16, H], of the page that each is asked about.
            elements: N, what a name means; None where it is not on the page, or set.
        """
        hidden = F.layer_norm(hidden, hidden.shape[-1:])
        is_open = torch.tensor([element is not None for element in elements])
        seen = F.binary_cross_entropy_with_logits(self.is_open(hidden)[:, 0], is_open.float())
        found = [element for element in elements if element is not None]
        return 2 * seen + (self.where.loss(hidden[is_open], image_tokens[is_open], found) if found else 0)
