"""What goes wrong, when, and to whom.

Faults are drawn before a run begins, each with a random source of its own: leaving one out changes
nothing about the others, which is what makes a failing run short. Some happen at a time, others
when something happens for the n-th time (a worker applies, reports, enters, switches), since the
dangerous moments are short. When they are ended, nothing goes wrong any more, and everything that
can come back does.
"""

from random import Random
from typing import TYPE_CHECKING

import msgspec

from holdfast.sim.fuzz.fault_effects import FAULT_EFFECTS

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
    "disk": 2,
    "cut off": 2,
    "reconnect": 3,
    "cut": 2,
    "pause": 3,
    "hang": 2,
    "pause all": 1,
    "unit": 1,
    "late": 1,
    "checkpoint": 1,
    "false verdict": 3,
    "plan": 3,
    "snapshots": 2,
    "stop": 1,
}
"""Kinds of faults, and how often each comes in comparison."""


REPLACED = 0.25
"""How many runs have coordinators that are replaced."""
PAUSED = 0.08
"""And how many have a time in which the coordinator or the workers can do nothing."""
PAUSES = {"suspended": 3, "coordinator paused": 1, "coordinator cut off": 1, "workers paused": 1}
"""How often each comes in comparison. The first two are no failure of a worker or a node."""


class FaultMix(msgspec.Struct, frozen=True):
    """What may happen in a run."""

    kinds: tuple[str, ...]
    num_faults: int
    moments: tuple[str, ...] = MOMENTS
    """Of faults that wait for a moment."""
    only_coordinator: bool = False


class DrawnFault(msgspec.Struct, frozen=True, kw_only=True):
    """Happens at a time, or when a moment comes for the n-th time."""

    kind: str
    seed: int
    at_ms: int = 0
    moment: str = ""
    count: int = 0

    def __str__(self) -> str:
        when = f"at {self.moment} {self.count}" if self.moment else f"at {self.at_ms} ms"
        return f"{self.kind} {when}"


def draw_profile(rng: Random) -> FaultMix:
    if rng.random() < 0.06:
        kinds: tuple[str, ...] = ("coordinator", "reconnect", "disk")
        return FaultMix(kinds, rng.randint(1, 4), only_coordinator=True)
    if rng.random() < 0.25:
        kinds = ("plan", "plan", "worker", "coordinator", "false verdict")
        return FaultMix(kinds, rng.randint(2, 6), moments=("switched", "switched", "entered"))
    if rng.random() < 0.25:
        losses = ("worker", "worker", "node", "coordinator", "false verdict", "snapshots", "stop")
        return FaultMix(losses, rng.randint(4, 8), moments=("restored", "applied", "entered"))
    if rng.random() < 0.15:
        again = ("late", "late", "unit", "checkpoint")
        return FaultMix(again, rng.randint(2, 4), moments=("restored", "applied", "applied"))
    chosen = [kind for kind in KINDS if rng.random() < 0.7] or ["worker"]
    if rng.random() < 0.2:
        chosen = ["worker", "node", "coordinator"]
    return FaultMix(tuple(chosen), rng.randint(1, 6))


def draw_faults(rng: Random, profile: FaultMix, until_ms: int) -> tuple[DrawnFault, ...]:
    weights = [KINDS[kind] for kind in profile.kinds]
    return tuple(
        _draw(rng, rng.choices(profile.kinds, weights)[0], profile, until_ms)
        for _ in range(profile.num_faults)
    )


def draw_replacements(
    rng: Random, until_ms: int, *, only_coordinator: bool
) -> tuple[DrawnFault, ...]:
    """In some runs the coordinator is replaced while it lives; `only_coordinator`: no agent is cut
    off from the rendezvous meanwhile.
    """
    if rng.random() > REPLACED:
        return ()
    kind = "superseded" if only_coordinator else "superseded unseen"
    times = [rng.randint(60, until_ms) for _ in range(rng.randint(1, 3))]
    return tuple(DrawnFault(kind=kind, seed=rng.getrandbits(48), at_ms=at_ms) for at_ms in times)


def draw_pauses(rng: Random, until_ms: int, *, only_coordinator: bool) -> tuple[DrawnFault, ...]:
    """Longer than a job is waited for that makes no progress."""
    if rng.random() > PAUSED:
        return ()
    found = list(PAUSES)[:2] if only_coordinator else list(PAUSES)
    kinds = rng.choices(found, [PAUSES[kind] for kind in found], k=rng.randint(1, 2))
    return tuple(
        DrawnFault(kind=kind, seed=rng.getrandbits(48), at_ms=rng.randint(60, until_ms))
        for kind in kinds
    )


def _draw(rng: Random, kind: str, profile: FaultMix, until_ms: int) -> DrawnFault:
    seed = rng.getrandbits(48)
    if rng.random() < 0.5 or kind == "plan":
        return DrawnFault(kind=kind, seed=seed, at_ms=rng.randint(60, until_ms))
    moment = rng.choice(profile.moments)
    return DrawnFault(
        kind=kind, seed=seed, moment=moment, count=rng.randint(1, RARE.get(moment, 60))
    )


class Faults:
    """The faults of one run, as they happen."""

    def __init__(self, world: "World", faults: tuple[DrawnFault, ...]) -> None:
        self.world = world
        self.is_calm = False
        self._waiting = [fault for fault in faults if fault.moment]
        self._seen: dict[str, int] = {}
        world.listeners.append(self._happened)
        for fault in faults:
            if not fault.moment:
                world.clock.at(fault.at_ms, self._carry_out, fault, None)

    def _happened(self, moment: str, worker: "Worker") -> None:
        seen = self._seen[moment] = self._seen.get(moment, 0) + 1
        for fault in self._waiting:
            if fault.moment == moment and fault.count == seen:
                self.world.clock.after(0, self._carry_out, fault, worker)

    def _carry_out(self, fault: DrawnFault, worker: "Worker | None") -> None:
        if not self.is_calm:
            FAULT_EFFECTS[fault.kind](self.world, Random(fault.seed), worker)

    def end(self) -> None:
        self.is_calm = True
        world = self.world
        world.is_calm = True
        world.clock.note("no more faults")
        world.cuts.clear()
        world.coordinator.make_reliable()
        world.coordinator.open()
        for agent in world.agents.values():
            agent.is_cut_off = False
            agent.boot()
        for worker in list(world.workers.values()):
            if worker.is_paused:
                worker.resume()
