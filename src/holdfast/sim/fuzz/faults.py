"""What goes wrong, when, and to whom.

Some faults come at any time. Others lie in wait: they strike at the moment when something happens
for the n-th time (somebody applies, reports, enters, switches), since the dangerous moments are
short. Once peace is made, nothing goes wrong any more and everything that can come back does.
"""

from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING

import msgspec

from holdfast.control.facts import PlanWanted, WorkerHung

if TYPE_CHECKING:
    from holdfast.sim.fuzz.worker import Worker
    from holdfast.sim.fuzz.world import World

MOMENTS = ("reduced", "agreed", "applied", "reported", "entered", "switched", "fed", "restored")

RARE = {"switched": 8, "restored": 5, "fed": 6, "reported": 8, "entered": 20}
"""How often those moments come in a run, roughly."""

KINDS = {
    "worker": 8,
    "node": 2,
    "coordinator": 5,
    "cut off": 2,
    "reconnect": 3,
    "cut": 2,
    "pause": 3,
    "false verdict": 3,
    "plan": 3,
}
"""Kinds of faults, and how often each comes in comparison."""


class FaultMix(msgspec.Struct, frozen=True):
    """What may happen in a run."""

    kinds: tuple[str, ...]
    num_faults: int
    moments: tuple[str, ...] = MOMENTS
    """When those strike that lie in wait."""
    only_coordinator: bool = False


def draw_profile(rng: Random) -> FaultMix:
    if rng.random() < 0.06:
        return FaultMix(("coordinator", "reconnect"), rng.randint(1, 4), only_coordinator=True)
    if rng.random() < 0.25:
        kinds = ("plan", "plan", "worker", "coordinator", "false verdict")
        return FaultMix(kinds, rng.randint(2, 6), moments=("switched", "switched", "entered"))
    if rng.random() < 0.2:
        losses = ("worker", "worker", "node", "coordinator", "false verdict")
        return FaultMix(losses, rng.randint(4, 8), moments=("restored", "applied", "entered"))
    chosen = [kind for kind in KINDS if rng.random() < 0.7] or ["worker"]
    if rng.random() < 0.2:
        chosen = ["worker", "node", "coordinator"]
    return FaultMix(tuple(chosen), rng.randint(1, 6))


class Faults:
    def __init__(self, world: "World", profile: FaultMix, until_ms: int) -> None:
        self.world, self.profile = world, profile
        self.is_peace = False
        self._waiting: list[tuple[str, int, Callable[[Worker | None], None]]] = []
        self._seen: dict[str, int] = {}
        world.listeners.append(self._happened)
        weights = [KINDS[kind] for kind in profile.kinds]
        for _ in range(profile.num_faults):
            kind = world.rng.choices(profile.kinds, weights)[0]
            self._plan(kind, until_ms)

    def _plan(self, kind: str, until_ms: int) -> None:
        rng = self.world.rng
        strike = self._strikes()[kind]
        if rng.random() < 0.5 or kind == "plan":
            self.world.clock.at(rng.randint(60, until_ms), self._strike, strike, None)
        else:
            moment = rng.choice(self.profile.moments)
            self._waiting.append((moment, rng.randint(1, RARE.get(moment, 80)), strike))

    def _strikes(self) -> dict[str, Callable[["Worker | None"], None]]:
        return {
            "worker": self._worker,
            "node": self._node,
            "coordinator": self._coordinator,
            "cut off": self._cut_off,
            "reconnect": self._reconnect,
            "cut": self._cut,
            "pause": self._pause,
            "false verdict": self._false_verdict,
            "plan": self._another_plan,
        }

    def _happened(self, kind: str, worker: "Worker") -> None:
        self._seen[kind] = self._seen.get(kind, 0) + 1
        for ambush in list(self._waiting):
            moment, count, strike = ambush
            if moment == kind and self._seen[kind] == count:
                self._waiting.remove(ambush)
                self.world.clock.after(0, self._strike, strike, worker)

    def _strike(self, strike: Callable[["Worker | None"], None], worker: "Worker | None") -> None:
        if not self.is_peace:
            strike(worker)

    def _victim(self, worker: "Worker | None") -> "Worker | None":
        """Who it happened to, or somebody else."""
        if worker is not None and worker.is_alive and self.world.rng.random() < 0.5:
            return worker
        alive = [w for w in self.world.workers.values() if w.is_alive and w.position.has_seat]
        return self.world.rng.choice(alive) if alive else None

    # Kinds

    def _worker(self, worker: "Worker | None") -> None:
        victim = self._victim(worker)
        if victim is not None:
            self.world.count("worker crashes")
            self.world.kill(victim, "SIGKILL")

    def _node(self, worker: "Worker | None") -> None:
        victim = self._victim(worker)
        if victim is None:
            return
        self.world.count("node losses")
        agent = self.world.agent_of(victim.name)
        self.world.clock.note(f"{agent.node} is lost")
        agent.crash()
        if self.world.rng.random() < 0.6:
            self.world.clock.after(self.world.rng.randint(50, 600), agent.boot)

    def _coordinator(self, _: "Worker | None") -> None:
        office = self.world.office
        if office.is_up and office.crash_after < 0:
            office.crash_after = self.world.rng.randint(0, 12)
            delay = self.world.rng.randint(20, 300)
            self.world.clock.after(delay, self._coordinator_back)

    def _coordinator_back(self) -> None:
        if self.is_peace:
            return
        if self.world.office.is_up:
            self.world.office.crash()
        self.world.clock.after(self.world.rng.randint(10, 150), self.world.office.open)

    def _cut_off(self, worker: "Worker | None") -> None:
        victim = self._victim(worker)
        if victim is not None:
            self.world.count("agents cut off")
            agent = self.world.agent_of(victim.name)
            self._isolate(agent.node, self.world.rng.randint(30, 700))

    def _isolate(self, node: str, for_ms: int) -> None:
        agent = self.world.agents[node]
        agent.is_cut_off = True
        agent.disconnect()
        self.world.clock.after(for_ms, self._rejoin, node)

    def _rejoin(self, node: str) -> None:
        self.world.agents[node].is_cut_off = False

    def _reconnect(self, worker: "Worker | None") -> None:
        victim = self._victim(worker)
        if victim is not None:
            self.world.count("reconnects")
            self.world.agent_of(victim.name).disconnect()

    def _cut(self, worker: "Worker | None") -> None:
        one, other = self._victim(worker), self._victim(None)
        if one is None or other is None or one.name == other.name:
            return
        self.world.count("cuts between workers")
        self.world.cut(one.name, other.name)
        epoch = one.position.epoch
        one.later(self.world.rng.randint(1, 20), one.lost, epoch, other.name, "no route to")
        delay = self.world.rng.randint(20, 900)
        self.world.clock.after(delay, self.world.heal, one.name, other.name)

    def _pause(self, worker: "Worker | None") -> None:
        victim = self._victim(worker)
        if victim is None or victim.is_paused:
            return
        self.world.count("hangs")
        victim.is_paused = True
        self.world.clock.note(f"{victim} hangs")
        if self.world.rng.random() < 0.7:
            delay = self.world.rng.randint(20, 200)
            self.world.clock.after(delay, self._accuse, victim, "it makes no progress")
        self.world.clock.after(self.world.rng.randint(10, 700), victim.resume)

    def _accuse(self, victim: "Worker", reason: str) -> None:
        if victim.is_alive and (victim.is_paused or reason == "a false alarm"):
            self.world.office.take(WorkerHung(victim.member, reason))

    def _false_verdict(self, worker: "Worker | None") -> None:
        """A live worker is fenced, and whoever should kill it cannot be reached."""
        victim = self._victim(worker)
        if victim is None:
            return
        self.world.count("false verdicts")
        if self.world.rng.random() < 0.7:
            self._isolate(victim.world.agent_of(victim.name).node, self.world.rng.randint(30, 400))
        if self.world.rng.random() < 0.4:
            victim.is_paused = True
            self.world.clock.after(self.world.rng.randint(5, 200), victim.resume)
        delay = self.world.rng.randint(0, 20)
        self.world.clock.after(delay, self._accuse, victim, "a false alarm")

    def _another_plan(self, _: "Worker | None") -> None:
        office = self.world.office
        wanted = self.world.past.wanted
        plans = (self.world.shape.plan, self.world.shape.other)
        if office.is_up and wanted in plans:
            self.world.count("plans wanted")
            office.take(PlanWanted(plans[1] if wanted == plans[0] else plans[0], "another plan"))

    # Peace

    def make_peace(self) -> None:
        self.is_peace = True
        world = self.world
        world.clock.note("peace")
        world.cuts.clear()
        world.office.crash_after = -1
        world.office.open()
        for agent in world.agents.values():
            agent.is_cut_off = False
            agent.boot()
        for worker in list(world.workers.values()):
            if worker.is_paused:
                worker.resume()
