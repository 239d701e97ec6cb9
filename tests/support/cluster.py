"""Real worker processes for tests: warm, used again from case to case, and never left behind.

One fork server per test process imports torch once; workers are forked from it when a case
first needs them and then wait for the next case. Every run has a deadline. One that fails takes all
others of its run with it, and the next run gets fresh ones. Workers die with the fork server, the
fork server with the test process, whatever way that ends.
"""

import ctypes
import gc
import multiprocessing
import os
import signal
import time
import traceback
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from multiprocessing import forkserver
from multiprocessing.connection import Connection, wait
from typing import Any, ClassVar

import psutil

DEADLINE_S = 40
"""For one run. A run takes about a second; a loaded machine may need several."""

_GRACE_S = 1.0
"""After the first failure: how long others may still say what they saw."""

# A store looks the names of its peers up by address, in its own loop. Where no name server answers,
# that must not take the five seconds of the default.
os.environ.setdefault("RES_OPTIONS", "timeout:1 attempts:1")

_PRELOAD = [
    "torch",
    "torch.distributed",
    "holdfast.engine.trainer",
    "holdfast.models.model",
    "pytest",  # children look at the main module, which is pytest's
]


@dataclass(frozen=True)
class Died:
    """What came back from a worker that was allowed to die, and did."""

    exit_code: int | None


@dataclass(frozen=True)
class _Answer:
    value: Any = None
    error: str = ""


class WorkersFailed(AssertionError):
    """A worker raised, died or did not end in time."""


class _Member:
    """One warm process, seen from the test."""

    def __init__(self) -> None:
        context = multiprocessing.get_context("forkserver")
        self.connection, far = context.Pipe()
        self.process = context.Process(target=_serve, args=(far,), daemon=True)
        self.process.start()
        far.close()

    def stop(self) -> None:
        self.connection.close()
        self.process.kill()
        self.process.join()
        self.process.close()


class Cluster:
    """A pool of warm workers."""

    def __init__(self) -> None:
        self._members: list[_Member] = []
        self._store: Any = None
        self._num_stores = 0
        self.num_started = 0

    def fresh_store(self) -> tuple[int, str]:
        """What a `Store` is made of: a port, and a prefix that was never used before."""
        import torch.distributed as dist

        if self._store is None:
            self._store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        self._num_stores += 1
        return self._store.port, f"run{self._num_stores}"

    def run(
        self,
        work: Callable[..., Any],
        arguments: Sequence[tuple[Any, ...]],
        *,
        may_die: Collection[int] = (),
        deadline_s: float = DEADLINE_S,
    ) -> list[Any]:
        """`work(*arguments[i])` in process i, all at once; what they return, in order.

        `work` has to be importable by fresh processes, so it lives in a module that is no test.
        """
        members = self._take(len(arguments))
        for member, given in zip(members, arguments, strict=True):
            member.connection.send((work, given))
        answers = _collect(members, deadline_s, may_die)
        failed = {i: a.error for i, a in answers.items() if a.error}
        missing = [i for i in range(len(members)) if i not in answers]
        lost = [i for i, answer in answers.items() if isinstance(answer.value, Died)]
        if failed or missing:
            self._drop(members)
            raise WorkersFailed(_story(failed, missing, deadline_s))
        self._drop([members[i] for i in lost])
        return [answers[i].value for i in range(len(members))]

    def _take(self, count: int) -> list[_Member]:
        while len(self._members) < count:
            if not self.num_started:
                multiprocessing.get_context("forkserver").set_forkserver_preload(_PRELOAD)
            self._members.append(_Member())
            self.num_started += 1
        return self._members[:count]

    def _drop(self, members: Sequence[_Member]) -> None:
        for member in members:
            self._members.remove(member)
            member.stop()

    def close(self) -> None:
        self._drop(list(self._members))
        self._store = None

    def __enter__(self) -> "Cluster":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def stop_fork_server() -> None:
    """When no pool needs it any more. It would also end with this process."""
    forkserver._forkserver._stop()


def _collect(
    members: Sequence[_Member], deadline_s: float, may_die: Collection[int]
) -> dict[int, _Answer]:
    """Answers by number; those that did not come in time are missing."""
    answers: dict[int, _Answer] = {}
    end = time.monotonic() + deadline_s
    while len(answers) < len(members) and (left := end - time.monotonic()) > 0:
        open_ = {m.connection: i for i, m in enumerate(members) if i not in answers}
        for ready in wait(list(open_), left):
            assert isinstance(ready, Connection)
            number = open_[ready]
            try:
                answers[number] = ready.recv()
            except (EOFError, ConnectionError):
                members[number].process.join()
                code = members[number].process.exitcode
                error = "" if number in may_die else f"died with exit code {code}"
                answers[number] = _Answer(Died(code), error)
            if answers[number].error:
                end = min(end, time.monotonic() + _GRACE_S)
    return answers


def _story(failed: dict[int, str], missing: Sequence[int], deadline_s: float) -> str:
    lines = [f"worker process {i}:\n{text}" for i, text in sorted(failed.items())]
    if missing:
        why = "when another failed" if failed else f"after {deadline_s:g} s"
        lines.append(f"worker processes {list(missing)} had not ended {why}")
    return "\n".join(lines)


def _serve(connection: Connection) -> None:
    """The life of a worker process."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: not longer than the fork server
    import torch

    torch.set_num_threads(1)
    gc.freeze()
    while True:
        try:
            work, arguments = connection.recv()
        except EOFError:
            return
        try:
            answer = _Answer(work(*arguments))
        except BaseException:
            answer = _Answer(error=traceback.format_exc())
        connection.send(answer)


class Store:
    """A run's own part of the pool's store. Connections are kept from run to run."""

    _clients: ClassVar[dict[int, list[Any]]] = {}

    def __init__(self, port: int, prefix: str) -> None:
        self._port, self._prefix = port, prefix
        self._num_clones = 0
        self._own = self.clone()
        self.set, self.get, self.check = self._own.set, self._own.get, self._own.check

    @classmethod
    def forget(cls) -> None:
        """The next run gets other connections."""
        cls._clients.clear()

    def clone(self) -> Any:
        """Each on a connection of its own, as a blocked call blocks its connection."""
        from torch.distributed import PrefixStore, TCPStore

        clients = self._clients.setdefault(self._port, [])
        if self._num_clones == len(clients):
            clients.append(TCPStore("127.0.0.1", self._port, wait_for_workers=False))
        self._num_clones += 1
        return PrefixStore(self._prefix, clients[self._num_clones - 1])


def leftover_children() -> list[str]:
    """Processes below this one that should not be there; the interpreter's own helper may."""
    found = []
    for child in psutil.Process().children(recursive=True):
        try:
            line = " ".join(child.cmdline())
        except psutil.ZombieProcess:
            line = "not reaped"
        except psutil.NoSuchProcess:
            continue
        if "resource_tracker" not in line:
            found.append(f"{child.pid}: {line[:200]}")
    return found
