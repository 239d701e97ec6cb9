"""What this machine has for a job's protection: looked at before the job starts. What follows from
it is decided in `snapshot/provision.py`.
"""

import os
import resource
from pathlib import Path

import msgspec

from holdfast.errors import HoldfastError
from holdfast.observe.quantities import format_bytes
from holdfast.observe.run_directory import DEFAULT_PARENT, MEMORY, RunDirectory, nearest_folder
from holdfast.observe.run_directory import SHARED_MEMORY as SHARED_NAME
from holdfast.plan.workers import node_of
from holdfast.runtime.config.snapshot_options import snapshot_options
from holdfast.runtime.launch.job import Job
from holdfast.snapshot.memory.arena import SHARED_MEMORY
from holdfast.snapshot.memory.job_memory import arena_files
from holdfast.snapshot.provision import (
    AskedProtection,
    MemoryPlace,
    Provision,
    describe_descriptors,
    least_descriptors,
    provide,
    wanted_descriptors,
)

_CGROUP = Path("/sys/fs/cgroup")
_IN_MEMORY = ("tmpfs", "ramfs", "devtmpfs")


def provide_for(job: Job) -> Provision:
    """What the job gets; HoldfastError if it is strict and that is not all it asks for."""
    config, snapshot = job.config, job.config.snapshot
    if not config.net.rendezvous:
        _check_fits(job)
    asked = AskedProtection(
        options=snapshot_options(config, "", ""),
        persist_every_steps=snapshot.persist_every_steps,
        persist_every_s=snapshot.persist_every_s,
        keep_latest_k=snapshot.keep_latest_k,
    )
    run_dir = Path(config.job.run_dir or DEFAULT_PARENT)
    disk = MemoryPlace(str(run_dir), free_bytes(nearest_folder(run_dir)), is_disk=True)
    plans = [planned.plan for planned in job.plans]
    found = provide(plans, asked, _places(job, disk), disk)
    if few := describe_descriptors(raise_descriptors(len(job.workers)), len(job.workers)):
        found = msgspec.structs.replace(found, lacking=(*found.lacking, few))
    if snapshot.strict and found.lacking:
        raise HoldfastError(f"{'; '.join(found.lacking)} (snapshot.strict = true)")
    return found


def _check_fits(job: Job) -> None:
    """One copy of the state is the least that the workers of a machine hold together."""
    kept = job.plans[0].plan.state_bytes.kept
    needed, there = job.num_parameters * kept, available_memory()
    if job.config.job.device == "cpu" and needed > there:
        raise HoldfastError(
            f"{job.config.model.title} has {job.num_parameters:,} parameters, whose state needs "
            f"{format_bytes(needed)} of memory, and {format_bytes(there)} are left here: take a "
            f"smaller model, or a machine with more"
        )


def grant(job: Job, provision: Provision, directory: RunDirectory) -> Job:
    """The job with the settings that it gets instead of those it asked for."""
    place = provision.place
    if place is None:
        return _with_snapshot(job, every=0)
    own = directory / MEMORY
    if place.is_disk and not job.config.snapshot.memory_folder:
        own.mkdir(exist_ok=True)
        folder = str(own.absolute())
    else:
        folder = place.path
    return _with_snapshot(
        job,
        every=provision.every,
        memory_folder=folder,
        memory_limit_bytes=provision.memory_limit_bytes,
        keep_latest_k=provision.keep_latest_k,
    )


def raise_descriptors(num_workers: int) -> int:
    """The limit of open files, raised for this process and its children as far as it needs and may;
    HoldfastError if the job could not even begin.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = wanted_descriptors(num_workers)
    if soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(hard, wanted)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    if soft < least_descriptors(num_workers):
        raise HoldfastError(
            f"the limit of open files is {soft}, and {num_workers} workers need "
            f"{least_descriptors(num_workers)} at least: ulimit -n {wanted}"
        )
    return soft


def _with_snapshot(job: Job, **changes: object) -> Job:
    section = msgspec.structs.replace(job.config.snapshot, **changes)
    config = msgspec.structs.replace(job.config, snapshot=section)
    return msgspec.structs.replace(job, config=config)


def _places(job: Job, disk: MemoryPlace) -> list[MemoryPlace]:
    given = job.config.snapshot.memory_folder
    if given:
        is_disk = not is_in_memory(Path(given))
        free = free_bytes(Path(given)) if is_disk else _free_memory(Path(given))
        return [MemoryPlace(os.path.abspath(given), free, is_disk)]
    if job.config.net.rendezvous:
        # The other hosts are taken to be like this one.
        num_nodes = len(set(map(node_of, job.workers)))
        return [MemoryPlace(str(SHARED_MEMORY), num_nodes * _free_memory(SHARED_MEMORY))]
    run_dir = job.config.job.run_dir or f"{DEFAULT_PARENT}/..."
    on_disk = MemoryPlace(f"{run_dir}/{MEMORY}", disk.free_bytes, is_disk=True)
    free = _free_memory(SHARED_MEMORY) + _held_before(job)
    return [MemoryPlace(str(SHARED_MEMORY), free), on_disk]


def _held_before(job: Job) -> int:
    """What runs before this one have left in shared memory, and this one takes over."""
    path = Path(job.config.job.run_dir) / SHARED_NAME
    if not job.config.job.run_dir or not path.is_file():
        return 0
    files = arena_files(path.read_text(encoding="utf-8").strip())
    return sum(file.stat().st_blocks * 512 for file in files)


def free_bytes(folder: Path) -> int:
    """0 where nothing can be written."""
    try:
        found = os.statvfs(folder)
    except OSError:
        return 0
    can_write = os.access(folder, os.W_OK | os.X_OK)
    return found.f_bavail * found.f_frsize if can_write else 0


def _free_memory(folder: Path) -> int:
    """Of a file system in memory: no more than half of what the machine has left, since the
    training that is about to begin needs some, too.
    """
    return min(free_bytes(folder), available_memory() // 2)


def available_memory() -> int:
    """Of the machine, or of the container where it has a limit."""
    words = Path("/proc/meminfo").read_text(encoding="utf-8").partition("MemAvailable:")[2].split()
    found = 1024 * int(words[0])
    try:
        limit = (_CGROUP / "memory.max").read_text().strip()
        used = int((_CGROUP / "memory.current").read_text())
    except (OSError, ValueError):
        return found
    return found if limit == "max" else min(found, max(0, int(limit) - used))


def is_in_memory(folder: Path) -> bool:
    """By the kind of its file system: that of the longest mount point above it."""
    best, kind, whole = "", "", str(folder.absolute())
    for line in Path("/proc/self/mounts").read_text(encoding="utf-8").splitlines():
        point, this = line.split()[1:3]
        is_above = whole == point or whole.startswith(point.rstrip("/") + "/")
        if is_above and len(point) >= len(best):
            best, kind = point, this
    return kind in _IN_MEMORY
