"""One seed, one run: a world, faults, peace, and the promises."""

from random import Random

import msgspec

from holdfast.control.facts import StopWanted
from holdfast.control.settings import ControlSettings, SnapshotSettings
from holdfast.errors import InternalError
from holdfast.sim.fuzz.coverage import Coverage
from holdfast.sim.fuzz.faults import Faults, draw_profile
from holdfast.sim.fuzz.memory import OPTIONS
from holdfast.sim.fuzz.promises.coordinator_loss import CoordinatorLoss
from holdfast.sim.fuzz.promises.exactly_once import ExactlyOnce
from holdfast.sim.fuzz.promises.no_split import NoSplit
from holdfast.sim.fuzz.promises.no_undo import NoUndo
from holdfast.sim.fuzz.promises.one_history import OneHistory
from holdfast.sim.fuzz.promises.progress import ProgressChecker
from holdfast.sim.fuzz.promises.promise import Checker, Violation
from holdfast.sim.fuzz.promises.same_updates import SameUpdates
from holdfast.sim.fuzz.shapes import draw_shape
from holdfast.sim.fuzz.world import World, WorldDelays

STEPS_IN_PEACE = 3
PEACE_MS = 8_000
"""Longer than anything that the coordinator waits for, several times over."""


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


def run_seed(seed: int, extra: tuple[Checker, ...] = ()) -> FuzzRun:
    world, faults, war_ms = make_world(seed, extra)
    broken: Broken | None = None
    try:
        _war(world, war_ms)
        faults.make_peace()
        _peace(world)
        for checker in world.checkers:
            checker.finished(world)
    except Violation as violation:
        broken = Broken(seed, violation.promise, violation.text, tuple(world.clock.trace))
    except InternalError as error:
        broken = Broken(seed, "invariant", str(error), tuple(world.clock.trace))
    world.count("failed for lack of a snapshot", int(bool(world.office.failed)))
    clock = world.clock
    coverage = dict(sorted(world.coverage.items()))
    return FuzzRun(seed, clock.num_events, clock.digest, coverage, broken)


def make_world(seed: int, extra: tuple[Checker, ...] = ()) -> tuple[World, Faults, int]:
    rng = Random(seed)
    profile = draw_profile(rng)
    checkers: list[Checker] = [
        ExactlyOnce(),
        SameUpdates(),
        NoUndo(),
        OneHistory(),
        ProgressChecker(),
        CoordinatorLoss(profile.only_coordinator),
        NoSplit(),
        Coverage(),
        *extra,
    ]
    shape = draw_shape(rng)
    settings = ControlSettings(
        plan=shape.plan,
        mode=rng.choice(("exact", "exact", "fast")),
        settle_ms=rng.choice((10, 30)),
        answer_ms=300,
        lost_after_ms=250,
        start_ms=400,
        max_restarts=1000,
        snapshots=SnapshotSettings(options=OPTIONS, max_cost=0.0),
    )
    pace = WorldDelays(
        compute_ms=rng.choice((1, 2, 5)),
        network_ms=rng.choice((1, 4, 10)),
        apply_ms=rng.choice((0, 3, 20)),
        feed_ms=rng.choice((2, 10, 40)),
        snapshot_every=rng.choice((1, 1, 2, 3)),
        captures=rng.random() < 0.5,
        is_one_machine=rng.random() < 0.3,
    )
    world = World(rng, shape, settings, pace, checkers)
    world.office.open()
    war_ms = rng.randint(400, 900)
    return world, Faults(world, profile, war_ms), war_ms


def _war(world: World, war_ms: int) -> None:
    while world.clock.now_ms < war_ms and not world.office.failed:
        world.clock.step()


def _peace(world: World) -> None:
    """Some steps more, then a clean stop; all of it within a bounded time."""
    begun_ms, first = world.clock.now_ms, -1
    while world.clock.now_ms - begun_ms < PEACE_MS and not world.office.failed:
        world.clock.step()
        if world.is_through:
            return
        last = world.past.last
        seated = world.members_alive(last) if last is not None and first > -2 else []
        if last is None or not seated:
            continue
        version = min(worker.position.version for worker in seated)
        if first < 0 and len(seated) == len(last.incarnations):
            first = version
        elif first >= 0 and version >= first + STEPS_IN_PEACE:
            world.office.take(StopWanted("enough"))
            first = -2
