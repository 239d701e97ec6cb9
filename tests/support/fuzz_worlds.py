"""Symbolic worlds in which nothing goes wrong by itself."""

from collections.abc import Callable
from random import Random

from holdfast.control.settings import ControlSettings, SnapshotSettings
from holdfast.plan.plan import Plan
from holdfast.plan.workers import node_of
from holdfast.sim.fuzz.coverage import Coverage
from holdfast.sim.fuzz.memory import OPTIONS
from holdfast.sim.fuzz.promises.promise import Checker, Violation
from holdfast.sim.fuzz.shapes import JobShape
from holdfast.sim.fuzz.worker import Worker
from holdfast.sim.fuzz.world import World, WorldDelays
from support.control_jobs import NO_PLANNER, small_plan


def make(
    *checkers: Checker,
    plan: Plan | None = None,
    other: Plan | None = None,
    spares: tuple[str, ...] = (),
    seed: int = 1,
    is_one_machine: bool = False,
    **options: object,
) -> World:
    plan = plan or small_plan(2, 2)
    places: dict[str, list[str]] = {}
    for name in (*plan.workers, *spares):
        places.setdefault(node_of(name), []).append(name)
    shape = JobShape(plan, other or plan, {node: tuple(names) for node, names in places.items()})
    times = {"settle_ms": 20, "answer_ms": 300, "lost_after_ms": 250, "max_restarts": 100}
    snapshots = SnapshotSettings(options=OPTIONS, max_cost=0.0)
    given = {**times, "snapshots": snapshots, "replan": NO_PLANNER, **options}
    settings = ControlSettings(plan=plan, **given)
    pace = WorldDelays(is_one_machine=is_one_machine)
    world = World(Random(seed), shape, settings, pace, [Coverage(), *checkers])
    world.coordinator.open()
    return world


def until(world: World, reached: Callable[[], bool], limit_ms: int = 5_000) -> World:
    end_ms = world.clock.now_ms + limit_ms
    while not reached():
        assert world.clock.now_ms < end_ms, "\n".join(world.clock.trace)
        world.clock.step()
    return world


def at_version(world: World, version: int) -> World:
    """Every worker of the last order has got there."""

    def reached() -> bool:
        last = world.journal.last
        members = world.members_alive(last) if last is not None else []
        inside = [w for w in members if w.position.epoch == last.number] if last else []
        whole = last is not None and len(inside) == len(last.incarnations)
        return whole and all(w.position.version >= version for w in inside)

    return until(world, reached)


def broken_promise(world: World, version: int = 40, limit_ms: int = 3_000) -> str:
    """The promise that breaks on the way to a version; empty: none."""
    try:
        end_ms = world.clock.now_ms + limit_ms
        while world.clock.now_ms < end_ms:
            world.clock.step()
            if max((w.position.version for w in world.workers.values()), default=0) >= version:
                return ""
        for checker in world.checkers:
            checker.finished(world)
    except Violation as violation:
        return violation.promise
    return ""


def worker(world: World, name: str) -> Worker:
    return world.agent_of(name).workers[name]
