"""How the stock code turns a clean state to the latents of its VAE, found by trying, and the way back."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from mmrl.core.keys import normal

_BASE = 512  # of the digits by which elements of a state are told apart
_EXACT = 1e-4  # relative to the largest value: of latents from the map, against those of the stock code
_SEED = 31


class NoEncoding(Exception):
    """A pipeline for which no state of an image can be found; the message says why, as the end of a sentence."""


@dataclass(frozen=True)
class LatentMap:
    """From the elements of a clean state to the VAE's latents, both of one sample."""

    factor: Tensor  # [N] of the latents, flat
    shift: Tensor  # [N]
    source: Tensor  # [N] int64: the place in the flat state
    latents: tuple[int, ...]  # shape
    state: tuple[int, ...]  # shape

    @classmethod
    def of(cls, latents_of: Callable[[Tensor], Tensor], state: tuple[int, ...], device: torch.device) -> Self:
        """Returns the map of a function from states [1, ...] to latents [1, ...]. Raises NoEncoding where it is none.

        Zeros give the shift, ones the factor, and the two digits of each element's number tell which element it is.
        """
        count = torch.Size(state).numel()
        number = torch.arange(count, device=device)

        def seen(flat: Tensor) -> Tensor:
            return latents_of(flat.float().view(1, *state))[0].double()

        zeros = seen(torch.zeros(count, device=device))
        shift = zeros.flatten()
        factor = seen(torch.ones(count, device=device)).flatten() - shift
        if shift.numel() != count or not bool((factor.abs() > 1e-9).all()):
            raise NoEncoding(f"its latents {list(zeros.shape)} are not the elements of its state {list(state)}")
        high, low = (
            ((seen(digit).flatten() - shift) / factor).round()
            for digit in (number.div(_BASE, rounding_mode="floor"), number % _BASE)
        )
        source = (high * _BASE + low).long()
        if not torch.equal(source.sort().values, number):
            raise NoEncoding("it mixes the elements of its state before its VAE decodes them")
        made = cls(factor, shift, source, tuple(zeros.shape), state)
        probe = normal(_SEED, (1, *state)).to(device)
        wanted = latents_of(probe).double()
        off = (made.latents_of(probe).double() - wanted).abs().max() / wanted.abs().max()
        if not float(off) <= _EXACT:
            raise NoEncoding("it does more to its state than to scale and shift it before its VAE decodes it")
        return made

    def latents_of(self, states: Tensor) -> Tensor:
        """Returns the VAE's latents [n, ...] of clean states [n, ...]."""
        flat = states.flatten(1).double()[:, self.source] * self.factor + self.shift
        return flat.float().view(-1, *self.latents)

    def states_of(self, latents: Tensor) -> Tensor:
        """Returns the clean states [n, ...] of the VAE's latents [n, ...]: the inverse."""
        flat = (latents.flatten(1).double() - self.shift) / self.factor
        return torch.empty_like(flat).index_copy_(1, self.source, flat).float().view(-1, *self.state)
