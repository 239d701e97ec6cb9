"""Functions of units, compiled: once for each kind of unit and shape of input, and never in a step.

Units of one kind call one function with their tensors as arguments, so all blocks of a model share
one compilation. It happens in the warm-up, which a worker goes through before others wait for it
(`warm_up`). Anywhere else a call that was not compiled there, say of a micro-batch of another
length, is computed as it is written: no step and no recovery ever waits for a compiler.
"""

import threading
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

BACKEND: Any = "inductor"
_RECOMPILE_LIMIT = 64
_COMPILING = threading.Lock()
"""Where workers are threads of one process, one compiles at a time."""


class Compiled:
    """A function of tensors, as it is written and compiled."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._plain, self._known = function, set[object]()
        self._compiled: Callable[..., Any] | None = None

    def __call__(self, *tensors: Tensor, compiling: bool) -> Any:
        """`compiling`: this call may take long."""
        key = (torch.is_grad_enabled(), *map(_signature, tensors))
        if key in self._known and self._compiled is not None:
            return self._compiled(*tensors)
        if not compiling:
            return self._plain(*tensors)
        with _COMPILING:
            made = self._compiled = self._compiled or _compile(self._plain)
            result = made(*tensors)
            self._known.add(key)
        return result


def _signature(tensor: Tensor) -> object:
    return tensor.shape, tensor.dtype, tensor.device, tensor.requires_grad


def _compile(function: Callable[..., Any]) -> Callable[..., Any]:
    import torch._dynamo
    import torch._inductor.config

    torch._dynamo.config.recompile_limit = _RECOMPILE_LIMIT
    # In this process: its children would have to be looked after when a worker is killed.
    torch._inductor.config.compile_threads = 1
    made: Callable[..., Any] = torch.compile(
        function, backend=BACKEND, dynamic=False, fullgraph=True
    )
    return made
