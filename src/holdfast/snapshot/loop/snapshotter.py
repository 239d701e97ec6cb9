"""Snapshots in any PyTorch training loop, without the rest of Holdfast.

    snapshotter = Snapshotter({"model": model, "optimizer": optimizer}, "/dev/shm/run7")
    first = snapshotter.load()              # number of steps the loaded state has had; 0: none
    for step in range(first, num_steps):
        ...
        optimizer.step()
        snapshotter.step()
    snapshotter.close()

State is copied to shared memory while the loop waits for others (see `gaps`), so it is there after
the death of every process of the loop. Parameters and the state of optimizers change only in
`Optimizer.step`, so they are copied from where they are, until the next such call, which is hooked;
everything else (buffers, data positions, random state) is small and copied aside at once.

On a device the loop's thread does not block where the device waits; there, copies run beside the
computations, on a stream of their own.
"""

import pickle
import random
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor, nn

from holdfast.errors import HoldfastError
from holdfast.snapshot.copying.copier import DEEP, Copier, CopyReport
from holdfast.snapshot.copying.gaps import Stalls, WaitWatch
from holdfast.snapshot.copying.others import Nobody, Others, group_of
from holdfast.snapshot.layout import OTHER, ArenaLayout, LayoutEntry, chunk_checksums
from holdfast.snapshot.loop.trees import as_dtype, fill, flatten, local_part, marks, skeleton
from holdfast.snapshot.memory.arena import Arena, ArenaSlot, Version
from holdfast.snapshot.placement import LIMIT

REST = "rest"
"""The entry with everything that is no tensor."""

_REST_ROOM = 64 * 2**10
"""It may grow by this much while the loop runs."""

_RETHINK = 20
"""Snapshots after which the interval is chosen again."""


class Stateful(Protocol):
    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state_dict: dict[str, Any]) -> Any: ...


class RandomState:
    """Python's and torch's random state, as one more object of a snapshot."""

    def state_dict(self) -> dict[str, Any]:
        state: dict[str, Any] = {"python": random.getstate(), "torch": torch.get_rng_state()}
        if torch.cuda.is_available():
            state["cuda"] = torch.cuda.get_rng_state()
        return state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        random.setstate(state_dict["python"])
        torch.set_rng_state(state_dict["torch"])
        if "cuda" in state_dict:
            torch.cuda.set_rng_state(state_dict["cuda"])


class Snapshotter:
    """Where torch.distributed is in use, all its processes make one, load and step together."""

    def __init__(
        self,
        objects: Mapping[str, Stateful],
        where: Arena | Path | str,
        *,
        every: int = 0,
        limit: float = LIMIT,
        chunk_bytes: int = 0,
    ) -> None:
        """`where`: an arena, or a path in a shared-memory file system, to which the rank is
        added. `every` 0: as often as the limit on the loop's loss of time allows.
        """
        if every < 0 or limit <= 0:
            raise HoldfastError(f"every = {every}, limit = {limit}: both must be positive")
        self._objects, self._every, self._limit = dict(objects), every, limit
        self._chunk_bytes = chunk_bytes
        self._is_joint = dist.is_initialized() and dist.get_world_size() > 1
        self._group = dist.new_group(backend="gloo") if self._is_joint else None
        self._arena, self._path = self._find(where)
        self._copier: Copier | None = None
        self._watch: WaitWatch | None = None
        self._loaded: Version | None = None
        self._num_steps = 0
        self._is_guarded = True
        self._stalls = Stalls()
        self._began, self._first = 0.0, 0
        self._hooks = [
            found.register_step_pre_hook(lambda *_: self.before_update())
            for found in self._objects.values()
            if isinstance(found, torch.optim.Optimizer)
        ]
        self.interval = every or 1

    def _find(self, where: Arena | Path | str) -> tuple[Arena | None, Path | None]:
        if isinstance(where, Arena):
            return where, None
        rank = dist.get_rank() if self._is_joint else 0
        path = Path(f"{where}.{rank}")
        return (Arena.open(path) if path.exists() else None), path

    @property
    def reports(self) -> list[CopyReport]:
        """Of the last versions: bytes and seconds in gaps and outside."""
        return list(self._copier.reports) if self._copier is not None else []

    # Saving.

    def before_update(self) -> None:
        """State is about to change. Called by the hooks of the optimizers among the objects."""
        self._is_guarded = True
        if self._copier is not None:
            self._stalls.finish(self._copier)

    def step(self) -> None:
        """State has changed: it is that of one step more."""
        self._num_steps += 1
        if not self._is_guarded:
            raise HoldfastError(
                "state changed while it was copied: put the optimizer among the objects, or call "
                "before_update() before every update"
            )
        if self._num_steps % self.interval == 0:
            self._begin()
            self._is_guarded = False

    def _begin(self) -> None:
        sources = self._gather()
        if self._copier is None:
            self._start(sources)
        assert self._copier is not None
        self._copier.begin(Version(self._num_steps, 0), sources)
        self._stalls.num_versions += 1
        if self._watch is None:
            self._copier.open(ahead=DEEP)
        if self._every == 0 and self._stalls.num_versions == _RETHINK:
            self._choose_interval()

    def _gather(self) -> dict[str, Tensor]:
        """The tensor behind every entry: live where only an update changes it, else a copy."""
        sources: dict[str, Tensor] = {}
        rest: dict[str, Any] = {}
        for name, found in self._objects.items():
            state = found.state_dict()
            rest[name] = skeleton(state, name)
            steady = _steady(found)
            for path, tensor in flatten(state, name):
                local = local_part(tensor)
                sources[path] = local if local.data_ptr() in steady else local.clone()
        sources[REST] = _pack(rest, self._arena.layout if self._arena is not None else None)
        return sources

    def _start(self, sources: Mapping[str, Tensor]) -> None:
        layout = ArenaLayout(tuple(_entry(path, tensor) for path, tensor in sources.items()))
        if self._arena is None:
            assert self._path is not None
            self._arena = Arena.create(self._path.name, layout, self._path.parent)
        elif self._arena.layout.entries != layout.entries:
            raise HoldfastError(
                f"{self._arena.name} holds state of another shape; remove it, or load it with the "
                f"model it was made with"
            )
        # What was not loaded is not of this run's history.
        self._arena.roll_back(self._loaded or Version(-1, 0))
        self._arena.take_over()
        device = next((t.device for t in sources.values() if t.is_cuda), None)
        others: Others = Nobody(self._loaded)
        if self._is_joint:
            others = group_of(self._group, self._loaded)
        self._copier = Copier(self._arena, device, others, chunk_bytes=self._chunk_bytes)
        if device is None:
            self._watch = WaitWatch(self._copier.open, self._copier.close)
            self._watch.start()
        self._began = time.perf_counter()
        self._first = self._num_steps

    def _choose_interval(self) -> None:
        """What the loop has waited for copies, against how long it ran: everybody the same."""
        num_steps = max(1, self._num_steps - self._first)
        step_s = (time.perf_counter() - self._began) / num_steps
        votes = torch.tensor([self._stalls.wanted_interval(step_s, self._limit)])
        if self._is_joint:
            dist.all_reduce(votes, dist.ReduceOp.MAX, self._group)
        self.interval = int(votes[0])
        self._stalls.clear()
        self._began, self._first = time.perf_counter(), self._num_steps

    # Loading.

    def load(self) -> int:
        """The newest version that everybody has whole. Returns the number of steps its state has
        had; 0: there is none.
        """
        held = {} if self._arena is None else self._arena.versions()
        candidates = set(held.values())
        while True:
            version = self._newest_common(candidates)
            if version is None:
                return 0
            slot = self._arena.slot(version) if self._arena is not None else None
            is_good = slot is not None and _is_intact(slot)
            if self._all_agree(is_good) and slot is not None:
                self._restore(slot)
                self._loaded, self._num_steps = version, version.step
                return version.step
            candidates.discard(version)

    def _newest_common(self, candidates: set[Version]) -> Version | None:
        found = [candidates]
        if self._is_joint:
            found = [set() for _ in range(dist.get_world_size())]
            dist.all_gather_object(found, candidates, self._group)
        return max(set.intersection(*found), default=None)

    def _all_agree(self, answer: bool) -> bool:
        votes = torch.tensor([int(answer)])
        if self._is_joint:
            dist.all_reduce(votes, dist.ReduceOp.MIN, self._group)
        return bool(votes[0])

    @torch.no_grad()
    def _restore(self, slot: ArenaSlot) -> None:
        rest = _unpack(slot)
        for found in self._objects.values():
            if isinstance(found, torch.optim.Optimizer) and not found.state:
                _prime(found)  # all of them first: this may change parameters
        for name, found in self._objects.items():
            live = dict(flatten(found.state_dict(), name))
            for mark in marks(rest[name]):
                saved = slot.tensor(mark.path).view(as_dtype(mark.dtype)).view(mark.shape)
                if mark.path not in live:
                    live[mark.path] = saved.clone()
                    continue
                local = local_part(live[mark.path])
                if local.shape != saved.shape:
                    raise HoldfastError(
                        f"{mark.path} has shape {tuple(local.shape)} here and {mark.shape} in the "
                        f"snapshot; start with the model and the ranks it was made with"
                    )
                local.copy_(saved)
            found.load_state_dict(fill(rest[name], live))

    def close(self, *, remove: bool = False) -> None:
        """End the copier; with `remove`, give back the memory too."""
        if self._watch is not None:
            self._watch.stop()
        for hook in self._hooks:
            hook.remove()
        if self._copier is not None:
            self._copier.finish()
            self._copier.drain()
            self._copier.stop()
        if self._arena is not None:
            self._arena.close()
        if remove and self._path is not None:
            self._path.unlink(missing_ok=True)


def _steady(found: Stateful) -> set[int]:
    """Addresses of tensors that nothing but an update changes."""
    tensors: list[Tensor] = []
    if isinstance(found, nn.Module):
        tensors += found.parameters()
    elif isinstance(found, torch.optim.Optimizer):
        tensors += [t for state in found.state.values() for t in state.values() if _is_tensor(t)]
    return {local_part(tensor).data_ptr() for tensor in tensors}


def _is_tensor(value: object) -> bool:
    return isinstance(value, Tensor)


def _entry(path: str, tensor: Tensor) -> LayoutEntry:
    box = tuple((0, length) for length in tensor.shape)
    dtype = str(tensor.dtype).removeprefix("torch.")
    return LayoutEntry(path, path, OTHER, box, dtype, tensor.numel() * tensor.element_size())


def _pack(rest: dict[str, Any], layout: ArenaLayout | None) -> Tensor:
    """Length, bytes, and room to grow, always the same in all."""
    data = pickle.dumps(rest)
    room = len(data) + _REST_ROOM if layout is None else layout.by_key[REST].num_bytes - 8
    if len(data) > room:
        raise HoldfastError(
            f"what is no tensor takes {len(data)} bytes, {room} were set aside at the start"
        )
    raw = len(data).to_bytes(8, "little") + data + bytes(room - len(data))
    return torch.frombuffer(bytearray(raw), dtype=torch.uint8)


def _unpack(slot: ArenaSlot) -> dict[str, Any]:
    raw = slot.bytes(REST)
    size = int.from_bytes(raw[:8], "little")
    rest: dict[str, Any] = pickle.loads(raw[8 : 8 + size])
    return rest


def _is_intact(slot: ArenaSlot) -> bool:
    sealed = slot.checksums()
    return all(
        chunk_checksums(slot.bytes(entry.key), slot.layout.chunk_bytes) == sealed[entry.key]
        for entry in slot.layout.entries
    )


def _prime(optimizer: torch.optim.Optimizer) -> None:
    """Have an optimizer make its state, by a step that changes nothing that will not be loaded."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    optimizer.zero_grad()
