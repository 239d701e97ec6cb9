"""Who coordinates a job on several hosts, by seeds: the machine of every agent
(`control/succession.py`) in a network that is cut in any way, with a rendezvous that is slow, gone,
or reached by some hosts only.

Time passes in ticks. A host has an agent and perhaps a coordinator; the first coordinator is on the
launcher's host, which has no agent. Every coordinator tries to record something all the time, so
that one which may not is seen. Training does not take part: it needs no coordinator.
"""

from collections import deque
from random import Random

import msgspec

from holdfast.control.succession import PeerAnswers, Succession
from holdfast.sim.fuzz.promises.promise import Violation

TICK_MS = 50
LOOK_MS = 500
UNHEARD_MS = 2000
LIFE_MS = 1000
LIFE_LASTS_MS = 2000
START_MS = (100, 1500)
LAUNCHER = "launcher"
FAULTS_MS = 40_000
REST_MS = 150_000
"""Longer than the longest wait after tries in vain, twice."""
CALM_MS = 20_000
"""So long no term may be taken when nothing goes wrong any more."""
NAME = "P8"
TRACE = 80


class TermsRun(msgspec.Struct, frozen=True):
    coverage: dict[str, int]
    broken: str = ""
    trace: tuple[str, ...] = ()


class _Coordinator:
    def __init__(self, term: int, host: str, ready_ms: int) -> None:
        self.term, self.host, self.ready_ms = term, host, ready_ms
        self.number = -1
        """Of the last record that it knows; -1: it has put no fence yet."""
        self.is_alive = True


class _Host:
    def __init__(self, name: str) -> None:
        self.name = name
        self.is_up = True
        self.boots_ms = 0
        self.sees_place = True
        """The rendezvous."""
        self.slow_ms = 0
        """How long what it sees there is old."""
        self.succession: Succession | None = None
        self.followed: _Coordinator | None = None
        self.heard_ms = 0
        self.seen_term = 0
        self.looked_ms = 0
        self.life: tuple[int, int] = (0, 0)
        """The last sign of life that it saw: its count, and when it changed."""


class TermsWorld:
    def __init__(self, seed: int) -> None:
        self._rng = Random(seed)
        self.now_ms = 0
        num_nodes = self._rng.randint(1, 6)
        self.nodes = [f"n{number}" for number in range(num_nodes)]
        self.hosts = {name: _Host(name) for name in (LAUNCHER, *self.nodes)}
        for name in self.nodes:
            self._boot(self.hosts[name])
        self.cuts: set[tuple[str, str]] = set()
        self.coordinators: list[_Coordinator] = []
        self.journal: list[int] = []
        """The term of every record."""
        self._life = (0, 0, 0)
        """Term, count and number of nodes, of the last sign of life."""
        self.trace: deque[str] = deque(maxlen=TRACE)
        self.coverage = {"terms taken": 0, "takeovers lost to another": 0, "records refused": 0}
        self._take_term(self.hosts[LAUNCHER], 0)

    def _boot(self, host: _Host) -> None:
        host.is_up, host.followed, host.seen_term = True, None, 0
        number = self.nodes.index(host.name)
        host.succession = Succession(number, len(self.nodes), self.now_ms)

    def _note(self, text: str) -> None:
        self.trace.append(f"{self.now_ms} {text}")

    # The network.

    def reaches(self, one: str, other: str) -> bool:
        """Both ways: a connection needs that."""
        return one == other or not {(one, other), (other, one)} & self.cuts

    def _newest(self) -> _Coordinator:
        return self.coordinators[-1]

    # One tick.

    def tick(self) -> None:
        self.now_ms += TICK_MS
        for coordinator in self.coordinators:
            if coordinator.is_alive and self.now_ms >= coordinator.ready_ms:
                self._coordinate(coordinator)
        for host in self.hosts.values():
            if not host.is_up and 0 < host.boots_ms <= self.now_ms and host.name != LAUNCHER:
                self._boot(host)
            if host.is_up:
                self._look(host)
                if host.succession is not None:
                    self._follow(host, host.succession)

    def _coordinate(self, coordinator: _Coordinator) -> None:
        host = self.hosts[coordinator.host]
        if not host.is_up or host.seen_term > coordinator.term:
            coordinator.is_alive = False
            return
        if not host.sees_place:
            return
        if coordinator.number < 0:
            if any(term > coordinator.term for term in self.journal):
                coordinator.is_alive = False
                return
            coordinator.number = len(self.journal)
        if coordinator.number != len(self.journal):
            self.coverage["records refused"] += 1
            coordinator.is_alive = False
            return
        if self.journal and self.journal[-1] > coordinator.term:
            raise Violation(NAME, f"term {coordinator.term} records after {self.journal[-1]}")
        self.journal.append(coordinator.term)
        coordinator.number += 1
        if self.now_ms % LIFE_MS == 0:
            heard = sum(host.followed is coordinator for host in self.hosts.values())
            self._life = (coordinator.term, self._life[1] + 1, heard)

    def _look(self, host: _Host) -> None:
        """At the rendezvous."""
        wait_ms = LOOK_MS + host.slow_ms
        if host.sees_place and self.now_ms - host.looked_ms >= wait_ms:
            host.looked_ms = self.now_ms
            host.seen_term = self._newest().term
            if self._life[1] != host.life[0]:
                host.life = (self._life[1], self.now_ms)
            machine = host.succession
            if machine is not None and machine.saw_term(host.seen_term, self.now_ms):
                host.followed = None

    def _follow(self, host: _Host, succession: Succession) -> None:
        self._keep_connected(host, succession)
        if succession.is_due(self.now_ms) and host.sees_place:
            verdict = succession.judge(self._answers(host, succession), self.now_ms)
            if verdict.takes:
                succession.tried(self.now_ms)
                self._take_term(host, succession.term)

    def _keep_connected(self, host: _Host, succession: Succession) -> None:
        followed = host.followed
        if followed is not None:
            if followed.term < succession.term:
                raise Violation(
                    NAME, f"{host.name} follows {followed.term} after {succession.term}"
                )
            is_near = self.reaches(host.name, followed.host)
            if is_near and followed.is_alive:
                host.heard_ms = self.now_ms
            if (is_near and not followed.is_alive) or self.now_ms - host.heard_ms >= UNHEARD_MS:
                host.followed = None
            if host.followed is None:
                succession.missed(self.now_ms)
            return
        found = self._listening(host)
        if found is not None and succession.reached(found.term):
            host.followed, host.heard_ms = found, self.now_ms
        else:
            succession.missed(self.now_ms)

    def _listening(self, host: _Host) -> _Coordinator | None:
        """At the address that the host knows."""
        for found in self.coordinators:
            is_there = found.is_alive and self.now_ms >= found.ready_ms
            if found.term == host.seen_term and is_there and self.reaches(host.name, found.host):
                return found
        return None

    def _answers(self, host: _Host, succession: Succession) -> PeerAnswers:
        others = [self.hosts[name] for name in self.nodes if name != host.name]
        heard = [o for o in others if o.is_up and self.reaches(host.name, o.name)]
        reaching = [
            o
            for o in heard
            if o.succession is not None
            and o.succession.is_reached
            and succession.is_current(o.succession.term)
        ]
        is_fresh = self.now_ms - host.life[1] < LIFE_LASTS_MS and self._life[0] == host.seen_term
        return PeerAnswers(
            num_heard=len(heard),
            num_reaching=len(reaching),
            num_by_coordinator=self._life[2] if is_fresh else 0,
        )

    def _take_term(self, host: _Host, after: int) -> None:
        if self.coordinators and self._newest().term != after:
            self.coverage["takeovers lost to another"] += 1
            return
        self.coverage["terms taken"] += 1
        self._note(f"{host.name} takes term {after + 1}")
        ready_ms = self.now_ms + self._rng.randint(*START_MS)
        self.coordinators.append(_Coordinator(after + 1, host.name, ready_ms))

    # What goes wrong.

    def break_something(self) -> None:
        rng, names = self._rng, list(self.hosts)
        kind = rng.randrange(7)
        self._note(f"fault {kind}")
        match kind:
            case 0:
                one, other = rng.choice(names), rng.choice(names)
                self.cuts.add((one, other))
            case 1:
                side = {name for name in names if rng.random() < 0.5}
                self.cuts |= {(a, b) for a in side for b in names if b not in side}
            case 2:
                victim = self.hosts[self._newest().host]
                victim.is_up, victim.boots_ms = False, self.now_ms + rng.randint(500, 20_000)
            case 3:
                self.cuts.clear()
            case 4:
                for host in self.hosts.values():
                    host.sees_place = rng.random() < 0.5
            case 5:
                for host in self.hosts.values():
                    host.sees_place, host.slow_ms = True, rng.choice((0, 0, 1000, 5000))
            case 6:
                self._newest().is_alive = False

    def end_faults(self) -> None:
        self.cuts.clear()
        for host in self.hosts.values():
            host.sees_place, host.slow_ms = True, 0
            if not host.is_up and host.name != LAUNCHER:
                self._boot(host)


def run_terms(seed: int) -> TermsRun:
    world = TermsWorld(seed)
    rng = Random(~seed)
    try:
        while world.now_ms < FAULTS_MS:
            world.tick()
            if rng.random() < TICK_MS / 3000:
                world.break_something()
        world.end_faults()
        _come_to_rest(world)
    except Violation as violation:
        return TermsRun(world.coverage, violation.text, tuple(world.trace))
    return TermsRun(world.coverage)


def _come_to_rest(world: TermsWorld) -> None:
    """One coordinator, followed by all, and no other for a while."""
    end_ms, calm_ms, newest = world.now_ms + REST_MS, 0, 0
    while calm_ms < CALM_MS:
        if world.now_ms >= end_ms:
            followed = [world.hosts[name].followed for name in world.nodes]
            terms = [0 if one is None else one.term for one in followed]
            raise Violation(NAME, f"agents follow the terms {terms} at the end, of {newest}")
        world.tick()
        is_calm = world.coordinators[-1].term == newest and all(
            world.hosts[name].followed is world.coordinators[-1] for name in world.nodes
        )
        calm_ms = calm_ms + TICK_MS if is_calm else 0
        newest = world.coordinators[-1].term
