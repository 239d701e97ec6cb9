"""One seed, one run: a world, faults, a time without any, and the promises."""

from random import Random
from typing import Literal

import msgspec

from holdfast.control.facts import NodesAbsent, StopWanted
from holdfast.control.settings import ControlSettings, ReplanSettings, SnapshotSettings
from holdfast.control.worker_reports import Planned
from holdfast.errors import InternalError
from holdfast.sim.fuzz.agent import BEAT_MS
from holdfast.sim.fuzz.coverage import Coverage
from holdfast.sim.fuzz.faults import (
    DrawnFault,
    FaultMix,
    Faults,
    draw_faults,
    draw_pauses,
    draw_profile,
    draw_replacements,
)
from holdfast.sim.fuzz.memory import OPTIONS
from holdfast.sim.fuzz.promises.coordinator_loss import CoordinatorLoss
from holdfast.sim.fuzz.promises.exactly_once import ExactlyOnce
from holdfast.sim.fuzz.promises.no_false_alarm import NoFalseAlarm
from holdfast.sim.fuzz.promises.no_split import NoSplit
from holdfast.sim.fuzz.promises.no_undo import NoUndo
from holdfast.sim.fuzz.promises.one_history import OneHistory
from holdfast.sim.fuzz.promises.progress import ProgressChecker
from holdfast.sim.fuzz.promises.promise import Checker, Violation
from holdfast.sim.fuzz.promises.run_log import CompleteRunLog
from holdfast.sim.fuzz.promises.same_groups import SameGroups
from holdfast.sim.fuzz.promises.same_updates import SameUpdates
from holdfast.sim.fuzz.shapes import JobShape, draw_shape
from holdfast.sim.fuzz.terms import run_terms
from holdfast.sim.fuzz.world import World, WorldDelays

LONG_WARS = 0.08
"""How many runs are long: faults that lie far apart, many versions, old histories."""
STEPS_IN_PEACE = 3
TERMS = "P8, terms"
POLICIES: list[Literal["auto", "reroute", "off"]] = ["auto", "auto", "auto", "reroute", "off"]
REPLANNING = 0x9E3779B9
"""Draws about the planner are apart from all others."""
LEAVING = 0x51ED270B
"""And so are those about workers that leave."""
REPLACING = 0x51ED2705
"""And so are those about coordinators that are replaced."""
GATHERING = 0x2545F491
"""And those about hosts that come late."""
JOINING = 0x85EBCA6B
"""And those about how long joiners are waited for."""
PAUSING = 0x6C078965
"""And those about pauses, and how long a job is waited for."""
PEACE_MS = 8_000
"""Longer than anything that the coordinator waits for, several times over."""
MAX_JOIN_MS = 600_000
PATIENCE_MS = (4_000, 6_000)
"""Longer than a worker hangs, which is the longest that a job that is well does not move."""

GRACE_MS = 4 * PEACE_MS
"""Of a stop: none is cut short, it has to come by itself."""


class Broken(msgspec.Struct, frozen=True):
    seed: int
    promise: str
    text: str
    trace: tuple[str, ...]


class FuzzRun(msgspec.Struct, frozen=True):
    seed: int
    num_events: int
    digest: int
    coverage: dict[str, int]
    broken: Broken | None = None


class QuickRandom(Random):
    """Most of what is drawn is a small whole number, a dozen per event."""

    def randint(self, a: int, b: int) -> int:
        return a + int(self.random() * (b - a + 1))


class RunPlan(msgspec.Struct, frozen=True):
    """What is drawn from a seed before its run begins."""

    shape: JobShape
    settings: ControlSettings
    delays: WorldDelays
    faults: tuple[DrawnFault, ...]
    war_ms: int
    only_coordinator: bool
    absent: tuple[str, ...] = ()
    """Nodes that the job begins without, because no host has joined for them yet."""


def draw_run(seed: int) -> RunPlan:
    rng = Random(seed)
    profile, shape = draw_profile(rng), draw_shape(rng)
    pausing = Random(seed ^ PAUSING)
    settings = ControlSettings(
        plan=shape.plan,
        changes=_draw_changes(rng, shape),
        num_steps=rng.randint(5, 40) if rng.random() < 0.15 else 0,
        mode=rng.choice(("exact", "exact", "fast")),
        settle_ms=rng.choice((10, 30)),
        answer_ms=300,
        leaving_ms=Random(seed ^ LEAVING).choice((40, 300)),
        join_within_ms=_draw_join_ms(Random(seed ^ JOINING), profile),
        lost_after_ms=250,
        start_ms=400,
        max_restarts=1000,
        patience_ms=pausing.choice(PATIENCE_MS),
        grace_ms=GRACE_MS,
        heartbeat_ms=BEAT_MS,
        hang_floor_ms=120,
        snapshots=SnapshotSettings(options=OPTIONS, max_cost=0.0, persists=rng.random() < 0.3),
        replan=_replanning(Random(seed ^ REPLANNING)),
    )
    delays = WorldDelays(
        compute_ms=rng.choice((1, 2, 5)),
        network_ms=rng.choice((1, 4, 10)),
        apply_ms=rng.choice((0, 3, 20)),
        feed_ms=rng.choice((2, 10, 40)),
        snapshot_every=rng.choice((1, 1, 2, 3)),
        captures=rng.random() < 0.5,
        is_one_machine=rng.random() < 0.3,
    )
    war_ms = rng.randint(600, 1500) if rng.random() < LONG_WARS else rng.randint(200, 550)
    faults = draw_faults(rng, profile, war_ms)
    faults += draw_replacements(
        Random(seed ^ REPLACING), war_ms, only_coordinator=profile.only_coordinator
    )
    faults += draw_pauses(pausing, war_ms, only_coordinator=profile.only_coordinator)
    absent = _draw_absent(Random(seed ^ GATHERING), shape)
    return RunPlan(shape, settings, delays, faults, war_ms, profile.only_coordinator, absent)


def _draw_join_ms(rng: Random, profile: FaultMix) -> int:
    """To give up a joiner is a failure of a worker."""
    if profile.only_coordinator:
        return MAX_JOIN_MS
    return rng.choice((100, 300, MAX_JOIN_MS, MAX_JOIN_MS))


def _draw_absent(rng: Random, shape: JobShape) -> tuple[str, ...]:
    nodes = list(shape.places)
    if rng.random() > 0.1 or len(nodes) < 2:
        return ()
    return tuple(sorted(rng.sample(nodes, rng.randint(1, len(nodes) - 1))))


def _draw_changes(rng: Random, shape: JobShape) -> tuple[Planned, ...]:
    """Those of the job file, in some jobs: to another plan, and sometimes back."""
    if rng.random() > 0.2:
        return ()
    steps = sorted(rng.sample(range(1, 20), rng.randint(1, 2)))
    plans = (shape.other, shape.plan)
    return (Planned(0, shape.plan), *(Planned(*one) for one in zip(steps, plans, strict=False)))


def _replanning(rng: Random) -> ReplanSettings:
    """Asked at once, whatever it costs: any change of plan, while anything may happen."""
    return ReplanSettings(policy=rng.choice(POLICIES), advice_ms=rng.choice((50, 400)), lasts=0.0)


def run_seed(seed: int) -> FuzzRun:
    """A job; and, apart from it, who coordinates one on several hosts."""
    job, terms = run_plan(seed, draw_run(seed)), run_terms(seed)
    coverage = dict(sorted({**job.coverage, **terms.coverage}.items()))
    broken = job.broken
    if broken is None and terms.broken:
        broken = Broken(seed, TERMS, terms.broken, terms.trace)
    return msgspec.structs.replace(job, coverage=coverage, broken=broken)


def run_plan(seed: int, plan: RunPlan, *, extra: tuple[Checker, ...] = ()) -> FuzzRun:
    """The same for the same seed and plan; a plan with fewer faults is a shorter run."""
    world, faults = make_world(seed, plan, extra)
    broken: Broken | None = None
    try:
        _war(world)
        faults.end()
        _calm(world)
        for checker in world.checkers:
            checker.finished(world)
    except Violation as violation:
        broken = Broken(seed, violation.promise, violation.text, tuple(world.clock.trace))
    except InternalError as error:
        broken = Broken(seed, "invariant", str(error), tuple(world.clock.trace))
    except Exception as error:  # of the machine, or of a world that it has put into disorder
        broken = Broken(seed, "exception", repr(error), tuple(world.clock.trace))
    world.count("failed for lack of a snapshot", int(bool(world.coordinator.failed)))
    clock = world.clock
    coverage = dict(sorted(world.coverage.items()))
    return FuzzRun(seed, clock.num_events, clock.digest, coverage, broken)


def make_world(seed: int, plan: RunPlan, extra: tuple[Checker, ...] = ()) -> tuple[World, Faults]:
    checkers: list[Checker] = [
        ExactlyOnce(),
        SameUpdates(),
        SameGroups(),
        NoUndo(),
        OneHistory(),
        ProgressChecker(),
        CoordinatorLoss(plan.only_coordinator),
        NoSplit(),
        CompleteRunLog(),
        NoFalseAlarm(),
        Coverage(),
        *extra,
    ]
    random = QuickRandom(~seed)
    world = World(random, plan.shape, plan.settings, plan.delays, checkers, seed ^ REPLANNING)
    world.prolong(plan.war_ms)
    world.coordinator.open()
    if plan.absent:
        _begin_without(world, plan.absent, Random(seed ^ GATHERING))
    return world, Faults(world, plan.faults)


def _begin_without(world: World, nodes: tuple[str, ...], rng: Random) -> None:
    world.count("nodes that join late", len(nodes))
    for node in nodes:
        world.agents[node].is_alive = False
        world.clock.after(rng.randint(20, 600), world.agents[node].boot)
    world.coordinator.take(NodesAbsent(nodes))


def _war(world: World) -> None:
    while world.clock.now_ms < world.faults_until_ms and not world.coordinator.is_over:
        world.clock.step()


def _calm(world: World) -> None:
    """Some steps more, then a clean stop; all of it within a bounded time. A stop that was asked
    for before is not asked for again.
    """
    begun_ms, first = world.clock.now_ms, -1 if world.journal.stop is None else -2
    while world.clock.now_ms - begun_ms < PEACE_MS and not world.coordinator.is_over:
        world.clock.step()
        last = world.journal.last
        seated = world.members_alive(last) if last is not None and first > -2 else []
        if last is None or not seated:
            continue
        version = min(worker.position.version for worker in seated)
        if first < 0 and len(seated) == len(last.incarnations):
            first = version
        elif first >= 0 and version >= first + STEPS_IN_PEACE:
            world.coordinator.take(StopWanted("enough"))
            first = -2
