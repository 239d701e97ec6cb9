"""What a rank of a training loop holds: the boxes of tensors, and the rest.

A tensor has a name that is the same whatever the number of ranks: `model.layers.0.weight`. Of a
DTensor the rank holds a box of the whole; parameters of a DistributedDataParallel module, and the
optimizer's state for them, are held whole by all ranks. Everything else belongs to its rank alone,
which stands in its name. What is no tensor is pickled into one more entry of the rank.
"""

import pickle
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

from holdfast.errors import HoldfastError
from holdfast.plan.units import Box
from holdfast.snapshot.layout import round_up
from holdfast.snapshot.loop.trees import (
    Mark,
    fill,
    flatten,
    is_all_marks,
    local_part,
    marks,
    skeleton,
)
from holdfast.snapshot.loop_shares import HeldBox, rank_name

REST = "rest"
"""The entry with everything that is no tensor."""

_REST_ROOM = 64 * 2**10
"""It may grow by this much while the loop runs."""


class Stateful(Protocol):
    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state_dict: dict[str, Any]) -> Any: ...


@dataclass(slots=True)
class HeldTensor:
    """One tensor of a state dict, as this rank has it."""

    path: str
    tensor: Tensor
    spec: HeldBox
    local: Tensor
    """The part of it that is on this rank."""
    is_steady: bool
    """Nothing but an update changes it."""
    is_own: bool
    """It belongs to this rank alone; its name has the rank's number."""


_Places = tuple[tuple[int, tuple[int, ...]], ...]
"""Address and shape of every tensor of a module."""


@dataclass(slots=True)
class _ModuleTensors:
    """What a module's state dict came to."""

    places: _Places
    rest: Any
    tensors: list[HeldTensor]


class LoopState:
    def __init__(self, objects: Mapping[str, Stateful], rank: int) -> None:
        self._rank = rank
        self._objects: dict[str, Any] = {}
        self._shared: list[nn.Parameter] = []
        """Parameters that all ranks hold."""
        for name, found in objects.items():
            if isinstance(found, nn.parallel.DistributedDataParallel):
                self._shared += found.parameters()
                found = found.module
            self._objects[name] = found
        self._modules: dict[str, _ModuleTensors] = {}
        self.rest_bytes = 0
        """Of the rest's entry, once it is fixed; 0: as it comes."""

    @property
    def optimizers(self) -> list[torch.optim.Optimizer]:
        return [one for one in self._objects.values() if isinstance(one, torch.optim.Optimizer)]

    def is_of_optimizer(self, path: str) -> bool:
        return isinstance(self._objects.get(path.partition("/")[0]), torch.optim.Optimizer)

    def gather(self) -> list[HeldTensor]:
        """Everything, the rest as the last."""
        held: list[HeldTensor] = []
        rest: dict[str, Any] = {}
        shared = {parameter.data_ptr() for parameter in self._shared}
        for name, found in self._objects.items():
            rest[name], tensors = self._take(name, found, shared)
            held += tensors
        packed = self._pack(rest)
        held.append(self._hold(REST, packed, False, False))
        return held

    def _take(self, name: str, found: Any, shared: set[int]) -> tuple[Any, list[HeldTensor]]:
        """The rest and the tensors of one object. The state dict of a module takes a while to be
        made, and is the same as long as its tensors are where they were and all there is of it.
        """
        places = _places(found) if isinstance(found, nn.Module) else ()
        known = self._modules.get(name)
        if known is not None and known.places == places:
            return known.rest, known.tensors
        state = found.state_dict()
        rest = skeleton(state, name)
        steady, common = _addresses(found, shared)
        tensors = []
        for path, tensor in flatten(state, name):
            address = local_part(tensor).data_ptr()
            tensors.append(self._hold(path, tensor, address in steady, address in common))
        known_at = {address for address, _ in places}
        if is_all_marks(rest) and all(one.local.data_ptr() in known_at for one in tensors):
            self._modules[name] = _ModuleTensors(places, rest, tensors)
        return rest, tensors

    def _hold(self, path: str, tensor: Tensor, is_steady: bool, is_common: bool) -> HeldTensor:
        local, name = local_part(tensor), path.replace("/", ".")
        dtype = str(local.dtype).removeprefix("torch.")
        is_own = not isinstance(tensor, DTensor) and not is_common
        if isinstance(tensor, DTensor):
            box = _box(name, tensor)
        else:
            box = tuple((0, size) for size in local.shape)
        if is_own:
            name = rank_name(self._rank, name)
        spec = HeldBox(name, tuple(tensor.shape), dtype, box)
        return HeldTensor(path, tensor, spec, local, is_steady, is_own)

    def _pack(self, rest: dict[str, Any]) -> Tensor:
        """Length, bytes, and room to grow; rounded: a run that goes on has the same layout."""
        data = pickle.dumps(rest)
        data = len(data).to_bytes(8, "little") + data
        size = self.rest_bytes or round_up(len(data) + _REST_ROOM, 2 * _REST_ROOM)
        if len(data) > size:
            raise HoldfastError(
                f"what is no tensor takes {len(data)} bytes, {size} were set aside at the start"
            )
        return torch.frombuffer(bytearray(data.ljust(size, b"\0")), dtype=torch.uint8)

    # Loading.

    def prime(self) -> None:
        """Have optimizers make their state, by a step that changes nothing that is not loaded."""
        for optimizer in self.optimizers:
            if not optimizer.state:
                _prime(optimizer)

    def unprime(self) -> None:
        for optimizer in self.optimizers:
            optimizer.state.clear()

    def saved_tensors(self, rest: Mapping[str, Any]) -> list[Mark]:
        """All that was saved of the objects."""
        return [mark for name in self._objects for mark in marks(rest.get(name))]

    @torch.no_grad()
    def apply(self, rest: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
        """The objects take up the saved rest, with these tensors, by path."""
        for name, found in self._objects.items():
            if name not in rest:
                raise HoldfastError(f"nothing was saved of {name!r}, only of {', '.join(rest)}")
            found.load_state_dict(fill(rest[name], tensors))


def unpack_rest(raw: Tensor) -> dict[str, Any]:
    size = int.from_bytes(raw[:8].numpy().tobytes(), "little")
    rest: dict[str, Any] = pickle.loads(raw[8 : 8 + size].numpy().tobytes())
    return rest


def _places(module: nn.Module) -> _Places:
    found = map(local_part, (*module.parameters(), *module.buffers()))
    return tuple((tensor.data_ptr(), tuple(tensor.shape)) for tensor in found)


def _addresses(found: object, shared: set[int]) -> tuple[set[int], set[int]]:
    """Of the tensors that only an update changes; of those among them that all ranks hold."""
    steady: set[int] = set()
    common: set[int] = set()
    if isinstance(found, nn.Module):
        steady = {local_part(parameter).data_ptr() for parameter in found.parameters()}
        common = steady & shared
    elif isinstance(found, torch.optim.Optimizer):
        for parameter, state in found.state.items():
            mine = {local_part(t).data_ptr() for t in state.values() if isinstance(t, Tensor)}
            steady |= mine
            if parameter.data_ptr() in shared:
                common |= mine
    return steady, common


def _box(name: str, tensor: DTensor) -> Box:
    if any(type(placement) not in (Shard, Replicate) for placement in tensor.placements):
        raise HoldfastError(
            f"{name} is placed as {tensor.placements}: only Shard and Replicate can be kept"
        )
    shape, offsets = _local_box(tuple(tensor.shape), tensor.device_mesh, tensor.placements)
    local = tuple(local_part(tensor).shape)
    if tuple(shape) != local:
        raise HoldfastError(f"{name} has shape {local} on this rank, {tuple(shape)} was expected")
    return tuple((low, low + size) for low, size in zip(offsets, shape, strict=True))


@lru_cache(maxsize=10_000)
def _local_box(
    shape: tuple[int, ...], mesh: DeviceMesh, placements: tuple[Placement, ...]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Asked for every tensor of an optimizer at every step, and always the same."""
    found, offsets = compute_local_shape_and_global_offset(shape, mesh, placements)
    return tuple(found), tuple(offsets)


def _prime(optimizer: torch.optim.Optimizer) -> None:
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    optimizer.zero_grad()
