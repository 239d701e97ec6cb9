"""Loading the state of a loop: from the memory of all nodes that are left, or from disk, under any
number of ranks.

All ranks go through the same list of versions, the newest first, and take the first one that all of
them could read. What belongs to one rank alone (random state, data position, buffers) is given out
again in turn when the number of ranks has changed; parameters that differ from rank to rank, such
as the stages of a pipeline, cannot be, and are refused.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint.metadata import TensorStorageMetadata

from holdfast.errors import HoldfastError
from holdfast.snapshot.disk.dcp import Checkpoint
from holdfast.snapshot.layout import entry_key
from holdfast.snapshot.load.assemble import LoadReport, Want, assemble
from holdfast.snapshot.load.catalog import Catalog
from holdfast.snapshot.loop.ranks import Ranks
from holdfast.snapshot.loop.state import REST, HeldTensor, LoopState, unpack_rest
from holdfast.snapshot.loop.trees import Mark, as_dtype
from holdfast.snapshot.loop_shares import STATE, rank_name

SAME = "same_on_all_ranks"
"""Among the values of a checkpoint: names of what belongs to each rank, and was equal on all."""

_REST_OF = re.compile(r"rank(\d+)\." + REST)


class SavedLoop:
    """One version, in memory, on disk, or both."""

    def __init__(self, catalog: Catalog | None, checkpoint: Checkpoint | None) -> None:
        self.catalog, self.checkpoint = catalog, checkpoint
        self.shapes = dict(_shapes(catalog, checkpoint))
        self.num_ranks = sum(_REST_OF.fullmatch(name) is not None for name in self.shapes)
        if not self.num_ranks:
            raise HoldfastError("it was not written by a Snapshotter: it lacks the loop's state")

    def is_same_on_all_ranks(self, name: str) -> bool:
        """Of state that belongs to each rank; `name` without its number."""
        if self.catalog is None:
            assert self.checkpoint is not None
            return name in self.checkpoint.values().get(SAME, [])
        checksums = {k: v for m in self.catalog.holding.manifests for k, v in m.checksums.items()}
        found: list[Any] = []
        for rank in range(self.num_ranks):
            of_rank = rank_name(rank, name)
            box = tuple((0, size) for size in self.shapes.get(of_rank, ()))
            found.append(checksums.get(entry_key(of_rank, box, STATE)))
        return found[0] is not None and all(one == found[0] for one in found)


def _shapes(
    catalog: Catalog | None, checkpoint: Checkpoint | None
) -> Iterator[tuple[str, tuple[int, ...]]]:
    if catalog is not None:
        for whole in catalog.holding.manifests[0].layout.tensors:
            yield whole.tensor, whole.shape
    elif checkpoint is not None:
        for name, known in checkpoint.metadata.state_dict_metadata.items():
            if isinstance(known, TensorStorageMetadata):
                yield name, tuple(known.size)


class LoopLoader:
    """One rank's part in loading one version."""

    def __init__(self, saved: SavedLoop, state: LoopState, ranks: Ranks) -> None:
        self._saved, self._state, self._ranks = saved, state, ranks
        self._from = ranks.rank % saved.num_ranks
        """The rank whose own state this one takes up."""
        self._rest: Mapping[str, Any] = {}
        self._tensors: dict[str, Tensor] = {}
        """By path, loaded."""

    def read(self, held: Sequence[HeldTensor]) -> LoadReport:
        """Into the tensors of the loop, which are undefined if it fails: CannotLoad, HoldfastError
        or OSError.
        """
        self._check_ranks(held)
        raw = self._buffer(rank_name(self._from, REST), torch.uint8)
        self._assemble([raw])
        self._rest = unpack_rest(raw.out)
        marks = self._state.saved_tensors(self._rest)
        wanted = self._wanted(held, {mark.path for mark in marks})
        report = self._assemble([self._want(one) for one in wanted])
        self._tensors = {one.path: one.tensor for one in held}
        # Tensors that the objects do not have yet.
        missing = [mark for mark in marks if mark.path not in self._tensors]
        buffers = [self._buffer(self._saved_name(mark), as_dtype(mark.dtype)) for mark in missing]
        self._assemble(buffers)
        for mark, buffer in zip(missing, buffers, strict=True):
            self._tensors[mark.path] = buffer.out
        return report

    def apply(self) -> None:
        """All ranks have read it."""
        self._state.apply(self._rest, self._tensors)

    def _check_ranks(self, held: Sequence[HeldTensor]) -> None:
        if self._saved.num_ranks == self._ranks.size:
            return
        for one in held:
            name = one.path.replace("/", ".")
            if one.is_own and one.is_steady and not self._saved.is_same_on_all_ranks(name):
                raise HoldfastError(
                    f"{name} differs from rank to rank: it can be loaded with "
                    f"{self._saved.num_ranks} ranks only, and {self._ranks.size} are running"
                )

    def _wanted(self, held: Sequence[HeldTensor], saved: set[str]) -> list[HeldTensor]:
        """All, except what optimizers have for parameters that had got no gradient yet."""
        return [
            one
            for one in held
            if one.path != REST
            and one.local.numel()
            and (one.path in saved or not self._state.is_of_optimizer(one.path))
        ]

    def _want(self, one: HeldTensor) -> Want:
        name = one.spec.name
        if one.is_own:
            name = rank_name(self._from, one.path.replace("/", "."))
        self._check_shape(name, one.spec.shape)
        return Want(name, STATE, one.spec.box, one.local)

    def _check_shape(self, name: str, shape: tuple[int, ...]) -> None:
        saved = self._saved.shapes.get(name)
        if saved != shape:
            told = "was not saved" if saved is None else f"was saved with shape {saved}"
            raise HoldfastError(f"{name} has shape {shape} here and {told}")

    def _saved_name(self, mark: Mark) -> str:
        name = mark.path.replace("/", ".")
        own = rank_name(self._from, name)
        return own if own in self._saved.shapes else name

    def _buffer(self, name: str, dtype: torch.dtype) -> Want:
        shape = self._saved.shapes.get(name)
        if shape is None:
            raise HoldfastError(f"{name} was not saved")
        out = torch.empty(shape, dtype=dtype)
        return Want(name, STATE, tuple((0, size) for size in shape), out)

    def _assemble(self, wants: Sequence[Want]) -> LoadReport:
        return assemble(wants, self._saved.catalog, self._saved.checkpoint)
