"""Lets torchvision that was built for CUDA be imported beside a torch without it.

It then lacks two operators, which it expects to be declared; nothing here calls them. Runs in the environment of vLLM.
"""

import importlib.abc
import sys
from typing import Any

_DECLARED: list[Any] = []  # kept, since the operators go with the library


class _Finder(importlib.abc.MetaPathFinder):
    """Declares the operators when the module that registers their shapes is about to be imported."""

    def find_spec(self, fullname: str, path: object, target: object = None) -> None:
        if fullname != "torchvision._meta_registrations":
            return
        sys.meta_path.remove(self)
        import torch
        import torchvision.extension

        if not torchvision.extension._has_ops():
            _DECLARED.append(torch.library.Library("torchvision", "FRAGMENT"))
            for operator in ("nms", "qnms"):
                _DECLARED[0].define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")


sys.meta_path.insert(0, _Finder())
