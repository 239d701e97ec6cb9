"""Reading DCP directories: any box of any tensor, whatever wrote them.

Our directories hold parameters under the tensor's global name, moments under
`optimizer.state.<name>.exp_avg` and so on: the keys of torchtitan, and of torch's own
`get_optimizer_state_dict`. Directories of plain loops that save `{"model": ..., "optimizer": ...}`
are read as well.
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from io import BytesIO
from pickle import UnpicklingError
from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import LoadItemType, LoadPlan, LoadPlanner, ReadItem
from torch.distributed.checkpoint.planner_helpers import create_read_items_for_chunk_list

from holdfast.errors import HoldfastError
from holdfast.snapshot.disk.checkpoints import Found
from holdfast.snapshot.load.assemble import Want

PARAMETER_KEYS = ("{tensor}", "model.{tensor}", "app.model.{tensor}")
STATE_KEYS = (
    "optimizer.state.{tensor}.{kind}",
    "optim.state.{tensor}.{kind}",
    "state.{tensor}.{kind}",
    "app.optim.state.{tensor}.{kind}",
)


def storage_path(tensor: str, kind: str) -> tuple[str, ...]:
    """Where we write it; joined by dots it is the key."""
    return (tensor,) if kind == "parameter" else ("optimizer", "state", tensor, kind)


class Checkpoint:
    """A directory as a source of boxes. (It is a Storage of `assemble`.)"""

    def __init__(self, found: Found) -> None:
        self.name, self.version = found.path, found.version
        self._reader = FileSystemReader(found.path)
        try:
            self.metadata: Metadata = self._reader.read_metadata()
        except (OSError, UnpicklingError, EOFError, AttributeError, ImportError) as error:
            raise HoldfastError(f"{found.path}: the contents cannot be read: {error}") from None
        self._reader.set_up_storage_reader(self.metadata, is_coordinator=True)

    def key(self, tensor: str, kind: str) -> str:
        """The key a tensor's state has here."""
        keys = PARAMETER_KEYS if kind == "parameter" else STATE_KEYS
        known = self.metadata.state_dict_metadata
        for pattern in keys:
            key = pattern.format(tensor=tensor, kind=kind)
            if isinstance(known.get(key), TensorStorageMetadata):
                return key
        tried = ", ".join(repr(p.format(tensor=tensor, kind=kind)) for p in keys)
        raise HoldfastError(f"{self.name} has no {kind} of {tensor}: none of {tried}")

    def describe(self, tensor: str) -> tuple[tuple[int, ...], str]:
        """Shape and dtype of a parameter, as it was saved."""
        known = self.metadata.state_dict_metadata[self.key(tensor, "parameter")]
        assert isinstance(known, TensorStorageMetadata)
        return tuple(known.size), str(known.properties.dtype).removeprefix("torch.")

    def read(self, wants: Sequence[Want]) -> None:
        """Fill all of them, or HoldfastError."""
        planner = _BoxPlanner()
        items = [item for number, want in enumerate(wants) for item in self._items(number, want)]
        planner.targets = [want.out for want in wants]
        self._read(LoadPlan(items), planner)

    def _items(self, number: int, want: Want) -> list[ReadItem]:
        key = self.key(want.tensor, want.kind)
        known = self.metadata.state_dict_metadata[key]
        assert isinstance(known, TensorStorageMetadata)
        if known.properties.dtype != want.out.dtype:
            raise HoldfastError(f"{want} is {want.out.dtype} here, saved {known.properties.dtype}")
        if len(known.size) != len(want.box) or any(
            high > size for (_, high), size in zip(want.box, known.size, strict=True)
        ):
            raise HoldfastError(f"{want} does not lie in the saved shape {tuple(known.size)}")
        chunk = ChunkStorageMetadata(
            torch.Size(low for low, _ in want.box), torch.Size(want.out.shape)
        )
        items = create_read_items_for_chunk_list(key, known, [chunk])
        covered = sum(torch.Size(item.lengths).numel() for item in items)
        if covered != want.out.numel():
            raise HoldfastError(f"{want}: {covered} of {want.out.numel()} elements were saved")
        return [_addressed(item, number) for item in items]

    def _read(self, plan: LoadPlan, planner: "_BoxPlanner") -> None:
        try:
            self._reader.read_data(plan, planner).wait()
        except (OSError, RuntimeError, UnpicklingError, EOFError, CheckpointException) as error:
            raise HoldfastError(f"{self.name} cannot be read: {error}") from None

    def values(self) -> dict[str, Any]:
        """What was saved beside tensors: step, random state, data position."""
        planner = _BoxPlanner()
        items = [
            ReadItem(
                type=LoadItemType.BYTE_IO,
                dest_index=index,
                dest_offsets=torch.Size((0,)),
                storage_index=index,
                storage_offsets=torch.Size((0,)),
                lengths=torch.Size((0,)),
            )
            for index in self.metadata.storage_data or {}
            if isinstance(self.metadata.state_dict_metadata[index.fqn], BytesStorageMetadata)
        ]
        self._read(LoadPlan(items), planner)
        return planner.values


def _addressed(item: ReadItem, number: int) -> ReadItem:
    """The number of its target goes where DCP keeps a hint: boxes of one tensor may overlap."""
    return replace(item, dest_index=replace(item.dest_index, index=number))


class _BoxPlanner(LoadPlanner):
    """Puts what is read where it belongs; the plan comes from us."""

    def __init__(self) -> None:
        self.targets: list[Tensor] = []
        self.values: dict[str, Any] = {}

    def resolve_tensor(self, read_item: ReadItem) -> Tensor:
        number = read_item.dest_index.index
        assert number is not None
        target = self.targets[number].detach()
        for dim, (start, size) in enumerate(
            zip(read_item.dest_offsets, read_item.lengths, strict=True)
        ):
            target = target.narrow(dim, start, size)
        return target

    def commit_tensor(self, read_item: ReadItem, tensor: Tensor) -> None:
        """Nothing to do: it was read into its place."""

    def load_bytes(self, read_item: ReadItem, value: BytesIO) -> None:
        # Any object may be in there. Ours are plain; what only code could build is left out.
        with suppress(UnpicklingError):
            self.values[read_item.dest_index.fqn] = torch.load(value, weights_only=True)

    def set_up_planner(self, *args: Any, **kwargs: Any) -> None: ...

    def create_local_plan(self) -> LoadPlan:
        return LoadPlan([])

    def create_global_plan(self, global_plan: list[LoadPlan]) -> list[LoadPlan]:
        return global_plan

    def finish_plan(self, central_plan: LoadPlan) -> LoadPlan:
        return central_plan
