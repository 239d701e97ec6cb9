"""Jobs drawn at random: their shape, and what is done to them, by the job itself and from outside.

A seed says all of it. A job without snapshots keeps its first replica: nothing is done to its
workers that may cost their state, and no promise is asked for what was lost with its last holder.
A job with snapshots may lose all its workers, but then keeps its nodes, whose memory has the
snapshots.
"""

import random
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from holdfast.runtime.config.recovery_sections import SnapshotSection
from holdfast.runtime.faults.kinds import Fault

NUM_UNITS = 6
"""Of the model that chaos runs train."""
MAX_WORKERS = 8
SPACING = 12
"""Steps between two faults, so that mostly, not always, the one before is mended."""
FIRST_STEP = 5
PHASES = (
    "message",  # only between stages
    "forward",
    "backward",
    "reduce 1",
    "reduced",
    "agree",
    "agreed",
    "apply",
    "applied",
)
WITHIN = ("SIGKILL", "SEGFAULT", "OS_ABORT", "WORKLOAD_EXC")
"""What a worker can do to itself in a phase of a step."""
OF_WORKERS = (*WITHIN, "SIGTERM", "SIGSTOP", "LOCK_GIL", "SLOW")
OF_NODES = ("NODE_LOSS", "PARTITION")
LASTING = {"PARTITION": 0.5, "SLOW": 0.5}
"""How long, in seconds; the others last until they are found."""


@dataclass(frozen=True)
class Strike:
    """Signals from outside, some time after a step was reported."""

    kind: str
    """kill, kill several, kill coordinator, or pause"""
    after_step: int
    delay_s: float
    targets: tuple[str, ...]
    """By the names of their logs."""
    gap_s: float = 0.0
    """Between two targets."""


@dataclass(frozen=True)
class Drawn:
    seed: int
    num_steps: int
    parallel: dict[str, Any]
    dropout: float
    snapshot: SnapshotSection
    faults: tuple[Fault, ...]
    strikes: tuple[Strike, ...]

    def __str__(self) -> str:
        parallel = " ".join(f"{key}={value}" for key, value in self.parallel.items())
        done = [f"{f.kind} {f.target} {f.phase}@{f.at_step}" for f in self.faults]
        done += [f"{s.kind} {','.join(s.targets)}@{s.after_step}" for s in self.strikes]
        every = self.snapshot.every
        return (
            f"seed {self.seed}: {parallel} dropout={self.dropout} snapshots={every}: "
            f"{'; '.join(done)}"
        )


def draw(seed: int, num_faults: int, num_strikes: int) -> Drawn:
    """Every fourth seed splits the backward pass of tensor groups, the rest is drawn freely."""
    source = random.Random(seed)
    fixed = {"schedule": "zero-bubble", "tensor": 2} if seed % 4 == 0 else {}
    parallel = draw_shape(source, fixed)
    snapshot = draw_snapshots(source)
    slots = list(range(num_faults + num_strikes))
    source.shuffle(slots)
    steps = [FIRST_STEP + SPACING * slot + source.randrange(SPACING - 4) for slot in slots]
    may_lose_all = snapshot.every > 0 and source.random() < 0.5
    return Drawn(
        seed=seed,
        num_steps=FIRST_STEP + SPACING * len(slots) + 1,
        parallel=parallel,
        dropout=source.choice((0.0, 0.0, 0.1)),
        snapshot=snapshot,
        faults=tuple(
            draw_fault(source, parallel, step, may_lose_all) for step in steps[:num_faults]
        ),
        strikes=tuple(
            draw_strike(source, parallel, step, may_lose_all) for step in steps[num_faults:]
        ),
    )


def draw_shape(source: random.Random, fixed: dict[str, Any]) -> dict[str, Any]:
    """The [parallel] section of a job file."""
    while True:
        shape: dict[str, Any] = {
            "schedule": source.choice(("gpipe", "1f1b", "interleaved", "zero-bubble")),
            "replicas": source.choice((2, 2, 3)),
            "stages": source.choice((1, 2, 2, 3)),
            "tensor": source.choice((1, 1, 2)),
            "shard": source.choice((1, 1, 2)),
            "recompute": source.random() < 0.3,
        } | fixed
        if num_workers(shape) <= MAX_WORKERS:
            break
    if shape["schedule"] == "interleaved":
        shape["virtual"] = 2
    if shape["schedule"] == "1f1b":
        shape["extra_in_flight"] = source.choice((0, 0, 1))
    of_replica = shape["stages"] * shape["tensor"] * shape["shard"]
    shape["devices_per_node"] = source.choice((1, 2)) if of_replica % 2 == 0 else 1
    shape["split"] = draw_split(source, shape["stages"] * shape.get("virtual", 1))
    return shape


def draw_split(source: random.Random, num_stages: int) -> str | tuple[int, ...]:
    """Of the units over the stages: half of the time an unequal one."""
    if source.random() < 0.5:
        return "even"
    cuts = sorted(source.sample(range(1, NUM_UNITS), num_stages - 1))
    bounds = [0, *cuts, NUM_UNITS]
    return tuple(stop - start for start, stop in pairwise(bounds))


def draw_snapshots(source: random.Random) -> SnapshotSection:
    if source.random() < 0.5:
        return SnapshotSection(every=0)
    every, parity = source.choice((1, 1, 3)), source.random() < 0.7
    return SnapshotSection(every=every, max_cost=0, parity=parity, persist_every_s=0)


def num_workers(shape: dict[str, Any]) -> int:
    return int(shape["replicas"] * shape["stages"] * shape["tensor"] * shape["shard"])


def name_of(number: int, shape: dict[str, Any]) -> str:
    node, device = divmod(number, shape["devices_per_node"])
    return f"n{node}.g{device}"


def victims(shape: dict[str, Any], may_lose_all: bool) -> list[str]:
    """Workers that may be lost: all, or all but those of the first replica."""
    count = num_workers(shape)
    spared = 0 if may_lose_all else count // shape["replicas"]
    return [name_of(number, shape) for number in range(spared, count)]


def draw_fault(
    source: random.Random, shape: dict[str, Any], step: int, may_lose_all: bool
) -> Fault:
    """What the job's own file asks for."""
    kinds = (*OF_WORKERS, "SIGKILL", "COORDINATOR_LOSS", "PARTITION")
    kind: Any = source.choice(kinds if may_lose_all else (*kinds, "NODE_LOSS"))
    victim = source.choice(victims(shape, may_lose_all))
    phases = PHASES if shape["stages"] > 1 else PHASES[1:]
    phase = source.choice(phases) if kind in WITHIN and source.random() < 0.8 else ""
    if kind in OF_NODES:
        victim = victim.partition(".")[0]
    return Fault(
        kind=kind,
        target="random" if kind == "COORDINATOR_LOSS" else victim,
        at_step=step,
        phase=phase,
        duration_s=LASTING.get(kind, 0.0),
    )


def draw_strike(
    source: random.Random, shape: dict[str, Any], step: int, may_lose_all: bool
) -> Strike:
    """Signals from outside: mostly kills, sometimes of several processes."""
    candidates = victims(shape, may_lose_all)
    kind = source.choice(("kill", "kill", "kill", "kill several", "pause", "kill coordinator"))
    targets = (source.choice(candidates),)
    if kind == "kill several":
        targets = tuple(source.sample(candidates, source.randint(1, len(candidates))))
    elif kind == "kill coordinator":
        targets = ("coordinator",)
    return Strike(
        kind=kind,
        after_step=step,
        delay_s=source.uniform(0.0, 0.15),
        targets=targets,
        gap_s=source.choice((0.0, source.uniform(0.0, 0.05))),
    )
