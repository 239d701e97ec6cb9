"""A backward pass in two parts: the gradients that others wait for, then those of the weights.

Theory of operation. The first part (torch's own, of its pipelining) runs the backward pass for the
inputs alone. It also finds the nodes of the graph at which weights meet the way to the inputs, and
notes the gradients that arrive there. The second part begins at those nodes and goes on to the
weights. It is ours, since older versions of torch count twice where one such node of a weight lies
behind another.

A node that is a function of Python, such as a loss, is lost before torch 2.12 when nothing but its
Python object is left of it (pytorch issue 166577). So the graph of a unit that has one among these
nodes is kept until the second part.

`torch.distributed.pipelining` imports torch's compiler and all that it needs: a fifth of the time
in which a fork server gets warm. The one file that is used here imports nothing of that.
"""

import importlib
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

import torch.distributed
from torch import Tensor, nn
from torch.autograd import graph
from torch.autograd.function import BackwardCFunction
from torch.autograd.graph import GradientEdge, Node

if TYPE_CHECKING:
    from torch.distributed.pipelining._backward import stage_backward_input
else:
    _PACKAGE = f"{__name__}_torch"
    package = ModuleType(_PACKAGE, "The files of torch.distributed.pipelining, imported singly.")
    package.__path__ = [str(Path(torch.distributed.__file__).with_name("pipelining"))]
    sys.modules[_PACKAGE] = package
    stage_backward_input = importlib.import_module(f"{_PACKAGE}._backward").stage_backward_input

_Gradients = tuple[Tensor | None, ...]
_Start = tuple[Node, _Gradients]
"""A node at which weights meet the way to the inputs, and what arrived there."""


class WeightsLeft(NamedTuple):
    """What the first part leaves to the second."""

    groups: list[dict[str, Any]]
    """As torch gives them: `params`, the nodes of weights, `intermediates`, the nodes that they are
    reached from, and `grads`, what arrived there.
    """
    kept: Sequence[Tensor]
    """They own the graph, where that is needed."""


def backward_inputs(
    exits: Sequence[Tensor],
    seeds: Sequence[Tensor],
    entries: Sequence[Tensor],
    weights: Sequence[nn.Parameter],
) -> WeightsLeft:
    """Add to the gradients of the entries; `backward_weights` must follow."""
    aliases = [one.view_as(one) for one in exits]
    _, groups = stage_backward_input(list(exits), list(seeds), list(entries), iter(weights))
    nodes = (node for group in groups for node in group["intermediates"])
    has_function = any(isinstance(node, BackwardCFunction) for node in nodes)
    return WeightsLeft(groups, aliases if has_function else ())


def backward_weights(weights: Sequence[nn.Parameter], left: WeightsLeft) -> None:
    """Add to the gradients of the weights."""
    weight_of = {_accumulator(weight): weight for weight in weights if weight.requires_grad}
    while left.groups:  # one after the other: what a group holds is given back with it
        group = left.groups.pop(0)
        starts = list(zip(group["intermediates"], group.get("grads") or (), strict=False))
        nodes = list(group["params"])
        for node, found in zip(nodes, _gradients(starts, nodes), strict=False):
            _add(weight_of[node], found)


def _gradients(starts: Sequence[_Start], nodes: Sequence[Node]) -> _Gradients:
    """Of the weights behind these nodes."""
    given = [
        (GradientEdge(node, number), grad)
        for node, arrived in starts
        for number, grad in enumerate(arrived or ())
        if grad is not None
    ]
    if not given:
        return ()
    edges, grads = zip(*given, strict=True)
    targets = tuple(GradientEdge(node, 0) for node in nodes)
    with _nothing_added(starts):
        # As `torch.autograd.grad` does, which asks the nodes for their shapes before.
        found: _Gradients = graph._engine_run_backward(
            edges, grads, False, False, targets, False, accumulate_grad=False
        )
    return found


@contextmanager
def _nothing_added(starts: Sequence[_Start]) -> Iterator[None]:
    """Where one start lies behind another, all of its gradient has been noted: what arrives from
    the other one is in it.
    """
    with ExitStack() as hooks:
        for node, arrived in starts if len(starts) > 1 else ():
            handle = node.register_prehook(lambda _, arrived=arrived: arrived)
            hooks.callback(handle.remove)
        yield


def _accumulator(weight: Tensor) -> Node:
    """The node in which the gradient of a weight arrives; torch makes it with its first use."""
    view = weight.view_as(weight)
    assert view.grad_fn is not None
    node = view.grad_fn.next_functions[0][0]
    assert node is not None
    return node


def _add(weight: Tensor, found: Tensor | None) -> None:
    if found is not None:
        weight.grad = found if weight.grad is None else weight.grad.add_(found)
