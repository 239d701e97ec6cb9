"""What of the protection that a job asks for can be had here, and what to say where it cannot.

Asked before anything starts: the plans say how many bytes snapshots take, the caller what there is.
The first place that has room for what is asked for is taken (shared memory, else a folder on disk);
where none has, less is kept: no parity, then a longer interval, then nothing. Room means twice what
one plan needs: while one plan takes over from another, the versions of both are kept.

Every line names what was asked for, what there is, and what to do about it. A job that is strict
does not start where something is lacking; that snapshots lie elsewhere is said, and no lack.
"""

from collections.abc import Sequence

import msgspec

from holdfast.plan.holders import HolderMap
from holdfast.plan.plan import Plan
from holdfast.snapshot.arena_plan import ArenaChoice, SnapshotOptions, arena_choices, node_bytes

ROOM = 2
"""How many plans' versions have to fit."""


class AskedProtection(msgspec.Struct, frozen=True, kw_only=True):
    """What the job file says."""

    options: SnapshotOptions
    persist_every_steps: int
    persist_every_s: float
    keep_latest_k: int

    @property
    def persists(self) -> bool:
        return bool(self.persist_every_steps or self.persist_every_s)


class MemoryPlace(msgspec.Struct, frozen=True):
    """Where snapshots can lie."""

    path: str
    free_bytes: int
    is_disk: bool = False


class Provision(msgspec.Struct, frozen=True, kw_only=True):
    """What the job gets."""

    summary: str
    """In one line."""
    every: int = 0
    """0: there are no snapshots."""
    place: MemoryPlace | None = None
    memory_limit_bytes: int = 0
    keep_latest_k: int = 0
    lacking: tuple[str, ...] = ()
    """What was asked for and cannot be had, a line each."""
    notes: tuple[str, ...] = ()
    """What is otherwise than one would think."""


class _Size(msgspec.Struct, frozen=True):
    """Of one way to keep versions, the largest of all plans."""

    choice: ArenaChoice
    node_bytes: int
    all_bytes: int

    @property
    def room_bytes(self) -> int:
        return ROOM * self.all_bytes

    @property
    def words(self) -> str:
        return f"{self.choice}, every {self.choice.every}"


def provide(
    plans: Sequence[Plan],
    asked: AskedProtection,
    places: Sequence[MemoryPlace],
    disk: MemoryPlace,
) -> Provision:
    """`places`: for snapshots, the best first. `disk`: where the run directory is."""
    if not asked.options.every:
        return _without_snapshots(asked)
    sizes = _sizes(plans, asked.options)
    limit = asked.options.memory_limit_bytes
    allowed = [size for size in sizes if not limit or size.node_bytes <= limit]
    if not allowed:
        return _nothing(
            f"snapshot.memory_limit_bytes = {limit}, and the least that protects anything "
            f"({sizes[-1].words}) takes {sizes[-1].node_bytes} on a node",
            f"raise it to {sizes[0].node_bytes}",
        )
    fitting = [(s, p) for s in allowed for p in places if p.free_bytes >= s.room_bytes]
    if not fitting:
        return _nothing(
            f"{_free(places)}, and snapshots need {in_mb(allowed[-1].room_bytes)} at least",
            _remedy(places, sizes[0]),
        )
    size, place = fitting[0]
    lacking, notes = _less(sizes, allowed, size, place, places, limit)
    keep, more_lacking, more_notes = _checkpoints(plans[0], asked, size, place, disk)
    return Provision(
        summary=_summary(asked, size, place),
        every=size.choice.every,
        place=place,
        memory_limit_bytes=_limit(size, place, limit, len(node_bytes(size.choice.shares))),
        keep_latest_k=keep,
        lacking=(*lacking, *more_lacking),
        notes=(*notes, *more_notes),
    )


DESCRIPTORS, DESCRIPTORS_PER_WORKER = 32, 4
"""Of the launcher, which has more open than any other process of a job: measured, rounded up."""


def least_descriptors(num_workers: int) -> int:
    """Without these a job cannot run at all."""
    return DESCRIPTORS + DESCRIPTORS_PER_WORKER * num_workers


def wanted_descriptors(num_workers: int) -> int:
    """With as many again for connections that are made anew while old ones are given up."""
    return 2 * least_descriptors(num_workers)


def describe_descriptors(limit: int, num_workers: int) -> str:
    """What is lacking where the limit is this; empty: nothing."""
    wanted = wanted_descriptors(num_workers)
    if limit >= wanted:
        return ""
    return (
        f"the limit of open files is {limit}, and {num_workers} workers need {wanted}: a recovery "
        f"may fail for want of them; ulimit -n {wanted}"
    )


def in_mb(num_bytes: int) -> str:
    return f"{num_bytes / 1e6:,.1f} MB"


def checkpoint_bytes(plan: Plan, dtype: str) -> int:
    tensors = HolderMap(plan).tensors.values()
    return sum(t.num_elements * t.kept(dtype).element_bytes for t in tensors)


def _sizes(plans: Sequence[Plan], options: SnapshotOptions) -> list[_Size]:
    """Of every way to keep versions, the best first."""
    unlimited = msgspec.structs.replace(options, memory_limit_bytes=0)
    ways = zip(*(arena_choices(plan, unlimited) for plan in plans), strict=True)
    found: list[_Size] = []
    for choices in ways:
        nodes = [node_bytes(choice.shares) for choice in choices]
        largest = max(size for one in nodes for size in one.values())
        found.append(_Size(choices[0], largest, max(sum(one.values()) for one in nodes)))
    return found


def _limit(size: _Size, place: MemoryPlace, limit: int, num_nodes: int) -> int:
    """For plans that come later: what a node may take so that all fit."""
    share = max(size.node_bytes, place.free_bytes // (ROOM * num_nodes))
    return min(limit, share) if limit else share


# What is said.


def _without_snapshots(asked: AskedProtection) -> Provision:
    lacking: tuple[str, ...] = ()
    if asked.persist_every_steps:
        lacking = (
            f"snapshot.persist_every_steps = {asked.persist_every_steps}, but snapshot.every = 0: "
            f"checkpoints are made of snapshots, so none is written; set snapshot.every = 1",
        )
    return Provision(summary="no snapshots and no checkpoints: snapshot.every = 0", lacking=lacking)


def _nothing(why: str, remedy: str) -> Provision:
    line = f"{why}: no snapshots and no checkpoints; {remedy}"
    return Provision(summary="no snapshots and no checkpoints", lacking=(line,))


def _less(
    sizes: Sequence[_Size],
    allowed: Sequence[_Size],
    size: _Size,
    place: MemoryPlace,
    places: Sequence[MemoryPlace],
    limit: int,
) -> tuple[list[str], list[str]]:
    """What is lacking, and what is to be noted, of snapshots."""
    lacking: list[str] = []
    if allowed[0] is not sizes[0]:
        lacking.append(
            f"snapshot.memory_limit_bytes = {limit}, and {sizes[0].words} takes "
            f"{sizes[0].node_bytes} on a node: {allowed[0].words} instead; raise it to "
            f"{sizes[0].node_bytes}"
        )
    if size is not allowed[0]:
        lacking.append(
            f"{_free(places)}, and {allowed[0].words} needs {in_mb(allowed[0].room_bytes)}: "
            f"{size.words} instead; {_remedy(places, allowed[0])}"
        )
    if place is places[0]:
        return lacking, []
    cost = ""
    if place.is_disk:
        slots = size.choice.shares.layouts[0].num_slots
        cost = f", where each costs {in_mb(size.all_bytes // slots)} of writing to disk"
    return lacking, [
        f"{places[0].path} has {in_mb(places[0].free_bytes)} free, and snapshots need "
        f"{in_mb(size.room_bytes)}: they lie in {place.path}{cost}; {_remedy(places, size)}"
    ]


def _free(places: Sequence[MemoryPlace]) -> str:
    return " and ".join(f"{place.path} has {in_mb(place.free_bytes)} free" for place in places)


def _remedy(places: Sequence[MemoryPlace], size: _Size) -> str:
    return (
        f"make room for {in_mb(size.room_bytes)} in {places[0].path} (containers: --shm-size), or "
        f"name another snapshot.memory_folder"
    )


def _checkpoints(
    plan: Plan, asked: AskedProtection, size: _Size, place: MemoryPlace, disk: MemoryPlace
) -> tuple[int, list[str], list[str]]:
    """How many are kept; what is lacking, and what is to be noted."""
    keep = asked.keep_latest_k
    if not asked.persists:
        return keep, [], []
    one = checkpoint_bytes(plan, asked.options.dtype)
    free = disk.free_bytes - (size.room_bytes if place.is_disk else 0)
    fit = free // one if one else keep + 1
    if fit >= max(2, keep + 1):
        return keep, [], []
    there = f"{disk.path} has {in_mb(max(0, free))} free for checkpoints of {in_mb(one)} each"
    remedy = "free some, or choose another job.run_dir"
    if fit >= 2:
        return fit - 1, [], [f"{there}: {fit - 1} kept instead of {keep}; {remedy}"]
    few = "only one fits" if fit else "none fits"
    return keep, [f"{there}: {few}, so they will fail until there is room; {remedy}"], []


def _summary(asked: AskedProtection, size: _Size, place: MemoryPlace) -> str:
    every = size.choice.every
    steps = "every step" if every == 1 else f"every {every} steps"
    intervals = [
        *([f"every {asked.persist_every_steps} steps"] if asked.persist_every_steps else []),
        *([f"every {asked.persist_every_s:g} s"] if asked.persist_every_s else []),
    ]
    disk = f"checkpoints {' or '.join(intervals)} and at the end" if intervals else "no checkpoints"
    return f"snapshots of {steps} in {place.path} ({size.choice}, {in_mb(size.all_bytes)}); {disk}"
