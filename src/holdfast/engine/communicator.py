"""What makes the groups of one worker, breaks them off, and lets them live on.

A `Communicator` makes groups from a store that outlives the workers, each under its own prefix, so
that making or losing one touches no other. Every wait has a deadline. `wake` makes every blocked
operation of this worker return with an error at once, or (see transport/gloo_waiting.py) within
moments where gloo has lost it.

**Stopping.** Where it is known who leaves, a worker stops in a way that lets the other groups live
on (`stop`). Groups with a leaving member are given up at once. In those that sum up a step (reduce,
all) nothing more is started: what is begun there never ends. All other operations go on, until the
worker waits for one of the former or has waited a while for a peer that may have stopped. Peers run
the same list of actions, so they stop at the same place, and groups of theirs are at rest then:
every operation that one has started has ended at all. Those may live on (`control/living_groups.py`
says which); a group in which something was broken off never does.
"""

import threading
import time
from collections.abc import Collection, Sequence
from datetime import timedelta
from typing import Any, Protocol, runtime_checkable

import torch
import xxhash
from torch.distributed.distributed_c10d import PrefixStore

from holdfast.control.report import GroupLevel
from holdfast.engine.groups import (
    OF_PLAN,
    GroupBroken,
    GroupMaker,
    LiveGroup,
    first_line,
    short_list,
)
from holdfast.engine.transport.device_log import DeviceLog
from holdfast.engine.transport.gloo import GlooTransport
from holdfast.engine.transport.nccl import NcclTransport
from holdfast.engine.transport.transport import GroupConnection, Transport
from holdfast.errors import HoldfastError, invariant

BULK = ("tensor", "shard", "scatter", "reduce", "link")
"""Kinds of groups that go over the transport of the device."""
_STOPPING_S = 1.0
"""How long a worker that stops may go on."""
_DOOMED_S = 0.2
"""The same where a device has an operation under way whose peer is gone: the worker may be blocked
behind it.
"""
_TURN_S = 0.02
"""Between groups that give and groups that take, when both are broken off."""
_MAX_RETIRED = 32
"""Groups that a device keeps though no plan needs them."""
_OLD_S = 2.0
"""How long groups that were broken off are waited for: it takes them half a second."""


@runtime_checkable
class StoreOfGroups(Protocol):
    """Every group has a store of its own, instead of a prefix in one that all share."""

    def of_group(self, members: Sequence[str]) -> Any:
        """A store whose connection is closed by `rest`, until it is used again."""


def store_of(store: Any, members: Sequence[str]) -> Any:
    """Where these workers leave something for each other."""
    return store.of_group(members) if isinstance(store, StoreOfGroups) else store


class Communicator:
    """Makes this worker's groups."""

    def __init__(
        self,
        worker: str,
        store: Any,
        *,
        backend: str,
        host: str,
        timeout_ms: int,
        device: torch.device | str = "cpu",
        make_group: GroupMaker = LiveGroup,
    ) -> None:
        if backend not in ("gloo", "nccl"):
            raise HoldfastError(f"backend {backend!r} is unknown; known: gloo, nccl")
        timeout = timedelta(milliseconds=timeout_ms)
        self.worker, self.backend, self._store = worker, backend, store
        self._host: Transport | None = GlooTransport(host, timeout)
        self._bulk: Transport | None = self._host
        if backend == "nccl":
            self._bulk = NcclTransport(torch.device(device), timeout)
        self._options: dict[str, Any] = {
            "backend": backend,
            "host": host,
            "timeout_ms": timeout_ms,
            "device": device,
            "make_group": make_group,
        }
        self._make_group = make_group
        self._live: list[LiveGroup] = []
        self._before: list[LiveGroup] = []
        """Groups of the communicator that this one took over from, and that are closed."""
        self.living: dict[tuple[str, tuple[str, ...]], LiveGroup] = {}
        """Those that live on, by kind and members."""
        self._idle_clients: list[Any] = []
        self._lock = threading.Lock()
        self.log = DeviceLog()
        self.stopping = ""
        """Why this worker is about to stop; empty: it is not."""
        self._stop_lock = threading.Lock()
        self._has_stopped = threading.Event()
        self._watch: threading.Thread | None = None
        self.woken = ""
        """Why nothing more can be done with these groups; empty: they are fine."""

    @property
    def connects_beside_training(self) -> bool:
        """May groups be made and closed while a step is under way? (See transport/nccl.py.)"""
        return self.backend != "nccl"

    @property
    def why_ended(self) -> str:
        """Why no group is made any more; empty: they are."""
        return self.woken or self.stopping

    def renew(self, living: Collection[str] | None = None) -> "Communicator":
        """A fresh start after a wake, with the groups that live on and no other; None: none does.
        What is still being made for the old one is given up by its maker.

        Closing a group of a device takes long. So one that does not live on, and in which nothing
        was broken off, is kept, unused, until there are many.
        """
        fresh = Communicator(self.worker, self._store, **self._options)
        with self._lock:
            fresh._host, fresh._bulk = self._host, self._bulk
            fresh._idle_clients, self._idle_clients = self._idle_clients, []
            kept = [group for group in self._live if group.name in (living or ())]
            for group in kept:
                group.live_on(fresh.log)
            rest = [group for group in self._live if group not in kept]
            idle = [group for group in rest if group.device.type != "cpu" and group.is_whole]
            if living is None or len(idle) > _MAX_RETIRED:
                idle = []
            for group in idle:
                group.is_retired = True
            rest = [group for group in rest if group not in idle]
            self._live, fresh._live, fresh._before = rest, [*kept, *idle], list(rest)
        fresh.living = {(group.kind, group.members): group for group in kept}
        return fresh

    def make(self, kind: str, members: Sequence[str], epoch: int) -> LiveGroup:
        """All members must call this, and in one order over all groups they share."""
        members = tuple(members)
        invariant(self.worker in members, f"{self.worker} is not in {kind} group {members}")
        if self.why_ended:
            raise GroupBroken(f"{kind} group {short_list(members)}: {self.why_ended}")
        rank = members.index(self.worker)
        connection = None
        if len(members) > 1:
            connection = self._connect(kind, members, rank, epoch)
        group = self._make_group(kind, members, rank, connection, self.log)
        group.name = _name(kind, members, epoch)
        with self._lock:
            self._live.append(group)
        if why := self.why_ended:
            group.wake(why)
        return group

    def _connect(
        self, kind: str, members: tuple[str, ...], rank: int, epoch: int
    ) -> GroupConnection:
        transport = self._bulk if kind in BULK else self._host
        invariant(transport is not None, f"{self.worker} has closed its communicator")
        assert transport is not None
        client = self._store_client(members)
        store = PrefixStore(_name(kind, members, epoch), client)
        try:
            made = transport.connect(kind, store, rank, len(members))
        except RuntimeError as error:
            with self._lock:
                self._idle_clients.clear()  # the store may have been started again
            raise GroupBroken(
                f"{kind} group {short_list(members)} of epoch {epoch}: {first_line(error)}"
            ) from None
        finally:
            if isinstance(self._store, StoreOfGroups):
                client.rest()
        if not isinstance(self._store, StoreOfGroups):
            with self._lock:
                self._idle_clients.append(client)
        return made

    def _store_client(self, members: tuple[str, ...]) -> Any:
        """A store client for one caller at a time: a blocking wait on it blocks all others.

        Clients are kept for the next group, since a new connection is not cheap: the store looks
        its peer up by address, in its one loop, and a lookup that gets lost stops it for seconds.
        """
        if isinstance(self._store, StoreOfGroups):
            return self._store.of_group(members)
        with self._lock:
            if self._idle_clients:
                return self._idle_clients.pop()
        return self._store.clone()

    def wait_for_old(self) -> None:
        """Before a step begins: until groups of a device that were broken off have ended; see
        transport/nccl.py.
        """
        if not self.connects_beside_training:
            deadline = time.monotonic() + _OLD_S
            for old in self._before:
                old.wait_broken_off(max(0.0, deadline - time.monotonic()))

    def stop(self, reason: str, leaving: Collection[str]) -> None:
        """Come to an end; groups without those who leave may live on (see above). Safe from any
        thread.
        """
        with self._stop_lock:
            with self._lock:
                if self.stopping or self.woken:
                    return
                self.stopping, groups = reason, list(self._live)
            for group in groups:
                if group.kind in OF_PLAN:
                    group.stop(reason, is_doomed=not set(leaving).isdisjoint(group.members))
                else:
                    group.wake(reason)
            self._watch = threading.Thread(
                target=self._end_in_time, args=(reason,), daemon=True, name="stopping"
            )
            self._watch.start()

    def _end_in_time(self, reason: str) -> None:
        """What the worker is blocked in is ended in any case, if it does not stop by itself."""
        began = time.monotonic()
        while not self._has_stopped.wait(_TURN_S):
            seconds = time.monotonic() - began
            is_blocked = seconds > _DOOMED_S and any(
                group.is_refused and group.has_open and group.device.type != "cpu"
                for group in list(self._live)
            )
            if is_blocked or seconds > _STOPPING_S:
                self.wake(reason)
                return

    def settle(self, reason: str) -> None:
        """The worker has stopped: what is under way may end for a while, and is broken off then.
        Without a `stop` before, all groups are given up.
        """
        with self._stop_lock:  # one that is under way on another thread is waited for
            self._has_stopped.set()
        if self._watch is not None:
            self._watch.join()
        if self.woken or not self.stopping:
            self.wake(reason)
            return
        groups, now = list(self._live), time.monotonic()
        for group in groups:
            group.let_end(now)
        with self._lock:
            self.woken = reason
        self.log.close()
        for group in groups:
            group.refuse(reason)
            group.look_at_rest()
        self._break_off([group for group in groups if not group.is_whole], reason)

    def levels(self) -> dict[str, GroupLevel]:
        """Of the groups that may live on, when this worker has stopped."""
        found = {group.name: group.level for group in list(self._live)}
        return {name: level for name, level in found.items() if level is not None}

    def wake(self, reason: str) -> None:
        """Make every blocked operation of this worker return with an error; no new one starts."""
        with self._lock:
            self.woken = self.woken or reason
            groups = list(self._live)
        self.log.close()
        for group in groups:
            group.refuse(reason)
        self._break_off(groups, reason)

    def _break_off(self, groups: Sequence[LiveGroup], reason: str) -> None:
        """In their turns."""
        turns = sorted({group.turn for group in groups if group.size > 1})
        for turn in turns:
            if turn != turns[0]:
                time.sleep(_TURN_S)
            for group in groups:
                if group.turn == turn:
                    group.wake(reason)

    def close(self, groups: Sequence[LiveGroup]) -> None:
        with self._lock:
            gone = {id(group) for group in groups}
            self._live = [group for group in self._live if id(group) not in gone]
        if not self.connects_beside_training:
            for group in groups:
                group.wake("the group is closed")  # side by side, see transport/nccl.py
        for group in groups:
            group.close()

    def close_all(self) -> None:
        self.close(list(self._live))
        self._idle_clients.clear()
        self._host = self._bulk = None

    @property
    def num_live(self) -> int:
        return len(self._live)


def _name(kind: str, members: Sequence[str], epoch: int) -> str:
    return f"e{epoch}/{kind}/{xxhash.xxh64_hexdigest('+'.join(members).encode())}"
