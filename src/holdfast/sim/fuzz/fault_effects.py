"""The kinds of faults: what each of them does to a world.

An effect gets the world, a random source of its own, and the worker that something just happened
to, if the fault lay in wait for that.
"""

from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING

from holdfast.control.facts import NodeDead, PlanWanted, StopWanted, WorkerHung
from holdfast.control.hang_watch import SEEN_STEPS

if TYPE_CHECKING:
    from holdfast.sim.fuzz.worker import Worker
    from holdfast.sim.fuzz.world import World

FaultEffect = Callable[["World", Random, "Worker | None"], None]


def _victim(world: "World", rng: Random, worker: "Worker | None") -> "Worker | None":
    """The worker it happened to, or another one."""
    if worker is not None and worker.is_alive and rng.random() < 0.5:
        return worker
    alive = [w for w in world.workers.values() if w.is_alive and w.position.has_seat]
    return rng.choice(alive) if alive else None


def _crash_worker(world: "World", rng: Random, worker: "Worker | None") -> None:
    victim = _victim(world, rng, worker)
    if victim is not None:
        world.count("worker crashes")
        world.kill(victim, "SIGKILL")


def _crash_node(world: "World", rng: Random, worker: "Worker | None") -> None:
    """Sometimes it comes back, sometimes its death is proven: also late, when it is back."""
    victim = _victim(world, rng, worker)
    if victim is None:
        return
    world.count("node losses")
    agent = world.agent_of(victim.name)
    world.clock.note(f"{agent.node} is lost")
    agent.crash()
    if rng.random() < 0.4:
        dead = NodeDead(agent.node, "the launcher saw its end", will_return=True, agent=agent.agent)
        most_ms = rng.choice((20, 900))
        told = world.coordinator.life
        world.clock.after(rng.randint(1, most_ms), _tell_death, world, dead, told)
    if rng.random() < 0.6:
        world.clock.after(rng.randint(50, 600), agent.boot)


def _tell_death(world: "World", dead: NodeDead, told: int) -> None:
    """`told`: which coordinator is. To its successor the launcher says again who is not back."""
    is_back = world.agents[dead.node].agent != dead.agent
    if not is_back or world.coordinator.life == told:
        world.coordinator.take(dead)


def _crash_coordinator(world: "World", rng: Random, _: "Worker | None") -> None:
    """Between any two of its effects."""
    coordinator = world.coordinator
    if coordinator.is_up and coordinator.crash_after < 0:
        coordinator.crash_after = rng.randint(0, 12)
        world.clock.after(rng.randint(20, 300), _replace_coordinator, world, rng)


def _replace_coordinator(world: "World", rng: Random) -> None:
    if world.is_calm:
        return
    if world.coordinator.is_up:
        world.coordinator.crash()
    world.clock.after(rng.randint(10, 150), world.coordinator.open)


def _supersede_coordinator(world: "World", rng: Random, _: "Worker | None") -> None:
    """Some agents see its successor a moment later, and follow the one that they know."""
    _supersede(world, rng, 150)


def _supersede_unseen(world: "World", rng: Random, _: "Worker | None") -> None:
    """So late that the successor may give them up: they are cut off from the rendezvous, too."""
    _supersede(world, rng, 600)


def _supersede(world: "World", rng: Random, most_ms: int) -> None:
    keeps = {node: None for node in world.agents if rng.random() < 0.5}
    world.coordinator.replace(keeps)
    world.clock.after(rng.randint(20, most_ms), world.coordinator.end_replaced)


def _fail_disk(world: "World", rng: Random, _: "Worker | None") -> None:
    """The next entry of the journal cannot be written: the process ends, a successor comes."""
    coordinator = world.coordinator
    if coordinator.is_up:
        coordinator.successor_ms = rng.randint(10, 150)


def _cut_off(world: "World", rng: Random, worker: "Worker | None") -> None:
    victim = _victim(world, rng, worker)
    if victim is not None:
        world.count("agents cut off")
        _isolate(world, world.agent_of(victim.name).node, rng.randint(30, 700))


def _isolate(world: "World", node: str, for_ms: int) -> None:
    agent = world.agents[node]
    agent.is_cut_off = True
    agent.disconnect()
    world.clock.after(for_ms, _rejoin, world, node)


def _rejoin(world: "World", node: str) -> None:
    world.agents[node].is_cut_off = False


def _reconnect(world: "World", rng: Random, worker: "Worker | None") -> None:
    victim = _victim(world, rng, worker)
    if victim is not None:
        world.count("reconnects")
        world.agent_of(victim.name).disconnect()


def _cut(world: "World", rng: Random, worker: "Worker | None") -> None:
    one, other = _victim(world, rng, worker), _victim(world, rng, None)
    if one is None or other is None or one.name == other.name:
        return
    world.count("cuts between workers")
    world.cut(one.name, other.name)
    epoch = one.position.epoch
    one.later(rng.randint(1, 20), one.lost, epoch, other.name, "no route to")
    world.clock.after(rng.randint(20, 900), world.heal, one.name, other.name)


def _pause(world: "World", rng: Random, worker: "Worker | None") -> None:
    victim = _victim(world, rng, worker)
    if victim is None or victim.is_paused:
        return
    world.count("hangs")
    victim.is_paused = True
    world.clock.note(f"{victim} hangs")
    if rng.random() < 0.5:
        world.stopped_ms[victim.member] = world.clock.process_ms
    elif rng.random() < 0.7:
        world.clock.after(rng.randint(20, 200), _accuse, world, victim, "it makes no progress")
    world.clock.after(rng.randint(10, 900), victim.resume)


def _hang(world: "World", rng: Random, worker: "Worker | None") -> None:
    """In the middle of an action, for longer than the coordinator's patience: it shows by its
    progress alone. Sometimes it uses its processor all the while.
    """
    victim = _victim(world, rng, worker)
    if world.is_calm or victim is None or victim.is_paused:
        return
    if victim.position.version < SEEN_STEPS + 3:  # how long a step takes is not known yet
        world.clock.after(100, _hang, world, rng, None)
        return
    world.count("hangs in an action")
    victim.is_paused = True
    world.hung_ms[victim.member] = world.clock.now_ms
    if rng.random() < 0.1:
        world.busy[victim.member] = None
    world.clock.note(f"{victim} hangs in an action")
    for_ms = rng.randint(1_800, 3_000)
    world.prolong(world.clock.now_ms + for_ms)
    world.clock.after(for_ms, victim.resume)


def _pause_all(world: "World", rng: Random, _: "Worker | None") -> None:
    """All workers stop at once, look hung, and go on later."""
    _pause_workers(world, rng, rng.randint(50, 700))


def _pause_all_for_long(world: "World", rng: Random, _: "Worker | None") -> None:
    for_ms = rng.randint(*LONG_PAUSE_MS)
    _pause_workers(world, rng, for_ms)
    world.prolong(world.clock.now_ms + for_ms)


def _pause_workers(world: "World", rng: Random, pause_ms: int) -> None:
    workers = [w for w in world.workers.values() if w.is_alive and not w.is_paused]
    world.count("jobs paused")
    world.clock.note("all workers are paused")
    for worker in workers:
        worker.is_paused = True
        world.stopped_ms[worker.member] = world.clock.process_ms
        world.clock.after(pause_ms + rng.randint(0, 10), worker.resume)


LONG_PAUSE_MS = (6_500, 9_000)
"""Longer than any patience that is drawn."""


def _suspend(world: "World", rng: Random, _: "Worker | None") -> None:
    """The whole job is: its machine, or the container that it runs in."""
    for_ms = rng.randint(*LONG_PAUSE_MS)
    world.count("jobs suspended")
    world.clock.note(f"all processes are suspended for {for_ms} ms")
    world.clock.suspended_ms += for_ms


def _pause_coordinator(world: "World", rng: Random, _: "Worker | None") -> None:
    """All others go on."""
    for_ms = rng.randint(*LONG_PAUSE_MS) if rng.random() < 0.5 else rng.randint(10, 200)
    world.coordinator.pause(for_ms)
    world.prolong(world.clock.now_ms + for_ms)


def _cut_off_all(world: "World", rng: Random, _: "Worker | None") -> None:
    """The coordinator is: the workers train on. One that knows no order yet knows no node that it
    could wait for.
    """
    if world.is_calm:
        return
    if world.journal.last is None:
        world.clock.after(50, _cut_off_all, world, rng, None)
        return
    for_ms = rng.randint(*LONG_PAUSE_MS)
    world.count("coordinators cut off")
    for node in world.agents:
        _isolate(world, node, for_ms + rng.randint(0, 50))
    world.prolong(world.clock.now_ms + for_ms)


def _accuse(world: "World", victim: "Worker", reason: str) -> None:
    if not world.is_calm and victim.is_alive and (victim.is_paused or reason == FALSE_ALARM):
        world.coordinator.take(WorkerHung(victim.member, reason))


FALSE_ALARM = "a false alarm"


def _false_verdict(world: "World", rng: Random, worker: "Worker | None") -> None:
    """A live worker is fenced, and the agent that should kill it cannot be reached."""
    victim = _victim(world, rng, worker)
    if victim is None:
        return
    world.count("false verdicts")
    if rng.random() < 0.7:
        _isolate(world, world.agent_of(victim.name).node, rng.randint(30, 400))
    if rng.random() < 0.4:
        victim.is_paused = True
        world.clock.after(rng.randint(5, 200), victim.resume)
    world.clock.after(rng.randint(0, 20), _accuse, world, victim, FALSE_ALARM)


def _want_plan(world: "World", rng: Random, _: "Worker | None") -> None:
    coordinator, home = world.coordinator, world.journal.home
    plans = (world.shape.plan, world.shape.other)
    if coordinator.is_up and home in plans:
        world.count("plans wanted")
        newest = max((w.position.version for w in world.workers.values()), default=0)
        at_step = newest + rng.randint(1, 6) if rng.random() < 0.3 else 0
        plan = plans[1] if home == plans[0] else plans[0]
        coordinator.take(PlanWanted(plan, "another plan", at_step))


def _damage_snapshots(world: "World", rng: Random, worker: "Worker | None") -> None:
    """Parts are gone before the coordinator knows it, cannot be read, or are told of late."""
    victim = _victim(world, rng, worker)
    agents = [agent for agent in world.agents.values() if agent.is_alive]
    if not agents:
        return
    agent = world.agent_of(victim.name) if victim is not None else rng.choice(agents)
    kind = rng.choice(("lost", "damaged", "late"))
    world.count(f"snapshots {kind}")
    world.clock.note(f"snapshots of {agent.node} are {kind}")
    if kind == "late":
        agent.tell_late_ms = rng.randint(20, 300)
        return
    held = sorted({v for arena in agent.arenas.values() for v in arena}, key=lambda v: v.age)
    hit = held[-rng.randint(1, 3) :]
    if kind == "damaged":
        agent.damaged.update(dict.fromkeys(hit))
    else:
        agent.lose(hit, rng.randint(0, 100))


def _lose_unit(world: "World", rng: Random, _: "Worker | None") -> None:
    """All holders of a unit die: only a snapshot helps."""
    last = world.journal.last
    if last is None:
        return
    plan = world.journal.plans[last.number]
    unit = rng.randrange(len(plan.units))
    stages = [stage for stage in plan.stages if stage.first <= unit < stage.stop]
    holders = dict.fromkeys(name for stage in stages for name in stage.workers)
    world.count("units lost")
    for name in holders:
        victim = world.seated(name, last)
        if victim is not None:
            world.kill(victim, "SIGKILL")


def _tell_late(world: "World", rng: Random, _: "Worker | None") -> None:
    """What nodes hold is told late by all of them, and a unit is lost meanwhile: the rollback goes
    back further than it had to, and what is told then is of a history that was given up. Often
    the next rollback comes soon.
    """
    if world.is_calm:
        return
    if world.newest_known() is None:  # nothing to go back to yet
        world.clock.after(50, _tell_late, world, rng, None)
        return
    world.count("all snapshots late")
    late_ms = rng.randint(80, 200)
    for agent in world.agents.values():
        agent.tell_late_ms = late_ms
    world.clock.after(rng.randint(40, late_ms), _lose_unit_in_war, world, rng)
    if rng.random() < 0.7:
        world.clock.after(late_ms + rng.randint(100, 250), _lose_unit_in_war, world, rng)
        world.prolong(world.clock.now_ms + late_ms + 300)


def _lose_unit_in_war(world: "World", rng: Random) -> None:
    if not world.is_calm:
        _lose_unit(world, rng, None)


def _fail_checkpoints(world: "World", rng: Random, _: "Worker | None") -> None:
    """The next ones cannot be written, or the newest cannot be read any more."""
    if rng.random() < 0.6:
        world.disk.num_errors += rng.randint(1, 3)
    else:
        world.count("checkpoints damaged")
        world.disk.damage()


def _stop(world: "World", rng: Random, _: "Worker | None") -> None:
    if world.coordinator.is_up:
        world.count("stops asked for")
        world.coordinator.take(StopWanted("asked to"))


FAULT_EFFECTS: dict[str, FaultEffect] = {
    "worker": _crash_worker,
    "node": _crash_node,
    "coordinator": _crash_coordinator,
    "superseded": _supersede_coordinator,
    "superseded unseen": _supersede_unseen,
    "suspended": _suspend,
    "coordinator paused": _pause_coordinator,
    "coordinator cut off": _cut_off_all,
    "workers paused": _pause_all_for_long,
    "disk": _fail_disk,
    "cut off": _cut_off,
    "reconnect": _reconnect,
    "cut": _cut,
    "pause": _pause,
    "hang": _hang,
    "pause all": _pause_all,
    "unit": _lose_unit,
    "late": _tell_late,
    "checkpoint": _fail_checkpoints,
    "false verdict": _false_verdict,
    "plan": _want_plan,
    "snapshots": _damage_snapshots,
    "stop": _stop,
}
