"""The workers of a run: who is there, in which health, and what happened to each."""

from collections.abc import Iterable

import msgspec

from holdfast.plan.workers import node_of, parse_worker

STARTING, ALIVE, JOINING, LOST, LEFT = "starting", "alive", "joining", "lost", "left"
SLOW, HUNG = "slow", "hung"
"""What one that is alive or lost is called, where more is known."""
STATES = (STARTING, ALIVE, SLOW, JOINING, HUNG, LOST, LEFT)
MAX_HISTORY = 100


class WorkerRecord(msgspec.Struct, kw_only=True):
    name: str
    state: str = STARTING
    since_s: float = 0.0
    incarnation: int = 1
    pid: int = 0
    failure: str = ""
    """The kind of the last one."""
    num_failures: int = 0
    slow: float = 1.0
    """For sure: so many times longer than healthy ones it computes."""
    history: list[tuple[float, str]] = []

    @property
    def node(self) -> str:
        return node_of(self.name)

    @property
    def health(self) -> str:
        if self.state == ALIVE and self.slow > 1.0:
            return SLOW
        return HUNG if self.state == LOST and self.failure == HUNG else self.state


class Workers:
    def __init__(self) -> None:
        self.known: dict[str, WorkerRecord] = {}
        self._missing: dict[str, None] = {}

    def _note(self, name: str, at_s: float, state: str, words: str) -> WorkerRecord:
        worker = self.known.setdefault(name, WorkerRecord(name=name))
        worker.state, worker.since_s = state, at_s
        if state in (LOST, JOINING):
            self._missing[name] = None
        else:
            self._missing.pop(name, None)
        worker.history = [*worker.history[-MAX_HISTORY:], (at_s, words)]
        return worker

    def expect(self, names: Iterable[str], at_s: float) -> None:
        """They have a role in the plan."""
        for name in names:
            if name not in self.known:
                self._note(name, at_s, STARTING, "starting")

    def ready(self, pids: dict[str, int], at_s: float) -> None:
        for name, pid in pids.items():
            self._note(name, at_s, ALIVE, "ready").pid = pid

    def lost(self, name: str, incarnation: int, kind: str, reason: str, at_s: float) -> bool:
        """Returns whether it had a role, so that the others have to recover."""
        known = self.known.get(name)
        had_role = known is not None and known.state in (ALIVE, STARTING)
        worker = self._note(name, at_s, LOST, f"lost ({kind}): {reason}")
        worker.incarnation, worker.failure, worker.slow = incarnation, kind, 1.0
        worker.num_failures += 1
        return had_role

    def restarted(self, name: str, incarnation: int, at_s: float) -> None:
        worker = self._note(name, at_s, JOINING, f"started again, process {incarnation}")
        worker.incarnation = incarnation

    def judged(
        self, names: Iterable[str], verdict: str, factor: float, reason: str, at_s: float
    ) -> None:
        """A worker (links are named, too) is slow, is not any more, or is suspected."""
        for worker in (self.known[name] for name in names if name in self.known):
            if verdict == SLOW:
                worker.slow = factor
            elif verdict in ("cleared", "recovered"):
                worker.slow = 1.0
            worker.history = [*worker.history[-MAX_HISTORY:], (at_s, f"{verdict}: {reason}")]

    def gone(self, names: Iterable[str], at_s: float) -> None:
        """Without a role after a recovery, and not all of them by their own fault."""
        for name in names:
            known = self.known.get(name)
            if known is None or known.state == ALIVE:
                self._note(name, at_s, LOST, "without a role: others of its replica are lost")

    def joined(self, names: Iterable[str], at_s: float) -> None:
        for name in names:
            self._note(name, at_s, ALIVE, "takes part in steps")

    def left(self, names: Iterable[str], at_s: float) -> None:
        for name in names:
            self._note(name, at_s, LEFT, "left: the plan has no role for it")

    def in_order(self) -> list[WorkerRecord]:
        """By node and device."""
        return sorted(self.known.values(), key=lambda worker: parse_worker(worker.name))

    def counts(self) -> dict[str, int]:
        found = dict.fromkeys(STATES, 0)
        for worker in self.known.values():
            found[worker.health] += 1
        return found

    @property
    def is_short(self) -> bool:
        return bool(self._missing)

    def missing(self) -> list[str]:
        """Lost and not back."""
        return sorted(self._missing)
