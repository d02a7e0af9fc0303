"""The verifier of the lab: reads the two shapes off a picture and off its source, and compares them."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from mmrl.labs.edits.world import COLUMNS, FORMS, HALF, KINDS, RADII, VALUES, Edit, parse
from mmrl.labs.shapes.world import BACKGROUND, COLOURS, SIZE, coverage

MIN_AREA, MAX_AREA = 12, 120  # pixels: of what counts as a shape
MIN_LIFT = 0.25  # above the background, in one of red, green and blue
DISTANCES = (0.3, 0.8, 4.0, 4.0)  # of colour in RGB, of radius, x, y in pixels, where a graded score is 1 / e
TOLERANCES = (0.24, 0.5, 1.5, 1.5)  # up to which they are exact: no colour halfway between two is
UNEVENNESS = 0.1  # in RGB, up to which a shape has one colour
OVERLAP = 0.65  # with the right form, from which a form is exact


@dataclass(frozen=True)
class Reading:
    """What B pictures show; each field is [B, 2, ...], the upper half first. Nothing here knows what was asked."""

    colour: Tensor  # [B, 2, 3] mean RGB of the inside
    unevenness: Tensor  # [B, 2] root mean square distance of pixels from the line in RGB between background and colour
    radius: Tensor  # [B, 2] pixels: of the circle of the same area
    x: Tensor  # [B, 2] pixels: the centroid
    y: Tensor  # [B, 2]
    overlap: Tensor  # [B, 2, 4] IoU with the four forms of the same area and centroid
    has_shape: Tensor  # [B, 2] bool: there is something, and not too much


@dataclass(frozen=True)
class Verdict:
    """The verifier's verdict on B pictures, [B] each."""

    done: Tensor  # graded in [0, 1]: what was asked for
    kept: Tensor  # graded in [0, 1]: the product of the nine others of colour, radius, x, y and form of both shapes
    is_done: Tensor  # bool: exact
    is_kept: Tensor  # bool: all nine exact

    @property
    def graded(self) -> Tensor:
        """The mean [B] of `done` and `kept`."""
        return (self.done + self.kept) / 2

    @property
    def is_correct(self) -> Tensor:
        """[B] bool: what was asked for is exact, and so is all the rest."""
        return self.is_done & self.is_kept


def read(pictures: Tensor) -> Reading:
    """Reads the halves of pictures [B, 3, 32, 32] in [0, 1]."""
    halves = pictures.unflatten(2, (2, HALF)).transpose(1, 2).flatten(0, 1)  # [2B, 3, 16, 32]
    lift = (halves - BACKGROUND).abs().amax(dim=1)  # [2B, 16, 32]
    colour = _mean(halves, lift.pow(4))  # [2B, 3], mostly of the inside: edges mix with the background
    level = (colour - BACKGROUND).abs().amax(dim=1)  # [2B]
    mask = _steeper(lift / level.clamp(min=MIN_LIFT)[:, None, None])  # how much of a pixel is covered
    area = mask.sum(dim=(1, 2))  # [2B]
    grid = torch.arange(SIZE, dtype=torch.float32, device=pictures.device) + 0.5
    x = (mask.sum(1) * grid).sum(1) / area.clamp(min=1e-6)
    y = (mask.sum(2) * grid[:HALF]).sum(1) / area.clamp(min=1e-6)
    radius = (area.clamp(MIN_AREA, MAX_AREA) / math.pi).sqrt()
    templates = _steeper(coverage(x, y, radius)[:, :, :HALF])  # [2B, 4, 16, 32]
    drawn = mask[:, None]
    overlap = torch.minimum(drawn, templates).sum((2, 3)) / torch.maximum(drawn, templates).sum((2, 3))
    rise, direction = halves - BACKGROUND, F.normalize(colour - BACKGROUND, dim=1)[:, :, None, None]
    beside = rise - (rise * direction).sum(1, keepdim=True) * direction  # what no mix with the background explains
    unevenness = _mean(beside.square().sum(1, keepdim=True), mask)[:, 0].sqrt()
    has_shape = (level > MIN_LIFT) & (area > MIN_AREA) & (area < MAX_AREA)
    parts = (colour, unevenness, radius, x, y, overlap, has_shape)
    return Reading(*(part.unflatten(0, (-1, 2)) for part in parts))


def _steeper(covered: Tensor) -> Tensor:
    """Returns covered shares without the noise near 0 and 1; a half stays a half."""
    return ((covered - 0.1) / 0.8).clamp(0, 1)


def _mean(values: Tensor, weight: Tensor) -> Tensor:
    """Returns weighted means [N, C] over the pixels of values [N, C, H, W]; 0 where all weights [N, H, W] are 0."""
    share = weight / weight.sum((1, 2), keepdim=True).clamp(min=1e-12)
    return (values * share[:, None]).sum((2, 3))


def verify(pictures: Tensor, sources: Tensor, instructions: Sequence[str]) -> Verdict:
    """Compares B pictures with their sources: what was asked for has to change, all else has to stay.

    What should be seen is what is seen in the source, but for the attribute that was asked for. A half without a shape
    of sensible size (12 to 120 pixels) scores 0.

    Args:
        pictures: [B, 3, 32, 32] in [0, 1], RGB, any device; what lies outside [0, 1] is clamped.
        sources: [B, 3, 32, 32] in [0, 1], RGB, the same device.
        instructions: B instructions of the world.

    Raises:
        ValueError: an instruction does not parse, a source does not show one shape of its form, or pictures or sources
            have another shape or count or are not finite.
    """
    wanted = [parse(text) for text in instructions]
    seen, before = read(_checked(pictures, len(wanted), "pictures")), read(_checked(sources, len(wanted), "sources"))
    is_named = _named(before, wanted)  # [B, 2]
    kind = torch.tensor([KINDS.index(edit.kind) for edit in wanted], device=pictures.device)
    is_asked = is_named[..., None] & (kind[:, None, None] == torch.arange(5, device=pictures.device))  # [B, 2, 5]
    scores, holds = _compare(seen, _expected(before, wanted, is_asked))
    return Verdict(
        done=(scores * is_asked).sum((1, 2)),
        kept=torch.where(is_asked, 1.0, scores).flatten(1).prod(1),
        is_done=(holds & is_asked).any(2).any(1),
        is_kept=(holds | is_asked).flatten(1).all(1),
    )


def _checked(pictures: Tensor, count: int, name: str) -> Tensor:
    if pictures.shape != (count, 3, SIZE, SIZE):
        raise ValueError(
            f"{name} have shape {list(pictures.shape)}; {count} instructions need {[count, 3, SIZE, SIZE]}"
        )
    if not pictures.isfinite().all():
        raise ValueError(f"{name} hold NaN or infinity; allowed are numbers in [0, 1]")
    return pictures.float().clamp(0, 1)


def _named(before: Reading, wanted: Sequence[Edit]) -> Tensor:
    """Returns [B, 2]: whether a half of the source holds the form that the instruction names."""
    asked = torch.tensor([FORMS.index(edit.form) for edit in wanted], device=before.x.device)
    is_named = before.has_shape & (before.overlap.argmax(-1) == asked[:, None])
    if (wrong := (is_named.sum(1) != 1).nonzero()).numel():
        row = int(wrong[0])
        found = int(is_named[row].sum())
        raise ValueError(
            f"source {row} shows {found} shapes of the form {wanted[row].form!r}, which {wanted[row].text!r} is about; "
            "it has to show one"
        )
    return is_named


@dataclass(frozen=True)
class _Expected:
    """What the two halves should show, [B, 2, ...]."""

    colour: Tensor  # index into COLOURS
    places: Tensor  # [B, 2, 3]: radius, x, y in pixels
    form: Tensor  # index into FORMS


def _expected(before: Reading, wanted: Sequence[Edit], is_asked: Tensor) -> _Expected:
    """Returns what the source shows, but for what was asked for: another colour, or radius or x moved by the step.

    Steps are added to what is seen, so that the jitter stays and what the reader overestimates cancels.
    """
    device = before.x.device
    value = torch.tensor([VALUES[edit.kind].index(edit.value) for edit in wanted], device=device)[:, None]  # [B, 1]
    colour = _distances(before.colour).argmin(-1)
    radii, columns = (torch.tensor(list(table.values()), device=device) for table in (RADII, COLUMNS))
    size = (before.radius[..., None] - radii).abs().argmin(-1)
    column = (before.x[..., None] - columns).abs().argmin(-1)

    def step(table: Tensor, now: Tensor) -> Tensor:
        return table[value.clamp(max=len(table) - 1)] - table[now]

    return _Expected(
        colour=torch.where(is_asked[..., 0], value, colour),
        places=torch.stack(
            [
                before.radius + is_asked[..., 1] * step(radii, size),
                before.x + is_asked[..., 2] * step(columns, column),
                before.y,
            ],
            dim=-1,
        ),
        form=before.overlap.argmax(-1),
    )


def _distances(colour: Tensor) -> Tensor:
    """Returns the distances [..., 6] in RGB of colours [..., 3] from those of the world."""
    distances: Tensor = (colour[..., None, :] - torch.tensor(list(COLOURS.values()), device=colour.device)).norm(dim=-1)
    return distances


def _compare(seen: Reading, expected: _Expected) -> tuple[Tensor, Tensor]:
    """Returns graded scores [B, 2, 5] in [0, 1] of colour, radius, x, y and form, and which of them are exact."""
    distances = _distances(seen.colour)
    off_colour = distances.gather(-1, expected.colour[..., None])  # [B, 2, 1]
    off_place = (torch.stack([seen.radius, seen.x, seen.y], dim=-1) - expected.places).abs()
    off = torch.cat([off_colour, off_place], dim=-1)  # [B, 2, 4]
    overlap = seen.overlap.gather(-1, expected.form[..., None])
    of_form = torch.softmax(seen.overlap / 0.05, dim=-1).gather(-1, expected.form[..., None])
    scores = torch.cat([torch.exp(-(off / off.new_tensor(DISTANCES)).square()), of_form], dim=-1)
    is_form = (seen.overlap.argmax(-1, keepdim=True) == expected.form[..., None]) & (overlap > OVERLAP)
    holds = torch.cat([off < off.new_tensor(TOLERANCES), is_form], dim=-1)
    is_one_colour = (distances.argmin(-1) == expected.colour) & (seen.unevenness < UNEVENNESS)
    holds[..., 0] &= is_one_colour
    return scores * seen.has_shape[..., None], holds & seen.has_shape[..., None]
