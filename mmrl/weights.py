"""The trained tensors of a policy and their copies: old, reference, averaged."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager

import torch
from torch import Tensor, nn

from mmrl.data import WeightsName


class Weights:
    """Puts copies of the trained tensors in place of them: `with weights("old"): ...`, nestable, restored on error.

    Only what is trained is copied (a LoRA's own tensors, or the full network). The trained tensors keep their storage,
    so an optimizer never notices.
    """

    def __init__(
        self,
        trained: Mapping[str, nn.Parameter],
        *,
        adapter_off: Callable[[], AbstractContextManager[None]] | None = None,
        rate_scale: Mapping[str, float] | None = None,
    ) -> None:
        """`trained`: parameters by name. `adapter_off`: how an adapter is switched off, which gives the reference.

        `rate_scale`: by parameter name, what its learning rate is multiplied by, where that is not 1.
        """
        self.parameters = dict(trained)
        self.rate_scale = {name: (rate_scale or {}).get(name, 1.0) for name in self.parameters}
        self._storage = {name: parameter.data for name, parameter in trained.items()}
        self._copies: dict[WeightsName, dict[str, Tensor]] = {}
        self._adapter_off = adapter_off
        self._placed: WeightsName = "trained"

    def keep(self, which: WeightsName) -> None:
        """Makes the copy `which`, equal to the trained tensors now; does nothing where it is there or not needed."""
        if which == "trained" or which in self._copies or (which == "reference" and self._adapter_off):
            return
        self._copies[which] = {name: tensor.detach().clone() for name, tensor in self._storage.items()}

    def start_from(self, tensors: Mapping[str, Tensor]) -> None:
        """Loads the trained tensors of an earlier run as the start of this one, before any copy is made.

        The reference is then a copy of them, as in a full training: an adapter switched off would be the model from
        before that run. Raises ValueError when names or shapes differ.
        """
        assert not self._copies, "copies of the weights from before the start"
        self.load("trained", tensors)
        self._adapter_off = None

    def has(self, which: WeightsName) -> bool:
        """Whether `with weights(which)` would work."""
        return which == "trained" or which in self._copies or (which == "reference" and self._adapter_off is not None)

    @torch.no_grad()
    def average(self, which: WeightsName, decay: float) -> None:
        """copy <- decay * copy + (1 - decay) * trained, in float32; decay 0 copies exactly, decay 1 freezes."""
        copies = self._copies[which]
        torch._foreach_lerp_(list(copies.values()), [self._storage[name] for name in copies], 1 - decay)

    @contextmanager
    def __call__(self, which: WeightsName) -> Iterator[None]:
        """Puts the named tensors in place inside the block."""
        if which == "reference" and which not in self._copies and self._adapter_off is not None:
            with self._adapter_off():
                yield
            return
        before = self._placed
        self._place(which)
        try:
            yield
        finally:
            self._place(before)

    def tensors(self, which: WeightsName) -> dict[str, Tensor]:
        """The tensors themselves, not copies, by name."""
        return dict(self._storage if which == "trained" else self._copies[which])

    @property
    def kept(self) -> list[WeightsName]:
        """The copies that are there."""
        return sorted(self._copies)

    @torch.no_grad()
    def load(self, which: WeightsName, tensors: Mapping[str, Tensor]) -> None:
        """Overwrites the named tensors in place. Raises ValueError when names or shapes differ."""
        self.keep(which)
        mine = self.tensors(which)
        if wrong := sorted(set(mine) ^ set(tensors)):
            raise ValueError(f"{which} weights do not fit the model: {len(wrong)} names differ, such as {wrong[0]!r}")
        for name, tensor in mine.items():
            if tensor.shape != tensors[name].shape:
                raise ValueError(
                    f"{which} weights do not fit the model: {name!r} has shape {list(tensors[name].shape)}, "
                    f"needed is {list(tensor.shape)}"
                )
            tensor.copy_(tensors[name])

    def _place(self, which: WeightsName) -> None:
        if which == self._placed:
            return
        tensors = self.tensors(which)
        for name, parameter in self.parameters.items():
            parameter.data = tensors[name]
        self._placed = which
