"""The Frechet distance of a set of embeddings to a reference, and what each member of the set changes in it.

Letters of shapes: n embeddings of the set, D numbers of each.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Self

import numpy as np
import torch
from torch import Tensor

from mmrl.core.contracts import ConfigError

# full: of normal distributions; diagonal: as if numbers of an embedding were independent; none: of the means alone
Covariance = Literal["full", "diagonal", "none"]
LARGEST_ASYMMETRY = 1e-3  # of a covariance that is read, over its largest entry


@dataclass(frozen=True)
class Moments:
    """The mean and the covariance of a reference set, float64."""

    mean: Tensor  # [D]
    covariance: Tensor  # [D, D]

    @classmethod
    def of(cls, embeddings: Tensor) -> Self:
        """Returns those of embeddings [n, D], the covariance over n - 1; n is at least 2."""
        mean = embeddings.double().mean(0)
        centred = embeddings.double() - mean
        return cls(mean, centred.T @ centred / (len(embeddings) - 1))

    @classmethod
    def read(cls, file: Path) -> Self:
        """Returns those of a file .npz with the arrays `mu` [D] and `sigma` [D, D], as pytorch-fid saves them.

        Raises ConfigError for a file without them, or with numbers that are no mean and covariance.
        """
        try:
            with np.load(file, allow_pickle=False) as arrays:
                mean, covariance = (torch.from_numpy(np.asarray(arrays[name], dtype=np.float64)) for name in _NAMES)
        except (OSError, ValueError, KeyError) as error:
            raise ConfigError(
                f"cannot read statistics from {file.name}: {error}; it must be a .npz with mu and sigma"
            ) from error
        if mean.dim() != 1 or covariance.shape != (len(mean), len(mean)):
            raise ConfigError(
                f"{file.name}: mu must be [D] and sigma [D, D], got {tuple(mean.shape)} and {tuple(covariance.shape)}"
            )
        largest = float(covariance.abs().max())
        is_whole = bool(mean.isfinite().all() and covariance.isfinite().all())
        if not is_whole or float((covariance - covariance.T).abs().max()) > LARGEST_ASYMMETRY * largest:
            raise ConfigError(f"{file.name}: mu and sigma must be finite, and sigma symmetric")
        return cls(mean, (covariance + covariance.T) / 2)

    def save(self, file: Path) -> None:
        """Writes the file that `read` reads."""
        np.savez(file, mu=self.mean.numpy(), sigma=self.covariance.numpy())


_NAMES = ("mu", "sigma")


class FrechetSet:
    """A set of embeddings [n, D] beside a reference; `distance` is that of any of its subsets.

    Of the matrices only [n, n] parts are needed. With the set centred in X [n, D], S = X^T X / (n - 1), and with R the
    reference's covariance, S R has the same eigenvalues other than 0 as X R X^T / (n - 1), which is symmetric and has
    no eigenvalue below 0. The trace of the root of S R is the sum of their roots; no root of a [D, D] matrix, which is
    not to be had precisely where n < D, is taken.
    """

    def __init__(self, embeddings: Tensor, reference: Moments, covariance: Covariance) -> None:
        self._embeddings = embeddings.double()  # [n, D]
        self._reference, self._covariance = reference, covariance
        self._spread = reference.covariance.diagonal()  # [D]
        if covariance == "full":
            near = self._embeddings - self._embeddings.mean(0)  # what is far from 0 would round in the products
            self._products = near @ near.T  # [n, n]
            self._under_reference = near @ reference.covariance @ near.T  # [n, n]

    def distance(self, rows: Tensor) -> Tensor:
        """Returns the distance of the rows [m] int64 of the set, m at least 1; one embedding has a covariance of 0."""
        chosen, count = self._embeddings[rows], len(rows)
        away = (chosen.mean(0) - self._reference.mean).square().sum()
        if self._covariance == "none":
            return away
        if self._covariance == "diagonal":
            spread = chosen.var(0) if count > 1 else torch.zeros_like(self._spread)
            return away + (spread.sqrt() - self._spread.clamp_min(0).sqrt()).square().sum()
        if count == 1:
            return away + self._spread.sum()
        products, under = (centred(one[rows][:, rows]) / (count - 1) for one in self._kernels())
        roots: Tensor = torch.linalg.eigvalsh(under).clamp_min(0).sqrt()
        return away + products.trace() + self._spread.sum() - 2 * roots.sum()

    def _kernels(self) -> tuple[Tensor, Tensor]:
        return self._products, self._under_reference


def centred(kernel: Tensor) -> Tensor:
    """Returns X M X^T [n, n] of rows X less their mean, from that of the rows as they are."""
    by_row = kernel.mean(0, keepdim=True)
    return kernel - by_row - by_row.T + kernel.mean()


def leave_one_out(members: Sequence[Tensor], reference: Moments, covariance: Covariance) -> Tensor:
    """Returns for each member, of one or several embeddings [n, D], how much farther the set is without it: [members].

    The distance of all other members' embeddings less that of all. There are at least two members.
    """
    whole = FrechetSet(torch.cat(list(members)), reference, covariance)
    owner = torch.arange(len(members)).repeat_interleave(torch.tensor([len(one) for one in members]))
    total = whole.distance(torch.arange(len(owner)))
    return torch.stack([whole.distance((owner != place).nonzero()[:, 0]) - total for place in range(len(members))])
