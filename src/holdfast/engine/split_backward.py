"""torch's backward pass in two parts (inputs, then weights), without the package it is in.

`torch.distributed.pipelining` imports torch's compiler and all that it needs: a fifth of the time
in which a fork server gets warm. The one file that is used here imports nothing of that.
"""

import importlib
import sys
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import torch.distributed

__all__ = ["stage_backward_input", "stage_backward_weight"]

if TYPE_CHECKING:
    from torch.distributed.pipelining._backward import stage_backward_input, stage_backward_weight
else:
    _PACKAGE = f"{__name__}_torch"
    package = ModuleType(_PACKAGE, "The files of torch.distributed.pipelining, imported singly.")
    package.__path__ = [str(Path(torch.distributed.__file__).with_name("pipelining"))]
    sys.modules[_PACKAGE] = package
    _backward = importlib.import_module(f"{_PACKAGE}._backward")
    stage_backward_input = _backward.stage_backward_input
    stage_backward_weight = _backward.stage_backward_weight
